//! The journal in one SQLite file: a writer's thread that makes one transaction, and one fsync, of
//! whatever waits, and readers beside it.
//!
//! ```text
//! append ──► queue (bounded) ──► writer thread ──► BEGIN … COMMIT (WAL, fsync) ──► answers
//! read   ──► blocking pool ──► connection of its own
//! ```
//!
//! Relies on: one process for one file, kept by a lock on `<file>.lock`. An append is written
//! even if nobody waits for it any more. When the disk is full, everything that waits is answered
//! as `Unavailable`, and the next append tries again.

pub(super) mod reader;
pub(super) mod schema;
mod store;
mod writer;

pub use schema::Durability;

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
use rusqlite::Connection;
use std::{
    fs::{File, TryLockError},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};
use tokio::sync::{Semaphore, mpsc};

/// How many reads run at the same time.
const READERS: usize = 2;

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the journal {} is in use by another process, which holds {}", path.display(), lock.display())]
    Locked {
        /// The file of the journal.
        path: PathBuf,
        /// The lock file.
        lock: PathBuf,
    },
    /// The lock file cannot be made.
    #[error("the lock file {} cannot be used: {error}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file cannot be made or opened.
    #[error("the journal {} cannot be opened: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file is something else.
    #[error("{} is not a journal", .0.display())]
    NotAJournal(PathBuf),
    /// A later version of this program wrote it.
    #[error("the journal {} has schema {version}, of a later version of this program", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        version: i64,
    },
    /// The file system cannot hold a write-ahead log.
    #[error("the journal {} cannot have a write-ahead log: is it on a network file system?", .0.display())]
    NoWal(PathBuf),
    /// SQLite says no.
    #[error("the journal cannot be opened: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The writer's thread cannot be started.
    #[error("the journal's thread cannot be started: {0}")]
    Thread(std::io::Error),
}

/// A journal in a file. Clones share it.
#[derive(Clone)]
pub struct Sqlite(Arc<Inner>);

struct Inner {
    path: PathBuf,
    jobs: mpsc::Sender<Job>,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sqlite({})", self.0.path.display())
    }
}

impl Sqlite {
    /// Opens the journal, made if there is none, and starts its writer. Blocking, some
    /// milliseconds.
    ///
    /// # Errors
    /// If another process has it, or the file cannot be used.
    pub fn open(path: &Path, durability: Durability, metrics: &Metrics) -> Result<Self, OpenError> {
        let lock = lock(path)?;
        // SQLite would make it readable for others; its log and index get the same mode.
        private(path).map_err(|error| OpenError::File { path: path.to_owned(), error })?;
        let store = store::Store::open(path.to_owned(), durability)?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let writer =
            writer::start(store, queue, lock, Counters::new(metrics)).map_err(OpenError::Thread)?;
        Ok(Self(Arc::new(Inner {
            path: path.to_owned(),
            jobs,
            writer: Mutex::new(Some(writer)),
            readers: Mutex::default(),
            permits: Semaphore::new(READERS),
        })))
    }

    /// Writes what waits, ends the writer and gives the file free. Later appends are refused.
    pub async fn close(&self) {
        // Fails only if the writer is gone already.
        let _ = self.0.jobs.send(Job::Close).await;
        let writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            let joined = tokio::task::spawn_blocking(move || writer.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the journal's writer panicked");
            }
        }
        self.0.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Resolves when the writer ended, whether by [`Self::close`] or by a fault.
    pub async fn ended(&self) {
        self.0.jobs.closed().await;
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let gone = |e: &dyn std::fmt::Display| ReadError::Unavailable(e.to_string());
        let inner = Arc::clone(&self.0);
        let _permit = self.0.permits.acquire().await.map_err(|e| gone(&e))?;
        let work = move || {
            let pool = || inner.readers.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = pool().pop();
            let db = match idle {
                Some(db) => db,
                None => schema::open_reader(&inner.path)
                    .map_err(|e| ReadError::Unavailable(e.to_string()))?,
            };
            let result = read(&db);
            // After an error the next read gets a new connection.
            if !matches!(result, Err(ReadError::Unavailable(_))) {
                pool().push(db);
            }
            result
        };
        tokio::task::spawn_blocking(work).await.map_err(|e| gone(&e))?
    }
}

/// Opens a file that only its owner may read, made if there is none.
fn private(path: &Path) -> std::io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
}

/// Takes the lock that keeps other processes out. It ends with the process, however that ends.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = PathBuf::from(name);
    let failed = |error| OpenError::Lock { path: lock.clone(), error };
    let file = private(&lock).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: path.to_owned(), lock }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

impl Append for Sqlite {
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
        queue::ask(&self.0.jobs, Request::Raise { chain: chain.clone(), epoch })
            .map(|r| r.map(|_| ()))
            .boxed()
    }
}

impl Read for Sqlite {
    fn page<'a>(
        &'a self,
        chain: &'a Chain,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>> {
        let chain = chain.clone();
        self.read(move |db| reader::page(db, &chain, after, limit)).boxed()
    }

    fn end<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>> {
        let chain = chain.clone();
        self.read(move |db| reader::end(db, &chain)).boxed()
    }

    fn open_intents<'a>(
        &'a self,
        chain: &'a Chain,
    ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>> {
        let chain = chain.clone();
        self.read(move |db| reader::open_intents(db, &chain)).boxed()
    }

    fn chains(&self) -> BoxFuture<'_, Result<Vec<Chain>, ReadError>> {
        self.read(reader::chains).boxed()
    }

    fn verify<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>> {
        let chain = chain.clone();
        self.read(move |db| reader::walk(db, &chain, |_| Ok::<_, ReadError>(())).map(|h| h.seq))
            .boxed()
    }
}
