//! The HTTP stub, in this process, driven by the small client and by raw sockets.

#![allow(clippy::unwrap_used, reason = "a test ends where it goes wrong")]

use awaken_stub::{
    http::Stub,
    mcp_client::{Client, text_of},
    script::Script,
};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn stub(script: Value) -> Stub {
    Stub::start(serde_json::from_value::<Script>(script).unwrap()).await
}

async fn client(stub: &Stub) -> Client {
    let mut client = Client::new(&stub.url(), None).unwrap();
    client.initialize().await.unwrap();
    client
}

#[tokio::test]
async fn a_plain_script_serves_tools() {
    let stub = stub(json!({})).await;
    let mut client = client(&stub).await;
    assert!(client.tools().await.unwrap().contains(&"full".to_owned()));
    let answer = client.call("echo", &json!({"a": "é"})).await.unwrap();
    assert_eq!(answer["result"]["structuredContent"], json!({"a": "é"}));
    let methods: Vec<_> = stub.seen().iter().filter_map(|s| s.rpc_method()).collect();
    assert_eq!(methods, ["initialize", "notifications/initialized", "tools/list", "tools/call"]);
    assert!(stub.seen()[1].header("mcp-session-id").is_some());
    assert_eq!(client.send(Method::GET, "").await.unwrap().status, 405);
    assert_eq!(client.send(Method::DELETE, "").await.unwrap().status, 200);
    assert_eq!(client.send(Method::DELETE, "").await.unwrap().status, 404);
}

#[tokio::test]
async fn path_and_query_are_recorded_as_written() {
    let stub = stub(json!({})).await;
    let url = stub.url().replace("/mcp", "/mcp/?k=a%2Fb");
    let mut client = Client::new(&url, Some("t")).unwrap();
    client.initialize().await.unwrap();
    assert_eq!(stub.seen()[0].uri, "/mcp/?k=a%2Fb");
    assert_eq!(stub.seen()[0].header("authorization"), Some("Bearer t"));
}

#[tokio::test]
async fn the_bearer_can_be_flipped() {
    let stub = stub(json!({"http": {"bearer": "one"}})).await;
    let mut good = Client::new(&stub.url(), Some("one")).unwrap();
    good.initialize().await.unwrap();
    stub.patch(&json!({"http": {"bearer": "two"}}));
    assert_eq!(good.request("tools/list", &json!({})).await.unwrap().status, 401);
    stub.patch(&json!({"http": {"bearer": "three", "bearer_header": "x-key", "refuse_with": 403}}));
    assert_eq!(good.request("ping", &json!({})).await.unwrap().status, 403);
    good.headers.push(("x-key".to_owned(), "three".to_owned()));
    assert_eq!(good.request("ping", &json!({})).await.unwrap().status, 200);
}

#[tokio::test]
async fn other_answers_than_mcp() {
    let cases = [
        (json!({"status": 503, "retry_after": 7}), 503, "as the script says"),
        (json!({"redirect": "http://127.0.0.1:1/x"}), 302, "over there"),
        (json!({"redirect": "http://127.0.0.1:1/x", "status": 308}), 308, "over there"),
        (json!({"html": true}), 200, "<!doctype html>"),
        (json!({"body": "{\"hello\":1}"}), 200, "{\"hello\":1}"),
    ];
    for (http, status, text) in cases {
        let stub = stub(json!({"http": http})).await;
        let mut client = Client::new(&stub.url(), None).unwrap();
        let reply = client.request("ping", &json!({})).await.unwrap();
        assert_eq!(reply.status, status);
        assert!(reply.text().contains(text), "{}", reply.text());
    }
    let stub = stub(json!({"http": {"status": 429, "status_first": 2, "sessions": false}})).await;
    let mut client = Client::new(&stub.url(), None).unwrap();
    for status in [429, 429, 200] {
        assert_eq!(client.request("ping", &json!({})).await.unwrap().status, status);
    }
}

#[tokio::test]
async fn a_session_is_lost_after_so_many_requests() {
    let stub = stub(json!({"http": {"session_requests": 3}})).await;
    let mut client = client(&stub).await;
    for status in [200, 200, 404, 404] {
        assert_eq!(client.request("ping", &json!({})).await.unwrap().status, status);
    }
    client.initialize().await.unwrap();
    assert_eq!(client.request("ping", &json!({})).await.unwrap().status, 200);
    stub.forget_sessions();
    assert_eq!(client.request("ping", &json!({})).await.unwrap().status, 404);
    client.session = None;
    assert_eq!(client.request("ping", &json!({})).await.unwrap().status, 400);
}

