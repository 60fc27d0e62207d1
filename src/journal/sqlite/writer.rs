//! The writer's thread: takes what waits, hands it to the store as one batch, answers.
//!
//! It holds the lock of the file for as long as it lives. Nothing else writes to the store.

use super::store::Store;
use crate::journal::queue::{Counters, Job, MAX_BATCH, count};
use std::{
    fs::File,
    thread::{Builder, JoinHandle},
    time::Instant,
};
use tokio::sync::mpsc;

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
