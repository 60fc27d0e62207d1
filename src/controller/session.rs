//! A key is a name that a Session and an Agent may have. One reconcile drives the Session of that
//! name, and writes what the Agent of that name and its attachments should know of all its
//! Sessions.
//!
//! ```text
//!            ┌ a user's Session of another Agent ── advance
//!  a key ────┤
//!            └ the Agent of that name ── ensure its own Session ── advance ── project
//!
//!  advance:  gather ──► plan ──► place ──► step ──► status ──► pods
//!            (reads)   (pure)   (pure)   (pure)  (one patch) (writes)
//! ```
//!
//! An Agent that is Standing and its Session have one key, so both are decided on one view.

use super::{
    Context, Error,
    advance::{Course, Progress, REFUSED_AGAIN, advance},
    agent::{self, Standing},
    apply::ApplyError,
    build::session::FINALIZER,
    expiry::{self, Expiry},
    plan::plan,
    project::{facets, project},
    queue::Outcome,
    refs,
    resolve::ResolveError,
    seen::{Problem, Seen},
};
use crate::{
    api::{Session, agent::SessionMode},
    domain::{identity::SessionKey, reason::Reason},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use std::sync::Arc;

/// Brings what has this name one step on.
///
/// # Errors
/// What could not be read or written; the key comes back with backoff.
pub async fn reconcile(ctx: &Context, key: &SessionKey) -> Result<Outcome, Error> {
    // Neither half waits for the other: an object of one that cannot be read concerns that one.
    let session = match ctx.resolve.session(key) {
        Some(session) if session.spec.agent_ref.name != key.name => {
            on_demand(ctx, key, session).await
        }
        Some(_) => Ok(Outcome::Done),
        None => {
            ctx.tries.forget(key);
            Ok(Outcome::Done)
        }
    };
    let agent = of_agent(ctx, key).await;
    match (session, agent) {
        (Ok(one), Ok(two)) => Ok(one.sooner(two)),
        // What cannot be read waits for its object, and the other half for its time.
        (Ok(outcome), Err(Error::Resolve(ResolveError::Unreadable { .. })))
        | (Err(Error::Resolve(ResolveError::Unreadable { .. })), Ok(outcome))
            if outcome != Outcome::Done =>
        {
            Ok(outcome)
        }
        (Err(problem), _) | (_, Err(problem)) => Err(problem),
    }
}

/// A user's Session of an Agent of another name.
async fn on_demand(
    ctx: &Context,
    key: &SessionKey,
    session: Arc<Session>,
) -> Result<Outcome, Error> {
    let seen = ctx.resolve.gather(key, &session.spec.agent_ref.name).await?;
    let now = seen.now;
    Ok(by_a_user(ctx, seen, session).await?.outcome(now))
}

/// The Agent of that name, and a Session that both name and Agent say is its.
async fn of_agent(ctx: &Context, key: &SessionKey) -> Result<Outcome, Error> {
    let mut seen = ctx.resolve.gather(key, &key.name).await?;
    let standing = agent::ensure_session(ctx, &mut seen).await?;
    let plan = match &standing {
        Standing::Ours(_) | Standing::Leaving(_) => plan(&seen),
        // A Session that is not the Agent's own says nothing of it.
        Standing::OnDemand | Standing::None(_) | Standing::Refused(_) => {
            plan(&Seen { session: None, ..seen.clone() })
        }
    };
    let progress = match &standing {
        Standing::Ours(session) => {
            let owner = seen.agent.as_ref().and_then(|a| a.controller_owner_ref(&()));
            let owners = owner.as_slice();
            let session = hold(ctx, &seen.key, session.clone(), owners).await?;
            advance(ctx, &seen, &plan, &session, Course::Run).await?
        }
        Standing::Leaving(session) => {
            let ends = session.metadata.deletion_timestamp.is_some() || seen.agent.is_some();
            let course = if ends { Course::End } else { Course::Run };
            advance(ctx, &seen, &plan, session, course).await?
        }
        Standing::OnDemand | Standing::None(_) | Standing::Refused(_) => match &seen.session {
            Some(session) if session.spec.agent_ref.name == key.name => {
                by_a_user(ctx, seen.clone(), session.clone()).await?
            }
            _ => Progress::default(),
        },
    };
    let own = match &standing {
        Standing::Ours(_) | Standing::Leaving(_) => progress.session.as_deref(),
        Standing::OnDemand | Standing::None(_) | Standing::Refused(_) => None,
    };
    let facets = facets(ctx, &seen, plan, &standing, &progress);
    project(ctx, &seen, &standing, &facets, own).await?;
    if let Standing::Leaving(session) = &standing {
        release(ctx, session, &progress).await?;
    }
    let outcome = progress.outcome(seen.now);
    Ok(match standing {
        Standing::Refused(_) => outcome.sooner(Outcome::Wait(REFUSED_AGAIN)),
        _ => outcome,
    })
}

/// Drives a Session that a user made, as far as its Agent lets it.
async fn by_a_user(
    ctx: &Context,
    mut seen: Seen,
    mut session: Arc<Session>,
) -> Result<Progress, Error> {
    let leaving = session.metadata.deletion_timestamp.is_some();
    let blocked = blocked(&seen, &session);
    if blocked.is_some() {
        seen.agent = None;
    }
    let course = match &blocked {
        _ if leaving => Course::End,
        Some(problem) => Course::Blocked(problem),
        None => Course::Run,
    };
    let mut until = None;
    if course == Course::Run
        && let Some(agent) = &seen.agent
    {
        match expiry::expiry(&agent.spec.session, &session, seen.now) {
            Expiry::Open => {}
            Expiry::Until(at) => until = Some(at),
            Expiry::Over(problem) => return expire(ctx, &seen.key, &session, problem).await,
        }
        session = hold(ctx, &seen.key, session, &[]).await?;
    }
    seen.session = Some(session.clone());
    let mut plan = plan(&seen);
    let fresh = ctx.tries.fresh(&seen.key, &mut plan);
    let mut progress = advance(ctx, &seen, &plan, &session, course).await?;
    if let Some(at) = until {
        progress.wake_by(at);
    }
    if !fresh.is_empty() {
        ctx.tries.take(&seen.key, fresh);
        // Its attachments' statuses tell that the request was taken up.
        ctx.queue.push(refs::agent_of(&session));
    }
    if leaving {
        release(ctx, &session, &progress).await?;
    }
    Ok(progress)
}

/// Deletes a Session whose time is over; what is left to do follows when the watch shows it. One
/// that changed meanwhile, as when it is used again, is judged anew.
async fn expire(
    ctx: &Context,
    key: &SessionKey,
    session: &Arc<Session>,
    problem: Problem,
) -> Result<Progress, Error> {
    let deleted = ctx.apply.delete_session(session).await.map(|()| None);
    after_write(ctx, key, session.clone(), deleted).await?;
    tracing::info!(session = %key, reason = %problem.reason, message = problem.message, "deleted");
    ctx.events.note(session.object_ref(&()), problem.reason, problem.message);
    Ok(Progress::default())
}

/// What keeps a user's Session from running anything.
fn blocked(seen: &Seen, session: &Session) -> Option<Problem> {
    let name = &session.spec.agent_ref.name;
    match &seen.agent {
        None => {
            let cause = format!("The Agent {name:?} does not exist.");
            Some(Problem::new(Reason::AgentNotFound, cause))
        }
        Some(agent) if agent.spec.session.mode == SessionMode::Standing => {
            let cause = format!("The Agent {name:?} is Standing and takes no Session of a user.");
            Some(Problem::new(Reason::SessionNotOnDemand, cause))
        }
        Some(_) => None,
    }
}

/// Puts our finalizer on a Session before anything runs in it, and back on whenever somebody took
/// it off; the owners too.
async fn hold(
    ctx: &Context,
    key: &SessionKey,
    session: Arc<Session>,
    owners: &[OwnerReference],
) -> Result<Arc<Session>, Error> {
    let held = ctx.apply.hold(&session, FINALIZER, owners).await;
    after_write(ctx, key, session, held).await
}

/// The Session after a write; none was needed where nothing was different. When somebody else was
/// faster, it is read, or forgotten if it is gone, for the next round.
pub async fn after_write(
    ctx: &Context,
    key: &SessionKey,
    session: Arc<Session>,
    written: Result<Option<Session>, ApplyError>,
) -> Result<Arc<Session>, Error> {
    match written {
        Ok(Some(written)) => Ok(ctx.resolve.latest.sessions.put(key, written)),
        Ok(None) => Ok(session),
        Err(other @ (ApplyError::Conflict { .. } | ApplyError::Gone { .. })) => {
            ctx.resolve.refresh_session(key).await?;
            Err(other.into())
        }
        Err(problem) => Err(problem.into()),
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
