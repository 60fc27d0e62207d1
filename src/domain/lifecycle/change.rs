//! The single changes that a step makes to an entry: entering a state, draining, failing, being
//! lost, what a pod tells. Which change is due is decided in [`super::step`].

use super::{
    Blueprint, Desired, Generation, HttpTarget, Ignored, Limits, Mismatch, Owner, Place, PodFact,
    PodTarget, Receipt, RemovedBy, Situation, Stage, StageKind, State, Target, Wish, fingerprint,
    pod_name, retry::losses,
};
use crate::domain::{
    identity::McpGenerationRef,
    reason::{Class, Reason},
};
use jiff::{SignedDuration, Timestamp};

/// How much longer than `drainTimeout` the operator waits for the gateway's word.
pub const DRAIN_SLACK: SignedDuration = SignedDuration::from_secs(10);
/// How long the pod of a server that was lost may still tell how it ended.
const LAST_WORDS: SignedDuration = SignedDuration::from_secs(3);
/// Longest message of an entry, in bytes.
const MAX_MESSAGE: usize = 512;

/// What is asked for in the name of an attachment; none when it is gone.
pub(super) fn wish<'a>(s: &Situation<'a>, uid: &str) -> Option<&'a Wish> {
    let desired = s.desired.iter().find(|d| d.attachment_uid == uid);
    desired.filter(|_| !s.terminating).map(|d| &d.wish)
}

/// Whether the entry's stage is the host's; an entry without a stage is anybody's.
pub(super) fn owned(e: &Generation, owner: Owner<'_>) -> bool {
    e.stage.as_ref().is_none_or(|stage| {
        let r = &stage.generation_ref;
        r.incarnation == owner.incarnation && r.epoch == owner.epoch
    })
}

pub(super) fn stage(s: &Situation<'_>, owner: Owner<'_>, e: &Generation, kind: StageKind) -> Stage {
    let generation_ref = McpGenerationRef {
        session_uid: s.session_uid.to_owned(),
        attachment_uid: e.attachment_uid.clone(),
        generation: e.generation,
        incarnation: owner.incarnation.to_owned(),
        epoch: owner.epoch,
    };
    let fingerprint = fingerprint(&generation_ref, kind, &e.target, &e.limits);
    Stage { kind, generation_ref, fingerprint }
}

/// The receipt that answers the entry's present stage, if its host is the live one.
pub(super) fn answer<'a>(s: &'a Situation<'_>, e: &Generation) -> Option<&'a Receipt> {
    let stage = e.stage.as_ref()?;
    s.owner.filter(|owner| owned(e, *owner))?;
    s.receipts.iter().find(|r| stage.answered_by(r))
}

pub(super) fn enter(
    s: &Situation<'_>,
    e: &mut Generation,
    state: State,
    reason: Reason,
    message: String,
) {
    (e.state, e.reason, e.message, e.since) = (state, reason, bounded(message), s.now);
    e.deadline = None;
}

pub(super) fn drain(s: &Situation<'_>, e: &mut Generation, reason: Reason, message: String) {
    enter(s, e, State::Draining, reason, message);
    e.published = false;
    e.stage = match (&e.stage, s.owner) {
        (Some(_), Some(owner)) => Some(stage(s, owner, e, StageKind::Drain)),
        _ => None,
    };
}

pub(super) fn fail(s: &Situation<'_>, e: &mut Generation, reason: Reason, message: String) {
    enter(s, e, State::Failed, reason, message);
    e.stage = None;
    e.failures = e.failures.saturating_add(1);
}

pub(super) fn lose(s: &Situation<'_>, e: &mut Generation, reason: Reason, message: String) {
    e.failures = losses(e.failures, e.since, s.now);
    drain(s, e, reason, message);
}

/// A problem on the way: the last one for this generation, or one to wait out.
pub(super) fn setback(s: &Situation<'_>, e: &mut Generation, reason: Reason, message: String) {
    match reason.class() {
        Class::Permanent => fail(s, e, reason, message),
        Class::Waiting | Class::Retryable | Class::Normal | Class::Refusal => {
            (e.reason, e.message) = (reason, bounded(message));
        }
    }
}

pub(super) fn observe_pod(s: &Situation<'_>, e: &mut Generation) {
    let Target::SandboxStdio(pod) = &mut e.target else { return };
    let fact = s.pods.get(&e.generation);
    match (e.state, fact) {
        (State::Realizing, Some(PodFact::Refused(reason, message))) => {
            setback(s, e, *reason, message.clone());
        }
        (State::Realizing, Some(PodFact::Pending(Some((reason, message))))) => {
            setback(s, e, *reason, message.clone());
        }
        (State::Realizing, Some(PodFact::Pending(None))) => {
            (e.reason, e.message) = (Reason::Realizing, String::new());
        }
        (State::Realizing, Some(PodFact::Running { uid, address }))
            if (pod.uid.as_ref() != Some(uid) || pod.address.as_ref() != Some(address)) =>
        {
            (pod.uid, pod.address) = (Some(uid.clone()), Some(address.clone()));
            e.stage = None;
            (e.reason, e.message) = (Reason::Realizing, String::new());
        }
        (State::Realizing, Some(PodFact::Ended(reason, message))) => {
            fail(s, e, *reason, message.clone());
        }
        // Somebody took it away: it is made again, for the same generation.
        (State::Realizing, Some(PodFact::Deleting)) => forget_pod(e),
        (State::Realizing, None) if pod.uid.is_some() => forget_pod(e),
        (State::Active, Some(PodFact::Ended(reason, message))) => {
            lose(s, e, *reason, message.clone());
        }
        (State::Active, Some(PodFact::Running { uid, .. })) if pod.uid.as_ref() == Some(uid) => {}
        (State::Active, Some(PodFact::Pending(_))) => {}
        (State::Active, _) => {
            let message = format!("The pod {} is gone.", pod.name);
            lose(s, e, Reason::PodLost, message);
        }
        // The gateway saw only that the link broke; the pod tells why.
        (State::Draining, Some(PodFact::Ended(reason, message)))
            if e.reason == Reason::ServerLost =>
        {
            (e.reason, e.message) = (*reason, bounded(message.clone()));
        }
        _ => {}
    }
}

