//! A [`Peer`] over the link of a Session pod's shim: many requests at once toward one stdio server.
//!
//! It knows frames, ids and the window, no policy. A link that breaks is attached again under the
//! same epoch; what was not taken is sent again and nothing runs twice, because the shim counts.
//! It never ends the child.
//!
//! ```text
//!   request ──► calls (id → waiter)                       ┌──────── shim ────────┐
//!      └──────► core.send: window, one lock, one frame ──►│ inbox ──► stdin      │
//!   waiter ◄── reader: envelope, id ◄─────────────────────│ outbox ◄── stdout    │
//!   keeper: acknowledgements, pings, refusals ───────────►└──────────────────────┘
//! ```

mod calls;
mod core;
mod dial;
mod keeper;
pub mod message;
mod reader;
#[cfg(test)]
mod tests;
pub mod window;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use awaken_shim::{Claim, Kind};
use ed25519_dalek::SigningKey;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

use self::core::{Core, Handshake, NotSent};
use crate::mcp::{Answer, ConnectionFailure, EventSink, Outgoing, Peer, PeerError, RawJson, Sent};

/// Where a stdio server is, and as who to attach to it.
#[derive(Clone, Debug)]
pub struct StdioTarget {
    /// Address of the pod's shim.
    pub address: SocketAddr,
    /// What to claim; its epoch begins every JSON-RPC id.
    pub claim: Claim,
    /// Largest message in bytes, as the shim was told.
    pub max_message_bytes: usize,
}

/// One stdio server behind its shim.
pub struct StdioPeer {
    core: Arc<Core>,
    tasks: TaskTracker,
    _stop: DropGuard,
}

impl StdioPeer {
    /// Attaches. Takes up to 10 s; try again later on [`ConnectionFailure::Unreachable`].
    ///
    /// # Errors
    /// The shim cannot be reached, refuses the link (its reason is in the message), or says that
    /// the server ended. Nothing was sent to the server.
    pub async fn connect(
        target: StdioTarget,
        key: Arc<SigningKey>,
        events: EventSink,
    ) -> Result<Self, PeerError> {
        let (socket, attached) = dial::attach(&target, &key).await?;
        let (core, courier, stream, cut) = Core::new(target, key, events, socket, attached);
        let core = Arc::new(core);
        let tasks = core.tasks.clone();
        tasks.spawn(reader::live(core.clone(), stream, cut));
        tasks.spawn(keeper::keep(core.clone(), courier));
        tasks.close();
        let stop = core.stop.clone().drop_guard();
        Ok(Self { core, tasks, _stop: stop })
    }

    /// Answers that nobody waited for, since the link was made.
    pub fn stray_answers(&self) -> u64 {
        self.core.stray.load(Ordering::Relaxed)
    }

    async fn call(&self, request: Outgoing) -> Result<Answer, PeerError> {
        let core = &*self.core;
        let is_initialize = request.method == "initialize";
        if is_initialize && let Some(kept) = core.initialize_sent_before() {
            return limited(&request, kept).await;
        }
        let (number, answer) = core.calls.begin();
        let draft = message::request(core.epoch, number, request.method, request.params.as_ref());
        if draft.payload_len() > core.limit {
            core.calls.remove(number);
            return Err(PeerError::TooLarge { sent: Sent::No, limit: core.limit });
        }
        if is_initialize {
            core.handshake.send_replace(Handshake::Sent(format!("\"{}-{number}\"", core.epoch)));
        }
        let waiting = Waiting { core, number, is_initialize, sequence: AtomicU64::new(0) };
        let kind = if is_initialize { Kind::Initialize } else { Kind::Message };
        let work = async {
            if let Err(NotSent) = core.send(kind, draft, &waiting.sequence).await {
                return Err(core.failure(0));
            }
            match answer.await {
                Ok(answer) => answer,
                Err(_) => Err(core.failure(waiting.sequence.load(Ordering::Relaxed))),
            }
        };
        match limited(&request, work).await {
            Err(PeerError::TimedOut(_)) if waiting.sequence.load(Ordering::Relaxed) == 0 => {
                Err(PeerError::Connection {
                    sent: Sent::No,
                    kind: ConnectionFailure::Unreachable,
                    message: "the server takes no more messages at the moment".into(),
                })
            }
            other => other,
        }
    }
}

/// Within the request's time and unless it is cancelled.
async fn limited(
    request: &Outgoing,
    work: impl Future<Output = Result<Answer, PeerError>>,
) -> Result<Answer, PeerError> {
    tokio::select! {
        biased;
        result = tokio::time::timeout(request.timeout, work) => {
            result.unwrap_or(Err(PeerError::TimedOut(request.timeout)))
        }
        () = request.cancel.cancelled() => Err(PeerError::Cancelled),
    }
}

/// A request under way. Dropped before its answer, for whatever cause, it tells the server.
struct Waiting<'a> {
    core: &'a Core,
    number: u64,
    is_initialize: bool,
    sequence: AtomicU64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let unanswered = self.core.calls.remove(self.number);
        if unanswered && !self.is_initialize && self.sequence.load(Ordering::Relaxed) > 0 {
            self.core.post(message::cancelled(self.core.epoch, self.number));
        }
    }
}

impl Peer for StdioPeer {
    fn request(&self, request: Outgoing) -> BoxFuture<'_, Result<Answer, PeerError>> {
        self.call(request).boxed()
    }

    fn notify<'a>(
        &'a self,
        method: &'static str,
        params: Option<RawJson>,
    ) -> BoxFuture<'a, Result<(), PeerError>> {
        async move {
            let core = &*self.core;
            let is_initialized = method == "notifications/initialized";
            if is_initialized && core.initialized.swap(true, Ordering::Relaxed) {
                return Ok(());
            }
            let draft = message::notification(method, params.as_ref());
            if draft.payload_len() > core.limit {
                return Err(PeerError::TooLarge { sent: Sent::No, limit: core.limit });
            }
            let kind = if is_initialized { Kind::Initialized } else { Kind::Message };
            core.send(kind, draft, &AtomicU64::new(0)).await.map_err(|NotSent| core.failure(0))
        }
        .boxed()
    }

    fn negotiated(&self, _protocol_version: &str) {}

    fn closed(&self) -> watch::Receiver<Option<PeerError>> {
        self.core.closed.subscribe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            self.core.stop.cancel();
            let _ = tokio::time::timeout(Duration::from_secs(2), self.tasks.wait()).await;
        }
        .boxed()
    }
}
