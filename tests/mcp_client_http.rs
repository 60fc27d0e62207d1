//! The client over Streamable HTTP against scripted servers in this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use awaken_operator::{
    domain::reason::Reason,
    mcp::{
        Answer, ConnectionFailure, Outgoing, Peer, PeerError, PeerEvent, RawJson, Sent,
        client_http::{AddressPolicy, Credential, HttpPeer, HttpTarget, tls_config},
        legacy,
    },
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_secs(10);
const MAX: usize = 64 << 10;

#[derive(Clone, Debug)]
struct Seen {
    method: Method,
    uri: String,
    headers: HeaderMap,
    body: Value,
    from: SocketAddr,
}

impl Seen {
    fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or("")
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }
}

type Script = Arc<dyn Fn(&Seen) -> Response + Send + Sync>;

/// A server that answers from a script and remembers what it saw.
struct Stub {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: CancellationToken,
}

impl Stub {
    async fn start(script: impl Fn(&Seen) -> Response + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1:0".parse().unwrap(), script).await
    }

    async fn on(
        at: SocketAddr,
        script: impl Fn(&Seen) -> Response + Send + Sync + 'static,
    ) -> Self {
        let script: Script = Arc::new(script);
        let (seen, stop) = (Arc::new(Mutex::new(vec![])), CancellationToken::new());
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let memory = seen.clone();
        let respond = move |from: SocketAddr, request: hyper::Request<Incoming>| {
            let (memory, script) = (memory.clone(), script.clone());
            async move {
                let (head, body) = request.into_parts();
                let bytes = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
                let seen = Seen {
                    method: head.method,
                    uri: head.uri.to_string(),
                    headers: head.headers,
                    body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
                    from,
                };
                memory.lock().unwrap().push(seen.clone());
                Ok::<_, Infallible>(script(&seen))
            }
        };
        let told = stop.clone();
        tokio::spawn(async move {
            // dropped with its connections
            let mut connections = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = told.cancelled() => return,
                };
                let Ok((tcp, from)) = accepted else { continue };
                tcp.set_nodelay(true).unwrap();
                let respond = respond.clone();
                let service = service_fn(move |request| respond(from, request));
                connections
                    .spawn(http1::Builder::new().serve_connection(TokioIo::new(tcp), service));
            }
        });
        Self { address, seen, stop }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn saw(&self, rpc: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|s| s.rpc() == rpc).collect()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn status(status: u16) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

fn typed(kind: &str, body: impl Into<Body>) -> Response {
    Response::builder().header(header::CONTENT_TYPE, kind).body(body.into()).unwrap()
}

fn answer(seen: &Seen, result: &Value) -> Response {
    let message = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result});
    typed("application/json", message.to_string())
}

fn pieces(kind: &str, pieces: Vec<Vec<u8>>) -> Response {
    let pieces = stream::iter(pieces).then(|piece| async move {
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(Bytes::from(piece))
    });
    typed(kind, Body::from_stream(pieces))
}

fn hang() -> Response {
    typed("text/event-stream", Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()))
}

/// A well-behaved server with one tool; `call` answers `tools/call`.
fn good(call: impl Fn(&Seen) -> Response + Send + Sync + 'static) -> impl Fn(&Seen) -> Response {
    move |seen| match (seen.method.as_str(), seen.rpc()) {
        ("GET", _) => status(405),
        ("DELETE", _) => status(200),
        (_, "initialize") => {
            let result = json!({
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": true}},
                "serverInfo": {"name": "stub", "version": "2"},
            });
            let mut response = answer(seen, &result);
            response.headers_mut().insert("mcp-session-id", "sess-41".parse().unwrap());
            response
        }
        (_, "tools/list") => {
            answer(seen, &json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}))
        }
        (_, "tools/call") => call(seen),
        (_, "ping") => answer(seen, &json!({})),
        _ => status(202),
    }
}

