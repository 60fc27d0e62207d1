//! Session: one reconcile reads everything, decides, and writes; the Agent's and the attachments'
//! statuses are projections of the same decision.
//!
//! ```text
//!  gather ──► ensure the Session ──► plan ──► place ──► step ──► status ──► pods ──► projections
//!  (reads)      (one create)        (pure)   (pure)   (pure)   (one patch) (writes)   (patches)
//! ```

use super::{
    Context, Error,
    agent::{self, Standing},
    apply::{ApplyError, Created},
    attachment::{self, View},
    build::{
        self,
        pod::{Launch, REVISION},
        session::FINALIZER,
    },
    events::transitions,
    hosts::{Placement, place},
    plan::{Plan, plan},
    pods,
    queue::Outcome,
    resolve::named,
    scrub,
    seen::{Problem, Seen},
};
use crate::{
    api::{
        McpAttachment, Session, SessionStatus,
        condition::{READY, RECONCILING, STALLED, set},
        session::{FrozenEnvironment, Phase},
    },
    domain::{
        identity::SessionKey,
        lifecycle::{Effect, Generation, Owner, PodFact, Situation, Step, Target, step},
        reason::Reason,
    },
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// A step whose pods were refused is taken once more with that knowledge.
const ROUNDS: usize = 2;
/// How long to wait before a refused pod is tried again.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);

/// Brings one Session, its Agent and its attachments one step on.
///
/// # Errors
/// What could not be read or written; the key comes back with backoff.
pub async fn reconcile(ctx: &Context, key: &SessionKey) -> Result<Outcome, Error> {
    let mut seen = ctx.resolve.gather(key).await?;
    let standing = agent::ensure_session(ctx, &mut seen).await?;
    let plan = plan(&seen);
    let progress = match &standing {
        Standing::Ours(session) | Standing::Leaving(session) => {
            let terminating = matches!(standing, Standing::Leaving(_))
                && (session.metadata.deletion_timestamp.is_some() || seen.agent.is_some());
            advance(ctx, &seen, &plan, session, terminating).await?
        }
        Standing::None(_) => Progress::default(),
    };
    project(ctx, &seen, &plan, &standing, &progress).await?;
    if let Standing::Leaving(session) = &standing {
        release(ctx, session, &progress).await?;
    }
    Ok(progress.outcome(&seen))
}

/// What became of the generations.
#[derive(Debug, Default)]
struct Progress {
    session: Option<Arc<Session>>,
    entries: Vec<Generation>,
    alive: bool,
    wake: Option<jiff::Timestamp>,
    refused: bool,
}

impl Progress {
    fn outcome(&self, seen: &Seen) -> Outcome {
        let until = |at: jiff::Timestamp| {
            Duration::try_from(at.duration_since(seen.now)).unwrap_or(Duration::ZERO)
        };
        let wake = self.wake.map(until);
        match (wake, self.refused.then_some(REFUSED_AGAIN)) {
            (Some(one), Some(two)) => Outcome::Wait(one.min(two)),
            (Some(one), None) | (None, Some(one)) => Outcome::Wait(one),
            (None, None) => Outcome::Done,
        }
    }
}

/// Takes one step with the Session's generations: decide, write, then touch pods.
async fn advance(
    ctx: &Context,
    seen: &Seen,
    plan: &Plan,
    session: &Arc<Session>,
    terminating: bool,
) -> Result<Progress, Error> {
    let before = session.status.clone().unwrap_or_default();
    let uid = session.metadata.uid.clone().unwrap_or_default();
    let placement = place(&uid, before.host.as_ref(), &seen.gateways);
    let (pods, mut facts) = facts(&seen.pods);
    let mut session = session.clone();
    let mut progress = Progress { alive: placement.alive, ..Progress::default() };
    for _ in 0..ROUNDS {
        let before = session.status.clone().unwrap_or_default();
        let next = step(&Situation {
            now: seen.now,
            session: &seen.key.name,
            session_uid: &uid,
            entries: &before.attachments,
            last_generation: before.last_generation,
            receipts: &before.receipts,
            owner: owner(&placement),
            desired: &plan.desired,
            pods: &facts,
            terminating,
        });
        ctx.count_ignored(&seen.key, &next.ignored);
        let status = status(seen, plan, &session, &placement, &next, terminating);
        session = write(ctx, &seen.key, session, &status).await?;
        tell(ctx, seen, &before, &next);
        (progress.entries, progress.wake) = (next.entries.clone(), next.wake);
        let refusals = perform(ctx, seen, plan, &session, &next, &pods).await?;
        if refusals.is_empty() {
            break;
        }
        progress.refused = true;
        facts.extend(refusals);
    }
    progress.session = Some(session);
    Ok(progress)
}

fn owner(placement: &Placement) -> Option<Owner<'_>> {
    let host = placement.host.as_ref().filter(|_| placement.alive)?;
    Some(Owner { incarnation: &host.incarnation, epoch: host.epoch })
}