pub(super) fn forget_pod(e: &mut Generation) {
    let Target::SandboxStdio(pod) = &mut e.target else { return };
    (pod.uid, pod.address, e.stage) = (None, None, None);
    e.message = format!("The pod {} was deleted and is made again.", pod.name);
    e.reason = Reason::PodLost;
}

pub(super) fn requested(
    s: &Situation<'_>,
    d: &Desired,
    blueprint: &Blueprint,
    generation: i64,
    failures: i64,
) -> Generation {
    let target = match &blueprint.place {
        Place::Http { url, credential } => {
            Target::Http(HttpTarget { url: url.clone(), credential: credential.clone() })
        }
        Place::Pod { secrets } => Target::SandboxStdio(PodTarget {
            name: pod_name(s.session, s.session_uid, &d.attachment, &d.attachment_uid, generation),
            uid: None,
            address: None,
            secrets: secrets.clone(),
        }),
    };
    Generation {
        generation,
        attachment: d.attachment.clone(),
        attachment_uid: d.attachment_uid.clone(),
        origin: d.origin,
        server: blueprint.server.clone(),
        source: blueprint.source.clone(),
        state: State::Requested,
        stage: None,
        target,
        limits: blueprint.limits.clone(),
        reason: Reason::Requested,
        message: String::new(),
        since: s.now,
        deadline: None,
        failures,
        evidence: None,
        published: false,
    }
}

/// Whether a Draining generation is done with draining, and why.
pub(super) fn drained(s: &Situation<'_>, e: &Generation) -> Option<RemovedBy> {
    let Some(stage) = &e.stage else { return Some(RemovedBy::Drained) };
    if !s.owner.is_some_and(|owner| owned(e, owner)) {
        return Some(RemovedBy::HostLost);
    }
    if s.receipts.iter().any(|r| stage.answered_by(r)) {
        return Some(RemovedBy::Drained);
    }
    (drain_end(e) <= s.now).then_some(RemovedBy::Deadline)
}

pub(super) fn drain_end(e: &Generation) -> Timestamp {
    later(e.since, SignedDuration::from_millis(e.limits.drain_timeout_ms) + DRAIN_SLACK)
}

/// Until when the pod of a lost generation is kept for what it tells; none when nothing is missing.
pub(super) fn last_words(e: &Generation) -> Option<Timestamp> {
    (e.reason == Reason::ServerLost).then(|| later(e.since, LAST_WORDS))
}

pub(super) fn deadline(now: Timestamp, limits: &Limits) -> Timestamp {
    later(now, SignedDuration::from_millis(limits.startup_timeout_ms))
}

pub(super) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// What a generation waited for until its deadline: the last cause that was told, else how far it
/// came.
pub(super) fn late_message(s: &Situation<'_>, e: &Generation) -> String {
    let limit = SignedDuration::from_millis(e.limits.startup_timeout_ms);
    if e.reason.class() != Class::Normal {
        return format!("Not proven within {limit:#}; last: {}: {}", e.reason, e.message);
    }
    let waited = match (&e.target, s.pods.get(&e.generation)) {
        (Target::Http(_), _) => "the server did not answer the handshake".to_owned(),
        (Target::SandboxStdio(pod), Some(PodFact::Running { .. })) => {
            format!("its pod {} ran, but the server did not answer the handshake", pod.name)
        }
        (Target::SandboxStdio(pod), _) => {
            format!("its pod {} did not start; the pod's events may tell why", pod.name)
        }
    };
    format!("Not proven within {limit:#}: {waited}.")
}

/// The text cut to what an entry holds, at a character's edge.
pub(super) fn bounded(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        let mut end = MAX_MESSAGE - '…'.len_utf8();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push('…');
    }
    message
}

pub(super) fn ignored(entries: &[Generation], receipts: &[Receipt]) -> Vec<Ignored> {
    let judge = |r: &Receipt| {
        let e = entries.iter().find(|e| e.generation == r.generation)?;
        let stage = e.stage.as_ref()?;
        let (want, got) = (&stage.generation_ref, &r.generation_ref);
        let mismatch = if got.session_uid != want.session_uid
            || got.attachment_uid != want.attachment_uid
            || got.generation != want.generation
        {
            Mismatch::Identity
        } else if got.incarnation != want.incarnation {
            Mismatch::Incarnation
        } else if got.epoch != want.epoch {
            Mismatch::Epoch
        } else if r.stage == stage.kind && r.fingerprint != stage.fingerprint {
            Mismatch::Fingerprint
        } else {
            return None;
        };
        Some(Ignored { generation: r.generation, mismatch })
    };
    receipts.iter().filter_map(judge).collect()
}
