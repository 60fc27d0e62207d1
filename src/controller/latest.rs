//! What we wrote and the watches have not shown yet. Without it a reconcile that follows its own
//! write closely would decide on the state before that write.

use super::refs::named;
use crate::{
    api::{Agent, McpAttachment, Session},
    domain::identity::SessionKey,
};
use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use kube::ResourceExt;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The newest known version of some objects of one kind.
#[derive(Debug)]
pub struct Latest<K>(Mutex<HashMap<SessionKey, Arc<K>>>);

impl<K> Default for Latest<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: ResourceExt> Latest<K> {
    /// Remembers what the API server answered to a write.
    pub fn put(&self, key: &SessionKey, object: K) -> Arc<K> {
        let object = Arc::new(object);
        self.lock().insert(key.clone(), object.clone());
        object
    }

    /// The newer of what a watch shows and what was written.
    pub fn pick(&self, key: &SessionKey, shown: Option<Arc<K>>) -> Option<Arc<K>> {
        let mut all = self.lock();
        let Some(written) = all.get(key) else { return shown };
        match shown {
            Some(shown) if version(&*shown) >= version(&**written) => {
                all.remove(key);
                Some(shown)
            }
            _ => Some(written.clone()),
        }
    }

    /// Whether this is exactly what was written last.
    pub fn is_latest(&self, key: &SessionKey, shown: &K) -> bool {
        self.lock().get(key).is_some_and(|written| version(shown) <= version(&**written))
    }

    /// What a watch shows and what was written, together; only what belongs.
    pub fn merge(&self, shown: Vec<Arc<K>>, belongs: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let mut all: HashMap<SessionKey, Arc<K>> =
            shown.into_iter().map(|o| (named(&*o), o)).collect();
        let mut written = self.lock();
        written.retain(|key, written| {
            if all.get(key).is_some_and(|shown| version(&**shown) >= version(&**written)) {
                return false;
            }
            if belongs(written) {
                all.insert(key.clone(), written.clone());
            }
            true
        });
        all.into_values().collect()
    }

    /// A watch showed that the object is gone, or the API server said so.
    pub fn forget(&self, key: &SessionKey) {
        self.lock().remove(key);
    }

    /// The watch listed everything anew.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, Arc<K>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What we wrote, by kind.
#[derive(Default)]
pub struct LatestAll {
    /// Agents.
    pub agents: Latest<Agent>,
    /// Attachments.
    pub attachments: Latest<McpAttachment>,
    /// Sessions.
    pub sessions: Latest<Session>,
    /// Session pods.
    pub pods: Latest<Pod>,
    /// NetworkPolicies.
    pub policies: Latest<NetworkPolicy>,
}

/// Resource versions of one kind are comparable numbers (Kubernetes 1.35 on says so).
fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|v| v.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(version: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".to_owned());
        pod.metadata.namespace = Some("n".to_owned());
        pod.metadata.resource_version = Some(version.to_owned());
        pod
    }

    #[test]
    fn the_newer_one_counts() {
        let (latest, key) = (Latest::default(), named(&pod("1")));
        let shown = |v| Some(Arc::new(pod(v)));
        let picked = |s: Option<Arc<Pod>>| latest.pick(&key, s).unwrap().resource_version();
        latest.put(&key, pod("10"));
        assert_eq!(picked(shown("9")), Some("10".to_owned()), "numbers, not text");
        assert_eq!(picked(None), Some("10".to_owned()));
        assert_eq!(picked(shown("11")), Some("11".to_owned()));
        assert_eq!(picked(shown("9")), Some("9".to_owned()), "caught up, so forgotten");
    }
}
