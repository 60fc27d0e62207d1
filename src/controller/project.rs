//! What the Agent of a key and its attachments should know of all its Sessions.
//!
//! A Standing Agent has one Session. An Agent on demand has any number; then a status speaks of the
//! Session in which things are worst, and of the oldest of those. A Session that is being deleted
//! does not count, nor does one before its first step.

use super::{
    Context, Error,
    advance::Progress,
    agent::{self, Standing},
    attachment::{self, Health, View, health},
    build::session::{Ownership, ownership},
    exports, leaving,
    plan::{Judged, Plan, plan},
    refs::{self, named},
    seen::{Problem, Seen, sentences},
    target,
};
use crate::{
    api::{McpAttachment, Session, agent::SessionMode, attachment::McpAttachmentStatus},
    domain::{
        identity::SessionKey,
        lifecycle::{Generation, Origin},
        reason::Reason,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use std::sync::Arc;

/// One Session, as its Agent and the attachments see it.
#[derive(Clone, Debug)]
pub struct Facet {
    /// Which one, where there may be several.
    session: Option<SessionKey>,
    plan: Plan,
    entries: Vec<Generation>,
    alive: bool,
    blocked: Option<Problem>,
}

impl Facet {
    fn view(&self, now: Timestamp) -> View<'_> {
        let Self { entries, alive, blocked, .. } = self;
        View { now, entries, alive: *alive, blocked: blocked.as_ref() }
    }

    /// A Session of an Agent on demand, as it was last written.
    fn of(seen: &Seen, session: &Arc<Session>) -> Self {
        let status = session.status.clone().unwrap_or_default();
        let alive = match &status.host {
            Some(host) => seen
                .gateways
                .iter()
                .any(|g| (&g.name, &g.incarnation) == (&host.gateway, &host.incarnation)),
            None => !seen.gateways.is_empty(),
        };
        Self {
            session: Some(named(&**session)),
            plan: of_agent(plan(&Seen { session: Some(session.clone()), ..seen.clone() })),
            entries: status.attachments,
            alive,
            blocked: None,
        }
    }
}

/// The plan without what the Session brings itself, of which its own status tells.
fn of_agent(mut plan: Plan) -> Plan {
    plan.judged.retain(|judged| judged.origin == Origin::Agent);
    plan
}

/// The Sessions of the Agent of this key. Never empty: without any there is one that says so.
pub fn facets(
    ctx: &Context,
    seen: &Seen,
    plan: Plan,
    standing: &Standing,
    progress: &Progress,
) -> Vec<Facet> {
    if let Some(agent) = &seen.agent
        && agent.spec.session.mode == SessionMode::OnDemand
    {
        let mut sessions = ctx.resolve.sessions_of(&seen.key);
        sessions.retain(|s| {
            let begun = s.status.as_ref().is_some_and(|status| status.phase.is_some());
            let goes = s.metadata.deletion_timestamp.is_some();
            begun && !goes && ownership(s, agent) != Ownership::Former
        });
        return on_demand(seen, &sessions);
    }
    let blocked = match standing {
        Standing::Ours(_) | Standing::OnDemand => None,
        Standing::Leaving(_) => {
            Some(Problem::new(Reason::Draining, "The former Session is being deleted."))
        }
        Standing::None(problem) | Standing::Refused(problem) => Some(problem.clone()),
    };
    let (entries, alive, plan) = (progress.entries.clone(), progress.alive, of_agent(plan));
    vec![Facet { session: None, plan, entries, alive, blocked }]
}

/// The facets of an Agent on demand with these Sessions, the oldest first.
fn on_demand(seen: &Seen, sessions: &[Arc<Session>]) -> Vec<Facet> {
    let mut sessions: Vec<_> = sessions.iter().collect();
    sessions.sort_by_key(|s| (s.metadata.creation_timestamp.clone(), s.metadata.uid.clone()));
    if !sessions.is_empty() {
        return sessions.into_iter().map(|s| Facet::of(seen, s)).collect();
    }
    let none = Problem::new(Reason::NoSession, "There is no Session to attach to.");
    vec![Facet {
        session: None,
        plan: plan(&Seen { session: None, ..seen.clone() }),
        entries: vec![],
        alive: true,
        blocked: Some(none),
    }]
}

/// What is said of one attachment, or of all together.
struct Told<'a> {
    facet: &'a Facet,
    judged: &'a Judged,
    health: Health,
}

/// What is said of an attachment: where it is worst.
fn worst<'a>(facets: &'a [Facet], attachment: &Judged, now: Timestamp) -> Told<'a> {
    let uid = &attachment.attachment.metadata.uid;
    let told = facets.iter().filter_map(|facet| {
        let judged = facet.plan.judged.iter().find(|j| j.attachment.metadata.uid == *uid)?;
        Some(Told { facet, judged, health: health(&facet.view(now), judged) })
    });
    // Where a Session has one of its own in its place, nothing is asked of it.
    let mut told = told
        .min_by_key(|t| (t.judged.is_outranked(), t.health.rank()))
        .expect("every facet judges the same attachments, and there is one");
    let is_of_session = told.judged.accepted.is_ok() && told.judged.held.is_none();
    told.health = named_after(told.health, told.facet, is_of_session);
    if told.health.reason == Reason::Active {
        let lacking = attachment::lacking(&told.facet.view(now), told.judged);
        told.health.message = sentences(&told.health.message, &lacking);
    }
    told
}

