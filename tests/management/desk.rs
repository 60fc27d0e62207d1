//! The management tools over the API server in memory, and what that one lacks: server-side apply
//! with dry run, pages, generated names, reviews, and answers as a script says. Every request is
//! kept, with the account it was made as.

use crate::apiserver::{ApiServer, text};
use awaken_operator::{
    domain::{Clock, export::MANAGEMENT_TOOLS},
    gateway::{
        export::{Management, ManagementContext, ManagementError},
        hosted::Sessions,
        management::{LONGEST, ManagementTools, Parts, Settings},
    },
    journal::memory::Memory,
    mcp::{
        RawJson,
        server::{ProgressReport, ProgressSink},
    },
};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

pub const ACCOUNT: &str = "system:serviceaccount:awaken-system:awaken-mcp";
/// What stands in every Secret, and may stand nowhere else.
pub const CANARY: &str = "canary-2f7d0c5b9e";

/// A request that came in.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub query: String,
    /// Impersonate-User and Impersonate-Group.
    pub user: Vec<String>,
    pub groups: Vec<String>,
    pub body: Value,
}

impl Asked {
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

type Script = Box<dyn Fn(&Asked) -> Option<(u16, Value)> + Send>;

struct Inner {
    api: ApiServer,
    asked: Mutex<Vec<Asked>>,
    script: Mutex<Option<Script>>,
}

/// What one call gave.
#[derive(Clone, Debug)]
pub struct Answer {
    pub text: String,
    pub structured: Value,
    pub is_error: bool,
}

impl Answer {
    pub fn good(self) -> Value {
        assert!(!self.is_error, "{}", self.text);
        self.structured
    }

    /// Reason and field of the failure; both forms tell the same.
    pub fn failed(&self) -> (String, Option<String>) {
        let error = &self.structured["error"];
        assert!(self.is_error && error.is_object(), "no failure: {}", self.text);
        let (reason, message) = (text(error, "/reason"), text(error, "/message"));
        assert!(self.text.starts_with(&format!("{reason}: {message}")), "{}", self.text);
        (reason, error["field"].as_str().map(str::to_owned))
    }

    /// What went wrong after a write that stands: its reason and its words.
    pub fn after(&self) -> (String, String) {
        assert!(!self.is_error, "{}", self.text);
        let problem = &self.structured["problem"];
        let (reason, message) = (text(problem, "/reason"), text(problem, "/message"));
        let line = format!("The write stands; after it: {reason}: {message}\n");
        assert!(self.text.contains(&line), "{}", self.text);
        (reason, message)
    }

    pub fn message(&self) -> String {
        text(&self.structured, "/error/message")
    }
}

/// The tools, all exported, in the namespaces team-a and team-b.
pub struct Desk {
    pub api: ApiServer,
    pub tools: Arc<ManagementTools>,
    pub journal: Memory,
    pub sessions: Sessions,
    inner: Arc<Inner>,
}

struct ServerClock(ApiServer);

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl Desk {
    pub fn new() -> Self {
        Self::with(&["team-a", "team-b"], &MANAGEMENT_TOOLS)
    }

    pub fn with(namespaces: &[&str], exports: &[&str]) -> Self {
        let api = ApiServer::new();
        let inner =
            Arc::new(Inner { api: api.clone(), asked: Mutex::default(), script: Mutex::default() });
        let (journal, sessions) = (Memory::new(), Sessions::default());
        let owned = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect();
        let settings = Settings {
            account: ACCOUNT.parse().unwrap(),
            namespaces: owned(namespaces),
            exports: owned(exports),
        };
        let parts = Parts {
            client: client(inner.clone()),
            journal: Arc::new(journal.clone()),
            sessions: sessions.clone(),
            clock: Arc::new(ServerClock(api.clone())),
        };
        let tools = Arc::new(ManagementTools::new(settings, parts));
        Self { api, tools, journal, sessions, inner }
    }

    /// Answers what the script says in place of the API server.
    pub fn script(&self, script: impl Fn(&Asked) -> Option<(u16, Value)> + Send + 'static) {
        *self.inner.script.lock().unwrap() = Some(Box::new(script));
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.inner.asked.lock().unwrap().clone()
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.call_with(tool, arguments, ManagementContext::default()).await.unwrap()
    }

    pub async fn call_with(
        &self,
        tool: &str,
        arguments: Value,
        context: ManagementContext,
    ) -> Result<Answer, ManagementError> {
        let sent = RawJson::of(&arguments).unwrap();
        let result = self.tools.call(tool, Some(sent), context).await?;
        Ok(self.checked(tool, &result))
    }

    /// What holds for every result of every tool.
    fn checked(&self, tool: &str, result: &RawJson) -> Answer {
        assert!(result.as_str().len() <= LONGEST, "{} bytes", result.as_str().len());
        assert!(!result.as_str().contains(CANARY), "a Secret's value: {}", result.as_str());
        let result: Value = serde_json::from_str(result.as_str()).unwrap();
        let structured = result["structuredContent"].clone();
        let schema = crate::schemas::definition(&self.tools, tool)["outputSchema"].clone();
        crate::schemas::fits(&schema, &structured);
        let is_error = result["isError"] == true;
        assert_eq!(is_error, structured["error"].is_object(), "{structured}");
        let content = result["content"].as_array().unwrap();
        assert_eq!((content.len(), &content[0]["type"]), (1, &json!("text")));
        Answer { text: text(&content[0], "/text"), structured, is_error }
    }
}

impl Drop for Desk {
    /// What holds for every request: made as the account (but for reviews of it), and never for a
    /// Secret.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for asked in self.asked() {
            let review = asked.path.ends_with("/subjectaccessreviews");
            let user: &[&str] = if review { &[] } else { &[ACCOUNT] };
            assert_eq!(asked.user, user, "{asked:?}");
            assert!(asked.groups.is_empty(), "{asked:?}");
            assert!(!asked.path.contains("secrets"), "{asked:?}");
        }
    }
}

