//! The queue before a store's writer: what is asked of it, how it answers, and what is counted. Both
//! stores have one, so that one transaction takes in whatever waits.

use super::{AppendError, Chain, Position};
use crate::{domain::record::Entry, process::metrics::Metrics};
use futures::future::{BoxFuture, FutureExt as _};
use prometheus_client::metrics::{
    counter::Counter,
    histogram::{Histogram, exponential_buckets},
};
use tokio::sync::{mpsc, oneshot};

/// How many appends may wait; the next one waits for a place.
pub(super) const QUEUE: usize = 1024;
/// The most requests of one transaction.
pub(super) const MAX_BATCH: usize = 512;

/// What is asked of a store.
pub(super) enum Request {
    /// Append the entry, whose canonical JSON comes with it.
    Append { chain: Chain, epoch: i64, entry: Box<Entry>, json: String },
    /// Raise the epoch.
    Raise { chain: Chain, epoch: i64 },
}

impl Request {
    /// The chain that it is about.
    pub fn chain(&self) -> &Chain {
        let (Self::Append { chain, .. } | Self::Raise { chain, .. }) = self;
        chain
    }
}

/// The place of the record; of a raised epoch: that of the last record there is.
pub(super) type Answer = Result<Position, AppendError>;

/// What the writer is asked.
pub(super) enum Job {
    /// Write, then answer; the answer may have nobody waiting.
    Write { request: Request, reply: oneshot::Sender<Answer> },
    /// Finish what came before, then end.
    Close,
}

/// What the writer counts.
pub(super) struct Counters {
    records: Counter,
    unavailable: Counter,
    /// Of one transaction.
    pub commits: Histogram,
}

impl Counters {
    pub fn new(metrics: &Metrics) -> Self {
        let seconds = Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        Self {
            records: metrics.register(
                "journal_records",
                "Records that were written",
                Counter::default(),
            ),
            unavailable: metrics.register(
                "journal_unavailable",
                "Appends that were refused because the journal could not be written",
                Counter::default(),
            ),
            commits: metrics.register(
                "journal_commit_seconds",
                "Time that one transaction took, until it is durable",
                seconds,
            ),
        }
    }
}

/// Counts, and logs when the journal begins to fail and when it works again.
pub(super) fn count(
    batch: &[Request],
    answers: &[Answer],
    counters: &Counters,
    failing: &mut bool,
) {
    for (request, answer) in batch.iter().zip(answers) {
        match (request, answer) {
            (Request::Append { .. }, Ok(_)) => {
                counters.records.inc();
            }
            (_, Err(AppendError::Unavailable(problem))) => {
                counters.unavailable.inc();
                if !std::mem::replace(failing, true) {
                    tracing::error!(%problem, "the journal cannot be written: calls are refused");
                }
            }
            _ => {}
        }
    }
    let works = !answers.iter().any(|a| matches!(a, Err(AppendError::Unavailable(_))));
    if works && std::mem::replace(failing, false) {
        tracing::info!("the journal can be written again");
    }
}

/// Puts the request into the queue at once if there is a place, so that it is written even if the
/// future is dropped before it was ever polled.
pub(super) fn ask(jobs: &mpsc::Sender<Job>, request: Request) -> BoxFuture<'_, Answer> {
    let (reply, answer) = oneshot::channel();
    let sent = jobs.try_send(Job::Write { request, reply });
    async move {
        match sent {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(closed()),
            Err(mpsc::error::TrySendError::Full(job)) => {
                jobs.send(job).await.map_err(|_| closed())?;
            }
        }
        answer.await.unwrap_or_else(|_| Err(closed()))
    }
    .boxed()
}

fn closed() -> AppendError {
    AppendError::Unavailable("the journal is closed".into())
}
