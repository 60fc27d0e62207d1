//! The operator: watches, decides, launches. It never talks MCP; it meets the gateways in the API
//! server alone.
//!
//! ```text
//!  watch ──► wake ──► queue (keys) ──► session::reconcile
//!                                          resolve: every read
//!                                          plan, domain::lifecycle, build: pure
//!                                          apply: every write
//! ```
//!
//! One reconcile serves the Session of a name, and the Agent of that name with its attachments, so
//! that a Standing Agent is decided on one view. Only the holder of the Lease reconciles.

pub mod advance;
pub mod agent;
pub mod apply;
pub mod attachment;
pub mod build;
pub mod egress;
pub mod events;
pub mod expiry;
pub mod exports;
pub mod hosts;
pub mod keys;
pub mod latest;
pub mod launch;
pub mod leaving;
pub mod metrics;
pub mod own;
pub mod plan;
pub mod pods;
pub mod project;
pub mod queue;
pub mod refs;
pub mod resolve;
pub mod scrub;
pub mod secrets;
pub mod seen;
pub mod session;
pub mod stores;
pub mod target;
pub mod tries;
pub mod unreadable;
pub mod wake;
pub mod watch;

use crate::{
    api::Session,
    domain::{Clock, export::Namespaces, identity::SessionKey, lifecycle::Ignored},
    process::{
        health::Guard,
        lease::{self, Held, Keeper, LeaseError},
        metrics::Metrics,
    },
};
use apply::Apply;
use build::{
    pod::ShimImage,
    policy::{DnsPeers, GatewayPeers},
};
use events::Events;
use hosts::Gateways;
use kube::{Client, runtime::reflector::Store};
use latest::LatestAll;
use metrics::ControllerMetrics;
use queue::{Outcome, Queue};
use resolve::Resolve;
use seen::Rules;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::watch::Receiver, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tries::Tries;

/// Name of the operator's Lease.
const LEASE: &str = "awaken-operator";
const LEASE_DURATION: Duration = Duration::from_secs(15);
const KEYS_AGAIN: Duration = Duration::from_secs(2);
const AFTER_CONFLICT: Duration = Duration::from_millis(10);

/// What the operator is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The installation's namespace.
    pub namespace: String,
    /// Name of the pod, for events and logs.
    pub pod: String,
    /// This start of the process, never used again.
    pub incarnation: String,
    /// Where the shim comes from.
    pub shim: ShimImage,
    /// Where gateways are, for NetworkPolicies.
    pub gateways: GatewayPeers,
    /// Where the cluster's DNS is, for NetworkPolicies that let anything out.
    pub dns: DnsPeers,
    /// How many Sessions are looked at side by side.
    pub workers: usize,
    /// Where Agents may export tools.
    pub export_namespaces: Namespaces,
    /// What nobody may do; the reserved Secrets are those beside the operator's own keys.
    pub rules: Rules,
}

