//! Stages and receipts against a scripted operator.

use super::support::*;
use awaken_operator::{
    domain::{
        export::Namespaces,
        lifecycle::{StageKind, State, Verdict},
        reason::Reason,
        record::{Entry as Written, Kind, Outcome},
    },
    gateway::auth::Times,
    gateway::host::realize::Failure,
    journal::{Append, AppendError, Chain, Position, memory::Memory},
    mcp::{Exit, PeerError, PeerEvent, Sent},
};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

fn refused() -> Failure {
    Failure::new(Reason::ConnectFailed, "refused")
}

#[tokio::test]
async fn realize_then_publish() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    world.cluster.policy(allow_all());
    world.realizer.serve("files", &peer, &["read", "write"]);
    world.place(1, &[entry(1, "files", State::Realizing)]);
    let receipt = world.receipt(1, Verdict::Done).await;
    assert_eq!(receipt.stage, StageKind::Realize);
    assert_eq!(receipt.evidence.tool_count, Some(2));
    assert!(receipt.evidence.surface_digest.is_some());
    let session = world.open(MCP).await;
    assert!(world.tools(&session).await.is_empty(), "proven is not published");
    world.place(1, &[entry(1, "files", State::Active)]);
    let receipt = world.published(1).await;
    let stored = &world.cluster.stored.lock().unwrap().session["status"]["attachments"][0]["stage"];
    assert_eq!(stored["fingerprint"], receipt.fingerprint);
    assert_eq!(stored["ref"], serde_json::to_value(&receipt.generation_ref).unwrap());
    assert_eq!(world.realizer.attempts("files"), 1, "the proven connection is the one that serves");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_swap_for_publish_and_drain() {
    let (old, new) =
        (FakePeer::answering(r#"{"from":"old"}"#), FakePeer::answering(r#"{"from":"new"}"#));
    let world = Arc::new(World::new());
    world.cluster.policy(allow_all());
    world
        .realizer
        .script("files", vec![Ok((old.clone(), vec!["read"])), Ok((new.clone(), vec!["read"]))]);
    world.place(1, &[entry(1, "files", State::Realizing)]);
    world.receipt(1, Verdict::Done).await;
    world.place(1, &[entry(1, "files", State::Active)]);
    world.published(1).await;
    let session = world.open(MCP).await;
    let load = {
        let world = world.clone();
        let session = session.clone();
        tokio::spawn(async move {
            let mut from_new = 0;
            while from_new < 20 {
                tokio::task::yield_now().await;
                let reply = world.call(&session, "mcp__files__read", json!({})).await;
                let from = reply["result"]["from"].as_str().unwrap_or_else(|| panic!("{reply}"));
                from_new += usize::from(from == "new");
            }
        })
    };
    world.place(1, &[entry(1, "files", State::Active), entry(2, "files", State::Realizing)]);
    world.receipt(2, Verdict::Done).await;
    world.place(1, &[entry(1, "files", State::Draining), entry(2, "files", State::Active)]);
    world.published(2).await;
    let drained =
        until("drain", || world.cluster.receipt(1).filter(|r| r.stage == StageKind::Drain)).await;
    assert_eq!((drained.verdict, drained.evidence.cut), (Verdict::Done, Some(0)));
    load.await.unwrap();
    assert!(old.closes.load(Ordering::SeqCst) >= 1);
    world.place(1, &[entry(2, "files", State::Active)]);
    until("pruning", || world.cluster.receipt(1).is_none().then_some(())).await;
    assert!(world.cluster.receipt(2).is_some());
}

#[tokio::test]
async fn retryable_failures_are_tried_again_and_told_once() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    let named = Failure::new(Reason::NameNotResolved, "no such name");
    let mut tries = vec![Err(refused()); 5];
    tries.extend(vec![Err(named); 5]);
    tries.push(Ok((peer, vec!["read"])));
    world.realizer.script("files", tries);
    world.place(1, &[entry(1, "files", State::Realizing)]);
    world.receipt(1, Verdict::Done).await;
    assert_eq!(world.realizer.attempts("files"), 11);
    let writes = world.cluster.stored.lock().unwrap().writes;
    assert!(writes <= 3, "{writes} writes for two reasons and one success");
}

#[tokio::test]
async fn a_permanent_failure_is_tried_once() {
    let world = World::new();
    world.realizer.script("files", vec![Err(Failure::new(Reason::Unauthorized, "401"))]);
    world.place(1, &[entry(1, "files", State::Realizing)]);
    let receipt = world.receipt(1, Verdict::Failed).await;
    assert_eq!((receipt.reason, &*receipt.message), (Some(Reason::Unauthorized), "401"));
    world.cluster.show();
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(world.realizer.attempts("files"), 1);
}

#[tokio::test]
async fn tries_end_when_the_stage_is_taken_back() {
    let world = World::new();
    world.realizer.script("files", vec![Err(refused())]);
    world.place(1, &[entry(1, "files", State::Realizing)]);
    world.receipt(1, Verdict::Failed).await;
    world.place(1, &[entry(1, "files", State::Failed)]);
    // what was on its way may still end
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = world.realizer.attempts("files");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.realizer.attempts("files"), before);
    assert!(world.cluster.receipt(1).is_some(), "the receipt stays as long as the entry");
}

