//! The routes by oneshot: who gets in, and what bad input gets.

use super::support::*;
use awaken_operator::{
    domain::{
        lifecycle::State,
        reason::Reason,
        record::{Kind, Outcome},
    },
    gateway::auth::Times,
    journal::memory::Memory,
    mcp::Answer,
};
use axum::{
    body::Body,
    http::{HeaderValue, StatusCode},
};
use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tower::ServiceExt as _;

async fn serving() -> (World, Arc<FakePeer>) {
    let (world, peer) = (World::new(), FakePeer::answering(r#"{"content":[]}"#));
    world.cluster.policy(json!([{"attachment": "files", "defaultPermission": "Allow",
        "tools": [{"name": "write", "permission": "Deny"}]}]));
    world.serving(&peer, &["read", "write"]).await;
    (world, peer)
}

#[rstest]
#[case::no_header(None)]
#[case::empty(Some("Bearer "))]
#[case::other_scheme(Some("Basic dG9rZW4="))]
#[case::unknown_token(Some("Bearer nobody"))]
#[tokio::test]
async fn without_a_valid_token_nothing_behind_is_reached(#[case] header: Option<&str>) {
    let (world, peer) = serving().await;
    for (method, path) in [
        ("POST", MCP),
        ("GET", MCP),
        ("DELETE", MCP),
        ("GET", "/v1/sessions/team-a/coder/trace"),
        ("POST", "/v1/sessions/no/such/mcp"),
        ("POST", "/v1/sessions/team-a/%ff/mcp"),
        ("POST", "/v1/sessions/%ff/coder/mcp/files"),
        ("GET", "/v1/sessions/team-a/%ff/trace"),
    ] {
        let mut request = request(method, path, None);
        if let Some(header) = header {
            request.headers_mut().insert("authorization", HeaderValue::from_str(header).unwrap());
        }
        let reply = world.send(request).await;
        assert_eq!(
            (reply.status, &*reply.reason()),
            (StatusCode::UNAUTHORIZED, "Unauthenticated"),
            "{method} {path}"
        );
        let challenge = reply.headers["www-authenticate"].to_str().unwrap();
        assert!(challenge.starts_with("Bearer ") && challenge.contains("error="), "{challenge}");
        assert_eq!(reply.json()["error"]["type"], "authentication_error");
    }
    assert_eq!(world.reviews.accesses.load(Ordering::SeqCst), 0);
    assert!(peer.calls().is_empty() && world.call_records().is_empty());
}

#[tokio::test]
async fn two_authorization_headers_are_refused_and_the_schemes_case_does_not_matter() {
    let (world, _) = serving().await;
    let mut two = request("GET", "/v1/sessions/team-a/coder/trace", Some(TOKEN));
    two.headers_mut().append("authorization", HeaderValue::from_static("Bearer token-of-runtime"));
    assert_eq!(world.send(two).await.status, StatusCode::UNAUTHORIZED);
    let mut lower = request("GET", "/v1/sessions/team-a/coder/trace", None);
    lower
        .headers_mut()
        .append("authorization", HeaderValue::from_static("bearer token-of-runtime"));
    assert_eq!(world.send(lower).await.status, StatusCode::OK);
}

#[tokio::test]
async fn what_the_caller_may_not_know_of_looks_like_what_is_not_there() {
    let (world, _) = serving().await;
    let bodies: Vec<_> = [
        (MCP, OTHER_TOKEN),
        ("/v1/sessions/team-a/nothing/mcp", OTHER_TOKEN),
        ("/v1/sessions/team-a/nothing/mcp", TOKEN),
        ("/v1/sessions/team-z/coder/mcp", TOKEN),
        ("/v1/sessions/team-a/coder/mcp/nothing", TOKEN),
        ("/v1/sessions/team-a/coder", TOKEN),
        ("/v1/mcp", TOKEN),
        ("/", TOKEN),
        ("/v1/sessions//coder/mcp", TOKEN),
        ("/v1/sessions/team-a/coder/mcp/files/more", TOKEN),
        ("/v1/sessions/team-a/%ff/mcp", TOKEN),
        ("/v1/sessions/team-a/coder/mcp/%ff", TOKEN),
    ]
    .into_iter()
    .map(|(path, token)| post(path, token, None, "{}"))
    .collect();
    let mut seen = vec![];
    for request in bodies {
        let reply = world.send(request).await;
        assert_eq!((reply.status, &*reply.reason()), (StatusCode::NOT_FOUND, "NotFound"));
        seen.push(reply.text);
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "one shape: {seen:?}");
    let reply = world.send(post("/v1/sessions/team-a/coder/trace", TOKEN, None, "{}")).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND, "no such method there");
}

#[tokio::test]
async fn who_may_know_but_not_use_gets_403() {
    let (world, peer) = serving().await;
    for (path, word) in
        [(MCP, "create sessions/mcp"), ("/v1/sessions/team-a/coder/trace", "get sessions/trace")]
    {
        let reply = match path {
            MCP => world.send(post(path, KNOWING_TOKEN, None, "{}")).await,
            _ => world.send(request("GET", path, Some(KNOWING_TOKEN))).await,
        };
        assert_eq!((reply.status, &*reply.reason()), (StatusCode::FORBIDDEN, "Forbidden"));
        assert!(reply.text.contains(word), "{}", reply.text);
    }
    assert!(peer.calls().is_empty());
}

#[tokio::test]
async fn reviews_are_shared_and_remembered() {
    let (world, _) = serving().await;
    let world = Arc::new(world);
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let world = world.clone();
        all.spawn(async move { world.send(post(MCP, TOKEN, None, "{}")).await.status });
    }
    all.join_all().await;
    assert_eq!(world.reviews.tokens.load(Ordering::SeqCst), 1);
    assert_eq!(world.reviews.accesses.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        world.send(post(MCP, "nobody", None, "{}")).await;
    }
    assert_eq!(world.reviews.tokens.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn where_nobody_can_review_nobody_passes_and_nothing_is_remembered() {
    let (world, _) = serving().await;
    world.reviews.down.store(true, Ordering::SeqCst);
    let reply = world.send(post(MCP, TOKEN, None, "{}")).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply.headers.contains_key("retry-after"));
    world.reviews.down.store(false, Ordering::SeqCst);
    world.open(MCP).await;
}

#[rstest]
#[case::host("host", "evil.test")]
#[case::origin("origin", "https://evil.test")]
#[case::null_origin("origin", "null")]
#[tokio::test]
async fn a_foreign_host_or_origin_is_refused_before_any_work(
    #[case] name: &'static str,
    #[case] value: &'static str,
) {
    let (world, _) = serving().await;
    for path in [MCP, "/v1/sessions/team-a/coder/trace", "/nothing"] {
        let mut request = post(path, TOKEN, None, "{}");
        request.headers_mut().insert(name, HeaderValue::from_static(value));
        assert_eq!(world.send(request).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(world.reviews.tokens.load(Ordering::SeqCst), 0);
}

#[rstest]
#[case::not_json("{", -32700, "")]
#[case::batch(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]"#, -32600, "BatchRefused")]
#[case::empty_batch("[]", -32600, "BatchRefused")]
#[case::repeated_in_envelope(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, -32600, "RepeatedKey")]
#[case::repeated_in_params(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#, -32602, "RepeatedKey")]
#[case::repeated_in_meta(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp__files__read","_meta":{"k":{"a":1,"\u0061":2}}}}"#, -32602, "RepeatedKey")]
#[case::repeated_elsewhere(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp__files__read","x":[{"a":1,"a":2}]}}"#, -32602, "RepeatedKey")]
#[case::unknown_method(r#"{"jsonrpc":"2.0","id":1,"method":"resources/list"}"#, -32601, "UnknownMethod")]
#[case::unknown_tool(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nothing"}}"#, -32602, "UnknownTool")]
#[case::denied_tool(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp__files__write"}}"#, -32602, "UnknownTool")]
#[case::bad_cursor(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"bogus"}}"#, -32602, "InvalidArguments")]
#[case::params_no_object(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":7}"#, -32602, "")]
#[tokio::test]
async fn bad_messages_get_a_json_rpc_error_and_are_on_record(
    #[case] body: &str,
    #[case] code: i64,
    #[case] reason: &str,
) {
    let (world, peer) = serving().await;
    let session = world.open(MCP).await;
    let reply = world.send(post(MCP, TOKEN, Some(&session), body)).await;
    assert_eq!(reply.json()["error"]["code"].as_i64(), Some(code), "{}", reply.text);
    if !reason.is_empty() {
        assert_eq!(reply.reason(), reason);
    }
    assert!(!reply.text.contains("about write"));
    assert!(peer.calls().is_empty());
    let records = world.call_records();
    assert_eq!(records.len(), 1, "one refusal on record: {records:?}");
    assert_eq!(records[0].entry.kind, Kind::Refusal);
    assert_eq!(world.tools(&session).await, ["mcp__files__read"], "the session lives on");
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_json_rpc_error() {
    let (world, peer) = serving().await;
    let session = world.open(MCP).await;
    let big = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"mcp__files__read","arguments":{{"a":"{}"}}}}}}"#,
        "x".repeat(70 << 10)
    );
    let reply = world.send(post(MCP, TOKEN, Some(&session), &big)).await;
    assert_eq!(reply.reason(), "MessageTooLarge");
    assert!(reply.text.contains("65536"), "names the limit: {}", reply.text);
    assert!(peer.calls().is_empty());
    assert_eq!(world.tools(&session).await, ["mcp__files__read"]);
}

