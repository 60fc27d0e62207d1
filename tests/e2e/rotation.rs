//! A rotated Secret is used, and no moment is without tools.

use crate::support::{
    LIMIT, Server, Team,
    objects::{object, shown},
    team::{AGENT, called, http, stdio},
    until,
};
use serde_json::json;

async fn secret(team: &Team, value: &str) {
    team.apply(object("Secret", "key", json!({"stringData": {"token": value}}))).await;
}

async fn generation(team: &Team, name: &str, wanted: i64) {
    until(&format!("{name} is at generation {wanted}"), LIMIT, || async {
        let found = team.get("McpAttachment", name).await.ok_or("none")?;
        let there = found["status"]["activeGeneration"] == wanted;
        there.then_some(()).ok_or_else(|| shown(&found))
    })
    .await;
    team.ready(name).await;
}

#[tokio::test]
async fn a_child_gets_the_new_value_and_no_call_fails_meanwhile() {
    let team = Team::new("rotate").await;
    secret(&team, "value-before").await;
    let mut attachment = stdio("local", AGENT, json!({}));
    attachment["spec"]["sandboxStdio"]["secretEnv"] =
        json!([{"name": "KEY", "secretKeyRef": {"name": "key", "key": "token"}}]);
    team.apply(attachment).await;
    team.agent(&["local"]).await;
    team.ready("local").await;
    let mut client = team.client_of("mcp/local").await;
    let before = called(&mut client, "env", json!({})).await.unwrap();
    assert!(before.contains("value-before"));

    let mut caller = team.client_of("mcp/local").await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let load = tokio::spawn(async move {
        let mut calls = 0;
        while !*stopped.borrow() {
            called(&mut caller, "echo", json!({"n": calls})).await?;
            calls += 1;
        }
        anyhow::Ok(calls)
    });
    secret(&team, "value-after").await;
    generation(&team, "local", 2).await;
    let after = called(&mut client, "env", json!({})).await.unwrap();
    assert!(after.contains("value-after") && !after.contains("value-before"));
    // a touched annotation restarts nothing
    let mut touched = object("Secret", "key", json!({"stringData": {"token": "value-after"}}));
    touched["metadata"]["annotations"] = json!({"touched": "yes"});
    team.apply(touched).await;
    until("one pod is left", LIMIT, || async {
        let pods = team.session_pods().await;
        if pods.len() == 1 { Ok(()) } else { Err(format!("{}", pods.len())) }
    })
    .await;
    stop.send_replace(true);
    let calls = load.await.unwrap().expect("no call fails");
    assert!(calls > 10, "{calls}");
    generation(&team, "local", 2).await;
    team.end().await;
}

#[tokio::test]
async fn an_http_server_sees_the_new_value() {
    let team = Team::new("rotate-http").await;
    let server = Server::start(&team, "remote", json!({"http": {"bearer": "value-before"}})).await;
    secret(&team, "value-before").await;
    team.apply(http(
        "remote",
        AGENT,
        json!({"url": server.url(), "insecureCredential": true,
        "credential": {"secretKeyRef": {"name": "key", "key": "token"}}}),
    ))
    .await;
    team.agent(&["remote"]).await;
    team.ready("remote").await;
    secret(&team, "value-after").await;
    // the server does not take it yet: the old one goes on serving, the status says both
    team.refused("remote", "Unauthorized", LIMIT).await;
    let mut client = team.client_of("mcp/remote").await;
    called(&mut client, "echo", json!({})).await.unwrap();
    server.patch(json!({"http": {"bearer": "value-after"}})).await;
    // a permanent failure is tried again on request
    let mut again = http(
        "remote",
        AGENT,
        json!({"url": server.url(), "insecureCredential": true,
        "credential": {"secretKeyRef": {"name": "key", "key": "token"}}}),
    );
    again["metadata"]["annotations"] = json!({"awaken.dev/reconcile-requested-at": "now"});
    team.apply(again).await;
    let ready = team.ready("remote").await;
    assert_eq!(ready["status"]["lastHandledReconcileAt"], "now");
    called(&mut client, "echo", json!({})).await.unwrap();
    let last =
        server.seen().await.into_iter().rev().find(|s| s.body.contains("tools/call")).unwrap();
    assert_eq!(last.header("authorization"), Some("Bearer value-after"));
    team.end().await;
}

#[tokio::test]
async fn a_policy_change_holds_for_the_next_call_without_a_new_generation() {
    let team = Team::new("policy").await;
    team.stdio("local", json!({"tools": ["echo", "count", "count_read"]})).await;
    team.agent(&["local"]).await;
    team.ready("local").await;
    let mut client = team.client_of("mcp/local").await;
    called(&mut client, "count", json!({})).await.unwrap();
    team.apply(crate::support::team::agent(
        AGENT,
        &crate::support::objects::stub_image(),
        vec![json!({"attachment": "local", "defaultPermission": "Allow",
            "tools": [{"name": "count", "permission": "Deny"}]})],
    ))
    .await;
    until("the tool is neither listed nor callable", LIMIT, || async {
        let mut client = team.client_of("mcp/local").await;
        let tools = client.tools().await.map_err(|e| e.to_string())?;
        if tools == ["echo", "count_read"] { Ok(()) } else { Err(format!("{tools:?}")) }
    })
    .await;
    let before = called(&mut client, "count_read", json!({})).await.unwrap();
    let answer = client.call("count", &json!({})).await.unwrap();
    assert_eq!(answer["error"]["data"]["reason"], "UnknownTool", "{answer}");
    assert_eq!(called(&mut client, "count_read", json!({})).await.unwrap(), before);
    generation(&team, "local", 1).await;
    team.end().await;
}
