//! The peer's reader: takes every frame of the link, and attaches again when a link breaks.
//!
//! It never waits for the writer while a link is alive, so the shim can always be read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use awaken_shim::frame::{self, Control, TooLarge};
use awaken_shim::{Header, Kind};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::core::{Core, Handshake, Stream, Writer};
use super::message::{self, Envelope};
use super::{calls::Calls, dial, window};
use crate::mcp::{Answer, ConnectionFailure, PeerError, PeerEvent, RawJson, Sent};

/// How long a link that fell silent is tried again before the server counts as gone.
const REATTACH: Duration = Duration::from_secs(5);
/// The same where the other side ended it: the pod can be reached then, or has just died. Callers
/// wait for it.
const REATTACH_ENDED: Duration = Duration::from_millis(1500);

/// Why reading ended.
enum End {
    /// The link broke; the server may be well.
    Lost(String),
    /// Nothing is heard; the server may be well.
    Silent,
    /// The server is gone, or is another gateway's.
    Final(PeerError),
}

fn gone(kind: ConnectionFailure, message: String) -> PeerError {
    PeerError::Connection { sent: Sent::Maybe, kind, message }
}

/// Reads until the server is gone or the peer stops.
pub async fn live(core: Arc<Core>, mut stream: Stream, mut cut: CancellationToken) {
    let cause = loop {
        let end = tokio::select! {
            end = read(&core, &mut stream, &cut) => end,
            () = core.stop.cancelled() => {
                End::Final(gone(ConnectionFailure::Unreachable, "the link was closed".into()))
            }
        };
        let (why, patience) = match end {
            End::Final(cause) => break cause,
            End::Lost(why) => (why, REATTACH_ENDED),
            End::Silent => ("nothing was heard for 30 s".to_owned(), REATTACH),
        };
        cut.cancel();
        core.writer.lock().await.sink = None;
        match attach_again(&core, patience).await {
            Ok(next) => (stream, cut) = next,
            Err(PeerError::Connection { kind, message, .. }) => {
                break gone(kind, format!("the link was lost ({why}); {message}"));
            }
            Err(other) => break other,
        }
    };
    core.close(cause);
    let farewell = async {
        if let Some(sink) = &mut core.writer.lock().await.sink {
            let _ = sink.close().await;
        }
    };
    let _ = timeout(Duration::from_secs(1), farewell).await;
    // Whoever still writes to it stops.
    cut.cancel();
}

async fn read(core: &Core, stream: &mut Stream, cut: &CancellationToken) -> End {
    loop {
        let message = tokio::select! {
            biased;
            message = stream.next() => message,
            () = cut.cancelled() => return End::Silent,
        };
        core.heard.fetch_add(1, Ordering::Relaxed);
        let end = match message {
            Some(Ok(Message::Binary(frame))) => match frame::decode(frame) {
                Ok((header, payload)) => {
                    take(core, header, payload);
                    continue;
                }
                Err(error) => Some(End::Lost(error.to_string())),
            },
            Some(Ok(Message::Text(text))) => control(core, &text),
            Some(Ok(Message::Close(_))) | None => Some(End::Lost("it closed".into())),
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(End::Lost(error.to_string())),
        };
        if let Some(end) = end {
            return end;
        }
    }
}

fn control(core: &Core, text: &str) -> Option<End> {
    match Control::from_text(text) {
        Ok(Control::Noise { dropped, sample }) => {
            if core.noise.swap(dropped, Ordering::Relaxed) != dropped {
                (core.events)(PeerEvent::Noise { count: dropped, sample });
            }
            None
        }
        Ok(Control::Exited(exited)) => {
            Some(End::Final(PeerError::Exited { sent: Sent::Maybe, exit: dial::exit(exited) }))
        }
        Ok(Control::Error { reason, message }) => {
            let message = format!("the shim ended the link: {reason:?}: {message}");
            Some(End::Final(gone(ConnectionFailure::LinkRefused, message)))
        }
        Ok(_) => Some(End::Lost("a control frame out of place".into())),
        Err(error) => Some(End::Lost(error.to_string())),
    }
}

