//! Attachments that a Session brings itself, as its gateway serves them: under the Session's
//! ToolSets, in the place of the Agent's of the same name, never in its name.

use super::{platform, support::*};
use awaken_operator::domain::lifecycle::{State, Verdict};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

fn sets(name: &str, permission: &str) -> Value {
    json!([{"attachment": name, "defaultPermission": permission}])
}

fn agent(world: &World, max: &str) {
    let spec = json!({"toolSets": sets("files", "Allow"), "sessionAttachments": {"max": max}});
    world.cluster.agent("team-a/coder", 1, spec);
}

fn bring(world: &World, tool_sets: Value) {
    world.cluster.write(|session| session["spec"]["toolSets"] = tool_sets);
}

/// The Agent's `files` serves, then the Session's own takes its place.
async fn outranking(world: &World) -> (Arc<FakePeer>, Arc<FakePeer>) {
    let agents = FakePeer::answering(r#"{"content":[{"type":"text","text":"agent"}]}"#);
    let own_peer = FakePeer::answering(r#"{"content":[{"type":"text","text":"own"}]}"#);
    world.serving(&agents, &["read", "write"]).await;
    world.realizer.serve("files", &own_peer, &["read", "more"]);
    world.place(1, &[entry(1, "files", State::Active), own(2, "files", State::Realizing)]);
    world.receipt(2, Verdict::Done).await;
    world.place(1, &[entry(1, "files", State::Draining), own(2, "files", State::Active)]);
    world.published(2).await;
    (agents, own_peer)
}

#[tokio::test]
async fn a_sessions_own_serves_in_the_place_of_the_agents_under_its_own_tool_set() {
    let world = World::new();
    agent(&world, "Allow");
    bring(
        &world,
        json!([{"attachment": "files", "tools": [{"name": "more", "permission": "Allow"}]}]),
    );
    let (agents, own_peer) = outranking(&world).await;
    let session = world.open(MCP).await;
    assert_eq!(world.tools(&session).await, ["mcp__files__more"]);
    let denied = world.call(&session, "mcp__files__read", json!({})).await;
    assert_eq!(denied["error"]["data"]["reason"], "UnknownTool", "the Agent's ToolSet allows it");
    let said = world.call(&session, "mcp__files__more", json!({})).await;
    assert_eq!(said["result"]["content"][0]["text"], "own");
    assert!(agents.calls().is_empty() && own_peer.calls().len() == 1);
}

#[tokio::test]
async fn a_set_is_replaced_and_taken_back_under_calls_and_none_of_them_fails() {
    let world = World::new();
    agent(&world, "Allow");
    let [agents, mine, again] = ["agent", "own", "again"].map(|name| {
        let text: &'static str = match name {
            "agent" => r#"{"content":[{"type":"text","text":"agent"}]}"#,
            "own" => r#"{"content":[{"type":"text","text":"own"}]}"#,
            _ => r#"{"content":[{"type":"text","text":"again"}]}"#,
        };
        FakePeer::answering(text)
    });
    world.serving(&agents, &["read"]).await;
    let session = world.open(MCP).await;
    let said = Mutex::new(vec![]);
    let heard = async |text: &str| {
        until(text, || said.lock().unwrap().iter().any(|s| s == text).then_some(())).await;
    };
    let calling = async {
        loop {
            let answer = world.call(&session, "mcp__files__read", json!({})).await;
            let text = answer["result"]["content"][0]["text"].as_str();
            said.lock().unwrap().push(text.unwrap_or_else(|| panic!("{answer}")).to_owned());
            tokio::task::yield_now().await;
        }
    };
    let switching = async {
        heard("agent").await;
        // The set comes, and with it another one that does not come up.
        world.realizer.serve("files", &mine, &["read"]);
        world.realizer.hang("other");
        bring(
            &world,
            json!([{"attachment": "files", "defaultPermission": "Allow"}, {"attachment": "other"}]),
        );
        let others = [own(2, "files", State::Realizing), own(3, "other", State::Realizing)];
        let [files, other] = others;
        world.place(1, &[entry(1, "files", State::Active), files, other]);
        world.receipt(2, Verdict::Done).await;
        world.place(1, &[entry(1, "files", State::Draining), own(2, "files", State::Active)]);
        heard("own").await;
        // It goes again, its ToolSet first, and the Agent's comes back.
        world.realizer.serve("files", &again, &["read"]);
        bring(&world, json!([]));
        world.place(1, &[own(2, "files", State::Active), entry(4, "files", State::Realizing)]);
        world.receipt(4, Verdict::Done).await;
        world.place(1, &[own(2, "files", State::Draining), entry(4, "files", State::Active)]);
        heard("again").await;
    };
    tokio::select! {
        () = switching => {}
        () = calling => {}
    }
    let said = said.lock().unwrap();
    let first = |text: &str| said.iter().position(|s| s == text).unwrap();
    assert!(first("agent") < first("own") && first("own") < first("again"));
    let last_of_own = said.iter().rposition(|s| s == "own").unwrap();
    assert!(last_of_own < first("again"), "nothing reaches what drains");
}

#[tokio::test]
async fn a_leave_that_is_taken_back_holds_for_the_next_call() {
    let world = World::new();
    agent(&world, "Allow");
    bring(&world, sets("files", "Allow"));
    let (_, own_peer) = outranking(&world).await;
    let session = world.open(MCP).await;
    assert!(world.call(&session, "mcp__files__read", json!({})).await["result"].is_object());
    agent(&world, "Deny");
    let denied = world.call(&session, "mcp__files__read", json!({})).await;
    assert_eq!(denied["error"]["data"]["reason"], "UnknownTool");
    assert_eq!(world.tools(&session).await, Vec::<String>::new());
    assert_eq!(own_peer.calls().len(), 1);
}

#[tokio::test]
async fn what_was_taken_out_of_the_set_is_called_as_before_until_it_drains() {
    let world = World::new();
    agent(&world, "Allow");
    bring(&world, sets("files", "Allow"));
    outranking(&world).await;
    let session = world.open(MCP).await;
    // The next set has another attachment, which is on its way.
    world.realizer.hang("next");
    bring(&world, sets("next", "Allow"));
    world.place(1, &[own(2, "files", State::Active), own(3, "next", State::Realizing)]);
    let said = world.call(&session, "mcp__files__read", json!({})).await;
    assert!(said["result"].is_object(), "{said}");
    assert_eq!(world.tools(&session).await, ["mcp__files__read", "mcp__files__more"]);
}

#[tokio::test]
async fn a_tool_set_that_changes_holds_for_the_next_call_without_a_new_generation() {
    let world = World::new();
    agent(&world, "Allow");
    bring(&world, sets("files", "Allow"));
    outranking(&world).await;
    let session = world.open(MCP).await;
    bring(&world, sets("files", "Deny"));
    let denied = world.call(&session, "mcp__files__read", json!({})).await;
    assert_eq!(denied["error"]["data"]["reason"], "UnknownTool");
}

#[tokio::test]
async fn an_export_of_the_agents_never_leads_to_what_a_session_brings() {
    let world = platform::open(&platform::FakeManagement::answering("{}"));
    let spec = json!({
        "toolSets": sets("files", "Allow"), "sessionAttachments": {"max": "Allow"},
        "exports": [platform::export("coder_read", "read")],
    });
    world.cluster.agent("team-a/coder", 1, spec);
    bring(&world, sets("files", "Allow"));
    let (_, own_peer) = outranking(&world).await;
    world.place(1, &[own(2, "files", State::Active)]);
    let hosted = world.sessions.get(&key()).unwrap();
    until("the Agent's is gone", || {
        hosted.catalogs.load().awaited("files").is_none().then_some(())
    })
    .await;
    let session = platform::begin(&world, platform::BEARER).await;
    let refused = platform::call(&world, &session, "coder_read", json!({})).await;
    assert_eq!(refused["error"]["data"]["reason"], "NotServing", "{refused}");
    assert!(!platform::names(&world, &session).await.contains(&"coder_read".to_owned()));
    assert!(own_peer.calls().is_empty());
}