impl Config {
    /// The labels of gateway pods of the chart's release.
    pub fn gateway_labels(instance: &str) -> BTreeMap<String, String> {
        [
            ("app.kubernetes.io/name", "awaken-operator"),
            ("app.kubernetes.io/instance", instance),
            ("app.kubernetes.io/component", "gateway"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into()
    }
}

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The Lease is lost: another replica acts.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A part ended.
    #[error("{0} ended")]
    Ended(&'static str),
}

/// Why a reconcile ended early. The key comes back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read.
    #[error(transparent)]
    Resolve(#[from] resolve::ResolveError),
    /// Something could not be written.
    #[error(transparent)]
    Apply(#[from] apply::ApplyError),
}

/// What every reconcile shares.
pub struct Context {
    /// What the operator is told.
    pub config: Config,
    /// The reading side.
    pub resolve: Resolve,
    /// The writing side.
    pub apply: Apply,
    /// Kubernetes events.
    pub events: Events,
    /// What is counted.
    pub metrics: ControllerMetrics,
    /// Keys that are due.
    pub queue: Arc<Queue<SessionKey>>,
    /// Requests for another try that Sessions took up.
    pub tries: Tries,
    ignored: Mutex<HashMap<SessionKey, HashSet<Ignored>>>,
}

impl Context {
    /// Counts receipts that do not count, each once.
    fn count_ignored(&self, key: &SessionKey, ignored: &[Ignored]) {
        let mut all = self.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        if ignored.is_empty() {
            all.remove(key);
            return;
        }
        let known = all.entry(key.clone()).or_default();
        for new in ignored.iter().filter(|i| !known.contains(i)) {
            self.metrics.ignored(new.mismatch);
        }
        *known = ignored.iter().copied().collect();
    }
}

/// Runs the operator until `stop`. `ready` gives a guard for each part that must come up.
///
/// # Errors
/// When the Lease is lost, or a part ends unasked.
pub async fn run(
    config: Config,
    client: Client,
    clock: Arc<dyn Clock>,
    ready: impl Fn(&'static str) -> Option<Guard>,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), ControllerError> {
    let metrics = ControllerMetrics::new(metrics);
    let queue = Arc::new(Queue::default());
    let gateways = Arc::new(Gateways::default());
    let latest = Arc::new(LatestAll::default());
    let unreadable = unreadable::Unreadable::default();
    let (events, writer) = events::channel(client.clone(), &config.pod, metrics.clone());
    let shared = watch::Shared {
        client: client.clone(),
        namespace: config.namespace.clone(),
        queue: queue.clone(),
        gateways: gateways.clone(),
        latest: latest.clone(),
        unreadable: unreadable.clone(),
        events: events.clone(),
        metrics: metrics.clone(),
    };
    let mut tasks = JoinSet::new();
    let (stores, watches) = watch::start(&shared, ready);
    for watch in watches {
        tasks.spawn(async move {
            watch.await;
            ControllerError::Ended("a watch")
        });
    }
    let writing = writer.run(stop.clone());
    tasks.spawn(async move {
        writing.await;
        ControllerError::Ended("the writer of events")
    });
    let mut rules = config.rules.clone();
    rules.reserved_secrets.extend([keys::LINK_KEYS, keys::SOURCE_KEY].map(str::to_owned));
    let api_server = rules.api_server.clone();
    let following = api_server.clone().follow(client.clone(), false, stop.clone());
    tasks.spawn(async move {
        following.await;
        ControllerError::Ended("the reader of the API server's endpoints")
    });
    let (others, sessions, due) = (api_server.changes(), stores.sessions.clone(), queue.clone());
    tasks.spawn(async move {
        wake_on_change(others, sessions, due).await;
        ControllerError::Ended("what follows the API server's endpoints")
    });
    let (keeper, held) = Keeper::new(client.clone(), lease_config(&config), clock.clone());
    let give_back = CancellationToken::new();
    let mut lease = JoinSet::new();
    lease.spawn(keeper.run(give_back.clone()));
    tasks.spawn(async move {
        leader(held.clone()).await;
        let apply = Apply::new(client.clone(), metrics.clone());
        let source_key = source_key(&apply, &config.namespace).await;
        api_server.read(&client).await;
        stores.ready().await;
        gateways.ready().await;
        let resolve = Resolve::new(
            client,
            config.namespace.clone(),
            clock,
            stores,
            unreadable,
            gateways,
            latest,
            source_key,
            config.export_namespaces.clone(),
            rules,
        );
        let ctx = Arc::new(Context {
            config,
            resolve,
            apply,
            events,
            metrics,
            queue: queue.clone(),
            tries: Tries::default(),
            ignored: Mutex::default(),
        });
        work(ctx, queue, held).await
    });
    let ended = tokio::select! {
        () = stop.cancelled() => Ok(()),
        Some(kept) = lease.join_next() => match kept {
            Ok(Err(lost)) => Err(lost.into()),
            Ok(Ok(())) | Err(_) => Err(ControllerError::Ended("the keeper of the Lease")),
        },
        Some(ended) = tasks.join_next() => {
            Err(ended.unwrap_or(ControllerError::Ended("a task that panicked")))
        }
    };
    // Nothing is written any more before the Lease is given back.
    tasks.shutdown().await;
    give_back.cancel();
    while lease.join_next().await.is_some() {}
    ended
}

fn lease_config(config: &Config) -> lease::Config {
    lease::Config {
        namespace: config.namespace.clone(),
        name: LEASE.to_owned(),
        identity: format!("{}_{}", config.pod, config.incarnation),
        duration: LEASE_DURATION,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        owner: None,
        exclusive_name: false,
    }
}

/// Other addresses of the API server are left out of what Sessions may reach.
async fn wake_on_change(
    mut changes: Receiver<u64>,
    sessions: Store<Session>,
    queue: Arc<Queue<SessionKey>>,
) {
    while changes.changed().await.is_ok() {
        for session in sessions.state() {
            queue.push(refs::of_session(&session));
        }
    }
}

/// Waits until the Lease is ours.
async fn leader(mut held: Receiver<Held>) {
    if held.wait_for(|h| h.is_valid()).await.is_err() {
        // Its keeper ended, and with it the process.
        std::future::pending::<()>().await;
    }
    tracing::info!("this replica acts");
}

/// The installation's keys, as soon as they can be had.
async fn source_key(apply: &Apply, namespace: &str) -> keys::SourceKey {
    loop {
        match keys::ensure(apply, namespace).await {
            Ok(key) => return key,
            Err(problem) => {
                tracing::error!(%problem, "the installation's keys are not there yet");
                tokio::time::sleep(KEYS_AGAIN).await;
            }
        }
    }
}

/// Looks at Sessions as they become due, as long as the Lease is ours.
async fn work(
    ctx: Arc<Context>,
    queue: Arc<Queue<SessionKey>>,
    held: Receiver<Held>,
) -> ControllerError {
    let mut all = JoinSet::new();
    for _ in 0..ctx.config.workers.max(1) {
        let (ctx, queue, held) = (ctx.clone(), queue.clone(), held.clone());
        all.spawn(async move {
            loop {
                let key = queue.next().await;
                if !held.borrow().is_valid() {
                    return;
                }
                handle(&ctx, &queue, &key).await;
            }
        });
    }
    match all.join_next().await {
        Some(Ok(())) => LeaseError::Expired(LEASE.to_owned()).into(),
        Some(Err(_)) | None => ControllerError::Ended("a worker"),
    }
}

/// One reconcile, its result counted and given back to the queue.
async fn handle(ctx: &Context, queue: &Queue<SessionKey>, key: &SessionKey) {
    let began = Instant::now();
    let result = session::reconcile(ctx, key).await;
    let took = began.elapsed();
    let (outcome, word) = match &result {
        Ok(wait @ Outcome::Wait(_)) => (*wait, "wait"),
        Ok(outcome) => (*outcome, "done"),
        // Somebody else wrote first; what they wrote was read.
        Err(Error::Apply(apply::ApplyError::Conflict { .. })) => {
            (Outcome::Wait(AFTER_CONFLICT), "conflict")
        }
        // Nothing to do until somebody mends the object, which wakes the key.
        Err(Error::Resolve(resolve::ResolveError::Unreadable { .. })) => (Outcome::Done, "stalled"),
        Err(_) => (Outcome::Failed, "failed"),
    };
    ctx.metrics.reconciled(word, took);
    let failures = queue.finish(key, outcome);
    if let Err(problem) = &result
        && outcome == Outcome::Failed
    {
        tracing::warn!(session = %key, %problem, failures, "a reconcile failed");
    }
}
