//! The whole gateway over a listening socket: an API server in memory, a real HTTP server behind
//! it, a real HTTP client in front of it.

#![allow(clippy::unwrap_used, reason = "a test ends where it goes wrong")]

#[path = "support/apiserver.rs"]
#[allow(dead_code, reason = "other tests use all of it")]
mod apiserver;

use apiserver::ApiServer;
use awaken_operator::{
    domain::{
        export::Namespaces,
        identity::McpGenerationRef,
        lifecycle::{CredentialRef, HttpTarget, Limits, StageKind, Target, fingerprint},
        record::{Kind, Outcome},
    },
    gateway::{self, BearerSecret, Config, GatewayError, Journal, McpConfig},
    journal::{Chain, memory::Memory},
    process::{health::Readiness, metrics::Metrics},
};
use awaken_stub::{http::Stub, script::Script};
use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use serde_json::{Value, json};
use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, task::Poll, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

type Response_ = reqwest::Response;

const TOKEN: &str = "a-good-token";
const LIMIT: Duration = Duration::from_secs(60);

/// The API server with reviews: one token is good, its owner may do everything in team-a.
fn client(api: &ApiServer) -> Client {
    let inner = api.client("awaken-gateway");
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let inner = inner.clone();
        async move {
            let path = request.uri().path().to_owned();
            if !path.ends_with("reviews") {
                return Ok::<_, Infallible>(inner.send(request).await.unwrap().map(Body::new));
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            review["status"] = if path.ends_with("tokenreviews") {
                assert_eq!(review["spec"]["audiences"], json!(["awaken-gateway"]));
                let good = review["spec"]["token"] == TOKEN;
                json!({"authenticated": good, "audiences": ["awaken-gateway"],
                    "user": {"username": "system:serviceaccount:team-a:runtime", "groups": []}})
            } else {
                let asked = &review["spec"]["resourceAttributes"];
                json!({"allowed": asked["namespace"] == "team-a" && asked["name"] == "coder"})
            };
            Ok(Response::builder().status(201).body(Body::from(review.to_string())).unwrap())
        }
    });
    Client::new(service, "default")
}

struct World {
    api: ApiServer,
    stub: Stub,
    journal: Memory,
    readiness: Readiness,
    stop: CancellationToken,
    running: JoinHandle<Result<(), GatewayError>>,
    base: String,
    http: reqwest::Client,
}

fn free_port() -> SocketAddr {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap()
}

/// A gateway of this name, over these.
struct Gateway {
    readiness: Readiness,
    stop: CancellationToken,
    running: JoinHandle<Result<(), GatewayError>>,
    listen: SocketAddr,
    internal: SocketAddr,
}

impl Gateway {
    fn start(
        name: &str,
        api: &ApiServer,
        journal: &Memory,
        settings: impl FnOnce(&mut Config),
    ) -> Self {
        let (listen, internal) = (free_port(), free_port());
        let mut config = Config {
            listen,
            internal_listen: Some(internal),
            pod_ip: Some(internal.ip()),
            pod_name: name.into(),
            allowed_networks: vec!["127.0.0.0/8".into()],
            grace: Duration::from_secs(20),
            mcp: McpConfig {
                bearer: Some(BearerSecret {
                    namespace: "awaken-system".into(),
                    name: "awaken-mcp-bearer".into(),
                    key: "token".into(),
                    previous_key: "previous-token".into(),
                }),
                export_namespaces: Namespaces::new(["team-a"]),
                ..McpConfig::default()
            },
            ..Config::default()
        };
        settings(&mut config);
        let (readiness, stop) = (Readiness::default(), CancellationToken::new());
        let (append, read) = (Arc::new(journal.clone()), Arc::new(journal.clone()));
        let parts = Journal { append, read, exclusive: true };
        let (client, ready, stopped) = (client(api), readiness.clone(), stop.clone());
        // not ready before it said what it waits for
        let starting = readiness.guard("start");
        let running = tokio::spawn(async move {
            let metrics = Metrics::new();
            let mut run = pin!(gateway::run(config, client, parts, ready, &metrics, stopped));
            let begun = futures::poll!(run.as_mut());
            drop(starting);
            match begun {
                Poll::Ready(ended) => ended,
                Poll::Pending => run.await,
            }
        });
        Self { readiness, stop, running, listen, internal }
    }
}

async fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            match condition() {
                Some(value) => return value,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("waited for {what}"))
}

impl World {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(settings: impl FnOnce(&mut Config)) -> Self {
        Self::start_over(Value::Null, settings).await
    }

    /// With an EndpointSlice that is there before the gateway starts.
    async fn start_over(slices: Value, settings: impl FnOnce(&mut Config)) -> Self {
        // a second test of this program finds it installed
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let (api, journal) = (ApiServer::new(), Memory::new());
        api.apply(
            "agents",
            json!({"apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": "coder", "namespace": "team-a"},
            "spec": {"toolSets": [{"attachment": "remote", "defaultPermission": "Allow",
                "tools": [{"name": "exit", "permission": "Deny"}]}],
                "exports": [{"attachment": "remote", "tool": "echo", "name": "remote_echo"}]}}),
        );
        api.apply(
            "sessions",
            json!({"apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
            "metadata": {"name": "coder", "namespace": "team-a"},
            "spec": {"agentRef": {"name": "coder"}}}),
        );
        if !slices.is_null() {
            api.apply("endpointslices", slices);
        }
        let Gateway { readiness, stop, running, listen, .. } =
            Gateway::start("gateway-0", &api, &journal, settings);
        let stub = Stub::start(Script::default()).await;
        let base = format!("http://{listen}/v1/sessions/team-a/coder");
        Self { api, stub, journal, readiness, stop, running, base, http: reqwest::Client::new() }
    }

    fn session(&self) -> Value {
        self.api.get("sessions", "team-a", "coder").unwrap()
    }

    /// Places a generation of the Stub on whoever holds the Lease; waits until that is done.
    async fn stage(&self, state: &str, kind: StageKind) {
        let target = Target::Http(HttpTarget { url: self.stub.url(), credential: None });
        self.ask(state, kind, target).await;
        let kind = json!(kind);
        until("the receipt", || {
            let receipt = &self.session()["status"]["receipts"][0];
            (receipt["stage"] == kind && receipt["verdict"] == "Done").then_some(())
        })
        .await;
    }

    /// Asks for a server that cannot be had; gives the receipt.
    async fn refused(&self, target: Target) -> Value {
        self.ask("Realizing", StageKind::Realize, target).await;
        until("the receipt", || {
            let receipt = self.session()["status"]["receipts"][0].clone();
            (receipt["verdict"] == "Failed").then_some(receipt)
        })
        .await
    }

    /// Acts as the operator: places the Session on whoever holds the Lease, with one generation.
    async fn ask(&self, state: &str, kind: StageKind, target: Target) {
        let incarnation = until("the Lease", || {
            let lease = self.api.get("leases", "awaken-system", "gateway-0")?;
            lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
        })
        .await;
        let uid = self.session()["metadata"]["uid"].as_str().unwrap().to_owned();
        let limits = Limits {
            startup_timeout_ms: 20_000,
            call_timeout_ms: 20_000,
            drain_timeout_ms: 5_000,
            max_concurrent_calls: 4,
            max_message_bytes: 1 << 20,
        };
        let whole = McpGenerationRef {
            session_uid: uid,
            attachment_uid: "uid-remote".into(),
            generation: 1,
            incarnation: incarnation.clone(),
            epoch: 1,
        };
        let print = fingerprint(&whole, kind, &target, &limits);
        let mut status = self.session()["status"].clone();
        status["host"] = json!({"gateway": "gateway-0", "incarnation": incarnation, "epoch": 1});
        status["lastGeneration"] = json!(1);
        status["attachments"] = json!([{"generation": 1, "attachment": "remote",
            "attachmentUid": "uid-remote", "server": "remote", "source": "sha256:s", "state": state,
            "stage": {"kind": kind, "ref": whole, "fingerprint": print},
            "target": target, "limits": limits, "reason": "Active", "message": "",
            "since": "2026-01-01T00:00:00Z", "failures": 0, "published": false}]);
        self.api.set_status("sessions", "team-a", "coder", status);
    }

    async fn post(&self, session: Option<&str>, body: Value) -> (u16, Option<String>, Value) {
        let mut request = self
            .http
            .post(format!("{}/mcp", self.base))
            .bearer_auth(TOKEN)
            .header("accept", "application/json, text/event-stream")
            .json(&body);
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let id = response.headers().get("mcp-session-id").map(|v| v.to_str().unwrap().to_owned());
        let text = response.text().await.unwrap();
        // a stream begins with an event without data and ends with the answer
        let answer = text.lines().filter_map(|l| l.strip_prefix("data: ")).next_back();
        let value = serde_json::from_str(answer.unwrap_or(&text)).unwrap_or_default();
        (status, id, value)
    }

    async fn open(&self) -> String {
        let (status, id, value) = self
            .post(
                None,
                json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"}}}),
            )
            .await;
        assert_eq!(status, 200, "{value}");
        id.unwrap()
    }

    async fn call(&self, session: &str, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": format!("mcp__remote__{tool}"), "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": tool, "method": "tools/call", "params": params});
        self.post(Some(session), body).await.2
    }

    /// Sends a message to `/v1/mcp`; without a bearer there is no header.
    async fn platform(&self, bearer: &str, session: Option<&str>, body: &Value) -> Response_ {
        let mut request = self
            .http
            .post(self.root("/v1/mcp"))
            .header("accept", "application/json, text/event-stream")
            .json(body);
        if !bearer.is_empty() {
            request = request.bearer_auth(bearer);
        }
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        request.send().await.unwrap()
    }

    fn root(&self, path: &str) -> String {
        let (root, _) = self.base.split_once("/v1/").unwrap();
        format!("{root}{path}")
    }

    /// Waits until an `initialize` with this bearer gets this status; gives the session.
    async fn until_platform(&self, bearer: &str, status: u16) -> Option<String> {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}}});
        let wait = async {
            loop {
                let response = self.platform(bearer, None, &body).await;
                if response.status() == status {
                    let id = response.headers().get("mcp-session-id");
                    return id.map(|v| v.to_str().unwrap().to_owned());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("{bearer}: {status}"))
    }

    fn bearers(&self, current: &str, previous: Option<&str>) {
        let mut data = json!({"token": STANDARD.encode(current)});
        if let Some(previous) = previous {
            data["previous-token"] = json!(STANDARD.encode(previous));
        }
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": data,
            "metadata": {"name": "awaken-mcp-bearer", "namespace": "awaken-system"}});
        self.api.apply("secrets", secret);
    }

    fn give_key(&self) {
        // 32 bytes
        let seed = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        self.api.apply(
            "secrets",
            json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "awaken-link-keys", "namespace": "awaken-system"},
            "data": {"current": seed}}),
        );
    }
}

