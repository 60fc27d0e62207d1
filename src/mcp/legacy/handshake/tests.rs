//! Tables for the handshake, with a server that answers from a script.

use super::*;
use crate::mcp::{Exit, Sent};
use futures::future::BoxFuture;
use rstest::rstest;
use std::sync::Mutex;
use tokio::sync::watch;

/// Answers each method from a list; the last entry of a method is repeated.
struct Scripted {
    script: Vec<(&'static str, Result<Answer, PeerError>)>,
    sent: Mutex<Vec<String>>,
}

impl Scripted {
    fn new(script: Vec<(&'static str, Result<Answer, PeerError>)>) -> Self {
        Self { script, sent: Mutex::default() }
    }

    fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().clone()
    }
}

impl Peer for Scripted {
    fn request(&self, request: Outgoing) -> BoxFuture<'_, Result<Answer, PeerError>> {
        let params = request.params.map_or(String::new(), |p| format!(" {}", p.as_str()));
        let mut sent = self.sent.lock().unwrap();
        let before = sent.iter().filter(|s| s.starts_with(request.method)).count();
        sent.push(format!("{}{params}", request.method));
        let of_method: Vec<_> =
            self.script.iter().filter(|(m, _)| *m == request.method).map(|(_, a)| a).collect();
        let answer = of_method.get(before).or(of_method.last()).map(|a| (*a).clone());
        Box::pin(async move {
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        })
    }

    fn notify<'a>(
        &'a self,
        method: &'static str,
        _: Option<RawJson>,
    ) -> BoxFuture<'a, Result<(), PeerError>> {
        self.sent.lock().unwrap().push(method.to_owned());
        Box::pin(async { Ok(()) })
    }

    fn negotiated(&self, version: &str) {
        self.sent.lock().unwrap().push(format!("negotiated {version}"));
    }

    fn closed(&self) -> watch::Receiver<Option<PeerError>> {
        watch::channel(None).1
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

fn result(text: &'static str) -> Result<Answer, PeerError> {
    Ok(Answer::Result(RawJson::from_static(text)))
}

fn error(text: &'static str) -> Result<Answer, PeerError> {
    Ok(Answer::Error(RawJson::from_static(text)))
}

const TOOLS: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"stub","version":"4.5"},"instructions":"hi"}"#;
const BARE: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"prompts":{}},"serverInfo":{"name":"bare","version":"1"}}"#;
const PAGE_ONE: &str =
    r#"{"tools":[{"name":"a","inputSchema":{"type":"object"}}],"nextCursor":"two"}"#;
const PAGE_TWO: &str = r#"{"tools":[{"name":"b","inputSchema":{"type":"object"}}]}"#;
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn the_whole_way() {
    let peer = Scripted::new(vec![
        ("initialize", result(TOOLS)),
        ("tools/list", result(PAGE_ONE)),
        ("tools/list", result(PAGE_TWO)),
    ]);
    let proved = handshake(&peer, SECOND).await.unwrap();
    assert_eq!(proved.revision, Revision::V2025_06_18);
    assert_eq!((proved.server_name.as_str(), proved.server_version.as_str()), ("stub", "4.5"));
    let names: Vec<_> = proved.listing.tools.iter().map(|t| t.name.as_str()).collect();
    assert_eq!((names, proved.listing.truncated), (vec!["a", "b"], None));
    let sent = peer.sent();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(sent[0].strip_prefix("initialize ").unwrap())
            .unwrap(),
        serde_json::json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "awaken", "version": version},
        })
    );
    assert_eq!(
        sent[1..],
        [
            "negotiated 2025-06-18",
            "notifications/initialized",
            "tools/list",
            r#"tools/list {"cursor":"two"}"#
        ]
    );
}

#[tokio::test]
async fn without_tools_declared_none_are_asked_for() {
    let peer = Scripted::new(vec![("initialize", result(BARE))]);
    let proved = handshake(&peer, SECOND).await.unwrap();
    assert!(proved.listing.tools.is_empty());
    assert!(peer.sent().iter().all(|s| !s.starts_with("tools/list")));
}

#[tokio::test]
async fn a_cursor_that_never_moves_ends_the_list() {
    let peer = Scripted::new(vec![("initialize", result(TOOLS)), ("tools/list", result(PAGE_ONE))]);
    let proved = handshake(&peer, SECOND).await.unwrap();
    assert_eq!(proved.listing.tools.len(), 1);
    assert!(proved.listing.truncated.unwrap().contains("two"));
    assert_eq!(peer.sent().iter().filter(|s| s.starts_with("tools/list")).count(), 2);
    let again = relist(&peer, SECOND).await.unwrap();
    assert_eq!(again.tools.len(), 1);
}

