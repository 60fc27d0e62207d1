//! Kubernetes events: one recorder a process, behind a bounded channel so that no reconcile waits
//! for one. Events are for changes of state, never for each round.

use super::{attachment::lacks, metrics::ControllerMetrics};
use crate::domain::{
    lifecycle::{Generation, Removal, RemovedBy, State, retry::is_lost},
    reason::{Class, Reason},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const WAITING: usize = 1024;

/// Where events are handed in.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(Event, ObjectReference)>,
    metrics: ControllerMetrics,
}

/// Writes what was handed in.
pub struct Writer {
    recorder: Recorder,
    queue: mpsc::Receiver<(Event, ObjectReference)>,
}

/// The two ends.
pub fn channel(client: Client, instance: &str, metrics: ControllerMetrics) -> (Events, Writer) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let reporter = Reporter {
        controller: super::build::MANAGER.to_owned(),
        instance: Some(instance.to_owned()),
    };
    let writer = Writer { recorder: Recorder::new(client, reporter), queue: receiver };
    (Events { queue: sender, metrics }, writer)
}

impl Writer {
    /// Writes until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let next = tokio::select! {
                () = stop.cancelled() => return,
                next = self.queue.recv() => next,
            };
            let Some((event, about)) = next else { return };
            if let Err(problem) = self.recorder.publish(&event, &about).await {
                tracing::debug!(%problem, reason = event.reason, "an event was not written");
            }
        }
    }
}

impl Events {
    /// Something went as it should.
    pub fn note(&self, about: ObjectReference, reason: Reason, message: String) {
        self.publish(EventType::Normal, about, reason, message);
    }

    /// Something that somebody should look at.
    pub fn warn(&self, about: ObjectReference, reason: Reason, message: String) {
        self.publish(EventType::Warning, about, reason, message);
    }

    fn publish(&self, type_: EventType, about: ObjectReference, reason: Reason, message: String) {
        let event = Event {
            type_,
            reason: reason.as_str().to_owned(),
            note: Some(message),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if self.queue.try_send((event, about)).is_err() {
            self.metrics.event_dropped();
        }
    }
}

/// What changed for one attachment between two sets of entries, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// UID of the attachment.
    pub attachment_uid: String,
    /// Whether somebody should look at it.
    pub warning: bool,
    /// The word.
    pub reason: Reason,
    /// More.
    pub message: String,
}

/// What is worth an event between two sets of entries.
pub fn transitions(
    before: &[Generation],
    after: &[Generation],
    removed: &[Removal],
) -> Vec<Transition> {
    let was = |generation: i64| before.iter().find(|e| e.generation == generation);
    let mut out = vec![];
    for e in after {
        let lacked = was(e.generation).and_then(|b| b.evidence.as_ref()).map(lacks);
        let lacks = e.evidence.as_ref().map(lacks).unwrap_or_default();
        if e.state == State::Active && !lacks.is_empty() && lacked.as_ref() != Some(&lacks) {
            out.push(Transition {
                attachment_uid: e.attachment_uid.clone(),
                warning: true,
                reason: Reason::ToolNotFound,
                message: format!("Generation {}: {lacks}", e.generation),
            });
        }
        let same = was(e.generation).is_some_and(|b| (b.state, b.reason) == (e.state, e.reason));
        if same {
            continue;
        }
        let number = e.generation;
        let (warning, reason, message) = match e.state {
            State::Requested => continue,
            State::Active if e.reason == Reason::Active => {
                let tools = e.evidence.as_ref().and_then(|e| e.tool_count).unwrap_or(0);
                (false, Reason::Active, format!("Generation {number} serves {tools} tools."))
            }
            State::Realizing if e.reason.class() == Class::Normal => {
                match was(number).map(|b| b.state) {
                    Some(State::Realizing) => continue,
                    _ => (false, e.reason, format!("Generation {number} is being started.")),
                }
            }
            State::Active => continue,
            State::Realizing => (true, e.reason, format!("Generation {number}: {}", e.message)),
            State::Failed => (true, e.reason, format!("Generation {number} failed: {}", e.message)),
            State::Draining if is_lost(e) => {
                (true, e.reason, format!("Generation {number} was lost: {}", e.message))
            }
            State::Draining => (false, e.reason, format!("Generation {number} drains.")),
        };
        out.push(Transition { attachment_uid: e.attachment_uid.clone(), warning, reason, message });
    }
    for r in removed {
        let Some(e) = was(r.generation) else { continue };
        let (warning, reason, how) = match r.by {
            RemovedBy::Drained => (false, Reason::Removed, "is gone"),
            RemovedBy::Deadline => {
                (true, Reason::DrainTimeout, "was removed without the gateway's word")
            }
            RemovedBy::HostLost => {
                (false, Reason::HostLost, "was removed with the gateway that owned it")
            }
            RemovedBy::Superseded => continue,
        };
        let message = format!("Generation {} {how}.", r.generation);
        out.push(Transition { attachment_uid: e.attachment_uid.clone(), warning, reason, message });
    }
    out
}
