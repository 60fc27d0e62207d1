//! A world for a gateway: an operator that writes Sessions into the index and reads receipts, an
//! API server that reviews by a table, and servers that answer by script.

use super::apiserver::ApiServer;
use awaken_operator::{
    api::{Agent, Session},
    domain::{
        Clock,
        export::Namespaces,
        identity::{McpGenerationRef, SessionKey, Subject},
        lifecycle::{
            Evidence, Generation, HttpTarget, Limits, Origin, Receipt, Stage, StageKind, State,
            Target, Verdict, fingerprint,
        },
        reason::Reason,
        record::Record,
        redact::Redactor,
        usage::Activity,
    },
    gateway::{
        auth::{Auth, Caller, ReviewError, Reviews, Right, Times},
        call::Calls,
        export::{Bearer, Export, ExportSet, Management},
        handle::Surface,
        host::{
            Feeder, Host, Parts,
            cluster::{Cluster, ClusterError, SecretView},
            realize::{Backoff, Failure, Note, Realized, Realizer},
            watchdog::Pings,
        },
        hosted::Sessions,
        index::{self, Index, SessionView},
        metrics::GatewayMetrics,
        router::router,
        state::Gateway,
    },
    journal::{Append, Chain, memory::Memory},
    mcp::{
        Answer, EventSink, Outgoing, Peer, PeerError, RawJson,
        legacy::{Tool, ToolListing},
        server::{Allowed, SessionStore, StoreConfig},
    },
    process::metrics::Metrics,
};
use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header::HeaderMap},
};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

pub const TOKEN: &str = "token-of-runtime";
pub const OTHER_TOKEN: &str = "token-of-stranger";
pub const KNOWING_TOKEN: &str = "token-of-viewer";

pub fn raw(text: &str) -> RawJson {
    RawJson::parse(bytes::Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

pub fn key() -> SessionKey {
    SessionKey { namespace: "team-a".into(), name: "coder".into() }
}

pub fn chain() -> Chain {
    Chain::Session("uid-session".into())
}

/// Waits for a condition, at most 5 s.
pub async fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    for _ in 0..5000 {
        if let Some(value) = condition() {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("waited 5 s for {what}");
}

pub struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }
}

type Script = dyn Fn(Outgoing) -> BoxFuture<'static, Result<Answer, PeerError>> + Send + Sync;

/// A server.
pub struct FakePeer {
    script: Box<Script>,
    pub asked: Mutex<Vec<(String, String)>>,
    closed: watch::Sender<Option<PeerError>>,
    pub closes: AtomicUsize,
}

impl FakePeer {
    pub fn new(
        script: impl Fn(Outgoing) -> BoxFuture<'static, Result<Answer, PeerError>>
        + Send
        + Sync
        + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            asked: Mutex::default(),
            closed: watch::Sender::new(None),
            closes: AtomicUsize::new(0),
        })
    }

    /// Answers each request with the result.
    pub fn answering(text: &'static str) -> Arc<Self> {
        Self::new(move |_| Box::pin(async move { Ok(Answer::Result(raw(text))) }))
    }

    /// Never answers a call, but hears a cancel and keeps the time; answers pings.
    pub fn silent() -> Arc<Self> {
        Self::mute(true)
    }

    /// Answers nothing at all.
    pub fn dead() -> Arc<Self> {
        Self::mute(false)
    }

    fn mute(pings: bool) -> Arc<Self> {
        Self::new(move |request| {
            Box::pin(async move {
                if pings && request.method == "ping" {
                    return Ok(Answer::Result(raw("{}")));
                }
                tokio::select! {
                    () = request.cancel.cancelled() => Err(PeerError::Cancelled),
                    () = tokio::time::sleep(request.timeout) => Err(PeerError::TimedOut(request.timeout)),
                }
            })
        })
    }

    pub fn die(&self, error: PeerError) {
        self.closed.send_replace(Some(error));
    }

    pub fn calls(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(m, _)| m == "tools/call").map(|(_, p)| p.clone()).collect()
    }
}