#[rstest]
#[case::unknown_version(
    result(r#"{"protocolVersion":"1999-01-01","capabilities":{}}"#),
    Reason::UnsupportedProtocolVersion,
    "1999-01-01"
)]
#[case::modern_version(
    result(r#"{"protocolVersion":"2026-07-28","capabilities":{}}"#),
    Reason::UnsupportedProtocolVersion,
    "2026-07-28"
)]
#[case::no_version(result(r#"{"capabilities":{}}"#), Reason::NotAnMcpServer, "protocolVersion")]
#[case::no_object(result("[]"), Reason::NotAnMcpServer, "not an object")]
#[case::version_error(
    error(r#"{"code":-32602,"message":"Unsupported protocol version","data":{}}"#),
    Reason::UnsupportedProtocolVersion,
    "Unsupported protocol version"
)]
#[case::modern_error(
    error(r#"{"code":-32022,"message":"no"}"#),
    Reason::UnsupportedProtocolVersion,
    "-32022"
)]
#[case::internal(
    error(r#"{"code":-32603,"message":"db down"}"#),
    Reason::ServerUnavailable,
    "db down"
)]
#[case::no_method(error(r#"{"code":-32601,"message":"what"}"#), Reason::NotAnMcpServer, "what")]
#[case::empty_error(error("{}"), Reason::NotAnMcpServer, "without a code")]
#[tokio::test]
async fn answers_to_initialize_that_end_it(
    #[case] answer: Result<Answer, PeerError>,
    #[case] reason: Reason,
    #[case] named: &str,
) {
    let peer = Scripted::new(vec![("initialize", answer)]);
    let error = handshake(&peer, SECOND).await.unwrap_err();
    assert_eq!(error.reason, reason);
    assert!(error.message.contains(named), "{error}");
    assert_eq!(peer.sent().len(), 1, "nothing follows");
}

#[rstest]
#[case::error(error(r#"{"code":-32601,"message":"no list"}"#), "no list")]
#[case::shape(result(r#"{"tools":7}"#), "no array")]
#[tokio::test]
async fn a_list_that_cannot_be_used(#[case] list: Result<Answer, PeerError>, #[case] named: &str) {
    let peer = Scripted::new(vec![("initialize", result(TOOLS)), ("tools/list", list)]);
    let error = handshake(&peer, SECOND).await.unwrap_err();
    assert_eq!(error.reason, Reason::InvalidToolList);
    assert!(error.message.contains(named), "{error}");
}

#[tokio::test(start_paused = true)]
async fn silence_ends_at_the_deadline_of_the_whole() {
    let peer = Scripted::new(vec![("initialize", result(TOOLS)), ("tools/list", result(PAGE_ONE))]);
    let silent = Scripted::new(vec![("initialize", result(TOOLS))]);
    assert!(handshake(&peer, SECOND).await.is_ok());
    let before = Instant::now();
    let error = handshake(&silent, SECOND * 7).await.unwrap_err();
    assert_eq!((error.reason, before.elapsed().as_secs()), (Reason::HandshakeTimeout, 7));
    assert!(error.message.starts_with("tools/list"));
}

fn connection(kind: ConnectionFailure) -> PeerError {
    PeerError::Connection { sent: Sent::No, kind, message: "m".into() }
}

fn status(status: u16) -> PeerError {
    PeerError::Status { status, body: String::new() }
}

fn killed(last: &str) -> PeerError {
    let exit = Exit { code: None, signal: Some(9), stderr_tail: format!("words\n{last}\n") };
    PeerError::Exited { sent: Sent::Maybe, exit }
}

fn exited(code: i32) -> PeerError {
    let exit = Exit { code: Some(code), signal: None, stderr_tail: "last words".into() };
    PeerError::Exited { sent: Sent::Maybe, exit }
}

#[rstest]
#[case(connection(ConnectionFailure::Unreachable), Reason::ConnectFailed)]
#[case(connection(ConnectionFailure::Name), Reason::NameNotResolved)]
#[case(connection(ConnectionFailure::Forbidden), Reason::TargetForbidden)]
#[case(connection(ConnectionFailure::Tls), Reason::TlsFailed)]
#[case(connection(ConnectionFailure::LinkRefused), Reason::LinkRefused)]
#[case(connection(ConnectionFailure::SessionLost), Reason::ServerUnavailable)]
#[case(connection(ConnectionFailure::Redirected), Reason::Redirected)]
#[case(status(401), Reason::Unauthorized)]
#[case(status(403), Reason::Unauthorized)]
#[case(status(404), Reason::NotAnMcpServer)]
#[case(status(405), Reason::NotAnMcpServer)]
#[case(status(400), Reason::NotAnMcpServer)]
#[case(status(429), Reason::ServerUnavailable)]
#[case(status(500), Reason::ServerUnavailable)]
#[case(status(503), Reason::ServerUnavailable)]
#[case(status(302), Reason::Redirected)]
#[case(PeerError::NotMcp("html".into()), Reason::NotAnMcpServer)]
#[case(PeerError::TooLarge { sent: Sent::Maybe, limit: 5 }, Reason::MessageTooLarge)]
#[case(PeerError::TimedOut(SECOND), Reason::HandshakeTimeout)]
#[case(exited(1), Reason::ServerExited)]
#[case(exited(127), Reason::ServerExited)]
#[case(killed("x"), Reason::ServerExited)]
#[case(killed(awaken_shim::frame::OUT_OF_MEMORY), Reason::OutOfMemory)]
#[tokio::test]
async fn each_failure_has_one_reason(#[case] failure: PeerError, #[case] reason: Reason) {
    let peer = Scripted::new(vec![("initialize", Err(failure.clone()))]);
    let error = handshake(&peer, SECOND).await.unwrap_err();
    assert_eq!(error.reason, reason);
    assert!(error.message.starts_with("initialize: "), "{error}");
}
