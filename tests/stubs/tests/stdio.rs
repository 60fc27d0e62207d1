//! The stdio stub, driven raw over its pipes.

#![allow(clippy::unwrap_used, reason = "a test ends where it goes wrong")]

use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

struct Driven {
    child: Child,
    out: BufReader<ChildStdout>,
}

fn start(script: &Value) -> Driven {
    let mut child = Command::new(env!("CARGO_BIN_EXE_awaken-stub"))
        .args(["stdio", &script.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    Driven { child, out }
}

impl Driven {
    async fn say(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(format!("{text}\n").as_bytes()).await.unwrap();
    }

    async fn call(&mut self, id: u64, tool: &str, arguments: Value) {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "t"}});
        let text = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        self.say(&text.to_string()).await;
    }

    async fn line(&mut self) -> Vec<u8> {
        let mut line = vec![];
        let read = self.out.read_until(b'\n', &mut line);
        tokio::time::timeout(Duration::from_secs(20), read).await.expect("a line in time").unwrap();
        line
    }

    async fn message(&mut self) -> Value {
        serde_json::from_slice(&self.line().await).unwrap()
    }

    async fn end(mut self) -> (Option<i32>, String) {
        drop(self.child.stdin.take());
        let wait = self.child.wait();
        let status = tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap().unwrap();
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
        (status.code(), stderr)
    }
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"a-1","method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#;