#[tokio::test]
async fn messages_of_receipts_are_bounded() {
    let world = World::new();
    let long = "€".repeat(4000);
    world.realizer.script("files", vec![Err(Failure::new(Reason::NotAnMcpServer, long))]);
    world.place(1, &[entry(1, "files", State::Realizing)]);
    assert!(world.receipt(1, Verdict::Failed).await.message.len() <= 512);
}

#[tokio::test]
async fn a_dead_server_leaves_the_catalog_at_once() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    let session = world.open(MCP).await;
    let exit = Exit { code: Some(3), signal: None, stderr_tail: "no more canary-secret".into() };
    peer.die(PeerError::Exited { sent: Sent::Maybe, exit });
    let receipt = world.receipt(1, Verdict::Lost).await;
    assert_eq!((receipt.stage, receipt.reason), (StageKind::Publish, Some(Reason::ServerLost)));
    assert!(receipt.message.contains("exit code 3"), "{}", receipt.message);
    assert!(receipt.message.contains("no more [redacted]"), "{}", receipt.message);
    assert!(world.tools(&session).await.is_empty());
}

#[tokio::test]
async fn pings_that_fail_lose_an_idle_server_and_spare_a_busy_one() {
    let (world, peer) = (World::new(), FakePeer::dead());
    world.cluster.policy(allow_all());
    world.realizer.serve("files", &peer, &["read"]);
    world.place(1, &[entry(1, "files", State::Active)]);
    assert_eq!(world.receipt(1, Verdict::Lost).await.reason, Some(Reason::ServerLost));

    // busy: as long as its call runs nobody asks it anything
    let (busy, peer) = (World::new(), FakePeer::silent());
    busy.cluster.policy(allow_all());
    busy.serving(&peer, &["read"]).await;
    let session = busy.open(MCP).await;
    let call = busy.call(&session, "mcp__files__read", json!({}));
    assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
    let asked = peer.asked.lock().unwrap().len();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(peer.asked.lock().unwrap().len(), asked);
    assert_eq!(busy.cluster.receipt(1).unwrap().verdict, Verdict::Done);
}

