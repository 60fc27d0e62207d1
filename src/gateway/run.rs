//! Builds the gateway from its parts, runs it, and stops it in order: take no new call, let those
//! in flight finish, cut the rest, give the Lease back, and where there are other gateways, take
//! connections for a moment more.

use super::{
    auth::{ApiReviews, Auth, Times},
    call::Calls,
    config::Config,
    export::{self, Bearer, Export, ExportSet},
    forward::{self, Forward},
    host::{
        self, Host, addresses::Around, cluster::ApiCluster, connect::Connector, keys::LinkKeys,
    },
    hosted::Sessions,
    index::{Index, watch},
    management::{self, ManagementTools},
    metrics::GatewayMetrics,
    peers::{self, Peers},
    recover,
    router::router,
    service::REVIEW,
    state::Gateway,
};
use crate::{
    journal::{Append, Read},
    mcp::server::SessionStore,
    process::{
        clock::SystemClock,
        health::{Guard, Readiness},
        lease::{self, Keeper, LeaseError},
        listen::{self, Limits, Meter},
        metrics::Metrics,
    },
};
use axum::middleware;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch::Receiver, task::JoinSet, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long servers that served before a take-over may take to serve again; until then requests of
/// their Session are answered 503.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long calls may linger after they were cut, and connections of clients after the last call.
const LINGER: Duration = Duration::from_secs(5);
/// Where there are other gateways: how long one that stops still takes connections, so that those
/// who do not know yet find one that forwards, or says when to come again.
const LEAVE: Duration = Duration::from_secs(5);

/// The journal, both sides.
#[derive(Clone)]
pub struct Journal {
    /// To write.
    pub append: Arc<dyn Append>,
    /// To read.
    pub read: Arc<dyn Read>,
    /// Whether no other process writes it.
    pub exclusive: bool,
}

/// Why a gateway ended.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// A setting that cannot be used.
    #[error("{0}")]
    Setting(String),
    /// The Lease is lost: another start must take over.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// No randomness for keys and ids.
    #[error("the machine gives no randomness")]
    NoRandomness,
    /// A part ended that must not.
    #[error("{0} ended")]
    Ended(&'static str),
}

