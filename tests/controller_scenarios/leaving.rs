//! What is being deleted while somebody else's finalizer holds it is told as that.

use super::*;

fn held(mut object: serde_json::Value) -> serde_json::Value {
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    object
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_a_finalizer_holds_is_not_ready_any_more() {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", held(http("issues", "coder", "https://mcp.example.com/mcp")));
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    gateway.script(|_| Answer::Silence);
    api.delete("mcpattachments", NS, "issues");
    let going = until(&api, "mcpattachments", "issues", "Ready", false, "Draining").await;
    assert!(!condition(&going, "Serving").0 && going["status"].get("toolCount").is_none());
    gateway.script(fine);
    let gone = until(&api, "mcpattachments", "issues", "Ready", false, "Removed").await;
    assert!(message(&gone, "Ready").contains("example.com/hold"), "{gone}");
    assert!(condition(&gone, "Reconciling").0, "kstatus calls it Terminating, and so do we");
    let writes = api.writes().len();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let more: Vec<_> = api.writes().split_off(writes);
    assert!(more.iter().all(|w| w.plural == "leases"), "{more:?}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_a_finalizer_holds_is_not_ready_any_more() {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    api.apply("agents", held(agent("coder", &["issues"])));
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    gateway.script(|_| Answer::Silence);
    api.delete("agents", NS, "coder");
    let agent = until(&api, "agents", "coder", "Ready", false, "Draining").await;
    assert!(agent["metadata"]["deletionTimestamp"].is_string(), "{agent}");
    gateway.script(fine);
    let agent = until(&api, "agents", "coder", "Ready", false, "Removed").await;
    assert!(message(&agent, "Ready").contains("example.com/hold"), "{agent}");
    until(&api, "mcpattachments", "issues", "Ready", false, "AgentNotFound").await;
}
