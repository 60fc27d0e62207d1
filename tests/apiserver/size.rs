//! A full-size object of each kind, created, applied and server-side applied: the bounds keep it
//! below what etcd and `kubectl apply` take.

use crate::server::{ADMIN, GATEWAY, OPERATOR, Server, object};
use http::Method;
use serde_json::{Value, json};

/// `kubectl apply` keeps the object in an annotation of at most this size.
const ANNOTATIONS: usize = 256 * 1024;
/// etcd's limit for a request.
const ETCD: usize = 1_572_864;

fn name(head: &str, i: usize, length: usize) -> String {
    let head = format!("{head}{i}");
    format!("{head}{}", "x".repeat(length - head.len()))
}

/// Created; then applied over it by server-side apply.
async fn both_ways(server: &Server, object: &Value) -> Value {
    let size = object.to_string().len();
    assert!(size < ANNOTATIONS, "{size} bytes do not fit kubectl's annotation");
    server.create(object).await.ok();
    server.apply(object).await.ok()
}

#[tokio::test]
async fn an_agent() {
    let server = Server::new().await;
    let tools = |s| -> Value {
        (0..256)
            .map(|i| json!({"name": name(&format!("tool-{s}-"), i, 128), "permission": "Allow"}))
            .collect()
    };
    let sets: Value = (0..64)
        .map(|i| {
            let tools = if i < 4 { tools(i) } else { json!([]) };
            json!({"attachment": name("a", i, 63), "tools": tools})
        })
        .collect();
    let quantities: Value = (0..16)
        .map(|i| (format!("example.com/{i}"), json!("1")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let exports: Value = (0..64)
        .map(|i| json!({"attachment": "a".repeat(253), "tool": "t".repeat(128), "name": name("e", i, 64)}))
        .collect();
    let spec = json!({"environment": {"image": format!("a/{}", "b".repeat(510)), "workspace": {"mountPath": format!("/{}", "w".repeat(255))},
        "resources": {"limits": quantities, "requests": quantities}}, "toolSets": sets, "exports": exports});
    let made = object("Agent", "full", spec);
    let stored = both_ways(&server, &made).await;
    assert_eq!(stored["spec"]["toolSets"][3]["tools"].as_array().unwrap().len(), 256);
    assert_eq!(stored["spec"]["exports"].as_array().unwrap().len(), 64);
}

#[tokio::test]
async fn an_attachment() {
    let server = Server::new().await;
    let env: Value =
        (0..64).map(|i| json!({"name": name("E", i, 12), "value": "v".repeat(500)})).collect();
    let secrets: Value = (0..32)
        .map(|i| json!({"name": name("S", i, 128), "secretKeyRef": {"name": "s".repeat(16), "key": "k".repeat(16)}}))
        .collect();
    let args: Value = (0..64).map(|_| json!("a".repeat(512))).collect();
    let stdio =
        json!({"command": "c".repeat(1024), "args": args, "env": env, "secretEnv": secrets});
    let spec = json!({"agentRef": {"name": "a".repeat(63)}, "serverName": "s".repeat(63), "sandboxStdio": stdio});
    let made = object("McpAttachment", "full", spec);
    let mut stored = both_ways(&server, &made).await;
    let args = &mut stored["spec"]["sandboxStdio"]["args"];
    assert_eq!(args.as_array().unwrap().len(), 64);

    // The look for secrets reaches the end of it, within its own cost limits.
    args[63] = json!("--token=abcdef123");
    let last = json!({"spec": {"sandboxStdio": {"args": args}}});
    let said = server.merge(crate::server::ADMIN, &made, "", &last).await;
    assert!(said.warnings.join(" ").contains("put it into a Secret"), "{:?}", said.warnings);
    said.ok();

    let spec = json!({"agentRef": {"name": "a"}, "http": {"url": format!("https://mcp.example.com/{}", "p".repeat(1000)),
        "credential": {"secretKeyRef": {"name": "s".repeat(253), "key": "k".repeat(253)}, "header": "H".repeat(128), "scheme": "B".repeat(64)}}});
    both_ways(&server, &object("McpAttachment", "full-http", spec)).await;
}

fn generation_ref(generation: i64) -> Value {
    json!({"sessionUid": "u".repeat(36), "attachmentUid": "v".repeat(36), "generation": generation,
        "incarnation": "i".repeat(36), "epoch": 9_007_199_254_740_991_i64})
}

fn digest() -> String {
    format!("sha256:{}", "f".repeat(64))
}

/// A generation with everything in it. Ordinary names are short; the longest are in `full`.
pub fn generation(generation: i64, attachment: &str, message: &str) -> Value {
    let half = generation % 2 == 0;
    let http = json!({"http": {"url": format!("https://mcp.example.com/{}", "p".repeat(if message.len() > 99 { 1000 } else { 1 })),
        "credential": {"secret": "s".repeat(63), "key": "k".repeat(63), "header": "Authorization", "scheme": "Bearer"}}});
    let secrets: Value =
        (0..32).map(|_| json!({"secret": "s".repeat(16), "key": "k".repeat(16)})).collect();
    let pod = json!({"sandboxStdio": {"name": "p".repeat(63), "uid": "u".repeat(36), "address": "fd00:1111:2222:3333:4444:5555:6666:7777",
        "secrets": if message.len() > 99 { secrets } else { json!([]) }}});
    json!({"generation": generation, "attachment": attachment, "attachmentUid": "v".repeat(36), "origin": "Session", "server": "s".repeat(63),
        "source": digest(), "state": "Active", "stage": {"kind": "Publish", "ref": generation_ref(generation), "fingerprint": digest()},
        "target": if half { http } else { pod },
        "limits": {"startupTimeoutMs": 3_600_000, "callTimeoutMs": 3_600_000, "drainTimeoutMs": 3_600_000,
            "maxConcurrentCalls": 1024, "maxMessageBytes": 67_108_864},
        "reason": "UnsupportedProtocolVersion", "message": message, "since": "2026-01-02T03:04:05.123456789Z",
        "deadline": "2026-01-02T03:04:05.123456789Z", "failures": 9, "evidence": evidence(), "published": true})
}

fn evidence() -> Value {
    json!({"protocolVersion": "2025-11-25", "serverInfo": "i".repeat(256), "toolCount": 999_999, "surfaceDigest": digest(),
        "inFlight": 999_999, "cut": 999_999})
}

/// As many attachments of its own as a Session brings, as long as they can be.
fn own_set() -> Value {
    let env: Value =
        (0..2).map(|i| json!({"name": name("E", i, 12), "value": "v".repeat(90)})).collect();
    let secrets: Value = (0..4)
        .map(|i| json!({"name": name("S", i, 128), "secretKeyRef": {"name": "s".repeat(16), "key": "k".repeat(16)}}))
        .collect();
    let args: Value = (0..3).map(|_| json!("a".repeat(80))).collect();
    let stdio = json!({"command": "c".repeat(550), "args": args, "env": env, "secretEnv": secrets});
    let own: Value = (0..16)
        .map(|i| json!({"name": name("o", i, 253), "serverName": name("s", i, 63), "sandboxStdio": stdio}))
        .collect();
    let sets: Value = (0..16)
        .map(|i| {
            let tools: Value = (0..16)
                .map(
                    |t| json!({"name": name(&format!("tool-{i}-"), t, 128), "permission": "Allow"}),
                )
                .collect();
            json!({"attachment": name("o", i, 253), "tools": tools})
        })
        .collect();
    json!({"agentRef": {"name": "a".repeat(253)}, "attachments": own, "toolSets": sets})
}

/// 64 attachments with 3 live generations each, every message at its limit, and as many receipts.
#[tokio::test]
async fn a_session() {
    let server = Server::new().await;
    let message = "m".repeat(512);
    let generations: Value =
        (0..192).map(|i| generation(i + 1, &name("a", i as usize / 3, 253), &message)).collect();
    let receipts: Value = (0..192)
        .map(|i| json!({"generation": i + 1, "stage": "Publish", "ref": generation_ref(i + 1), "fingerprint": digest(), "verdict": "Failed",
            "evidence": evidence(), "reason": "UnsupportedProtocolVersion", "message": message, "at": "2026-01-02T03:04:05.123456789Z"}))
        .collect();
    let made = object("Session", "full", own_set());
    let spec = made.to_string().len();
    assert!(spec < ANNOTATIONS, "{spec} bytes do not fit kubectl's annotation");
    // kubectl apply keeps the spec twice.
    let mut made = made;
    let applied = "kubectl.kubernetes.io/last-applied-configuration";
    made["metadata"]["annotations"] = json!({applied: made.to_string()});
    let path = format!("/apis/awaken.dev/v1alpha1/namespaces/{}/sessions", server.namespace);
    server.call(OPERATOR, Method::POST, &path, "application/json", Some(&made)).await.ok();
    let environment = json!({"revision": 7, "spec": {"image": "a".repeat(512)}, "imageDigest": "d".repeat(512), "since": "2026-01-02T03:04:05Z"});
    let status = json!({"status": {"phase": "Serving", "lastGeneration": 192, "attachments": generations, "environment": environment}});
    server.merge(OPERATOR, &made, "/status", &status).await.ok();
    let receipts = json!({"status": {"receipts": receipts}});
    let stored = server.merge(GATEWAY, &made, "/status", &receipts).await.ok();
    let size = stored.to_string().len();
    println!("a full-size Session has {size} bytes of JSON, {ETCD} are allowed");
    assert!(size < ETCD);
    // A change of the full-size object passes the policies too: their cost stays within bounds.
    server.merge(OPERATOR, &made, "/status", &json!({"status": {"summary": "64/64"}})).await.ok();
    server.merge(GATEWAY, &made, "/status", &json!({"status": {"receipts": []}})).await.ok();

    // And the same by server-side apply, where nobody wrote it before: what two managers set is
    // noted for both.
    let mut whole = object("Session", "applied", own_set());
    let path = server.path(&whole);
    let apply = async |account: &str, path: String, whole: &Value| {
        let kind = "application/apply-patch+yaml";
        server.call(account, Method::PATCH, &path, kind, Some(whole)).await.ok()
    };
    apply(ADMIN, format!("{path}?fieldManager=user"), &whole).await;
    whole["status"] = status["status"].clone();
    let path = format!("{path}/status?fieldManager=awaken-operator&force=true");
    let applied = apply(OPERATOR, path, &whole).await;
    let size = applied.to_string().len();
    println!("by server-side apply it has {size}");
}
