//! The HTTP server for clients, request by request, with a scripted service behind it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use awaken_operator::{
    domain::reason::Reason,
    mcp::{
        Answer, RawJson,
        server::{
            Refused, Scope, ServerInfo, Service, SessionStore, StoreConfig, ToolCall, ToolList,
            serve,
        },
    },
};
use axum::{
    body::{Body, to_bytes},
    response::Response,
};
use futures::{StreamExt as _, future::BoxFuture};
use http::{HeaderMap, Request, StatusCode, header};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt as _,
    sync::{Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

const BOTH: &str = "application/json, text/event-stream";
const LIMIT: Duration = Duration::from_secs(5);

/// What became of calls, in order.
type Log = Arc<Mutex<Vec<String>>>;

struct Fake {
    tools: Mutex<Arc<ToolList>>,
    changes: watch::Sender<u64>,
    log: Log,
    refused: Mutex<Vec<(Reason, Option<String>)>>,
    /// Lets `slow` end.
    release: Arc<Semaphore>,
    ended: CancellationToken,
    /// A call was told that nobody waits.
    heard_gone: Arc<AtomicBool>,
}

fn list(names: &[&str]) -> Arc<ToolList> {
    let tools: Vec<_> = names
        .iter()
        .map(|n| (*n, RawJson::of(&json!({"name": n, "inputSchema": {"type": "object"}})).unwrap()))
        .collect();
    Arc::new(ToolList::new(tools.iter().map(|(n, t)| (*n, t))))
}

impl Service for Fake {
    fn info(&self) -> ServerInfo {
        ServerInfo {
            name: "fake".into(),
            version: "0.3".into(),
            title: None,
            instructions: Some("be \"kind\"".into()),
        }
    }

    fn tools(&self) -> Arc<ToolList> {
        self.tools.lock().unwrap().clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn call(&self, call: ToolCall) -> BoxFuture<'static, Answer> {
        let (log, release) = (self.log.clone(), self.release.clone());
        let heard_gone = self.heard_gone.clone();
        Box::pin(async move {
            let say =
                |what: &str| log.lock().unwrap().push(format!("{what} {:?}", call.context.id));
            say(&format!("call {}", call.name));
            if call.name == "slow" {
                let told = async {
                    call.context.gone.cancelled().await;
                    heard_gone.store(true, Ordering::Relaxed);
                    std::future::pending().await
                };
                tokio::select! {
                    () = call.context.cancel.cancelled() => say("cancelled"),
                    permit = release.acquire() => permit.unwrap().forget(),
                    () = told => {}
                }
                if call.context.gone.is_cancelled() {
                    say("unheard");
                }
                say("ended");
            }
            match call.arguments {
                Some(arguments) => Answer::Result(arguments),
                None => Answer::Error(RawJson::from_static(r#"{"code":-1,"message":"none"}"#)),
            }
        })
    }

    fn refused(&self, refused: Refused) -> BoxFuture<'static, ()> {
        assert!(!refused.message.is_empty());
        self.refused.lock().unwrap().push((refused.reason, refused.method));
        Box::pin(async {})
    }

    fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }
}

struct Harness {
    store: SessionStore,
    fake: Arc<Fake>,
    service: Arc<dyn Service>,
}

fn scope(subject: &str) -> Scope {
    Scope { subject: subject.into(), endpoint: "/v1/sessions/a/b/mcp".into() }
}

impl Harness {
    fn new() -> Self {
        let fake = Arc::new(Fake {
            tools: Mutex::new(list(&["echo", "slow"])),
            changes: watch::Sender::new(0),
            log: Log::default(),
            refused: Mutex::default(),
            release: Arc::new(Semaphore::new(0)),
            ended: CancellationToken::new(),
            heard_gone: Arc::default(),
        });
        let config =
            StoreConfig { sessions_per_subject: 3, max_body: 4096, ..StoreConfig::default() };
        Self { store: SessionStore::new(config), service: fake.clone(), fake }
    }

    async fn send(&self, subject: &str, request: Request<Body>) -> Response {
        serve(&self.store, &scope(subject), &self.service, request).await
    }

    async fn post(&self, session: Option<&str>, body: impl Into<Body>) -> Response {
        self.send("ann", post(session, body)).await
    }

    async fn open(&self) -> String {
        let response = self.post(None, initialize("2025-11-25")).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.headers()["mcp-session-id"].to_str().unwrap().to_owned()
    }

    fn log(&self) -> Vec<String> {
        self.fake.log.lock().unwrap().clone()
    }

    async fn logged(&self, line: &str) {
        until(|| self.log().iter().any(|l| l == line)).await;
    }
}

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.expect("the condition holds in time");
}