impl Peer for FakePeer {
    fn request(&self, request: Outgoing) -> BoxFuture<'_, Result<Answer, PeerError>> {
        let params = request.params.as_ref().map(|p| p.as_str().to_owned()).unwrap_or_default();
        self.asked.lock().unwrap().push((request.method.to_owned(), params));
        (self.script)(request)
    }

    fn notify<'a>(
        &'a self,
        _: &'static str,
        _: Option<RawJson>,
    ) -> BoxFuture<'a, Result<(), PeerError>> {
        Box::pin(async { Ok(()) })
    }

    fn negotiated(&self, _: &str) {}

    fn closed(&self) -> watch::Receiver<Option<PeerError>> {
        self.closed.subscribe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.closes.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {})
    }
}

/// The tools that a server lists: names with an object schema.
pub fn listing(names: &[&str]) -> ToolListing {
    let tool = |name: &&str| Tool {
        name: (*name).to_owned(),
        definition: raw(&format!(
            r#"{{"name":"{name}","description":"about {name}","inputSchema":{{"type":"object"}},"x-unknown":12345678901234567890123}}"#
        )),
    };
    ToolListing { tools: names.iter().map(tool).collect(), ..ToolListing::default() }
}

type Try = Result<(Arc<FakePeer>, Vec<&'static str>), Failure>;

/// Brings servers up by script: for each attachment what each try gives, the last one again and
/// again.
#[derive(Default)]
pub struct FakeRealizer {
    tries: Mutex<HashMap<String, Vec<Try>>>,
    pub attempts: Mutex<Vec<(String, i64)>>,
    pub sinks: Mutex<HashMap<i64, EventSink>>,
    hanging: Mutex<Vec<&'static str>>,
    pub lists: Mutex<HashMap<String, Vec<&'static str>>>,
    pub notes: Mutex<Vec<Note>>,
}

impl FakeRealizer {
    pub fn script(&self, attachment: &str, tries: Vec<Try>) {
        self.tries.lock().unwrap().insert(attachment.to_owned(), tries);
    }

    pub fn serve(&self, attachment: &str, peer: &Arc<FakePeer>, tools: &[&'static str]) {
        self.script(attachment, vec![Ok((peer.clone(), tools.to_vec()))]);
    }

    /// Tries of this attachment never end.
    pub fn hang(&self, attachment: &'static str) {
        self.script(attachment, vec![Err(Failure::new(Reason::HandshakeTimeout, "hangs"))]);
        self.hanging.lock().unwrap().push(attachment);
    }

    pub fn attempts(&self, attachment: &str) -> usize {
        self.attempts.lock().unwrap().iter().filter(|(a, _)| a == attachment).count()
    }
}

impl Realizer for FakeRealizer {
    fn realize<'a>(
        &'a self,
        _: &'a SessionView,
        generation: &'a Generation,
        events: EventSink,
        _: Duration,
    ) -> BoxFuture<'a, Result<Realized, Failure>> {
        let name = generation.attachment.clone();
        self.attempts.lock().unwrap().push((name.clone(), generation.generation));
        let (attempt, notes) = (self.attempts(&name), self.notes.lock().unwrap().split_off(0));
        self.sinks.lock().unwrap().insert(generation.generation, events);
        let mut tries = self.tries.lock().unwrap();
        let script = tries.get_mut(&name).unwrap_or_else(|| panic!("no script for {name}"));
        let next = if script.len() > 1 { script.remove(0) } else { script[0].clone() };
        let server = generation.server.clone();
        let hangs = self.hanging.lock().unwrap().contains(&&*name);
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            let (peer, tools) = next?;
            let surface = Surface::new(&server, listing(&tools));
            let evidence = Evidence {
                protocol_version: Some("2025-11-25".into()),
                tool_count: Some(tools.len() as i64),
                surface_digest: Some(surface.digest.clone()),
                ..Evidence::default()
            };
            let redactor = Redactor::new(["canary-secret", &format!("canary-of-try-{attempt}")]);
            Ok(Realized { peer, surface, evidence, redactor, notes })
        })
    }

    fn relist<'a>(
        &'a self,
        generation: &'a Generation,
        _: &'a dyn Peer,
        redactor: &'a Redactor,
    ) -> BoxFuture<'a, Result<(Surface, Vec<Note>), Failure>> {
        let tools = self.lists.lock().unwrap()[&generation.attachment].clone();
        let surface = Surface::new(&generation.server, listing(&tools));
        let message = redactor.text("\"odd canary-secret\"").into_owned();
        let note = Note { reason: Reason::ToolQuarantined, message };
        Box::pin(async move { Ok((surface, vec![note])) })
    }
}

