//! `/v1/mcp` with the clients that users have: the platform is managed and an Agent's tool is used
//! through it, each call on record.

mod bearer;
mod wire;

use crate::support::{
    Endpoint, Server, Team, clients,
    objects::{condition, object, pod, servers_image, shown, stub_image},
    until,
};
use awaken_operator::domain::export::MANAGEMENT_TOOLS;
use serde_json::{Value, json};
use std::{cell::RefCell, collections::BTreeSet, time::Duration};

/// An Agent with what it exports.
fn exporting(name: &str, image: &str, tool_sets: Value, exports: Value) -> Value {
    object(
        "Agent",
        name,
        json!({"spec": {"environment": {"image": image}, "toolSets": tool_sets, "exports": exports}}),
    )
}

/// The whole list, in its order: every management tool, then what Agents export.
fn whole(exported: &[&str]) -> Value {
    json!([&MANAGEMENT_TOOLS, exported].concat())
}

/// An Agent of which Sessions are made, and the server of one.
async fn on_demand(team: &Team) {
    team.apply(object(
        "Agent",
        "batch",
        json!({"spec": {
            "session": {"mode": "OnDemand"}, "environment": {"image": stub_image()},
            "toolSets": [{"attachment": "steps", "defaultPermission": "Allow"}],
        }}),
    ))
    .await;
    team.apply(crate::support::team::stdio("steps", "batch", json!({}))).await;
}

/// A result of a management tool that is a failure, with this reason.
fn failed<'a>(answer: &'a Value, reason: &str) -> &'a Value {
    assert_eq!(answer["isError"], true, "{answer}");
    let error = &answer["structured"]["error"];
    assert_eq!(error["reason"], reason, "{answer}");
    assert!(answer["text"].as_str().unwrap().contains(error["message"].as_str().unwrap()));
    error
}

