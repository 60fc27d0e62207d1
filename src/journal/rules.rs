//! What a chain takes: the rules that every store keeps, as plain data without any I/O.
//!
//! A store loads a [`State`], asks [`State::admit`], writes the record, and then, only when it is
//! durable, may show the new state to anybody.

use super::{AppendError, Chain, Position};
use crate::domain::{
    chain::Head,
    record::{Entry, Kind},
};
use std::collections::HashSet;

/// What the rules need to know of a chain.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub head: Head,
    /// The highest epoch that was raised; 0: none.
    pub epoch: i64,
    /// Calls with an intent and no outcome.
    pub open: HashSet<String>,
}

/// What is known of a call that is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Past {
    /// It has no record.
    Unknown,
    /// It has its outcome.
    Ended,
}

impl Default for State {
    fn default() -> Self {
        Self { head: Head::START, epoch: 0, open: HashSet::new() }
    }
}

impl State {
    /// Whether the entry may be appended. `past` is asked only for calls that are not open.
    pub fn check<E: From<AppendError>>(
        &self,
        chain: &Chain,
        epoch: i64,
        entry: &Entry,
        past: impl Fn(&str) -> Result<Past, E>,
    ) -> Result<(), E> {
        if matches!(chain, Chain::Session(_)) && epoch < self.epoch {
            return Err(AppendError::Fenced { epoch, highest: self.epoch }.into());
        }
        let call = match (entry.kind, entry.call.as_deref()) {
            (Kind::Refusal | Kind::Lifecycle, _) => return Ok(()),
            (_, Some(call)) => call,
            (_, None) => return Err(AppendError::BadEntry("it names no call").into()),
        };
        let open = self.open.contains(call);
        match entry.kind {
            Kind::Intent if open || past(call)? == Past::Ended => {
                Err(AppendError::BadEntry("the call has an intent already").into())
            }
            Kind::Outcome if entry.outcome.is_none() => {
                Err(AppendError::BadEntry("it has no outcome").into())
            }
            Kind::Outcome if !open => Err(match past(call)? {
                Past::Ended => AppendError::AlreadyEnded.into(),
                Past::Unknown => AppendError::NoIntent.into(),
            }),
            _ => Ok(()),
        }
    }

    /// Takes the entry in; gives its place. Only after [`Self::check`].
    pub fn take(&mut self, entry: &Entry, bytes: &[u8]) -> Position {
        self.head = self.head.after(bytes);
        match (entry.kind, &entry.call) {
            (Kind::Intent, Some(call)) => {
                self.open.insert(call.clone());
            }
            (Kind::Outcome, Some(call)) => {
                self.open.remove(call);
            }
            _ => {}
        }
        Position { seq: self.head.seq, hash: self.head.hash.to_hex() }
    }

    /// Raises the epoch.
    pub fn raise(&mut self, epoch: i64) -> Result<(), AppendError> {
        if epoch < self.epoch {
            return Err(AppendError::Fenced { epoch, highest: self.epoch });
        }
        self.epoch = epoch;
        Ok(())
    }
}