/// Reviews by a table.
#[derive(Default)]
pub struct FakeReviews {
    pub tokens: AtomicUsize,
    pub accesses: AtomicUsize,
    pub revoked: AtomicBool,
    pub down: AtomicBool,
    /// How long the review of a token takes.
    pub delay: Mutex<Duration>,
}

impl Reviews for FakeReviews {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, ReviewError>> {
        self.tokens.fetch_add(1, Ordering::SeqCst);
        let user = match token {
            TOKEN => Some("system:serviceaccount:team-a:runtime"),
            OTHER_TOKEN => Some("system:serviceaccount:team-b:stranger"),
            KNOWING_TOKEN => Some("system:serviceaccount:team-a:viewer"),
            _ => None,
        };
        let user = user.filter(|_| !self.revoked.load(Ordering::SeqCst));
        let down = self.down.load(Ordering::SeqCst);
        let delay = *self.delay.lock().unwrap();
        Box::pin(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // two requests at one time meet here
            tokio::task::yield_now().await;
            if down {
                return Err(ReviewError("down".into()));
            }
            Ok(user.map(|user| {
                let subject =
                    Subject { user: user.into(), uid: format!("uid of {user}"), groups: vec![] };
                Caller::new(subject, BTreeMap::new())
            }))
        })
    }

    fn access<'a>(
        &'a self,
        caller: &'a Caller,
        right: Right,
        session: &'a SessionKey,
    ) -> BoxFuture<'a, Result<bool, ReviewError>> {
        self.accesses.fetch_add(1, Ordering::SeqCst);
        let allowed = session.namespace == "team-a"
            && match &*caller.user {
                "system:serviceaccount:team-a:runtime" => true,
                "system:serviceaccount:team-a:viewer" => right == Right::Know,
                _ => false,
            };
        Box::pin(async move { Ok(allowed) })
    }
}

type Look = Box<dyn Fn(&Value) + Send>;

/// What the operator wrote, and what came back.
#[derive(Default)]
pub struct Stored {
    pub session: Value,
    pub version: u64,
    pub writes: usize,
    pub conflicts: usize,
    /// The next write is done, and its answer and event are lost.
    pub lose_answer: bool,
    on_write: Option<Look>,
    pub events: Vec<(String, Reason, String)>,
}

/// The API server: one Session.
pub struct FakeCluster {
    pub stored: Mutex<Stored>,
    index: Mutex<Index>,
    feeder: Mutex<Option<Feeder>>,
}

impl FakeCluster {
    fn session(&self) -> Session {
        serde_json::from_value(self.stored.lock().unwrap().session.clone()).unwrap()
    }

    /// Writes the Session as the operator does, and lets the gateway see it.
    pub fn write(&self, change: impl FnOnce(&mut Value)) {
        self.write_unseen(change);
        self.show();
    }

    /// Writes the Session as the operator does; the gateway does not see it.
    pub fn write_unseen(&self, change: impl FnOnce(&mut Value)) {
        let mut stored = self.stored.lock().unwrap();
        change(&mut stored.session);
        stored.version += 1;
        stored.session["metadata"]["resourceVersion"] = json!(stored.version.to_string());
    }

