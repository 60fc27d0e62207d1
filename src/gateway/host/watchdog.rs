//! Watches one live generation: its end, its pings, what it says unasked. Tells, and changes
//! nothing but the handle's own tools.

use super::{
    connect::listed,
    noise::Heard,
    realize::{Failure, Note, Realizer},
};
use crate::{
    domain::{
        lifecycle::{Evidence, Generation},
        reason::Reason,
    },
    gateway::handle::Handle,
    mcp::{
        ConnectionFailure, EventSink, Outgoing, Peer, PeerError, PeerEvent, legacy::LIST_CHANGED,
    },
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch::Receiver},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// How often and how long.
#[derive(Clone, Copy, Debug)]
pub struct Pings {
    /// Between two pings of a server that has no call in flight.
    pub every: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// So many without answer in a row, and the server is lost.
    pub misses: u32,
}

impl Default for Pings {
    fn default() -> Self {
        Self { every: Duration::from_secs(20), timeout: Duration::from_secs(5), misses: 3 }
    }
}

/// How long list changes and noise are collected.
const COLLECT: Duration = Duration::from_millis(100);

/// Hears what a server says unasked. Never blocks.
#[derive(Debug, Default)]
pub struct Ears {
    listed: Notify,
    noisy: Notify,
    noise: Heard,
}

impl Ears {
    /// The sink for a peer.
    pub fn sink(self: &Arc<Self>) -> EventSink {
        let ears = self.clone();
        Arc::new(move |event| match event {
            PeerEvent::Notification { method, .. } if method == LIST_CHANGED => {
                ears.listed.notify_one();
            }
            PeerEvent::Noise { count, sample } => {
                ears.noise.keep(count, sample);
                ears.noisy.notify_one();
            }
            PeerEvent::Notification { .. } | PeerEvent::StrayAnswer => {}
        })
    }
}

/// What the watchdog tells.
pub enum Sign {
    /// The server is gone.
    Lost(Failure),
    /// It lists other tools; the handle has them.
    Relisted(Evidence),
    /// Something for an event.
    Noticed(Note),
}

/// Watches until the server is lost or `stop`, which does not wait for the server.
pub async fn run(
    what: (Arc<Handle>, Generation),
    how: (Arc<dyn Realizer>, Arc<Ears>),
    pings: Pings,
    stop: CancellationToken,
    tell: impl Fn(Sign) + Send,
) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = watch(what, how, pings, tell) => {}
    }
}

async fn watch(
    (handle, generation): (Arc<Handle>, Generation),
    (realizer, ears): (Arc<dyn Realizer>, Arc<Ears>),
    pings: Pings,
    tell: impl Fn(Sign) + Send,
) {
    let lost = |error: Option<&PeerError>| {
        let message = error.map_or_else(|| "the connection closed".to_owned(), ToString::to_string);
        Sign::Lost(Failure::new(Reason::ServerLost, handle.redactor().text(&message)))
    };
    let (mut missed, mut told_noise) = (0, false);
    let mut next_ping = Instant::now() + pings.every;
    loop {
        let peer = handle.peer();
        let mut closed = peer.closed();
        tokio::select! {
            error = end(&mut closed) => {
                if Arc::ptr_eq(&peer, &handle.peer()) {
                    return tell(lost(error.as_ref()));
                }
            }
            () = ears.listed.notified() => {
                tokio::time::sleep(COLLECT).await;
                relist(&handle, &generation, &*realizer, &*peer).await.into_iter().for_each(&tell);
            }
            () = ears.noisy.notified(), if !told_noise => {
                told_noise = true;
                tokio::time::sleep(COLLECT).await;
                if let Some(noise) = ears.noise.latest() {
                    tell(Sign::Noticed(noise.note(&handle.redactor())));
                }
            }
            () = tokio::time::sleep_until(next_ping) => {
                next_ping = Instant::now() + pings.every;
                // a server that is busy with a known call is not unhealthy
                if handle.in_flight() > 0 {
                    continue;
                }
                match ping(&*peer, pings.timeout).await {
                    Ok(()) => missed = 0,
                    Err(PeerError::Connection { kind: ConnectionFailure::SessionLost, .. })
                        if handle.renewed(&peer).await.is_some() => missed = 0,
                    Err(error) => {
                        missed += 1;
                        if missed >= pings.misses {
                            return tell(lost(Some(&error)));
                        }
                    }
                }
            }
        }
    }
}

/// Why the server is gone, once it is.
async fn end(closed: &mut Receiver<Option<PeerError>>) -> Option<PeerError> {
    closed.wait_for(Option::is_some).await.ok().and_then(|error| error.clone())
}

async fn ping(peer: &dyn Peer, timeout: Duration) -> Result<(), PeerError> {
    let cancel = CancellationToken::new();
    // an error is an answer too: the server lives
    peer.request(Outgoing { method: "ping", params: None, timeout, cancel }).await.map(drop)
}

async fn relist(
    handle: &Handle,
    generation: &Generation,
    realizer: &dyn Realizer,
    peer: &dyn Peer,
) -> Vec<Sign> {
    match realizer.relist(generation, peer, &handle.redactor()).await {
        Ok((surface, notes)) => {
            let evidence = listed(&surface);
            handle.relisted(surface);
            let notes = notes.into_iter().map(Sign::Noticed);
            std::iter::once(Sign::Relisted(evidence)).chain(notes).collect()
        }
        Err(failure) => {
            tracing::warn!(attachment = handle.attachment, generation = handle.generation, %failure,
                "the server's changed list cannot be read; the old one stays");
            let Failure { reason, message } = failure;
            match reason {
                Reason::InvalidToolList | Reason::MessageTooLarge => {
                    vec![Sign::Noticed(Note { reason, message })]
                }
                _ => vec![],
            }
        }
    }
}
