//! One step with a Session's generations: decide by the lifecycle, write the Session's status, then
//! touch pods.

use super::{
    Context, Error, agent,
    attachment::View,
    build::pod::REVISION,
    events::transitions,
    hosts::{Placement, place},
    launch::perform,
    own,
    plan::Plan,
    pods,
    queue::Outcome,
    refs,
    seen::{Problem, Seen},
    session::after_write,
};
use crate::{
    api::{
        Session, SessionStatus,
        condition::{ACCEPTED, READY, RECONCILING, STALLED, bounded, set},
        session::{FrozenEnvironment, Phase},
    },
    domain::{
        lifecycle::{Generation, Origin, Owner, PodFact, Situation, Step, generation_of, step},
        reason::Reason,
    },
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// A step whose pods were refused is taken once more with that knowledge.
const ROUNDS: usize = 2;
/// How long to wait before an object that was refused is tried again.
pub const REFUSED_AGAIN: Duration = Duration::from_secs(5);

/// Where a Session is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course<'a> {
    /// What is asked for is brought into service.
    Run,
    /// Nothing may run in it; what does is drained.
    Blocked(&'a Problem),
    /// It goes; everything is drained.
    End,
}

/// What became of the generations.
#[derive(Debug, Default)]
pub struct Progress {
    /// The Session as it is now.
    pub session: Option<Arc<Session>>,
    /// Its generations as they are now.
    pub entries: Vec<Generation>,
    /// Whether its host is alive.
    pub alive: bool,
    wake: Option<Timestamp>,
    refused: bool,
}

impl Progress {
    /// Has it looked at again at that time at the latest.
    pub fn wake_by(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// When to look again.
    pub fn outcome(&self, now: Timestamp) -> Outcome {
        let until =
            |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO);
        let wake = self.wake.map(until);
        match (wake, self.refused.then_some(REFUSED_AGAIN)) {
            (Some(one), Some(two)) => Outcome::Wait(one.min(two)),
            (Some(one), None) | (None, Some(one)) => Outcome::Wait(one),
            (None, None) => Outcome::Done,
        }
    }
}

/// Takes one step with the Session's generations: decide, write, then touch pods.
///
/// # Errors
/// What could not be read or written.
pub async fn advance(
    ctx: &Context,
    seen: &Seen,
    plan: &Plan,
    session: &Arc<Session>,
    course: Course<'_>,
) -> Result<Progress, Error> {
    let before = session.status.clone().unwrap_or_default();
    let uid = session.metadata.uid.clone().unwrap_or_default();
    let placement = match course {
        // There is nothing to do in it, so no gateway needs to know.
        Course::Blocked(_) if before.attachments.is_empty() => {
            Placement { host: before.host.clone(), alive: false }
        }
        _ => place(&uid, before.host.as_ref(), &seen.gateways),
    };
    let (pods, mut facts) = facts(&seen.pods, &uid);
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
            terminating: course == Course::End,
        });
        ctx.count_ignored(&seen.key, &next.ignored);
        let status = status(seen, plan, &session, &placement, &next, course);
        let written = ctx.apply.session_status(&session, &status).await;
        let news = own::news(&session, plan);
        session = after_write(ctx, &seen.key, session, written).await?;
        tell(ctx, seen, &before, &next);
        for Problem { reason, message } in news {
            ctx.events.warn(session.object_ref(&()), reason, message);
        }
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
fn facts(
    pods: &[Arc<Pod>],
    session_uid: &str,
) -> (BTreeMap<i64, Arc<Pod>>, BTreeMap<i64, PodFact>) {
    let number = |pod: &Arc<Pod>| Some((generation_of(&pod.name_any())?, pod.clone()));
    let pods: BTreeMap<_, _> = pods.iter().filter_map(number).collect();
    let facts = pods
        .iter()
        .map(|(n, pod)| (*n, pods::unguarded(pod, session_uid).unwrap_or_else(|| pods::fact(pod))))
        .collect();
    (pods, facts)
}

/// The Session's status after a step.
fn status(
    seen: &Seen,
    plan: &Plan,
    session: &Session,
    placement: &Placement,
    next: &Step,
    course: Course<'_>,
) -> SessionStatus {
    let old = session.status.clone().unwrap_or_default();
    let blocked = match course {
        Course::Blocked(problem) => Some(problem),
        Course::Run | Course::End => None,
    };
    let view = View { now: seen.now, entries: &next.entries, alive: placement.alive, blocked };
    let overall = agent::overall(&view, plan);
    let phase = match (&placement.host, placement.alive) {
        _ if course == Course::End => Phase::Terminating,
        (None, _) => Phase::Pending,
        (Some(_), true) => Phase::Serving,
        (Some(_), false) => Phase::Rescheduling,
    };
    let (ready, reason, message) = match phase {
        Phase::Terminating => (false, Reason::Draining, Reason::Draining.meaning().to_owned()),
        _ if blocked.is_some() => (false, overall.reason, overall.message.clone()),
        Phase::Rescheduling => {
            (false, Reason::Rescheduling, Reason::Rescheduling.meaning().to_owned())
        }
        Phase::Pending => (false, Reason::NoGateway, Reason::NoGateway.meaning().to_owned()),
        Phase::Serving => (overall.ready, overall.reason, overall.message.clone()),
    };
    let observed = session.metadata.generation;
    let brings = !session.spec.attachments.is_empty();
    let mut conditions = old.conditions;
    let mut put = |type_, status, message: &str| {
        set(&mut conditions, type_, status, reason, message, observed, seen.now);
    };
    let speaks = blocked.is_some() || phase == Phase::Serving;
    let stalled = phase != Phase::Terminating && speaks && overall.stalled;
    put(READY, ready, &message);
    put(RECONCILING, !ready && !stalled, "");
    put(STALLED, stalled, "");
    match own::accepted(plan) {
        Err(problem) => {
            let message = bounded(&problem.message);
            set(&mut conditions, ACCEPTED, false, problem.reason, &message, observed, seen.now);
        }
        Ok(()) if brings || conditions.iter().any(|c| c.type_ == ACCEPTED) => {
            let message = Reason::Accepted.meaning();
            set(&mut conditions, ACCEPTED, true, Reason::Accepted, message, observed, seen.now);
        }
        Ok(()) => {}
    }
    SessionStatus {
        observed_generation: observed,
        phase: Some(phase),
        conditions,
        host: placement.host.clone(),
        environment: plan.environment.clone().map(|e| with_digest(e, &seen.pods)),
        last_generation: next.last_generation,
        attachments: next.entries.clone(),
        receipts: old.receipts,
        activity: old.activity,
        summary: Some(agent::summary(&view, plan)),
        last_handled_reconcile_at: refs::asked(session).cloned().or(old.last_handled_reconcile_at),
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
        let mut entries = next.entries.iter().chain(&before.attachments);
        let own =
            entries.find(|e| e.origin == Origin::Session && e.attachment_uid == t.attachment_uid);
        // One attachment may be served in several Sessions; one of a Session's own is told of there.
        let message = match &seen.session {
            _ if let Some(own) = own => format!("{}: {}", own.attachment, t.message),
            Some(session) if session.name_any() != session.spec.agent_ref.name => {
                format!("Session {}: {}", session.name_any(), t.message)
            }
            _ => t.message,
        };
        if t.warning {
            ctx.events.warn(about, t.reason, message);
        } else {
            ctx.events.note(about, t.reason, message);
        }
    }
}
