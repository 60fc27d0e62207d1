//! McpAttachment: what its status says of it. Pure; the generations themselves are driven with
//! their Session, in [`super::session`].

use super::{
    own,
    plan::Judged,
    refs,
    seen::{Problem, few, sentences},
};
use crate::{
    api::{
        McpAttachmentStatus,
        condition::{ACCEPTED, READY, RECONCILING, SERVING, STALLED, set},
    },
    domain::{
        lifecycle::{
            Evidence, Generation, Origin, State, Wish,
            retry::{is_lost, next_try},
        },
        reason::{Class, Reason},
    },
};
use jiff::{Timestamp, tz::TimeZone};
use kube::ResourceExt;

/// What the statuses are made from, besides the plan.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The present time.
    pub now: Timestamp,
    /// The Session's generations.
    pub entries: &'a [Generation],
    /// Whether the Session's host is alive.
    pub alive: bool,
    /// What keeps the whole Session; or that there is none, which keeps nothing from being ready.
    pub blocked: Option<&'a Problem>,
}

/// How an attachment does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The newest generation is in service.
    pub ready: bool,
    /// Some generation is callable.
    pub serving: bool,
    /// Work goes on by itself.
    pub reconciling: bool,
    /// Nothing goes on until somebody acts, or the slow retry comes.
    pub stalled: bool,
    /// Why.
    pub reason: Reason,
    /// Cause and next step.
    pub message: String,
}

impl Health {
    /// The smaller, the worse.
    pub fn rank(&self) -> (bool, bool, bool) {
        (self.ready, self.serving, !self.stalled)
    }

    /// As it should be, though there is no Session for it.
    pub fn without_session(problem: &Problem) -> Self {
        let Problem { reason, message } = problem.clone();
        let (serving, reconciling, stalled) = (false, false, false);
        Self { ready: true, serving, reconciling, stalled, reason, message }
    }
}

/// How an attachment does.
pub fn health(view: &View<'_>, judged: &Judged) -> Health {
    let health = as_of_agent(view, judged);
    match judged.origin {
        Origin::Agent => health,
        Origin::Session => {
            let message = own::told(&judged.attachment.name_any(), &health.message);
            Health { message, ..health }
        }
    }
}

fn as_of_agent(view: &View<'_>, judged: &Judged) -> Health {
    let serving = serving(view, judged);
    let from = |reason: Reason, message: String| {
        let message = match serving {
            Some(e) => sentences(&message, &format!("Generation {} still serves.", e.generation)),
            None => message,
        };
        let stalled = reason.class() == Class::Permanent;
        let reconciling = !stalled && reason != Reason::Suspended;
        let serving = serving.is_some();
        Health { ready: false, serving, reconciling, stalled, reason, message }
    };
    let problem = judged.accepted.as_ref().err().or(judged.held.as_ref()).or(view.blocked);
    let nowhere = |p: &&Problem| matches!(p.reason, Reason::NoSession | Reason::Outranked);
    if let Some(problem) = problem.filter(nowhere) {
        return Health { serving: serving.is_some(), ..Health::without_session(problem) };
    }
    if let Some(Problem { reason, message }) = problem {
        return from(*reason, message.clone());
    }
    if !view.alive {
        let cause = "No gateway serves the Session at the moment.";
        let Problem { reason, message } = Problem::new(Reason::NoGateway, cause);
        return from(reason, message);
    }
    let Some(newest) = newest(view, judged) else {
        return from(Reason::Requested, Reason::Requested.meaning().to_owned());
    };
    match newest.state {
        State::Active if newest.published => Health {
            ready: true,
            serving: true,
            reconciling: false,
            stalled: false,
            reason: Reason::Active,
            message: format!("Generation {} serves.", newest.generation),
        },
        // Between proof and service lies one answer of the gateway; to say so is not worth a write.
        State::Active if newest.reason == Reason::Publishing => {
            from(Reason::Realizing, Reason::Realizing.meaning().to_owned())
        }
        State::Active | State::Requested => from(newest.reason, newest.reason.meaning().to_owned()),
        State::Realizing if newest.message.is_empty() => {
            from(newest.reason, newest.reason.meaning().to_owned())
        }
        State::Realizing => {
            let Problem { reason, message } = Problem::new(newest.reason, &newest.message);
            from(reason, message)
        }
        State::Failed | State::Draining => {
            let Problem { reason, message } = Problem::new(newest.reason, &newest.message);
            let message = match next_try(newest) {
                Some(at) => sentences(&message, &format!("Next try at {}.", clock_time(at))),
                None => message,
            };
            from(reason, message)
        }
    }
}