/// The Session's pods by generation, and what each tells.
fn facts(pods: &[Arc<Pod>]) -> (BTreeMap<i64, Arc<Pod>>, BTreeMap<i64, PodFact>) {
    let number = |pod: &Pod| pod.labels().get(build::GENERATION)?.parse::<i64>().ok();
    let pods: BTreeMap<_, _> = pods.iter().filter_map(|p| Some((number(p)?, p.clone()))).collect();
    let facts = pods.iter().map(|(n, pod)| (*n, pods::fact(pod))).collect();
    (pods, facts)
}

/// Writes the Session's status; when somebody else was faster, reads it for the next round.
async fn write(
    ctx: &Context,
    key: &SessionKey,
    session: Arc<Session>,
    status: &SessionStatus,
) -> Result<Arc<Session>, Error> {
    match ctx.apply.session_status(&session, status).await {
        Ok(Some(written)) => Ok(ctx.resolve.latest.sessions.put(key, written)),
        Ok(None) => Ok(session),
        Err(conflict @ ApplyError::Conflict { .. }) => {
            ctx.resolve.refresh_session(key).await?;
            Err(conflict.into())
        }
        Err(problem) => Err(problem.into()),
    }
}

/// Makes and deletes pods as the step says; gives back what was refused.
async fn perform(
    ctx: &Context,
    seen: &Seen,
    plan: &Plan,
    session: &Session,
    next: &Step,
    pods: &BTreeMap<i64, Arc<Pod>>,
) -> Result<BTreeMap<i64, PodFact>, Error> {
    let mut refused = BTreeMap::new();
    for effect in &next.effects {
        match effect {
            Effect::DeletePod(number) => {
                if let Some(pod) = pods.get(number) {
                    ctx.apply.delete_pod(pod).await?;
                    ctx.resolve.latest.pods.forget(&named(&**pod));
                }
            }
            Effect::CreatePod(number) => {
                let entry = next.entries.iter().find(|e| e.generation == *number);
                if let Some(entry) = entry
                    && let Some(problem) = launch(ctx, seen, plan, session, entry).await?
                {
                    refused.insert(*number, PodFact::Refused(problem.reason, problem.message));
                }
            }
        }
    }
    Ok(refused)
}

/// Makes one generation's pod, after the policy that guards it.
async fn launch(
    ctx: &Context,
    seen: &Seen,
    plan: &Plan,
    session: &Session,
    entry: &Generation,
) -> Result<Option<Problem>, Error> {
    let judged = plan.judged.iter().find(|j| j.source() == Some(entry.source.as_str()));
    let stdio = judged.and_then(|j| j.attachment.spec.sandbox_stdio.as_ref());
    let (Some(stdio), Some(environment), Target::SandboxStdio(target)) =
        (stdio, &plan.environment, &entry.target)
    else {
        // What it was made from is not asked for at the moment; it is decided on the next change.
        return Ok(None);
    };
    if let Some(problem) = guard(ctx, seen, session).await? {
        return Ok(Some(problem));
    }
    let keys = ctx.resolve.link_keys().await?;
    let launch = Launch {
        session,
        generation: entry,
        stdio,
        environment: &environment.spec,
        revision: environment.revision,
        shim: &ctx.config.shim,
        gateway_keys: &keys,
    };
    let pod = build::pod::pod(&launch, &target.name);
    match ctx.apply.create_pod(&pod).await? {
        Created::Made(pod) | Created::Exists(pod) => {
            ctx.resolve.latest.pods.put(&named(&pod), pod);
            Ok(None)
        }
        Created::Refused(problem) => Ok(Some(problem)),
    }
}