    /// Looks at the Session from now on, whenever the gateway wrote it.
    pub fn on_write(&self, look: impl Fn(&Value) + Send + 'static) {
        self.stored.lock().unwrap().on_write = Some(Box::new(look));
    }

    /// Lets the gateway see the Session as it is stored.
    pub fn show(&self) {
        let change = self.index.lock().unwrap().apply_session(&self.session());
        self.feed(change);
    }

    pub fn delete(&self) {
        let change = self.index.lock().unwrap().delete_session(&key());
        self.feed(change);
    }

    fn feed(&self, change: Option<index::Change>) {
        let feeder = self.feeder.lock().unwrap().clone();
        if let (Some(feeder), Some(change)) = (feeder, change) {
            feeder.take(change);
        }
    }

    pub fn policy(&self, tool_sets: Value) {
        self.agent("team-a/coder", 1, json!({"toolSets": tool_sets}));
    }

    /// An Agent as its user writes it, created at that second.
    pub fn agent(&self, name: &str, created: i64, spec: Value) {
        let (namespace, name) = name.split_once('/').unwrap();
        let created = Timestamp::from_second(created).unwrap();
        let agent: Agent = serde_json::from_value(json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{namespace}-{name}"),
                "creationTimestamp": created},
            "spec": spec
        }))
        .unwrap();
        let change = self.index.lock().unwrap().apply_agent(&agent);
        self.feed(change);
    }

    pub fn delete_agent(&self, namespace: &str, name: &str) {
        let change = self.index.lock().unwrap().delete_agent(namespace, name);
        self.feed(change);
    }

    pub fn receipts(&self) -> Vec<Receipt> {
        self.session().status.unwrap_or_default().receipts
    }

    pub fn activity(&self) -> Option<Activity> {
        self.session().status.unwrap_or_default().activity
    }

    pub fn receipt(&self, generation: i64) -> Option<Receipt> {
        self.receipts().into_iter().find(|r| r.generation == generation)
    }
}

impl Cluster for FakeCluster {
    fn session<'a>(
        &'a self,
        _: &'a SessionKey,
    ) -> BoxFuture<'a, Result<SessionView, ClusterError>> {
        let view = SessionView::of(&self.session());
        Box::pin(async move { Ok(view) })
    }

    fn write_receipts<'a>(
        &'a self,
        view: &'a SessionView,
        receipts: &'a [Receipt],
        activity: Option<&'a Activity>,
    ) -> BoxFuture<'a, Result<SessionView, ClusterError>> {
        Box::pin(async move {
            let lost = {
                let mut stored = self.stored.lock().unwrap();
                if view.resource_version != stored.version.to_string() {
                    stored.conflicts += 1;
                    return Err(ClusterError::Conflict);
                }
                stored.writes += 1;
                stored.version += 1;
                stored.session["metadata"]["resourceVersion"] = json!(stored.version.to_string());
                stored.session["status"]["receipts"] = serde_json::to_value(receipts).unwrap();
                if let Some(activity) = activity {
                    stored.session["status"]["activity"] = serde_json::to_value(activity).unwrap();
                }
                if let Some(look) = &stored.on_write {
                    look(&stored.session);
                }
                std::mem::take(&mut stored.lose_answer)
            };
            if lost {
                return Err(ClusterError::Other("the connection was lost".into()));
            }
            let written = SessionView::of(&self.session());
            self.show();
            Ok(written)
        })
    }

    fn secret<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<SecretView, ClusterError>> {
        Box::pin(async { Err(ClusterError::NotFound) })
    }

    fn event<'a>(
        &'a self,
        _: &'a SessionView,
        (attachment, _): (&'a str, &'a str),
        note: Note,
    ) -> BoxFuture<'a, ()> {
        let event = (attachment.to_owned(), note.reason, note.message);
        self.stored.lock().unwrap().events.push(event);
        Box::pin(async {})
    }
}