/// Two gateways: the Session is served by one, the client speaks to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_gateway_takes_a_request_and_the_host_serves_it() {
    let mut world = World::start().await;
    world.give_key();
    world.bearers("platform", None);
    let other = Gateway::start("gateway-1", &world.api, &world.journal, |config| {
        config.allowed_hosts = vec!["only-there.example".into()];
    });
    until("readiness", || {
        let ready = world.readiness.waiting().is_empty() && other.readiness.waiting().is_empty();
        ready.then_some(())
    })
    .await;
    world.stage("Realizing", StageKind::Realize).await;
    world.stage("Active", StageKind::Publish).await;
    let host = std::mem::replace(
        &mut world.base,
        format!("http://{}/v1/sessions/team-a/coder", other.listen),
    );

    // it may not know yet where its Session is, or where its like are
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}}});
    let wait = async {
        loop {
            match world.post(None, initialize.clone()).await {
                (200, id, _) => return id.unwrap(),
                (status, _, value) => assert_eq!(status, 503, "{value}"),
            }
        }
    };
    let session = tokio::time::timeout(LIMIT, wait).await.expect("the other gateway forwards");
    let echoed = world.call(&session, "echo", json!({"a": [1, "é"]})).await;
    assert!(echoed["result"]["content"][0]["text"].as_str().unwrap().contains('é'), "{echoed}");
    let denied = world.call(&session, "exit", json!({})).await;
    assert_eq!(denied["error"]["data"]["reason"], "UnknownTool");
    let slow = world.call(&session, "sleep", json!({"ms": 1500})).await;
    assert!(slow.get("result").is_some(), "an answer that became a stream: {slow}");

    let stream = world.http.get(format!("{}/mcp", world.base)).bearer_auth(TOKEN);
    let stream = stream.header("mcp-session-id", &session).header("accept", "text/event-stream");
    let mut stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    assert!(stream.chunk().await.unwrap().is_some());
    drop(stream);

    let url = format!("{}/mcp", world.base);
    let nobody = world.http.post(&url).bearer_auth("another").json(&initialize);
    assert_eq!(nobody.send().await.unwrap().status(), 401);
    let trace = world.http.get(format!("{}/trace", world.base)).bearer_auth(TOKEN);
    let trace: Value = trace.send().await.unwrap().json().await.unwrap();
    let calls = trace["records"].as_array().unwrap().iter().filter(|r| r["kind"] == "Intent");
    assert_eq!(calls.count(), 2, "each call once: {trace}");

    // the internal port: not for clients, whatever they claim
    let inside = format!("http://{}/v1/sessions/team-a/coder/mcp", other.internal);
    for proof in ["", "1.2", "1800000000.AAAA"] {
        let request = world.http.post(&inside).bearer_auth(TOKEN).json(&initialize);
        let refused = request.header("awaken-forwarded", proof).send().await.unwrap();
        assert_eq!(refused.status(), 401, "{proof}");
        assert_eq!(refused.headers()["awaken-forwarded"], "refused");
    }

    // a session of `/v1/mcp` is held by the gateway that opened it, and found from the other
    let platform = world.until_platform("platform", 200).await.unwrap();
    world.base = host.clone();
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let listed = world.platform("platform", Some(&platform), &list).await;
    assert_eq!(listed.status(), 200);
    let lost = format!("{}.{}", "00000000", platform.split_once('.').unwrap().1);
    assert_eq!(world.platform("platform", Some(&lost), &list).await.status(), 404);

    let deleted = world.http.delete(&url).bearer_auth(TOKEN).header("mcp-session-id", &session);
    assert_eq!(deleted.send().await.unwrap().status(), 204);

    // a name of the gateway that was asked is none of the host's
    let named = world.http.post(&url).bearer_auth(TOKEN).header("host", "only-there.example");
    let named = named.header("accept", "application/json, text/event-stream").json(&initialize);
    assert_eq!(named.send().await.unwrap().status(), 200);

    // one that stops forwards for a moment more, and sends its clients away
    other.stop.cancel();
    until("draining", || (other.readiness.waiting() == ["draining"]).then_some(())).await;
    let late = world.http.post(&url).bearer_auth(TOKEN).json(&initialize);
    let late = late.header("accept", "application/json, text/event-stream").send().await.unwrap();
    assert_eq!(
        (late.status().as_u16(), &late.headers()["connection"]),
        (200, &"close".parse().unwrap())
    );

    // the host is gone without a farewell
    world.running.abort();
    let refused = async {
        loop {
            let request = world.http.post(&url).bearer_auth(TOKEN).json(&initialize);
            let request = request.header("accept", "application/json, text/event-stream");
            let answer = request.send().await.unwrap();
            if answer.status() == 503 {
                return answer;
            }
        }
    };
    let refused = tokio::time::timeout(LIMIT, refused).await.expect("503");
    assert!(refused.headers().contains_key("retry-after"));
    other.running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_start_to_a_clean_stop() {
    let world = World::start().await;
    until("all but the key", || (world.readiness.waiting() == ["link keys"]).then_some(())).await;
    world.give_key();
    until("readiness", || world.readiness.waiting().is_empty().then_some(())).await;
    let lease = world.api.get("leases", "awaken-system", "gateway-0").unwrap();
    assert_eq!(lease["metadata"]["labels"]["awaken.dev/lease"], "gateway");

    world.stage("Realizing", StageKind::Realize).await;
    let evidence = world.session()["status"]["receipts"][0]["evidence"].clone();
    assert_eq!(evidence["protocolVersion"], "2025-11-25");
    assert!(evidence["toolCount"].as_i64().unwrap() > 20, "{evidence}");
    world.stage("Active", StageKind::Publish).await;

    let session = world.open().await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (_, _, list) = world.post(Some(&session), list).await;
    let tools = list["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|t| t["name"] == "mcp__remote__echo"));
    assert!(tools.iter().all(|t| t["name"] != "mcp__remote__exit"), "denied");
    let echoed = world.call(&session, "echo", json!({"a": [1, "é"]})).await;
    assert!(echoed["result"]["content"][0]["text"].as_str().unwrap().contains('é'), "{echoed}");
    let denied = world.call(&session, "exit", json!({})).await;
    assert_eq!(denied["error"]["data"]["reason"], "UnknownTool");

    // the server forgets the MCP session: nobody in front notices
    world.stub.forget_sessions();
    let echoed = world.call(&session, "echo", json!({})).await;
    assert!(echoed.get("result").is_some(), "{echoed}");
    let handshakes = world.stub.seen();
    let handshakes = handshakes.iter().filter(|s| s.rpc_method().as_deref() == Some("initialize"));
    assert_eq!(handshakes.count(), 2);

    let trace = world.http.get(format!("{}/trace", world.base)).bearer_auth(TOKEN);
    let trace: Value = trace.send().await.unwrap().json().await.unwrap();
    assert!(trace["records"].as_array().unwrap().len() >= 6, "{trace}");
    let nobody = world.http.get(format!("{}/trace", world.base)).bearer_auth("another");
    assert_eq!(nobody.send().await.unwrap().status(), 401);

    // a call that is under way when the gateway stops ends before it
    let World { api, journal, stop, running, .. } = {
        let world = Arc::new(world);
        let (caller, id) = (world.clone(), session.clone());
        let late =
            tokio::spawn(async move { caller.call(&id, "sleep", json!({"ms": 1500})).await });
        until("the call", || {
            let seen = world.stub.seen();
            let calls = seen.iter().filter(|s| s.rpc_method().as_deref() == Some("tools/call"));
            (calls.count() == 4).then_some(())
        })
        .await;
        world.stop.cancel();
        until("draining", || world.readiness.waiting().contains(&"draining").then_some(())).await;
        let lease = world.api.get("leases", "awaken-system", "gateway-0");
        assert!(lease.is_some(), "the Lease is given back last");
        let answer = late.await.unwrap();
        assert!(answer.get("result").is_some(), "{answer}");
        Arc::into_inner(world).unwrap()
    };
    drop(stop);
    tokio::time::timeout(LIMIT, running).await.unwrap().unwrap().unwrap();
    assert!(api.get("leases", "awaken-system", "gateway-0").is_none());
    let uid = api.get("sessions", "team-a", "coder").unwrap()["metadata"]["uid"].clone();
    let records = journal.records(&Chain::Session(uid.as_str().unwrap().to_owned()));
    let ended = records.iter().filter(|r| r.entry.kind == Kind::Outcome);
    assert!(ended.clone().count() >= 3);
    assert!(ended.clone().all(|r| r.entry.outcome == Some(Outcome::Succeeded)), "{records:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_means_a_forbidden_address_is_never_connected_to() {
    let world = World::start_with(|config| config.allowed_networks.clear()).await;
    world.give_key();
    until("readiness", || world.readiness.waiting().is_empty().then_some(())).await;
    // the machine's own resolver says that this name is the loopback, where the server listens
    let url = world.stub.url().replace("127.0.0.1", "localhost");
    assert!(url.contains("//localhost:"), "{url}");
    let receipt = world.refused(Target::Http(HttpTarget { url, credential: None })).await;
    assert_eq!(receipt["reason"], "TargetForbidden", "{receipt}");
    let told = receipt["message"].as_str().unwrap();
    assert!(told.contains("localhost resolves to ") && told.contains("a loopback address"));
    assert!(world.stub.seen().is_empty(), "it was connected to");
    world.stop.cancel();
    tokio::time::timeout(LIMIT, world.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_of_the_api_server_is_never_connected_to() {
    // addresses are read from what stands behind its Service, at the start
    let slices = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.7"]}]});
    let world = World::start_over(slices, |_| {}).await;
    world.give_key();
    until("readiness", || world.readiness.waiting().is_empty().then_some(())).await;
    let url = "https://192.0.2.7:6443/mcp".to_owned();
    let receipt = world.refused(Target::Http(HttpTarget { url, credential: None })).await;
    assert_eq!(receipt["reason"], "TargetForbidden", "{receipt}");
    assert!(receipt["message"].as_str().unwrap().contains("192.0.2.7 is the API server"));
    world.stop.cancel();
    tokio::time::timeout(LIMIT, world.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_is_sent_to_no_origin_that_its_secret_does_not_allow() {
    let world = World::start().await;
    world.give_key();
    until("readiness", || world.readiness.waiting().is_empty().then_some(())).await;
    world.api.apply(
        "secrets",
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"token": STANDARD.encode("hunter2")},
        "metadata": {"name": "issues-token", "namespace": "team-a", "annotations":
            {"awaken.dev/allowed-targets": "https://mcp.example.com stdio"}}}),
    );
    let credential = CredentialRef {
        secret: "issues-token".into(),
        key: "token".into(),
        header: "authorization".into(),
        scheme: "Bearer".into(),
    };
    let url = world.stub.url();
    let target = Target::Http(HttpTarget { url, credential: Some(credential) });
    let receipt = world.refused(target).await;
    assert_eq!(receipt["reason"], "SecretNotAllowed", "{receipt}");
    assert!(world.stub.seen().is_empty(), "it was connected to");
    world.stop.cancel();
    tokio::time::timeout(LIMIT, world.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_platforms_route_comes_changes_and_goes_with_its_secret() {
    let world = World::start().await;
    world.give_key();
    until("readiness", || world.readiness.waiting().is_empty().then_some(())).await;
    let unknown = |path: &str| world.http.post(world.root(path)).bearer_auth("one").send();
    let (route, nothing) = (unknown("/v1/mcp").await.unwrap(), unknown("/v1/x").await.unwrap());
    assert_eq!((route.status(), route.status()), (nothing.status(), http::StatusCode::NOT_FOUND));
    let seen = |response: &Response_| -> Vec<(String, String)> {
        let shown = response.headers().iter().filter(|(name, _)| *name != "date");
        shown.map(|(k, v)| (k.to_string(), v.to_str().unwrap().to_owned())).collect()
    };
    assert_eq!(seen(&route), seen(&nothing));
    assert_eq!(route.text().await.unwrap(), nothing.text().await.unwrap());

    world.bearers("one\n", None);
    let session = world.until_platform("one", 200).await.unwrap();
    world.until_platform("two", 401).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let tools = async |bearer: &str| {
        let response = world.platform(bearer, Some(&session), &list).await;
        let list: Value = response.json().await.unwrap();
        list["result"]["tools"].as_array().unwrap_or_else(|| panic!("{list}")).len()
    };
    assert_eq!(tools("one").await, 0);
    let stream = world.http.get(world.root("/v1/mcp")).bearer_auth("one");
    let stream = stream.header("accept", "text/event-stream").header("mcp-session-id", &session);
    let mut stream = stream.send().await.unwrap();
    assert_eq!(stream.chunk().await.unwrap().unwrap(), ": open\n\n");

    // what an Agent exports is listed once its server serves, and the client is told
    world.stage("Realizing", StageKind::Realize).await;
    world.stage("Active", StageKind::Publish).await;
    let notice = tokio::time::timeout(LIMIT, stream.chunk()).await.unwrap().unwrap().unwrap();
    assert!(String::from_utf8_lossy(&notice).contains("notifications/tools/list_changed"));
    assert_eq!(tools("one").await, 1);

    // the other token beside it, then alone: its stream ends, the session stays
    world.bearers("two", Some("one"));
    world.until_platform("two", 200).await;
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "remote_echo", "arguments": {"a": "é"}}});
    for bearer in ["one", "two"] {
        let answer = world.platform(bearer, Some(&session), &call).await.text().await.unwrap();
        assert!(answer.contains("result") && answer.contains('é'), "{answer}");
    }
    world.bearers("two", None);
    let rest = tokio::time::timeout(LIMIT, stream.chunk()).await.unwrap().unwrap();
    assert!(rest.is_none(), "{rest:?}");
    world.until_platform("one", 401).await;
    assert_eq!(tools("two").await, 1);

    world.api.remove("secrets", "awaken-system", "awaken-mcp-bearer");
    world.until_platform("two", 404).await;
    world.bearers("", None);
    world.until_platform("two", 404).await;
    world.bearers("three", None);
    world.until_platform("three", 200).await;

    let uid = world.session()["metadata"]["uid"].as_str().unwrap().to_owned();
    let records = world.journal.records(&Chain::Session(uid));
    let calls: Vec<_> = records.iter().filter(|r| r.entry.kind == Kind::Intent).collect();
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|r| r.entry.subject.as_deref() == Some("mcp-bearer")));
    world.stop.cancel();
    tokio::time::timeout(LIMIT, world.running).await.unwrap().unwrap().unwrap();
}