/// Which tools the server in service lacks that the ToolSet names; empty if none.
pub fn lacking(view: &View<'_>, judged: &Judged) -> String {
    let missing = serving(view, judged).and_then(|e| e.evidence.as_ref()).map(lacks);
    missing.unwrap_or_default()
}

/// Which tools a server lacks that the ToolSet names; empty if none.
pub fn lacks(evidence: &Evidence) -> String {
    match &evidence.missing_tools[..] {
        [] => String::new(),
        names => format!(
            "{}: the ToolSet names what the server does not list: {}.",
            Reason::ToolNotFound,
            few(names)
        ),
    }
}

/// The newest generation that speaks for what is asked for now.
fn newest<'a>(view: &View<'a>, judged: &Judged) -> Option<&'a Generation> {
    let ours = of(view, judged).filter(|e| match e.state {
        State::Draining => is_lost(e),
        _ => true,
    });
    let wanted = judged.source();
    let mut fitting: Vec<_> =
        ours.filter(|e| wanted.is_none_or(|source| e.source == source)).collect();
    fitting.sort_by_key(|e| e.generation);
    fitting.pop()
}

fn serving<'a>(view: &View<'a>, judged: &Judged) -> Option<&'a Generation> {
    of(view, judged).find(|e| view.alive && e.state == State::Active && e.published)
}

fn of<'a>(view: &View<'a>, judged: &Judged) -> impl Iterator<Item = &'a Generation> {
    let uid = judged.attachment.metadata.uid.clone().unwrap_or_default();
    view.entries.iter().filter(move |e| e.attachment_uid == uid)
}

fn clock_time(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).strftime("%H:%M:%SZ").to_string()
}

/// The attachment's status: what is told of it, with the numbers of the Session of this view.
pub fn status(view: &View<'_>, judged: &Judged, health: &Health) -> McpAttachmentStatus {
    let attachment = &judged.attachment;
    let old = attachment.status.clone().unwrap_or_default();
    let observed = attachment.metadata.generation;
    let mut conditions = old.conditions;
    let mut put = |type_, status, reason, message: &str| {
        set(&mut conditions, type_, status, reason, message, observed, view.now);
    };
    match &judged.accepted {
        Ok(()) => put(ACCEPTED, true, Reason::Accepted, Reason::Accepted.meaning()),
        Err(problem) => put(ACCEPTED, false, problem.reason, &problem.message),
    }
    put(READY, health.ready, health.reason, &health.message);
    put(RECONCILING, health.reconciling, health.reason, "");
    put(STALLED, health.stalled, health.reason, "");
    let active = of(view, judged).find(|e| e.state == State::Active);
    match serving(view, judged) {
        Some(e) => {
            let message = format!("Generation {} is callable.", e.generation);
            put(SERVING, true, Reason::Active, &message);
        }
        None => put(SERVING, false, health.reason, ""),
    }
    // Until the gateway serves it, what was there before stays: see `health`.
    let (active_generation, tool_count, surface_digest, protocol_version) = match active {
        Some(e) if e.reason == Reason::Publishing => {
            (old.active_generation, old.tool_count, old.surface_digest, old.protocol_version)
        }
        _ => {
            let evidence = active.and_then(|e| e.evidence.clone()).unwrap_or_default();
            let Evidence { tool_count, surface_digest, protocol_version, .. } = evidence;
            (active.map(|e| e.generation), tool_count, surface_digest, protocol_version)
        }
    };
    let desired = match judged.wish {
        Wish::Withdraw(_) | Wish::Yield => None,
        Wish::Serve(_) | Wish::Hold => newest(view, judged),
    };
    McpAttachmentStatus {
        observed_generation: observed,
        conditions,
        desired_generation: desired.map(|e| e.generation),
        active_generation,
        tool_count,
        surface_digest,
        protocol_version,
        target: Some(judged.target.clone()),
        last_handled_reconcile_at: refs::asked(&**attachment)
            .cloned()
            .or(old.last_handled_reconcile_at),
    }
}