#[tokio::test]
async fn one_server_under_its_own_names_is_under_the_same_gate_and_journal() {
    let (world, peer) = serving().await;
    let path = "/v1/sessions/team-a/coder/mcp/files";
    for path in [path.to_owned(), format!("{path}/")] {
        let session = world.open(&path).await;
        let ask = |method: &str, params: Value| {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
            world.send(post(&path, TOKEN, Some(&session), &body.to_string()))
        };
        let list = ask("tools/list", json!({})).await.json();
        let tools = list["result"]["tools"].as_array().unwrap();
        assert_eq!((tools.len(), tools[0]["name"].as_str()), (1, Some("read")));
        assert!(ask("tools/call", json!({"name": "read"})).await.json().get("result").is_some());
        for name in ["write", "mcp__files__read"] {
            assert_eq!(ask("tools/call", json!({"name": name})).await.reason(), "UnknownTool");
        }
    }
    assert_eq!(peer.calls().len(), 2);
    assert_eq!(world.call_records().len(), 8);
}

#[tokio::test]
async fn an_mcp_session_belongs_to_its_endpoint_and_subject() {
    let (world, _) = serving().await;
    let session = world.open(MCP).await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let other =
        world.send(post("/v1/sessions/team-a/coder/mcp/files", TOKEN, Some(&session), body)).await;
    assert_eq!((other.status, &*other.reason()), (StatusCode::NOT_FOUND, "UnknownMcpSession"));
    let missing = world.send(post(MCP, TOKEN, None, body)).await;
    assert_eq!(missing.status, StatusCode::BAD_REQUEST);
    // a trailing slash is the same endpoint
    let slash = world.send(post(&format!("{MCP}/"), TOKEN, Some(&session), body)).await;
    assert_eq!(slash.status, StatusCode::OK);
}

