//! Objects that are there but do not fit the schema: nothing is decided of them, nor without them.

use crate::domain::identity::SessionKey;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Which they are.
#[derive(Clone, Debug, Default)]
pub struct Unreadable(Arc<Mutex<All>>);

type Slot = (String, SessionKey);

#[derive(Debug, Default)]
struct All {
    /// With their UIDs.
    uids: HashMap<Slot, String>,
    /// Those that the present list of their kind has named so far.
    listed: HashSet<Slot>,
}

impl Unreadable {
    /// Whether this object cannot be read.
    pub fn has(&self, kind: &str, key: &SessionKey) -> bool {
        self.lock().uids.contains_key(&(kind.to_owned(), key.clone()))
    }

    /// The UIDs of those of a kind in a namespace.
    pub fn uids(&self, kind: &str, namespace: &str) -> Vec<String> {
        let all = self.lock();
        let of = |(k, key): &Slot| k == kind && key.namespace == namespace;
        let found = all.uids.iter().filter(|(slot, _)| of(slot));
        let mut uids: Vec<_> = found.map(|(_, uid)| uid.clone()).collect();
        uids.sort();
        uids
    }

    /// This object cannot be read.
    pub fn put(&self, kind: &str, key: &SessionKey, uid: String) {
        let mut all = self.lock();
        let slot = (kind.to_owned(), key.clone());
        all.listed.insert(slot.clone());
        all.uids.insert(slot, uid);
    }

    /// This object can be read, or is gone.
    pub fn remove(&self, kind: &str, key: &SessionKey) {
        self.lock().uids.remove(&(kind.to_owned(), key.clone()));
    }

    /// Every object of the kind is going to be listed.
    pub fn begin_list(&self, kind: &str) {
        self.lock().listed.retain(|(k, _)| k != kind);
    }

    /// Every object of the kind was listed: those that were not are gone. Gives them.
    pub fn end_list(&self, kind: &str) -> Vec<SessionKey> {
        let All { uids, listed } = &mut *self.lock();
        let mut gone = vec![];
        uids.retain(|slot, _| {
            let stays = slot.0 != kind || listed.contains(slot);
            if !stays {
                gone.push(slot.1.clone());
            }
            stays
        });
        gone.sort();
        gone
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> SessionKey {
        SessionKey { namespace: "team-a".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn what_a_list_does_not_name_is_forgotten_when_it_ends() {
        let all = Unreadable::default();
        for (kind, name) in [("Agent", "a"), ("Agent", "b"), ("Session", "a"), ("Agent", "c")] {
            all.put(kind, &key(name), format!("uid of {kind} {name}"));
        }
        all.remove("Agent", &key("c"));
        all.begin_list("Agent");
        all.put("Agent", &key("b"), "uid of Agent b".to_owned());
        assert!(all.has("Agent", &key("a")), "as long as the list lasts");
        assert_eq!(all.end_list("Agent"), [key("a")]);
        assert!(!all.has("Agent", &key("a")) && all.has("Session", &key("a")));
        assert_eq!(all.uids("Agent", "team-a"), ["uid of Agent b"]);
        assert_eq!(all.end_list("Agent"), [], "what came after the list stays");
    }
}