type Events = Arc<Mutex<Vec<PeerEvent>>>;

fn peer_for(url: &str, credential: Option<Credential>) -> (HttpPeer, Events) {
    let events = Events::default();
    let heard = events.clone();
    let target = HttpTarget::new(url, credential, MAX, Duration::from_secs(3)).unwrap();
    let policy: AddressPolicy = Arc::new(|_| Ok(()));
    let sink = Arc::new(move |event| heard.lock().unwrap().push(event));
    (HttpPeer::new(target, policy, tls_config().unwrap(), sink), events)
}

fn peer(stub: &Stub) -> HttpPeer {
    peer_for(&stub.url(), None).0
}

async fn ready(stub: &Stub) -> HttpPeer {
    let peer = peer(stub);
    legacy::handshake(&peer, LIMIT).await.unwrap();
    peer
}

fn call() -> Outgoing {
    Outgoing {
        method: "tools/call",
        params: Some(RawJson::from_static(r#"{"name":"t","arguments":{"n":1.50}}"#)),
        timeout: LIMIT,
        cancel: CancellationToken::new(),
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    until_within(LIMIT, what, condition).await;
}

async fn until_within(limit: Duration, what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(limit, wait).await.is_ok(), "in time: {what}");
}

#[tokio::test]
async fn connections_are_used_again_however_many_calls_there_are_at_a_time() {
    const CALLS: usize = 64;
    let stub = Stub::start(good(|seen| answer(seen, &json!({})))).await;
    let peer = ready(&stub).await;
    for _ in 0..5 {
        let all = futures::future::join_all((0..CALLS).map(|_| peer.request(call()))).await;
        assert!(all.iter().all(Result::is_ok));
    }
    let calls = stub.seen();
    let from: std::collections::BTreeSet<_> =
        calls.iter().filter(|s| s.rpc() == "tools/call").map(|s| s.from).collect();
    // a few more than calls: one that is free again may race one that is being made
    assert!(from.len() < 2 * CALLS, "{} connections for {CALLS} calls at a time", from.len());
}

// --- the handshake over HTTP

#[tokio::test]
async fn session_version_path_and_credential_travel_as_they_should() {
    let stub = Stub::start(good(|seen| answer(seen, &json!({"ok": 7})))).await;
    let credential = Credential {
        header: header::AUTHORIZATION,
        scheme: "Bearer".into(),
        value: "tok-9".into(),
    };
    let url = format!("http://{}/mcp/?k=a%2Fb", stub.address);
    let (peer, _) = peer_for(&url, Some(credential));
    let proved = legacy::handshake(&peer, LIMIT).await.unwrap();
    assert_eq!(proved.listing.tools.len(), 1);
    let Answer::Result(result) = peer.request(call()).await.unwrap() else { panic!() };
    assert_eq!(result.as_str(), r#"{"ok":7}"#);
    peer.close().await;
    let seen = stub.seen();
    for (at, seen) in seen.iter().enumerate() {
        assert_eq!(seen.uri, "/mcp/?k=a%2Fb");
        assert_eq!(seen.header("authorization"), Some("Bearer tok-9"));
        assert_eq!(seen.header("referer"), None);
        let (session, version) =
            if at == 0 { (None, None) } else { (Some("sess-41"), Some("2025-06-18")) };
        assert_eq!(seen.header("mcp-session-id"), session, "{at}");
        assert_eq!(seen.header("mcp-protocol-version"), version, "{at}");
        if seen.method == Method::POST {
            assert_eq!(seen.header("accept"), Some("application/json, text/event-stream"));
            assert_eq!(seen.header("content-type"), Some("application/json"));
        }
    }
    assert_eq!(seen.last().unwrap().method, Method::DELETE);
    assert_eq!(stub.saw("tools/call")[0].body["params"]["arguments"]["n"], json!(1.5));
    let after = peer.request(call()).await.unwrap_err();
    assert!(matches!(after, PeerError::Connection { sent: Sent::No, .. }), "closed: {after}");
}

#[rstest]
#[case::unauthorized(|_: &Seen| status(401), Reason::Unauthorized)]
#[case::forbidden(|_: &Seen| status(403), Reason::Unauthorized)]
#[case::unwell(|_: &Seen| status(500), Reason::ServerUnavailable)]
#[case::busy(|_: &Seen| status(429), Reason::ServerUnavailable)]
#[case::missing(|_: &Seen| status(404), Reason::NotAnMcpServer)]
#[case::not_allowed(|_: &Seen| status(405), Reason::NotAnMcpServer)]
#[case::moved(|_: &Seen| status(301), Reason::Redirected)]
#[case::accepted(|_: &Seen| status(202), Reason::NotAnMcpServer)]
#[case::html(|_: &Seen| typed("text/html", "<html>hi</html>"), Reason::NotAnMcpServer)]
#[case::other_json(|_: &Seen| typed("application/json", r#"{"hello":"world"}"#), Reason::NotAnMcpServer)]
#[case::cut_json(|_: &Seen| typed("application/json", r#"{"jsonrpc":"2.0","#), Reason::NotAnMcpServer)]
#[case::garbage_events(|_: &Seen| typed("text/event-stream", "data: garbage\n\nnonsense\n\n"), Reason::NotAnMcpServer)]
#[case::no_events(|_: &Seen| typed("text/event-stream", ""), Reason::ConnectFailed)]
#[case::old_version(|seen: &Seen| answer(seen, &json!({"protocolVersion": "1999-01-01", "capabilities": {}})), Reason::UnsupportedProtocolVersion)]
#[tokio::test]
async fn what_is_no_server_of_ours_has_its_reason(
    #[case] script: fn(&Seen) -> Response,
    #[case] reason: Reason,
) {
    let stub = Stub::start(script).await;
    let error = legacy::handshake(&peer(&stub), LIMIT).await.unwrap_err();
    assert_eq!(error.reason, reason, "{error}");
    assert_eq!(stub.seen().len(), 1, "tried once");
}

#[tokio::test]
async fn a_redirect_leads_nowhere() {
    let second = Stub::start(|_| status(200)).await;
    let to = second.url();
    let first = Stub::start(move |_| {
        let mut response = status(307);
        response.headers_mut().insert(header::LOCATION, to.parse().unwrap());
        response
    })
    .await;
    let error = legacy::handshake(&peer(&first), LIMIT).await.unwrap_err();
    assert_eq!(error.reason, Reason::Redirected);
    assert_eq!((first.seen().len(), second.seen().len()), (1, 0));
}

#[tokio::test]
async fn an_address_that_the_policy_forbids_is_not_connected_to() {
    let stub = Stub::start(|_| status(200)).await;
    let target = HttpTarget::new(
        &format!("http://localhost:{}/", stub.address.port()),
        None,
        MAX,
        Duration::from_secs(3),
    );
    let policy: AddressPolicy = Arc::new(|ip: IpAddr| match ip.is_loopback() {
        true => Err("loopback is never connected to".to_owned()),
        false => Ok(()),
    });
    let peer = HttpPeer::new(target.unwrap(), policy, tls_config().unwrap(), Arc::new(|_| {}));
    let error = legacy::handshake(&peer, LIMIT).await.unwrap_err();
    assert_eq!(error.reason, Reason::TargetForbidden);
    assert!(error.message.contains("loopback"));
    assert!(stub.seen().is_empty());
}

#[tokio::test]
async fn nothing_listens_and_no_tls_are_told_apart() {
    let stub = Stub::start(|_| status(200)).await;
    let (https, _) = peer_for(&format!("https://{}/", stub.address), None);
    assert_eq!(legacy::handshake(&https, LIMIT).await.unwrap_err().reason, Reason::TlsFailed);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (refused, _) = peer_for(&format!("http://{closed}/"), None);
    let error = legacy::handshake(&refused, LIMIT).await.unwrap_err();
    assert_eq!(error.reason, Reason::ConnectFailed, "{error}");
    let (nowhere, _) = peer_for("http://no-such-host.invalid/", None);
    let error = legacy::handshake(&nowhere, LIMIT).await.unwrap_err();
    assert_eq!(error.reason, Reason::NameNotResolved, "{error}");
}

#[tokio::test]
async fn the_credential_stands_in_no_error() {
    let stub = Stub::start(|seen| {
        let mut response = typed("text/plain", format!("you sent {:?}", seen.headers));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
    .await;
    let credential = Credential {
        header: header::HeaderName::from_static("x-key"),
        scheme: String::new(),
        value: "hush-77".into(),
    };
    let (peer, _) = peer_for(&stub.url(), Some(credential));
    let mut request = call();
    request.method = "initialize";
    let error = peer.request(request).await.unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(shown.contains("you sent") && !shown.contains("hush-77"), "{shown}");
    assert_eq!(stub.seen()[0].header("x-key"), Some("hush-77"));
}

// --- answers

#[tokio::test]
async fn an_answer_by_events_is_byte_exact_wherever_it_is_cut() {
    let result = "{\n\t\"emoji\": \"😀\",\r\n\t\"big\": 12345678901234567890,\n\"b\":1, \"a\":2\n}";
    for (end, cut) in [("\n", 1), ("\r\n", 3), ("\r", 7)] {
        let stub = Stub::start(good(move |seen| {
            let lines: Vec<_> = result.lines().collect();
            let (id, end) = (&seen.body["id"], end);
            let mut text =
                format!("\u{feff}: hello{end}{end}id: 1{end}data:{end}{end}event:message{end}");
            text += &format!("data:{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{end}");
            lines.iter().for_each(|l| text += &format!("data:{l}{end}"));
            text += &format!("data:}}{end}{end}");
            pieces("text/event-stream", text.as_bytes().chunks(cut).map(<[u8]>::to_vec).collect())
        }))
        .await;
        let peer = ready(&stub).await;
        let Answer::Result(answer) = peer.request(call()).await.unwrap() else { panic!() };
        // one line break is as good as another; everything else is as it was sent
        assert_eq!(answer.as_str(), result.replace("\r\n", "\n"));
    }
}

#[tokio::test]
async fn what_comes_before_the_answer_is_heard_and_questions_are_refused_at_once() {
    let stub = Stub::start(good(|seen| {
        let answer = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {"ok": true}});
        let events: String = [
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": 1}}),
            json!({"jsonrpc": "2.0", "id": "q1", "method": "sampling/createMessage"}),
            json!({"jsonrpc": "2.0", "id": "q2", "method": "ping"}),
            json!({"jsonrpc": "2.0", "id": 999, "result": {}}),
            answer,
        ]
        .iter()
        .map(|m| format!("data: {m}\n\n"))
        .collect();
        typed("text/event-stream", events)
    }))
    .await;
    let (peer, events) = peer_for(&stub.url(), None);
    legacy::handshake(&peer, LIMIT).await.unwrap();
    assert!(matches!(peer.request(call()).await, Ok(Answer::Result(_))));
    let find = |id: &str| stub.seen().into_iter().find(|s| s.body["id"] == id).map(|s| s.body);
    until("both are answered", || find("q1").is_some() && find("q2").is_some()).await;
    assert_eq!(find("q1").unwrap()["error"]["code"], -32601);
    assert_eq!(find("q2").unwrap()["result"], json!({}));
    let heard = events.lock().unwrap().clone();
    let [PeerEvent::Notification { method, params: Some(params) }, PeerEvent::StrayAnswer] =
        &heard[..]
    else {
        panic!("{heard:?}")
    };
    assert_eq!((method.as_str(), params.as_str()), ("notifications/message", r#"{"n":1}"#));
}

#[rstest]
#[case::ok(200)]
#[case::bad_request(400)]
#[tokio::test]
async fn an_error_is_an_answer_whatever_its_status(#[case] code: u16) {
    let stub = Stub::start(good(move |seen| {
        let error = json!({"code": -32602, "message": "unknown tool"});
        let message = json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error});
        let mut response = typed("application/json", message.to_string());
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        response
    }))
    .await;
    let Answer::Error(error) = ready(&stub).await.request(call()).await.unwrap() else { panic!() };
    assert_eq!(error.as_str(), r#"{"code":-32602,"message":"unknown tool"}"#);
}

#[rstest]
#[case::json("application/json", false)]
#[case::events("text/event-stream", true)]
#[tokio::test]
async fn an_answer_over_the_limit_ends_that_call_alone(
    #[case] kind: &'static str,
    #[case] sse: bool,
) {
    let stub = Stub::start(good(move |seen| {
        if seen.body["id"].as_u64() > Some(3) {
            return answer(seen, &json!({"small": 1}));
        }
        let result = json!({"big": "x".repeat(MAX)});
        let message =
            json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result}).to_string();
        typed(kind, if sse { format!("data: {message}\n\n") } else { message })
    }))
    .await;
    let peer = ready(&stub).await;
    assert_eq!(
        peer.request(call()).await,
        Err(PeerError::TooLarge { sent: Sent::Maybe, limit: MAX })
    );
    assert!(matches!(peer.request(call()).await, Ok(Answer::Result(_))));
}

#[tokio::test]
async fn a_notice_over_the_limit_is_skipped_and_the_call_goes_on() {
    let stub = Stub::start(good(|seen| {
        let params = json!({"data": "x".repeat(MAX)});
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
        let answer = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {"small": 1}});
        typed("text/event-stream", format!("data: {notice}\n\ndata: {answer}\n\n"))
    }))
    .await;
    let (peer, events) = peer_for(&stub.url(), None);
    legacy::handshake(&peer, LIMIT).await.unwrap();
    assert!(matches!(peer.request(call()).await, Ok(Answer::Result(_))));
    assert_eq!(*events.lock().unwrap(), [PeerEvent::Skipped { limit: MAX }]);
}