/// A generation as the operator writes it.
pub struct Entry {
    pub generation: i64,
    pub attachment: &'static str,
    pub origin: Origin,
    pub state: State,
    pub stage: Option<StageKind>,
    pub limits: Limits,
}

pub fn limits() -> Limits {
    Limits {
        startup_timeout_ms: 60_000,
        call_timeout_ms: 60_000,
        drain_timeout_ms: 30_000,
        max_concurrent_calls: 16,
        max_message_bytes: 1 << 20,
    }
}

pub fn entry(generation: i64, attachment: &'static str, state: State) -> Entry {
    let stage = match state {
        State::Realizing => Some(StageKind::Realize),
        State::Active => Some(StageKind::Publish),
        State::Draining => Some(StageKind::Drain),
        State::Requested | State::Failed => None,
    };
    Entry { generation, attachment, origin: Origin::Agent, state, stage, limits: limits() }
}

/// The same of an attachment that the Session brings.
pub fn own(generation: i64, attachment: &'static str, state: State) -> Entry {
    Entry { origin: Origin::Session, ..entry(generation, attachment, state) }
}

/// The gateway and everything around it.
pub struct World {
    pub cluster: Arc<FakeCluster>,
    pub realizer: Arc<FakeRealizer>,
    pub reviews: Arc<FakeReviews>,
    pub journal: Memory,
    pub sessions: Sessions,
    pub gateway: Arc<Gateway>,
    pub router: Router,
    pub metrics: Metrics,
    pub stop: CancellationToken,
    pub incarnation: &'static str,
    pub bearer: Bearer,
    /// What the REST routes write to; what the gateway watches is [`World::cluster`].
    pub api: ApiServer,
    host: Option<tokio::task::JoinHandle<()>>,
}

impl World {
    pub fn new() -> Self {
        Self::with(Memory::new(), "inc-1")
    }

    pub fn with(journal: Memory, incarnation: &'static str) -> Self {
        Self::build(journal, incarnation, Times::default())
    }

    pub fn build(journal: Memory, incarnation: &'static str, times: Times) -> Self {
        Self::exporting((journal, incarnation), times, None, Namespaces::default())
    }