#[tokio::test]
async fn the_sdk_manages_the_platform_and_calls_what_an_agent_exports() {
    let team = Team::managed("e2e-mcp-sdk").await;
    let endpoint = Endpoint::exporting(&team).await;
    let here = team.name.as_str();
    team.apply(exporting(
        "coder",
        &servers_image(),
        json!([{"attachment": "files", "tools": [{"name": "read_text_file", "permission": "Allow"}]}]),
        json!([{"attachment": "files", "tool": "read_text_file", "name": "sdk_read"}]),
    ))
    .await;
    on_demand(&team).await;

    let files = json!({"agentRef": {"name": "coder"},
        "sandboxStdio": {"command": "mcp-server-filesystem", "args": ["/workspace"]}});
    let at = |name: &str| json!({"namespace": here, "name": name});
    let waits = |name: &str| json!({"namespace": here, "name": name, "waitSeconds": 90});
    let call = |tool: &str, arguments: Value| json!({"tool": tool, "arguments": arguments});
    let applied = |more: Value| {
        let mut arguments = at("files");
        arguments["spec"] = files.clone();
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call("attachment_apply", arguments)
    };
    let steps = [
        ("agents", call("agents_list", json!({"namespace": here}))),
        ("dry", applied(json!({"dryRun": true}))),
        ("apply", applied(json!({"waitSeconds": 90, "labels": {"story": "sdk"}}))),
        ("shown", json!({"listed": "sdk_read", "is": true})),
        ("read", call("sdk_read", json!({"path": "/workspace/hello.txt"}))),
        ("again", applied(json!({"labels": {"story": "sdk"}}))),
        ("attachments", call("attachments_list", json!({"namespace": here}))),
        ("attachment", call("attachment_get", at("files"))),
        ("agent", call("agent_get", at("coder"))),
        ("trace", call("trace_list", json!({"namespace": here, "session": "coder"}))),
        ("retry", call("attachment_retry", waits("files"))),
        (
            "open",
            call(
                "session_create",
                json!({"namespace": here, "agent": "batch", "name": "one", "waitSeconds": 90}),
            ),
        ),
        ("sessions", call("sessions_list", json!({"namespace": here}))),
        ("session", call("session_get", at("one"))),
        ("close", call("session_close", waits("one"))),
        ("standing", call("session_close", at("coder"))),
        ("no second", call("session_create", json!({"namespace": here, "agent": "coder"}))),
        ("elsewhere", call("attachment_get", json!({"namespace": "kube-system", "name": "x"}))),
        ("absent", call("attachment_get", at("no-such"))),
        ("incomplete", call("attachment_get", json!({"namespace": here}))),
        ("unknown", call("no_such_tool", json!({}))),
        ("denied", call("sdk_write", json!({}))),
        ("delete", call("attachment_delete", waits("files"))),
        ("unshown", json!({"listed": "sdk_read", "is": false})),
        ("away", call("sdk_read", json!({"path": "/workspace/hello.txt"}))),
    ];
    let all: Vec<_> = steps.iter().map(|(_, step)| step.clone()).collect();
    let report = clients::sdk(&endpoint.url, &endpoint.token, json!(all)).await;
    let answers = report["answers"].as_array().unwrap();
    let of = |step: &str| &answers[steps.iter().position(|(name, _)| *name == step).unwrap()];
    let done = |step: &str| {
        assert_eq!(of(step)["isError"], false, "{step}: {}", of(step));
        &of(step)["structured"]
    };

    assert_eq!(report["protocol"], "2025-11-25");
    assert_eq!(report["server"], "awaken-gateway");
    assert_eq!(report["tools"], whole(&[]), "nothing is exported yet");
    assert_eq!(of("shown")["tools"], whole(&["sdk_read"]));
    assert_eq!(of("unshown")["tools"], whole(&[]));
    let used = |tool: &&str| steps.iter().any(|(_, step)| step["tool"] == **tool);
    assert!(MANAGEMENT_TOOLS.iter().all(used), "each tool is used");
    assert!(report["changes"].as_u64().unwrap() >= 2, "{}", report["changes"]);

    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&done("agents")["agents"]), ["batch", "coder"]);
    assert_eq!(done("dry")["dryRun"], true);
    assert_eq!(done("apply")["change"], "Created", "a dry run makes nothing");
    assert_eq!(done("apply")["waited"]["state"], "Ready");
    let health = &done("apply")["attachment"]["health"];
    assert_eq!((&health["ready"], &health["reason"]), (&json!(true), &json!("Active")), "{health}");
    let progress = of("apply")["progress"].as_array().unwrap();
    assert!(!progress.is_empty(), "{}", of("apply"));
    let rises = |p: &[Value]| p[0][0].as_f64() < p[1][0].as_f64();
    assert!(progress.windows(2).all(rises), "{progress:?}");
    assert!(of("read")["text"].as_str().unwrap().contains("Hello from the workspace."));
    assert_eq!(done("again")["change"], "Unchanged");
    assert_eq!(names(&done("attachments")["attachments"]), ["files", "steps"]);
    let tools = done("attachment")["attachment"]["tools"].as_array().unwrap().clone();
    let permission = |tool: &str| {
        tools.iter().find(|t| t["name"] == tool).map(|t| t["permission"].clone()).unwrap()
    };
    assert_eq!(
        (permission("read_text_file"), permission("write_file")),
        (json!("Allow"), json!("Deny"))
    );
    assert_eq!(names(&done("agent")["agent"]["exports"]), ["sdk_read"]);
    let records = done("trace")["records"].as_array().unwrap();
    let intent = records.iter().find(|r| r["kind"] == "Intent").expect("an intent");
    assert_eq!(
        (&intent["subject"], &intent["tool"]),
        (&json!("mcp-bearer"), &json!("read_text_file"))
    );
    assert!(done("retry")["requestedAt"].is_string());
    assert_eq!(done("retry")["waited"]["state"], "Ready", "{}", of("retry"));
    for step in ["apply", "retry", "open", "close", "delete"] {
        assert!(done(step).get("problem").is_none(), "{step}: {}", of(step));
    }
    assert!(done("apply")["written"]["uid"].is_string());
    assert_eq!(done("open")["waited"]["state"], "Ready");
    assert_eq!(names(&done("sessions")["sessions"]), ["coder", "one"]);
    assert_eq!(done("session")["session"]["agent"], "batch");
    assert_eq!(done("session")["session"]["standing"], false);
    assert_eq!(done("close")["waited"]["state"], "Gone");
    assert_eq!(done("delete")["waited"]["state"], "Gone");

    failed(of("standing"), "SessionNotOnDemand");
    failed(of("no second"), "SessionNotOnDemand");
    let elsewhere = failed(of("elsewhere"), "Forbidden");
    assert!(elsewhere["message"].as_str().unwrap().contains("gateway.mcp.management.namespaces"));
    failed(of("absent"), "NotFound");
    assert_eq!(failed(of("incomplete"), "InvalidArguments")["field"], "name");
    for step in ["unknown", "denied"] {
        assert_eq!(of(step)["code"], -32602, "{step}: {}", of(step));
        assert_eq!(of(step)["data"]["reason"], "UnknownTool");
    }
    assert_eq!(of("away")["data"]["reason"], "NotServing", "{}", of("away"));

    assert!(team.get("Session", "one").await.is_none());
    assert!(team.get("McpAttachment", "files").await.is_none());
    // the exported tool went the Session's way, once, under the server's own name
    let trace = team.trace().await;
    let calls: Vec<_> = trace.iter().filter(|r| r["kind"] == "Intent").collect();
    assert_eq!(calls.len(), 1, "{calls:#?}");
    assert_eq!(calls[0]["attachment"], "files");
    let ours = |r: &&Value| r["kind"] == "Outcome" && r["call"] == calls[0]["call"];
    let outcomes: Vec<_> = trace.iter().filter(ours).map(|r| &r["outcome"]).collect();
    assert_eq!(outcomes, ["Succeeded"]);
    let management = |r: &&Value| r["tool"].as_str().is_some_and(|t| MANAGEMENT_TOOLS.contains(&t));
    assert_eq!(trace.iter().filter(management).count(), 0, "they have a chain of their own");
    team.emptied().await;
}