#[tokio::test]
async fn the_trace_pages_and_refuses_what_it_does_not_know() {
    let (world, _) = serving().await;
    let session = world.open(MCP).await;
    for _ in 0..3 {
        world.call(&session, "mcp__files__read", json!({"a": 1})).await;
    }
    let trace = "/v1/sessions/team-a/coder/trace";
    let whole = world.send(request("GET", trace, Some(TOKEN))).await.json();
    let records = whole["records"].as_array().unwrap().clone();
    assert_eq!(records.len(), world.records().len());
    assert!(whole.get("next").is_none());
    let outcome = records.iter().find(|r| r["kind"] == "Outcome").unwrap();
    for field in [
        "seq",
        "at",
        "kind",
        "call",
        "subject",
        "session",
        "attachment",
        "generation",
        "tool",
        "outcome",
        "result",
        "previous",
        "hash",
    ] {
        assert!(outcome.get(field).is_some(), "{field}: {outcome}");
    }
    let (mut after, mut paged) = (String::new(), vec![]);
    loop {
        let path = format!("{trace}?limit=2{after}");
        let page = world.send(request("GET", &path, Some(TOKEN))).await.json();
        paged.extend(page["records"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(paged, records);
    for bad in ["limit=0", "limit=1001", "limit=x", "after=-1", "follow=true", "after=1&after=2"] {
        let reply = world.send(request("GET", &format!("{trace}?{bad}"), Some(TOKEN))).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{bad}");
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
    world.journal.break_with(Some("gone"));
    let reply = world.send(request("GET", trace, Some(TOKEN))).await;
    assert_eq!(
        (reply.status, reply.json()["error"]["type"].as_str()),
        (StatusCode::INTERNAL_SERVER_ERROR, Some("api_error"))
    );
}

#[tokio::test]
async fn nothing_new_while_draining() {
    let (world, _) = serving().await;
    world.gateway.draining.store(true, Ordering::SeqCst);
    let reply = world.send(post(MCP, TOKEN, None, "{}")).await;
    assert_eq!((reply.status, &*reply.reason()), (StatusCode::SERVICE_UNAVAILABLE, "NotServing"));
    let reply = world.send(request("GET", "/v1/sessions/team-a/coder/trace", Some(TOKEN))).await;
    assert_eq!(reply.status, StatusCode::OK, "the trace can be read to the end");
}

#[tokio::test]
async fn servers_of_one_session_do_not_see_each_other() {
    let world = World::new();
    let (files, issues) =
        (FakePeer::answering(r#"{"from":"files"}"#), FakePeer::answering(r#"{"from":"issues"}"#));
    world.cluster.policy(json!([
        {"attachment": "files", "defaultPermission": "Allow"},
        {"attachment": "issues", "tools": [{"name": "read", "permission": "Allow"}]}]));
    world.realizer.serve("files", &files, &["read", "b__c"]);
    world.realizer.serve("issues", &issues, &["read", "secret_tool"]);
    world.place(1, &[entry(1, "files", State::Active), entry(2, "issues", State::Active)]);
    world.published(1).await;
    world.published(2).await;
    let session = world.open(MCP).await;
    let names = world.tools(&session).await;
    assert_eq!(names.len(), 3, "{names:?}");
    let reply = world.call(&session, "mcp__issues__read", json!({})).await;
    assert_eq!(reply["result"]["from"], "issues");
    let reply = world.call(&session, "mcp__issues__b__c", json!({})).await;
    assert_eq!(reply["error"]["data"]["reason"], "UnknownTool");
    let last = world.call_records().pop().unwrap().entry;
    assert_eq!((last.outcome, last.reason), (Some(Outcome::Denied), Some(Reason::UnknownTool)));
}

fn forgetful() -> Times {
    let soon = Duration::from_millis(1);
    Times { valid: soon, invalid: soon, access: soon }
}

async fn open_stream(world: &World, session: &str) -> Body {
    let mut listen = request("GET", MCP, Some(TOKEN));
    listen.headers_mut().insert("accept", HeaderValue::from_static("text/event-stream"));
    listen.headers_mut().insert("mcp-session-id", HeaderValue::from_str(session).unwrap());
    let response = world.router.clone().oneshot(listen).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    // from here on the stream knows which list the client has
    assert!(hear(&mut body, "open").await);
    body
}

/// Reads a stream until it ends or the text is there.
async fn hear(body: &mut Body, text: &str) -> bool {
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            let data = frame.into_data().unwrap_or_default();
            if String::from_utf8_lossy(&data).contains(text) {
                return true;
            }
        }
        false
    };
    tokio::time::timeout(Duration::from_secs(5), read).await.expect("neither heard nor ended")
}

#[tokio::test]
async fn an_open_stream_ends_when_its_token_is_revoked_and_not_when_nobody_can_review() {
    let world = World::build(Memory::new(), "inc-1", forgetful());
    world.cluster.policy(allow_all());
    world.serving(&FakePeer::answering("{}"), &["read"]).await;
    let session = world.open(MCP).await;
    let mut stream = open_stream(&world, &session).await;
    world.reviews.down.store(true, Ordering::SeqCst);
    let before = world.reviews.tokens.load(Ordering::SeqCst);
    until("some reviews", || {
        (world.reviews.tokens.load(Ordering::SeqCst) > before + 2).then_some(())
    })
    .await;
    world.reviews.down.store(false, Ordering::SeqCst);
    world.cluster.policy(json!([{"attachment": "files", "defaultPermission": "Deny"}]));
    assert!(hear(&mut stream, "list_changed").await, "still open");
    world.reviews.revoked.store(true, Ordering::SeqCst);
    assert!(!hear(&mut stream, "list_changed").await, "closed");
    assert_eq!(world.send(post(MCP, TOKEN, Some(&session), "{}")).await.status, 401);
    drop(stream);
    world.gateway.reviews.close();
    tokio::time::timeout(Duration::from_secs(5), world.gateway.reviews.wait()).await.unwrap();
}

#[tokio::test]
async fn a_notice_comes_only_when_the_visible_list_changed() {
    let (world, _) = serving().await;
    let session = world.open(MCP).await;
    assert_eq!(world.tools(&session).await.len(), 1);
    let mut stream = open_stream(&world, &session).await;
    let set = |write: &str, hidden: &str| {
        json!([{"attachment": "files", "defaultPermission": "Allow", "tools": [
            {"name": "write", "permission": write}, {"name": "hidden", "permission": hidden}]}])
    };
    world.cluster.policy(set("Deny", "Allow"));
    world.cluster.policy(set("Deny", "Deny"));
    let quiet = tokio::time::timeout(Duration::from_millis(100), hear(&mut stream, "list_changed"));
    assert!(quiet.await.is_err(), "nothing that is visible changed");
    world.cluster.policy(set("Allow", "Deny"));
    assert!(hear(&mut stream, "list_changed").await);
}

#[tokio::test]
async fn when_the_gateway_stops_streams_end_and_answers_still_come() {
    let finish = Arc::new(tokio::sync::Notify::new());
    let gate = finish.clone();
    let peer = FakePeer::new(move |request| {
        let gate = gate.clone();
        Box::pin(async move {
            if request.method == "tools/call" {
                gate.notified().await;
            }
            Ok(Answer::Result(raw(r#"{"content":["late"]}"#)))
        })
    });
    let world = World::new();
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    let session = world.open(MCP).await;
    let mut stream = open_stream(&world, &session).await;
    let body =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp__files__read"}}"#;
    // longer than a second, so that the answer comes as a stream
    let response =
        world.router.clone().oneshot(post(MCP, TOKEN, Some(&session), body)).await.unwrap();
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let mut answer = response.into_body();
    world.gateway.draining.store(true, Ordering::SeqCst);
    world.sessions.close_all();
    assert!(!hear(&mut stream, "never").await, "the stream for notices ends");
    finish.notify_one();
    assert!(hear(&mut answer, "late").await, "the call ends by itself");
    assert_eq!(world.call_records()[1].entry.outcome, Some(Outcome::Succeeded));
}
