//! The management tools on a real API server, as an account with the rights that the chart gives:
//! what server-side apply, admission, RBAC, watches and pages really say.

use crate::server::{ADMIN, Server, object};
use awaken_operator::{
    domain::export::MANAGEMENT_TOOLS,
    gateway::{
        export::{Management as _, ManagementContext},
        hosted::Sessions,
        management::{ManagementTools, Parts, Settings},
    },
    journal::memory::Memory,
    mcp::RawJson,
    process::clock::SystemClock,
};
use serde_json::{Value, json};
use std::sync::Arc;

const RBAC: &str = "rbac.authorization.k8s.io";

/// What the chart gives for every tool.
fn rights() -> Value {
    json!([
        {"apiGroups": ["awaken.dev"], "resources": ["agents"], "verbs": ["get", "list"]},
        {"apiGroups": ["awaken.dev"], "resources": ["mcpattachments"],
         "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": ["awaken.dev"], "resources": ["sessions"],
         "verbs": ["get", "list", "watch", "create", "delete"]},
        {"apiGroups": ["awaken.dev"], "resources": ["sessions/trace"], "verbs": ["get"]},
    ])
}

struct Desk {
    server: Server,
    tools: ManagementTools,
}

impl Desk {
    async fn new() -> Self {
        Self::with(&rights(), "ServiceAccount").await
    }

    /// An account with these rights in the test's namespace, bound to it by name or by its group.
    async fn with(rules: &Value, subject: &str) -> Self {
        let server = Server::new().await;
        let ns = server.namespace.clone();
        let subject = match subject {
            "ServiceAccount" => json!({"kind": subject, "name": "awaken-mcp", "namespace": ns}),
            _ => {
                json!({"kind": "Group", "apiGroup": RBAC, "name": format!("system:serviceaccounts:{ns}")})
            }
        };
        let role = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role",
            "metadata": {"name": "awaken-mcp", "namespace": ns}, "rules": rules});
        let binding = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
            "metadata": {"name": "awaken-mcp", "namespace": ns}, "subjects": [subject],
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "awaken-mcp"}});
        server.apply(&role).await.ok();
        server.apply(&binding).await.ok();
        let settings = Settings {
            account: format!("system:serviceaccount:{ns}:awaken-mcp").parse().unwrap(),
            namespaces: [ns].into(),
            exports: MANAGEMENT_TOOLS.iter().map(|n| (*n).to_owned()).collect(),
        };
        let parts = Parts {
            client: server.client(),
            journal: Arc::new(Memory::new()),
            sessions: Sessions::default(),
            clock: Arc::new(SystemClock),
        };
        let desk = Self { server, tools: ManagementTools::new(settings, parts) };
        desk.server
            .until("the rights hold", async || {
                let answer = desk.call("agents_list", json!({})).await;
                answer["isError"] != true
            })
            .await;
        desk
    }

    async fn call(&self, tool: &str, mut arguments: Value) -> Value {
        if arguments.get("namespace").is_none() && !tool.ends_with("s_list") {
            arguments["namespace"] = json!(self.server.namespace);
        }
        let sent = RawJson::of(&arguments).unwrap();
        let context = ManagementContext::default();
        let result = self.tools.call(tool, Some(sent), context).await.unwrap();
        serde_json::from_str(result.as_str()).unwrap()
    }

    async fn good(&self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        assert_ne!(result["isError"], true, "{tool}: {}", result["content"][0]["text"]);
        result["structuredContent"].clone()
    }

    /// Reason, field and message of the failure.
    async fn failed(&self, tool: &str, arguments: Value) -> (String, String, String) {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{tool}: {}", result["content"][0]["text"]);
        let error = &result["structuredContent"]["error"];
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        (text("reason"), text("field"), text("message"))
    }

    async fn agent(&self, name: &str, mode: &str) {
        let spec = json!({"session": {"mode": mode}, "environment": {"image": "tools:1"}});
        self.server.create(&object("Agent", name, spec)).await.ok();
    }
}

