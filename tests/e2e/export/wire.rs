//! Refused forms at `/v1/mcp` as they stand on the wire, and names that two Agents want.

use super::exporting;
use crate::support::{
    Endpoint, Server, Team,
    endpoint::HELLO,
    objects::{condition, object, shown, stub_image},
    team::{called, http as http_attachment},
    until,
};
use awaken_operator::domain::export::MANAGEMENT_TOOLS;
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(20);

#[tokio::test]
async fn what_is_refused_is_refused_with_its_status_and_reason() {
    let team = Team::new("mcp-refused").await;
    let endpoint = Endpoint::shared(&team.cluster).await;
    let mut good = endpoint.connected().await;
    let session = good.session.clone().unwrap();

    // before MCP: who shows no valid bearer learns nothing else, whatever is asked
    let basic = format!("Basic {}", endpoint.token);
    let lower = format!("bearer {}", endpoint.token);
    let bearer = format!("Bearer {}", endpoint.token);
    let longer = format!("{bearer}x");
    for (what, shown, status) in [
        ("no header", vec![], 401),
        ("an empty bearer", vec!["Bearer "], 401),
        ("another scheme", vec![basic.as_str()], 401),
        ("a wrong bearer", vec!["Bearer wrong"], 401),
        ("a longer bearer", vec![longer.as_str()], 401),
        ("two headers", vec![bearer.as_str(), bearer.as_str()], 401),
        ("the scheme in small letters", vec![lower.as_str()], 200),
        ("the bearer", vec![bearer.as_str()], 200),
    ] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let mut client = endpoint.client(None);
            client.headers.extend(shown.iter().map(|v| ("authorization".to_owned(), (*v).into())));
            let reply =
                client.send(method.clone(), if method == Method::POST { HELLO } else { "" });
            let reply = reply.await.unwrap();
            // with a bearer, GET and DELETE lack a session
            let expected = if status == 200 && method != Method::POST { 400 } else { status };
            assert_eq!(reply.status, expected, "{what}, {method}: {}", reply.text());
            assert_eq!(reply.status == 401, reply.headers.contains_key("www-authenticate"));
        }
    }
    for (name, value) in [("origin", "https://evil.test"), ("x-forwarded-host", "ignored.test")] {
        let mut client = endpoint.client(Some(&endpoint.token));
        client.headers.push((name.to_owned(), value.to_owned()));
        let status = client.send(Method::POST, HELLO).await.unwrap().status;
        assert_eq!(status, if name == "origin" { 403 } else { 200 }, "{name}");
    }

    // MCP sessions
    assert_eq!(good.send(Method::POST, HELLO).await.unwrap().status, 400, "a second initialize");
    for (other, status) in [(Some("no-such-session"), 404), (None, 400)] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let mut client = endpoint.client(Some(&endpoint.token));
            client.session = other.map(str::to_owned);
            let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
            let body = if method == Method::POST { ping } else { "" };
            let reply = client.send(method.clone(), body).await.unwrap();
            assert_eq!(reply.status, status, "{other:?} {method}: {}", reply.text());
        }
    }
    // a session of this route is none at another, and the bearer is no token there
    let mut elsewhere = endpoint.client(Some(&endpoint.token));
    elsewhere.path = format!("/v1/sessions/{}/coder/mcp", team.name);
    elsewhere.session = Some(session);
    assert_eq!(elsewhere.request("ping", &json!({})).await.unwrap().status, 401);

    // JSON-RPC
    let call = |id: u64, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)
    };
    let cases = [
        ("not json", "{".to_owned(), -32700, None),
        (
            "a batch",
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#.to_owned(),
            -32600,
            Some("BatchRefused"),
        ),
        ("no envelope", r#"{"hello":1}"#.to_owned(), -32600, None),
        (
            "a method nobody knows",
            r#"{"jsonrpc":"2.0","id":2,"method":"prompts/list"}"#.to_owned(),
            -32601,
            None,
        ),
        (
            "a bad cursor",
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"cursor":"bogus"}}"#
                .to_owned(),
            -32602,
            None,
        ),
        ("an unknown tool", call(4, r#"{"name":"nope"}"#), -32602, Some("UnknownTool")),
        ("a tool to come", call(5, r#"{"name":"approvals_list"}"#), -32602, Some("UnknownTool")),
        (
            "a tool of a Session",
            call(6, r#"{"name":"mcp__remote__echo"}"#),
            -32602,
            Some("UnknownTool"),
        ),
        (
            "a key twice",
            call(7, r#"{"name":"agents_list","arguments":{"limit":1,"limit":2}}"#),
            -32602,
            Some("RepeatedKey"),
        ),
        (
            "arguments of a wrong kind",
            call(8, r#"{"name":"agents_list","arguments":[]}"#),
            -32602,
            None,
        ),
        (
            "params of a wrong kind",
            r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":"x"}"#.to_owned(),
            -32602,
            None,
        ),
    ];
    for (what, body, code, reason) in cases {
        let reply = good.send(Method::POST, body).await.unwrap();
        let answer: Value = serde_json::from_slice(&reply.body)
            .unwrap_or_else(|_| panic!("{what}: {}", reply.text()));
        assert_eq!(answer["error"]["code"], code, "{what}: {answer}");
        if let Some(reason) = reason {
            assert_eq!(answer["error"]["data"]["reason"], reason, "{what}: {answer}");
        }
        called(&mut good, "agents_list", json!({})).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    }

    // DELETE ends the session
    assert!((200..300).contains(&good.send(Method::DELETE, "").await.unwrap().status));
    assert_eq!(good.request("ping", &json!({})).await.unwrap().status, 404);
    team.end().await;
}

#[tokio::test]
async fn the_older_agent_keeps_a_name_and_a_policy_holds_at_once() {
    let team = Team::managed("e2e-mcp-wire").await;
    let endpoint = Endpoint::exporting(&team).await;
    let server = Server::start(&team, "remote", json!({"tools": ["echo", "count"]})).await;
    let exports = |other: &str| {
        json!([{"attachment": "remote", "tool": "echo", "name": "wire_echo"},
               {"attachment": "remote", "tool": "count", "name": other}])
    };
    let allow = json!([{"attachment": "remote", "defaultPermission": "Allow"}]);
    let agent = |more: Value, allow: &Value| exporting("elder", &stub_image(), allow.clone(), more);
    team.apply(agent(exports("wire_count"), &allow)).await;
    team.apply(http_attachment("remote", "elder", json!({"url": server.url()}))).await;
    team.ready("remote").await;
    let shown_tools = async |expected: &[&str]| {
        until(&format!("the list is {expected:?}"), SECONDS, || async {
            let tools = endpoint.connected().await.tools().await.map_err(|e| e.to_string())?;
            let whole = MANAGEMENT_TOOLS.iter().chain(expected);
            if whole.eq(tools.iter()) { Ok(()) } else { Err(format!("{tools:?}")) }
        })
        .await;
    };
    shown_tools(&["wire_count", "wire_echo"]).await;

    // a younger one wants the same name: younger by a second, as the API server counts
    let elder = team.get("Agent", "elder").await.unwrap()["metadata"]["creationTimestamp"].clone();
    until("a second has passed", SECONDS, || async {
        let now = team.apply(object("ConfigMap", "clock", json!({}))).await;
        team.delete("ConfigMap", "clock").await;
        let later = now["metadata"]["creationTimestamp"] != elder;
        later.then_some(()).ok_or_else(|| elder.to_string())
    })
    .await;
    let sets = json!([{"attachment": "other", "defaultPermission": "Allow"}]);
    let wants = json!([{"attachment": "other", "tool": "echo", "name": "wire_echo"}]);
    team.apply(exporting("younger", &stub_image(), sets, wants)).await;
    let url = format!("{}?of=younger", server.url());
    team.apply(http_attachment("other", "younger", json!({"url": url}))).await;
    let told = async |agent: &str, reason: &str| {
        until(&format!("{agent} is told {reason}"), SECONDS, || async {
            let found = team.get("Agent", agent).await.ok_or("none")?;
            let accepted = condition(&found, "Accepted");
            let ok = accepted["status"] == "False" && accepted["reason"] == reason;
            if ok {
                Ok(accepted["message"].as_str().unwrap().to_owned())
            } else {
                Err(shown(&found))
            }
        })
        .await
    };
    let message = told("younger", "DuplicateExport").await;
    assert!(message.contains("wire_echo") && message.contains("elder"), "{message}");
    team.ready("other").await;

    // what the ToolSet denies is neither shown nor callable, and the Agent is told
    let mut client = endpoint.connected().await;
    called(&mut client, "wire_count", json!({})).await.unwrap();
    let deny = json!([{"attachment": "remote", "defaultPermission": "Allow",
        "tools": [{"name": "count", "permission": "Deny"}]}]);
    team.apply(agent(exports("wire_count"), &deny)).await;
    shown_tools(&["wire_echo"]).await;
    let answer = client.call("wire_count", &json!({})).await.unwrap();
    assert_eq!(answer["error"]["data"]["reason"], "UnknownTool", "{answer}");
    let message = told("elder", "ExportNotCallable").await;
    assert!(message.contains("wire_count"), "{message}");

    // names that cannot be, and modes that cannot export
    let refused = async |agent: Value, words: &str| {
        let said = team.cluster.apply(Some(&team.name), &agent).await.unwrap_err().to_string();
        assert!(said.contains(words), "{words} is not in: {said}");
    };
    refused(agent(exports("agents_list"), &allow), "management tool").await;
    refused(agent(exports("approval_decide"), &allow), "management tool").await;
    let mut on_demand = agent(exports("wire_count"), &allow);
    on_demand["metadata"]["name"] = json!("batch");
    on_demand["spec"]["session"] = json!({"mode": "OnDemand"});
    refused(on_demand, "Standing").await;

    // the elder goes, the younger gets the name
    team.delete("Agent", "elder").await;
    until("the younger's tool answers", SECONDS, || async {
        let said = called(&mut endpoint.connected().await, "wire_echo", json!({"n": 1})).await;
        said.map_err(|why| format!("{why:#}"))
    })
    .await;
    let last = server.seen().await.into_iter().rev().find(|s| s.body.contains("tools/call"));
    assert!(last.unwrap().uri.contains("of=younger"));
    team.emptied().await;
}
