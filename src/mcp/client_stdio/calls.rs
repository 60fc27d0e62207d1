//! The requests that wait for an answer, by the number in their id.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::mcp::{Answer, PeerError};

type Outcome = Result<Answer, PeerError>;

/// Numbers of requests, one sequence for the process: a peer that is made anew under the same epoch
/// must not reuse the id of a request whose answer may still come.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The table.
#[derive(Default)]
pub struct Calls {
    waiting: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
}

impl Calls {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Outcome>>> {
        self.waiting.lock().expect("nothing panics while holding the table")
    }

    /// Registers a request; gives its number and where its answer will come.
    pub fn begin(&self) -> (u64, oneshot::Receiver<Outcome>) {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.table().insert(number, sender);
        (number, receiver)
    }

    /// Delivers; false when nobody waits.
    pub fn deliver(&self, number: u64, outcome: Outcome) -> bool {
        let waiter = self.table().remove(&number);
        waiter.is_some_and(|waiter| waiter.send(outcome).is_ok())
    }

    /// Forgets a request; true when it was still waiting.
    pub fn remove(&self, number: u64) -> bool {
        self.table().remove(&number).is_some()
    }

    /// Lets all waiters go without an outcome.
    pub fn clear(&self) {
        self.table().clear();
    }
}
