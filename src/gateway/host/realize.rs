//! Brings one generation up: connect, initialize, list the tools; again with growing delay as
//! long as the cause may pass. Decides nothing about the catalog.

use crate::{
    domain::{
        lifecycle::{Evidence, Generation},
        reason::{Class, Reason},
        redact::Redactor,
    },
    gateway::{handle::Surface, index::SessionView},
    mcp::{EventSink, Peer},
};
use futures::future::BoxFuture;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A generation that was proven by a handshake.
pub struct Realized {
    /// The connection.
    pub peer: Arc<dyn Peer>,
    /// Its tools.
    pub surface: Surface,
    /// What the handshake proved.
    pub evidence: Evidence,
    /// Knows what is secret to it.
    pub redactor: Redactor,
    /// What was noticed on the way: goes into events.
    pub notes: Vec<Note>,
}

/// Something noticed that does not stop the generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which kind.
    pub reason: Reason,
    /// For people, scrubbed.
    pub message: String,
}

/// Why a generation did not come up, or was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Failure {
    /// Its class decides whether it is tried again.
    pub reason: Reason,
    /// For people, scrubbed.
    pub message: String,
}

impl Failure {
    /// A failure.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Whether it may pass by itself.
    pub fn is_retryable(&self) -> bool {
        self.reason.class() == Class::Retryable
    }
}

/// Makes one try.
pub trait Realizer: Send + Sync + 'static {
    /// Connects, initializes and lists; ends within the startup timeout of the generation.
    fn realize<'a>(
        &'a self,
        session: &'a SessionView,
        generation: &'a Generation,
        events: EventSink,
    ) -> BoxFuture<'a, Result<Realized, Failure>>;

    /// Asks a live server for its tools again. What it says is told without what the redactor
    /// knows.
    fn relist<'a>(
        &'a self,
        generation: &'a Generation,
        peer: &'a dyn Peer,
        redactor: &'a Redactor,
    ) -> BoxFuture<'a, Result<(Surface, Vec<Note>), Failure>>;
}

/// Delays between tries.
#[derive(Clone)]
pub struct Backoff {
    /// The first.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
    /// Between 0 and 1; half of each delay is stretched by it.
    pub jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
            jitter: Arc::new(|| {
                f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
            }),
        }
    }
}

impl Backoff {
    /// The delay after the given number of failures, from 1.
    pub fn after(&self, failures: u32) -> Duration {
        let doubled = self.first * 2u32.saturating_pow(failures.saturating_sub(1).min(16));
        doubled.min(self.longest).mul_f64(0.5 + 0.5 * (self.jitter)())
    }
}

/// Tries until it works, cannot work, `patience` is over, or `stop`. Each failure is told; the
/// last one with `true`.
pub async fn until_proven(
    realizer: &dyn Realizer,
    session: &SessionView,
    generation: &Generation,
    events: EventSink,
    (backoff, patience, stop): (&Backoff, Option<Duration>, &CancellationToken),
    mut failed: impl FnMut(Failure, bool) + Send,
) -> Option<Realized> {
    let begun = Instant::now();
    let mut failures = 0;
    loop {
        let attempt = realizer.realize(session, generation, events.clone());
        let rest = patience.map_or(Duration::MAX, |limit| limit.saturating_sub(begun.elapsed()));
        let failure = tokio::select! {
            () = stop.cancelled() => return None,
            result = tokio::time::timeout(rest, attempt) => match result {
                Ok(Ok(realized)) => return Some(realized),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::new(
                    Reason::HandshakeTimeout,
                    format!("no handshake within {} s", rest.as_secs()),
                ),
            },
        };
        failures += 1;
        let delay = backoff.after(failures);
        let over = patience.is_some_and(|limit| begun.elapsed() + delay > limit);
        let last = over || !failure.is_retryable();
        failed(failure, last);
        if last {
            return None;
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(delay) => {}
        }
    }
}
