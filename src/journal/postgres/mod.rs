//! The journal in Postgres: for several gateways, each the writer of the Sessions that it hosts.
//!
//! ```text
//! append ──► queue (bounded) ──► writer task ──► one statement, which commits ──► answers
//! read   ──► connection of its own
//! ```
//!
//! Relies on: the database's `synchronous_commit`, which is left as the database has it unless the
//! caller asks for less. A chain may be written by any gateway; a statement moves a chain only from
//! the end that its writer knows, so that of two writers one begins again. A connection that is
//! lost leaves no doubt: the next one looks whether the records are there before it writes again.

mod connect;
pub(super) mod reader;
mod statements;
mod store;
mod writer;

pub use connect::{Database, OpenError, Url};

use super::{
    Append, AppendError, Chain, Position, Read, ReadError,
    queue::{self, Counters, Job, QUEUE, Request},
};
use crate::{
    domain::{
        chain::entry_json,
        record::{Entry, Record},
    },
    process::metrics::Metrics,
};
use futures::future::{BoxFuture, FutureExt as _};
use reader::Reader;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::{sync::mpsc, task::JoinHandle};

/// A journal in a database. Clones share it.
#[derive(Clone)]
pub struct Postgres(Arc<Inner>);

struct Inner {
    jobs: mpsc::Sender<Job>,
    writer: Mutex<Option<JoinHandle<()>>>,
    reader: Reader,
}

impl Postgres {
    /// Connects, brings the tables to the present version, and starts the writer.
    ///
    /// # Errors
    /// If the database cannot be reached or used; its user needs the right to create tables once.
    pub async fn open(database: Database, metrics: &Metrics) -> Result<Self, OpenError> {
        let mut client = database.connect().await?;
        statements::migrate(&mut client).await?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let reader = Reader::new(database.clone());
        let store = store::Store::new(database);
        let writer = tokio::spawn(writer::run(store, queue, Counters::new(metrics)));
        Ok(Self(Arc::new(Inner { jobs, writer: Mutex::new(Some(writer)), reader })))
    }

    /// Writes what waits and ends the writer. Later appends are refused.
    pub async fn close(&self) {
        // Fails only if the writer is gone already.
        let _ = self.0.jobs.send(Job::Close).await;
        let writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.await.is_err_and(|ended| ended.is_panic())
        {
            tracing::error!("the journal's writer panicked");
        }
    }

    /// Resolves when the writer ended, whether by [`Self::close`] or by a fault.
    pub async fn ended(&self) {
        self.0.jobs.closed().await;
    }
}

impl Append for Postgres {
    fn append<'a>(
        &'a self,
        chain: &'a Chain,
        epoch: i64,
        entry: Entry,
    ) -> BoxFuture<'a, Result<Position, AppendError>> {
        let (chain, json) = (chain.clone(), entry_json(&entry));
        queue::ask(&self.0.jobs, Request::Append { chain, epoch, entry: Box::new(entry), json })
    }

    fn raise_epoch<'a>(
        &'a self,
        chain: &'a Chain,
        epoch: i64,
    ) -> BoxFuture<'a, Result<(), AppendError>> {
        let raise = Request::Raise { chain: chain.clone(), epoch };
        queue::ask(&self.0.jobs, raise).map(|r| r.map(|_| ())).boxed()
    }
}

impl Read for Postgres {
    fn page<'a>(
        &'a self,
        chain: &'a Chain,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>> {
        self.0.reader.page(chain, after, limit).boxed()
    }

    fn end<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>> {
        self.0.reader.end(chain).boxed()
    }

    fn open_intents<'a>(
        &'a self,
        chain: &'a Chain,
    ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>> {
        self.0.reader.open_intents(chain).boxed()
    }

    fn chains(&self) -> BoxFuture<'_, Result<Vec<Chain>, ReadError>> {
        self.0.reader.chains().boxed()
    }

    fn verify<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>> {
        self.0.reader.walk(chain, |_| Ok::<_, ReadError>(())).map(|r| r.map(|h| h.seq)).boxed()
    }
}
