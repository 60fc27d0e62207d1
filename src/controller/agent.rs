//! Agent: its Standing Session, if it has one, and what its status says.

use super::{
    Context, Error,
    apply::Created,
    attachment::{Health, View, health},
    build::session::{FINALIZER, Ownership, ownership, standing},
    plan::Plan,
    seen::{Problem, Seen, few, sentences},
};
use crate::{
    api::{
        Agent, AgentStatus, Session,
        agent::SessionMode,
        condition::{ACCEPTED, READY, RECONCILING, STALLED, set},
    },
    domain::{
        lifecycle::Origin,
        reason::{Class, Reason},
    },
};
use jiff::Timestamp;
use kube::ResourceExt;
use std::sync::Arc;

/// What there is of a Session for the Agent.
#[derive(Clone, Debug)]
pub enum Standing {
    /// The Agent's own.
    Ours(Arc<Session>),
    /// It belonged to an Agent that is gone, and goes too.
    Leaving(Arc<Session>),
    /// The Agent takes the Sessions that users make, and has none of its own.
    OnDemand,
    /// None that we may touch, and why.
    None(Problem),
    /// None, since the API server refuses it; it is tried again.
    Refused(Problem),
}

/// The Standing Session; made when it is missing, never adopted when it is somebody else's.
///
/// # Errors
/// When it cannot be made.
pub async fn ensure_session(ctx: &Context, seen: &mut Seen) -> Result<Standing, Error> {
    let found = seen.session.clone();
    let (agent, session) = match (&seen.agent, found) {
        (None, Some(session)) if is_managed(&session) => return Ok(Standing::Leaving(session)),
        (None, _) => {
            let cause = format!("The Agent {:?} does not exist.", seen.key.name);
            return Ok(Standing::None(Problem::new(Reason::AgentNotFound, cause)));
        }
        (Some(agent), found) if agent.spec.session.mode == SessionMode::OnDemand => {
            // One that an Agent of this name had when it was Standing goes as that Agent went.
            let former = found.filter(|s| ownership(s, agent) == Ownership::Former);
            return Ok(former.map_or(Standing::OnDemand, Standing::Leaving));
        }
        (Some(agent), Some(session)) => (agent, session),
        (Some(agent), None) => match ctx.apply.create_session(&standing(agent)).await? {
            Created::Made(made) => (agent, ctx.resolve.latest.sessions.put(&seen.key, made)),
            Created::Exists(there) => (agent, ctx.resolve.latest.sessions.put(&seen.key, there)),
            Created::Refused(Problem { reason, message }) => {
                return Ok(Standing::Refused(Problem::new(reason, message)));
            }
        },
    };
    seen.session = Some(session.clone());
    Ok(match ownership(&session, agent) {
        Ownership::Ours if session.metadata.deletion_timestamp.is_some() => {
            Standing::Leaving(session)
        }
        Ownership::Ours => Standing::Ours(session),
        Ownership::Former => Standing::Leaving(session),
        Ownership::Foreign => {
            let cause =
                format!("A Session named {:?} exists that is not this Agent's.", seen.key.name);
            Standing::None(Problem::new(Reason::SessionNameTaken, cause))
        }
    })
}

/// Whether the operator made the Session.
fn is_managed(session: &Session) -> bool {
    let owner = session.metadata.owner_references.iter().flatten();
    session.finalizers().iter().any(|f| f == FINALIZER)
        && session.spec.agent_ref.name == session.name_any()
        && owner.into_iter().any(|o| o.kind == "Agent" && o.name == session.name_any())
}

/// How many attachments are in service, of how many.
pub fn summary(view: &View<'_>, plan: &Plan) -> String {
    let judged = || plan.judged.iter().filter(|j| !j.is_outranked());
    let serving = judged().filter(|j| health(view, j).serving).count();
    format!("{serving}/{}", judged().count())
}