#[tokio::test]
async fn a_drain_cuts_what_does_not_finish_and_puts_it_on_record() {
    let (world, peer) = (Arc::new(World::new()), FakePeer::silent());
    world.cluster.policy(allow_all());
    world.realizer.serve("files", &peer, &["read"]);
    let short = |state| {
        let mut entry = entry(1, "files", state);
        entry.limits.drain_timeout_ms = 50;
        entry
    };
    world.place(1, &[short(State::Active)]);
    world.published(1).await;
    let session = world.open(MCP).await;
    let caller = world.clone();
    let call =
        tokio::spawn(async move { caller.call(&session, "mcp__files__read", json!({})).await });
    until("the call", || (peer.calls().len() == 1).then_some(())).await;
    world.place(1, &[short(State::Draining)]);
    let receipt =
        until("drain", || world.cluster.receipt(1).filter(|r| r.stage == StageKind::Drain)).await;
    assert_eq!((receipt.evidence.in_flight, receipt.evidence.cut), (Some(1), Some(1)));
    assert_eq!(receipt.reason, Some(Reason::DrainTimeout));
    let reply = call.await.unwrap();
    assert_eq!(reply["error"]["data"]["reason"], "OutcomeUnknown");
    let ended = world.call_records().pop().unwrap().entry;
    assert_eq!(ended.outcome, Some(Outcome::OutcomeUnknown));
}

#[tokio::test]
async fn stages_for_another_host_epoch_or_fingerprint_are_not_acted_on() {
    let world = World::new();
    world.realizer.script("files", vec![Err(refused())]);
    let wrong = [
        ("/stage/ref/incarnation", json!("inc-0")),
        ("/stage/ref/epoch", json!(1)),
        ("/stage/ref/generation", json!(9)),
        ("/stage/ref/sessionUid", json!("another")),
        ("/stage/fingerprint", json!("sha256:another")),
        ("/limits/callTimeoutMs", json!(1)),
    ];
    for (pointer, value) in wrong {
        world.place(2, &[]);
        let good = world.generation(2, &entry(1, "files", State::Realizing));
        let mut bad = serde_json::to_value(good).unwrap();
        *bad.pointer_mut(pointer).unwrap() = value;
        world.cluster.write(|session| session["status"]["attachments"] = json!([bad]));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(world.realizer.attempts("files"), 0, "{pointer}");
    }
}

#[tokio::test]
async fn another_gateways_sessions_are_left_alone_and_given_up() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    world.cluster.write(|session| {
        session["status"]["host"] =
            json!({"gateway": "gateway-1", "incarnation": "inc-9", "epoch": 2});
    });
    until("leaving", || world.sessions.get(&key()).is_none().then_some(())).await;
    until("closing", || (peer.closes.load(Ordering::SeqCst) == 1).then_some(())).await;
    let reply = world.send(post(MCP, TOKEN, None, "{}")).await;
    assert_eq!((reply.status.as_u16(), &*reply.reason()), (503, "Rescheduling"));
}

#[tokio::test]
async fn a_deleted_session_is_gone() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    world.cluster.delete();
    until("leaving", || world.sessions.get(&key()).is_none().then_some(())).await;
    assert_eq!(world.send(post(MCP, TOKEN, None, "{}")).await.status, 404);
}

/// A journal in which one Session's epoch rises only when it may.
struct Gated {
    journal: Memory,
    held: &'static str,
    free: Notify,
    raised: AtomicBool,
}

impl Append for Gated {
    fn append<'a>(
        &'a self,
        chain: &'a Chain,
        epoch: i64,
        entry: Written,
    ) -> BoxFuture<'a, Result<Position, AppendError>> {
        self.journal.append(chain, epoch, entry)
    }

    fn raise_epoch<'a>(
        &'a self,
        chain: &'a Chain,
        epoch: i64,
    ) -> BoxFuture<'a, Result<(), AppendError>> {
        Box::pin(async move {
            match chain {
                Chain::Session(uid) if uid == self.held => {
                    self.free.notified().await;
                    self.raised.store(true, Ordering::SeqCst);
                }
                // the other one never
                _ => std::future::pending().await,
            }
            self.journal.raise_epoch(chain, epoch).await
        })
    }
}

