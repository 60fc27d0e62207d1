//! The one way for a call: what is on record when, and what the caller gets.

use super::support::*;
use awaken_operator::{
    domain::{
        lifecycle::State,
        reason::Reason,
        record::{Kind, Outcome},
    },
    gateway::host::realize::Note,
    journal::{Append, memory::Memory},
    mcp::{Answer, ConnectionFailure, Exit, PeerError, Sent},
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

fn reason(reply: &Value) -> &str {
    reply["error"]["data"]["reason"].as_str().unwrap_or_default()
}

fn too_large(sent: Sent) -> PeerError {
    PeerError::TooLarge { sent, limit: 4096 }
}

fn failing(error: PeerError) -> Arc<FakePeer> {
    FakePeer::new(move |request| {
        let error = error.clone();
        Box::pin(async move {
            if request.method == "tools/call" { Err(error) } else { Ok(Answer::Result(raw("{}"))) }
        })
    })
}

async fn world(peer: &Arc<FakePeer>) -> (World, String) {
    let world = World::new();
    world.cluster.policy(json!([{"attachment": "files", "defaultPermission": "Allow",
        "tools": [{"name": "write", "permission": "Deny"}]}]));
    world.serving(peer, &["read", "write"]).await;
    let session = world.open(MCP).await;
    (world, session)
}

#[tokio::test]
async fn intent_before_dispatch_outcome_before_answer() {
    let journal = Memory::new();
    let seen = journal.clone();
    let peer = FakePeer::new(move |request| {
        let records = seen.records(&chain());
        Box::pin(async move {
            if request.method == "tools/call" {
                let last = &records.last().expect("the intent is there").entry;
                assert_eq!((last.kind, last.tool.as_deref()), (Kind::Intent, Some("read")));
                assert_eq!(
                    last.arguments.as_ref().unwrap().json.as_deref(),
                    Some(r#"{"a":1.0,"b":2}"#)
                );
            }
            Ok(Answer::Result(raw(r#"{"content":[], "x" : 12345678901234567890123}"#)))
        })
    });
    let world = World::with(journal, "inc-1");
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    let session = world.open(MCP).await;
    let body = r#"{"jsonrpc":"2.0","id":"é1","method":"tools/call","params":{"name":"mcp__files__read","arguments":{"b":2, "a":1.0},"_meta":{"progressToken":5}}}"#;
    let reply = world.send(post(MCP, TOKEN, Some(&session), body)).await;
    assert!(
        reply.text.contains(r#""result":{"content":[], "x" : 12345678901234567890123}"#),
        "{}",
        reply.text
    );
    assert_eq!(peer.calls(), [r#"{"name":"read","arguments":{"b":2, "a":1.0}}"#]);

    let records = world.call_records();
    let [intent, outcome] = &records[..] else { panic!("{records:?}") };
    assert_eq!(intent.entry.kind, Kind::Intent);
    assert_eq!(intent.entry.subject.as_deref(), Some("system:serviceaccount:team-a:runtime"));
    assert_eq!(intent.entry.session.as_deref(), Some("team-a/coder"));
    assert_eq!(intent.entry.attachment.as_deref(), Some("files"));
    assert_eq!(intent.entry.generation, Some(1));
    assert_eq!(intent.entry.target.as_deref(), Some("https://files.example.com/mcp"));
    assert_eq!(intent.entry.rule.as_deref(), Some("defaultPermission=Allow"));
    assert!(intent.entry.descriptor.as_ref().unwrap().starts_with("sha256:"));
    assert_eq!(outcome.entry.kind, Kind::Outcome);
    assert_eq!(outcome.entry.call, intent.entry.call);
    assert_eq!(outcome.entry.outcome, Some(Outcome::Succeeded));
    assert_eq!(outcome.previous, intent.hash);
}

#[tokio::test]
async fn a_denied_tool_is_answered_like_an_unknown_one_and_the_record_tells_which() {
    let peer = FakePeer::answering("{}");
    let (world, session) = world(&peer).await;
    assert_eq!(world.tools(&session).await, ["mcp__files__read"]);
    let denied = world.call(&session, "mcp__files__write", json!({})).await;
    let unknown = world.call(&session, "mcp__files__wrxte", json!({})).await;
    assert_eq!(denied.to_string().replace("write", "wrxte"), unknown.to_string());
    assert_eq!((denied["error"]["code"].as_i64(), reason(&denied)), (Some(-32602), "UnknownTool"));
    assert!(peer.calls().is_empty());
    let records = world.call_records();
    let told: Vec<_> = records
        .iter()
        .map(|r| (r.entry.kind, r.entry.outcome, r.entry.reason, r.entry.rule.as_deref()))
        .collect();
    assert_eq!(
        told,
        [
            (Kind::Refusal, Some(Outcome::Denied), Some(Reason::Denied), Some("tools[write]=Deny")),
            (Kind::Refusal, Some(Outcome::Denied), Some(Reason::UnknownTool), None),
        ]
    );
}

#[tokio::test]
async fn no_other_spelling_reaches_a_denied_tool() {
    let peer = FakePeer::answering("{}");
    let (world, session) = world(&peer).await;
    for name in [
        "write",
        "mcp__files__write ",
        "MCP__files__write",
        "mcp__files____write",
        "files/write",
        "mcp__files__wr\u{0069}te",
        "",
    ] {
        let reply = world.call(&session, name, json!({})).await;
        assert_eq!(reason(&reply), "UnknownTool", "{name:?}");
    }
    assert!(peer.calls().is_empty());
}

#[tokio::test]
async fn how_calls_end() {
    let unreachable = |sent| PeerError::Connection {
        sent,
        kind: ConnectionFailure::Unreachable,
        message: "reset by canary-secret".into(),
    };
    let exit = Exit { code: Some(1), signal: None, stderr_tail: "out of cheese".into() };
    let table = [
        (unreachable(Sent::No), Outcome::TransportError, "ServerUnreachable"),
        (unreachable(Sent::Maybe), Outcome::OutcomeUnknown, "OutcomeUnknown"),
        (PeerError::Exited { sent: Sent::Maybe, exit }, Outcome::OutcomeUnknown, "OutcomeUnknown"),
        (PeerError::TimedOut(Duration::from_secs(60)), Outcome::TimedOut, "CallTimeout"),
        (too_large(Sent::Maybe), Outcome::OutcomeUnknown, "MessageTooLarge"),
        (too_large(Sent::No), Outcome::TransportError, "MessageTooLarge"),
        (PeerError::NotMcp("html".into()), Outcome::OutcomeUnknown, "OutcomeUnknown"),
        (
            PeerError::Status { status: 403, body: String::new() },
            Outcome::TransportError,
            "Unauthorized",
        ),
    ];
    for (error, outcome, word) in table {
        let peer = failing(error.clone());
        let (world, session) = world(&peer).await;
        let reply = world.call(&session, "mcp__files__read", json!({})).await;
        assert_eq!(reason(&reply), word, "{error}");
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.contains("canary"), "{message}");
        if let PeerError::Exited { .. } = error {
            assert!(
                message.contains("exit code 1") && message.contains("out of cheese"),
                "{message}"
            );
        }
        assert_eq!(peer.calls().len(), 1, "never sent again");
        let records = world.call_records();
        assert_eq!(records.len(), 2);
        assert_eq!(records[1].entry.outcome, Some(outcome), "{error}");
        assert!(!format!("{records:?}").contains("canary"));
    }
}

#[tokio::test]
async fn errors_and_tool_errors_pass_as_given() {
    for (answer, outcome) in [
        (
            Answer::Error(raw(r#"{"code":-32099,"message":"mine","data":{"z":1e3}}"#)),
            Outcome::RpcError,
        ),
        (Answer::Result(raw(r#"{"content":[],"isError":true}"#)), Outcome::ToolError),
    ] {
        let text = match &answer {
            Answer::Error(e) => format!(r#""error":{}"#, e.as_str()),
            Answer::Result(r) => format!(r#""result":{}"#, r.as_str()),
        };
        let peer = FakePeer::new(move |_| {
            let answer = answer.clone();
            Box::pin(async move { Ok(answer) })
        });
        let (world, session) = world(&peer).await;
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp__files__read"}}"#;
        let reply = world.send(post(MCP, TOKEN, Some(&session), body)).await;
        assert!(reply.text.contains(&text), "{}", reply.text);
        assert_eq!(world.call_records()[1].entry.outcome, Some(outcome));
    }
}

#[tokio::test]
async fn a_secret_for_a_tools_name_is_not_on_record() {
    let (world, session) = world(&FakePeer::answering("{}")).await;
    // in the second and third the limit on names would cut it in two
    let long = |n: usize| format!("{}canary-secret", "x".repeat(n));
    for name in ["canary-secret".to_owned(), long(120), long(250)] {
        assert_eq!(reason(&world.call(&session, &name, json!({})).await), "UnknownTool");
    }
    for record in world.call_records() {
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("canary"), "{text}");
    }
}

#[tokio::test]
async fn what_is_secret_is_not_on_record_and_the_digest_is_of_what_was_said() {
    let peer = FakePeer::answering(r#"{"content":[{"type":"text","text":"canary-secret"}]}"#);
    let (world, session) = world(&peer).await;
    let reply = world
        .call(&session, "mcp__files__read", json!({"q": "canary-secret", "password": "hunter22"}))
        .await;
    assert!(reply.to_string().contains("canary-secret"), "what the server says passes");
    let text = serde_json::to_string(&world.call_records()).unwrap();
    assert!(!text.contains("canary") && !text.contains("hunter22"), "{text}");
    let plain = r#"{"password":"hunter22","q":"canary-secret"}"#;
    let digest = awaken_operator::domain::canonical::digest(plain);
    assert_eq!(world.call_records()[0].entry.arguments.as_ref().unwrap().digest, digest);
}

#[tokio::test]
async fn a_key_that_stands_twice_is_refused_on_record() {
    let peer = FakePeer::answering("{}");
    let (world, session) = world(&peer).await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp__files__read","arguments":{"a":{"x":1,"\u0078":2}}}}"#;
    let reply = world.send(post(MCP, TOKEN, Some(&session), body)).await;
    assert_eq!(
        (reply.json()["error"]["code"].as_i64(), &*reply.reason()),
        (Some(-32602), "RepeatedKey")
    );
    assert!(peer.calls().is_empty());
    let records = world.call_records();
    assert_eq!((records.len(), records[0].entry.reason), (1, Some(Reason::RepeatedKey)));
    assert_eq!(records[0].entry.attachment.as_deref(), Some("files"));
}

#[tokio::test]
async fn the_meta_of_a_call_is_on_record_without_secrets_and_transport() {
    let peer = FakePeer::answering("{}");
    let (world, session) = world(&peer).await;
    let params = json!({"name": "mcp__files__read", "_meta": {
        "progressToken": 7, "traceparent": "00-1-2-01", "tracestate": "a=b",
        "example.com/tenant": "north", "password": "hunter22", "note": "canary-secret"}});
    let reply = world.ask(&session, "tools/call", params).await;
    assert!(reply.get("result").is_some(), "{reply}");
    assert!(peer.calls()[0].contains("traceparent"), "the server gets it");
    let records = world.call_records();
    let meta = records[0].entry.meta.as_ref().unwrap();
    let stored = r#"{"example.com/tenant":"north","note":"[redacted]","password":"[redacted]"}"#;
    assert_eq!(meta.json.as_deref(), Some(stored));
    assert_eq!(records[1].entry.meta, None, "once a call");
    world.call(&session, "mcp__files__read", json!({"_meta": {"a": 1}})).await;
    assert_eq!(world.call_records()[2].entry.meta, None, "an argument of that name is none");
}

#[tokio::test]
async fn without_a_journal_nothing_is_sent() {
    let peer = FakePeer::answering("{}");
    let (world, session) = world(&peer).await;
    world.journal.break_with(Some("disk full"));
    for tool in ["mcp__files__read", "mcp__files__write", "nothing"] {
        let reply = world.call(&session, tool, json!({})).await;
        assert_eq!(reason(&reply), "JournalUnavailable", "{tool}");
    }
    assert!(peer.calls().is_empty());
    assert!(world.metrics.encode().contains("awaken_gateway_unrecorded_total 3"));
    world.journal.break_with(None);
    let reply = world.call(&session, "mcp__files__read", json!({})).await;
    assert!(reply.get("result").is_some(), "{reply}");
}

#[tokio::test]
async fn a_result_that_cannot_be_recorded_is_not_told() {
    let journal = Memory::new();
    let breaks = journal.clone();
    let peer = FakePeer::new(move |request| {
        if request.method == "tools/call" {
            breaks.break_with(Some("disk full"));
        }
        Box::pin(async { Ok(Answer::Result(raw(r#"{"content":"the result"}"#))) })
    });
    let world = World::with(journal, "inc-1");
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    let session = world.open(MCP).await;
    let reply = world.call(&session, "mcp__files__read", json!({})).await;
    assert_eq!(reason(&reply), "OutcomeUnknown");
    assert!(!reply.to_string().contains("the result"));
    assert_eq!(peer.calls().len(), 1);
}

#[tokio::test]
async fn another_host_fences_calls() {
    let peer = FakePeer::answering("{}");
    let (world, session) = world(&peer).await;
    world.journal.raise_epoch(&chain(), 2).await.unwrap();
    let reply = world.call(&session, "mcp__files__read", json!({})).await;
    assert_eq!(reason(&reply), "NotServing");
    assert!(peer.calls().is_empty());
}

#[tokio::test]
async fn as_many_calls_as_allowed() {
    let peer = FakePeer::silent();
    let world = Arc::new(World::new());
    world.cluster.policy(allow_all());
    world.realizer.serve("files", &peer, &["read"]);
    let mut limited = entry(1, "files", State::Active);
    limited.limits.max_concurrent_calls = 2;
    world.place(1, &[limited]);
    world.published(1).await;
    let session = world.open(MCP).await;
    let mut calls = tokio::task::JoinSet::new();
    for id in 1..=2 {
        let (world, session) = (world.clone(), session.clone());
        calls.spawn(async move {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"mcp__files__read"}}}}"#);
            world.send(post(MCP, TOKEN, Some(&session), &body)).await
        });
    }
    until("two calls in flight", || (peer.calls().len() == 2).then_some(())).await;
    let body =
        r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"mcp__files__read"}}"#;
    let reply = world.send(post(MCP, TOKEN, Some(&session), body)).await;
    assert_eq!(reply.reason(), "TooManyCalls");
    assert_eq!(peer.calls().len(), 2);
    calls.abort_all();
}

#[tokio::test]
async fn a_cancelled_call_is_on_record_as_cancelled() {
    let peer = FakePeer::silent();
    let (world, session) = world(&peer).await;
    let world = Arc::new(world);
    let (caller, id) = (world.clone(), session.clone());
    let call = tokio::spawn(async move {
        caller.send(post(MCP, TOKEN, Some(&id),
        r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"mcp__files__read"}}"#)).await
    });
    until("the call", || (peer.calls().len() == 1).then_some(())).await;
    let notice =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#;
    let reply = world.send(post(MCP, TOKEN, Some(&session), notice)).await;
    assert_eq!(reply.status, 202);
    let outcome = until("the outcome", || world.call_records().get(1).cloned()).await;
    assert_eq!(outcome.entry.outcome, Some(Outcome::Cancelled));
    assert!(!call.await.unwrap().text.contains("result"));
}

#[tokio::test]
async fn a_caller_who_goes_away_does_not_stop_the_call() {
    let finish = Arc::new(tokio::sync::Notify::new());
    let gate = finish.clone();
    let peer = FakePeer::new(move |request| {
        let gate = gate.clone();
        Box::pin(async move {
            if request.method == "tools/call" {
                gate.notified().await;
            }
            Ok(Answer::Result(raw(r#"{"content":[]}"#)))
        })
    });
    let world = World::new();
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    let session = world.open(MCP).await;
    let request = post(
        MCP,
        TOKEN,
        Some(&session),
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp__files__read"}}"#,
    );
    let router = world.router.clone();
    let call = tokio::spawn(async move { tower::ServiceExt::oneshot(router, request).await });
    until("the call", || (peer.calls().len() == 1).then_some(())).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    finish.notify_one();
    let outcome = until("the outcome", || world.call_records().get(1).cloned()).await;
    assert_eq!(outcome.entry.outcome, Some(Outcome::ClientGone));
    assert!(outcome.entry.result.is_some(), "what is known is on record");
}

#[tokio::test]
async fn a_forgotten_mcp_session_is_renewed_and_the_call_sent_once_more() {
    let lost = failing(PeerError::Connection {
        sent: Sent::No,
        kind: ConnectionFailure::SessionLost,
        message: "404".into(),
    });
    let fresh = FakePeer::answering(r#"{"content":["fresh"]}"#);
    let world = World::new();
    world.cluster.policy(allow_all());
    world.realizer.script(
        "files",
        vec![Ok((lost.clone(), vec!["read"])), Ok((fresh.clone(), vec!["read", "more"]))],
    );
    world.place(1, &[entry(1, "files", State::Active)]);
    world.published(1).await;
    let session = world.open(MCP).await;
    let reply = world.call(&session, "mcp__files__read", json!({})).await;
    assert_eq!(reply["result"]["content"][0], "fresh", "{reply}");
    assert_eq!((lost.calls().len(), fresh.calls().len()), (1, 1));
    assert_eq!(world.realizer.attempts("files"), 2, "one fresh handshake");
    assert_eq!(world.call_records().len(), 2, "one call on record");
    until("the new list", || {
        (world.sessions.get(&key()).unwrap().catalogs.load().list(None).len() == 2).then_some(())
    })
    .await;
}

/// The server forgot the MCP session of whatever asks it.
fn forgetful() -> Arc<FakePeer> {
    failing(PeerError::Connection {
        sent: Sent::No,
        kind: ConnectionFailure::SessionLost,
        message: "404".into(),
    })
}

#[tokio::test]
async fn a_renewed_connection_brings_its_secrets_its_evidence_and_its_notes() {
    let world = World::new();
    let fresh = FakePeer::answering(r#"{"a":"canary-of-try-1","b":"canary-of-try-2"}"#);
    world.cluster.policy(allow_all());
    world
        .realizer
        .script("files", vec![Ok((forgetful(), vec!["read"])), Ok((fresh, vec!["read", "more"]))]);
    world.place(1, &[entry(1, "files", State::Active)]);
    assert_eq!(world.published(1).await.evidence.tool_count, Some(1));
    let session = world.open(MCP).await;
    let note = Note { reason: Reason::ListTruncated, message: "cut".into() };
    world.realizer.notes.lock().unwrap().push(note);
    world.call(&session, "mcp__files__read", json!({})).await;
    let result = world.call_records()[1].entry.result.clone().unwrap();
    let result = format!("{result:?}");
    assert!(!result.contains("canary") && result.contains("[redacted]"), "{result}");
    until("the receipt", || world.cluster.receipt(1).filter(|r| r.evidence.tool_count == Some(2)))
        .await;
    let events = || world.cluster.stored.lock().unwrap().events.clone();
    until("the event", || events().iter().any(|e| e.1 == Reason::ListTruncated).then_some(()))
        .await;
}

#[tokio::test]
async fn a_call_does_not_wait_for_a_renewal_longer_than_it_may() {
    for cut in [false, true] {
        let world = Arc::new(World::new());
        world.cluster.policy(allow_all());
        world.realizer.serve("files", &forgetful(), &["read"]);
        let short = |state| {
            let mut entry = entry(1, "files", state);
            entry.limits.drain_timeout_ms = 20;
            entry.limits.call_timeout_ms = if cut { 60_000 } else { 100 };
            entry
        };
        world.place(1, &[short(State::Active)]);
        world.published(1).await;
        let session = world.open(MCP).await;
        world.realizer.hang("files");
        let caller = world.clone();
        let call =
            tokio::spawn(async move { caller.call(&session, "mcp__files__read", json!({})).await });
        until("the renewal", || (world.realizer.attempts("files") == 2).then_some(())).await;
        if cut {
            world.place(1, &[short(State::Draining)]);
        }
        let reply = tokio::time::timeout(Duration::from_secs(5), call).await.unwrap().unwrap();
        assert_eq!(reason(&reply), "ServerUnreachable", "{cut}: it never ran");
        let outcome = world.call_records()[1].entry.outcome;
        assert_eq!(outcome, Some(Outcome::TransportError));
        until("the host's end", || Arc::strong_count(&world).eq(&1).then_some(())).await;
        let world = Arc::into_inner(world).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(5), world.shut_down()).await;
        assert!(ended.is_ok(), "{cut}: the host waits for a renewal");
    }
}

#[tokio::test]
async fn a_panic_in_one_call_ends_that_call_alone() {
    let count = AtomicUsize::new(0);
    let peer = FakePeer::new(move |request| {
        let first = request.method == "tools/call" && count.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            assert!(!first, "by script");
            Ok(Answer::Result(raw("{}")))
        })
    });
    let (world, session) = world(&peer).await;
    let reply = world.call(&session, "mcp__files__read", json!({})).await;
    assert_eq!(reason(&reply), "OutcomeUnknown");
    assert_eq!(world.call_records()[1].entry.outcome, Some(Outcome::OutcomeUnknown));
    let reply = world.call(&session, "mcp__files__read", json!({})).await;
    assert!(reply.get("result").is_some());
}

#[tokio::test]
async fn a_policy_change_holds_for_the_next_list_and_the_next_call() {
    let peer = FakePeer::answering("{}");
    let (world, session) = world(&peer).await;
    for (permission, listed) in [("Allow", 2), ("Deny", 1), ("Allow", 2)] {
        world.cluster.policy(json!([{"attachment": "files", "defaultPermission": "Allow",
            "tools": [{"name": "write", "permission": permission}]}]));
        assert_eq!(world.tools(&session).await.len(), listed);
        let reply = world.call(&session, "mcp__files__write", json!({})).await;
        assert_eq!(reply.get("result").is_some(), permission == "Allow");
    }
    world.cluster.policy(json!([]));
    assert!(world.tools(&session).await.is_empty(), "without a ToolSet nothing is shown");
    assert_eq!(reason(&world.call(&session, "mcp__files__read", json!({})).await), "UnknownTool");
}
