//! A journal in memory, with the real rules and the real chain, for tests of what uses a journal.
//!
//! Nothing of it outlives the process.

use super::{
    Append, AppendError, Chain, Position, Read, ReadError,
    rules::{Past, State},
};
use crate::domain::{
    chain::{Hash, Head, Stored, entry_json},
    record::{Entry, Kind, Record},
};
use futures::future::{BoxFuture, FutureExt as _};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A journal in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Inner>>);

/// A chain: what the rules know of it, and its records.
type Stretch = (State, Vec<(Entry, Hash)>);

#[derive(Debug, Default)]
struct Inner {
    chains: BTreeMap<Chain, Stretch>,
    broken: Option<String>,
}

impl Memory {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on every append and every read fails as `Unavailable` with this problem; with
    /// `None` the journal works again.
    pub fn break_with(&self, problem: Option<&str>) {
        self.lock().broken = problem.map(str::to_owned);
    }

    /// Every record of a chain.
    pub fn records(&self, chain: &Chain) -> Vec<Record> {
        let inner = self.lock();
        let Some((_, entries)) = inner.chains.get(chain) else { return vec![] };
        let mut previous = Hash::ZERO;
        let record = |(i, (entry, hash)): (usize, &(Entry, Hash))| {
            let before = std::mem::replace(&mut previous, *hash);
            Record {
                seq: i as u64 + 1,
                entry: entry.clone(),
                previous: before.to_hex(),
                hash: hash.to_hex(),
            }
        };
        entries.iter().enumerate().map(record).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readable(&self) -> Result<(), ReadError> {
        self.lock().broken.clone().map_or(Ok(()), |problem| Err(ReadError::Unavailable(problem)))
    }
}

impl Inner {
    fn chain(&mut self, chain: &Chain) -> Result<&mut Stretch, AppendError> {
        match &self.broken {
            Some(problem) => Err(AppendError::Unavailable(problem.clone())),
            None => Ok(self.chains.entry(chain.clone()).or_default()),
        }
    }

    fn has(&self, kind: Kind, call: Option<&str>) -> bool {
        let mut entries = self.chains.values().flat_map(|(_, records)| records);
        call.is_some() && entries.any(|(e, _)| e.kind == kind && e.call.as_deref() == call)
    }

    fn append(&mut self, chain: &Chain, epoch: i64, entry: Entry) -> Result<Position, AppendError> {
        let begun = self.has(Kind::Intent, entry.call.as_deref());
        let ended = self.has(Kind::Outcome, entry.call.as_deref());
        let (state, records) = self.chain(chain)?;
        let past = |_: &str| Ok::<_, AppendError>(if ended { Past::Ended } else { Past::NotEnded });
        state.check(chain, epoch, &entry, past)?;
        if entry.kind == Kind::Intent && begun {
            return Err(AppendError::BadEntry("the call has an intent already"));
        }
        state.take(&entry, state.head.after(entry_json(&entry).as_bytes()));
        records.push((entry, state.head.hash));
        Ok(state.position())
    }
}

impl Append for Memory {
    fn append<'a>(
        &'a self,
        chain: &'a Chain,
        epoch: i64,
        entry: Entry,
    ) -> BoxFuture<'a, Result<Position, AppendError>> {
        let result = self.lock().append(chain, epoch, entry);
        std::future::ready(result).boxed()
    }

    fn raise_epoch<'a>(
        &'a self,
        chain: &'a Chain,
        epoch: i64,
    ) -> BoxFuture<'a, Result<(), AppendError>> {
        let result = self.lock().chain(chain).and_then(|(state, _)| state.raise(epoch));
        std::future::ready(result).boxed()
    }
}

impl Read for Memory {
    fn page<'a>(
        &'a self,
        chain: &'a Chain,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>> {
        let page = || self.records(chain).into_iter().skip_while(|r| r.seq <= after);
        let result = self.readable().map(|()| page().take(limit.min(super::MAX_PAGE)).collect());
        std::future::ready(result).boxed()
    }

    fn end<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>> {
        let end = || self.lock().chains.get(chain).map_or(0, |(_, records)| records.len() as u64);
        std::future::ready(self.readable().map(|()| end())).boxed()
    }

    fn open_intents<'a>(
        &'a self,
        chain: &'a Chain,
    ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>> {
        let open = || {
            let records = self.records(chain);
            let inner = self.lock();
            let open = inner.chains.get(chain).map(|(state, _)| &state.open);
            let is_open = |r: &Record| {
                r.entry.kind == Kind::Intent
                    && r.entry
                        .call
                        .as_ref()
                        .is_some_and(|c| open.is_some_and(|o| o.contains_key(c)))
            };
            records.into_iter().filter(is_open).collect()
        };
        std::future::ready(self.readable().map(|()| open())).boxed()
    }

    fn chains(&self) -> BoxFuture<'_, Result<Vec<Chain>, ReadError>> {
        let result = self.readable().map(|()| self.lock().chains.keys().cloned().collect());
        std::future::ready(result).boxed()
    }

    fn verify<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>> {
        let verify = || {
            let inner = self.lock();
            let Some((_, entries)) = inner.chains.get(chain) else { return Ok(0) };
            let mut head = Head::START;
            for (entry, hash) in entries {
                let (json, seq) = (entry_json(entry), head.seq + 1);
                let record =
                    Stored { seq, entry: json.as_bytes(), previous: head.hash, hash: *hash };
                head = head.follow(record).map_err(|problem| ReadError::Corrupt {
                    chain: chain.to_string(),
                    seq,
                    problem: problem.into(),
                })?;
            }
            Ok(head.seq)
        };
        std::future::ready(self.readable().and_then(|()| verify())).boxed()
    }
}
