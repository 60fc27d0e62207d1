//! A gateway as `gateway::run` builds it, but for the API server: one Session, an operator that
//! placed it, and reviews that say yes.

use crate::server::{Http, Stdio};
use awaken_operator::{
    api::Session,
    domain::{
        gate::{Permission, ToolSet},
        identity::{SessionKey, Subject},
        lifecycle::{Generation, HttpTarget, Limits, State, Target},
        reason::Reason,
        redact::Redactor,
    },
    gateway::{
        auth::{Auth, Caller, ReviewError, Reviews, Right, Times},
        call::Calls,
        export::{Bearer, Export, ExportSet},
        handle::{Fresh, Handle, Renew, Surface},
        hosted::{Hosted, Sessions},
        index::Index,
        metrics::GatewayMetrics,
        router::{Gateway, router},
    },
    journal::{
        Append, Chain, Read,
        memory::Memory,
        sqlite::{Durability, Sqlite},
    },
    mcp::{
        EventSink, Peer, client_http, client_stdio,
        legacy::handshake,
        server::{Allowed, SessionStore, StoreConfig},
    },
    process::{clock::SystemClock, metrics::Metrics},
};
use awaken_shim::challenge::Claim;
use axum::serve::ListenerExt;
use futures::future::BoxFuture;
use serde_json::json;
use std::{
    collections::BTreeMap,
    env, fs,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::task::TaskTracker;

const TOKEN: &str = "token-of-the-benchmark";
const LIMIT: usize = 16 << 20;

/// A file with the caller's token.
pub fn token_file() -> String {
    let path = env::temp_dir().join(format!("awaken-call-path-token-{}", std::process::id()));
    if !path.exists() {
        fs::write(&path, TOKEN).unwrap();
    }
    path.display().to_string()
}

/// Says yes.
struct Yes;

impl Reviews for Yes {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, ReviewError>> {
        let user = "system:serviceaccount:team-a:runtime".to_owned();
        let subject = Subject { user, uid: "uid-runtime".to_owned(), groups: vec![] };
        let known = (token == TOKEN).then(|| Caller::new(subject, BTreeMap::new()));
        Box::pin(async move { Ok(known) })
    }

    fn access<'a>(
        &'a self,
        _: &'a Caller,
        _: Right,
        _: &'a SessionKey,
    ) -> BoxFuture<'a, Result<bool, ReviewError>> {
        Box::pin(async { Ok(true) })
    }
}

/// Renews nothing: no server here forgets its session.
struct Never;

impl Renew for Never {
    fn renew(&self) -> BoxFuture<'_, Option<Fresh>> {
        Box::pin(async { None })
    }
}

/// The gateway.
pub struct World {
    address: SocketAddr,
    servers: Vec<&'static str>,
    sqlite: Option<(Sqlite, PathBuf)>,
    task: JoinHandle<()>,
}

