//! The journal: what was intended and how it ended, durable, in hash-chained order.
//!
//! Two traits, so that a reader cannot write. Callers rely on: a position that was returned is on
//! disk; the first terminal outcome of a call is the only one; an append under an epoch below the
//! highest raised one is refused.

pub mod memory;
pub mod opened;
pub mod postgres;
mod queue;
pub mod rules;
pub mod sqlite;
mod stored;
pub mod tool;

use crate::domain::record::{Entry, Record};
use futures::future::BoxFuture;

/// The most records of one page.
pub const MAX_PAGE: usize = 1000;

/// Which chain a record stands in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chain {
    /// Records of one Session, by its UID.
    Session(String),
    /// Records of one gateway incarnation that belong to no Session.
    Incarnation(String),
}

/// `session/UID` or `incarnation/ID`.
impl std::fmt::Display for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Session(uid) => write!(f, "session/{uid}"),
            Self::Incarnation(id) => write!(f, "incarnation/{id}"),
        }
    }
}

impl std::str::FromStr for Chain {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some(("session", uid)) if !uid.is_empty() => Ok(Self::Session(uid.to_owned())),
            Some(("incarnation", id)) if !id.is_empty() => Ok(Self::Incarnation(id.to_owned())),
            _ => Err("a chain is written session/UID or incarnation/ID"),
        }
    }
}

/// Where a record came to stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// From 1, without gaps.
    pub seq: u64,
    /// The hash of the record, hex.
    pub hash: String,
}

/// Why a record was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another host has taken the Session over.
    #[error("epoch {epoch} is fenced by {highest}")]
    Fenced {
        /// The epoch that was shown.
        epoch: i64,
        /// The highest that was raised.
        highest: i64,
    },
    /// The call has an outcome already; this one is not kept.
    #[error("the call has an outcome already")]
    AlreadyEnded,
    /// An outcome for a call that has no intent.
    #[error("the call has no intent")]
    NoIntent,
    /// The entry breaks a rule of its kind: no call id, a second intent of one call, an outcome
    /// that says nothing.
    #[error("the entry cannot be taken: {0}")]
    BadEntry(&'static str),
    /// The store does not take it: disk full, database gone, closed.
    #[error("the journal is unavailable: {0}")]
    Unavailable(String),
}

/// Why records could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The store cannot be read.
    #[error("the journal is unavailable: {0}")]
    Unavailable(String),
    /// A stored record does not fit its chain.
    #[error("record {seq} of {chain} is not what was written: {problem}")]
    Corrupt {
        /// The chain.
        chain: String,
        /// The record.
        seq: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// The writing side.
pub trait Append: Send + Sync + 'static {
    /// Appends to the chain; resolves when the record is durable. `epoch` is compared with the
    /// highest raised epoch of the chain (chains of an incarnation take any). A call id is used
    /// once in the whole journal, and its outcome stands in the chain of its intent.
    fn append<'a>(
        &'a self,
        chain: &'a Chain,
        epoch: i64,
        entry: Entry,
    ) -> BoxFuture<'a, Result<Position, AppendError>>;

    /// Raises the epoch of a Session's chain. Done by a host before its first receipt. Equal is
    /// fine; lower is refused as `Fenced`.
    fn raise_epoch<'a>(
        &'a self,
        chain: &'a Chain,
        epoch: i64,
    ) -> BoxFuture<'a, Result<(), AppendError>>;
}

/// The reading side.
pub trait Read: Send + Sync + 'static {
    /// Up to `limit` records (at most 1000) after place `after` (0: from the first).
    fn page<'a>(
        &'a self,
        chain: &'a Chain,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>>;

    /// The place of the chain's last record; 0 when there is none.
    fn end<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>>;

    /// Intents of the chain that have no outcome, oldest first.
    fn open_intents<'a>(
        &'a self,
        chain: &'a Chain,
    ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>>;

    /// Every chain there is.
    fn chains(&self) -> BoxFuture<'_, Result<Vec<Chain>, ReadError>>;

    /// Walks a whole chain and compares every hash; gives the number of records.
    fn verify<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>>;
}
