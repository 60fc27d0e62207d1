//! Deleting leaves nothing.

use crate::support::{
    LIMIT, Server, Team,
    objects::{LEFT_BEHIND, shown},
    team::{AGENT, CALLER, called},
    until,
};
use serde_json::json;
use std::time::Duration;

/// What is in the namespace and was not made by the test or by Kubernetes itself.
async fn made_by_the_product(team: &Team) -> Vec<String> {
    let mut all = vec![];
    for kind in LEFT_BEHIND {
        for found in team.cluster.list(kind, Some(&team.name), "").await {
            let name = found["metadata"]["name"].as_str().unwrap().to_owned();
            let ours = [CALLER, "default", "kube-root-ca.crt", "remote"].contains(&name.as_str());
            if !ours {
                all.push(format!("{kind}/{name}"));
            }
        }
    }
    all
}

async fn nothing_is_left(team: &Team, but: &[&str]) {
    until("nothing is left", Duration::from_secs(45), || async {
        let all = made_by_the_product(team).await;
        let kept = |o: &String| but.iter().any(|b| o.starts_with(b));
        let left: Vec<_> = all.into_iter().filter(|o| !kept(o)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn an_attachment_goes_with_its_pod_and_its_tools() {
    let team = Team::new("del-mcpa").await;
    team.stdio("first", json!({"name": "first"})).await;
    team.stdio("second", json!({"name": "second"})).await;
    team.agent(&["first", "second"]).await;
    team.ready("first").await;
    team.ready("second").await;
    let mut client = team.client().await;
    assert_eq!(team.session_pods().await.len(), 2);
    team.delete("McpAttachment", "first").await;
    until("one pod is left, of the other", LIMIT, || async {
        let pods = team.session_pods().await;
        if pods.len() == 1 { Ok(()) } else { Err(format!("{}", pods.len())) }
    })
    .await;
    let answer = client.call("mcp__first__echo", &json!({})).await.unwrap();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(called(&mut client, "mcp__second__echo", json!({})).await.is_ok());
    let tools = client.tools().await.unwrap();
    assert!(tools.iter().all(|t| t.starts_with("mcp__second__")), "{tools:?}");
    until("the entry is gone", LIMIT, || async {
        let session = team.get("Session", AGENT).await.ok_or("none")?;
        let left = session["status"]["attachments"].as_array().map_or(0, Vec::len);
        (left == 1).then_some(()).ok_or_else(|| shown(&session))
    })
    .await;
    team.end().await;
}

#[tokio::test]
async fn a_call_in_flight_ends_before_its_server_goes() {
    let team = Team::new("drain").await;
    team.stdio("slow", json!({})).await;
    team.agent(&["slow"]).await;
    team.ready("slow").await;
    let mut client = team.client_of("mcp/slow").await;
    let running =
        tokio::spawn(async move { called(&mut client, "sleep", json!({"ms": 4000})).await });
    team.record("the call is on its way", |r| r["kind"] == "Intent").await;
    team.delete("McpAttachment", "slow").await;
    assert_eq!(running.await.unwrap().unwrap(), "slept");
    let kept = ["Agent/coder", "Session/coder", "NetworkPolicy/coder-sandbox-"];
    nothing_is_left(&team, &kept).await;
    team.end().await;
}

#[tokio::test]
async fn an_agent_goes_with_its_session() {
    let team = Team::new("del-agent").await;
    let server = Server::start(&team, "remote", json!({})).await;
    team.http("over-http", server.url()).await;
    team.stdio("local", json!({})).await;
    team.agent(&["over-http", "local"]).await;
    team.ready("over-http").await;
    team.ready("local").await;
    let mut client = team.client().await;
    team.delete("Agent", AGENT).await;
    team.refused("local", "AgentNotFound", LIMIT).await;
    nothing_is_left(&team, &["McpAttachment/over-http", "McpAttachment/local"]).await;
    assert_eq!(client.request("ping", &json!({})).await.unwrap().status, 404);
    // and it can come back
    team.agent(&["over-http", "local"]).await;
    team.ready("over-http").await;
    team.ready("local").await;
    team.delete("McpAttachment", "local").await;
    team.delete("McpAttachment", "over-http").await;
    team.delete("Agent", AGENT).await;
    nothing_is_left(&team, &[]).await;
    // the server is told that its MCP session is over
    let seen = server.seen().await;
    assert!(seen.iter().any(|s| s.method == "DELETE"), "no DELETE reached the server");
    team.end().await;
}

#[tokio::test]
async fn a_namespace_goes_and_broken_objects_do_not_hold_it() {
    let team = Team::new("del-ns").await;
    team.stdio("local", json!({})).await;
    team.http("nowhere", "http://nowhere.invalid/mcp").await;
    team.agent(&["local", "nowhere", "absent"]).await;
    team.ready("local").await;
    team.end().await;
}
