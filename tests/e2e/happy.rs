//! The good path: real servers and a real client; either order of applying; what passes unchanged.

use crate::support::{
    LIMIT, Server, Team, clients,
    cluster::kubeconfig,
    objects::{object, pod, servers_image},
    team::{AGENT, CALLER, agent, called, http as http_attachment},
    until,
};
use awaken_stub::tools::{FULL, FULL_RESULT};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::process::Command;

#[tokio::test]
async fn real_servers_serve_a_real_client_under_a_policy_with_a_trace() {
    let team = Team::new("happy").await;
    let labels = json!({"app": "everything"});
    let mut server =
        pod("everything", &servers_image(), &["mcp-server-everything", "streamableHttp"], &labels);
    server["spec"]["containers"][0]["env"] = json!([{"name": "PORT", "value": "3001"}]);
    team.apply(server).await;
    team.apply(object(
        "Service",
        "everything",
        json!({"spec": {
            "selector": labels, "ports": [{"port": 80, "targetPort": 3001}],
        }}),
    ))
    .await;
    team.apply(agent(AGENT, &servers_image(), vec![
        json!({"attachment": "files", "tools": [
            {"name": "read_text_file", "permission": "Allow"}, {"name": "write_file", "permission": "Deny"}]}),
        json!({"attachment": "everything", "tools": [{"name": "echo", "permission": "Allow"}]}),
    ]))
    .await;
    team.apply(object(
        "McpAttachment",
        "files",
        json!({"spec": {
            "agentRef": {"name": AGENT},
            "sandboxStdio": {"command": "mcp-server-filesystem", "args": ["/workspace"]},
        }}),
    ))
    .await;
    let url = format!("http://everything.{}.svc.cluster.local/mcp", team.name);
    team.apply(http_attachment("everything", AGENT, json!({"url": url}))).await;
    team.ready("files").await;
    team.ready("everything").await;

    let token = team.token(CALLER, "awaken-gateway").await;
    let report = clients::sdk(&team.url(AGENT, "mcp").await, &token, json!([
        {"tool": "mcp__files__read_text_file", "arguments": {"path": "/workspace/hello.txt"}},
        {"tool": "mcp__everything__echo", "arguments": {"message": "héllo 🦀"}},
        {"tool": "mcp__files__write_file", "arguments": {"path": "/workspace/x", "content": "x"}},
        {"tool": "mcp__files__no_such", "arguments": {}},
    ]))
    .await;
    assert_eq!(report["protocol"], "2025-11-25");
    assert_eq!(report["tools"], json!(["mcp__everything__echo", "mcp__files__read_text_file"]));
    let answers = report["answers"].as_array().unwrap();
    assert!(answers[0]["text"].as_str().unwrap().contains("Hello from the workspace."), "{report}");
    assert!(answers[1]["text"].as_str().unwrap().contains("héllo 🦀"), "{report}");
    // a denied tool and an unknown one look the same
    for refused in &answers[2..] {
        assert_eq!(refused["code"], -32602, "{report}");
        assert_eq!(refused["data"]["reason"], "UnknownTool", "{report}");
    }

    let trace = team.trace().await;
    let of = |kind: &str, tool: &str| {
        let found = trace.iter().filter(|r| r["kind"] == kind && r["tool"] == tool).count();
        assert_eq!(found, 1, "{kind} {tool}: {trace:#?}");
        trace.iter().find(|r| r["kind"] == kind && r["tool"] == tool).unwrap().clone()
    };
    let intent = of("Intent", "read_text_file");
    let user = format!("system:serviceaccount:{}:{CALLER}", team.name);
    assert_eq!(intent["subject"], user.as_str());
    assert_eq!(intent["session"], format!("{}/{AGENT}", team.name).as_str());
    assert_eq!(intent["attachment"], "files");
    assert!(intent["target"].as_str().unwrap().starts_with("stdio:"), "{intent}");
    assert_eq!(of("Intent", "echo")["target"], url.as_str());
    let outcomes = |call: &Value| -> Vec<Value> {
        let mine = trace.iter().filter(|r| r["kind"] == "Outcome" && r["call"] == *call);
        mine.map(|r| r["outcome"].clone()).collect()
    };
    assert_eq!(outcomes(&intent["call"]), ["Succeeded"]);
    // of calls: the client first asks for a newer protocol, which is on record as well
    let refusals: Vec<_> =
        trace.iter().filter(|r| r["kind"] == "Refusal" && r["tool"].is_string()).collect();
    assert_eq!(refusals.len(), 2, "{refusals:#?}");
    // the trace tells which it was
    let reasons: Vec<_> = refusals.iter().map(|r| r["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["Denied", "UnknownTool"]);
    for (index, record) in trace.iter().enumerate() {
        assert_eq!(record["seq"], index as u64 + 1, "no gap");
        if index > 0 {
            assert_eq!(record["previous"], trace[index - 1]["hash"], "one chain");
        }
    }
    team.end().await;
}

#[tokio::test]
async fn the_columns_that_people_see_are_filled() {
    let team = Team::new("columns").await;
    team.stdio("local", json!({"tools": ["echo", "big"]})).await;
    team.agent(&["local"]).await;
    team.ready("local").await;
    let table = until("the Agent is Ready", LIMIT, || async {
        let out = Command::new("kubectl")
            .args(["get", "agt,mcpa,sess", "-n", &team.name])
            .env("KUBECONFIG", kubeconfig())
            .output()
            .await
            .map_err(|why| why.to_string())?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let agent = text.lines().find(|l| l.starts_with("agent.awaken.dev/")).unwrap_or_default();
        if agent.contains("True") { Ok(text) } else { Err(text) }
    })
    .await;
    let words = |start: &str| -> Vec<String> {
        let line =
            table.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{table}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words("agent.awaken.dev/coder")[1..4], ["True", "Ready", "1/1"]);
    assert_eq!(
        words("mcpattachment.awaken.dev/local")[1..6],
        ["coder", "True", "Active", "2", "1"]
    );
    assert_eq!(words("session.awaken.dev/coder")[1..5], ["coder", "Serving", "True", "1/1"]);
    team.end().await;
}

#[tokio::test]
async fn pairs_apply_in_any_order() {
    let team = Team::new("order").await;
    let server =
        Server::start(&team, "remote", json!({"http": {"bearer": "ordered-secret"}})).await;
    let credential = json!({"url": server.url(), "insecureCredential": true,
        "credential": {"secretKeyRef": {"name": "key", "key": "token"}}});
    let parts: [&(dyn Fn(usize) -> Value + Sync); 3] = [
        &|i| {
            agent(
                &format!("a{i}"),
                &crate::support::objects::stub_image(),
                vec![json!({"attachment": format!("m{i}"), "defaultPermission": "Allow"})],
            )
        },
        &|i| {
            let mut http = credential.clone();
            http["credential"]["secretKeyRef"]["name"] = json!(format!("key{i}"));
            http_attachment(&format!("m{i}"), &format!("a{i}"), http)
        },
        &|i| {
            object("Secret", &format!("key{i}"), json!({"stringData": {"token": "ordered-secret"}}))
        },
    ];
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for step in 0..3 {
        for (i, order) in orders.iter().enumerate() {
            team.apply(parts[order[step]](i)).await;
        }
    }
    for i in 0..orders.len() {
        team.ready_within(&format!("m{i}"), Duration::from_secs(20)).await;
    }
    // and what is taken away is seen
    team.delete("Secret", "key0").await;
    team.refused("m0", "SecretNotFound", Duration::from_secs(10)).await;
    team.apply(parts[2](0)).await;
    team.ready_within("m0", Duration::from_secs(10)).await;
    team.end().await;
}

#[tokio::test]
async fn every_byte_of_a_server_passes_on_both_transports() {
    let team = Team::new("bytes").await;
    let server = Server::start(
        &team,
        "remote",
        json!({"http": {"answer": "sse", "newline": "crlf",
        "piece_bytes": 7, "pretty": true, "tight": true}}),
    )
    .await;
    team.http("remote", server.url()).await;
    team.stdio(
        "local",
        json!({"noise": {"banner_lines": 36, "bom": true, "crlf": true, "blank": true,
        "invalid_utf8": true}}),
    )
    .await;
    team.agent(&["remote", "local"]).await;
    team.ready("remote").await;
    team.ready("local").await;
    for name in ["remote", "local"] {
        let mut client = team.client_of(&format!("mcp/{name}")).await;
        let listed = client.request("tools/list", &json!({})).await.unwrap().text();
        let found = client.call("full", &json!({})).await.unwrap();
        let text = client.request("tools/call", &json!({"name": "full"})).await.unwrap().text();
        if name == "local" {
            assert!(listed.contains(FULL), "{listed}");
            assert!(text.contains(FULL_RESULT), "{text}");
        }
        // numbers keep their digits, also where the server breaks the lines
        for digits in ["98765432109876543210", "1.0E2", "1.50"] {
            assert!(listed.contains(digits), "{name} {digits}");
        }
        assert!(text.contains("1e-400") && text.contains("\\u00e9"), "{name} {text}");
        assert_eq!(found["result"]["content"].as_array().unwrap().len(), 5);
    }
    server.patch(json!({"http": {"piece_bytes": 0}})).await;
    for name in ["remote", "local"] {
        let mut client = team.client_of(&format!("mcp/{name}")).await;
        let big = called(&mut client, "big", json!({"bytes": 3 << 20})).await.unwrap();
        assert_eq!(big.len(), (3 << 20) - 80, "{name}");
    }
    let noise = until("an event tells of the noise", LIMIT, || async {
        let all = team.events("local").await;
        all.iter().find(|e| e["reason"] == "ProtocolNoise").cloned().ok_or(format!("{all:#?}"))
    })
    .await;
    assert_eq!(noise["count"].as_u64().unwrap_or(1), 1, "{noise}");
    team.end().await;
}
