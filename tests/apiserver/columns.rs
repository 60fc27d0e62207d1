//! What kubectl prints: columns, short names and category.

use crate::server::{ADMIN, OPERATOR, Server, TABLE, object};
use http::Method;
use serde_json::{Value, json};

/// Names of the columns, those of `-o wide` after a bar.
async fn columns(server: &Server, plural: &str) -> (String, Vec<Vec<Value>>) {
    let path = format!("/apis/awaken.dev/v1alpha1/namespaces/{}/{plural}", server.namespace);
    let table = server.call(ADMIN, Method::GET, &path, TABLE, None).await.ok();
    let named = |wide: bool| {
        let all = table["columnDefinitions"].as_array().unwrap().iter();
        let some = all.filter(|c| (c["priority"] != 0) == wide);
        some.map(|c| c["name"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
    };
    let rows = table["rows"].as_array().unwrap().iter();
    let rows = rows.map(|r| r["cells"].as_array().unwrap().clone()).collect();
    (format!("{} | {}", named(false), named(true)), rows)
}

fn conditions(reason: &str, message: &str) -> Value {
    json!([{"type": "Ready", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-02T03:04:05Z"}])
}

#[tokio::test]
async fn agents() {
    let server = Server::new().await;
    let made = object("Agent", "coder", json!({}));
    server.create(&made).await.ok();
    let status = json!({"status": {"conditions": conditions("AttachmentMissing", "apply it"), "session": "coder-s", "attachments": "2/3"}});
    server.merge(ADMIN, &made, "/status", &status).await.ok();
    let (names, rows) = columns(&server, "agents").await;
    assert_eq!(names, "Name Ready Reason Attachments Age | Session Message");
    assert_eq!(rows[0][..4], ["coder", "False", "AttachmentMissing", "2/3"]);
    assert_eq!(rows[0][5..], ["coder-s", "apply it"]);
}

#[tokio::test]
async fn attachments() {
    let server = Server::new().await;
    let spec = json!({"agentRef": {"name": "coder"}, "sandboxStdio": {"command": "server"}});
    let made = object("McpAttachment", "files", spec);
    server.create(&made).await.ok();
    let status = json!({"status": {"conditions": conditions("CommandNotFound", "not there"),
        "toolCount": 14, "desiredGeneration": 7, "target": "server /workspace"}});
    server.merge(ADMIN, &made, "/status", &status).await.ok();
    let (names, rows) = columns(&server, "mcpattachments").await;
    assert_eq!(names, "Name Agent Ready Reason Tools Generation Age | Target Message");
    assert_eq!(json!(rows[0][..6]), json!(["files", "coder", "False", "CommandNotFound", 14, 7]));
    assert_eq!(rows[0][7..], ["server /workspace", "not there"]);
}

#[tokio::test]
async fn sessions() {
    let server = Server::new().await;
    let made = object("Session", "coder-s", json!({"agentRef": {"name": "coder"}}));
    let path = format!("/apis/awaken.dev/v1alpha1/namespaces/{}/sessions", server.namespace);
    server.call(OPERATOR, Method::POST, &path, "application/json", Some(&made)).await.ok();
    let status = json!({"status": {"conditions": conditions("NoGateway", "none alive"), "phase": "Rescheduling",
        "summary": "1/4", "host": {"gateway": "gateway-0", "incarnation": "i", "epoch": 5}}});
    server.merge(OPERATOR, &made, "/status", &status).await.ok();
    let (names, rows) = columns(&server, "sessions").await;
    assert_eq!(names, "Name Agent Phase Ready Attachments Host Age | Epoch Message");
    assert_eq!(
        json!(rows[0][..6]),
        json!(["coder-s", "coder", "Rescheduling", "False", "1/4", "gateway-0"])
    );
    assert_eq!(json!(rows[0][7..]), json!([5, "none alive"]));
}

#[tokio::test]
async fn short_names_and_category() {
    let server = Server::new().await;
    let found = server.get("/apis/awaken.dev/v1alpha1").await.ok();
    let kinds = found["resources"].as_array().unwrap().iter();
    let mut seen: Vec<_> = kinds
        .filter(|r| !r["name"].as_str().unwrap().contains('/'))
        .map(|r| format!("{} {} {}", r["name"], r["shortNames"], r["categories"]).replace('"', ""))
        .collect();
    seen.sort();
    assert_eq!(
        seen,
        ["agents [agt] [awaken]", "mcpattachments [mcpa] [awaken]", "sessions [sess] [awaken]"]
    );
}
