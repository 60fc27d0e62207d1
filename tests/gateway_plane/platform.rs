//! The installation as `/v1/mcp` shows it: scripted management tools, an Agent that exports, and a
//! client with a bearer.

use super::support::*;
use awaken_operator::{
    domain::{export::Namespaces, record::Record},
    gateway::{
        auth::Times,
        export::{Management, ManagementContext, ManagementError},
    },
    journal::{Chain, memory::Memory},
    mcp::RawJson,
};
use axum::{
    body::Body,
    http::{HeaderValue, Request, StatusCode},
};
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tower::ServiceExt as _;

pub const BEARER: &str = "bearer-of-the-platform";
pub const PLATFORM: &str = "/v1/mcp";
/// The management tools that are exported here.
pub const MANAGEMENT: [&str; 4] =
    ["agents_list", "agent_get", "attachment_get", "attachment_apply"];

type Result_ = Result<RawJson, ManagementError>;
type Script = dyn Fn(&str, ManagementContext) -> BoxFuture<'static, Result_> + Send + Sync;

/// Management tools that do what a script says.
pub struct FakeManagement {
    script: Box<Script>,
    pub calls: Mutex<Vec<(String, Option<String>)>>,
}

impl FakeManagement {
    pub fn new(
        script: impl Fn(&str, ManagementContext) -> BoxFuture<'static, Result_> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { script: Box::new(script), calls: Mutex::default() })
    }

    pub fn answering(text: &'static str) -> Arc<Self> {
        Self::new(move |_, _| Box::pin(async move { Ok(raw(text)) }))
    }

    pub fn calls(&self) -> Vec<(String, Option<String>)> {
        self.calls.lock().unwrap().clone()
    }
}

pub fn definition(name: &str) -> String {
    format!(
        r#"{{"name":"{name}","title":"About {name}","inputSchema":{{"type":"object"}},"annotations":{{"readOnlyHint":true}}}}"#
    )
}

impl Management for FakeManagement {
    fn definitions(&self) -> Vec<(&'static str, RawJson)> {
        MANAGEMENT.into_iter().map(|name| (name, raw(&definition(name)))).collect()
    }

    fn call(
        &self,
        tool: &str,
        arguments: Option<RawJson>,
        context: ManagementContext,
    ) -> BoxFuture<'static, Result_> {
        let arguments = arguments.map(|a| a.as_str().to_owned());
        self.calls.lock().unwrap().push((tool.to_owned(), arguments));
        (self.script)(tool, context)
    }
}

/// A world whose Agents of `team-a` may export, with these management tools and no bearer yet.
pub fn closed(management: &Arc<FakeManagement>) -> World {
    let management: Arc<dyn Management> = management.clone();
    let namespaces = Namespaces::new(["team-a"]);
    World::exporting((Memory::new(), "inc-1"), Times::default(), Some(management), namespaces)
}

/// The same with its bearer.
pub fn open(management: &Arc<FakeManagement>) -> World {
    let world = closed(management);
    world.bearer.set(Some(BEARER.as_bytes()), None);
    world
}

pub fn export(name: &str, tool: &str) -> Value {
    json!({"attachment": "files", "tool": tool, "name": name})
}

/// The Agent `team-a/coder` with everything of `files` allowed but `write`, and these exports.
pub fn coder(world: &World, exports: &[Value]) {
    let sets = json!([{"attachment": "files", "defaultPermission": "Allow",
        "tools": [{"name": "write", "permission": "Deny"}]}]);
    world.cluster.agent("team-a/coder", 10, json!({"toolSets": sets, "exports": exports}));
}

/// The records of this start of the gateway that belong to no Session.
pub fn platform_records(world: &World) -> Vec<Record> {
    world.journal.records(&Chain::Incarnation(world.incarnation.into()))
}

pub fn message(id: impl Into<Value>, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}).to_string()
}

pub fn initialize() -> String {
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"}});
    message(0, "initialize", params)
}

/// Opens an MCP session on the route and gives its id.
pub async fn begin(world: &World, bearer: &str) -> String {
    let reply = world.send(post(PLATFORM, bearer, None, &initialize())).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
    reply.headers["mcp-session-id"].to_str().unwrap().to_owned()
}

pub async fn ask(world: &World, session: &str, method: &str, params: Value) -> Value {
    let body = message(1, method, params);
    world.send(post(PLATFORM, BEARER, Some(session), &body)).await.json()
}

pub async fn call(world: &World, session: &str, tool: &str, arguments: Value) -> Value {
    ask(world, session, "tools/call", json!({"name": tool, "arguments": arguments})).await
}

pub async fn names(world: &World, session: &str) -> Vec<String> {
    let reply = ask(world, session, "tools/list", json!({})).await;
    let tools = reply["result"]["tools"].as_array().unwrap_or_else(|| panic!("{reply}"));
    tools.iter().map(|t| t["name"].as_str().unwrap().to_owned()).collect()
}

pub fn get(bearer: &str, session: &str) -> Request<Body> {
    let mut listen = request("GET", PLATFORM, Some(bearer));
    listen.headers_mut().insert("accept", HeaderValue::from_static("text/event-stream"));
    listen.headers_mut().insert("mcp-session-id", HeaderValue::from_str(session).unwrap());
    listen
}

/// Opens the stream for notices.
pub async fn listen(world: &World, bearer: &str, session: &str) -> Body {
    let response = world.router.clone().oneshot(get(bearer, session)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    assert!(hear(&mut body, "open").await.is_some());
    body
}

/// Reads a stream until the text is there, and gives everything up to it; none if it ends before.
pub async fn hear(body: &mut Body, text: &str) -> Option<String> {
    let mut heard = String::new();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            heard += &String::from_utf8_lossy(&frame.into_data().unwrap_or_default());
            if heard.contains(text) {
                return Some(heard);
            }
        }
        None
    };
    tokio::time::timeout(Duration::from_secs(5), read).await.expect("neither heard nor ended")
}
