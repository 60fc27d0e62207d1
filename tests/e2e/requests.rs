//! Callers and requests that are wrong, at the gateway as it runs: who may not, gets nothing; what
//! is malformed gets a JSON-RPC error and the connection stays.

use crate::support::{
    LIMIT, Server, Team,
    objects::object,
    team::{AGENT, CALLER, called},
    until,
};
use awaken_stub::mcp_client::Client;
use http::Method;
use serde_json::json;

#[tokio::test]
async fn tokens_and_rights_are_looked_at_first() {
    let team = Team::new("rights").await;
    let server = Server::start(&team, "remote", json!({})).await;
    team.http("remote", server.url()).await;
    team.agent(&["remote"]).await;
    team.ready("remote").await;
    for name in ["stranger", "viewer"] {
        team.apply(object("ServiceAccount", name, json!({}))).await;
    }
    team.apply(object(
        "Role",
        "viewer",
        json!({"rules": [
        {"apiGroups": ["awaken.dev"], "resources": ["sessions"], "verbs": ["get"]}]}),
    ))
    .await;
    team.apply(object(
        "RoleBinding",
        "viewer",
        json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "viewer"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": team.name}]}),
    ))
    .await;
    let before = server.seen().await.len();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let good = team.token(CALLER, "awaken-gateway").await;
    let wrong_audience = team.token(CALLER, "https://kubernetes.default.svc").await;
    let stranger = team.token("stranger", "awaken-gateway").await;
    let viewer = team.token("viewer", "awaken-gateway").await;
    let cases = [
        (None, AGENT, 401),
        (Some(""), AGENT, 401),
        (Some("no-token-at-all"), AGENT, 401),
        (Some(wrong_audience.as_str()), AGENT, 401),
        (Some(stranger.as_str()), AGENT, 404),
        (Some(viewer.as_str()), AGENT, 403),
        (Some(good.as_str()), "no-such-session", 404),
        (Some(good.as_str()), AGENT, 200),
    ];
    // a right that was just given may take a moment to be seen
    until("the viewer's right is known", LIMIT, || async {
        let mut client = Client::new(&team.url(AGENT, "mcp").await, Some(&viewer)).unwrap();
        let reply =
            client.send(Method::POST, hello.to_string()).await.map_err(|e| e.to_string())?;
        if reply.status == 403 { Ok(()) } else { Err(format!("HTTP {}", reply.status)) }
    })
    .await;
    for (token, session, status) in cases {
        let mut client = Client::new(&team.url(session, "mcp").await, token).unwrap();
        let reply = client.send(Method::POST, hello.to_string()).await.unwrap();
        assert_eq!(reply.status, status, "{session} {}", reply.text());
        if status == 401 {
            let challenge = reply.headers.get("www-authenticate").expect("a challenge");
            assert!(challenge.to_str().unwrap().starts_with("Bearer"));
        }
        if status == 404 {
            // the same words, whether there is such a Session or not
            assert!(!reply.text().contains(session), "{}", reply.text());
        }
    }
    let mut evil = Client::new(&team.url(AGENT, "mcp").await, Some(&good)).unwrap();
    evil.headers.push(("origin".to_owned(), "https://evil.test".to_owned()));
    assert_eq!(evil.send(Method::POST, hello.to_string()).await.unwrap().status, 403);
    assert_eq!(server.seen().await.len(), before, "nothing behind was reached");
    // client headers and tokens never travel on
    let mut client = Client::new(&team.url(AGENT, "mcp").await, Some(&good)).unwrap();
    client.headers.push(("x-private".to_owned(), "mine".to_owned()));
    client.initialize().await.unwrap();
    called(&mut client, "mcp__remote__echo", json!({})).await.unwrap();
    for seen in server.seen().await {
        assert!(seen.header("authorization").is_none() && seen.header("x-private").is_none());
    }
    team.end().await;
}

#[tokio::test]
async fn malformed_requests_get_an_error_and_the_connection_stays() {
    let team = Team::new("malformed").await;
    team.stdio("local", json!({})).await;
    team.agent(&["local"]).await;
    team.ready("local").await;
    let mut client = team.client_of("mcp/local").await;
    let cases = [
        ("not json", "{", -32700, "null"),
        ("a batch", r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, "null"),
        ("an empty batch", "[]", -32600, "null"),
        ("no envelope", r#"{"hello":1}"#, -32600, "null"),
        (
            "a method nobody knows",
            r#"{"jsonrpc":"2.0","id":"m-7","method":"no/such"}"#,
            -32601,
            r#""m-7""#,
        ),
        (
            "a key twice",
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"echo","arguments":{"a":1,"a":2}}}"#,
            -32602,
            "3",
        ),
        (
            "params of a wrong kind",
            r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":"x"}"#,
            -32602,
            "4",
        ),
        (
            "an unknown tool",
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"nope"}}"#,
            -32602,
            "5",
        ),
        (
            "a bad cursor",
            r#"{"jsonrpc":"2.0","id":6,"method":"tools/list","params":{"cursor":"bogus"}}"#,
            -32602,
            "6",
        ),
    ];
    for (what, body, code, id) in cases {
        let reply = client.send(Method::POST, body).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&reply.body)
            .unwrap_or_else(|_| panic!("{what}: {}", reply.text()));
        assert_eq!(answer["error"]["code"], code, "{what}: {answer}");
        assert_eq!(answer["id"].to_string(), id, "{what}: {answer}");
        assert!(!answer["error"]["message"].as_str().unwrap().is_empty(), "{what}");
        called(&mut client, "echo", json!({}))
            .await
            .unwrap_or_else(|why| panic!("after {what}: {why}"));
    }
    let mut unknown = Client::new(&team.url(AGENT, "mcp").await, None).unwrap();
    unknown.session = Some("no-such-session".to_owned());
    unknown.headers = client.headers.clone();
    assert_eq!(unknown.request("ping", &json!({})).await.unwrap().status, 404);
    unknown.session = None;
    assert_eq!(unknown.request("ping", &json!({})).await.unwrap().status, 400);
    team.end().await;
}