/// Runs a gateway until `stop`; returns when everything is joined and the Lease is given back.
///
/// # Errors
/// What ended it before it was told to.
pub async fn run(
    config: Config,
    client: Client,
    journal: Journal,
    readiness: Readiness,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), GatewayError> {
    config.check().map_err(GatewayError::Setting)?;
    let (leased, watched) = (readiness.guard("lease"), readiness.guard("watch"));
    let keyed = readiness.guard("link keys");
    let address = config.listen;
    let listener = bind(address).await?;
    let internal = match config.internal_listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret).map_err(|_| GatewayError::NoRandomness)?;
    let incarnation = uuid::Uuid::new_v4().to_string();
    tracing::info!(%address, incarnation, gateway = config.pod_name, "starting");

    let endpoints = config.api_server.read(&client).await;
    let metrics = GatewayMetrics::new(metrics);
    let clock = Arc::new(SystemClock);
    let index = Index::new(config.mcp.export_namespaces.clone());
    let (sessions, export_changes) = (Sessions::default(), index.export_changes());
    let cluster = Arc::new(ApiCluster::new(client.clone(), &config.pod_name));
    let keys = LinkKeys::default();
    let peers = Peers::default();
    let around = Around { index: index.shared(), peers: peers.clone() };
    let connector = Connector::new(&config, cluster.clone(), around, keys.clone())
        .map_err(GatewayError::Setting)?;
    let calls = Arc::new(Calls::new(
        journal.append.clone(),
        clock.clone(),
        metrics.clone(),
        incarnation.clone(),
    ));
    if journal.exclusive {
        let parts = (&*journal.append, &*journal.read);
        match recover::lost_starts(parts, &*clock, &[incarnation.clone()].into()).await {
            Ok(0) => {}
            Ok(ended) => tracing::warn!(ended, "calls that an earlier start left open"),
            Err(error) => tracing::error!(%error, "calls of earlier starts stay open"),
        }
    }
    let management = management::Settings::of(&config.mcp).map_err(GatewayError::Setting)?.map(
        |settings| -> Arc<dyn export::Management> {
            let parts = management::Parts {
                client: client.clone(),
                journal: journal.read.clone(),
                sessions: sessions.clone(),
                clock: clock.clone(),
            };
            Arc::new(ManagementTools::new(settings, parts))
        },
    );
    let set = Arc::new(ExportSet::new(management, index.shared(), sessions.clone()));
    let forward = internal
        .is_some()
        .then(|| Forward::new(peers.clone(), keys.clone(), clock.clone(), &incarnation));
    let export = Export { bearer: Bearer::default(), set: set.clone() };
    let gateway = Arc::new(Gateway {
        auth: Arc::new(Auth::new(
            Arc::new(ApiReviews::new(client.clone())),
            secret,
            Times::default(),
        )),
        allowed: config.allowed(),
        index: index.shared(),
        client: client.clone(),
        sessions: sessions.clone(),
        calls: calls.clone(),
        export: export.clone(),
        store: SessionStore::new(config.store(peers::mark_of(&incarnation))),
        read: journal.read.clone(),
        forward: forward.clone(),
        reviews: TaskTracker::new(),
        review_every: REVIEW,
        draining: AtomicBool::new(false),
    });
    let calls_of_others = journal.clone();
    let (host, feeder) = Host::new(host::Parts {
        gateway: config.pod_name.clone(),
        incarnation: incarnation.clone(),
        index: index.shared(),
        sessions: sessions.clone(),
        realizer: Arc::new(connector),
        cluster: cluster.clone(),
        append: journal.append,
        read: journal.read,
        clock: clock.clone(),
        metrics: metrics.clone(),
        backoff: host::realize::Backoff::default(),
        patience: PATIENCE,
        pings: host::watchdog::Pings::default(),
    });

    let (stop_serving, stop_host, stop_lease) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    // what forwarding looks at goes with the listeners
    let stop_view = CancellationToken::new();
    let has_others = forward.is_some();
    let holding = hold_lease(
        config.clone(),
        client.clone(),
        (incarnation.clone(), leased),
        sessions.clone(),
        stop_lease.clone(),
    );
    let mut lease = JoinSet::new();
    lease.spawn(holding);
    let feed = watch::Feed {
        index,
        sink: move |change| feeder.take(change),
        unreadable: metrics.unreadable.clone(),
        guard: watched,
    };
    let secret = (config.namespace.clone(), config.link_keys.clone());
    let mut tasks: JoinSet<Result<&'static str, GatewayError>> = JoinSet::new();
    if let Some(secret) = config.mcp.bearer.clone() {
        let guard = readiness.guard("mcp bearer");
        let (client, stop) = (client.clone(), stop_host.clone());
        let watch = export::secret::watch(client, secret, export.bearer, guard, stop);
        tasks.spawn(named("mcp bearer", watch));
        let stop = stop_host.clone();
        let exports = async move { set.watch(export_changes, stop).await };
        tasks.spawn(named("exports", exports));
    }
    let following = config.api_server.clone().follow(client.clone(), endpoints, stop_host.clone());
    tasks.spawn(named("endpoints of the API server", following));
    let leases = client.clone();
    tasks.spawn(named("watch", watch::run(client, feed, stop_view.clone())));
    let mut hosting = JoinSet::new();
    hosting.spawn(named("host", host.run(stop_host.clone())));
    tasks.spawn(named("link keys", keys.load(cluster, secret, keyed, stop_host.clone())));
    let (sweeping, stopped) = (gateway.clone(), stop_serving.clone());
    tasks.spawn(async move {
        sweeping.store.sweep(stopped).await;
        Ok("sweep")
    });
    let limits = Limits::new(listen::room(config.max_connections));
    let (routes, meter) = (router(gateway.clone()), metrics.clients.clone());
    if let (Some(listener), Some(forward)) = (internal, forward) {
        let door = middleware::from_fn_with_state(forward, forward::door);
        let (routes, meter) = (routes.clone().layer(door), Meter::default());
        let serving = listen::serve(listener, routes, limits.clone(), meter, stop_serving.clone());
        tasks.spawn(named("internal http", serving));
        let (namespace, instance) = (config.namespace.clone(), config.instance.clone());
        let parts = (calls_of_others.append, calls_of_others.read);
        let follow = recover::follow_lost(
            parts,
            clock.clone(),
            peers.clone(),
            incarnation.clone(),
            config.lease,
        );
        let stopped = stop_host.clone().cancelled_owned();
        tasks.spawn(named("calls of lost gateways", async move {
            tokio::select! { () = stopped => {}, () = follow => {} }
        }));
        let watch = peers.watch(leases, namespace, instance, stop_view.clone());
        tasks.spawn(named("peers", watch));
    }
    let serving = listen::serve(listener, routes, limits, meter, stop_serving.clone());
    tasks.spawn(named("http", serving));

    let mut result = tokio::select! {
        () = stop.cancelled() => Ok(()),
        Some(ended) = tasks.join_next() => Err(ended_with(ended)),
        Some(ended) = hosting.join_next() => Err(ended_with(ended)),
        Some(ended) = lease.join_next() => Err(ended_with(ended)),
    };
    let leave = Instant::now() + if has_others { LEAVE } else { Duration::ZERO };
    tracing::info!(failed = result.is_err(), "draining");
    let _draining = readiness.guard("draining");
    gateway.draining.store(true, Ordering::Release);
    if !has_others {
        stop_serving.cancel();
    }
    sessions.close_all();
    gateway.store.end_endpoint(export::PATH);
    if tokio::time::timeout(config.grace, calls.finished()).await.is_err() {
        tracing::warn!("calls that did not finish are cut");
    }
    calls.cut();
    // ends every connection to a server; what is still in flight ends as OutcomeUnknown
    stop_host.cancel();
    if tokio::time::timeout(LINGER, calls.finished()).await.is_err() {
        tracing::warn!("calls that were cut did not end; the next start ends them on record");
    }
    if tokio::time::timeout(LINGER, hosting.join_next()).await.is_err() {
        tracing::warn!("the work on Sessions is cut");
        hosting.shutdown().await;
    }
    // given back when nothing of ours can act any more: others take the Sessions over
    stop_lease.cancel();
    while let Some(ended) = lease.join_next().await {
        result = result.and(flatten(ended).map(drop));
    }
    tokio::time::sleep_until(leave).await;
    stop_serving.cancel();
    stop_view.cancel();
    gateway.store.settle().await;
    gateway.reviews.close();
    let rest = async {
        gateway.reviews.wait().await;
        while let Some(ended) = tasks.join_next().await {
            result = std::mem::replace(&mut result, Ok(())).and(flatten(ended).map(drop));
        }
    };
    if tokio::time::timeout(LINGER, rest).await.is_err() {
        tracing::warn!("some connections of clients did not end");
        tasks.shutdown().await;
    }
    result
}

