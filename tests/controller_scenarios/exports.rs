//! What an Agent's status says of its exports.

use crate::{
    fine,
    support::{apiserver::ApiServer, gateway::Gateway, world::*},
};
use serde_json::{Value, json};

/// An Agent of this namespace that exports `read` of its attachment under a name.
fn exporter(namespace: &str, name: &str, export: &str) -> Value {
    let mut agent = agent(name, &["issues"]);
    agent["metadata"]["namespace"] = json!(namespace);
    agent["spec"]["exports"] = json!([{"attachment": "issues", "tool": "read", "name": export}]);
    agent
}

fn attachment(namespace: &str, agent: &str) -> Value {
    let mut attachment = http("issues", agent, "https://mcp.example.com/mcp");
    attachment["metadata"]["namespace"] = json!(namespace);
    attachment
}

async fn until_accepted(api: &ApiServer, namespace: &str, name: &str, reason: &str) -> Value {
    api.wait(&format!("{namespace}/{name} Accepted {reason}"), |api| {
        let agent = api.get("agents", namespace, name)?;
        let told = condition(&agent, "Accepted") == (reason == "Accepted", reason.to_owned());
        told.then_some(agent)
    })
    .await
}

/// An operator, a gateway, and `team-a/coder` in service with the export `coder_read`.
async fn exporting() -> (ApiServer, Operator, Gateway) {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let operator = Operator::start(&api);
    api.apply("agents", exporter(NS, "coder", "coder_read"));
    api.apply("mcpattachments", attachment(NS, "coder"));
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    until_accepted(&api, NS, "coder", "Accepted").await;
    (api, operator, gateway)
}

#[tokio::test(start_paused = true)]
async fn the_older_agent_keeps_a_name_until_it_gives_it_up() {
    for give_up in ["deleted", "renamed"] {
        let (api, _operator, _gateway) = exporting().await;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        api.apply("agents", exporter("team-b", "other", "coder_read"));
        api.apply("mcpattachments", attachment("team-b", "other"));
        let told = until_accepted(&api, "team-b", "other", "DuplicateExport").await;
        let said = message(&told, "Accepted");
        assert!(said.contains("\"coder_read\"") && said.contains("another name"), "{said}");
        assert!(!said.contains("coder\""), "another namespace's Agent is not named: {said}");
        assert!(condition(&told, "Stalled").0);
        api.wait("the whole pair serves", |api| {
            let there = api.get("mcpattachments", "team-b", "issues")?;
            (condition(&there, "Ready") == (true, "Active".into())).then_some(())
        })
        .await;
        let first = api.get("agents", NS, "coder").unwrap();
        assert_eq!(condition(&first, "Accepted"), (true, "Accepted".into()));
        if give_up == "deleted" {
            api.delete("agents", NS, "coder");
        } else {
            api.apply("agents", exporter(NS, "coder", "coder_reads"));
        }
        until_accepted(&api, "team-b", "other", "Accepted").await;
        api.wait("it is ready", |api| {
            let agent = api.get("agents", "team-b", "other")?;
            (condition(&agent, "Ready") == (true, "Ready".into())).then_some(())
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn within_a_namespace_the_older_agent_is_named() {
    let (api, _operator, _gateway) = exporting().await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    api.apply("agents", exporter(NS, "second", "coder_read"));
    let mut pair = attachment(NS, "second");
    pair["metadata"]["name"] = json!("second-issues");
    api.apply("mcpattachments", pair);
    let mut second = exporter(NS, "second", "coder_read");
    second["spec"]["toolSets"] = json!([{"attachment": "second-issues"}]);
    api.apply("agents", second);
    let told = until_accepted(&api, NS, "second", "DuplicateExport").await;
    assert!(message(&told, "Accepted").contains("the older Agent \"coder\""));
    // Made anew, the first is the younger one.
    api.delete("agents", NS, "coder");
    until_accepted(&api, NS, "second", "ExportNotCallable").await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    api.apply("agents", exporter(NS, "coder", "coder_read"));
    until_accepted(&api, NS, "coder", "DuplicateExport").await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_may_not_export_is_told_and_holds_no_name() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    api.apply("agents", exporter("team-c", "first", "shared"));
    api.apply("mcpattachments", attachment("team-c", "first"));
    let told = until_accepted(&api, "team-c", "first", "ExportNotAllowed").await;
    let said = message(&told, "Accepted");
    assert!(said.contains("shared") && said.contains("\"team-c\""), "{said}");
    assert!(said.contains("gateway.mcp.exportNamespaces"), "{said}");
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    api.apply("agents", exporter(NS, "coder", "shared"));
    api.apply("mcpattachments", attachment(NS, "coder"));
    until_accepted(&api, NS, "coder", "Accepted").await;
    let event = api
        .wait("an event", |api| {
            api.all("events").into_iter().find(|e| e["reason"] == "ExportNotAllowed")
        })
        .await;
    assert_eq!(event["regarding"]["name"], "first");
}

#[tokio::test(start_paused = true)]
async fn an_export_that_the_tool_sets_close_is_told_and_opens_with_them() {
    let (api, _operator, _gateway) = exporting().await;
    let denies =
        json!([{"attachment": "issues", "tools": [{"name": "read", "permission": "Deny"}]}]);
    for sets in [denies, json!([{"attachment": "issues"}])] {
        let mut coder = exporter(NS, "coder", "coder_read");
        coder["spec"]["toolSets"] = sets;
        api.apply("agents", coder);
        let told = until_accepted(&api, NS, "coder", "ExportNotCallable").await;
        let said = message(&told, "Accepted");
        assert!(
            said.contains("\"coder_read\"") && said.contains("denies the tool \"read\""),
            "{said}"
        );
        until(&api, "agents", "coder", "Ready", false, "ExportNotCallable").await;
        until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
        api.apply("agents", exporter(NS, "coder", "coder_read"));
        until_accepted(&api, NS, "coder", "Accepted").await;
    }
    let mut coder = exporter(NS, "coder", "coder_read");
    coder["spec"]["exports"][0]["attachment"] = json!("files");
    api.apply("agents", coder);
    let told = until_accepted(&api, NS, "coder", "ExportNotCallable").await;
    assert!(message(&told, "Accepted").contains("\"files\" has no ToolSet"));
}
