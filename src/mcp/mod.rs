//! The MCP protocol, without policy: it knows no Agent, no Session, no permission.
//!
//! Toward servers there is one trait, [`Peer`], with one implementation for each transport. Toward
//! clients there is `server`, which asks a `Service` for everything it does not know. Messages
//! pass as raw bytes: an envelope is read, its parts are not.

mod body;
pub mod client_http;
pub mod client_stdio;
pub mod legacy;
pub mod server;
pub mod wire;

use bytes::Bytes;
use futures::future::BoxFuture;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use wire::RawJson;

/// A request toward a server. The peer chooses its own id.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The method, for example `tools/call`.
    pub method: &'static str,
    /// The params, passed on as they are; none for no params member.
    pub params: Option<RawJson>,
    /// How long to wait for the answer.
    pub timeout: Duration,
    /// Cancels the request: the server is told in the transport's way and the answer is dropped.
    pub cancel: CancellationToken,
}

/// What a server answered: the raw `result` or the raw `error` member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The `result` member.
    Result(RawJson),
    /// The `error` member.
    Error(RawJson),
}

/// Whether a request may have reached the server when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// No byte of it left, or the server refused it before executing it. It did not run.
    No,
    /// Some of it may have left. It may have run.
    Maybe,
}

impl Sent {
    /// Which of the two messages of a call was over a limit.
    fn over(self) -> &'static str {
        match self {
            Self::No => "request",
            Self::Maybe => "answer",
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The connection cannot be made or broke.
    #[error("{message}")]
    Connection {
        /// Whether the request may have run.
        sent: Sent,
        /// Which kind of failure.
        kind: ConnectionFailure,
        /// What happened, scrubbed, for people.
        message: String,
    },
    /// The server answered with an HTTP status that is no answer.
    #[error("the server answered HTTP {status}{}{body}", if .body.is_empty() { "" } else { ": " })]
    Status {
        /// The status.
        status: u16,
        /// The first words of the body, scrubbed and cut; nothing of a page.
        body: String,
    },
    /// What was answered is no MCP message.
    #[error("what the server answered is not MCP: {0}")]
    NotMcp(String),
    /// The request or its answer is over the limit. The connection lives on.
    #[error("the {} is over the limit of {limit} bytes", .sent.over())]
    TooLarge {
        /// No: it was the request. Maybe: it was the answer.
        sent: Sent,
        /// In bytes.
        limit: usize,
    },
    /// No answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The caller cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// The server ended.
    #[error("the server ended: {}", .exit.message())]
    Exited {
        /// Whether the request may have run.
        sent: Sent,
        /// How it ended.
        exit: Exit,
    },
}

/// Kinds of connection failure, as far as a reason is made of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFailure {
    /// Refused, unreachable, timed out, reset.
    Unreachable,
    /// The name does not resolve.
    Name,
    /// The name resolves to an address that is never connected to.
    Forbidden,
    /// TLS failed.
    Tls,
    /// The shim refused the link.
    LinkRefused,
    /// The server forgot its MCP session (HTTP 404).
    SessionLost,
    /// The server answered with a redirect.
    Redirected,
}

/// How a child process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, if it exited.
    pub code: Option<i32>,
    /// The signal, if it was killed.
    pub signal: Option<i32>,
    /// The last lines of its error output, scrubbed and cut.
    pub stderr_tail: String,
}

impl Exit {
    /// Whether the kernel ended it for memory, as the shim tells in the last line.
    pub fn is_out_of_memory(&self) -> bool {
        self.signal == Some(9)
            && self.stderr_tail.trim_end().ends_with(awaken_shim::frame::OUT_OF_MEMORY)
    }

    /// `exit code 1` or `signal 9`, and the last lines of its error output.
    pub fn message(&self) -> String {
        let how = match (self.code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "the connection closed".to_owned(),
        };
        if self.stderr_tail.is_empty() { how } else { format!("{how}; {}", self.stderr_tail) }
    }
}

/// What a server says unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A notification.
    Notification {
        /// Its method.
        method: String,
        /// Its params.
        params: Option<RawJson>,
    },
    /// Lines on stdout that are no protocol messages.
    Noise {
        /// How many so far.
        count: u64,
        /// One of them, scrubbed and cut.
        sample: String,
    },
    /// A message over the limit that no call waits for, which was skipped.
    Skipped {
        /// In bytes.
        limit: usize,
    },
    /// An answer that nobody waits for (late, repeated or invented).
    StrayAnswer,
}

/// Takes what a server says unasked. Called from the peer's reader: must not block.
pub type EventSink = std::sync::Arc<dyn Fn(PeerEvent) + Send + Sync>;

/// One live MCP server, whatever the transport. Requests are multiplexed by the peer's own ids.
pub trait Peer: Send + Sync + 'static {
    /// Sends a request and waits for its answer.
    fn request(&self, request: Outgoing) -> BoxFuture<'_, Result<Answer, PeerError>>;

    /// Sends a notification.
    fn notify<'a>(
        &'a self,
        method: &'static str,
        params: Option<RawJson>,
    ) -> BoxFuture<'a, Result<(), PeerError>>;

    /// Told once the protocol revision is negotiated (HTTP names it in a header of each request).
    fn negotiated(&self, protocol_version: &str);

    /// Becomes `Some` when the server is gone for good; the value says why.
    fn closed(&self) -> watch::Receiver<Option<PeerError>>;

    /// Ends the connection in the transport's way; idempotent. A stdio child is not ended by this.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// The bytes of a request or an answer, for sizes.
pub fn size(part: Option<&RawJson>) -> usize {
    part.map_or(0, |p| Bytes::len(p.bytes()))
}