#[tokio::test]
async fn news_of_a_session_that_is_gone_says_nothing_of_its_namesake() {
    let journal = Memory::new();
    let gated = Arc::new(Gated {
        journal: journal.clone(),
        held: "uid-session",
        free: Notify::new(),
        raised: AtomicBool::new(false),
    });
    let world = World::hosted_over(
        gated.clone(),
        (journal, "inc-1"),
        Times::default(),
        (None, Namespaces::default()),
    );
    world.realizer.serve("files", &FakePeer::answering("{}"), &["read"]);
    world.place(1, &[]);
    until("the take-over", || world.sessions.get(&key())).await;
    world.cluster.write(|session| session["metadata"]["uid"] = json!("uid-namesake"));
    world.place(1, &[entry(1, "files", State::Realizing)]);
    let namesake = || world.sessions.get(&key()).filter(|h| h.uid == "uid-namesake");
    until("the namesake", namesake).await;
    gated.free.notify_one();
    until("the late epoch", || gated.raised.load(Ordering::SeqCst).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.realizer.attempts("files"), 0, "its own epoch is not raised yet");
}

#[tokio::test]
async fn a_conflict_is_read_again_and_written() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    world.cluster.policy(allow_all());
    world.realizer.serve("files", &peer, &["read"]);
    world.place(1, &[entry(1, "files", State::Realizing)]);
    // the operator writes, and the gateway's watch has not seen it yet
    {
        let mut stored = world.cluster.stored.lock().unwrap();
        stored.version += 1;
        stored.session["metadata"]["resourceVersion"] = json!(stored.version.to_string());
    }
    let receipt = world.receipt(1, Verdict::Done).await;
    assert_eq!(receipt.evidence.tool_count, Some(1));
    assert_eq!(world.cluster.stored.lock().unwrap().conflicts, 1);
}

#[tokio::test]
async fn a_take_over_ends_open_calls_first_and_answers_503_until_then() {
    let journal = Memory::new();
    let at = Timestamp::UNIX_EPOCH;
    let intent = Written {
        call: Some("call-of-old".into()),
        tool: Some("read".into()),
        attachment: Some("files".into()),
        generation: Some(1),
        ..Written::new(at, Kind::Intent)
    };
    journal.raise_epoch(&chain(), 1).await.unwrap();
    journal.append(&chain(), 1, intent).await.unwrap();
    journal.break_with(Some("not mounted"));

    let world = World::with(journal, "inc-2");
    world.cluster.policy(allow_all());
    let peer = FakePeer::answering("{}");
    world.realizer.script("files", vec![Err(refused()), Err(refused()), Ok((peer, vec!["read"]))]);
    world.place(2, &[entry(1, "files", State::Active)]);
    let reply = world.send(post(MCP, TOKEN, None, "{}")).await;
    assert_eq!((reply.status.as_u16(), &*reply.reason()), (503, "Rescheduling"));
    assert_eq!(reply.headers["retry-after"], "1");
    world.journal.break_with(None);
    world.published(1).await;
    let session = world.open(MCP).await;
    assert_eq!(world.tools(&session).await, ["mcp__files__read"]);
    let ended = world.call_records().into_iter().find(|r| r.entry.kind == Kind::Outcome).unwrap();
    assert_eq!(ended.entry.call.as_deref(), Some("call-of-old"));
    assert_eq!(ended.entry.outcome, Some(Outcome::OutcomeUnknown));
    assert_eq!(ended.entry.reason, Some(Reason::HostLost));
    let published = world.records().iter().position(|r| r.entry.kind == Kind::Lifecycle);
    assert!(published > Some(1), "the open call ended first");
}

#[tokio::test]
async fn a_server_that_does_not_come_back_fails_and_the_others_serve() {
    let (world, peer) = (World::with(Memory::new(), "inc-2"), FakePeer::answering("{}"));
    world.cluster.policy(json!([
        {"attachment": "files", "defaultPermission": "Allow"},
        {"attachment": "issues", "defaultPermission": "Allow"}]));
    world.realizer.serve("files", &peer, &["read"]);
    world.realizer.script("issues", vec![Err(refused())]);
    world.place(2, &[entry(1, "files", State::Active), entry(2, "issues", State::Active)]);
    let receipt = world.receipt(2, Verdict::Failed).await;
    assert_eq!((receipt.stage, receipt.reason), (StageKind::Publish, Some(Reason::ConnectFailed)));
    let session = world.open(MCP).await;
    assert_eq!(world.tools(&session).await, ["mcp__files__read"]);
}

