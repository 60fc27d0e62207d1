//! From a change to the keys that must be looked at.
//!
//! A Session's change wakes its Agent, whose status speaks of all its Sessions; a change of an
//! Agent, an attachment or a Secret wakes every Session that depends on it. Status-only changes of
//! Agents and attachments wake nobody: they are our own.

use super::{
    hosts::Gateways,
    latest::{Latest, LatestAll},
    own,
    queue::Queue,
    refs::{self, named},
    stores::Stores,
};
use crate::{
    api::{Agent, McpAttachment, Session},
    domain::identity::SessionKey,
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Pod, Secret},
    networking::v1::NetworkPolicy,
};
use kube::{Resource, ResourceExt, core::PartialObjectMeta};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};

/// A change, after the store has it.
pub enum Change<'a, K> {
    /// Written; what was there before, and what is now.
    Applied {
        /// As it was.
        before: Option<Arc<K>>,
        /// As it is.
        now: &'a K,
    },
    /// Gone.
    Deleted(&'a K),
    /// Everything was listed anew.
    Listed {
        /// What is not there any more.
        gone: Vec<Arc<K>>,
        /// What is.
        all: Vec<Arc<K>>,
    },
}

impl<K> Change<'_, K> {
    /// The keys of everything that it touches.
    fn keys(&self, key: impl Fn(&K) -> Option<SessionKey>) -> Vec<SessionKey> {
        match self {
            Change::Applied { before, now } => {
                before.iter().filter_map(|b| key(b)).chain(key(now)).collect()
            }
            Change::Deleted(object) => key(object).into_iter().collect(),
            Change::Listed { gone, all } => gone.iter().chain(all).filter_map(|o| key(o)).collect(),
        }
    }
}

/// Forgets what we wrote of objects that are gone. After a new list that is everything: what was made
/// and deleted while the watch was interrupted is told by nothing else.
fn forget_gone<K: ResourceExt>(change: &Change<'_, K>, latest: &Latest<K>) {
    match change {
        Change::Applied { .. } => {}
        Change::Deleted(object) => latest.forget(&named(*object)),
        Change::Listed { .. } => latest.clear(),
    }
}

/// Whether nothing but the status, or what others manage, changed.
fn is_status_only<K: ResourceExt>(change: &Change<'_, K>) -> bool {
    let Change::Applied { before: Some(before), now } = change else { return false };
    let (before, now) = (before.meta(), now.meta());
    before.uid == now.uid
        && before.generation == now.generation
        && before.annotations == now.annotations
        && before.deletion_timestamp == now.deletion_timestamp
}

/// What wakes.
#[derive(Clone)]
pub struct Wake {
    /// Where due keys go.
    pub queue: Arc<Queue<SessionKey>>,
    /// Who is alive.
    pub gateways: Arc<Gateways>,
    /// What we wrote.
    pub latest: Arc<LatestAll>,
    /// What is there.
    pub stores: Stores,
}

impl Wake {
    /// An Agent changed: it, its Sessions, and whose exports have the same names.
    pub fn on_agent(&self, change: &Change<'_, Agent>) {
        forget_gone(change, &self.latest.agents);
        if !is_status_only(change) {
            self.agents(change.keys(|a| Some(refs::of_agent(a))));
            self.exporters(&released(change));
        }
    }

    /// An attachment changed: its Agent and the Agent's Sessions.
    pub fn on_attachment(&self, change: &Change<'_, McpAttachment>) {
        forget_gone(change, &self.latest.attachments);
        if !is_status_only(change) {
            self.agents(change.keys(|a| Some(refs::of_attachment(a))));
        }
    }

    /// A Session changed: it, unless the change is our own, and its Agent.
    pub fn on_session(&self, change: &Change<'_, Session>) {
        forget_gone(change, &self.latest.sessions);
        let is_echo = matches!(change, Change::Applied { now, .. }
            if self.latest.sessions.is_latest(&named(*now), now));
        if !is_echo {
            self.push(change.keys(|s| Some(refs::of_session(s))));
        }
        // A Standing Session has its Agent's key, and what it tells the Agent is told at once.
        let other = |s: &Session| Some(refs::agent_of(s)).filter(|a| a.name != s.name_any());
        self.push(change.keys(other));
    }

    /// A pod changed: its Session.
    pub fn on_pod(&self, change: &Change<'_, Pod>) {
        forget_gone(change, &self.latest.pods);
        self.push(change.keys(|p| refs::of_owned(p.meta())));
    }

    /// A NetworkPolicy changed: its Session.
    pub fn on_policy(&self, change: &Change<'_, NetworkPolicy>) {
        forget_gone(change, &self.latest.policies);
        self.push(change.keys(|p| refs::of_owned(p.meta())));
    }

