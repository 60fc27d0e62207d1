//! Parts of the product that are killed or restarted. Each of these tests runs alone.

use crate::support::{
    LIMIT, Server, Team,
    cluster::SYSTEM,
    objects::shown,
    team::{AGENT, called},
    until,
};
use awaken_stub::mcp_client::text_of;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::time::Duration;

async fn gateway_pod(team: &Team) -> Value {
    let all = team.cluster.component("gateway").await;
    all.into_iter().find(|p| p["metadata"]["deletionTimestamp"].is_null()).expect("a gateway")
}

/// Ends a pod at once, without its grace.
async fn kill(team: &Team, pod: &Value) {
    let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let name = pod["metadata"]["name"].as_str().unwrap();
    let _ = team.cluster.api("Pod", Some(SYSTEM)).delete(name, &params).await.unwrap();
}

#[tokio::test]
async fn a_gateway_killed_in_a_call_leaves_one_run_and_an_unknown_outcome() {
    let team = Team::alone("gw-kill").await;
    let server = Server::start(&team, "remote", json!({})).await;
    team.stdio("local", json!({})).await;
    team.http("remote", server.url()).await;
    team.agent(&["local", "remote"]).await;
    team.ready("local").await;
    team.ready("remote").await;
    let mut reader = team.client().await;
    called(&mut reader, "mcp__local__count_read", json!({})).await.unwrap();
    let before = team.trace().await;
    let pods_before = uids(&team.session_pods().await);

    let mut running = vec![];
    for name in ["local", "remote"] {
        let mut client = team.client().await;
        running.push(tokio::spawn(async move {
            client.call(&format!("mcp__{name}__count"), &json!({"ms": 120_000})).await
        }));
    }
    until("both calls are on their way", LIMIT, || async {
        let all = team.trace().await;
        let sent = all.iter().filter(|r| r["kind"] == "Intent" && r["tool"] == "count").count();
        if sent == 2 { Ok(()) } else { Err(format!("{all:#?}")) }
    })
    .await;
    until("the servers have begun", LIMIT, || async {
        for name in ["local", "remote"] {
            let mut client = team.client().await;
            let now = called(&mut client, &format!("mcp__{name}__count_read"), json!({})).await;
            if now.as_deref().ok() != Some("1") {
                return Err(format!("{name} {now:?}"));
            }
        }
        Ok(())
    })
    .await;
    let killed = gateway_pod(&team).await;
    kill(&team, &killed).await;
    for call in running {
        assert!(call.await.unwrap().is_err(), "the connection broke");
    }
    team.cluster.available("awaken-gateway").await;
    team.ready("local").await;
    team.ready("remote").await;

    let mut client = team.client().await;
    for name in ["local", "remote"] {
        // the Session opens before its servers are back
        let count = until("the server is back", LIMIT, || async {
            let mut client = team.client().await;
            let answer = client.call(&format!("mcp__{name}__count_read"), &json!({})).await;
            let answer = answer.map_err(|e| format!("{e:#}"))?;
            let again = answer["error"]["data"]["reason"] == "Rescheduling";
            if again { Err(answer.to_string()) } else { Ok(answer) }
        })
        .await;
        assert_eq!(text_of(&count), "1", "{name}: it ran once");
    }
    let trace = until("both are on record as unknown", LIMIT, || async {
        let all = team.trace().await;
        let unknown = all.iter().filter(|r| r["outcome"] == "OutcomeUnknown").count();
        if unknown == 2 { Ok(all) } else { Err(format!("{all:#?}")) }
    })
    .await;
    assert_eq!(trace[..before.len()], before[..], "what was on record stays");
    for intent in trace.iter().filter(|r| r["kind"] == "Intent") {
        let ends = trace.iter().filter(|r| r["kind"] == "Outcome" && r["call"] == intent["call"]);
        assert_eq!(ends.count(), 1, "one outcome for {intent}");
    }
    // the child outlived the gateway, and was initialized once
    assert_eq!(uids(&team.session_pods().await), pods_before);
    let seen: Value =
        serde_json::from_str(&called(&mut client, "mcp__local__seen", json!({})).await.unwrap())
            .unwrap();
    assert_eq!(seen["methods"]["initialize"], 1, "{seen}");
    let session = team.get("Session", AGENT).await.unwrap();
    assert!(session["status"]["host"]["epoch"].as_i64().unwrap() > 1, "{}", shown(&session));
    for name in ["local", "remote"] {
        let found = team.get("McpAttachment", name).await.unwrap();
        assert_eq!(found["status"]["activeGeneration"], found["status"]["desiredGeneration"]);
    }
    team.end().await;
}

