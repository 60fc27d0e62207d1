//! Feeds the index from the API server: one watch for each kind, objects that do not parse are
//! skipped. Knows nothing of what follows from a change.

use super::{Change, Index};
use crate::{
    api::{Agent, Session},
    domain::identity::SessionKey,
    process::health::Guard,
};
use futures::{Stream, StreamExt, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};
use prometheus_client::metrics::gauge::Gauge;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use tokio_util::sync::CancellationToken;

enum Seen {
    Agent(watcher::Event<DeserializeGuard<Agent>>),
    Session(watcher::Event<DeserializeGuard<Session>>),
}

/// What `run` needs beside the client.
pub struct Feed<F> {
    /// The index to write.
    pub index: Index,
    /// Takes each change, in order, before the next event is looked at.
    pub sink: F,
    /// Number of objects that cannot be read.
    pub unreadable: Gauge,
    /// Dropped when both kinds were listed once.
    pub guard: Guard,
}

/// Watches until `stop`. Watch errors are logged and tried again with backoff.
pub async fn run<F: FnMut(Change)>(client: Client, mut feed: Feed<F>, stop: CancellationToken) {
    let agents = stream::<Agent>(&client, "Agent").map(Seen::Agent);
    let sessions = stream::<Session>(&client, "Session").map(Seen::Session);
    let mut events = futures::stream::select(agents, sessions);
    let (mut agents, mut sessions): (Vec<Agent>, Vec<Session>) = (vec![], vec![]);
    let mut guard = Some(feed.guard);
    let mut listed = (false, false);
    loop {
        let seen = tokio::select! {
            () = stop.cancelled() => return,
            Some(seen) = events.next() => seen,
        };
        let changes = match seen {
            Seen::Agent(event) => agent_event(&mut feed.index, &mut agents, &mut listed.0, event),
            Seen::Session(event) => {
                session_event(&mut feed.index, &mut sessions, &mut listed.1, event)
            }
        };
        feed.unreadable.set(i64::try_from(feed.index.unreadable_count()).unwrap_or(i64::MAX));
        changes.into_iter().for_each(&mut feed.sink);
        if listed == (true, true) {
            guard.take();
        }
    }
}

fn stream<K>(
    client: &Client,
    kind: &'static str,
) -> BoxStream<'static, watcher::Event<DeserializeGuard<K>>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client.clone());
    events(watcher(api, watcher::Config::default()).default_backoff(), kind).boxed()
}

fn events<T>(
    watch: impl Stream<Item = watcher::Result<T>>,
    kind: &'static str,
) -> impl Stream<Item = T> {
    watch.filter_map(move |event| async move {
        event
            .inspect_err(|error| tracing::warn!(kind, %error, "the watch broke; trying again"))
            .ok()
    })
}

fn readable<K: Resource<DynamicType = ()>>(
    index: &mut Index,
    guarded: DeserializeGuard<K>,
    changes: &mut Vec<Change>,
) -> Option<K> {
    match guarded.0 {
        Ok(object) => Some(object),
        Err(invalid) => {
            let namespace = invalid.metadata.namespace.unwrap_or_default();
            let name = invalid.metadata.name.unwrap_or_default();
            let kind = K::kind(&());
            tracing::warn!(%kind, namespace, name, error = invalid.error, reason = "UnreadableObject", "skipped");
            changes.extend(index.unreadable(&kind, &namespace, &name));
            None
        }
    }
}

fn agent_event(
    index: &mut Index,
    buffer: &mut Vec<Agent>,
    listed: &mut bool,
    event: watcher::Event<DeserializeGuard<Agent>>,
) -> Vec<Change> {
    let mut changes = vec![];
    match event {
        watcher::Event::Apply(object) => {
            if let Some(agent) = readable(index, object, &mut changes) {
                changes.extend(index.apply_agent(&agent));
            }
        }
        watcher::Event::Delete(object) => {
            let (namespace, name) = name_of(&object);
            changes.extend(index.delete_agent(&namespace, &name));
        }
        watcher::Event::Init => {
            index.begin_list("Agent");
            buffer.clear();
        }
        watcher::Event::InitApply(object) => {
            buffer.extend(readable(index, object, &mut changes));
        }
        watcher::Event::InitDone => {
            *listed = true;
            changes.extend(index.reset_agents(&std::mem::take(buffer)));
        }
    }
    changes
}

fn session_event(
    index: &mut Index,
    buffer: &mut Vec<Session>,
    listed: &mut bool,
    event: watcher::Event<DeserializeGuard<Session>>,
) -> Vec<Change> {
    let mut changes = vec![];
    match event {
        watcher::Event::Apply(object) => {
            if let Some(session) = readable(index, object, &mut changes) {
                changes.extend(index.apply_session(&session));
            }
        }
        watcher::Event::Delete(object) => {
            let (namespace, name) = name_of(&object);
            changes.extend(index.delete_session(&SessionKey { namespace, name }));
        }
        watcher::Event::Init => {
            index.begin_list("Session");
            buffer.clear();
        }
        watcher::Event::InitApply(object) => {
            buffer.extend(readable(index, object, &mut changes));
        }
        watcher::Event::InitDone => {
            *listed = true;
            changes.extend(index.reset_sessions(&std::mem::take(buffer)));
        }
    }
    changes
}

fn name_of<K: Resource<DynamicType = ()>>(object: &DeserializeGuard<K>) -> (String, String) {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}