/// How all attachments do together, where that is worst.
fn overall(facets: &[Facet], now: Timestamp) -> Health {
    let all = facets.iter().map(|facet| (facet, agent::overall(&facet.view(now), &facet.plan)));
    let (facet, health) = all.min_by_key(|(_, h)| h.rank()).expect("there is always a facet");
    named_after(health, facet, facet.plan.dangling.is_empty())
}

/// Says which Session it is, where there may be several.
fn named_after(mut health: Health, facet: &Facet, is_of_session: bool) -> Health {
    if let Some(session) = facet.session.as_ref().filter(|_| is_of_session) {
        health.message = match health.reason {
            Reason::Active => "It serves in every Session.".to_owned(),
            _ if health.ready => health.message,
            _ => format!("Session {}: {}", session.name, health.message),
        };
    }
    health
}

/// Writes what Agent and attachments should know.
///
/// # Errors
/// What could not be written.
pub async fn project(
    ctx: &Context,
    seen: &Seen,
    standing: &Standing,
    facets: &[Facet],
    session: Option<&Session>,
) -> Result<(), Error> {
    let Some(first) = facets.first() else { return Ok(()) };
    let (mut serving, mut count) = (0, 0);
    for judged in &first.plan.judged {
        let attachment = &judged.attachment;
        warn_of_secrets(ctx, attachment);
        let told = worst(facets, judged, seen.now);
        if !told.judged.is_outranked() {
            (serving, count) = (serving + usize::from(told.health.serving), count + 1);
        }
        let old = attachment.status.clone().unwrap_or_default();
        let mut new = attachment::status(&told.facet.view(seen.now), told.judged, &told.health);
        if !taken_up(ctx, facets, attachment) {
            new.last_handled_reconcile_at.clone_from(&old.last_handled_reconcile_at);
        }
        write_attachment(ctx, &told, &old, &new).await?;
    }
    let entries: Vec<_> = facets.iter().flat_map(|facet| &facet.entries).collect();
    leaving::tell(ctx, &seen.leaving, &entries, seen.now).await?;
    let Some(agent) = &seen.agent else { return Ok(()) };
    let accepted = match agent::dangling(&first.plan) {
        Some(problem) => Err(problem),
        None => exports::problem(agent, &seen.exports).map_or(Ok(()), Err),
    };
    let old = agent.status.clone().unwrap_or_default();
    let mut overall = overall(facets, seen.now);
    if let Err(problem) = &accepted {
        overall = agent::refused(&overall, problem);
    }
    let summary = format!("{serving}/{count}");
    let new = agent::status(agent, seen.now, &overall, &accepted, summary, session);
    if let Some(written) = ctx.apply.status_if_there(&**agent, &old, &new).await? {
        let problem = match standing {
            Standing::None(problem) | Standing::Refused(problem) => Some(problem),
            _ => accepted.as_ref().err().filter(|p| p.reason != Reason::AttachmentMissing),
        };
        if let Some(problem) = problem
            && !is_said(&old.conditions, problem)
        {
            ctx.events.warn(agent.object_ref(&()), problem.reason, problem.message.clone());
        }
        ctx.resolve.latest.agents.put(&seen.key, written);
    }
    Ok(())
}

async fn write_attachment(
    ctx: &Context,
    told: &Told<'_>,
    old: &McpAttachmentStatus,
    new: &McpAttachmentStatus,
) -> Result<(), Error> {
    let attachment = &told.judged.attachment;
    if let Some(written) = ctx.apply.status_if_there(&**attachment, old, new).await? {
        if let Err(problem) = &told.judged.accepted
            && !is_said(&old.conditions, problem)
        {
            let about = attachment.object_ref(&());
            ctx.events.warn(about, problem.reason, problem.message.clone());
        }
        ctx.resolve.latest.attachments.put(&named(&**attachment), written);
    }
    Ok(())
}

/// Whether every Session took up the attachment's request for another try, if there is one.
fn taken_up(ctx: &Context, facets: &[Facet], attachment: &McpAttachment) -> bool {
    let asked = refs::asked(attachment);
    let uid = attachment.metadata.uid.as_deref().unwrap_or_default();
    asked.is_none_or(|asked| {
        facets.iter().filter_map(|f| f.session.as_ref()).all(|s| ctx.tries.has(s, uid, asked))
    })
}

/// Whether the conditions tell of the problem already.
fn is_said(conditions: &[Condition], problem: &Problem) -> bool {
    conditions.iter().any(|c| c.status == "False" && c.reason == problem.reason.as_str())
}

/// An event, once for each version of the spec, when a value looks like a secret.
fn warn_of_secrets(ctx: &Context, attachment: &McpAttachment) {
    let Some(stdio) = &attachment.spec.sandbox_stdio else { return };
    let observed = attachment.status.as_ref().and_then(|s| s.observed_generation);
    if observed.is_some() && observed == attachment.metadata.generation {
        return;
    }
    if let Some(Problem { reason, message }) = target::suspicion(stdio) {
        ctx.events.warn(attachment.object_ref(&()), reason, message);
    }
}