/// Progress that was reported.
pub fn listening() -> (ManagementContext, Arc<Mutex<Vec<ProgressReport>>>) {
    let heard = Arc::new(Mutex::new(vec![]));
    let tell = heard.clone();
    let sink = ProgressSink::new(move |report| tell.lock().unwrap().push(report));
    (ManagementContext { progress: Some(sink), ..ManagementContext::default() }, heard)
}

fn client(inner: Arc<Inner>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let inner = inner.clone();
        async move { Ok::<_, Infallible>(answer(&inner, request).await) }
    });
    Client::new(service, "default")
}

async fn answer(
    inner: &Inner,
    request: Request<kube::client::Body>,
) -> Response<kube::client::Body> {
    let (mut parts, body) = request.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let header = |name: &str| -> Vec<String> {
        let all = parts.headers.get_all(name).iter();
        all.map(|v| v.to_str().unwrap().to_owned()).collect()
    };
    let kind = header("content-type").concat();
    let asked = Asked {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        user: header("impersonate-user"),
        groups: header("impersonate-group"),
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    };
    inner.asked.lock().unwrap().push(asked.clone());
    let scripted = inner.script.lock().unwrap().as_ref().and_then(|script| script(&asked));
    let own = scripted.or_else(|| own_answer(inner, &asked, &kind));
    if let Some((code, body)) = own {
        let bytes = serde_json::to_vec(&body).unwrap();
        return Response::builder().status(code).body(kube::client::Body::from(bytes)).unwrap();
    }
    let limit = number(&asked.query, "limit").filter(|_| !asked.query.contains("watch"));
    let mut bytes = bytes.to_vec();
    if asked.method == "POST" && asked.body["metadata"]["generateName"].is_string() {
        let mut body = asked.body.clone();
        let prefix = text(&body, "/metadata/generateName");
        body["metadata"]["name"] = json!(format!("{prefix}x7k2q"));
        bytes = serde_json::to_vec(&body).unwrap();
    }
    // the fake has no pages
    let query = url::form_urlencoded::parse(asked.query.as_bytes());
    let query = query.filter(|(key, _)| key != "limit" && key != "continue");
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    parts.uri = format!("{}?{query}", asked.path).parse().unwrap();
    let request = Request::from_parts(parts, kube::client::Body::from(bytes));
    let response = inner.api.client("management").send(request).await.unwrap();
    match limit {
        Some(limit) => paged(response, limit, number(&asked.query, "continue").unwrap_or(0)).await,
        None => response,
    }
}