/// How all attachments do together in one Session; those that are suspended are as their owner
/// wants them.
pub fn overall(view: &View<'_>, plan: &Plan) -> Health {
    let judged = plan.judged.iter().filter(|j| !j.is_outranked());
    let all: Vec<_> = judged.map(|j| (j, health(view, j))).collect();
    let serving = all.iter().any(|(_, h)| h.serving);
    let with = |ready: bool, reason: Reason, message| {
        let stalled = !ready && reason.class() == Class::Permanent;
        Health { ready, serving, reconciling: !ready && !stalled, stalled, reason, message }
    };
    let (no_session, blocked): (Option<_>, Option<_>) = match view.blocked {
        Some(problem) if problem.reason == Reason::NoSession => (Some(problem), None),
        other => (None, other),
    };
    if let Some(problem) = blocked {
        return with(false, problem.reason, problem.message.clone());
    }
    if let Some(Problem { reason, message }) = dangling(plan) {
        return with(false, reason, message);
    }
    let waiting: Vec<_> = all
        .iter()
        .filter(|(j, h)| !h.ready && !j.is_suspended())
        .map(|(j, h)| format!("{} ({})", j.attachment.name_any(), h.reason))
        .collect();
    if !waiting.is_empty() {
        let others = || all.iter().filter(|(j, _)| !j.is_suspended());
        let stuck = others().all(|(_, h)| h.ready || h.stalled);
        let message = format!("Not in service: {}.", few(&waiting));
        // Of those no object tells more.
        let own =
            all.iter().find(|(j, h)| j.origin == Origin::Session && !h.ready && !j.is_suspended());
        let message = match own {
            Some((j, h)) => {
                sentences(&message, &format!("{}: {}", j.attachment.name_any(), h.message))
            }
            None => message,
        };
        let health = with(false, Reason::WaitingForAttachments, message);
        return Health { stalled: stuck, reconciling: !stuck, ..health };
    }
    match no_session {
        Some(problem) => Health::without_session(problem),
        None if plan.judged.is_empty() => {
            with(true, Reason::NoAttachments, Reason::NoAttachments.meaning().to_owned())
        }
        None => with(true, Reason::Ready, Reason::Ready.meaning().to_owned()),
    }
}

/// What is wrong when ToolSets name attachments that do not exist.
pub fn dangling(plan: &Plan) -> Option<Problem> {
    let names = &plan.dangling;
    let cause = || format!("ToolSets name attachments that do not exist: {}.", few(names));
    (!names.is_empty()).then(|| Problem::new(Reason::AttachmentMissing, cause()))
}

/// How an Agent does whose spec has this problem: what is whole goes on.
pub fn refused(overall: &Health, problem: &Problem) -> Health {
    let Problem { reason, message } = problem.clone();
    let stalled = reason.class() == Class::Permanent;
    let (reconciling, serving) = (!stalled, overall.serving);
    Health { ready: false, serving, reconciling, stalled, reason, message }
}

/// The Agent's status.
pub fn status(
    agent: &Agent,
    now: Timestamp,
    overall: &Health,
    accepted: &Result<(), Problem>,
    attachments: String,
    session: Option<&Session>,
) -> AgentStatus {
    let observed = agent.metadata.generation;
    let mut conditions = agent.status.clone().unwrap_or_default().conditions;
    let mut put = |type_, status, reason, message: &str| {
        set(&mut conditions, type_, status, reason, message, observed, now);
    };
    match accepted {
        Ok(()) => put(ACCEPTED, true, Reason::Accepted, "Every ToolSet has its attachment."),
        Err(Problem { reason, message }) => put(ACCEPTED, false, *reason, message),
    }
    put(READY, overall.ready, overall.reason, &overall.message);
    put(RECONCILING, overall.reconciling, overall.reason, "");
    put(STALLED, overall.stalled, overall.reason, "");
    AgentStatus {
        observed_generation: observed,
        conditions,
        session: session.map(ResourceExt::name_any),
        attachments: Some(attachments),
    }
}