#[tokio::test]
async fn the_inspector_attaches_a_server_and_uses_it() {
    let team = Team::managed("e2e-mcp-inspector").await;
    let endpoint = Endpoint::exporting(&team).await;
    let labels = json!({"app": "everything"});
    let mut server =
        pod("everything", &servers_image(), &["mcp-server-everything", "streamableHttp"], &labels);
    server["spec"]["containers"][0]["env"] = json!([{"name": "PORT", "value": "3001"}]);
    team.apply(server).await;
    team.apply(object(
        "Service",
        "everything",
        json!({"spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 3001}]}}),
    ))
    .await;
    team.apply(exporting(
        "helper",
        &servers_image(),
        json!([{"attachment": "everything", "tools": [{"name": "echo", "permission": "Allow"}]}]),
        json!([{"attachment": "everything", "tool": "echo", "name": "inspector_echo"}]),
    ))
    .await;
    on_demand(&team).await;
    let used = RefCell::new(BTreeSet::new());
    let call = async |tool: &str, arguments: Value| {
        used.borrow_mut().insert(tool.to_owned());
        clients::inspector_call(&endpoint.url, &endpoint.token, tool, arguments).await
    };
    let done = async |tool: &str, arguments: Value| {
        let found = call(tool, arguments).await;
        assert_eq!(found.status, 0, "{tool}: {found:?}");
        found.said["structuredContent"].clone()
    };
    let list = async || {
        let run = clients::inspector(&endpoint.url, &endpoint.token, &["--method", "tools/list"]);
        let found = run.await;
        assert_eq!(found.status, 0, "{found:?}");
        let tools = found.said["tools"].as_array().unwrap().clone();
        (tools.iter().map(|t| t["name"].clone()).collect::<Value>(), tools)
    };

    let (names, tools) = list().await;
    assert_eq!(names, whole(&[]));
    for tool in &tools {
        let writes = ["_apply", "_delete", "_retry", "_create", "_close"];
        let name = tool["name"].as_str().unwrap();
        let expected = !writes.iter().any(|end| name.ends_with(end));
        assert_eq!(tool["annotations"]["readOnlyHint"], expected, "{name}");
        for key in ["title", "description", "inputSchema", "outputSchema"] {
            assert!(!tool[key].is_null(), "{name}: no {key}");
        }
    }

    let spec = json!({"agentRef": {"name": "helper"},
        "http": {"url": format!("http://everything.{}.svc.cluster.local/mcp", team.name)}});
    let arguments =
        json!({"namespace": team.name, "name": "everything", "spec": spec, "waitSeconds": 90});
    let applied = call("attachment_apply", arguments).await;
    assert_eq!(applied.status, 0, "{applied:?}");
    assert_eq!(applied.said["structuredContent"]["waited"]["state"], "Ready", "{applied:?}");
    let echoed = call("inspector_echo", json!({"message": "héllo 🦀"})).await;
    assert_eq!(echoed.status, 0, "{echoed:?}");
    assert!(echoed.said["content"][0]["text"].as_str().unwrap().contains("héllo 🦀"), "{echoed:?}");
    let (names, tools) = list().await;
    assert_eq!(names, whole(&["inspector_echo"]));
    let exported = tools.iter().find(|t| t["name"] == "inspector_echo").unwrap();
    assert!(exported["inputSchema"]["properties"]["message"].is_object(), "{exported}");
    let trace = call("trace_list", json!({"namespace": team.name, "session": "helper"})).await;
    let records = &trace.said["structuredContent"]["records"];
    let outcomes = records.as_array().unwrap().iter().filter(|r| r["kind"] == "Outcome");
    assert_eq!(outcomes.map(|r| r["outcome"].clone()).collect::<Vec<_>>(), ["Succeeded"]);

    // every other tool, each once
    let here = |more: Value| {
        let mut arguments = json!({"namespace": team.name});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        arguments
    };
    let names_of = |list: &Value| -> Value {
        list.as_array().unwrap().iter().map(|o| o["name"].clone()).collect()
    };
    let agents = done("agents_list", here(json!({}))).await;
    assert_eq!(names_of(&agents["agents"]), json!(["batch", "helper"]));
    let helper = done("agent_get", here(json!({"name": "helper"}))).await;
    assert_eq!(names_of(&helper["agent"]["exports"]), json!(["inspector_echo"]));
    let attachments = done("attachments_list", here(json!({"agent": "helper"}))).await;
    assert_eq!(names_of(&attachments["attachments"]), json!(["everything"]));
    let everything = done("attachment_get", here(json!({"name": "everything"}))).await;
    assert_eq!(everything["attachment"]["health"]["reason"], "Active", "{everything}");
    let again = json!({"name": "everything", "waitSeconds": 90});
    let retried = done("attachment_retry", here(again)).await;
    assert_eq!(retried["waited"]["state"], "Ready", "{retried}");
    let made = json!({"agent": "batch", "name": "one", "waitSeconds": 90});
    let made = done("session_create", here(made)).await;
    assert_eq!(made["waited"]["state"], "Ready", "{made}");
    let sessions = done("sessions_list", here(json!({}))).await;
    assert_eq!(names_of(&sessions["sessions"]), json!(["helper", "one"]));
    let one = done("session_get", here(json!({"name": "one"}))).await;
    assert_eq!(one["session"]["agent"], "batch");
    let closed = done("session_close", here(json!({"name": "one", "waitSeconds": 90}))).await;
    assert_eq!(closed["waited"]["state"], "Gone", "{closed}");

    // what the tool says no to is a tool error; a bearer that is not valid is another thing
    let wrong = call("attachment_get", json!({"namespace": "default", "name": "x"})).await;
    assert_eq!(wrong.status, 5, "{wrong:?}");
    let refused =
        clients::inspector(&endpoint.url, "not-the-bearer", &["--method", "tools/list"]).await;
    assert_eq!(refused.status, 3, "{refused:?}");
    assert!(!format!("{refused:?}").contains(&endpoint.token));

    let arguments = json!({"namespace": team.name, "name": "everything", "waitSeconds": 60});
    let deleted = call("attachment_delete", arguments).await;
    assert_eq!(deleted.status, 0, "{deleted:?}");
    let (names, _) = list().await;
    assert_eq!(names, whole(&[]));
    let missing: Vec<_> =
        MANAGEMENT_TOOLS.iter().filter(|t| !used.borrow().contains(**t)).collect();
    assert!(missing.is_empty(), "each tool is used, but {missing:?}");
    team.emptied().await;
}

#[tokio::test]
async fn an_export_that_cannot_be_shown_says_so_and_the_others_are() {
    let team = Team::new("no-export").await;
    let server = Server::start(&team, "remote", json!({})).await;
    team.http("remote", server.url()).await;
    let sets = json!([{"attachment": "remote", "defaultPermission": "Allow"}]);
    let wants = json!([{"attachment": "remote", "tool": "echo", "name": "foreign_echo"}]);
    team.apply(exporting(crate::support::team::AGENT, &stub_image(), sets, wants)).await;
    // its namespace is not among those that may export
    until("the Agent is told", Duration::from_secs(20), || async {
        let found = team.get("Agent", crate::support::team::AGENT).await.ok_or("none")?;
        let accepted = condition(&found, "Accepted");
        let ok = accepted["status"] == "False" && accepted["reason"] == "ExportNotAllowed";
        ok.then_some(()).ok_or_else(|| shown(&found))
    })
    .await;
    team.ready("remote").await;
    let endpoint = Endpoint::shared(&team.cluster).await;
    let tools = endpoint.connected().await.tools().await.unwrap();
    assert!(!tools.contains(&"foreign_echo".to_owned()), "{tools:?}");
    team.end().await;
}