fn http(url: &str) -> Value {
    json!({"agentRef": {"name": "coder"}, "http": {"url": url,
        "credential": {"secretKeyRef": {"name": "files-token", "key": "token"}}}})
}

fn files(spec: Value) -> Value {
    json!({"name": "files", "spec": spec})
}

#[tokio::test]
async fn an_attachment_from_its_dry_run_to_its_end() {
    let desk = Desk::new().await;
    let one = json!({"name": "files"});
    let mut dry = files(http("https://one.example.com/mcp"));
    dry["dryRun"] = json!(true);
    let applied = desk.good("attachment_apply", dry).await;
    assert_eq!((&applied["change"], &applied["dryRun"]), (&json!("Created"), &json!(true)));
    assert_eq!(desk.failed("attachment_get", one.clone()).await.0, "NotFound");

    let mut apply = files(http("https://one.example.com/mcp"));
    apply["labels"] = json!({"team": "a"});
    assert_eq!(desk.good("attachment_apply", apply.clone()).await["change"], "Created");
    assert_eq!(desk.good("attachment_apply", apply.clone()).await["change"], "Unchanged");
    apply["spec"] = http("https://two.example.com/mcp");
    let applied = desk.good("attachment_apply", apply).await;
    assert_eq!(applied["change"], "Changed");
    assert_eq!(applied["attachment"]["spec"]["http"]["url"], "https://two.example.com/mcp");
    assert_eq!(applied["attachment"]["target"], "https://two.example.com/mcp");

    let list = desk.good("attachments_list", json!({"agent": "coder"})).await;
    assert_eq!(list["attachments"][0]["name"], "files");
    let retried = desk.good("attachment_retry", one.clone()).await;
    let path = desk.server.path(&object("McpAttachment", "files", json!({})));
    let stored = desk.server.get(&path).await.ok();
    assert_eq!(
        stored["metadata"]["annotations"]["awaken.dev/reconcile-requested-at"],
        retried["requestedAt"]
    );
    assert_eq!(stored["metadata"]["labels"]["team"], "a");
    // an apply leaves the annotation of the retry alone
    desk.good("attachment_apply", files(http("https://two.example.com/mcp"))).await;
    let stored = desk.server.get(&path).await.ok();
    assert!(stored["metadata"]["annotations"]["awaken.dev/reconcile-requested-at"].is_string());
    assert_eq!(stored["metadata"]["labels"], Value::Null, "what is not applied any more goes");
    let mut delete = one.clone();
    delete["waitSeconds"] = json!(20);
    let gone = desk.good("attachment_delete", delete).await;
    assert_eq!((&gone["agent"], &gone["waited"]["state"]), (&json!("coder"), &json!("Gone")));
    assert_eq!(desk.failed("attachment_delete", one).await.0, "NotFound");
}

#[tokio::test]
async fn another_managers_fields_are_left_or_taken_over() {
    let desk = Desk::new().await;
    let own = object("McpAttachment", "files", http("https://theirs.example.com/mcp"));
    desk.server.apply(&own).await.ok();
    let (reason, field, message) =
        desk.failed("attachment_apply", files(http("https://ours.example.com/mcp"))).await;
    assert_eq!((&*reason, &*field), ("FieldConflict", "spec.http.url"), "{message}");
    assert!(message.contains("\"test\"") && message.contains("force"), "{message}");
    let mut force = files(http("https://ours.example.com/mcp"));
    force["force"] = json!(true);
    let applied = desk.good("attachment_apply", force).await;
    assert_eq!(applied["attachment"]["target"], "https://ours.example.com/mcp");
    // the same value is no conflict
    desk.good("attachment_apply", files(http("https://ours.example.com/mcp"))).await;
}

