//! Sessions that nobody uses: what the gateway says of them, and that no call runs in one of which
//! the API server may believe that.

use super::support::*;
use awaken_operator::{
    domain::{
        lifecycle::State,
        record::{Entry as Record, Kind, Outcome},
        usage::Activity,
    },
    journal::{Append as _, memory::Memory},
    mcp::Answer,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const TOOL: &str = "mcp__files__read";

fn limit(world: &World, idle_timeout: &str) {
    world.cluster.agent(
        "team-a/coder",
        1,
        json!({
            "session": {"mode": "OnDemand", "idleTimeout": idle_timeout}, "toolSets": allow_all(),
        }),
    );
}

/// A Session in service that may be idle for so long.
async fn serving(idle_timeout: &str, peer: &Arc<FakePeer>) -> World {
    let world = World::new();
    limit(&world, idle_timeout);
    world.serving(peer, &["read"]).await;
    world
}

async fn until_idle(world: &World) -> Activity {
    until("the word", || world.cluster.activity().filter(|a| a.idle_since.is_some())).await
}

fn writes(world: &World) -> usize {
    world.cluster.stored.lock().unwrap().writes
}

fn now() -> Timestamp {
    use awaken_operator::domain::Clock as _;
    FixedClock.now()
}

#[tokio::test]
async fn an_idle_session_is_told_once() {
    let world = serving("1h", &FakePeer::answering("{}")).await;
    let before = writes(&world);
    limit(&world, "40ms");
    let told = until_idle(&world).await;
    assert_eq!((&*told.incarnation, told.epoch), ("inc-1", 1));
    assert!(told.idle_since.unwrap() <= told.at - SignedDuration::from_millis(40));
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(world.cluster.activity(), Some(told));
    assert_eq!(writes(&world), before + 1);
    let receipts = world.cluster.receipts();
    assert_eq!(receipts.len(), 1, "beside it the receipts stay: {receipts:?}");
}

#[tokio::test]
async fn calls_cost_no_write_and_a_long_one_is_use() {
    let peer = FakePeer::new(|request| {
        Box::pin(async move {
            if request.params.is_some_and(|p| p.as_str().contains("long")) {
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
            Ok(Answer::Result(raw("{}")))
        })
    });
    let world = serving("300ms", &peer).await;
    let (session, before) = (world.open(MCP).await, writes(&world));
    for _ in 0..200 {
        let reply = world.call(&session, TOOL, json!({})).await;
        assert!(reply.get("result").is_some(), "{reply}");
    }
    let reply = world.call(&session, TOOL, json!({"how": "long"})).await;
    assert!(reply.get("result").is_some(), "{reply}");
    assert_eq!((world.cluster.activity(), writes(&world)), (None, before));
    until_idle(&world).await;
    assert_eq!(writes(&world), before + 1);
}

#[tokio::test]
async fn a_call_runs_only_once_the_word_is_taken_back() {
    let (asked, believed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let peer = FakePeer::new({
        let (asked, believed) = (asked.clone(), believed.clone());
        move |request| {
            let wrong = believed.load(Ordering::SeqCst);
            if request.method == "tools/call" {
                asked.store(true, Ordering::SeqCst);
                assert!(!wrong, "the API server believes that nobody calls");
            }
            Box::pin(async { Ok(Answer::Result(raw("{}"))) })
        }
    });
    let world = serving("40ms", &peer).await;
    let session = world.open(MCP).await;
    until_idle(&world).await;
    // long enough that it is not idle again before the test has looked
    limit(&world, "1h");
    believed.store(true, Ordering::SeqCst);
    world.cluster.on_write({
        let believed = believed.clone();
        move |session| {
            let idle = session["status"]["activity"].get("idleSince").is_some();
            believed.store(idle, Ordering::SeqCst);
        }
    });
    let reply = world.call(&session, TOOL, json!({})).await;
    assert!(reply.get("result").is_some() && asked.load(Ordering::SeqCst), "{reply}");
    assert_eq!(world.cluster.activity().unwrap().idle_since, None);
}

#[tokio::test]
async fn a_word_whose_write_had_no_answer_is_taken_back_too() {
    let world = serving("1h", &FakePeer::answering("{}")).await;
    let session = world.open(MCP).await;
    world.cluster.stored.lock().unwrap().lose_answer = true;
    limit(&world, "40ms");
    until_idle(&world).await;
    limit(&world, "1h");
    let reply = world.call(&session, TOOL, json!({})).await;
    assert!(reply.get("result").is_some(), "{reply}");
    assert_eq!(world.cluster.activity().unwrap().idle_since, None);
}

#[tokio::test]
async fn in_a_session_that_is_deleted_for_it_no_call_runs() {
    let peer = FakePeer::answering("{}");
    let world = serving("40ms", &peer).await;
    let session = world.open(MCP).await;
    until_idle(&world).await;
    // the operator was faster, and the watch is behind
    world.cluster.write_unseen(|session| {
        session["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    let reply = world.call(&session, TOOL, json!({})).await;
    assert_eq!(reply["error"]["data"]["reason"], "NotServing", "{reply}");
    assert_eq!(peer.calls(), Vec::<String>::new());
    assert!(world.cluster.activity().unwrap().idle_since.is_some(), "it is not taken back");
    let last = world.call_records().pop().unwrap();
    assert_eq!(last.entry.kind, Kind::Refusal);
}

/// A chain in which one call ended so long ago.
async fn journal(ended: SignedDuration) -> Memory {
    let journal = Memory::new();
    for (kind, at) in [
        (Kind::Intent, now() - SignedDuration::from_hours(2)),
        (Kind::Outcome, now() - ended),
        (Kind::Lifecycle, now()),
    ] {
        let entry = Record {
            call: Some("c-1".into()).filter(|_| kind != Kind::Lifecycle),
            outcome: Some(Outcome::Succeeded).filter(|_| kind == Kind::Outcome),
            ..Record::new(at, kind)
        };
        journal.append(&chain(), 1, entry).await.unwrap();
    }
    journal
}

#[tokio::test]
async fn a_new_host_knows_the_last_call_from_the_journal() {
    let ended = SignedDuration::from_mins(50);
    let world = World::with(journal(ended).await, "inc-2");
    world.realizer.serve("files", &FakePeer::answering("{}"), &["read"]);
    limit(&world, "45m");
    world.place(2, &[entry(1, "files", State::Active)]);
    let told = until_idle(&world).await;
    let off = (now() - ended).duration_since(told.idle_since.unwrap()).abs();
    assert!(off < SignedDuration::from_secs(5), "{told:?}");
    assert_eq!((&*told.incarnation, told.epoch), ("inc-2", 2));
}

#[tokio::test]
async fn what_an_earlier_host_left_open_counts_until_it_is_ended() {
    let journal = Memory::new();
    let at = now() - SignedDuration::from_hours(2);
    let intent = Record { call: Some("c-1".into()), ..Record::new(at, Kind::Intent) };
    journal.append(&chain(), 1, intent).await.unwrap();
    let world = World::with(journal, "inc-2");
    world.realizer.serve("files", &FakePeer::answering("{}"), &["read"]);
    limit(&world, "1h");
    world.place(2, &[entry(1, "files", State::Active)]);
    world.published(1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.cluster.activity(), None, "the gateway died just now, and the call with it");
}
