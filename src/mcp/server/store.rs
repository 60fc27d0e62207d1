//! The MCP sessions of the clients: who has which, what is in flight in each, when they end.
//!
//! A session belongs to one subject on one endpoint; for everybody else it does not exist. Holds
//! no connection and no policy.

use super::{Scope, session::McpSession};
use crate::mcp::legacy::Revision;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Limits and times of the server, for every endpoint.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// MCP sessions of one subject, at most; an idle one makes room.
    pub sessions_per_subject: usize,
    /// A session without any request, call or stream for this long ends.
    pub idle: Duration,
    /// The biggest body that is taken, in bytes.
    pub max_body: usize,
    /// How long an answer may take before the response becomes a stream.
    pub json_within: Duration,
    /// Between two keep-alive comments of a stream.
    pub keep_alive: Duration,
    /// What ids of sessions begin with, before a dot: which replica holds them. No dot in it; with
    /// an empty one ids have no such part.
    pub mark: String,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            sessions_per_subject: 64,
            idle: Duration::from_secs(30 * 60),
            max_body: 16 << 20,
            json_within: Duration::from_secs(1),
            keep_alive: Duration::from_secs(15),
            mark: String::new(),
        }
    }
}

/// Why no session was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// All of the subject's sessions are at work.
    #[error("all {0} MCP sessions of this caller are in use; end some with DELETE")]
    TooMany(usize),
    /// No randomness.
    #[error("the machine gives no randomness for a session id")]
    NoRandomness,
}

/// The sessions of one gateway.
#[derive(Debug, Default)]
pub struct SessionStore {
    config: StoreConfig,
    sessions: Mutex<HashMap<Arc<str>, Arc<McpSession>>>,
    /// Calls whose client went away, on their way to their outcome.
    orphans: TaskTracker,
}