async fn bind(address: SocketAddr) -> Result<TcpListener, GatewayError> {
    TcpListener::bind(address).await.map_err(|error| GatewayError::Listen { address, error })
}

async fn named(
    name: &'static str,
    task: impl Future<Output = ()> + Send,
) -> Result<&'static str, GatewayError> {
    task.await;
    Ok(name)
}

type Joined = Result<Result<&'static str, GatewayError>, tokio::task::JoinError>;

fn flatten(joined: Joined) -> Result<&'static str, GatewayError> {
    joined.map_err(|_| GatewayError::Ended("a task that panicked"))?
}

fn ended_with(joined: Joined) -> GatewayError {
    match flatten(joined) {
        Ok(name) => GatewayError::Ended(name),
        Err(error) => error,
    }
}

/// Holds the gateway's Lease. When it cannot be renewed, everything is taken out of service before
/// it expires, unless a lock on the journal's volume fences this gateway.
async fn hold_lease(
    config: Config,
    client: Client,
    (identity, guard): (String, Guard),
    sessions: Sessions,
    stop: CancellationToken,
) -> Result<&'static str, GatewayError> {
    let labels = [
        ("app.kubernetes.io/name", "awaken-operator"),
        ("app.kubernetes.io/instance", &config.instance),
        ("app.kubernetes.io/component", "gateway"),
        peers::LABEL,
    ];
    let address = config.pod_ip.zip(config.internal_listen);
    let address = address.map(|(ip, listen)| SocketAddr::new(ip, listen.port()).to_string());
    let settings = lease::Config {
        namespace: config.namespace.clone(),
        name: config.pod_name.clone(),
        identity,
        duration: config.lease,
        labels: labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        annotations: address.map(|a| (peers::ADDRESS.to_owned(), a)).into_iter().collect(),
        owner: config.pod_uid.clone().map(|uid| OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: config.pod_name.clone(),
            uid,
            ..OwnerReference::default()
        }),
        exclusive_name: true,
    };
    let mut guard = Some(guard);
    loop {
        let (keeper, held) = Keeper::new(client.clone(), settings.clone(), Arc::new(SystemClock));
        let holding = keeper.run(stop.clone());
        tokio::pin!(holding);
        let ended = tokio::select! {
            ended = &mut holding => ended,
            () = first_held(held) => {
                guard.take();
                holding.await
            }
        };
        match ended {
            Ok(()) => return Ok("lease"),
            Err(error @ LeaseError::Expired(_)) if config.fenced_by_volume => {
                tracing::warn!(%error, "serving on: the lock on the journal's volume keeps others away");
            }
            Err(error) => {
                sessions.close_all();
                return Err(error.into());
            }
        }
    }
}

async fn first_held(mut held: Receiver<lease::Held>) {
    if held.wait_for(|held| held.is_valid()).await.is_err() {
        std::future::pending::<()>().await;
    }
}