fn take(core: &Core, header: Header, payload: Bytes) {
    let opened = core.window().acknowledge(header.acknowledged);
    if opened {
        core.window_opened.notify_waiters();
    }
    if window::is_old(header.sequence, core.delivered.load(Ordering::Acquire)) {
        return;
    }
    let len = payload.len();
    match header.kind {
        Kind::Message => one_message(core, payload),
        Kind::TooLarge => too_large(core, &payload),
        Kind::Acknowledge | Kind::Initialize | Kind::Initialized => {}
    }
    core.dealt_with(header.sequence, len);
}

fn one_message(core: &Core, payload: Bytes) {
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(&payload) else {
        return stray(core);
    };
    let raw = |part| RawJson::slice_of(&payload, part);
    match (envelope.id, envelope.method) {
        (Some(id), Some(method)) => {
            if let Some(draft) = message::answer_to_server(id, &method) {
                core.post(draft);
            }
        }
        (None, Some(method)) => (core.events)(PeerEvent::Notification {
            method: method.into_owned(),
            params: envelope.params.map(raw),
        }),
        (Some(id), None) => {
            let outcome = match (envelope.result, envelope.error) {
                (Some(result), _) => Ok(Answer::Result(raw(result))),
                (None, Some(error)) => Ok(Answer::Error(raw(error))),
                (None, None) => {
                    Err(PeerError::NotMcp("the answer has neither result nor error".into()))
                }
            };
            let awaited = answers_handshake(core, id.get(), &payload);
            if !deliver(&core.calls, core.epoch, id.get(), outcome) && !awaited {
                stray(core);
            }
        }
        (None, None) => stray(core),
    }
}

fn deliver(calls: &Calls, epoch: u64, id: &str, outcome: Result<Answer, PeerError>) -> bool {
    message::number_of(epoch, id).is_some_and(|number| calls.deliver(number, outcome))
}

/// Keeps the answer to an `initialize` that an earlier gateway sent.
fn answers_handshake(core: &Core, id: &str, payload: &Bytes) -> bool {
    if matches!(*core.handshake.borrow(), Handshake::Fresh | Handshake::Answered(_)) {
        return false;
    }
    core.handshake.send_if_modified(|now| {
        let ours = matches!(now, Handshake::Sent(sent) if sent == id);
        if ours {
            *now = Handshake::Answered(payload.clone());
        }
        ours
    })
}

fn stray(core: &Core) {
    core.stray.fetch_add(1, Ordering::Relaxed);
    (core.events)(PeerEvent::StrayAnswer);
}

fn too_large(core: &Core, payload: &[u8]) {
    let Ok(notice) = serde_json::from_slice::<TooLarge>(payload) else { return stray(core) };
    let limit = usize::try_from(notice.limit).unwrap_or(usize::MAX);
    let outcome = Err(PeerError::TooLarge { sent: Sent::Maybe, limit });
    match notice.id {
        Some(id) if deliver(&core.calls, core.epoch, id.get(), outcome) => {}
        _ => stray(core),
    }
}

/// Attaches under the same epoch and sends again what the shim did not take. Gives up after
/// `patience`, whatever an attempt waits for.
async fn attach_again(
    core: &Arc<Core>,
    patience: Duration,
) -> Result<(Stream, CancellationToken), PeerError> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(50);
    let (socket, attached) = loop {
        let attempt = tokio::select! {
            attempt = dial::attach(&core.target, &core.key) => attempt,
            () = tokio::time::sleep_until(deadline) => Err(dial::unreachable("no answer in time")),
            () = core.stop.cancelled() => return Err(core.failure(0)),
        };
        match attempt {
            Ok(link) => break link,
            Err(error) => {
                let unreachable = matches!(
                    error,
                    PeerError::Connection { kind: ConnectionFailure::Unreachable, .. }
                );
                if !unreachable || Instant::now() + pause > deadline {
                    return Err(error);
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause *= 2,
            () = core.stop.cancelled() => return Err(core.failure(0)),
        }
    };
    let (sink, stream) = socket.split();
    let mut writer = core.writer.clone().lock_owned().await;
    let cut = core.begin_link();
    *writer = Writer { sink: Some(sink), cut: cut.clone(), sequence: writer.sequence };
    let core = core.clone();
    // On its own, because the shim hands over its output at the same time and must be read.
    let tasks = core.tasks.clone();
    tasks.spawn(async move { core.send_again(writer, attached.received).await });
    Ok((stream, cut))
}
