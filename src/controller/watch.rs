//! The watches: one watcher and one store a kind. What each change wakes is said in [`super::wake`].

use super::{
    build::{COMPONENT, MANAGED_BY, MANAGER, SESSION_COMPONENT},
    events::Events,
    hosts::Gateways,
    latest::LatestAll,
    metrics::ControllerMetrics,
    queue::Queue,
    refs::named,
    stores::Stores,
    unreadable::Unreadable,
    wake::{Change, Wake},
};
use crate::{
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
use std::{fmt::Debug, future::Future, pin::Pin, sync::Arc};

/// Label of the gateways' Leases.
const GATEWAY_LEASES: &str = "awaken.dev/lease=gateway";

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
        Box::pin(follow(guarded(shared, &wake, &stores.agents), agents_in, ready("agents"), {
            let (wake, unreadable) = (on(), shared.unreadable.clone());
            move |change| {
                settle(&unreadable, &wake, &change);
                wake.on_agent(&change);
            }
        })),
        Box::pin(follow(
            guarded(shared, &wake, &stores.attachments),
            attachments_in,
            ready("attachments"),
            {
                let (wake, unreadable) = (on(), shared.unreadable.clone());
                move |change| {
                    settle(&unreadable, &wake, &change);
                    wake.on_attachment(&change);
                }
            },
        )),
        Box::pin(follow(
            guarded(shared, &wake, &stores.sessions),
            sessions_in,
            ready("sessions"),
            {
                let (wake, unreadable) = (on(), shared.unreadable.clone());
                move |change| {
                    settle(&unreadable, &wake, &change);
                    wake.on_session(&change);
                }
            },
        )),
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

/// A watch of our own kinds in which one object that does not fit stops no other. What could be read
/// before stays in the store as it was, marked, until it is gone.
fn guarded<K>(
    shared: &Shared,
    wake: &Wake,
    store: &Store<K>,
) -> impl Stream<Item = Event<K>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + Debug,
    K: Send + Sync + 'static,
{
    let api = Api::<DeserializeGuard<K>>::all(shared.client.clone());
    let (shared, wake, store) = (shared.clone(), wake.clone(), store.clone());
    logged(watcher::watcher(api, watcher::Config::default())).filter_map(move |event| {
        let kind = K::kind(&());
        let key = |meta: &ObjectMeta| SessionKey {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        };
        let read = |object: DeserializeGuard<K>| {
            let problem = match object.0 {
                Ok(object) => return Some(object),
                Err(problem) => problem,
            };
            let uid = problem.metadata.uid.clone().unwrap_or_default();
            shared.unreadable.put(&kind, &key(&problem.metadata), uid);
            let version = K::api_version(&());
            shared.report_unreadable(&kind, &version, &problem.metadata, &problem.error);
            None
        };
        let deleted = |object: DeserializeGuard<K>| {
            let key = match object.0 {
                Ok(object) => return Some(object),
                Err(problem) => key(&problem.metadata),
            };
            let before = store.get(&ObjectRef::new(&key.name).within(&key.namespace));
            if before.is_none() {
                shared.unreadable.remove(&kind, &key);
                wake.namespace(&key.namespace);
            }
            before.map(|before| K::clone(&before))
        };
        std::future::ready(
            match event {
                Event::Apply(object) => read(object).map(Event::Apply),
                Event::InitApply(object) => read(object).map(Event::InitApply),
                Event::Delete(object) => deleted(object).map(Event::Delete),
                Event::Init => {
                    shared.unreadable.begin_list(&kind);
                    Some(Event::Init)
                }
                Event::InitDone => Some(Event::InitDone),
            }
            .map(|event| event.modify(slim)),
        )
    })
}

/// Takes the mark off what can be read now or is gone; after the store has it, so that nothing is
/// decided on what was there before.
fn settle<K: Resource<DynamicType = ()>>(
    unreadable: &Unreadable,
    wake: &Wake,
    change: &Change<'_, K>,
) {
    let kind = K::kind(&());
    match change {
        Change::Applied { now: object, .. } | Change::Deleted(object) => {
            unreadable.remove(&kind, &named(*object));
        }
        Change::Listed { .. } => {
            for key in unreadable.end_list(&kind) {
                wake.namespace(&key.namespace);
            }
        }
    }
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