#[tokio::test]
async fn a_plain_script_answers_and_ends_with_its_input() {
    let mut stub = start(&json!({}));
    stub.say(INITIALIZE).await;
    let hello = stub.message().await;
    assert_eq!(
        (&hello["id"], &hello["result"]["protocolVersion"]),
        (&json!("a-1"), &json!("2025-06-18"))
    );
    stub.call(7, "echo", json!({"n": 1})).await;
    assert_eq!(stub.message().await["result"]["structuredContent"], json!({"n": 1}));
    stub.say(r#"{"jsonrpc":"2.0","id":8,"method":"nope"}"#).await;
    assert_eq!(stub.message().await["error"]["code"], -32601);
    stub.say("not json").await;
    assert_eq!(stub.message().await["error"]["code"], -32700);
    assert_eq!(stub.end().await.0, Some(0));
}

#[tokio::test]
async fn echo_keeps_every_digit() {
    let mut stub = start(&json!({}));
    let arguments = r#"{"n":98765432109876543210,"x":1.50,"e":"🦀"}"#;
    stub.say(&format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    ))
    .await;
    let line = String::from_utf8(stub.line().await).unwrap();
    assert!(line.contains(&format!(r#""structuredContent":{arguments}"#)), "{line}");
}

#[tokio::test]
async fn noise_surrounds_each_message() {
    let mut stub =
        start(&json!({"noise": {"banner_lines": 2, "bom": true, "crlf": true, "blank": true,
        "invalid_utf8": true, "text": true}}));
    for _ in 0..2 {
        assert!(stub.line().await.starts_with(b"banner"));
    }
    stub.say(INITIALIZE).await;
    assert!(stub.line().await.starts_with(b"log: "));
    assert_eq!(stub.line().await, b"\n");
    assert_eq!(stub.line().await, b"\xc3\x28\n");
    let line = stub.line().await;
    assert!(line.starts_with("\u{feff}{".as_bytes()) && line.ends_with(b"}\r\n"));
}

#[tokio::test]
async fn a_slow_call_does_not_hold_up_a_fast_one_unless_single_threaded() {
    for (single, first) in [(false, 2), (true, 1)] {
        let mut stub = start(&json!({"single_threaded": single}));
        stub.call(1, "sleep", json!({"ms": 300})).await;
        stub.call(2, "echo", json!({})).await;
        assert_eq!(stub.message().await["id"], first);
    }
}

#[tokio::test]
async fn a_cancelled_call_is_not_answered_and_is_remembered() {
    let mut stub = start(&json!({}));
    stub.call(1, "hang", json!({})).await;
    stub.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#)
        .await;
    stub.call(2, "seen", json!({})).await;
    // Messages are handled side by side, so `seen` may run before the cancellation: ask again.
    for id in 3..200 {
        let answer = stub.message().await;
        let seen: Value =
            serde_json::from_str(answer["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
        if seen["cancelled"] == json!(["1"]) {
            return;
        }
        stub.call(id, "seen", json!({})).await;
    }
    panic!("the cancellation was not seen");
}

#[tokio::test]
async fn it_exits_as_the_script_says() {
    let mut stub = start(&json!({}));
    stub.call(1, "exit", json!({"code": 3, "stderr": "last words"})).await;
    assert_eq!(stub.end().await, (Some(3), "last words\n".to_owned()));

    let stub = start(&json!({"need_env": "SURELY_NOT_SET"}));
    let (code, stderr) = stub.end().await;
    assert_eq!(code, Some(2));
    assert!(stderr.contains("SURELY_NOT_SET"));

    let mut stub = start(&json!({"handshake": {"mode": "exit", "exit_code": 4}}));
    stub.say(INITIALIZE).await;
    assert_eq!(stub.end().await.0, Some(4));

    let stub = start(&json!({"panic": true}));
    assert_eq!(stub.end().await.0, Some(101));

    let mut stub = start(&json!({"exit_on_cancel": 5}));
    stub.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#)
        .await;
    assert_eq!(stub.line().await, b"");
    assert_eq!(stub.end().await.0, Some(5));

    let mut stub = start(&json!({"exit_after_ms": 50, "exit_code": 6}));
    assert_eq!(stub.line().await, b"");
    assert_eq!(stub.end().await.0, Some(6));
}

#[tokio::test]
async fn handshakes_go_wrong_as_the_script_says() {
    let cases = [
        (json!({"version": "1999-01-01"}), "1999-01-01"),
        (json!({"mode": "error"}), "initialize refused"),
        (json!({"mode": "garbage"}), "no protocol"),
    ];
    for (handshake, expected) in cases {
        let mut stub = start(&json!({"handshake": handshake}));
        stub.say(INITIALIZE).await;
        let line = String::from_utf8(stub.line().await).unwrap();
        assert!(line.contains(expected), "{line}");
    }
    let mut stub = start(&json!({"handshake": {"once": true}}));
    for part in ["result", "error"] {
        stub.say(INITIALIZE).await;
        assert!(stub.message().await.get(part).is_some());
    }
    let mut stub = start(&json!({"handshake": {"mode": "silent"}}));
    stub.say(INITIALIZE).await;
    stub.say(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).await;
    assert_eq!(stub.message().await["id"], 2);
}

#[tokio::test]
async fn the_counter_outlives_the_process_in_its_folder() {
    let dir = std::env::temp_dir().join(format!("awaken-stub-count-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let script = json!({"state": dir});
    for expected in ["1", "2"] {
        let mut stub = start(&script);
        stub.call(1, "count", json!({})).await;
        assert_eq!(stub.message().await["result"]["content"][0]["text"], expected);
    }
    let mut stub = start(&script);
    stub.call(1, "count_read", json!({})).await;
    assert_eq!(stub.message().await["result"]["content"][0]["text"], "2");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn progress_and_questions_go_to_the_client() {
    let mut stub = start(&json!({}));
    stub.call(1, "progress", json!({"steps": 2})).await;
    for step in 1..=2 {
        let note = stub.message().await;
        assert_eq!(
            (&note["params"]["progressToken"], &note["params"]["progress"]),
            (&json!("t"), &json!(step))
        );
    }
    assert_eq!(stub.message().await["id"], 1);
    stub.call(2, "ask", json!({"method": "roots/list"})).await;
    let question = stub.message().await;
    assert_eq!(question["method"], "roots/list");
    stub.say(
        &json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -32601}}).to_string(),
    )
    .await;
    assert!(
        stub.message().await["result"]["content"][0]["text"].as_str().unwrap().contains("-32601")
    );
}

#[tokio::test]
async fn half_an_answer_then_the_end() {
    let mut stub = start(&json!({}));
    stub.call(1, "cut", json!({})).await;
    let line = stub.line().await;
    assert!(!line.is_empty() && !line.ends_with(b"\n"));
    assert_eq!(stub.end().await.0, Some(0));
}

#[tokio::test]
async fn a_flood_goes_out_before_anything_is_read() {
    let mut stub = start(&json!({"noise": {"flood_bytes": 262_144}}));
    stub.say(INITIALIZE).await;
    let mut bytes = 0;
    loop {
        let line = stub.line().await;
        bytes += line.len();
        if !line.windows(5).any(|w| w == b"flood") {
            break;
        }
    }
    assert!(bytes > 262_144);
}

#[tokio::test]
async fn a_grandchild_lives_until_somebody_ends_it() {
    let mut stub = start(&json!({}));
    stub.call(1, "spawn", json!({"own_group": true})).await;
    let answer = stub.message().await;
    let pid = answer["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(std::path::Path::new("/proc").join(&pid).exists());
    Command::new("kill").arg(&pid).status().await.unwrap();
}

#[tokio::test]
async fn changed_tools_are_told_and_listed() {
    let mut stub = start(&json!({"tools": ["echo", "change_tools"]}));
    stub.call(1, "change_tools", json!({"tools": ["full"]})).await;
    let both = [stub.message().await, stub.message().await];
    assert!(both.iter().any(|m| m["method"] == "notifications/tools/list_changed"));
    stub.say(r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#).await;
    let line = String::from_utf8(stub.line().await).unwrap();
    assert!(line.contains(awaken_stub::tools::FULL) && !line.contains("\"echo\""));
}