#[tokio::test]
async fn what_admission_refuses_names_field_and_rule() {
    let desk = Desk::new().await;
    let stdio = |args: Vec<&str>| json!({"agentRef": {"name": "coder"}, "sandboxStdio": {"command": "c", "args": args}});
    let agent = json!({"agentRef": {"name": "coder"}});
    let open = json!({"agentRef": {"name": "coder"}, "http": {"url": "ftp://x.example.com"}});
    for (spec, field, says) in [
        (agent, "spec", "exactly one of sandboxStdio and http"),
        (stdio(vec!["x"; 65]), "spec.sandboxStdio.args", "Too many: 65"),
        (open, "spec.http.url", "absolute http or https URL"),
        (http("https://user@x.example.com"), "spec.http.url", "user information"),
        (http("http://x.example.com"), "spec.http", "over https only"),
        (
            json!({"agentRef": {"name": "No Name"}, "http": {"url": "https://x.example.com"}}),
            "spec.agentRef.name",
            "metadata.name of an Agent",
        ),
    ] {
        let (reason, named, message) = desk.failed("attachment_apply", files(spec.clone())).await;
        assert_eq!((&*reason, &*named), ("InvalidArguments", field), "{spec}: {message}");
        assert!(message.contains(says), "{message}");
    }
    desk.good("attachment_apply", files(http("https://x.example.com"))).await;
    let mut moved = http("https://x.example.com");
    moved["agentRef"]["name"] = json!("other");
    let (_, field, message) = desk.failed("attachment_apply", files(moved)).await;
    assert!(
        field.starts_with("spec.agentRef") && message.contains("immutable"),
        "{field}: {message}"
    );
    let mut labels = files(http("https://x.example.com"));
    labels["labels"] = json!({"not a key!": "v"});
    let (reason, field, _) = desk.failed("attachment_apply", labels).await;
    assert_eq!((&*reason, &*field), ("InvalidArguments", "metadata.labels"));
}

#[tokio::test]
async fn what_the_api_server_warns_of_reaches_the_client() {
    let desk = Desk::new().await;
    let spec = json!({"agentRef": {"name": "coder"},
        "sandboxStdio": {"command": "server", "args": ["--token=ghp_0123456789abcdefghijABCDEFGHIJ012345"]}});
    let mut dry = files(spec);
    dry["dryRun"] = json!(true);
    let applied = desk.good("attachment_apply", dry).await;
    let warnings = applied["warnings"].as_array().expect("warnings");
    assert!(warnings[0].as_str().unwrap().contains("put it into a Secret"), "{applied}");
    let clean = desk.good("attachment_apply", files(http("https://x.example.com"))).await;
    assert!(clean.get("warnings").is_none(), "{clean}");
}

