//! One MCP session of a client: what is in flight in it, its stream, what it was told.

use super::Scope;
use crate::mcp::{legacy::Revision, wire::Id};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A session. It lives in the store, and a little longer in what it has in flight.
#[derive(Debug)]
pub(super) struct McpSession {
    id: Arc<str>,
    scope: Scope,
    revision: Revision,
    ended: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last: Instant,
    in_flight: HashMap<Id, CancellationToken>,
    /// The open GET stream; the newest replaces the one before.
    listener: Option<(u64, CancellationToken)>,
    streams: u64,
    /// Digest of the list that the client saw or was told of.
    told: Option<[u8; 32]>,
}

impl McpSession {
    pub(super) fn new(id: Arc<str>, scope: Scope, revision: Revision, now: Instant) -> Self {
        let state =
            State { last: now, in_flight: HashMap::new(), listener: None, streams: 0, told: None };
        Self { id, scope, revision, ended: CancellationToken::new(), state: Mutex::new(state) }
    }

    pub(super) fn id(&self) -> &Arc<str> {
        &self.id
    }

    pub(super) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Cancelled when the session ends.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(super) fn touch(&self, now: Instant) {
        self.state().last = now;
    }

    /// Since when nothing happens in it; none while something is in flight or a stream is open.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state();
        (state.in_flight.is_empty() && state.listener.is_none()).then_some(state.last)
    }

    /// Whether a request with this id is in flight.
    pub(super) fn has(&self, id: &Id) -> bool {
        self.state().in_flight.contains_key(id)
    }

    /// Takes a request in flight; none if one with this id is.
    pub(super) fn begin(self: &Arc<Self>, id: Id) -> Option<InFlight> {
        let mut state = self.state();
        if state.in_flight.contains_key(&id) {
            return None;
        }
        let cancel = CancellationToken::new();
        state.in_flight.insert(id.clone(), cancel.clone());
        drop(state);
        Some(InFlight { session: self.clone(), id, cancel, gone: CancellationToken::new() })
    }

    /// Cancels the request with this id, if it is in flight.
    pub(super) fn cancel(&self, id: &Id) {
        if let Some(cancel) = self.state().in_flight.get(id) {
            cancel.cancel();
        }
    }

    /// A number for the next stream.
    pub(super) fn next_stream(&self) -> u64 {
        let mut state = self.state();
        state.streams += 1;
        state.streams
    }

    /// Makes a new GET stream the only one.
    pub(super) fn listen(self: &Arc<Self>) -> Listening {
        let (number, replaced) = (self.next_stream(), CancellationToken::new());
        if let Some((_, before)) = self.state().listener.replace((number, replaced.clone())) {
            before.cancel();
        }
        Listening { session: self.clone(), number, replaced }
    }

    /// Notes which list the client saw; true if it had seen, or been told of, another one.
    pub(super) fn tell(&self, digest: [u8; 32]) -> bool {
        self.state().told.replace(digest).is_some_and(|before| before != digest)
    }

    /// For a client that has not seen any list yet, notes the present one.
    pub(super) fn hear(&self, digest: impl FnOnce() -> [u8; 32]) {
        self.state().told.get_or_insert_with(digest);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight; leaves the session when dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    session: Arc<McpSession>,
    id: Id,
    pub(super) cancel: CancellationToken,
    pub(super) gone: CancellationToken,
}

impl InFlight {
    pub(super) fn session(&self) -> &Arc<McpSession> {
        &self.session
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.session.state();
        state.in_flight.remove(&self.id);
        state.last = Instant::now();
    }
}

/// The open GET stream of a session; leaves it when dropped.
#[derive(Debug)]
pub(super) struct Listening {
    session: Arc<McpSession>,
    number: u64,
    pub(super) replaced: CancellationToken,
}

impl Listening {
    pub(super) fn session(&self) -> &Arc<McpSession> {
        &self.session
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.session.state();
        if state.listener.as_ref().is_some_and(|(number, _)| *number == self.number) {
            state.listener = None;
            state.last = Instant::now();
        }
    }
}