    /// A world with these management tools and exports of these namespaces, still without a
    /// bearer.
    pub fn exporting(
        (journal, incarnation): (Memory, &'static str),
        times: Times,
        management: Option<Arc<dyn Management>>,
        namespaces: Namespaces,
    ) -> Self {
        let host = Arc::new(journal.clone());
        Self::hosted_over(host, (journal, incarnation), times, (management, namespaces))
    }

    /// The host appends to another journal than the calls.
    pub fn hosted_over(
        append: Arc<dyn Append>,
        (journal, incarnation): (Memory, &'static str),
        times: Times,
        (management, namespaces): (Option<Arc<dyn Management>>, Namespaces),
    ) -> Self {
        let metrics = Metrics::new();
        let counters = GatewayMetrics::new(&metrics);
        let index = Index::new(namespaces);
        let (shared, export_changes) = (index.shared(), index.export_changes());
        let session = json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
            "metadata": {"name": "coder", "namespace": "team-a", "uid": "uid-session", "resourceVersion": "1"},
            "spec": {"agentRef": {"name": "coder"}},
            "status": {"lastGeneration": 0}
        });
        let cluster = Arc::new(FakeCluster {
            stored: Mutex::new(Stored { session, version: 1, ..Stored::default() }),
            index: Mutex::new(index),
            feeder: Mutex::new(None),
        });
        let realizer = Arc::new(FakeRealizer::default());
        let sessions = Sessions::default();
        let (host, feeder) = Host::new(Parts {
            gateway: "gateway-0".into(),
            incarnation: incarnation.into(),
            index: shared.clone(),
            sessions: sessions.clone(),
            realizer: realizer.clone(),
            cluster: cluster.clone(),
            append,
            read: Arc::new(journal.clone()),
            clock: Arc::new(FixedClock),
            metrics: counters.clone(),
            backoff: Backoff {
                first: Duration::from_millis(5),
                longest: Duration::from_millis(20),
                jitter: Arc::new(|| 1.0),
            },
            patience: Duration::from_millis(200),
            pings: Pings {
                every: Duration::from_millis(30),
                again: Duration::from_millis(30),
                timeout: Duration::from_millis(30),
                misses: 3,
            },
        });
        *cluster.feeder.lock().unwrap() = Some(feeder);
        let stop = CancellationToken::new();
        let host = tokio::spawn(host.run(stop.clone()));
        let calls = Arc::new(Calls::new(
            Arc::new(journal.clone()),
            Arc::new(FixedClock),
            counters,
            incarnation.to_owned(),
        ));
        let bearer = Bearer::default();
        let set = Arc::new(ExportSet::new(management, shared.clone(), sessions.clone()));
        let export = Export { bearer: bearer.clone(), set: set.clone() };
        let stopped = stop.clone();
        tokio::spawn(async move { set.watch(export_changes, stopped).await });
        let reviews = Arc::new(FakeReviews::default());
        let api = ApiServer::new();
        let gateway = Arc::new(Gateway {
            auth: Arc::new(Auth::new(reviews.clone(), [7; 32], times)),
            allowed: Allowed { hosts: vec!["gateway.test".into()], origins: vec![] },
            index: shared,
            client: api.client("gateway"),
            sessions: sessions.clone(),
            calls,
            export,
            store: SessionStore::new(StoreConfig { max_body: 64 << 10, ..StoreConfig::default() }),
            read: Arc::new(journal.clone()),
            forward: None,
            reviews: TaskTracker::new(),
            review_every: Duration::from_millis(10),
            draining: AtomicBool::new(false),
        });
        Self {
            router: router(gateway.clone()),
            cluster,
            realizer,
            reviews,
            journal,
            sessions,
            gateway,
            metrics,
            stop,
            incarnation,
            bearer,
            api,
            host: Some(host),
        }
    }

    /// The operator places the Session here and writes its generations.
    pub fn place(&self, epoch: i64, entries: &[Entry]) {
        let attachments: Vec<_> = entries.iter().map(|e| self.generation(epoch, e)).collect();
        let host = json!({"gateway": "gateway-0", "incarnation": self.incarnation, "epoch": epoch});
        self.cluster.write(|session| {
            session["status"]["host"] = host;
            session["status"]["attachments"] = serde_json::to_value(attachments).unwrap();
        });
    }

    pub fn generation(&self, epoch: i64, entry: &Entry) -> Generation {
        let target = Target::Http(HttpTarget {
            url: format!("https://{}.example.com/mcp", entry.attachment),
            credential: None,
        });
        let attachment_uid = match entry.origin {
            Origin::Agent => format!("uid-{}", entry.attachment),
            Origin::Session => format!("own-{}", entry.attachment),
        };
        let session = self.cluster.session();
        let stage = entry.stage.map(|kind| {
            let generation_ref = McpGenerationRef {
                session_uid: session.metadata.uid.clone().unwrap(),
                attachment_uid: attachment_uid.clone(),
                generation: entry.generation,
                incarnation: self.incarnation.into(),
                epoch,
            };
            let fingerprint = fingerprint(&generation_ref, kind, &target, &entry.limits);
            Stage { kind, generation_ref, fingerprint }
        });
        Generation {
            generation: entry.generation,
            attachment: entry.attachment.into(),
            attachment_uid,
            origin: entry.origin,
            server: entry.attachment.into(),
            source: "sha256:source".into(),
            state: entry.state,
            stage,
            target,
            limits: entry.limits.clone(),
            reason: Reason::Active,
            message: String::new(),
            since: FixedClock.now(),
            deadline: None,
            failures: if entry.state == State::Failed { 3 } else { 0 },
            evidence: None,
            published: false,
        }
    }

