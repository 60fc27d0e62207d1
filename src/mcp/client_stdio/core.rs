//! What the tasks of one peer share: the writer under its lock, the window, the waiters.
//!
//! Senders write to the socket themselves, one at a time; nobody waits for the window while
//! holding the lock, so acknowledgements always get through.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use awaken_shim::frame::{self, Attached, Draft, Initialize};
use awaken_shim::{Header, Kind};
use bytes::Bytes;
use ed25519_dalek::SigningKey;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc, watch};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::StdioTarget;
use super::calls::Calls;
use super::dial::Socket;
use super::message::Envelope;
use super::window::Window;
use crate::mcp::{Answer, ConnectionFailure, EventSink, PeerError, RawJson, Sent};

/// Small messages that wait for the keeper; more are dropped.
const POSTED: usize = 256;
/// Delivered bytes after which an acknowledgement is sent on its own.
const ACKNOWLEDGE_EVERY: usize = frame::KEEP / 16;

/// The message was not sent and will not be.
#[derive(Debug)]
pub struct NotSent;

/// The sending half of a link.
pub type Sink = SplitSink<Socket, Message>;
/// The receiving half.
pub type Stream = SplitStream<Socket>;

/// The writer: whoever holds it numbers and sends.
pub struct Writer {
    /// None between two links.
    pub sink: Option<Sink>,
    /// Ends with the link.
    pub cut: CancellationToken,
    /// The newest number given out.
    pub sequence: u64,
}

/// How far `initialize` went with this child, under whatever gateway.
pub enum Handshake {
    /// Nobody sent it.
    Fresh,
    /// Sent under this id.
    Sent(String),
    /// The whole answer.
    Answered(Bytes),
}

/// The shared state.
pub struct Core {
    pub target: StdioTarget,
    pub key: Arc<SigningKey>,
    pub events: EventSink,
    pub epoch: u64,
    pub limit: usize,
    pub calls: Calls,
    pub writer: Arc<AsyncMutex<Writer>>,
    /// Ends the present link; beside the lock, which a stuck sender may hold.
    cut: Mutex<CancellationToken>,
    /// Senders that hold or await the lock; the last of them flushes.
    senders: AtomicUsize,
    /// Highest number that any link's socket was given.
    fed: AtomicU64,
    window: Mutex<Window>,
    pub window_opened: Notify,
    /// Highest number of the server's messages that was dealt with, and the one told.
    pub delivered: AtomicU64,
    told: AtomicU64,
    untold_bytes: AtomicUsize,
    pub acknowledge_now: Notify,
    pub ping_now: Notify,
    pub flush_now: Notify,
    courier: mpsc::Sender<Draft>,
    pub handshake: watch::Sender<Handshake>,
    pub initialized: AtomicBool,
    pub closed: watch::Sender<Option<PeerError>>,
    pub stop: CancellationToken,
    /// Every task of the peer.
    pub tasks: TaskTracker,
    /// Frames heard, for the keeper's watch.
    pub heard: AtomicU64,
    pub stray: AtomicU64,
    pub noise: AtomicU64,
}

impl Core {
    /// The state of a fresh link, what the keeper reads, and what the reader reads and is cut by.
    pub fn new(
        target: StdioTarget,
        key: Arc<SigningKey>,
        events: EventSink,
        socket: Socket,
        attached: Attached,
    ) -> (Self, mpsc::Receiver<Draft>, Stream, CancellationToken) {
        let (sink, stream) = socket.split();
        let (courier, posted) = mpsc::channel(POSTED);
        let handshake = match attached.initialize {
            Initialize::None => Handshake::Fresh,
            Initialize::Sent { id } => Handshake::Sent(id.get().to_owned()),
            Initialize::Answered { answer, .. } => {
                Handshake::Answered(Bytes::copy_from_slice(answer.get().as_bytes()))
            }
        };
        let limit = usize::try_from(attached.max_message_bytes).unwrap_or(usize::MAX);
        let cut = CancellationToken::new();
        let writer = Writer { sink: Some(sink), cut: cut.clone(), sequence: attached.received };
        let core = Self {
            epoch: target.claim.epoch,
            limit: limit.min(target.max_message_bytes),
            target,
            key,
            events,
            calls: Calls::default(),
            writer: Arc::new(AsyncMutex::new(writer)),
            cut: Mutex::new(cut.clone()),
            tasks: TaskTracker::new(),
            senders: AtomicUsize::new(0),
            fed: AtomicU64::new(attached.received),
            window: Mutex::new(Window::default()),
            window_opened: Notify::new(),
            delivered: AtomicU64::new(attached.acknowledged),
            told: AtomicU64::new(attached.acknowledged),
            untold_bytes: AtomicUsize::new(0),
            acknowledge_now: Notify::new(),
            ping_now: Notify::new(),
            flush_now: Notify::new(),
            courier,
            handshake: watch::Sender::new(handshake),
            initialized: AtomicBool::new(attached.initialized),
            closed: watch::Sender::new(None),
            stop: CancellationToken::new(),
            heard: AtomicU64::new(0),
            stray: AtomicU64::new(0),
            noise: AtomicU64::new(0),
        };
        (core, posted, stream, cut)
    }