impl World {
    /// Starts one; without a durability the journal is in memory.
    pub async fn start(durability: Option<Durability>, http: &Http, stdio: Option<&Stdio>) -> Self {
        let metrics = Metrics::new();
        let sqlite = durability.map(|durability| {
            let folder =
                env::var_os("AWAKEN_BENCH_FOLDER").map_or_else(env::temp_dir, PathBuf::from);
            let path = folder.join(format!("awaken-call-path-{}.db", std::process::id()));
            (Sqlite::open(&path, durability, &metrics).unwrap(), path)
        });
        let (append, read): (Arc<dyn Append>, Arc<dyn Read>) = match &sqlite {
            Some((store, _)) => (Arc::new(store.clone()), Arc::new(store.clone())),
            None => {
                let memory = Memory::new();
                (Arc::new(memory.clone()), Arc::new(memory))
            }
        };
        append.raise_epoch(&Chain::Session("uid-session".to_owned()), 1).await.unwrap();

        let servers: Vec<&'static str> =
            if stdio.is_some() { vec!["http", "stdio"] } else { vec!["http"] };
        let rules = ToolSet { default: Permission::Allow, tools: BTreeMap::new() };
        let policies: BTreeMap<_, _> =
            servers.iter().map(|s| ((*s).to_owned(), Arc::new(rules.clone()))).collect();
        let key = SessionKey { namespace: "team-a".to_owned(), name: "coder".to_owned() };
        let hosted =
            Arc::new(Hosted::new(key, "uid-session".to_owned(), 1, Arc::new(policies.into())));
        let events: EventSink = Arc::new(|_| {});
        let mut entries = vec![];
        for (number, name) in (1..).zip(&servers) {
            let generation = generation(number, name, &http.url());
            let peer: Arc<dyn Peer> = match stdio {
                Some(stdio) if *name == "stdio" => {
                    Arc::new(over_stdio(stdio, events.clone()).await)
                }
                _ => Arc::new(over_http(&http.url(), events.clone())),
            };
            let shaken = handshake(&*peer, Duration::from_secs(10)).await.unwrap();
            let surface = Surface::new(name, shaken.listing);
            let redactor = Redactor::new(["a-secret-of-the-benchmark"]);
            let handle = Handle::new(&generation, peer, surface, redactor, Arc::new(Never));
            hosted.catalogs.swap(&[Arc::new(handle)], &[], vec![]);
            entries.push(generation);
        }
        hosted.set_open(true);
        let sessions = Sessions::default();
        sessions.put(hosted);

        let mut index = Index::default();
        let session: Session = serde_json::from_value(json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
            "metadata": {"name": "coder", "namespace": "team-a", "uid": "uid-session", "resourceVersion": "1"},
            "spec": {"agentRef": {"name": "coder"}},
            "status": {"lastGeneration": 2, "attachments": entries},
        }))
        .unwrap();
        index.apply_session(&session);
        let incarnation = format!("bench{durability:?}");
        let calls =
            Calls::new(append, Arc::new(SystemClock), GatewayMetrics::new(&metrics), incarnation);
        let export = Export {
            bearer: Bearer::default(),
            set: Arc::new(ExportSet::new(None, index.shared(), sessions.clone())),
        };
        let gateway = Arc::new(Gateway {
            auth: Arc::new(Auth::new(Arc::new(Yes), [7; 32], Times::default())),
            allowed: Allowed { hosts: vec!["127.0.0.1".to_owned()], origins: vec![] },
            index: index.shared(),
            sessions,
            calls: Arc::new(calls),
            export,
            store: SessionStore::new(StoreConfig::default()),
            read,
            reviews: TaskTracker::new(),
            review_every: Duration::from_secs(60),
            draining: AtomicBool::new(false),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        let task =
            tokio::spawn(async move { axum::serve(listener, router(gateway)).await.unwrap() });
        Self { address, servers, sqlite, task }
    }

    /// Whether there is such a server.
    pub fn serves(&self, name: &str) -> bool {
        self.servers.contains(&name)
    }

    /// The endpoint of a server.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/v1/sessions/team-a/coder/mcp/{name}", self.address)
    }

    /// Ends it.
    pub async fn end(self) {
        self.task.abort();
        let _ = self.task.await;
        if let Some((store, path)) = self.sqlite {
            store.close().await;
            for end in ["", "-wal", "-shm", ".lock", "-lock"] {
                let _ = fs::remove_file(format!("{}{end}", path.display()));
            }
        }
    }
}

fn over_http(url: &str, events: EventSink) -> client_http::HttpPeer {
    let target = client_http::HttpTarget::new(url, None, LIMIT, Duration::from_secs(5)).unwrap();
    let tls = client_http::tls_config().unwrap();
    client_http::HttpPeer::new(target, Arc::new(|_| Ok(())), tls, events)
}

async fn over_stdio(stdio: &Stdio, events: EventSink) -> client_stdio::StdioPeer {
    // one epoch for each world: the shim takes the link from the one before
    static EPOCH: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let epoch = EPOCH.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let claim = Claim {
        pod_uid: "uid-pod".to_owned(),
        session_uid: "uid-session".to_owned(),
        attachment_uid: "uid-stdio".to_owned(),
        generation: 2,
        epoch,
        incarnation: format!("incarnation-{epoch}"),
    };
    let target =
        client_stdio::StdioTarget { address: stdio.address, claim, max_message_bytes: LIMIT };
    client_stdio::StdioPeer::connect(target, stdio.key.clone(), events).await.unwrap()
}

fn generation(number: i64, name: &str, url: &str) -> Generation {
    Generation {
        generation: number,
        attachment: name.to_owned(),
        attachment_uid: format!("uid-{name}"),
        origin: awaken_operator::domain::lifecycle::Origin::Agent,
        server: name.to_owned(),
        source: "sha256:source".to_owned(),
        state: State::Active,
        stage: None,
        target: Target::Http(HttpTarget { url: url.to_owned(), credential: None }),
        limits: Limits {
            startup_timeout_ms: 60_000,
            call_timeout_ms: 60_000,
            drain_timeout_ms: 30_000,
            max_concurrent_calls: 256,
            max_message_bytes: LIMIT as i64,
        },
        reason: Reason::Active,
        message: String::new(),
        since: jiff::Timestamp::UNIX_EPOCH,
        deadline: None,
        failures: 0,
        evidence: None,
        published: true,
    }
}