    /// One attachment with these tools, in service.
    pub async fn serving(&self, peer: &Arc<FakePeer>, tools: &[&'static str]) {
        self.realizer.serve("files", peer, tools);
        self.place(1, &[entry(1, "files", State::Realizing)]);
        self.receipt(1, Verdict::Done).await;
        self.place(1, &[entry(1, "files", State::Active)]);
        self.published(1).await;
    }

    pub async fn receipt(&self, generation: i64, verdict: Verdict) -> Receipt {
        until(&format!("{verdict:?} of {generation}"), || {
            self.cluster.receipt(generation).filter(|r| r.verdict == verdict)
        })
        .await
    }

    pub async fn published(&self, generation: i64) -> Receipt {
        until(&format!("publication of {generation}"), || {
            self.cluster
                .receipt(generation)
                .filter(|r| r.stage == StageKind::Publish && r.verdict == Verdict::Done)
        })
        .await
    }

    pub fn records(&self) -> Vec<Record> {
        self.journal.records(&chain())
    }

    /// Records that are about calls and requests.
    pub fn call_records(&self) -> Vec<Record> {
        use awaken_operator::domain::record::Kind;
        self.records().into_iter().filter(|r| r.entry.kind != Kind::Lifecycle).collect()
    }

    pub async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = axum::body::to_bytes(response.into_body(), 1 << 24).await.unwrap();
        Reply { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    /// Opens an MCP session and gives its id.
    pub async fn open(&self, path: &str) -> String {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let reply = self.send(post(path, TOKEN, None, &body.to_string())).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
        reply.headers["mcp-session-id"].to_str().unwrap().to_owned()
    }

    pub async fn ask(&self, session: &str, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.send(post(MCP, TOKEN, Some(session), &body.to_string())).await.json()
    }

    pub async fn call(&self, session: &str, tool: &str, arguments: Value) -> Value {
        self.ask(session, "tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    pub async fn tools(&self, session: &str) -> Vec<String> {
        let reply = self.ask(session, "tools/list", json!({})).await;
        let tools = reply["result"]["tools"].as_array().unwrap_or_else(|| panic!("{reply}"));
        tools.iter().map(|t| t["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Stops the host and waits for its end.
    pub async fn shut_down(mut self) -> Memory {
        self.stop.cancel();
        self.host.take().unwrap().await.unwrap();
        self.journal.clone()
    }
}

pub const MCP: &str = "/v1/sessions/team-a/coder/mcp";

pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        let text = match self.text.split_once("data: ") {
            Some((_, event)) if !self.text.starts_with('{') => event.trim(),
            _ => &self.text,
        };
        serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {:?}", self.text))
    }

    pub fn reason(&self) -> String {
        let value = self.json();
        let rest = value["error"]["reason"].as_str();
        rest.or(value["error"]["data"]["reason"].as_str()).unwrap_or_default().to_owned()
    }
}

pub fn request(method: &str, path: &str, token: Option<&str>) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path).header("host", "gateway.test");
    if let Some(token) = token {
        builder = builder.header("authorization", format!("Bearer {token}"));
    }
    builder.body(Body::empty()).unwrap()
}

pub fn post(path: &str, token: &str, session: Option<&str>, body: &str) -> Request<Body> {
    let mut request = request("POST", path, Some(token));
    let headers = request.headers_mut();
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("accept", "application/json, text/event-stream".parse().unwrap());
    if let Some(session) = session {
        headers.insert("mcp-session-id", session.parse().unwrap());
    }
    *request.body_mut() = Body::from(body.to_owned());
    request
}

pub fn allow_all() -> Value {
    json!([{"attachment": "files", "defaultPermission": "Allow"}])
}