#[rstest]
#[case::an_answer("{\"jsonrpc\":\"2.0\",\"result\":\"")]
#[case::garbage("")]
#[tokio::test]
async fn data_without_an_end_is_over_the_limit_at_once(#[case] begin: &'static str) {
    let stub = Stub::start(good(move |_| {
        let piece = format!("data: {begin}{}", "x".repeat(MAX + 100));
        let forever = stream::pending::<Result<Bytes, Infallible>>();
        let all = stream::iter([Ok(Bytes::from(piece))]).chain(forever);
        typed("text/event-stream", Body::from_stream(all))
    }))
    .await;
    let peer = ready(&stub).await;
    let ended = tokio::time::timeout(LIMIT, peer.request(call())).await.expect("at once");
    assert_eq!(ended, Err(PeerError::TooLarge { sent: Sent::Maybe, limit: MAX }));
}

#[rstest]
#[case::json(false)]
#[case::events(true)]
#[tokio::test]
async fn connections_are_kept(#[case] sse: bool) {
    let stub = Stub::start(good(move |seen| {
        if !sse {
            return answer(seen, &json!({}));
        }
        let message = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {}});
        pieces(
            "text/event-stream",
            vec![format!("data: {message}\n\n").into_bytes(), b":bye\n\n".to_vec()],
        )
    }))
    .await;
    let peer = ready(&stub).await;
    for _ in 0..20 {
        peer.request(call()).await.unwrap();
    }
    let from: std::collections::HashSet<_> =
        stub.saw("tools/call").iter().map(|s| s.from).collect();
    assert!(from.len() <= 3, "{} connections for 20 calls one by one", from.len());
}

