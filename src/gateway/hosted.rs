//! The Sessions that this gateway serves: for each its chain, its epoch, its catalog, and whether
//! calls may come in. Written by the host alone, read by every request.

use super::{
    catalog::{Catalogs, Policies},
    usage::SessionUse,
};
use crate::{domain::identity::SessionKey, journal::Chain};
use arc_swap::ArcSwap;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One Session under one epoch.
#[derive(Debug)]
pub struct Hosted {
    /// Namespace and name.
    pub key: SessionKey,
    /// `namespace/name`, as records name it.
    pub label: String,
    /// UID of the Session.
    pub uid: String,
    /// Where its records stand.
    pub chain: Chain,
    /// The lease epoch under which it is served here.
    pub epoch: i64,
    /// What it offers.
    pub catalogs: Catalogs,
    /// Whether anybody uses it.
    pub usage: SessionUse,
    open: AtomicBool,
    left: CancellationToken,
}

impl Hosted {
    /// A Session that takes no call yet.
    pub fn new(key: SessionKey, uid: String, epoch: i64, policies: Arc<Policies>) -> Self {
        Self {
            label: key.to_string(),
            chain: Chain::Session(uid.clone()),
            catalogs: Catalogs::new(policies),
            usage: SessionUse::default(),
            open: AtomicBool::new(false),
            left: CancellationToken::new(),
            key,
            uid,
            epoch,
        }
    }

    /// Whether calls may come in.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Cancelled when it is served here no longer.
    pub fn left(&self) -> &CancellationToken {
        &self.left
    }

    /// Lets calls in, or answers them with 503.
    pub fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Release);
    }
}

/// Every Session that is served here.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    table: Arc<ArcSwap<HashMap<SessionKey, Arc<Hosted>>>>,
    version: Arc<watch::Sender<u64>>,
}

impl Sessions {
    /// The Session, if it is served here and takes calls.
    pub fn serving(&self, key: &SessionKey) -> Option<Arc<Hosted>> {
        self.table.load().get(key).filter(|h| h.is_open()).cloned()
    }

    /// The Session, if it is served here at all.
    pub fn get(&self, key: &SessionKey) -> Option<Arc<Hosted>> {
        self.table.load().get(key).cloned()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.load().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts one in, in place of an older one of the same name.
    pub fn put(&self, hosted: Arc<Hosted>) {
        self.table.rcu(|old| {
            let mut new = HashMap::clone(old);
            new.insert(hosted.key.clone(), hosted.clone());
            new
        });
        self.version.send_modify(|version| *version += 1);
    }

    /// Takes one out.
    pub fn remove(&self, key: &SessionKey) {
        self.table.rcu(|old| {
            let mut new = HashMap::clone(old);
            new.remove(key);
            new
        });
        self.version.send_modify(|version| *version += 1);
    }

    /// Wakes when a Session came or went.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Takes all of them out of service and ends their streams: this gateway stops or lost its
    /// Lease. Calls in flight go on.
    pub fn close_all(&self) {
        for hosted in self.table.load().values() {
            hosted.set_open(false);
            hosted.left().cancel();
        }
    }
}