    /// The window.
    pub fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().expect("nothing panics while holding the window")
    }

    /// What ends a link that begins now.
    pub fn begin_link(&self) -> CancellationToken {
        let cut = CancellationToken::new();
        *self.present_cut() = cut.clone();
        cut
    }

    /// Ends the present link, whoever writes to it.
    pub fn cut_link(&self) {
        self.present_cut().cancel();
    }

    fn present_cut(&self) -> MutexGuard<'_, CancellationToken> {
        self.cut.lock().expect("nothing panics while holding the token")
    }

    /// Sends a message when the window lets it, and stores its number. Dropped, it either sent all
    /// or nothing; the number tells which.
    pub async fn send(&self, kind: Kind, draft: Draft, number: &AtomicU64) -> Result<(), NotSent> {
        loop {
            let opened = self.window_opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if self.stop.is_cancelled() || self.closed.borrow().is_some() {
                return Err(NotSent);
            }
            if !self.window().is_open() {
                tokio::select! {
                    () = opened => {}
                    () = self.stop.cancelled() => {}
                }
                continue;
            }
            let mut queued = Queued { core: self, fed: false };
            self.senders.fetch_add(1, Ordering::AcqRel);
            let mut writer = self.writer.lock().await;
            if !self.window().is_open() {
                continue;
            }
            self.feed(&mut writer, kind, draft, number).await;
            queued.fed = true;
            drop(queued);
            if self.senders.load(Ordering::Acquire) == 0 {
                self.flush(&mut writer).await;
            }
            return Ok(());
        }
    }

    /// Sends a small message past the waiting requests, or gives it back while the window is shut.
    pub async fn send_small(&self, draft: Draft) -> Result<(), Draft> {
        let mut writer = self.writer.lock().await;
        if !self.window().is_open_for_small() {
            return Err(draft);
        }
        self.feed(&mut writer, Kind::Message, draft, &AtomicU64::new(0)).await;
        self.flush(&mut writer).await;
        Ok(())
    }

    /// Numbers a message, keeps it and gives it to the socket if there is one. Between the number
    /// and the socket there is no await.
    async fn feed(&self, writer: &mut Writer, kind: Kind, draft: Draft, number: &AtomicU64) {
        let ready = match &mut writer.sink {
            None => false,
            Some(sink) => tokio::select! {
                biased;
                () = writer.cut.cancelled() => false,
                ready = std::future::poll_fn(|cx| sink.poll_ready_unpin(cx)) => ready.is_ok(),
            },
        };
        writer.sequence += 1;
        let sequence = writer.sequence;
        number.store(sequence, Ordering::Release);
        let frame = draft.finish(self.header(kind, sequence));
        self.window().push(sequence, kind, frame.slice(frame::HEADER..));
        if ready && let Some(sink) = &mut writer.sink {
            self.fed.fetch_max(sequence, Ordering::AcqRel);
            // A broken socket is the reader's to find; what is kept goes out on the next link.
            let _ = sink.start_send_unpin(Message::Binary(frame));
        }
    }

    /// Flushes, unless the link is cut meanwhile.
    pub async fn flush(&self, writer: &mut Writer) {
        if let Some(sink) = &mut writer.sink {
            tokio::select! {
                biased;
                _ = sink.flush() => {}
                () = writer.cut.cancelled() => {}
            }
        }
    }

    /// Sends what was not taken again, in order, and lets nobody in between.
    pub async fn send_again(&self, mut writer: tokio::sync::OwnedMutexGuard<Writer>, taken: u64) {
        let again = self.window().after(taken);
        for (sequence, kind, payload) in again {
            let frame = frame::encode(self.header(kind, sequence), &payload);
            self.fed.fetch_max(sequence, Ordering::AcqRel);
            let cut = writer.cut.clone();
            let Some(sink) = &mut writer.sink else { return };
            tokio::select! {
                biased;
                () = cut.cancelled() => return,
                sent = sink.feed(Message::Binary(frame)) => if sent.is_err() { return },
            }
        }
        self.flush(&mut writer).await;
    }

    /// Sends an acknowledgement or a ping on its own.
    pub async fn send_control(&self, ping: bool) {
        let mut writer = self.writer.lock().await;
        let message = if ping {
            Message::Ping(Bytes::new())
        } else if self.delivered.load(Ordering::Acquire) > self.told.load(Ordering::Acquire) {
            Message::Binary(frame::encode(self.header(Kind::Acknowledge, 0), b""))
        } else {
            return;
        };
        let Writer { sink: Some(sink), cut, .. } = &mut *writer else { return };
        tokio::select! {
            biased;
            () = cut.cancelled() => {}
            _ = sink.send(message) => {}
        }
    }

    fn header(&self, kind: Kind, sequence: u64) -> Header {
        let acknowledged = self.delivered.load(Ordering::Acquire);
        self.told.store(acknowledged, Ordering::Release);
        self.untold_bytes.store(0, Ordering::Relaxed);
        Header { kind, epoch: self.epoch, sequence, acknowledged }
    }

    /// A message of the server is dealt with. Says when it is time to acknowledge.
    pub fn dealt_with(&self, sequence: u64, len: usize) {
        self.delivered.fetch_max(sequence, Ordering::AcqRel);
        if self.untold_bytes.fetch_add(len, Ordering::Relaxed) + len >= ACKNOWLEDGE_EVERY {
            self.acknowledge_now.notify_one();
        }
    }

    /// Leaves a small message to the keeper; dropped when too many wait.
    pub fn post(&self, draft: Draft) {
        let _ = self.courier.try_send(draft);
    }

    /// Ends everything; the first cause stays.
    pub fn close(&self, cause: PeerError) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            if first {
                *closed = Some(cause);
            }
            first
        });
        self.stop.cancel();
        self.calls.clear();
        self.window_opened.notify_waiters();
    }

    /// Why a request has no answer; `sequence` is its number, 0 when it never had one.
    pub fn failure(&self, sequence: u64) -> PeerError {
        let never = sequence == 0 || sequence > self.fed.load(Ordering::Acquire);
        let sent = if never { Sent::No } else { Sent::Maybe };
        match &*self.closed.borrow() {
            Some(PeerError::Exited { exit, .. }) => PeerError::Exited { sent, exit: exit.clone() },
            Some(PeerError::Connection { kind, message, .. }) => {
                PeerError::Connection { sent, kind: *kind, message: message.clone() }
            }
            _ => PeerError::Connection {
                sent,
                kind: ConnectionFailure::Unreachable,
                message: "the link was closed".into(),
            },
        }
    }

    /// When some gateway sent `initialize` to this child before: its answer, once it is there.
    pub fn initialize_sent_before(
        &self,
    ) -> Option<impl Future<Output = Result<Answer, PeerError>> + '_> {
        if matches!(*self.handshake.borrow(), Handshake::Fresh) {
            return None;
        }
        let mut handshake = self.handshake.subscribe();
        Some(async move {
            tokio::select! {
                answered = handshake.wait_for(|now| matches!(now, Handshake::Answered(_))) => {
                    match answered.as_deref() {
                        Ok(Handshake::Answered(text)) => answer_in(text),
                        _ => Err(self.failure(0)),
                    }
                }
                () = self.stop.cancelled() => Err(self.failure(0)),
            }
        })
    }
}

/// The result or error of a whole answer.
pub fn answer_in(text: &Bytes) -> Result<Answer, PeerError> {
    let not_mcp = |why: &str| Err(PeerError::NotMcp(why.into()));
    match serde_json::from_slice::<Envelope<'_>>(text) {
        Ok(Envelope { result: Some(raw), .. }) => Ok(Answer::Result(RawJson::slice_of(text, raw))),
        Ok(Envelope { error: Some(raw), .. }) => Ok(Answer::Error(RawJson::slice_of(text, raw))),
        Ok(_) => not_mcp("the answer has neither result nor error"),
        Err(_) => not_mcp("the answer is no JSON-RPC message"),
    }
}

/// A sender in the queue for the lock. One that leaves without having sent passes the flush on.
struct Queued<'a> {
    core: &'a Core,
    fed: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.core.senders.fetch_sub(1, Ordering::AcqRel);
        if !self.fed {
            self.core.flush_now.notify_one();
        }
    }
}