// --- what was sent and what was not

#[tokio::test]
async fn an_answer_that_breaks_off_may_have_run_and_is_not_sent_again() {
    for partial in ["", ": wait\n\n", "data: {\"jsonrpc\""] {
        let stub = Stub::start(good(move |_| {
            let broken = stream::iter([
                Ok(Bytes::from_static(partial.as_bytes())),
                Err(std::io::Error::other("gone")),
            ]);
            typed("text/event-stream", Body::from_stream(broken))
        }))
        .await;
        let error = ready(&stub).await.request(call()).await.unwrap_err();
        assert!(
            matches!(
                error,
                PeerError::Connection {
                    sent: Sent::Maybe,
                    kind: ConnectionFailure::Unreachable,
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(stub.saw("tools/call").len(), 1);
    }
}

#[tokio::test]
async fn a_server_that_restarts_is_met_again_and_one_that_is_gone_got_nothing() {
    let stub = Stub::start(good(|seen| answer(seen, &json!({})))).await;
    let peer = ready(&stub).await;
    peer.request(call()).await.unwrap();
    let address = stub.address;
    drop(stub);
    until("the port is closed", || std::net::TcpStream::connect(address).is_err()).await;
    let error = loop {
        // a connection that was open may still carry the first of these
        match peer.request(call()).await.unwrap_err() {
            PeerError::Connection { sent: Sent::Maybe, .. } => {}
            error => break error,
        }
    };
    assert!(matches!(error, PeerError::Connection { sent: Sent::No, .. }), "{error:?}");
    let again = Stub::on(address, good(|seen| answer(seen, &json!({})))).await;
    peer.request(call()).await.unwrap();
    assert_eq!(again.saw("tools/call").len(), 1);
}

#[rstest]
#[case::by_status(404, "")]
#[case::in_words(400, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#)]
#[tokio::test]
async fn a_lost_session_did_not_run_and_begins_anew(#[case] code: u16, #[case] body: &'static str) {
    let stub = Stub::start(good(move |seen| {
        if seen.body["id"].as_u64() == Some(3) {
            let mut response = typed("application/json", body);
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            return response;
        }
        answer(seen, &json!({}))
    }))
    .await;
    let peer = ready(&stub).await;
    let error = peer.request(call()).await.unwrap_err();
    assert!(
        matches!(
            error,
            PeerError::Connection { sent: Sent::No, kind: ConnectionFailure::SessionLost, .. }
        ),
        "{error:?}"
    );
    legacy::handshake(&peer, LIMIT).await.unwrap();
    assert!(peer.request(call()).await.is_ok());
    let initialized = stub.saw("initialize");
    assert_eq!(initialized.len(), 2);
    assert_eq!(
        initialized[1].header("mcp-session-id"),
        None,
        "a new one begins without the old id"
    );
    assert_eq!(initialized[1].header("mcp-protocol-version"), None);
}

#[tokio::test]
async fn other_failures_name_their_status() {
    for code in [401, 403, 429, 500, 503] {
        let stub = Stub::start(good(move |_| status(code))).await;
        let error = ready(&stub).await.request(call()).await.unwrap_err();
        assert_eq!(error, PeerError::Status { status: code, body: String::new() });
    }
}

// --- the end of a call from our side

#[tokio::test]
async fn cancel_and_timeout_tell_the_server_our_own_id() {
    let stub = Stub::start(good(|_| hang())).await;
    let peer = ready(&stub).await;
    let (request, cancelled) = (call(), call());
    let token = cancelled.cancel.clone();
    let short = Outgoing { timeout: Duration::from_millis(50), ..request };
    let (timed_out, cancelled, ()) =
        tokio::join!(peer.request(short.clone()), peer.request(cancelled), async {
            until("both calls are there", || stub.saw("tools/call").len() == 2).await;
            token.cancel();
        });
    assert_eq!(timed_out, Err(PeerError::TimedOut(short.timeout)));
    assert_eq!(cancelled, Err(PeerError::Cancelled));
    until("both are told", || stub.saw("notifications/cancelled").len() == 2).await;
    let ids = |seen: Vec<Seen>, at: &str| {
        let mut ids: Vec<_> =
            seen.iter().map(|s| s.body.pointer(at).unwrap().as_u64().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(
        ids(stub.saw("notifications/cancelled"), "/params/requestId"),
        ids(stub.saw("tools/call"), "/id")
    );
}

#[tokio::test]
async fn a_slow_call_does_not_delay_a_quick_one() {
    let stub = Stub::start(good(|seen| match seen.body["id"].as_u64() {
        Some(3) => hang(),
        _ => answer(seen, &json!({})),
    }))
    .await;
    let peer = ready(&stub).await;
    let slow = peer.request(call());
    tokio::pin!(slow);
    tokio::select! {
        _ = &mut slow => panic!("answered"),
        () = until("it is there", || !stub.saw("tools/call").is_empty()) => {}
    }
    for _ in 0..10 {
        assert!(peer.request(call()).await.is_ok());
    }
}

// --- the GET stream

#[tokio::test]
async fn notices_come_by_the_get_stream() {
    let base = good(|seen| answer(seen, &json!({})));
    let stub = Stub::start(move |seen| match seen.method {
        Method::GET => {
            let notice = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
            let first = format!("data: {notice}\n\n").into_bytes();
            let forever = stream::pending::<Result<Bytes, Infallible>>();
            let all = stream::iter([Ok(Bytes::from(first))]).chain(forever);
            typed("text/event-stream", Body::from_stream(all))
        }
        _ => base(seen),
    })
    .await;
    let (peer, events) = peer_for(&stub.url(), None);
    legacy::handshake(&peer, LIMIT).await.unwrap();
    until("it is heard", || !events.lock().unwrap().is_empty()).await;
    let expected = PeerEvent::Notification { method: legacy::LIST_CHANGED.into(), params: None };
    assert_eq!(events.lock().unwrap()[0], expected);
    let get = stub.seen().into_iter().find(|s| s.method == Method::GET).unwrap();
    assert_eq!(get.header("accept"), Some("text/event-stream"));
    assert_eq!(get.header("mcp-session-id"), Some("sess-41"));
}

#[tokio::test]
async fn a_server_without_a_stream_is_asked_once_and_left_alone() {
    let stub = Stub::start(good(|seen| answer(seen, &json!({})))).await;
    let (peer, events) = peer_for(&stub.url(), None);
    legacy::handshake(&peer, LIMIT).await.unwrap();
    let gets = || stub.seen().iter().filter(|s| s.method == Method::GET).count();
    until("it is asked", || gets() == 1).await;
    tokio::time::pause();
    tokio::time::sleep(LIMIT * 30).await;
    assert_eq!((gets(), stub.saw("ping").len()), (1, 0), "pings are the owner's");
    assert!(events.lock().unwrap().is_empty(), "no notice of a change");
}

#[tokio::test]
async fn a_server_that_is_gone_is_reported() {
    let base = good(|seen| answer(seen, &json!({})));
    let stub = Stub::start(move |seen| match seen.method {
        Method::GET => hang(),
        _ => base(seen),
    })
    .await;
    let peer = ready(&stub).await;
    let mut closed = peer.closed();
    until("the stream is open", || stub.seen().iter().any(|s| s.method == Method::GET)).await;
    assert!(closed.borrow().is_none());
    drop(stub);
    let gone = tokio::time::timeout(LIMIT, closed.wait_for(Option::is_some)).await;
    let gone = gone.expect("in time").unwrap().clone();
    assert!(matches!(
        gone,
        Some(PeerError::Connection { kind: ConnectionFailure::Unreachable, .. })
    ));
}