/// What the API server in memory cannot answer.
fn own_answer(inner: &Inner, asked: &Asked, kind: &str) -> Option<(u16, Value)> {
    if asked.path.ends_with("/subjectaccessreviews") {
        let mut review = asked.body.clone();
        review["status"] = json!({"allowed": true});
        return Some((201, review));
    }
    if kind != "application/apply-patch+yaml" {
        return None;
    }
    let mut words = asked.path.rsplit('/');
    let (name, plural, namespace) = (words.next()?, words.next()?, words.next()?);
    let before = inner.api.get(plural, namespace, name);
    if asked.query.contains("dryRun=All") {
        let mut after = before.unwrap_or_else(|| json!({"metadata": {"uid": "u-dry"}}));
        for part in ["apiVersion", "kind", "spec"] {
            after[part] = asked.body[part].clone();
        }
        for part in ["name", "namespace", "labels"] {
            after["metadata"][part] = asked.body["metadata"][part].clone();
        }
        return Some((200, after));
    }
    inner.api.apply(plural, asked.body.clone());
    Some((if before.is_some() { 200 } else { 201 }, inner.api.get(plural, namespace, name)?))
}

fn number(query: &str, key: &str) -> Option<usize> {
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.find(|(k, _)| k == key).and_then(|(_, v)| v.parse().ok())
}

async fn paged(
    response: Response<kube::client::Body>,
    limit: usize,
    from: usize,
) -> Response<kube::client::Body> {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let mut list: Value = serde_json::from_slice(&bytes).unwrap();
    let Some(items) = list["items"].as_array().cloned() else {
        return Response::builder()
            .status(list["code"].as_u64().map_or(200, |c| c as u16))
            .body(kube::client::Body::from(bytes.to_vec()))
            .unwrap();
    };
    if items.len() > from + limit {
        list["metadata"]["continue"] = json!((from + limit).to_string());
    }
    list["items"] = items.iter().skip(from).take(limit).cloned().collect();
    Response::new(kube::client::Body::from(serde_json::to_vec(&list).unwrap()))
}

/// A Status as the API server says no.
pub fn no(code: u16, reason: &str, message: &str, causes: &[Value]) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": {"causes": causes},
    });
    (code, status)
}

/// What RBAC says.
pub fn rbac() -> (u16, Value) {
    let message = format!(
        "mcpattachments.awaken.dev \"files\" is forbidden: User \"{ACCOUNT}\" cannot patch resource \
         \"mcpattachments\" in API group \"awaken.dev\" in the namespace \"team-a\""
    );
    no(403, "Forbidden", &message, &[])
}

pub fn agent(namespace: &str, name: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "session": {"mode": mode}, "environment": {"image": "tools:1"},
            "toolSets": [{"attachment": "files", "tools": [{"name": "read", "permission": "Allow"}]}],
        },
    })
}

pub fn attachment(namespace: &str, name: &str, agent: &str) -> Value {
    json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "McpAttachment",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec(agent),
    })
}

pub fn spec(agent: &str) -> Value {
    json!({"agentRef": {"name": agent}, "http": {"url": "https://mcp.example.com/mcp",
        "credential": {"secretKeyRef": {"name": "files-token", "key": "token"}}}})
}

pub fn session(namespace: &str, name: &str, agent: &str) -> Value {
    json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"agentRef": {"name": agent}},
    })
}

/// A Secret with the canary in it.
pub fn secret(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "data": {"token": CANARY}, "stringData": {"token": CANARY}})
}

/// A status whose Ready is so, for this generation of the object.
pub fn ready(status: bool, reason: &str, message: &str, generation: i64) -> Value {
    let permanent = ["CommandNotFound", "SecretNotFound"].contains(&reason);
    let condition = |type_: &str, holds: bool, message: &str| {
        json!({"type": type_, "status": if holds { "True" } else { "False" }, "reason": reason,
            "message": message, "observedGeneration": generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({"observedGeneration": generation, "conditions": [
        condition("Ready", status, message),
        condition("Reconciling", !status && !permanent && reason != "Suspended", ""),
        condition("Stalled", permanent, "")]})
}

/// One generation in a Session's status.
pub fn entry(attachment: &str, uid: &str, generation: i64, state: &str) -> Value {
    json!({
        "generation": generation, "attachment": attachment, "attachmentUid": uid,
        "server": attachment, "source": "sha256:0", "state": state, "reason": state,
        "target": {"http": {"url": "https://mcp.example.com/mcp"}},
        "limits": {"startupTimeoutMs": 1, "callTimeoutMs": 1, "drainTimeoutMs": 1,
            "maxConcurrentCalls": 1, "maxMessageBytes": 1},
        "message": "", "since": "2026-01-01T00:00:00Z",
    })
}