impl SessionStore {
    /// An empty store.
    pub fn new(config: StoreConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Its limits and times.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// How many sessions are alive.
    pub fn count(&self) -> usize {
        self.sessions().len()
    }

    /// Ends idle sessions until it is told to stop. One of the gateway's required tasks.
    pub async fn sweep(&self, stop: CancellationToken) {
        let mut tick = tokio::time::interval((self.config.idle / 8).max(Duration::from_millis(10)));
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => self.expire(Instant::now()),
            }
        }
    }

    /// Ends every session of an endpoint, with its streams.
    pub fn end_endpoint(&self, endpoint: &str) {
        self.end_where(|s| &*s.scope().endpoint == endpoint);
    }

    /// Waits until each call whose client went away has its outcome. To be called once nothing
    /// new is accepted.
    pub async fn settle(&self) {
        self.orphans.close();
        self.orphans.wait().await;
    }

    pub(super) fn orphans(&self) -> &TaskTracker {
        &self.orphans
    }

    pub(super) fn open(
        &self,
        scope: &Scope,
        revision: Revision,
    ) -> Result<Arc<McpSession>, OpenError> {
        let mut bytes = [0; 24];
        getrandom::fill(&mut bytes).map_err(|_| OpenError::NoRandomness)?;
        let random = URL_SAFE_NO_PAD.encode(bytes);
        let id: Arc<str> = match &*self.config.mark {
            "" => random.into(),
            mark => format!("{mark}.{random}").into(),
        };
        let now = Instant::now();
        let session = Arc::new(McpSession::new(id.clone(), scope.clone(), revision, now));
        let mut sessions = self.sessions();
        let of_subject = || sessions.values().filter(|s| s.scope().subject == scope.subject);
        let limit = self.config.sessions_per_subject;
        if of_subject().count() >= limit {
            let idle = of_subject().filter_map(|s| Some((s.idle_since()?, s.id().clone())));
            let (_, oldest) = idle.min().ok_or(OpenError::TooMany(limit))?;
            if let Some(evicted) = sessions.remove(&oldest) {
                evicted.end();
            }
        }
        sessions.insert(id, session.clone());
        Ok(session)
    }

    pub(super) fn get(&self, scope: &Scope, id: &str) -> Option<Arc<McpSession>> {
        let session = self.sessions().get(id).filter(|s| s.scope() == scope).cloned()?;
        let now = Instant::now();
        if session.idle_since().is_some_and(|since| now - since >= self.config.idle) {
            self.close(scope, id);
            return None;
        }
        session.touch(now);
        Some(session)
    }

    pub(super) fn close(&self, scope: &Scope, id: &str) -> bool {
        let mut sessions = self.sessions();
        if sessions.get(id).is_none_or(|s| s.scope() != scope) {
            return false;
        }
        if let Some(session) = sessions.remove(id) {
            session.end();
        }
        true
    }

    fn expire(&self, now: Instant) {
        let idle = self.config.idle;
        self.end_where(|s| s.idle_since().is_some_and(|since| now - since >= idle));
    }

    fn end_where(&self, ends: impl Fn(&McpSession) -> bool) {
        self.sessions().retain(|_, session| {
            let ends = ends(session);
            if ends {
                session.end();
            }
            !ends
        });
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<McpSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::wire::Id;

    fn scope(subject: &str, endpoint: &str) -> Scope {
        Scope { subject: subject.into(), endpoint: endpoint.into() }
    }

    fn store(sessions_per_subject: usize, idle: u64) -> SessionStore {
        let idle = Duration::from_secs(idle);
        SessionStore::new(StoreConfig { sessions_per_subject, idle, ..StoreConfig::default() })
    }

    fn open(store: &SessionStore, scope: &Scope) -> Arc<McpSession> {
        store.open(scope, Revision::LATEST).unwrap()
    }

    #[tokio::test]
    async fn a_session_exists_for_its_subject_on_its_endpoint_alone() {
        let store = store(4, 60);
        let mine = scope("ann", "/a");
        let id = open(&store, &mine).id().clone();
        assert!(store.get(&mine, &id).is_some());
        for other in [scope("bob", "/a"), scope("ann", "/b")] {
            assert!(store.get(&other, &id).is_none());
            assert!(!store.close(&other, &id), "nor can it be ended");
        }
        assert!(store.close(&mine, &id));
        assert!(!store.close(&mine, &id), "once");
        assert_eq!(store.count(), 0);
    }

    #[tokio::test]
    async fn ids_are_long_visible_ascii_and_differ() {
        let (store, mine) = (store(500, 60), scope("ann", "/a"));
        let ids: std::collections::HashSet<_> =
            (0..500).map(|_| open(&store, &mine).id().clone()).collect();
        assert_eq!(ids.len(), 500);
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_graphic())));
        ids.iter().for_each(|id| assert!(store.close(&mine, id)));
        assert_eq!(store.count(), 0, "the gauge returns to zero");
    }

    #[tokio::test(start_paused = true)]
    async fn the_cap_evicts_the_longest_idle_and_leaves_other_subjects_alone() {
        let (store, ann, bob) = (store(2, 600), scope("ann", "/a"), scope("bob", "/a"));
        let of_bob = open(&store, &bob);
        let first = open(&store, &ann);
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = open(&store, &ann);
        tokio::time::advance(Duration::from_secs(1)).await;
        store.get(&ann, first.id());
        let third = open(&store, &ann);
        assert!(store.get(&ann, second.id()).is_none(), "the one that was idle longest");
        assert!(store.get(&ann, first.id()).is_some() && store.get(&ann, third.id()).is_some());
        let (a, b) = (first.begin(Id::number(1)), third.begin(Id::number(1)));
        assert_eq!(store.open(&ann, Revision::LATEST).unwrap_err(), OpenError::TooMany(2));
        drop(b);
        open(&store, &ann);
        assert!(store.get(&ann, first.id()).is_some(), "at work, so it stays");
        assert!(store.get(&bob, of_bob.id()).is_some());
        drop(a);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_sessions_expire_and_busy_ones_do_not() {
        let (store, ann) = (Arc::new(store(200, 3)), scope("ann", "/a"));
        let stop = CancellationToken::new();
        let (swept, told) = (store.clone(), stop.clone());
        let sweeper = tokio::spawn(async move { swept.sweep(told).await });
        let ids: Vec<_> = (0..100).map(|_| open(&store, &ann).id().clone()).collect();
        let busy = open(&store, &ann);
        let call = busy.begin(Id::number(5)).unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(store.count(), 1);
        assert!(store.get(&ann, &ids[0]).is_none());
        drop(call);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(store.count(), 1, "idle since the call's end, not since its start");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(store.count(), 0);
        stop.cancel();
        sweeper.await.unwrap();
    }

    #[tokio::test]
    async fn an_endpoint_that_goes_takes_its_sessions_along() {
        let (store, a, b) = (store(4, 60), scope("ann", "/a"), scope("ann", "/b"));
        let (gone, stays) = (open(&store, &a), open(&store, &b));
        store.end_endpoint("/a");
        assert!(gone.ended().is_cancelled() && !stays.ended().is_cancelled());
        assert_eq!(store.count(), 1);
    }
}
