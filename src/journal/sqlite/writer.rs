//! The writer's thread: takes what waits, hands it to the store as one batch, answers.
//!
//! It holds the lock of the file for as long as it lives. Nothing else writes to the store.

use super::store::{Answer, Request, Store};
use crate::{journal::AppendError, process::metrics::Metrics};
use prometheus_client::metrics::{
    counter::Counter,
    histogram::{Histogram, exponential_buckets},
};
use std::{
    fs::File,
    thread::{Builder, JoinHandle},
    time::Instant,
};
use tokio::sync::{mpsc, oneshot};

/// The most requests of one transaction.
const MAX_BATCH: usize = 512;

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
    commits: Histogram,
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
                "Time that one transaction took, fsync included",
                seconds,
            ),
        }
    }
}

/// Starts the thread.
pub(super) fn start(
    store: Store,
    queue: mpsc::Receiver<Job>,
    lock: File,
    counters: Counters,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name("journal-writer".into()).spawn(move || {
        run(store, queue, &counters);
        drop(lock);
    })
}

fn run(mut store: Store, mut queue: mpsc::Receiver<Job>, counters: &Counters) {
    let (mut jobs, mut failing) = (Vec::with_capacity(MAX_BATCH), false);
    let (mut batch, mut replies) = (Vec::new(), Vec::new());
    let mut open = true;
    while open && queue.blocking_recv_many(&mut jobs, MAX_BATCH) > 0 {
        for job in jobs.drain(..) {
            match job {
                Job::Write { request, reply } if open => {
                    batch.push(request);
                    replies.push(reply);
                }
                // What comes behind a Close is dropped, which its caller sees as closed.
                Job::Write { .. } => {}
                Job::Close => open = false,
            }
        }
        if batch.is_empty() {
            continue;
        }
        let begin = Instant::now();
        let answers = store.commit(&batch);
        counters.commits.observe(begin.elapsed().as_secs_f64());
        count(&batch, &answers, counters, &mut failing);
        batch.clear();
        for (reply, answer) in replies.drain(..).zip(answers) {
            // Whoever asked may be gone; the record is written all the same.
            let _ = reply.send(answer);
        }
    }
    store.note();
}

/// Counts, and logs when the journal begins to fail and when it works again.
fn count(batch: &[Request], answers: &[Answer], counters: &Counters, failing: &mut bool) {
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
