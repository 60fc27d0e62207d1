//! The watches: one watcher and one store a kind. What each change wakes is said in [`super::wake`].

use super::{
    build::{COMPONENT, MANAGED_BY, MANAGER, SESSION_COMPONENT},
    events::Events,
    hosts::Gateways,
    metrics::ControllerMetrics,
    queue::Queue,
    resolve::LatestAll,
    wake::{Change, Wake},
};
use crate::{
    api::{Agent, McpAttachment, Session},
    domain::{identity::SessionKey, reason::Reason},
    process::health::Guard,
};
use futures::{Stream, StreamExt};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{ObjectReference, Pod, Secret},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        reflector::{ObjectRef, Store, store::Writer},
        watcher::{self, Event},
    },
};
use std::{
    collections::HashMap,
    fmt::Debug,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Label of the gateways' Leases.
const GATEWAY_LEASES: &str = "awaken.dev/lease=gateway";

/// Everything that is watched, as it was last seen.
#[derive(Clone)]
pub struct Stores {
    /// Agents.
    pub agents: Store<Agent>,
    /// Attachments.
    pub attachments: Store<McpAttachment>,
    /// Sessions.
    pub sessions: Store<Session>,
    /// Session pods, without their specs.
    pub pods: Store<Pod>,
    /// NetworkPolicies of Sessions.
    pub policies: Store<NetworkPolicy>,
    /// All Secrets, metadata only.
    pub secrets: Store<PartialObjectMeta<Secret>>,
}

impl Stores {
    /// Waits until every store was filled once.
    pub async fn ready(&self) {
        let Self { agents, attachments, sessions, pods, policies, secrets } = self;
        // An error means that the watch is gone, which ends the process by itself.
        let _ = agents.wait_until_ready().await;
        let _ = attachments.wait_until_ready().await;
        let _ = sessions.wait_until_ready().await;
        let _ = pods.wait_until_ready().await;
        let _ = policies.wait_until_ready().await;
        let _ = secrets.wait_until_ready().await;
    }
}

/// Objects that are there but do not fit the schema, with their UIDs.
#[derive(Clone, Debug, Default)]
pub struct Unreadable(Arc<Mutex<HashMap<(String, SessionKey), String>>>);

impl Unreadable {
    /// Whether this object cannot be read.
    pub fn has(&self, kind: &str, key: &SessionKey) -> bool {
        self.lock().contains_key(&(kind.to_owned(), key.clone()))
    }

    /// The UIDs of those of a kind in a namespace.
    pub fn uids(&self, kind: &str, namespace: &str) -> Vec<String> {
        let all = self.lock();
        let mut uids: Vec<_> = all
            .iter()
            .filter(|((k, key), _)| k == kind && key.namespace == namespace)
            .map(|(_, uid)| uid.clone())
            .collect();
        uids.sort();
        uids
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, SessionKey), String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all watches share.
#[derive(Clone)]
pub struct Shared {
    /// The client.
    pub client: Client,
    /// The installation's namespace.
    pub namespace: String,
    /// Where due Sessions go.
    pub queue: Arc<Queue<SessionKey>>,
    /// Who is alive.
    pub gateways: Arc<Gateways>,
    /// What we wrote.
    pub latest: Arc<LatestAll>,
    /// What cannot be read.
    pub unreadable: Unreadable,
    /// For unreadable objects.
    pub events: Events,
    /// For unreadable objects.
    pub metrics: ControllerMetrics,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The stores, and the tasks that fill them; the tasks never end by themselves.
pub fn start(
    shared: &Shared,
    ready: impl Fn(&'static str) -> Option<Guard>,
) -> (Stores, Vec<Task>) {
    let (agents, agents_in) = kube::runtime::reflector::store();
    let (attachments, attachments_in) = kube::runtime::reflector::store();
    let (sessions, sessions_in) = kube::runtime::reflector::store();
    let (pods, pods_in) = kube::runtime::reflector::store();
    let (policies, policies_in) = kube::runtime::reflector::store();
    let (secrets, secrets_in) = kube::runtime::reflector::store();
    let (_, leases_in) = kube::runtime::reflector::store();
    let stores = Stores { agents, attachments, sessions, pods, policies, secrets };
    let ours = format!("{MANAGED_BY}={MANAGER},{COMPONENT}={SESSION_COMPONENT}");
    let client = &shared.client;
    let wake = Wake {
        queue: shared.queue.clone(),
        gateways: shared.gateways.clone(),
        latest: shared.latest.clone(),
        stores: stores.clone(),
    };
    let on = || wake.clone();
    let tasks: Vec<Task> = vec![
        Box::pin(follow(guarded::<Agent>(shared), agents_in, ready("agents"), {
            let wake = on();
            move |change| wake.on_agent(&change)
        })),
        Box::pin(follow(guarded::<McpAttachment>(shared), attachments_in, ready("attachments"), {
            let wake = on();
            move |change| wake.on_attachment(&change)
        })),
        Box::pin(follow(guarded::<Session>(shared), sessions_in, ready("sessions"), {
            let wake = on();
            move |change| wake.on_session(&change)
        })),
        Box::pin(follow(
            watched(Api::<Pod>::all(client.clone()), &ours).map(|event| event.modify(slim_pod)),
            pods_in,
            ready("pods"),
            {
                let wake = on();
                move |change| wake.on_pod(&change)
            },
        )),
        Box::pin(follow(
            watched(Api::<NetworkPolicy>::all(client.clone()), &ours),
            policies_in,
            ready("networkpolicies"),
            {
                let wake = on();
                move |change| wake.on_policy(&change)
            },
        )),
        Box::pin(follow(
            logged(watcher::watcher(
                Api::<PartialObjectMeta<Secret>>::all(client.clone()),
                watcher::Config::default(),
            ))
            .map(|event| event.modify(slim_secret)),
            secrets_in,
            ready("secrets"),
            {
                let wake = on();
                move |change| wake.on_secret(&change)
            },
        )),
        Box::pin(follow(
            watched(Api::<Lease>::namespaced(client.clone(), &shared.namespace), GATEWAY_LEASES),
            leases_in,
            ready("leases"),
            {
                let wake = on();
                move |change| wake.on_lease(&change)
            },
        )),
        Box::pin(wake.expire()),
    ];
    (stores, tasks)
}

impl Shared {
    /// Tells of an object that does not fit the schema, once for each of its versions.
    fn report_unreadable(&self, kind: &str, api_version: &str, meta: &ObjectMeta, problem: &str) {
        let name = meta.name.clone().unwrap_or_default();
        let namespace = meta.namespace.clone().unwrap_or_default();
        tracing::error!(kind, namespace, name, problem, "an object cannot be read");
        self.metrics.unreadable(kind);
        let about = ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        };
        let message = format!("The object cannot be read and is left alone: {problem}");
        self.events.warn(about, Reason::UnreadableObject, crate::api::condition::bounded(&message));
        let key = SessionKey { namespace, name };
        self.queue.push(key);
    }
}

/// A watch that goes on after errors, which are logged.
fn logged<K>(
    stream: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource<DynamicType = ()> + Send,
{
    stream.default_backoff().filter_map(|event| {
        let event = event
            .inspect_err(|problem| {
                tracing::warn!(kind = %K::kind(&()), %problem, "the watch is interrupted");
            })
            .ok();
        std::future::ready(event)
    })
}

fn watched<K>(api: Api<K>, labels: &str) -> impl Stream<Item = Event<K>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default().labels(labels);
    logged(watcher::watcher(api, config)).map(|event| event.modify(slim))
}

/// A watch of our own kinds in which one object that does not fit stops no other.
fn guarded<K>(shared: &Shared) -> impl Stream<Item = Event<K>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + Debug + Send + 'static,
{
    let api = Api::<DeserializeGuard<K>>::all(shared.client.clone());
    let shared = shared.clone();
    logged(watcher::watcher(api, watcher::Config::default())).filter_map(move |event| {
        let (kind, version) = (K::kind(&()), K::api_version(&()));
        let read = |object: DeserializeGuard<K>, gone: bool| {
            let meta = object.meta();
            let key = SessionKey {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            };
            let slot = (kind.to_string(), key);
            match object.0 {
                Ok(object) => {
                    shared.unreadable.lock().remove(&slot);
                    Some(object)
                }
                Err(problem) if gone => {
                    shared.unreadable.lock().remove(&slot);
                    let _ = problem;
                    shared.queue.push(slot.1);
                    None
                }
                Err(problem) => {
                    let uid = problem.metadata.uid.clone().unwrap_or_default();
                    shared.unreadable.lock().insert(slot, uid);
                    shared.report_unreadable(&kind, &version, &problem.metadata, &problem.error);
                    None
                }
            }
        };
        std::future::ready(
            match event {
                Event::Apply(object) => read(object, false).map(Event::Apply),
                Event::InitApply(object) => read(object, false).map(Event::InitApply),
                Event::Delete(object) => read(object, true).map(Event::Delete),
                Event::Init => Some(Event::Init),
                Event::InitDone => Some(Event::InitDone),
            }
            .map(|event| event.modify(slim)),
        )
    })
}

/// Keeps a store up to date and tells of each change.
async fn follow<K>(
    stream: impl Stream<Item = Event<K>> + Send,
    mut writer: Writer<K>,
    mut ready: Option<Guard>,
    on: impl Fn(Change<'_, K>) + Send,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    let store = writer.as_reader();
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match &event {
            Event::Apply(now) => {
                let before = store.get(&ObjectRef::from_obj(now));
                writer.apply_watcher_event(&event);
                on(Change::Applied { before, now });
            }
            Event::Delete(object) => {
                writer.apply_watcher_event(&event);
                on(Change::Deleted(object));
            }
            Event::Init | Event::InitApply(_) => writer.apply_watcher_event(&event),
            Event::InitDone => {
                let before = store.state();
                writer.apply_watcher_event(&event);
                let gone = before
                    .into_iter()
                    .filter(|o| store.get(&ObjectRef::from_obj(&**o)).is_none())
                    .collect();
                on(Change::Listed { gone, all: store.state() });
                ready = None;
            }
        }
    }
    drop(ready);
}

/// Drops what nobody here reads.
fn slim<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

fn slim_pod(pod: &mut Pod) {
    pod.spec = None;
}

fn slim_secret(secret: &mut PartialObjectMeta<Secret>) {
    secret.metadata.managed_fields = None;
    secret.metadata.annotations = None;
    secret.metadata.labels = None;
}