/// The NetworkPolicy stands before any pod does, as it should be.
async fn guard(ctx: &Context, seen: &Seen, session: &Session) -> Result<Option<Problem>, Error> {
    let wanted = build::policy::policy(session, &ctx.config.gateways);
    let latest = &ctx.resolve.latest.policies;
    match &seen.policy {
        Some(present) if present.spec == wanted.spec => {}
        Some(present) => {
            let restored = ctx.apply.restore_policy(present, &wanted).await?;
            latest.put(&named(&restored), restored);
        }
        None => match ctx.apply.create_policy(&wanted).await? {
            Created::Made(policy) | Created::Exists(policy) => {
                latest.put(&named(&policy), policy);
            }
            Created::Refused(problem) => return Ok(Some(problem)),
        },
    }
    Ok(None)
}

/// The Session's status after a step.
fn status(
    seen: &Seen,
    plan: &Plan,
    session: &Session,
    placement: &Placement,
    next: &Step,
    terminating: bool,
) -> SessionStatus {
    let old = session.status.clone().unwrap_or_default();
    let view =
        View { now: seen.now, entries: &next.entries, alive: placement.alive, blocked: None };
    let overall = agent::overall(&view, plan);
    let phase = match (&placement.host, placement.alive) {
        _ if terminating => Phase::Terminating,
        (None, _) => Phase::Pending,
        (Some(_), true) => Phase::Serving,
        (Some(_), false) => Phase::Rescheduling,
    };
    let (ready, reason, message) = match phase {
        Phase::Terminating => (false, Reason::Draining, Reason::Draining.meaning().to_owned()),
        Phase::Rescheduling => {
            (false, Reason::Rescheduling, Reason::Rescheduling.meaning().to_owned())
        }
        Phase::Pending => (false, Reason::NoGateway, Reason::NoGateway.meaning().to_owned()),
        Phase::Serving => (overall.ready, overall.reason, overall.message.clone()),
    };
    let observed = session.metadata.generation;
    let mut conditions = old.conditions;
    let mut put = |type_, status, message: &str| {
        set(&mut conditions, type_, status, reason, message, observed, seen.now);
    };
    let stalled = phase == Phase::Serving && overall.stalled;
    put(READY, ready, &message);
    put(RECONCILING, !ready && !stalled, "");
    put(STALLED, stalled, "");
    SessionStatus {
        observed_generation: observed,
        phase: Some(phase),
        conditions,
        host: placement.host.clone(),
        environment: plan.environment.clone().map(|e| with_digest(e, &seen.pods)),
        last_generation: next.last_generation,
        attachments: next.entries.clone(),
        receipts: old.receipts,
        summary: Some(agent::summary(&view, plan)),
    }
}

/// Records what image the first pod of this revision runs.
fn with_digest(mut environment: FrozenEnvironment, pods: &[Arc<Pod>]) -> FrozenEnvironment {
    if environment.image_digest.is_none() {
        let revision = environment.revision.to_string();
        let of_revision =
            |p: &&Arc<Pod>| p.annotations().get(REVISION).is_some_and(|r| *r == revision);
        let mut digests = pods.iter().filter(of_revision).filter_map(|p| pods::image_digest(p));
        environment.image_digest = digests.next().map(str::to_owned);
    }
    environment
}

