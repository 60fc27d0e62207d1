//! The handshake toward a server: initialize, the version, initialized, the whole list of tools.
//!
//! Declares no capability of ours, asks for none that the server does not declare, and turns each
//! failure into one reason.

use super::{
    Revision,
    tools::{Collector, ToolListing},
};
use crate::{
    domain::reason::Reason,
    mcp::{
        Answer, ConnectionFailure, Outgoing, Peer, PeerError,
        wire::{self, RawJson, code},
    },
};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The notification upon which a server is asked for its list again.
pub const LIST_CHANGED: &str = "notifications/tools/list_changed";
/// Pages of a list, at most.
const MAX_PAGES: usize = 1000;
/// What is kept of a server's own words, in characters.
const MAX_WORDS: usize = 256;

/// What a server proved of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The revision that it chose.
    pub revision: Revision,
    /// `serverInfo.name`, cut; empty if it gave none.
    pub server_name: String,
    /// `serverInfo.version`, cut; empty if it gave none.
    pub server_version: String,
    /// Its tools; none if it does not declare tools.
    pub listing: ToolListing,
}

/// Why a server is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct HandshakeError {
    /// One of the closed list.
    pub reason: Reason,
    /// What happened, for people.
    pub message: String,
}

impl HandshakeError {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// The reason of a failure to reach the server; `at` is the step, for the message.
    pub fn of(error: &PeerError, at: &str) -> Self {
        let reason = match error {
            PeerError::Connection { kind, .. } => match kind {
                ConnectionFailure::Unreachable => Reason::ConnectFailed,
                ConnectionFailure::Name => Reason::NameNotResolved,
                ConnectionFailure::Forbidden => Reason::TargetForbidden,
                ConnectionFailure::Tls => Reason::TlsFailed,
                ConnectionFailure::LinkRefused => Reason::LinkRefused,
                ConnectionFailure::SessionLost => Reason::ServerUnavailable,
                ConnectionFailure::Redirected => Reason::Redirected,
            },
            PeerError::Status { status, .. } => match status {
                401 | 403 => Reason::Unauthorized,
                300..=399 => Reason::Redirected,
                408 | 425 | 429 | 500..=599 => Reason::ServerUnavailable,
                _ => Reason::NotAnMcpServer,
            },
            PeerError::NotMcp(_) => Reason::NotAnMcpServer,
            PeerError::TooLarge { .. } => Reason::MessageTooLarge,
            PeerError::TimedOut(_) | PeerError::Cancelled => Reason::HandshakeTimeout,
            // whatever its code: what the shim tells of did run
            PeerError::Exited { exit, .. } if exit.is_out_of_memory() => Reason::OutOfMemory,
            PeerError::Exited { .. } => Reason::ServerExited,
        };
        Self::new(reason, format!("{at}: {error}"))
    }
}

/// Proves a server: initialize, its version, initialized, its tools; all within `timeout`.
///
/// # Errors
/// The first failure, with its reason.
pub async fn handshake(peer: &dyn Peer, timeout: Duration) -> Result<Handshake, HandshakeError> {
    let deadline = Instant::now() + timeout;
    let answer = ask(peer, "initialize", Some(initialize_params()), deadline).await?;
    let initialized = match answer {
        Answer::Result(result) => Initialized::read(&result)?,
        Answer::Error(error) => return Err(refused(&error)),
    };
    let revision = Revision::known(&initialized.version).ok_or_else(|| {
        let known = Revision::ALL.map(Revision::as_str).join(", ");
        HandshakeError::new(
            Reason::UnsupportedProtocolVersion,
            format!("the server chose {:?}; spoken here are {known}", initialized.version),
        )
    })?;
    peer.negotiated(revision.as_str());
    tokio::time::timeout_at(deadline, peer.notify("notifications/initialized", None))
        .await
        .map_err(|_| HandshakeError::of(&PeerError::TimedOut(timeout), "initialized"))?
        .map_err(|e| HandshakeError::of(&e, "initialized"))?;
    let listing = match initialized.tools {
        true => list(peer, deadline).await?,
        false => ToolListing::default(),
    };
    Ok(Handshake {
        revision,
        server_name: initialized.name,
        server_version: initialized.server_version,
        listing,
    })
}

/// Asks for the whole list again, within `timeout`.
///
/// # Errors
/// The first failure, with its reason.
pub async fn relist(peer: &dyn Peer, timeout: Duration) -> Result<ToolListing, HandshakeError> {
    list(peer, Instant::now() + timeout).await
}