#[tokio::test]
async fn event_streams_in_every_form_mean_the_same() {
    for newline in ["lf", "crlf", "cr"] {
        for form in [
            json!({}),
            json!({"pretty": true, "tight": true}),
            json!({"piece_bytes": 3}),
            json!({"split_newline": true, "prime": true}),
        ] {
            let stub = stub(json!({"http": {"answer": "sse", "newline": newline}})).await;
            stub.patch(&json!({ "http": form }));
            let mut client = client(&stub).await;
            let answer = client.call("echo", &json!({"e": "🦀"})).await.unwrap();
            assert_eq!(
                answer["result"]["structuredContent"],
                json!({"e": "🦀"}),
                "{newline} {form}"
            );
        }
    }
}

#[tokio::test]
async fn an_event_of_3_mib_comes_whole() {
    let stub = stub(json!({"http": {"answer": "sse"}})).await;
    let answer = client(&stub).await.call("big", &json!({"bytes": 3 << 20})).await.unwrap();
    assert_eq!(text_of(&answer).len(), (3 << 20) - 80);
}

#[tokio::test]
async fn progress_turns_an_answer_into_a_stream() {
    let stub = stub(json!({})).await;
    let params = json!({"name": "progress", "arguments": {}, "_meta": {"progressToken": 5}});
    let reply = client(&stub).await.request("tools/call", &params).await.unwrap();
    let messages = reply.messages().unwrap();
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[1]["params"], json!({"progressToken": 5, "progress": 2, "total": 2}));
}

#[tokio::test]
async fn cut_streams_are_cut() {
    for answer in ["json", "sse"] {
        let stub = stub(json!({"http": {"answer": answer}})).await;
        let mut client = client(&stub).await;
        assert!(client.call("cut", &json!({})).await.is_err());
        assert!(client.call("count", &json!({"then": "cut"})).await.is_err());
        assert_eq!(text_of(&client.call("count_read", &json!({})).await.unwrap()), "1");
    }
}

#[tokio::test]
async fn a_get_stream_carries_what_is_said_unasked() {
    let stub = stub(json!({"http": {"get_stream": true, "sessions": false}})).await;
    let mut socket = TcpStream::connect(stub.address).await.unwrap();
    socket
        .write_all(b"GET /mcp HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n")
        .await
        .unwrap();
    let mut text = String::new();
    while !text.contains("\r\n\r\n") {
        let mut part = [0; 1024];
        let n = socket.read(&mut part).await.unwrap();
        text.push_str(std::str::from_utf8(&part[..n]).unwrap());
    }
    Client::new(&stub.url(), None).unwrap().call("change_tools", &json!({})).await.unwrap();
    while !text.contains("list_changed") {
        let mut part = [0; 1024];
        let n = socket.read(&mut part).await.unwrap();
        text.push_str(std::str::from_utf8(&part[..n]).unwrap());
    }
}

#[tokio::test]
async fn control_routes_show_and_change() {
    let stub = stub(json!({})).await;
    client(&stub).await;
    let at = |path: &str| Client::new(&stub.url().replace("/mcp", path), None).unwrap();
    let seen: Vec<Value> =
        serde_json::from_slice(&at("/__seen").send(Method::GET, "").await.unwrap().body).unwrap();
    assert_eq!(seen.len(), 2);
    at("/__reset").send(Method::POST, "").await.unwrap();
    assert!(stub.seen().is_empty());
    let reply = at("/__script").send(Method::POST, r#"{"http":{"html":true}}"#).await.unwrap();
    assert_eq!(reply.status, 200);
    assert!(stub.server.engine.script().http.html);
    assert_eq!(at("/__script").send(Method::POST, r#"{"nope":1}"#).await.unwrap().status, 400);
}

#[tokio::test]
async fn the_load_generator_counts_calls_over_both_transports() {
    let stub = stub(json!({})).await;
    let options = |url: Option<String>, tool: &str| awaken_stub::load::Options {
        url,
        token_file: None,
        tool: tool.to_owned(),
        arguments: r#"{"bytes":2048}"#.to_owned(),
        callers: 4,
        millis: 100,
        warm: 1,
    };
    let good = awaken_stub::load::run(options(Some(stub.url()), "big")).await.unwrap();
    assert!(good.calls > 0 && good.errors == 0 && good.p50_us <= good.p99_us);
    let bad = awaken_stub::load::run(options(Some(stub.url()), "fail")).await.unwrap();
    assert!(bad.calls == 0 && bad.errors > 0 && bad.first_error.is_some());
    let program = awaken_stub::binary();
    let out = tokio::process::Command::new(program)
        .args(["load", "--callers", "2", "--millis", "100"])
        .output()
        .await
        .unwrap();
    let figures: awaken_stub::load::Figures = serde_json::from_slice(&out.stdout).unwrap();
    assert!(figures.calls > 0 && figures.errors == 0);
}
