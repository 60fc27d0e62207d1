//! What a chain takes: the rules that every store keeps, as plain data without any I/O.
//!
//! A store loads a [`State`], asks [`State::check`], writes the record, calls [`State::take`],
//! and shows nothing of it to anybody before it is durable. That an intent's call is new in the
//! whole journal is for the store to see.

use super::{AppendError, Chain, Position};
use crate::domain::{
    chain::Head,
    record::{Entry, Kind},
};
use std::collections::HashMap;

/// What the rules need to know of a chain.
#[derive(Clone, Debug)]
pub struct State {
    /// The end of the chain.
    pub head: Head,
    /// The highest epoch that was raised; 0: none.
    pub epoch: i64,
    /// Calls with an intent and no outcome, and the place of the intent.
    pub open: HashMap<String, u64>,
}

/// What is known of a call that is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// It has no outcome.
    NotEnded,
    /// It has its outcome.
    Ended,
}

impl Default for State {
    fn default() -> Self {
        Self { head: Head::START, epoch: 0, open: HashMap::new() }
    }
}

impl State {
    /// Whether the entry may be appended. `past` is asked of a call that would end and is not open.
    pub fn check<E: From<AppendError>>(
        &self,
        chain: &Chain,
        epoch: i64,
        entry: &Entry,
        past: impl FnOnce(&str) -> Result<Past, E>,
    ) -> Result<(), E> {
        if matches!(chain, Chain::Session(_)) && epoch < self.epoch {
            return Err(AppendError::Fenced { epoch, highest: self.epoch }.into());
        }
        match (entry.kind, entry.call.as_deref()) {
            (Kind::Refusal | Kind::Lifecycle, _) => Ok(()),
            (_, None) => Err(AppendError::BadEntry("it names no call").into()),
            (Kind::Intent, Some(_)) => Ok(()),
            (Kind::Outcome, Some(_)) if entry.outcome.is_none() => {
                Err(AppendError::BadEntry("it has no outcome").into())
            }
            (Kind::Outcome, Some(call)) if self.open.contains_key(call) => Ok(()),
            (Kind::Outcome, Some(call)) => Err(match past(call)? {
                Past::Ended => AppendError::AlreadyEnded,
                Past::NotEnded => AppendError::NoIntent,
            }
            .into()),
        }
    }

    /// Takes in an entry that was checked; `head` is the end of the chain behind it.
    pub fn take(&mut self, entry: &Entry, head: Head) {
        self.head = head;
        match (entry.kind, &entry.call) {
            (Kind::Intent, Some(call)) => {
                self.open.insert(call.clone(), head.seq);
            }
            (Kind::Outcome, Some(call)) => {
                self.open.remove(call);
            }
            _ => {}
        }
    }

    /// The place of the last record.
    pub fn position(&self) -> Position {
        Position { seq: self.head.seq, hash: self.head.hash.to_hex() }
    }

    /// Every intent up to this place has its outcome.
    pub fn settled(&self) -> u64 {
        self.open.values().min().map_or(self.head.seq, |first| first - 1)
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
