//! A Secret's value stands in its Secret and nowhere else.

use crate::support::{
    LIMIT, Server, Team,
    cluster::{SYSTEM, kubeconfig},
    objects::object,
    team::{AGENT, called, http, stdio},
};
use awaken_stub::mcp_client::Client;
use http::Method;
use serde_json::json;
use tokio::process::Command;

const CANARY: &str = "canary-7c1e52d9b04f-do-not-repeat";
/// Of the same, in base64.
const CANARY64: &str = "Y2FuYXJ5LTdjMWU1MmQ5YjA0Zi1kby1ub3QtcmVwZWF0";

/// Fails if the text holds the value, or a good part of it.
fn clean(place: &str, text: &str) {
    for form in [CANARY, CANARY64, &CANARY[..16]] {
        if let Some(at) = text.find(form) {
            let from = text[..at].char_indices().rev().nth(200).map_or(0, |(i, _)| i);
            panic!("{place} holds the secret: …{}", &text[from..at]);
        }
    }
}

#[tokio::test]
async fn the_value_of_a_secret_is_found_nowhere_else() {
    let team = Team::new("canary").await;
    // servers that are wrong in ways that tempt to repeat what they were told
    let good = Server::start(&team, "good", json!({"http": {"bearer": CANARY}})).await;
    let refusing = Server::start(&team, "refusing", json!({"http": {"bearer": "another"}})).await;
    team.apply(object("Secret", "canary", json!({"stringData": {"token": CANARY}}))).await;
    let reference = json!({"secretKeyRef": {"name": "canary", "key": "token"}});
    for server in [("good", &good), ("refusing", &refusing)] {
        team.apply(http(
            server.0,
            AGENT,
            json!({"url": server.1.url(), "insecureCredential": true,
            "credential": reference}),
        ))
        .await;
    }
    let dies = json!({"handshake": {"mode": "exit", "exit_code": 1, "stderr_env": "KEY"}});
    for (name, script) in [("local", json!({})), ("dying", dies)] {
        let mut attachment = stdio(name, AGENT, script);
        attachment["spec"]["sandboxStdio"]["secretEnv"] =
            json!([{"name": "KEY", "secretKeyRef": reference["secretKeyRef"]}]);
        team.apply(attachment).await;
    }
    team.agent(&["good", "refusing", "local", "dying"]).await;
    team.ready("good").await;
    team.ready("local").await;
    team.refused("refusing", "Unauthorized", LIMIT).await;
    team.refused("dying", "ServerExited", LIMIT).await;

    // it goes through calls in both directions
    let mut client = team.client().await;
    let env = called(&mut client, "mcp__local__env", json!({})).await.unwrap();
    assert!(env.contains(CANARY), "the caller gets what the server says");
    called(&mut client, "mcp__good__echo", json!({"deep": [{"apiKey": CANARY}]})).await.unwrap();
    let _ = client.call("mcp__local__fail", &json!({"message": CANARY})).await.unwrap();
    let _ = client.call("mcp__local__rpc_error", &json!({"message": CANARY})).await.unwrap();
    let _ = client.call(CANARY, &json!({})).await.unwrap();
    let mut wrong = Client::new(&team.url(AGENT, "mcp").await, Some(CANARY)).unwrap();
    assert_eq!(wrong.request("ping", &json!({})).await.unwrap().status, 401);

    let trace = serde_json::to_string(&team.trace().await).unwrap();
    assert!(
        trace.contains("mcp__local__env") || trace.contains("\"env\""),
        "the call is on record"
    );
    clean("the trace", &trace);
    // of pods those of the product: the servers of this test are given the secret to compare with
    let of_the_product = ["--selector", "app.kubernetes.io/component"];
    for kind in [
        "agents.awaken.dev",
        "mcpattachments.awaken.dev",
        "sessions.awaken.dev",
        "pods",
        "events",
        "configmaps",
        "leases.coordination.k8s.io",
        "networkpolicies.networking.k8s.io",
        "services",
        "deployments.apps",
    ] {
        let out = Command::new("kubectl")
            .args(["get", kind, "--all-namespaces", "-o", "json"])
            .args(of_the_product.iter().filter(|_| kind == "pods"))
            .env("KUBECONFIG", kubeconfig())
            .output()
            .await
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        clean(kind, &String::from_utf8_lossy(&out.stdout));
    }
    for secret in team.cluster.list("Secret", None, "").await {
        let own = secret["metadata"]["name"] == "canary"
            && secret["metadata"]["namespace"] == team.name.as_str();
        if !own {
            clean("another Secret", &secret.to_string());
        }
    }
    for component in ["operator", "gateway"] {
        for pod in team.cluster.component(component).await {
            let name = pod["metadata"]["name"].as_str().unwrap();
            clean(&format!("the log of {name}"), &team.cluster.logs(SYSTEM, name).await);
            let ip = pod["status"]["podIP"].as_str().unwrap();
            let mut ops = Client::new(&format!("http://{ip}:9090/metrics"), None).unwrap();
            let metrics = ops.send(Method::GET, "").await.unwrap();
            assert_eq!(metrics.status, 200);
            assert!(metrics.text().contains("awaken_"), "{}", metrics.text());
            clean(&format!("the metrics of {name}"), &metrics.text());
        }
    }
    for pod in team.session_pods().await {
        let name = pod["metadata"]["name"].as_str().unwrap();
        clean(&format!("the log of {name}"), &team.cluster.logs(&team.name, name).await);
    }
    team.end().await;
}
