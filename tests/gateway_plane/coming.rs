//! Servers that are not in service yet, or again: their calls are told to come again, the others
//! serve, and what the policy denies stays unknown.

use super::support::*;
use awaken_operator::{
    domain::{
        lifecycle::{State, Verdict},
        reason::Reason,
        record::{Kind, Outcome},
    },
    journal::memory::Memory,
    mcp::{PeerError, PeerEvent},
};
use serde_json::{Value, json};

fn two(of_issues: Value) -> Value {
    json!([{"attachment": "files", "defaultPermission": "Allow"}, of_issues])
}

/// Code, reason and delay of a refused call.
fn refused(reply: &Value) -> (i64, &str, Option<i64>) {
    let error = &reply["error"];
    let (code, data) = (error["code"].as_i64(), &error["data"]);
    (
        code.unwrap_or_else(|| panic!("{reply}")),
        data["reason"].as_str().unwrap(),
        data["retryAfter"].as_i64(),
    )
}

const AGAIN: (i64, &str, Option<i64>) = (-32603, "Rescheduling", Some(1));
const UNKNOWN: (i64, &str, Option<i64>) = (-32602, "UnknownTool", None);

#[tokio::test]
async fn a_server_that_hangs_after_a_move_keeps_no_other_from_serving() {
    let (world, peer) = (World::with(Memory::new(), "inc-2"), FakePeer::answering("{}"));
    let tools = json!([{"name": "list", "permission": "Allow"}]);
    world.cluster.policy(two(json!({"attachment": "issues", "tools": tools})));
    world.realizer.serve("files", &peer, &["read"]);
    world.realizer.hang("issues");
    world.place(2, &[entry(1, "files", State::Active), entry(2, "issues", State::Active)]);
    world.published(1).await;
    assert!(world.cluster.receipt(2).is_none(), "the other one is still tried");
    let session = world.open(MCP).await;
    assert_eq!(world.tools(&session).await, ["mcp__files__read"]);
    let call = async |tool| world.call(&session, tool, json!({})).await;
    assert!(call("mcp__files__read").await.get("result").is_some());
    let reply = call("mcp__issues__list").await;
    assert_eq!(refused(&reply), AGAIN);
    assert!(reply["error"]["message"].as_str().unwrap().contains("mcp__issues__list"));
    for unknown in ["mcp__issues__close", "mcp__files__list", "mcp__other__list", "list"] {
        assert_eq!(refused(&call(unknown).await), UNKNOWN, "{unknown}");
    }
    let own = world.open("/v1/sessions/team-a/coder/mcp/issues").await;
    let asked =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list"}});
    let path = "/v1/sessions/team-a/coder/mcp/issues";
    let reply = world.send(post(path, TOKEN, Some(&own), &asked.to_string())).await.json();
    assert_eq!(refused(&reply), AGAIN);
    let of_issues: Vec<_> = world
        .call_records()
        .into_iter()
        .map(|r| r.entry)
        .filter(|e| e.generation == Some(2))
        .collect();
    assert_eq!(of_issues.len(), 2);
    for e in of_issues {
        assert_eq!((e.kind, e.reason), (Kind::Refusal, Some(Reason::Rescheduling)));
        assert_eq!((e.attachment.as_deref(), e.outcome), (Some("issues"), None));
    }
    // given up, its successor comes
    assert_eq!(world.receipt(2, Verdict::Failed).await.reason, Some(Reason::HandshakeTimeout));
    assert_eq!(refused(&call("mcp__issues__list").await), AGAIN);
}

#[tokio::test]
async fn tools_that_the_toolset_names_and_the_server_lacks_are_told_and_followed() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    let policy = |names: &[&str]| {
        let tools: Vec<_> =
            names.iter().map(|name| json!({"name": name, "permission": "Allow"})).collect();
        world.cluster.policy(json!([{"attachment": "files", "tools": tools}]));
    };
    policy(&["read", "raed", "wirte"]);
    world.serving(&peer, &["read", "write"]).await;
    let told = || world.cluster.receipt(1).unwrap().evidence.missing_tools;
    assert_eq!(told(), ["raed", "wirte"]);
    // another policy, the same server
    policy(&["read", "wirte"]);
    until("the changed policy", || (told() == ["wirte"]).then_some(())).await;
    // another list, the same policy
    world.realizer.lists.lock().unwrap().insert("files".into(), vec!["read", "wirte"]);
    let sink = world.realizer.sinks.lock().unwrap()[&1].clone();
    let method = "notifications/tools/list_changed".to_owned();
    sink(PeerEvent::Notification { method, params: None });
    until("the changed list", || told().is_empty().then_some(())).await;
    // bounded
    let many: Vec<String> = (0..20).map(|n| format!("{n:02}{}", "x".repeat(126))).collect();
    policy(&many.iter().map(String::as_str).collect::<Vec<_>>());
    until("the first names", || (told() == many[..4]).then_some(())).await;
}

#[tokio::test]
async fn a_restarting_server_is_not_unknown_and_what_it_never_listed_is() {
    let (world, peer) = (World::new(), FakePeer::answering("{}"));
    world.cluster.policy(json!([{"attachment": "files", "defaultPermission": "Allow",
        "tools": [{"name": "write", "permission": "Deny"}]}]));
    world.serving(&peer, &["read", "write"]).await;
    let session = world.open(MCP).await;
    let call = async |tool| world.call(&session, tool, json!({})).await;
    let told = async |when| {
        assert_eq!(refused(&call("mcp__files__read").await), AGAIN, "{when}");
        assert_eq!(refused(&call("mcp__files__write").await), UNKNOWN, "{when}");
        assert_eq!(refused(&call("mcp__files__other").await), UNKNOWN, "{when}");
    };
    peer.die(PeerError::NotMcp("gone".into()));
    world.receipt(1, Verdict::Lost).await;
    told("lost").await;
    world.place(1, &[entry(1, "files", State::Draining)]);
    told("draining").await;
    // failed for the third time just now, so the next try is four minutes away
    world.place(1, &[entry(2, "files", State::Failed)]);
    until("the failure", || {
        let hosted = world.sessions.get(&key())?;
        hosted.catalogs.load().awaited("files").and_then(|coming| coming.next_try)
    })
    .await;
    let reply = call("mcp__files__read").await;
    assert_eq!(refused(&reply), (-32603, "Rescheduling", Some(240)));
    assert!(reply["error"]["message"].as_str().unwrap().contains("240 s"), "{reply}");
    let next = FakePeer::answering(r#"{"next":true}"#);
    world.realizer.serve("files", &next, &["read", "write"]);
    world.place(1, &[entry(2, "files", State::Realizing)]);
    world.receipt(2, Verdict::Done).await;
    told("proven").await;
    world.place(1, &[entry(2, "files", State::Active)]);
    world.published(2).await;
    assert_eq!(call("mcp__files__read").await["result"]["next"], true);
    // the denied one is told apart on record only
    let denied = world.call_records().into_iter().map(|r| r.entry);
    let denied: Vec<_> = denied.filter(|e| e.reason == Some(Reason::Denied)).collect();
    assert_eq!(denied.len(), 3);
    assert!(denied.iter().all(|e| e.outcome == Some(Outcome::Denied)));
    // taken away on purpose: nothing comes
    world.place(1, &[]);
    until("the server to leave", || {
        world.sessions.get(&key())?.catalogs.load().servers().is_empty().then_some(())
    })
    .await;
    assert_eq!(refused(&call("mcp__files__read").await), UNKNOWN);
}