#[tokio::test]
async fn a_wait_follows_the_real_watch() {
    let desk = Desk::new().await;
    let mut apply = files(http("https://one.example.com/mcp"));
    apply["waitSeconds"] = json!(30);
    let condition = |type_: &str, status: &str| {
        json!({"type": type_, "status": status, "reason": "Active", "message": "Generation 1 serves.",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let status = json!({"status": {"observedGeneration": 1, "conditions": [
        condition("Ready", "True"), condition("Stalled", "False")]}});
    let of = object("McpAttachment", "files", json!({}));
    let serving = async {
        desk.server
            .until("the attachment can be made ready", async || {
                desk.server.merge(ADMIN, &of, "/status", &status).await.code == 200
            })
            .await;
    };
    let (applied, ()) = tokio::join!(desk.good("attachment_apply", apply), serving);
    assert_eq!(applied["waited"]["state"], "Ready");
    assert_eq!(applied["attachment"]["health"]["reason"], "Active");
    let mut short = files(http("https://two.example.com/mcp"));
    short["waitSeconds"] = json!(1);
    assert_eq!(desk.good("attachment_apply", short).await["waited"]["state"], "TimedOut");
}

#[tokio::test]
async fn sessions_on_demand_come_and_go() {
    let desk = Desk::new().await;
    desk.agent("writer", "OnDemand").await;
    desk.agent("coder", "Standing").await;
    let made = desk.good("session_create", json!({"agent": "writer"})).await;
    let name = made["session"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("writer-") && name.len() > "writer-".len(), "{name}");
    let mine = json!({"agent": "writer", "name": "mine"});
    assert_eq!(desk.good("session_create", mine.clone()).await["session"]["name"], "mine");
    assert_eq!(desk.failed("session_create", mine).await.0, "AlreadyExists");
    let refused = desk.failed("session_create", json!({"agent": "coder"})).await;
    assert_eq!(refused.0, "SessionNotOnDemand");
    assert_eq!(desk.failed("session_create", json!({"agent": "nobody"})).await.0, "NotFound");
    let list = desk.good("sessions_list", json!({"agent": "writer"})).await;
    assert_eq!(list["sessions"].as_array().unwrap().len(), 2);
    let trace = desk.good("trace_list", json!({"session": "mine"})).await;
    assert_eq!(trace["records"], json!([]));
    for name in [&*name, "mine"] {
        let close = json!({"name": name, "waitSeconds": 20});
        assert_eq!(desk.good("session_close", close).await["waited"]["state"], "Gone");
    }
    assert_eq!(desk.failed("session_get", json!({"name": "mine"})).await.0, "NotFound");
}

#[tokio::test]
async fn pages_have_the_api_servers_own_tokens() {
    let desk = Desk::new().await;
    for i in 0..5 {
        desk.agent(&format!("a{i}"), "OnDemand").await;
    }
    let (mut seen, mut arguments) = (vec![], json!({"limit": 2}));
    loop {
        let list = desk.good("agents_list", arguments.clone()).await;
        let rows = list["agents"].as_array().unwrap();
        seen.extend(rows.iter().map(|r| r["name"].as_str().unwrap().to_owned()));
        match list["page"]["continue"].as_str() {
            Some(next) => arguments["continue"] = json!(next),
            None => break,
        }
    }
    assert_eq!(seen, ["a0", "a1", "a2", "a3", "a4"]);
}

#[tokio::test]
async fn the_accounts_rights_decide() {
    let read = json!([{"apiGroups": ["awaken.dev"], "resources": ["agents", "mcpattachments", "sessions"],
        "verbs": ["get", "list"]}]);
    let desk = Desk::with(&read, "ServiceAccount").await;
    desk.agent("writer", "OnDemand").await;
    for name in ["files", "other"] {
        let theirs = object("McpAttachment", name, http("https://x.example.com"));
        desk.server.apply(&theirs).await.ok();
    }
    let session = object("Session", "mine", json!({"agentRef": {"name": "writer"}}));
    desk.server.create(&session).await.ok();
    for (tool, arguments, verb) in [
        ("attachment_apply", files(http("https://y.example.com")), "cannot patch"),
        ("attachment_delete", json!({"name": "files"}), "cannot delete"),
        ("attachment_retry", json!({"name": "files"}), "cannot patch"),
        ("session_create", json!({"agent": "writer"}), "cannot create"),
        ("session_close", json!({"name": "mine"}), "cannot delete"),
        ("trace_list", json!({"session": "mine"}), "sessions/trace"),
    ] {
        let (reason, _, message) = desk.failed(tool, arguments).await;
        assert_eq!(reason, "Forbidden", "{tool}: {message}");
        assert!(message.contains(verb) && message.contains(":awaken-mcp"), "{tool}: {message}");
    }
    desk.good("attachment_get", json!({"name": "files"})).await;
}

#[tokio::test]
async fn the_api_server_adds_the_accounts_groups() {
    let desk = Desk::with(&rights(), "Group").await;
    desk.good("attachment_apply", files(http("https://one.example.com/mcp"))).await;
}
