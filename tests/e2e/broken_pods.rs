//! Eight ways in which a Session pod does not come into service, side by side: each has a reason of
//! its own within 30 s, and a message that names the object that is to be mended.

use crate::support::{
    Team,
    objects::{object, servers_image, stub_image},
    team::{AGENT, agent, stdio},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

/// From the apply of all of them.
const WITHIN: Duration = Duration::from_secs(30);

/// A generation that allocates until it is killed, before it says anything.
const GREEDY: &str = "const all = []; for (;;) all.push(Buffer.alloc(8 << 20, 1));";
/// A program that talks, but not MCP.
const TALKER: &str = "setInterval(() => console.log('listening on :8080'), 200);";

fn agent_with(name: &str, attachment: &str, image: &str, environment: &Value) -> Value {
    let sets = vec![json!({"attachment": attachment, "defaultPermission": "Allow"})];
    let mut agent = agent(name, image, sets);
    for (key, value) in environment.as_object().unwrap() {
        agent["spec"]["environment"][key] = value.clone();
    }
    agent
}

fn node(name: &str, agent: &str, program: &str) -> Value {
    object(
        "McpAttachment",
        name,
        json!({"spec": {
            "agentRef": {"name": agent},
            "sandboxStdio": {"command": "node", "args": ["-e", program]},
        }}),
    )
}

#[tokio::test]
async fn eight_broken_pods_have_eight_reasons() {
    // a quota and a limit of the namespace concern all pods in it
    let (team, full, narrow) =
        (Team::new("broken").await, Team::new("full").await, Team::new("narrow").await);
    full.apply(object("ResourceQuota", "no-pods", json!({"spec": {"hard": {"pods": "0"}}}))).await;
    let most = json!({"spec": {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]}});
    narrow.apply(object("LimitRange", "small-only", most)).await;
    team.apply(object("Secret", "files-key", json!({"stringData": {"another": "x"}}))).await;

    let cpus = json!({"resources": {"requests": {"cpu": "1000"}, "limits": {"cpu": "1000"}}});
    let little = json!({"resources": {"limits": {"memory": "96Mi", "cpu": "1"}}});
    let much = json!({"resources": {"limits": {"memory": "512Mi"}}});
    let (stub, servers) = (stub_image(), servers_image());
    for agent in [
        agent_with("imageless", "pull", "localhost/no-such-image:1", &json!({})),
        agent_with("big", "huge", &stub, &cpus),
        agent_with("small", "greedy", &servers, &little),
        agent_with("talking", "talker", &servers, &json!({})),
    ] {
        team.apply(agent).await;
    }
    team.agent(&["crash", "keyless"]).await;
    full.agent(&["held"]).await;
    narrow.apply(agent_with(AGENT, "refused", &stub, &much)).await;

    team.apply(stdio("pull", "imageless", json!({}))).await;
    let crash =
        json!({"handshake": {"mode": "exit", "exit_code": 3, "stderr": "no such config: /etc/x"}});
    team.stdio("crash", crash).await;
    let mut keyless = stdio("keyless", AGENT, json!({}));
    keyless["spec"]["sandboxStdio"]["secretEnv"] =
        json!([{"name": "API_KEY", "secretKeyRef": {"name": "files-key", "key": "token"}}]);
    team.apply(keyless).await;
    team.apply(stdio("huge", "big", json!({}))).await;
    team.apply(node("greedy", "small", GREEDY)).await;
    // one that says nothing that fits may only be slow, until its startup deadline
    let mut talker = node("talker", "talking", TALKER);
    talker["spec"]["limits"] = json!({"startupTimeout": "15s"});
    team.apply(talker).await;
    full.stdio("held", json!({})).await;
    narrow.stdio("refused", json!({})).await;

    let mut reasons = BTreeSet::new();
    let began = tokio::time::Instant::now();
    for (team, name, reason, words) in [
        (&team, "pull", "ImagePullFailed", "localhost/no-such-image:1"),
        (&team, "crash", "ServerExited", "no such config: /etc/x"),
        (&team, "keyless", "SecretKeyNotFound", "files-key"),
        (&team, "huge", "Unschedulable", "cpu"),
        (&full, "held", "QuotaExceeded", "no-pods"),
        (&narrow, "refused", "PodRefused", "64Mi"),
        (&team, "greedy", "OutOfMemory", "memory"),
        (&team, "talker", "StartupTimeout", "listening on :8080"),
    ] {
        let left = WITHIN.saturating_sub(began.elapsed());
        let ready = team.refused(name, reason, left).await;
        let message = ready["message"].as_str().unwrap();
        assert!(message.contains(words), "{name}: {message}");
        reasons.insert(reason);
    }
    assert_eq!(reasons.len(), 8);
    for team in [team, full, narrow] {
        team.end().await;
    }
}
