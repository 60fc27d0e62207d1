//! Agent: its Standing Session, and what its status says.

use super::{
    Context, Error,
    apply::Created,
    attachment::{Health, View, health},
    build::session::{FINALIZER, Ownership, ownership, standing},
    plan::Plan,
    seen::{Problem, Seen, few},
};
use crate::{
    api::{
        Agent, AgentStatus, Session,
        condition::{ACCEPTED, READY, RECONCILING, STALLED, set},
    },
    domain::reason::{Class, Reason},
};
use kube::ResourceExt;
use std::sync::Arc;

/// What there is of a Session for the Agent.
#[derive(Clone, Debug)]
pub enum Standing {
    /// The Agent's own.
    Ours(Arc<Session>),
    /// It belonged to an Agent that is gone, and goes too.
    Leaving(Arc<Session>),
    /// None that we may touch, and why.
    None(Problem),
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
        (Some(agent), Some(session)) => (agent, session),
        (Some(agent), None) => match ctx.apply.create_session(&standing(agent)).await? {
            Created::Made(made) => (agent, ctx.resolve.latest.sessions.put(&seen.key, made)),
            Created::Exists(there) => (agent, ctx.resolve.latest.sessions.put(&seen.key, there)),
            Created::Refused(problem) => return Ok(Standing::None(problem)),
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
        && owner.into_iter().any(|o| o.kind == "Agent" && o.name == session.name_any())
}

/// How many attachments are in service, of how many.
pub fn summary(view: &View<'_>, plan: &Plan) -> String {
    let serving = plan.judged.iter().filter(|j| health(view, j).serving).count();
    format!("{serving}/{}", plan.judged.len())
}

/// How all attachments do together; those that are suspended are as their owner wants them.
pub fn overall(view: &View<'_>, plan: &Plan) -> Health {
    let all: Vec<_> = plan.judged.iter().map(|j| (j, health(view, j))).collect();
    let serving = all.iter().any(|(_, h)| h.serving);
    let with = |ready: bool, reason: Reason, message| {
        let stalled = !ready && reason.class() == Class::Permanent;
        Health { ready, serving, reconciling: !ready && !stalled, stalled, reason, message }
    };
    if let Some(problem) = view.blocked {
        return with(false, problem.reason, problem.message.clone());
    }
    if !plan.dangling.is_empty() {
        let Problem { reason, message } = dangling(plan);
        return with(false, reason, message);
    }
    if plan.judged.is_empty() {
        return with(true, Reason::NoAttachments, Reason::NoAttachments.meaning().to_owned());
    }
    let waiting: Vec<_> = all
        .iter()
        .filter(|(j, h)| !h.ready && !j.is_suspended())
        .map(|(j, h)| format!("{} ({})", j.attachment.name_any(), h.reason))
        .collect();
    if waiting.is_empty() {
        return with(true, Reason::Ready, Reason::Ready.meaning().to_owned());
    }
    let stuck = all.iter().filter(|(j, _)| !j.is_suspended()).all(|(_, h)| h.ready || h.stalled);
    let message = format!("Not in service: {}.", few(&waiting));
    let health = with(false, Reason::WaitingForAttachments, message);
    Health { stalled: stuck, reconciling: !stuck, ..health }
}

fn dangling(plan: &Plan) -> Problem {
    let cause = format!("ToolSets name attachments that do not exist: {}.", few(&plan.dangling));
    Problem::new(Reason::AttachmentMissing, cause)
}

/// The Agent's status.
pub fn status(
    view: &View<'_>,
    plan: &Plan,
    agent: &Agent,
    session: Option<&Session>,
) -> AgentStatus {
    let observed = agent.metadata.generation;
    let overall = overall(view, plan);
    let mut conditions = agent.status.clone().unwrap_or_default().conditions;
    let mut put = |type_, status, reason, message: &str| {
        set(&mut conditions, type_, status, reason, message, observed, view.now);
    };
    if plan.dangling.is_empty() {
        put(ACCEPTED, true, Reason::Accepted, "Every ToolSet has its attachment.");
    } else {
        let Problem { reason, message } = dangling(plan);
        put(ACCEPTED, false, reason, &message);
    }
    put(READY, overall.ready, overall.reason, &overall.message);
    put(RECONCILING, overall.reconciling, overall.reason, "");
    put(STALLED, overall.stalled, overall.reason, "");
    AgentStatus {
        observed_generation: observed,
        conditions,
        session: session.map(ResourceExt::name_any),
        attachments: Some(summary(view, plan)),
    }
}