fn uids(pods: &[Value]) -> Vec<String> {
    let mut all: Vec<_> =
        pods.iter().map(|p| p["metadata"]["uid"].as_str().unwrap().to_owned()).collect();
    all.sort();
    all
}

#[tokio::test]
async fn a_restarted_operator_changes_nothing() {
    let team = Team::alone("op-restart").await;
    let server = Server::start(&team, "remote", json!({})).await;
    team.stdio("local", json!({})).await;
    team.http("remote", server.url()).await;
    team.agent(&["local", "remote"]).await;
    team.ready("local").await;
    team.ready("remote").await;
    let state = async || {
        let mut all = vec![];
        for (kind, name) in [
            ("McpAttachment", "local"),
            ("McpAttachment", "remote"),
            ("Agent", AGENT),
            ("Session", AGENT),
        ] {
            let found = team.get(kind, name).await.unwrap();
            all.push((name.to_owned(), found["metadata"]["resourceVersion"].clone()));
        }
        all
    };
    // the last writes of coming up
    until("the Agent is Ready", LIMIT, || async {
        let found = team.get("Agent", AGENT).await.unwrap();
        let ready = crate::support::objects::condition(&found, "Ready")["status"] == "True";
        ready.then_some(()).ok_or_else(|| shown(&found))
    })
    .await;
    let (before, pods) = (state().await, uids(&team.session_pods().await));
    let mut client = team.client().await;
    let mut slow = team.client().await;
    let running =
        tokio::spawn(
            async move { called(&mut slow, "mcp__local__sleep", json!({"ms": 8000})).await },
        );
    for pod in team.cluster.component("operator").await {
        kill(&team, &pod).await;
    }
    called(&mut client, "mcp__local__echo", json!({})).await.expect("calls need no operator");
    team.cluster.available("awaken-operator").await;
    // proof that the new one works: something new becomes Ready
    team.stdio("newer", json!({"name": "newer"})).await;
    team.agent(&["local", "remote", "newer"]).await;
    team.ready_within("newer", LIMIT * 2).await;
    assert_eq!(running.await.unwrap().unwrap(), "slept");
    let after = state().await;
    assert_eq!(after[..2], before[..2], "no attachment was written");
    let now = uids(&team.session_pods().await);
    assert!(pods.iter().all(|uid| now.contains(uid)), "the pods are the same");
    team.end().await;
}

#[tokio::test]
async fn a_deleted_session_pod_is_replaced_without_a_restart() {
    let team = Team::new("pod-gone").await;
    team.stdio("local", json!({})).await;
    team.agent(&["local"]).await;
    team.ready("local").await;
    let mut client = team.client_of("mcp/local").await;
    called(&mut client, "echo", json!({})).await.unwrap();
    let pods = team.session_pods().await;
    team.delete("Pod", pods[0]["metadata"]["name"].as_str().unwrap()).await;
    until("calls work again", Duration::from_secs(45), || async {
        let mut client = team.client_of("mcp/local").await;
        let ok = called(&mut client, "echo", json!({})).await;
        let now = uids(&team.session_pods().await);
        let replaced = now.len() == 1 && now != uids(&pods);
        if ok.is_ok() && replaced { Ok(()) } else { Err(format!("{ok:?} {now:?}")) }
    })
    .await;
    team.ready("local").await;
    team.end().await;
}