#[tokio::test]
async fn a_server_that_hangs_after_a_take_over_is_given_up() {
    let (world, peer) = (World::with(Memory::new(), "inc-2"), FakePeer::answering("{}"));
    world.cluster.policy(json!([
        {"attachment": "files", "defaultPermission": "Allow"},
        {"attachment": "issues", "defaultPermission": "Allow"}]));
    world.realizer.serve("files", &peer, &["read"]);
    world.realizer.hang("issues");
    world.place(2, &[entry(1, "files", State::Active), entry(2, "issues", State::Active)]);
    assert_eq!(world.receipt(2, Verdict::Failed).await.reason, Some(Reason::HandshakeTimeout));
    let session = world.open(MCP).await;
    assert_eq!(world.tools(&session).await, ["mcp__files__read"]);
}

#[tokio::test]
async fn a_journal_that_is_down_delays_the_take_over() {
    let journal = Memory::new();
    journal.break_with(Some("not mounted"));
    let (world, peer) = (World::with(journal, "inc-1"), FakePeer::answering("{}"));
    world.cluster.policy(allow_all());
    world.realizer.serve("files", &peer, &["read"]);
    world.place(1, &[entry(1, "files", State::Realizing)]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.realizer.attempts("files"), 0, "nothing before the epoch is raised");
    world.journal.break_with(None);
    world.receipt(1, Verdict::Done).await;
}

#[tokio::test]
async fn a_changed_list_reaches_the_catalog_and_the_receipt() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    let session = world.open(MCP).await;
    world.realizer.lists.lock().unwrap().insert("files".into(), vec!["read", "new"]);
    let sink = world.realizer.sinks.lock().unwrap()[&1].clone();
    let method = "notifications/tools/list_changed".to_owned();
    for _ in 0..3 {
        sink(PeerEvent::Notification { method: method.clone(), params: None });
    }
    until("the receipt", || world.cluster.receipt(1).filter(|r| r.evidence.tool_count == Some(2)))
        .await;
    assert_eq!(world.tools(&session).await.len(), 2);
    let events = || world.cluster.stored.lock().unwrap().events.clone();
    until("the event", || (events().len() == 1).then_some(())).await;
    assert_eq!((events()[0].1, &*events()[0].2), (Reason::ToolQuarantined, "\"odd [redacted]\""));
}

#[tokio::test]
async fn noise_is_told_once() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    world.serving(&peer, &["read"]).await;
    let sink = world.realizer.sinks.lock().unwrap()[&1].clone();
    for count in 1..=36 {
        sink(PeerEvent::Noise { count, sample: "hello canary-secret".into() });
    }
    let told = || world.cluster.stored.lock().unwrap().events.clone();
    until("the event", || (!told().is_empty()).then_some(())).await;
    sink(PeerEvent::Noise { count: 37, sample: "again".into() });
    tokio::time::sleep(Duration::from_millis(150)).await;
    let [(attachment, reason, message)] = &told()[..] else { panic!("{:?}", told()) };
    assert_eq!((&**attachment, *reason), ("files", Reason::ProtocolNoise));
    assert!(message.contains("36") && message.contains("hello [redacted]"), "{message}");
}

#[tokio::test]
async fn a_stop_cuts_calls_and_puts_them_on_record() {
    let (world, peer) = (World::new(), FakePeer::silent());
    world.cluster.policy(allow_all());
    world.serving(&peer, &["read"]).await;
    let session = world.open(MCP).await;
    let request = post(
        MCP,
        TOKEN,
        Some(&session),
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp__files__read"}}"#,
    );
    let call = tokio::spawn(tower::ServiceExt::oneshot(world.router.clone(), request));
    until("the call", || (peer.calls().len() == 1).then_some(())).await;
    let journal = world.shut_down().await;
    let last = journal.records(&chain()).pop().unwrap().entry;
    assert_eq!(last.outcome, Some(Outcome::OutcomeUnknown));
    assert!(call.await.unwrap().unwrap().status().is_success());
}