async fn list(peer: &dyn Peer, deadline: Instant) -> Result<ToolListing, HandshakeError> {
    let mut collector = Collector::default();
    let mut params = None;
    for _ in 0..MAX_PAGES {
        let result = match ask(peer, "tools/list", params, deadline).await? {
            Answer::Result(result) => result,
            Answer::Error(error) => {
                let (_, words) = code_and_words(&error);
                let message = format!("tools/list: the server answered {words}");
                return Err(HandshakeError::new(Reason::InvalidToolList, message));
            }
        };
        let next = collector.page(&result).map_err(|what| {
            HandshakeError::new(Reason::InvalidToolList, format!("tools/list: {what}"))
        })?;
        let Some(cursor) = next else { return Ok(collector.finish()) };
        let cursor = serde_json::json!({ "cursor": cursor });
        params = Some(RawJson::of(&cursor).expect("a value is JSON"));
    }
    collector.cut(MAX_PAGES);
    Ok(collector.finish())
}

async fn ask(
    peer: &dyn Peer,
    method: &'static str,
    params: Option<RawJson>,
    deadline: Instant,
) -> Result<Answer, HandshakeError> {
    let timeout = deadline.saturating_duration_since(Instant::now());
    let cancel = CancellationToken::new();
    let request = Outgoing { method, params, timeout, cancel };
    // the peer keeps the time too; this bounds one that does not
    match tokio::time::timeout_at(deadline, peer.request(request)).await {
        Ok(answer) => answer.map_err(|e| HandshakeError::of(&e, method)),
        Err(_) => Err(HandshakeError::of(&PeerError::TimedOut(timeout), method)),
    }
}

fn initialize_params() -> RawJson {
    RawJson::of(&serde_json::json!({
        "protocolVersion": Revision::LATEST.as_str(),
        "capabilities": {},
        "clientInfo": {"name": "awaken", "version": env!("CARGO_PKG_VERSION")},
    }))
    .expect("a value is JSON")
}

/// What is read of the result of `initialize`.
struct Initialized {
    version: String,
    name: String,
    server_version: String,
    tools: bool,
}

impl Initialized {
    fn read(result: &RawJson) -> Result<Self, HandshakeError> {
        let not_mcp =
            |what: &str| HandshakeError::new(Reason::NotAnMcpServer, format!("initialize: {what}"));
        let members = wire::members(result).map_err(|e| not_mcp(&format!("the result: {e}")))?;
        let find = |wanted: &str| members.iter().find(|(k, _)| k == wanted).map(|(_, v)| *v);
        let text =
            |raw: &serde_json::value::RawValue| serde_json::from_str::<String>(raw.get()).ok();
        let version = find("protocolVersion")
            .and_then(text)
            .ok_or_else(|| not_mcp("the result names no protocolVersion"))?;
        let inside = |outer: &str, key: &str| -> Option<RawJson> {
            let outer = result.part(find(outer)?);
            let members = wire::members(&outer).ok()?;
            let (_, value) = members.into_iter().find(|(k, _)| k == key)?;
            Some(outer.part(value))
        };
        let words = |key: &str| -> String {
            let text: Option<String> =
                inside("serverInfo", key).and_then(|v| serde_json::from_str(v.as_str()).ok());
            cut(&text.unwrap_or_default())
        };
        let tools = inside("capabilities", "tools").filter(RawJson::is_object);
        Ok(Self {
            version: cut(&version),
            name: words("name"),
            server_version: words("version"),
            tools: tools.is_some(),
        })
    }
}

/// The reason of a JSON-RPC error upon `initialize`.
fn refused(error: &RawJson) -> HandshakeError {
    let (number, words) = code_and_words(error);
    let lower = words.to_lowercase();
    let reason = match number {
        Some(code::UNSUPPORTED_VERSION) => Reason::UnsupportedProtocolVersion,
        Some(code::INVALID_PARAMS) if lower.contains("protocol version") => {
            Reason::UnsupportedProtocolVersion
        }
        Some(code::INTERNAL) => Reason::ServerUnavailable,
        _ => Reason::NotAnMcpServer,
    };
    HandshakeError::new(reason, format!("initialize: the server answered {words}"))
}

/// The code of an error object, and code and message for people.
fn code_and_words(error: &RawJson) -> (Option<i64>, String) {
    let (mut number, mut words) = (None, String::new());
    for (key, value) in wire::members(error).unwrap_or_default() {
        match key.as_ref() {
            "code" => number = serde_json::from_str::<i64>(value.get()).ok(),
            "message" => words = serde_json::from_str(value.get()).unwrap_or_default(),
            _ => {}
        }
    }
    let shown = number.map_or("an error without a code".to_owned(), |n| format!("error {n}"));
    (number, format!("{shown}: {}", cut(&words)))
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

#[cfg(test)]
mod tests;