    /// A Secret changed: the Agents of the attachments that name it, and their Sessions; and those
    /// Sessions whose own attachments name it.
    pub fn on_secret(&self, change: &Change<'_, PartialObjectMeta<Secret>>) {
        let mut touched = change.keys(|s| Some(named(s)));
        touched.sort();
        touched.dedup();
        let names = |a: &McpAttachment| {
            let namespace = a.namespace().unwrap_or_default();
            refs::secrets_of(&a.spec).into_iter().any(|name| {
                let key = SessionKey { namespace: namespace.clone(), name: name.to_owned() };
                touched.binary_search(&key).is_ok()
            })
        };
        let owners = self.stores.sessions.state_filter(|session| {
            own::attachments(session).iter().any(|attachment| names(attachment))
        });
        self.push(owners.iter().map(|s| refs::of_session(s)).collect());
        let users = self.stores.attachments.state_filter(names);
        self.agents(users.iter().map(|a| refs::of_attachment(a)).collect());
    }

    /// A gateway's Lease changed: everything, when another set of gateways is alive now.
    pub fn on_lease(&self, change: &Change<'_, Lease>) {
        let now = Instant::now();
        let changed = match change {
            Change::Applied { now: lease, .. } => self.gateways.apply(lease, now),
            Change::Deleted(lease) => self.gateways.forget(&lease.name_any()),
            Change::Listed { all, .. } => self.gateways.list(all, now),
        };
        if changed {
            self.all();
        }
    }

    /// Looks at every Session when a gateway's Lease runs out.
    pub async fn expire(self) {
        let mut alive = self.gateways.live(Instant::now());
        loop {
            // Leases come and are renewed meanwhile, so look at least once a second.
            let soon = Instant::now() + Duration::from_secs(1);
            let next = self.gateways.next_expiry(Instant::now());
            sleep_until(next.map_or(soon, |at| at.min(soon))).await;
            let now_alive = self.gateways.live(Instant::now());
            if now_alive != alive {
                alive = now_alive;
                self.all();
            }
        }
    }

    /// Something in this namespace is gone of which nobody knows what it was.
    pub fn namespace(&self, namespace: &str) {
        let sessions =
            self.stores.sessions.state_filter(|s| s.namespace().as_deref() == Some(namespace));
        self.push(sessions.iter().map(|s| refs::of_session(s)).collect());
        let agents =
            self.stores.agents.state_filter(|a| a.namespace().as_deref() == Some(namespace));
        self.push(agents.iter().map(|a| refs::of_agent(a)).collect());
    }

    fn all(&self) {
        self.push(self.stores.sessions.state().iter().map(|s| refs::of_session(s)).collect());
        self.push(self.stores.agents.state().iter().map(|a| refs::of_agent(a)).collect());
    }

    /// These Agents, and every Session that names one of them.
    fn agents(&self, mut agents: Vec<SessionKey>) {
        agents.sort();
        agents.dedup();
        if agents.is_empty() {
            return;
        }
        let names = |s: &Session| agents.binary_search(&refs::agent_of(s)).is_ok();
        let sessions = self.stores.sessions.state_filter(names);
        self.push(sessions.iter().map(|s| refs::of_session(s)).collect());
        self.push(agents);
    }

    /// Every Agent that exports something under one of these names.
    fn exporters(&self, names: &BTreeSet<&str>) {
        if names.is_empty() {
            return;
        }
        let shares = |a: &Agent| a.spec.exports.iter().any(|export| names.contains(&*export.name));
        let agents = self.stores.agents.state_filter(shares);
        self.push(agents.iter().map(|a| refs::of_agent(a)).collect());
    }

    fn push(&self, keys: Vec<SessionKey>) {
        for key in keys {
            self.queue.push(key);
        }
    }
}

/// The names of exports whose owner may be another one now.
fn released<'a>(change: &'a Change<'_, Agent>) -> BTreeSet<&'a str> {
    let names = |a: &'a Agent| a.spec.exports.iter().map(|e| &*e.name).collect::<BTreeSet<_>>();
    match change {
        Change::Applied { before: None, now } => names(now),
        Change::Applied { before: Some(before), now } => {
            let (old, new) = (names(before), names(now));
            // Made anew under its name, it is younger than it was; one that goes holds no name.
            let same = before.metadata.uid == now.metadata.uid
                && before.metadata.deletion_timestamp == now.metadata.deletion_timestamp;
            if same { old.symmetric_difference(&new).copied().collect() } else { &old | &new }
        }
        Change::Deleted(agent) => names(agent),
        // All of them are looked at anyway.
        Change::Listed { .. } => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, version: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.resource_version = Some(version.to_owned());
        pod
    }

    #[test]
    fn what_was_written_and_is_in_no_new_list_is_forgotten() {
        let latest = Latest::default();
        let (gone, there) = (pod("made-and-deleted", "7"), pod("there", "5"));
        latest.put(&named(&gone), gone.clone());
        forget_gone(&Change::Applied { before: None, now: &there }, &latest);
        assert!(latest.pick(&named(&gone), None).is_some());
        forget_gone(&Change::Listed { gone: vec![], all: vec![Arc::new(there)] }, &latest);
        assert!(latest.pick(&named(&gone), None).is_none());
    }
}
