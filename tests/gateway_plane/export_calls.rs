//! Calls through `/v1/mcp`: the one way, with its records in the right chain.

use super::{platform::*, support::*};
use awaken_operator::{
    domain::{
        reason::Reason,
        record::{Entry, Kind, Outcome},
    },
    gateway::{
        export::{Bearer, ManagementError, Progress},
        recover,
    },
    journal::{Append as _, Chain, memory::Memory},
    mcp::{Answer, PeerError},
};
use axum::http::{HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;
use tower::ServiceExt as _;

const NOTHING: &str = r#"{"content":[]}"#;

fn entries(world: &World) -> Vec<Entry> {
    platform_records(world).into_iter().map(|r| r.entry).collect()
}

// --- an Agent's tool

#[tokio::test]
async fn an_exported_tool_is_one_call_of_its_session() {
    let (world, peer) =
        (open(&FakeManagement::answering(NOTHING)), FakePeer::answering(r#"{"n":1e2}"#));
    coder(&world, &[export("coder_read", "read")]);
    world.serving(&peer, &["read", "more"]).await;
    let session = begin(&world, BEARER).await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"coder_read","arguments":{"b":1.0,"a":"canary-secret"},"_meta":{"k":1}}}"#;
    let reply = world.send(post(PLATFORM, BEARER, Some(&session), body)).await;
    assert_eq!(reply.text, r#"{"jsonrpc":"2.0","id":1,"result":{"n":1e2}}"#, "as given");
    let sent = r#"{"name":"read","arguments":{"b":1.0,"a":"canary-secret"},"_meta":{"k":1}}"#;
    assert_eq!(peer.calls(), [sent], "once, under the server's own name");
    let records: Vec<_> = world.call_records().into_iter().map(|r| r.entry).collect();
    let kinds: Vec<_> = records.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [Kind::Intent, Kind::Outcome]);
    for entry in &records {
        assert_eq!(entry.subject.as_deref(), Some("mcp-bearer"));
        assert_eq!(entry.session.as_deref(), Some("team-a/coder"));
        assert_eq!((entry.tool.as_deref(), entry.generation), (Some("read"), Some(1)));
    }
    assert_eq!(records[0].rule.as_deref(), Some("defaultPermission=Allow"));
    let stored = records[0].arguments.as_ref().unwrap().json.as_deref();
    assert_eq!(stored, Some(r#"{"a":"[redacted]","b":1.0}"#));
    assert!(entries(&world).is_empty(), "and nowhere else");
}

#[tokio::test]
async fn what_the_toolset_denies_looks_unknown_under_the_exported_name() {
    let (world, peer) = (open(&FakeManagement::answering(NOTHING)), FakePeer::answering(NOTHING));
    coder(&world, &[export("w", "write"), export("gone", "nothing")]);
    world.serving(&peer, &["read", "write"]).await;
    let session = begin(&world, BEARER).await;
    let mut shown = vec![];
    for name in ["w", "gone", "never_exported", "read", "mcp__files__read"] {
        let reply = call(&world, &session, name, json!({})).await;
        shown.push(reply.to_string().replace(&format!(": {name}\""), ": NAME\""));
    }
    shown.dedup();
    assert_eq!(shown.len(), 1, "one shape: {shown:?}");
    assert!(shown[0].contains("UnknownTool") && shown[0].contains("-32602"));
    assert!(peer.calls().is_empty());
    let of_session: Vec<_> = world.call_records().into_iter().map(|r| r.entry).collect();
    let seen: Vec<_> = of_session.iter().map(|e| (e.tool.as_deref(), e.reason)).collect();
    assert_eq!(
        seen,
        [(Some("write"), Some(Reason::Denied)), (Some("nothing"), Some(Reason::UnknownTool))]
    );
    let own = entries(&world);
    let seen: Vec<_> =
        own.iter().map(|e| (e.tool.as_deref().unwrap(), e.reason, e.outcome)).collect();
    let unknown = (Some(Reason::UnknownTool), Some(Outcome::Denied));
    assert_eq!(
        seen,
        ["never_exported", "read", "mcp__files__read"].map(|name| (name, unknown.0, unknown.1))
    );
}

#[tokio::test]
async fn what_the_toolset_denies_looks_unknown_also_without_its_server() {
    let world = open(&FakeManagement::answering(NOTHING));
    coder(&world, &[export("w", "write"), export("x", "read")]);
    let session = begin(&world, BEARER).await;
    for (name, reason) in [("w", "UnknownTool"), ("x", "Rescheduling")] {
        let refused = call(&world, &session, name, json!({})).await;
        assert_eq!(refused["error"]["data"]["reason"], reason, "{name}");
    }
}

#[tokio::test]
async fn what_is_not_in_service_says_so_and_is_on_record_here() {
    let (world, peer) = (open(&FakeManagement::answering(NOTHING)), FakePeer::answering(NOTHING));
    coder(&world, &[export("x", "read")]);
    let session = begin(&world, BEARER).await;
    let refused = call(&world, &session, "x", json!({})).await;
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["data"]["reason"]),
        (&json!(-32603), &json!("Rescheduling"))
    );
    world.serving(&peer, &["read"]).await;
    assert!(call(&world, &session, "x", json!({})).await.get("result").is_some());
    peer.die(awaken_operator::mcp::PeerError::NotMcp("gone".into()));
    until("the server to leave the catalog", || {
        let hosted = world.sessions.get(&key())?;
        hosted.catalogs.load().server_of("files").is_none().then_some(())
    })
    .await;
    let refused = call(&world, &session, "x", json!({})).await;
    assert_eq!(refused["error"]["data"]["reason"], "Rescheduling", "{refused}");
    assert_eq!(refused["error"]["data"]["retryAfter"], 1);
    world.place(1, &[]);
    until("the attachment to be forgotten", || {
        let hosted = world.sessions.get(&key())?;
        hosted.catalogs.load().awaited("files").is_none().then_some(())
    })
    .await;
    let refused = call(&world, &session, "x", json!({})).await;
    assert_eq!(refused["error"]["data"]["reason"], "NotServing", "{refused}");
    assert!(refused["error"]["data"]["retryAfter"].is_null(), "nothing brings it back");
    let seen: Vec<_> = entries(&world).iter().map(|e| (e.kind, e.reason, e.tool.clone())).collect();
    let tool = Some("x".to_owned());
    assert_eq!(
        seen,
        [
            (Kind::Refusal, Some(Reason::Rescheduling), tool.clone()),
            (Kind::Refusal, Some(Reason::Rescheduling), tool.clone()),
            (Kind::Refusal, Some(Reason::NotServing), tool)
        ]
    );
    assert_eq!(peer.calls().len(), 1);
}

// --- management tools

#[tokio::test]
async fn a_management_tool_is_gated_recorded_and_answered_as_given() {
    let management = FakeManagement::answering(
        r#"{"content":[{"type":"text","text":"two"}],"structuredContent":{"n":1e2}}"#,
    );
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    let body = message(
        7,
        "tools/call",
        json!({"name": "agents_list", "arguments": {"namespace": "team-a", "a": 1}}),
    );
    let reply = world.send(post(PLATFORM, BEARER, Some(&session), &body)).await;
    assert!(reply.text.ends_with(r#""structuredContent":{"n":1e2}}}"#), "{}", reply.text);
    let sent = Some(r#"{"a":1,"namespace":"team-a"}"#.to_owned());
    assert_eq!(management.calls(), [("agents_list".to_owned(), sent)]);
    let [intent, outcome] = &entries(&world)[..] else { panic!() };
    assert_eq!((intent.kind, outcome.kind), (Kind::Intent, Kind::Outcome));
    for entry in [intent, outcome] {
        assert_eq!(entry.subject.as_deref(), Some("mcp-bearer"));
        assert_eq!(entry.tool.as_deref(), Some("agents_list"));
        assert_eq!((&entry.session, &entry.attachment, entry.generation), (&None, &None, None));
    }
    assert_eq!(intent.target.as_deref(), Some("management"));
    assert_eq!(intent.rule.as_deref(), Some("exports: agents_list"));
    assert!(intent.descriptor.as_deref().unwrap().starts_with("sha256:"));
    assert_eq!(outcome.outcome, Some(Outcome::Succeeded));
    assert_eq!(intent.call, outcome.call);
    assert!(outcome.result.as_ref().unwrap().json.as_ref().unwrap().contains("two"));
    assert!(world.call_records().is_empty());
    let metrics = world.metrics.encode();
    assert!(metrics.contains(r#"awaken_gateway_calls_total{outcome="Succeeded"} 1"#), "{metrics}");
}

#[rstest]
#[case::tool_error(Ok(r#"{"content":[],"isError":true}"#), Outcome::ToolError, None)]
#[case::cancelled(Err(ManagementError::Cancelled), Outcome::Cancelled, Some("Cancelled"))]
#[case::unknown(Err(ManagementError::OutcomeUnknown("maybe".into())), Outcome::OutcomeUnknown, Some("OutcomeUnknown"))]
#[case::unknown(Err(ManagementError::Unknown), Outcome::TransportError, Some("UnknownTool"))]
#[tokio::test]
async fn endings(
    #[case] result: Result<&'static str, ManagementError>,
    #[case] outcome: Outcome,
    #[case] reason: Option<&str>,
) {
    let script = result.clone();
    let management = FakeManagement::new(move |_, _| {
        let script = script.clone();
        Box::pin(async move { script.map(raw) })
    });
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    let reply = call(&world, &session, "agent_get", json!({})).await;
    match (result, reason) {
        (Ok(text), None) => {
            assert_eq!(reply["result"], serde_json::from_str::<Value>(text).unwrap())
        }
        (_, reason) => {
            assert_eq!(reply["error"]["data"]["reason"].as_str(), reason, "{reply}");
            assert_eq!(reply["error"]["code"], -32603);
        }
    }
    assert_eq!(entries(&world)[1].outcome, Some(outcome));
}

#[tokio::test]
async fn a_tool_that_panics_ends_on_record() {
    let management = FakeManagement::new(|_, _| Box::pin(async { panic!("as a test") }));
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    let reply = call(&world, &session, "agents_list", json!({})).await;
    assert_eq!(reply["error"]["data"]["reason"], "OutcomeUnknown");
    assert_eq!(entries(&world)[1].outcome, Some(Outcome::OutcomeUnknown));
}

#[tokio::test]
async fn a_management_tool_that_is_not_exported_looks_unknown_and_the_record_tells() {
    let management = FakeManagement::answering(NOTHING);
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    let (hidden, unknown) = (
        call(&world, &session, "attachment_delete", json!({"name": "x"})).await,
        call(&world, &session, "attachment_remove", json!({"name": "x"})).await,
    );
    let same = |reply: &Value| reply.to_string().replace("attachment_delete", "attachment_remove");
    assert_eq!(same(&hidden), same(&unknown));
    assert!(management.calls().is_empty());
    let records = entries(&world);
    assert_eq!(
        (records[0].reason, records[0].rule.as_deref()),
        (Some(Reason::Denied), Some("exports"))
    );
    assert_eq!((records[1].reason, records[1].rule.as_deref()), (Some(Reason::UnknownTool), None));
}

#[tokio::test]
async fn an_agent_takes_no_management_name() {
    let (management, peer) = (FakeManagement::answering(NOTHING), FakePeer::answering(NOTHING));
    let world = open(&management);
    coder(&world, &[export("attachment_delete", "read"), export("agents_list", "read")]);
    world.serving(&peer, &["read"]).await;
    let session = begin(&world, BEARER).await;
    assert_eq!(names(&world, &session).await, MANAGEMENT);
    call(&world, &session, "attachment_delete", json!({})).await;
    call(&world, &session, "agents_list", json!({})).await;
    assert!(peer.calls().is_empty());
    assert_eq!(management.calls().len(), 1);
}

#[tokio::test]
async fn no_journal_no_call() {
    let management = FakeManagement::answering(NOTHING);
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    world.journal.break_with(Some("full"));
    for tool in ["agents_list", "nothing"] {
        let reply = call(&world, &session, tool, json!({})).await;
        assert_eq!(reply["error"]["data"]["reason"], "JournalUnavailable", "{reply}");
    }
    assert!(management.calls().is_empty());
}

#[tokio::test]
async fn the_bearer_itself_never_stands_in_a_record() {
    let management = FakeManagement::answering(r#"{"content":["bearer-of-the-platform"]}"#);
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    call(&world, &session, "agents_list", json!({"x": format!("a {BEARER}")})).await;
    call(&world, &session, BEARER, json!({})).await;
    let body = message(1, BEARER, json!({}));
    world.send(post(PLATFORM, BEARER, Some(&session), &body)).await;
    let records = entries(&world);
    assert_eq!(records.len(), 4);
    let stored = serde_json::to_string(&records).unwrap();
    assert!(!stored.contains(BEARER) && stored.contains("[redacted]"), "{stored}");
}

#[tokio::test]
async fn the_bearer_stands_in_no_record_of_a_session_whatever_holds_it() {
    const NEXT: &str = "bearer-of-tomorrow";
    let bearer: Arc<Mutex<Option<Bearer>>> = Arc::default();
    let rotating = bearer.clone();
    // a server that tells what it was told, while the bearer is rotated
    let peer = FakePeer::new(move |request| {
        if let Some(bearer) = &*rotating.lock().unwrap() {
            bearer.set(Some(NEXT.as_bytes()), Some(BEARER.as_bytes()));
        }
        let params = request.params.unwrap_or_else(|| raw("{}"));
        Box::pin(async move {
            if params.as_str().contains("fails") {
                return Err(PeerError::NotMcp(format!("said {BEARER} {NEXT}")));
            }
            Ok(Answer::Result(raw(&format!(r#"{{"content":["{BEARER}","{NEXT}"]}}"#))))
        })
    });
    let world = open(&FakeManagement::answering(NOTHING));
    *bearer.lock().unwrap() = Some(world.bearer.clone());
    coder(&world, &[export("x", "read"), export("w", "write")]);
    world.serving(&peer, &["read", "write"]).await;
    let session = begin(&world, BEARER).await;
    call(&world, &session, "x", json!({"x": format!("a {BEARER}"), BEARER: 1})).await;
    let failed = call(&world, &session, "x", json!({"fails": true})).await;
    // a key that stands twice is named in the refusal
    let twice = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","arguments":{{"{BEARER}":1,"{BEARER}":2}}}}}}"#
    );
    let twice = world.send(post(PLATFORM, BEARER, Some(&session), &twice)).await;
    assert_eq!(twice.reason(), "RepeatedKey");
    let records = world.call_records();
    assert_eq!(records.len(), 5);
    let said = [serde_json::to_string(&records).unwrap(), failed.to_string(), twice.text];
    for (text, count) in said.iter().zip([8, 2, 1]) {
        assert!(!text.contains(BEARER) && !text.contains(NEXT), "{text}");
        assert_eq!(text.matches("[redacted]").count(), count, "{text}");
    }
}

#[tokio::test]
async fn a_bearer_that_came_while_a_management_tool_ran_stands_in_no_record() {
    const NEXT: &str = "bearer-of-tomorrow";
    let bearer: Arc<Mutex<Option<Bearer>>> = Arc::default();
    let rotating = bearer.clone();
    let management = FakeManagement::new(move |_, _| {
        let bearer = rotating.lock().unwrap().clone().unwrap();
        bearer.set(Some(NEXT.as_bytes()), Some(BEARER.as_bytes()));
        Box::pin(async { Ok(raw(&format!(r#"{{"content":["{BEARER}","{NEXT}"]}}"#))) })
    });
    let world = open(&management);
    *bearer.lock().unwrap() = Some(world.bearer.clone());
    let session = begin(&world, BEARER).await;
    call(&world, &session, "agents_list", json!({})).await;
    let result = entries(&world)[1].result.as_ref().unwrap().json.clone();
    assert_eq!(result.as_deref(), Some(r#"{"content":["[redacted]","[redacted]"]}"#));
}

#[tokio::test]
async fn only_so_many_run_at_one_time() {
    let finish = Arc::new(Notify::new());
    let (gate, running) = (finish.clone(), Arc::new(AtomicUsize::new(0)));
    let count = running.clone();
    let management = FakeManagement::new(move |_, _| {
        let gate = gate.clone();
        count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            gate.notified().await;
            Ok(raw(NOTHING))
        })
    });
    let world = Arc::new(open(&management));
    let session = begin(&world, BEARER).await;
    let mut all = tokio::task::JoinSet::new();
    for n in 0..64 {
        let (world, session) = (world.clone(), session.clone());
        let body = message(n, "tools/call", json!({"name": "agents_list"}));
        all.spawn(
            async move { world.send(post(PLATFORM, BEARER, Some(&session), &body)).await.json() },
        );
    }
    until("all of them", || (running.load(Ordering::SeqCst) == 64).then_some(())).await;
    let body = message(99, "tools/call", json!({"name": "agents_list"}));
    let reply = world.send(post(PLATFORM, BEARER, Some(&session), &body)).await;
    assert_eq!(reply.reason(), "TooManyCalls");
    finish.notify_waiters();
    assert!(all.join_all().await.iter().all(|r| r.get("result").is_some()));
    finish.notify_one();
    assert!(call(&world, &session, "agents_list", json!({})).await.get("result").is_some());
}

// --- progress, cancellation, clients that go

/// A tool that hands out its progress sink and ends when it is told, or cancelled.
fn working(finish: &Arc<Notify>) -> (Arc<FakeManagement>, Arc<Mutex<Vec<Progress>>>) {
    let sinks: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let (gate, held) = (finish.clone(), sinks.clone());
    let management = FakeManagement::new(move |_, context| {
        held.lock().unwrap().extend(context.progress.clone());
        let gate = gate.clone();
        Box::pin(async move {
            tokio::select! {
                () = gate.notified() => Ok(raw(NOTHING)),
                () = context.cancel.cancelled() => Err(ManagementError::Cancelled),
            }
        })
    });
    (management, sinks)
}

fn with_token(token: Value) -> String {
    let params = json!({"name": "attachment_apply", "_meta": {"progressToken": token}});
    message(5, "tools/call", params)
}

#[tokio::test(start_paused = true)]
async fn progress_goes_before_the_answer_on_the_posts_own_stream() {
    let finish = Arc::new(Notify::new());
    let (management, sinks) = working(&finish);
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    let body = with_token(json!("token-1"));
    let sending = world.router.clone().oneshot(post(PLATFORM, BEARER, Some(&session), &body));
    let sending = tokio::spawn(sending);
    let sink = until("the sink", || sinks.lock().unwrap().pop()).await;
    let begun = tokio::time::Instant::now();
    sink.report(1.0, Some(3.0), "Requested");
    let response = sending.await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_millis(900), "not when a second is over");
    assert_eq!(response.headers()["content-type"], "text/event-stream", "at once, for the notice");
    let mut body = response.into_body();
    let first = hear(&mut body, "Requested").await.unwrap();
    assert!(first.contains(r#""progressToken":"token-1","progress":1,"total":3"#), "{first}");
    for step in 2..50 {
        sink.report(f64::from(step), None, &format!("step {step}"));
    }
    sink.report(1.5, None, "back");
    let last = hear(&mut body, "step 49").await.unwrap();
    assert!(!last.contains("step 3") && !last.contains("back"), "{last}");
    finish.notify_one();
    let rest = hear(&mut body, r#""id":5"#).await.unwrap();
    assert!(rest.contains("result") && !rest.contains("progress"), "{rest}");
    sink.report(99.0, None, "late");
    let end = body.frame().await;
    assert!(end.is_none(), "nothing comes after the answer: {end:?}");
    assert_eq!(entries(&world)[1].outcome, Some(Outcome::Succeeded));
}

#[tokio::test]
async fn without_a_token_or_a_stream_there_is_no_progress() {
    let finish = Arc::new(Notify::new());
    let (management, sinks) = working(&finish);
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    let mut json_alone = post(PLATFORM, BEARER, Some(&session), &with_token(json!(1)));
    json_alone.headers_mut().insert("accept", HeaderValue::from_static("application/json"));
    let plain = message(6, "tools/call", json!({"name": "attachment_apply", "arguments": {}}));
    for request in [json_alone, post(PLATFORM, BEARER, Some(&session), &plain)] {
        finish.notify_one();
        let reply = world.send(request).await;
        assert_eq!(reply.headers["content-type"], "application/json");
    }
    assert!(sinks.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_cancelled_call_ends_and_is_on_record_as_such() {
    let finish = Arc::new(Notify::new());
    let (management, _) = working(&finish);
    let world = Arc::new(open(&management));
    let session = begin(&world, BEARER).await;
    let (caller, id) = (world.clone(), session.clone());
    let body = message("c-1", "tools/call", json!({"name": "attachment_apply"}));
    let calling =
        tokio::spawn(async move { caller.send(post(PLATFORM, BEARER, Some(&id), &body)).await });
    until("the call", || (management.calls().len() == 1).then_some(())).await;
    // another session cannot cancel it
    let other = begin(&world, BEARER).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": "c-1"}})
    .to_string();
    assert_eq!(world.send(post(PLATFORM, BEARER, Some(&other), &cancel)).await.status, 202);
    assert_eq!(entries(&world).len(), 1, "it runs");
    assert_eq!(world.send(post(PLATFORM, BEARER, Some(&session), &cancel)).await.status, 202);
    let reply = calling.await.unwrap();
    assert!(!reply.text.contains("\"id\""), "a cancelled request is not answered: {}", reply.text);
    let records = entries(&world);
    assert_eq!((records.len(), records[1].outcome), (2, Some(Outcome::Cancelled)));
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_nothing() {
    let finish = Arc::new(Notify::new());
    let (management, _) = working(&finish);
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    let body = message(1, "tools/call", json!({"name": "attachment_apply"}));
    let calling = world.router.clone().oneshot(post(PLATFORM, BEARER, Some(&session), &body));
    let calling = tokio::spawn(calling);
    until("the call", || (management.calls().len() == 1).then_some(())).await;
    calling.abort();
    assert!(calling.await.is_err());
    finish.notify_one();
    until("its end", || {
        entries(&world).get(1).map(|e| assert_eq!(e.outcome, Some(Outcome::ClientGone)))
    })
    .await;
}

/// Eight callers, each without a pause and with 150 calls at least; each takes a new bearer up when
/// it suits it. No call fails while its bearer is valid, and an old one goes when nobody has it.
#[tokio::test]
async fn no_call_fails_while_the_bearer_is_rotated_twice_under_load() {
    const CALLERS: usize = 8;
    const BEARERS: [&str; 3] = [BEARER, "bearer-second", "bearer-third"];
    let finish = Arc::new(Notify::new());
    let gate = finish.clone();
    let management = FakeManagement::new(move |tool, _| {
        let (gate, slow) = (gate.clone(), tool == "attachment_apply");
        Box::pin(async move {
            if slow {
                gate.notified().await;
            }
            Ok(raw(NOTHING))
        })
    });
    let world = Arc::new(open(&management));
    let session = begin(&world, BEARER).await;
    let newest = Arc::new(AtomicUsize::new(0));
    let moved: [Arc<AtomicUsize>; 3] = std::array::from_fn(|_| Arc::default());
    let mut load = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (world, session) = (world.clone(), session.clone());
        let (newest, moved) = (newest.clone(), moved.clone());
        load.spawn(async move {
            let (mut own, mut answered, mut with_old) = (0, 0, 0);
            while answered < 150 || own < 2 {
                let body = message(
                    format!("{caller}-{answered}"),
                    "tools/call",
                    json!({"name": "agents_list"}),
                );
                let both = newest.load(Ordering::SeqCst) > own;
                let reply = world.send(post(PLATFORM, BEARERS[own], Some(&session), &body)).await;
                assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
                assert!(reply.json().get("result").is_some(), "{}", reply.text);
                answered += 1;
                with_old += usize::from(both);
                if both && with_old > caller {
                    (own, with_old) = (own + 1, 0);
                    moved[own].fetch_add(1, Ordering::SeqCst);
                }
                tokio::task::yield_now().await;
            }
            answered
        });
    }
    let slow = |token: &'static str| {
        let (world, session) = (world.clone(), session.clone());
        let body = message("slow", "tools/call", json!({"name": "attachment_apply"}));
        tokio::spawn(async move { world.send(post(PLATFORM, token, Some(&session), &body)).await })
    };
    for round in [1, 2] {
        // calls go on all the time, and one that takes long is in flight
        let calls = || management.calls().len();
        until("calls", || (calls() > 300 * round).then_some(())).await;
        let before = calls();
        let slow = slow(BEARERS[round - 1]);
        let begun = || management.calls()[before..].iter().any(|(t, _)| t == "attachment_apply");
        until("the slow call", || begun().then_some(())).await;
        // the new one beside the old one; every client has it in the end; the old one goes
        let (old, new) = (BEARERS[round - 1].as_bytes(), BEARERS[round].as_bytes());
        world.bearer.set(Some(new), Some(old));
        newest.store(round, Ordering::SeqCst);
        let all = || moved[round].load(Ordering::SeqCst) == CALLERS;
        until("every client", || all().then_some(())).await;
        assert!(!slow.is_finished(), "it still waits");
        finish.notify_one();
        assert!(slow.await.unwrap().json().get("result").is_some());
        world.bearer.set(Some(new), None);
        let hello = post(PLATFORM, BEARERS[round - 1], None, &initialize());
        assert_eq!(world.send(hello).await.status, StatusCode::UNAUTHORIZED);
    }
    let answered: usize = load.join_all().await.into_iter().sum();
    assert!(answered >= CALLERS * 150, "{answered}");
    assert_eq!(management.calls().len(), answered + 2, "each ran once");
}

#[tokio::test]
async fn a_call_whose_stream_was_cut_by_a_withdrawn_token_still_ends_on_record() {
    let finish = Arc::new(Notify::new());
    let (management, sinks) = working(&finish);
    let world = open(&management);
    let session = begin(&world, BEARER).await;
    let sending =
        world.router.clone().oneshot(post(PLATFORM, BEARER, Some(&session), &with_token(json!(1))));
    let sending = tokio::spawn(sending);
    until("the sink", || sinks.lock().unwrap().pop()).await.report(1.0, None, "begun");
    let mut body = sending.await.unwrap().unwrap().into_body();
    assert!(hear(&mut body, "begun").await.is_some());
    world.bearer.set(Some(b"another"), None);
    assert!(hear(&mut body, "never").await.is_none(), "the stream ends without an answer");
    drop(body);
    finish.notify_one();
    until("its end", || {
        entries(&world).get(1).map(|e| assert_eq!(e.outcome, Some(Outcome::ClientGone)))
    })
    .await;
}

#[tokio::test]
async fn a_json_call_whose_token_is_withdrawn_ends_and_its_outcome_is_on_record() {
    let finish = Arc::new(Notify::new());
    let (management, _) = working(&finish);
    let world = Arc::new(open(&management));
    let session = begin(&world, BEARER).await;
    let body = message(1, "tools/call", json!({"name": "attachment_apply"}));
    let mut request = post(PLATFORM, BEARER, Some(&session), &body);
    request.headers_mut().insert("accept", HeaderValue::from_static("application/json"));
    let caller = world.clone();
    let calling = tokio::spawn(async move { caller.send(request).await });
    until("the call", || (management.calls().len() == 1).then_some(())).await;
    world.bearer.set(Some(b"another"), Some(BEARER.as_bytes()));
    tokio::task::yield_now().await;
    assert!(!calling.is_finished(), "it is still valid");
    world.bearer.set(Some(b"another"), None);
    assert_eq!(calling.await.unwrap().status, StatusCode::FORBIDDEN);
    finish.notify_one();
    until("its end", || {
        entries(&world).get(1).map(|e| assert_eq!(e.outcome, Some(Outcome::ClientGone)))
    })
    .await;
}

#[tokio::test]
async fn calls_that_do_not_end_are_cut_when_the_gateway_stops() {
    let (management, _) = working(&Arc::new(Notify::new()));
    let world = Arc::new(open(&management));
    let session = begin(&world, BEARER).await;
    let caller = world.clone();
    let calling =
        tokio::spawn(async move { call(&caller, &session, "attachment_apply", json!({})).await });
    until("the call", || (management.calls().len() == 1).then_some(())).await;
    world.gateway.calls.cut();
    tokio::time::timeout(Duration::from_secs(5), world.gateway.calls.finished()).await.unwrap();
    assert_eq!(calling.await.unwrap()["error"]["data"]["reason"], "OutcomeUnknown");
    assert_eq!(entries(&world)[1].outcome, Some(Outcome::OutcomeUnknown));
}

#[tokio::test]
async fn what_an_earlier_start_left_open_is_ended_once_and_nothing_else() {
    let (journal, clock) = (Memory::new(), FixedClock);
    let intent = |call: &str| Entry {
        call: Some(call.into()),
        tool: Some("attachment_apply".into()),
        ..Entry::new(jiff::Timestamp::UNIX_EPOCH, Kind::Intent)
    };
    let (old, own) = (Chain::Incarnation("inc-0".into()), Chain::Incarnation("inc-1".into()));
    for (chain, call) in [(&old, "a"), (&own, "b"), (&chain(), "c")] {
        journal.append(chain, 1, intent(call)).await.unwrap();
    }
    for expected in [1, 0] {
        let ended =
            recover::lost_starts((&journal, &journal), &clock, &["inc-1".to_owned()].into())
                .await
                .unwrap();
        assert_eq!(ended, expected);
    }
    let ended = journal.records(&old).pop().unwrap().entry;
    assert_eq!((ended.call.as_deref(), ended.reason), (Some("a"), Some(Reason::HostLost)));
    assert_eq!((journal.records(&own).len(), journal.records(&chain()).len()), (1, 1));
}

#[tokio::test]
async fn an_exported_tools_own_error_passes_as_given() {
    let peer = FakePeer::new(|_| {
        Box::pin(async { Ok(Answer::Error(raw(r#"{"code":-1,"message":"no","data":1e2}"#))) })
    });
    let world = open(&FakeManagement::answering(NOTHING));
    coder(&world, &[export("x", "read")]);
    world.serving(&peer, &["read"]).await;
    let session = begin(&world, BEARER).await;
    let body = message(1, "tools/call", json!({"name": "x"}));
    let reply = world.send(post(PLATFORM, BEARER, Some(&session), &body)).await;
    assert!(
        reply.text.contains(r#""error":{"code":-1,"message":"no","data":1e2}"#),
        "{}",
        reply.text
    );
}