fn post(session: Option<&str>, body: impl Into<Body>) -> Request<Body> {
    let mut request = Request::post("/v1/sessions/a/b/mcp")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, BOTH);
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    request.body(body.into()).unwrap()
}

fn with(mut request: Request<Body>, headers: &[(&'static str, &str)]) -> Request<Body> {
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    request
}

fn get(session: &str) -> Request<Body> {
    let request = Request::get("/mcp").header(header::ACCEPT, "text/event-stream");
    request.header("mcp-session-id", session).body(Body::empty()).unwrap()
}

fn delete(session: &str) -> Request<Body> {
    Request::delete("/mcp").header("mcp-session-id", session).body(Body::empty()).unwrap()
}

fn initialize(version: &str) -> String {
    let client = json!({"name": "test", "version": "7"});
    let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string()
}

fn call(id: Value, tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

async fn text(response: Response) -> String {
    let bytes = tokio::time::timeout(LIMIT, to_bytes(response.into_body(), usize::MAX));
    String::from_utf8(bytes.await.expect("the body ends").unwrap().to_vec()).unwrap()
}

async fn body(response: Response) -> Value {
    let text = text(response).await;
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn content_type(headers: &HeaderMap) -> &str {
    headers[header::CONTENT_TYPE].to_str().unwrap()
}

// --- initialize

#[rstest]
#[case("2025-11-25", "2025-11-25")]
#[case("2025-06-18", "2025-06-18")]
#[case("2025-03-26", "2025-03-26")]
#[case("2024-11-05", "2024-11-05")]
#[case("1999-01-01", "2025-11-25")]
#[case("2026-07-28", "2025-11-25")]
#[tokio::test]
async fn initialize_answers_a_documented_version(#[case] asked: &str, #[case] answered: &str) {
    let harness = Harness::new();
    let response = harness.post(None, initialize(asked)).await;
    let id = response.headers()["mcp-session-id"].clone();
    assert!(id.as_bytes().iter().all(|b| (0x21..=0x7e).contains(b)));
    let answer = body(response).await;
    assert_eq!(
        answer["result"],
        json!({
            "protocolVersion": answered,
            "capabilities": {"tools": {"listChanged": true}},
            "serverInfo": {"name": "fake", "version": "0.3"},
            "instructions": "be \"kind\"",
        })
    );
    assert_eq!(harness.store.count(), 1);
}

#[tokio::test]
async fn initialize_neither_names_a_session_nor_lacks_a_version() {
    let harness = Harness::new();
    let session = harness.open().await;
    let again = harness.post(Some(&session), initialize("2025-11-25")).await;
    assert_eq!(again.status(), StatusCode::BAD_REQUEST);
    assert_eq!(body(again).await["error"]["code"], -32600);
    for params in [json!({}), json!({"protocolVersion": 7}), json!([])] {
        let message = json!({"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": params});
        let answer = body(harness.post(None, message.to_string()).await).await;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32602), &json!(3)));
    }
    assert_eq!(harness.store.count(), 1);
}

#[tokio::test]
async fn the_cap_of_a_subject_evicts_idle_sessions_and_then_says_so() {
    let harness = Harness::new();
    let other = harness.send("bob", post(None, initialize("2025-11-25"))).await;
    let of_bob = other.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let first = harness.open().await;
    let busy = [harness.open().await, harness.open().await, harness.open().await];
    let gone = harness.post(Some(&first), r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await;
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
    let mut streams = vec![];
    for session in &busy {
        streams.push(harness.send("ann", get(session)).await);
    }
    let refused = harness.post(None, initialize("2025-11-25")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(body(refused).await["error"]["data"]["reason"], "TooManySessions");
    let ping = post(Some(&of_bob), r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    assert_eq!(harness.send("bob", ping).await.status(), StatusCode::OK);
}

// --- headers and envelope

#[rstest]
#[case::type_missing(&[("content-type", "")], StatusCode::UNSUPPORTED_MEDIA_TYPE)]
#[case::type_other(&[("content-type", "text/plain")], StatusCode::UNSUPPORTED_MEDIA_TYPE)]
#[case::type_charset(&[("content-type", "application/json; charset=utf-8")], StatusCode::OK)]
#[case::accept_html(&[("accept", "text/html")], StatusCode::NOT_ACCEPTABLE)]
#[case::accept_any(&[("accept", "*/*")], StatusCode::OK)]
#[case::accept_json(&[("accept", "application/json")], StatusCode::OK)]
#[case::version_known(&[("mcp-protocol-version", "2025-06-18")], StatusCode::OK)]
#[case::version_other(&[("mcp-protocol-version", "1999-01-01")], StatusCode::BAD_REQUEST)]
#[case::version_modern(&[("mcp-protocol-version", "2026-07-28")], StatusCode::BAD_REQUEST)]
#[case::version_empty(&[("mcp-protocol-version", "")], StatusCode::BAD_REQUEST)]
#[case::session_unknown(&[("mcp-session-id", "nobody")], StatusCode::NOT_FOUND)]
#[tokio::test]
async fn headers_of_a_post(#[case] headers: &[(&'static str, &str)], #[case] status: StatusCode) {
    let harness = Harness::new();
    let session = harness.open().await;
    let message = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
    let response = harness.send("ann", with(post(Some(&session), message), headers)).await;
    assert_eq!(response.status(), status);
    let answer = body(response).await;
    if status == StatusCode::OK {
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    } else {
        assert!(answer["error"]["data"]["reason"].is_string(), "{answer}");
    }
}

#[rstest]
#[case::not_json("hello", -32700, "InvalidRequest")]
#[case::empty("", -32700, "InvalidRequest")]
#[case::batch(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]"#, -32600, "BatchRefused")]
#[case::empty_batch("[]", -32600, "BatchRefused")]
#[case::no_version(r#"{"id":1,"method":"ping"}"#, -32600, "InvalidRequest")]
#[case::null_id(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600, "InvalidRequest")]
#[case::repeated(r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}"#, -32600, "RepeatedKey")]
#[tokio::test]
async fn bodies_that_are_no_message(
    #[case] message: &'static str,
    #[case] code: i64,
    #[case] reason: &str,
) {
    let harness = Harness::new();
    let session = harness.open().await;
    let response = harness.post(Some(&session), message).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let answer = body(response).await;
    assert_eq!(answer["error"]["code"], code);
    assert_eq!(answer["error"]["data"]["reason"], reason);
    assert!(answer.get("id").is_some());
    assert_eq!(harness.fake.refused.lock().unwrap().len(), 1, "one refusal on record");
    assert!(harness.log().is_empty());
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_under_its_id() {
    let harness = Harness::new();
    let session = harness.open().await;
    let big = call(json!(77), "echo", json!({"a": "x".repeat(5000)}));
    let response = harness.post(Some(&session), big).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let answer = body(response).await;
    assert_eq!(answer["id"], 77);
    assert_eq!(answer["error"]["data"], json!({"reason": "MessageTooLarge", "limit": 4096}));
}

#[rstest]
#[case::discover(r#"{"jsonrpc":"2.0","id":4,"method":"server/discover","params":{"_meta":{}}}"#, &[])]
#[case::modern_list(r#"{"jsonrpc":"2.0","id":4,"method":"tools/list"}"#, &[("mcp-protocol-version", "2026-07-28")])]
#[tokio::test]
async fn the_next_era_is_refused_so_that_clients_fall_back(
    #[case] message: &'static str,
    #[case] headers: &[(&'static str, &str)],
) {
    let harness = Harness::new();
    let response = harness.send("ann", with(post(None, message), headers)).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let error = &body(response).await["error"];
    assert_eq!(error["code"], -32022);
    assert_eq!(error["data"]["requested"], "2026-07-28");
    assert_eq!(error["data"]["supported"][0], "2025-11-25");
}

// --- sessions

#[tokio::test]
async fn a_session_is_needed_and_is_its_subjects_alone() {
    let harness = Harness::new();
    let session = harness.open().await;
    let ping = r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#;
    let missing = harness.post(None, ping).await;
    assert_eq!(missing.status(), StatusCode::BAD_REQUEST);
    for request in [post(Some(&session), ping), get(&session), delete(&session)] {
        let response = harness.send("eve", request).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(body(response).await["error"]["data"]["reason"], "UnknownMcpSession");
    }
    assert_eq!(harness.post(Some(&session), ping).await.status(), StatusCode::OK, "untouched");
}

#[tokio::test]
async fn delete_ends_the_session_and_its_stream_once() {
    let harness = Harness::new();
    let session = harness.open().await;
    let stream = harness.send("ann", get(&session)).await;
    let ended = harness.send("ann", delete(&session)).await;
    assert_eq!(ended.status(), StatusCode::NO_CONTENT);
    assert_eq!(text(stream).await, ": open\n\n", "the stream ends");
    assert_eq!(harness.send("ann", delete(&session)).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(harness.store.count(), 0);
    let bare = Request::delete("/mcp").body(Body::empty()).unwrap();
    assert_eq!(harness.send("ann", bare).await.status(), StatusCode::BAD_REQUEST);
}

#[rstest]
#[case(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)]
#[case(r#"{"jsonrpc":"2.0","method":"notifications/anything","params":[1]}"#)]
#[case(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}"#)]
#[case(r#"{"jsonrpc":"2.0","id":9,"result":{}}"#)]
#[case(r#"{"jsonrpc":"2.0","id":9,"error":{"code":1,"message":"x"}}"#)]
#[tokio::test]
async fn what_wants_no_answer_gets_202_and_nothing(#[case] message: &'static str) {
    let harness = Harness::new();
    let session = harness.open().await;
    let response = harness.post(Some(&session), message).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(text(response).await, "");
    assert_eq!(harness.post(Some("x"), message).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(harness.post(None, message).await.status(), StatusCode::BAD_REQUEST);
}

// --- methods

#[rstest]
#[case("logging/setLevel")]
#[case("prompts/list")]
#[case("resources/read")]
#[case("sampling/createMessage")]
#[case("tools/List")]
#[case("")]
#[tokio::test]
async fn other_methods_are_unknown(#[case] method: &str) {
    let harness = Harness::new();
    let session = harness.open().await;
    let message = json!({"jsonrpc": "2.0", "id": "u", "method": method, "params": {}});
    let response = harness.post(Some(&session), message.to_string()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let answer = body(response).await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32601), &json!("u")));
    let refused = harness.fake.refused.lock().unwrap().clone();
    assert_eq!(refused, [(Reason::UnknownMethod, Some(method.to_owned()))]);
}

#[tokio::test]
async fn the_list_is_there_before_initialized_and_pages_to_its_end() {
    let harness = Harness::new();
    let names: Vec<_> = (0..600).map(|n| format!("t{n:03}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    *harness.fake.tools.lock().unwrap() = list(&names);
    let session = harness.open().await;
    let (mut seen, mut cursor, mut pages) = (vec![], None, 0);
    loop {
        let params = cursor.take().map_or(json!({}), |c: Value| json!({"cursor": c}));
        let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": params});
        let answer = body(harness.post(Some(&session), message.to_string()).await).await;
        let tools = answer["result"]["tools"].as_array().unwrap();
        seen.extend(tools.iter().map(|t| t["name"].as_str().unwrap().to_owned()));
        pages += 1;
        match answer["result"].get("nextCursor") {
            Some(next) => cursor = Some(next.clone()),
            None => break,
        }
    }
    assert_eq!((seen, pages), (names.iter().map(|n| (*n).to_owned()).collect(), 3));
}

#[rstest]
#[case(json!({"cursor": "bogus"}))]
#[case(json!({"cursor": ""}))]
#[case(json!({"cursor": 8}))]
#[case(json!([1]))]
#[case(json!("x"))]
#[tokio::test]
async fn a_foreign_cursor_is_refused(#[case] params: Value) {
    let harness = Harness::new();
    let session = harness.open().await;
    let message = json!({"jsonrpc": "2.0", "id": 6, "method": "tools/list", "params": params});
    let answer = body(harness.post(Some(&session), message.to_string()).await).await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32602), &json!(6)));
}

#[rstest]
#[case::missing(None, "InvalidArguments")]
#[case::text(Some(r#""x""#), "InvalidArguments")]
#[case::number(Some("7"), "InvalidArguments")]
#[case::null(Some("null"), "InvalidArguments")]
#[case::list(Some("[[[[]]]]"), "InvalidArguments")]
#[case::no_name(Some("{}"), "InvalidArguments")]
#[case::name_number(Some(r#"{"name":1}"#), "InvalidArguments")]
#[case::arguments_list(Some(r#"{"name":"echo","arguments":[]}"#), "InvalidArguments")]
#[case::arguments_text(Some(r#"{"name":"echo","arguments":"{}"}"#), "InvalidArguments")]
#[case::name_twice(Some(r#"{"name":"echo","n\u0061me":"slow"}"#), "RepeatedKey")]
#[tokio::test]
async fn params_that_name_no_call(#[case] params: Option<&str>, #[case] reason: &str) {
    let harness = Harness::new();
    let session = harness.open().await;
    let params = params.map_or(String::new(), |p| format!(r#","params":{p}"#));
    let message = format!(r#"{{"jsonrpc":"2.0","id":"f","method":"tools/call"{params}}}"#);
    let answer = body(harness.post(Some(&session), message).await).await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32602), &json!("f")));
    assert_eq!(answer["error"]["data"]["reason"], reason);
    assert!(harness.log().is_empty());
}

#[tokio::test]
async fn a_call_passes_byte_for_byte() {
    let harness = Harness::new();
    let session = harness.open().await;
    let arguments = r#"{ "z":1.0, "a":12345678901234567890123, "e":"\u00e9😀", "n":{"deep":[ ]} }"#;
    let message = format!(
        r#"{{"jsonrpc":"2.0","id":"\u0061b","method":"tools/call","params":{{"arguments":{arguments},"name":"echo"}}}}"#
    );
    let response = harness.post(Some(&session), message).await;
    assert_eq!(content_type(response.headers()), "application/json");
    let expected = format!(r#"{{"jsonrpc":"2.0","id":"\u0061b","result":{arguments}}}"#);
    assert_eq!(text(response).await, expected);
    let null = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":null}}"#;
    let answer = body(harness.post(Some(&session), null).await).await;
    assert_eq!(answer["error"], json!({"code": -1, "message": "none"}), "the service's own");
}

// --- calls that take time

#[tokio::test(start_paused = true)]
async fn a_slow_answer_becomes_a_stream_that_ends_with_it() {
    let harness = Harness::new();
    let session = harness.open().await;
    let response = harness.post(Some(&session), call(json!(8), "slow", json!({"x": 1}))).await;
    assert_eq!(content_type(response.headers()), "text/event-stream");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let mut stream = response.into_body().into_data_stream();
    let mut next =
        async || String::from_utf8(stream.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert_eq!(next().await, "id: 1-0\ndata:\n\n", "primed");
    let before = tokio::time::Instant::now();
    assert_eq!(next().await, ": keep-alive\n\n");
    assert_eq!(before.elapsed().as_secs(), 15);
    harness.fake.release.add_permits(1);
    assert_eq!(
        next().await,
        "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":8,\"result\":{\"x\":1}}\n\n"
    );
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_accept_chooses_the_form_and_old_clients_are_not_primed() {
    let harness = Harness::new();
    let opened = harness.post(None, initialize("2025-06-18")).await;
    let old = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let sse = with(
        post(Some(&old), call(json!(1), "echo", json!({}))),
        &[("accept", "text/event-stream")],
    );
    let answer = text(harness.send("ann", sse).await).await;
    assert_eq!(answer, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n");
    let json = with(
        post(Some(&old), call(json!(2), "slow", json!({}))),
        &[("accept", "application/json")],
    );
    let (response, ()) = tokio::join!(harness.send("ann", json), async {
        tokio::time::sleep(Duration::from_secs(40)).await;
        harness.fake.release.add_permits(1);
    });
    assert_eq!(content_type(response.headers()), "application/json");
}

#[tokio::test]
async fn who_takes_events_alone_gets_short_answers_as_one_event_too() {
    let harness = Harness::new();
    let alone = [("accept", "text/event-stream")];
    let opened = harness.send("ann", with(post(None, initialize("2025-11-25")), &alone)).await;
    assert_eq!(content_type(opened.headers()), "text/event-stream");
    let session = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let opened = text(opened).await;
    assert!(opened.starts_with("event: message\ndata: {") && opened.ends_with("}\n\n"));
    for (method, says) in [
        ("ping", r#""result":{}"#),
        ("tools/list", r#""name":"echo""#),
        ("tools/call", "InvalidArguments"),
        ("no/such", "UnknownMethod"),
    ] {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method}).to_string();
        let response = harness.send("ann", with(post(Some(&session), body), &alone)).await;
        assert_eq!(content_type(response.headers()), "text/event-stream", "{method}");
        let said = text(response).await;
        assert!(said.starts_with("event: message\ndata: {") && said.contains(says), "{said}");
    }
    // a refusal by its status is JSON
    let response = harness.send("ann", with(post(Some(&session), "no json"), &alone)).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(content_type(response.headers()), "application/json");
}

#[tokio::test]
async fn the_same_id_twice_in_flight_is_refused_and_the_first_goes_on() {
    let harness = Harness::new();
    let (session, other) = (harness.open().await, harness.open().await);
    let first = harness.post(Some(&session), call(json!(1), "slow", json!({"n": "first"})));
    let others = async {
        harness.logged("call slow 1").await;
        for message in [
            call(json!(1), "echo", json!({"n": "second"})),
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#.to_owned(),
        ] {
            let response = harness.post(Some(&session), message).await;
            assert_eq!(response.status(), StatusCode::BAD_REQUEST);
            assert_eq!(body(response).await["error"]["data"]["reason"], "DuplicateRequestId");
        }
        let text_id = call(json!("1"), "echo", json!({"n": "third"}));
        assert_eq!(body(harness.post(Some(&session), text_id).await).await["result"]["n"], "third");
        let elsewhere = call(json!(1), "echo", json!({"n": "fourth"}));
        let answer = body(harness.post(Some(&other), elsewhere).await).await;
        assert_eq!(answer["result"]["n"], "fourth", "another session's ids are its own");
        harness.fake.release.add_permits(1);
    };
    let (first, ()) = tokio::join!(first, others);
    assert_eq!(body(first).await["result"]["n"], "first");
    let again = body(harness.post(Some(&session), call(json!(1), "echo", json!({}))).await).await;
    assert!(again.get("result").is_some(), "the id is free again");
}

#[rstest]
#[case::early(false)]
#[case::streaming(true)]
#[tokio::test(start_paused = true)]
async fn cancel_reaches_exactly_that_request_and_nothing_is_answered(#[case] streaming: bool) {
    let harness = Harness::new();
    let session = harness.open().await;
    let cancelled = harness.post(Some(&session), call(json!(101), "slow", json!({"n": 1})));
    let kept = harness.post(Some(&session), call(json!("101"), "slow", json!({"n": 2})));
    let canceller = async {
        harness.logged("call slow 101").await;
        harness.logged("call slow \"101\"").await;
        if streaming {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 101, "reason": "no need"}});
        let accepted = harness.post(Some(&session), notice.to_string()).await;
        assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    };
    let (cancelled, kept, ()) = tokio::join!(
        async { text(cancelled.await).await },
        async {
            let response = kept.await;
            harness.logged("cancelled 101").await;
            harness.fake.release.add_permits(1);
            text(response).await
        },
        canceller
    );
    assert!(!cancelled.contains("jsonrpc"), "{cancelled}");
    assert!(kept.contains(r#"{"n":2}"#), "{kept}");
    assert!(!harness.log().contains(&"cancelled \"101\"".to_owned()));
}

#[rstest]
#[case::early(0)]
#[case::streaming(2)]
#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_cancels_nothing(#[case] after: u64) {
    let harness = Harness::new();
    let session = harness.open().await;
    {
        let request = harness.post(Some(&session), call(json!(3), "slow", json!({})));
        if after == 0 {
            tokio::select! {
                _ = request => panic!("answered"),
                () = harness.logged("call slow 3") => {}
            }
        } else {
            let mut stream = request.await.into_body().into_data_stream();
            assert!(stream.next().await.is_some());
        }
    }
    harness.fake.release.add_permits(1);
    harness.logged("ended 3").await;
    assert_eq!(harness.log(), ["call slow 3", "unheard 3", "ended 3"]);
    tokio::time::timeout(LIMIT, harness.store.settle()).await.expect("nothing is left");
}

#[tokio::test(start_paused = true)]
async fn streams_end_when_the_subject_loses_its_right() {
    let harness = Harness::new();
    let session = harness.open().await;
    let stream = harness.send("ann", get(&session)).await;
    let answer = harness.post(Some(&session), call(json!(4), "slow", json!({}))).await;
    harness.fake.ended.cancel();
    assert_eq!(text(stream).await, ": open\n\n");
    assert!(!text(answer).await.contains("result"));
    harness.fake.release.add_permits(1);
    harness.logged("ended 4").await;
}

#[tokio::test(start_paused = true)]
async fn a_json_answer_is_waited_for_no_longer_when_the_subject_loses_its_right() {
    let harness = Arc::new(Harness::new());
    let session = harness.open().await;
    let json = with(
        post(Some(&session), call(json!(4), "slow", json!({}))),
        &[("accept", "application/json")],
    );
    let (response, ()) = tokio::join!(harness.send("ann", json), async {
        harness.logged("call slow 4").await;
        harness.fake.ended.cancel();
    });
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    let refused = body(response).await;
    assert_eq!(
        (&refused["id"], &refused["error"]["data"]["reason"]),
        (&json!(4), &json!("Forbidden"))
    );
    assert!(harness.fake.refused.lock().unwrap().is_empty(), "on record is the call");
    harness.fake.release.add_permits(1);
    harness.logged("ended 4").await;
    assert_eq!(harness.log(), ["call slow 4", "unheard 4", "ended 4"]);
}

// --- the GET stream

#[tokio::test(start_paused = true)]
async fn a_notice_comes_only_when_the_list_really_changed() {
    let harness = Harness::new();
    let session = harness.open().await;
    let response = harness.send("ann", get(&session)).await;
    assert_eq!(content_type(response.headers()), "text/event-stream");
    let mut stream = response.into_body().into_data_stream();
    let mut next =
        async || String::from_utf8(stream.next().await.unwrap().unwrap().to_vec()).unwrap();
    let change = |names: &[&str]| {
        *harness.fake.tools.lock().unwrap() = list(names);
        harness.fake.changes.send_modify(|v| *v += 1);
    };
    const NOTICE: &str = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
    assert_eq!(next().await, ": open\n\n");
    change(&["echo", "slow"]);
    assert_eq!(next().await, ": keep-alive\n\n", "the same list is no change");
    change(&["echo"]);
    assert_eq!(next().await, NOTICE);
    change(&["echo"]);
    assert_eq!(next().await, ": keep-alive\n\n");
    drop(stream);
    change(&["echo", "new"]);
    let again = harness.send("ann", get(&session)).await;
    let mut stream = again.into_body().into_data_stream();
    let mut next =
        async || String::from_utf8(stream.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert_eq!(next().await, ": open\n\n");
    assert_eq!(next().await, NOTICE, "what changed between two streams is told too");
}

#[tokio::test(start_paused = true)]
async fn a_second_stream_replaces_the_first() {
    let harness = Harness::new();
    let session = harness.open().await;
    let first = harness.send("ann", get(&session)).await;
    let second = harness.send("ann", get(&session)).await;
    assert_eq!(text(first).await, ": open\n\n");
    let mut second = second.into_body().into_data_stream();
    assert_eq!(second.next().await.unwrap().unwrap(), ": open\n\n");
    assert_eq!(second.next().await.unwrap().unwrap(), ": keep-alive\n\n", "it stays");
}

#[rstest]
#[case::json(&[("accept", "application/json")], StatusCode::NOT_ACCEPTABLE)]
#[case::version(&[("mcp-protocol-version", "2020-01-01")], StatusCode::BAD_REQUEST)]
#[case::resumption(&[("last-event-id", "1-0")], StatusCode::METHOD_NOT_ALLOWED)]
#[case::session(&[("mcp-session-id", "foreign")], StatusCode::NOT_FOUND)]
#[tokio::test]
async fn a_get_that_opens_no_stream(
    #[case] headers: &[(&'static str, &str)],
    #[case] status: StatusCode,
) {
    let harness = Harness::new();
    let session = harness.open().await;
    let response = harness.send("ann", with(get(&session), headers)).await;
    assert_eq!(response.status(), status);
}

#[tokio::test]
async fn other_http_methods_are_not_allowed() {
    let harness = Harness::new();
    let put = Request::put("/mcp").body(Body::empty()).unwrap();
    let response = harness.send("ann", put).await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.headers()[header::ALLOW], "POST, GET, DELETE");
}

// --- over a real connection

/// Serves the harness on one port until it is dropped.
async fn listen(harness: &Arc<Harness>) -> (std::net::SocketAddr, tokio::task::JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, harness) = (listener.local_addr().unwrap(), harness.clone());
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((tcp, _)) = listener.accept().await {
            let harness = harness.clone();
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let harness = harness.clone();
                async move {
                    Ok::<_, std::convert::Infallible>(
                        harness.send("ann", request.map(Body::new)).await,
                    )
                }
            });
            let serving = http1::Builder::new().serve_connection(TokioIo::new(tcp), service);
            connections.spawn(async move { drop(serving.await) });
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn a_refused_message_leaves_the_connection_open() {
    let harness = Arc::new(Harness::new());
    let session = harness.open().await;
    let (address, _tasks) = listen(&harness).await;
    let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(tcp)).await.unwrap();
    let connection = tokio::spawn(connection);
    let big = call(json!(77), "echo", json!({"a": "x".repeat(9000)}));
    for (message, status) in [
        (big.as_str(), 413),
        ("[]", 400),
        ("nonsense", 400),
        (&call(json!(1), "echo", json!({})), 200),
    ] {
        let request = post(Some(&session), message.to_owned());
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status);
        body(response.map(Body::new)).await;
    }
    drop(client);
    connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_socket_that_closes_during_a_call_is_noticed_and_the_call_goes_on() {
    let harness = Arc::new(Harness::new());
    let session = harness.open().await;
    let (address, _tasks) = listen(&harness).await;
    let mut tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    let message = call(json!(6), "slow", json!({}));
    let request = format!(
        "POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\naccept: {BOTH}\r\nmcp-session-id: {session}\r\ncontent-length: {}\r\n\r\n{message}",
        message.len()
    );
    tcp.write_all(request.as_bytes()).await.unwrap();
    harness.logged("call slow 6").await;
    drop(tcp);
    until(|| harness.fake.heard_gone.load(Ordering::Relaxed)).await;
    harness.fake.release.add_permits(1);
    harness.logged("ended 6").await;
    assert_eq!(harness.log(), ["call slow 6", "unheard 6", "ended 6"]);
}
