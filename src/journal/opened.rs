//! The journal of a process: in a file or in a database, as its settings say.

use super::{
    Append, Read,
    postgres::{self, Database, Postgres},
    sqlite::{self, Durability, Sqlite},
};
use crate::process::metrics::Metrics;
use std::{path::Path, sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The wait between two looks at a file that another process has.
const AGAIN: Duration = Duration::from_millis(200);

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file's reason.
    #[error(transparent)]
    File(#[from] sqlite::OpenError),
    /// The database's reason.
    #[error(transparent)]
    Database(#[from] postgres::OpenError),
}

/// The writer ended, so nothing can be recorded any more.
#[derive(Debug, thiserror::Error)]
#[error("the journal's writer ended; the log says why")]
pub struct WriterEnded;

/// A journal that is open for writing. Clones share it.
#[derive(Clone)]
pub enum Journal {
    /// In a file.
    File(Sqlite),
    /// In a database.
    Database(Postgres),
}

impl Journal {
    /// Opens a file. One that another process has is waited for.
    ///
    /// # Errors
    /// If it cannot be used, or is still in use after `patience`.
    pub async fn file(
        path: &Path,
        durability: Durability,
        patience: Duration,
        metrics: &Metrics,
    ) -> Result<Self, OpenError> {
        let (begin, mut told) = (Instant::now(), false);
        loop {
            match Sqlite::open(path, durability, metrics) {
                Err(problem @ sqlite::OpenError::Locked { .. }) if begin.elapsed() < patience => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!(%problem, "waiting for it");
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                other => return Ok(Self::File(other?)),
            }
        }
    }

    /// Opens a database. One that does not answer is waited for.
    ///
    /// # Errors
    /// If it cannot be used, or still does not answer after `patience`.
    pub async fn database(
        database: Database,
        patience: Duration,
        metrics: &Metrics,
    ) -> Result<Self, OpenError> {
        let (begin, mut told) = (Instant::now(), false);
        loop {
            match Postgres::open(database.clone(), metrics).await {
                Err(problem @ postgres::OpenError::Connect(_)) if begin.elapsed() < patience => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%problem, "trying again");
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                other => return Ok(Self::Database(other?)),
            }
        }
    }

    /// To write.
    pub fn append(&self) -> Arc<dyn Append> {
        match self {
            Self::File(file) => Arc::new(file.clone()),
            Self::Database(database) => Arc::new(database.clone()),
        }
    }

    /// To read.
    pub fn read(&self) -> Arc<dyn Read> {
        match self {
            Self::File(file) => Arc::new(file.clone()),
            Self::Database(database) => Arc::new(database.clone()),
        }
    }

    /// Whether no other process can write it.
    pub fn is_exclusive(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Watches the writer until `stop`; for the process to join as a required task.
    ///
    /// # Errors
    /// When the writer ends before that, whether by [`Self::close`] or by a fault.
    pub async fn watch(self, stop: CancellationToken) -> Result<(), WriterEnded> {
        let ended = async {
            match &self {
                Self::File(file) => file.ended().await,
                Self::Database(database) => database.ended().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            () = ended => Err(WriterEnded),
        }
    }

    /// Writes what waits and ends the writer. Later appends are refused.
    pub async fn close(&self) {
        match self {
            Self::File(file) => file.close().await,
            Self::Database(database) => database.close().await,
        }
    }
}