/// Writes what Agent and attachments should know of it.
async fn project(
    ctx: &Context,
    seen: &Seen,
    plan: &Plan,
    standing: &Standing,
    progress: &Progress,
) -> Result<(), Error> {
    let leaving = Problem::new(Reason::Draining, "The former Session is being deleted.");
    let blocked = match standing {
        Standing::Ours(_) => None,
        Standing::Leaving(_) => Some(&leaving),
        Standing::None(problem) => Some(problem),
    };
    let view = View { now: seen.now, entries: &progress.entries, alive: progress.alive, blocked };
    for judged in &plan.judged {
        let attachment = &judged.attachment;
        warn_of_secrets(ctx, attachment);
        let old = attachment.status.clone().unwrap_or_default();
        let new = attachment::status(&view, judged);
        match ctx.apply.status(&**attachment, &old, &new).await {
            Ok(Some(written)) => {
                warn_if_refused(ctx, attachment, judged.accepted.as_ref().err());
                ctx.resolve.latest.attachments.put(&named(&**attachment), written);
            }
            Ok(None) | Err(ApplyError::Gone { .. }) => {}
            Err(problem) => return Err(problem.into()),
        }
    }
    let Some(agent) = &seen.agent else { return Ok(()) };
    let old = agent.status.clone().unwrap_or_default();
    let new = agent::status(&view, plan, agent, progress.session.as_deref());
    match ctx.apply.status(&**agent, &old, &new).await {
        Ok(Some(written)) => {
            if let Standing::None(problem) = standing {
                ctx.events.warn(agent.object_ref(&()), problem.reason, problem.message.clone());
            }
            ctx.resolve.latest.agents.put(&seen.key, written);
        }
        Ok(None) | Err(ApplyError::Gone { .. }) => {}
        Err(problem) => return Err(problem.into()),
    }
    Ok(())
}

/// An event when an attachment is not accepted any more, or for another reason.
fn warn_if_refused(ctx: &Context, attachment: &McpAttachment, problem: Option<&Problem>) {
    let Some(problem) = problem else { return };
    let before = attachment.status.iter().flat_map(|s| &s.conditions);
    let known = before.into_iter().any(|c| {
        c.type_ == "Accepted" && c.status == "False" && c.reason == problem.reason.as_str()
    });
    if !known {
        ctx.events.warn(attachment.object_ref(&()), problem.reason, problem.message.clone());
    }
}

/// An event, once for each version of the spec, when a value looks like a secret.
fn warn_of_secrets(ctx: &Context, attachment: &McpAttachment) {
    let Some(stdio) = &attachment.spec.sandbox_stdio else { return };
    let observed = attachment.status.as_ref().and_then(|s| s.observed_generation);
    if observed.is_some() && observed == attachment.metadata.generation {
        return;
    }
    let mut where_ = vec![];
    if scrub::suspicious(&stdio.command) {
        where_.push("command".to_owned());
    }
    let args = stdio.args.iter().enumerate().filter(|(_, a)| scrub::suspicious(a));
    where_.extend(args.map(|(i, _)| format!("args[{i}]")));
    let env = stdio.env.iter().filter(|e| scrub::suspicious_env(&e.name, &e.value));
    where_.extend(env.map(|e| format!("env {}", e.name)));
    if !where_.is_empty() {
        let cause = format!("These look like secrets: {}.", super::seen::few(&where_));
        let problem = Problem::new(Reason::SuspiciousValue, cause);
        ctx.events.warn(attachment.object_ref(&()), problem.reason, problem.message);
    }
}

/// Events for what changed.
fn tell(ctx: &Context, seen: &Seen, before: &SessionStatus, next: &Step) {
    for t in transitions(&before.attachments, &next.entries, &next.removed) {
        let attachment = seen
            .attachments
            .iter()
            .find(|a| a.metadata.uid.as_deref() == Some(t.attachment_uid.as_str()));
        let about = match (attachment, &seen.session) {
            (Some(attachment), _) => attachment.object_ref(&()),
            (None, Some(session)) => session.object_ref(&()),
            (None, None) => continue,
        };
        tracing::info!(
            session = %seen.key, attachment = about.name, reason = %t.reason, message = t.message,
            "generation"
        );
        if t.warning {
            ctx.events.warn(about, t.reason, t.message);
        } else {
            ctx.events.note(about, t.reason, t.message);
        }
    }
}

/// Lets a deleted Session go once nothing of it is left, gateway or no gateway.
async fn release(ctx: &Context, session: &Session, progress: &Progress) -> Result<(), Error> {
    if session.metadata.deletion_timestamp.is_none() || !progress.entries.is_empty() {
        return Ok(());
    }
    let current = progress.session.as_deref().unwrap_or(session);
    Ok(ctx.apply.release(current, FINALIZER).await?)
}
