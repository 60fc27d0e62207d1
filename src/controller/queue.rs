//! The work queue: keys that are due, each handled by one worker at a time.
//!
//! A key that is asked for again while it is handled is handled once more afterwards. A key that
//! failed comes back after a delay of its own, which doubles with each failure and is forgotten on
//! success; an event brings it back at once.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// How the handling of a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something happens.
    Done,
    /// Come back after this long at the latest.
    Wait(Duration),
    /// It failed; come back with backoff.
    Failed,
}

impl Outcome {
    /// Of two the one that comes back first.
    #[must_use]
    pub fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::Failed, _) | (_, Self::Failed) => Self::Failed,
            (Self::Done, one) | (one, Self::Done) => one,
            (Self::Wait(one), Self::Wait(two)) => Self::Wait(one.min(two)),
        }
    }
}

/// Keys that are due.
#[derive(Debug)]
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    /// Keys by when they are due; none that is being handled.
    due: BTreeSet<(Instant, K)>,
    slots: HashMap<K, Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    due: Option<Instant>,
    running: bool,
    failures: u32,
}

impl<K: Clone + Eq + Hash + Ord> Default for Queue<K> {
    fn default() -> Self {
        let state = State { due: BTreeSet::new(), slots: HashMap::new() };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// Asks for a key to be handled now.
    pub fn push(&self, key: K) {
        self.lock().schedule(key, Instant::now());
        self.changed.notify_one();
    }

    /// How many keys are waiting, due or not.
    pub fn len(&self) -> usize {
        self.lock().due.len()
    }

    /// Whether no key is waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key that is due. It must be given back with [`Queue::finish`].
    pub async fn next(&self) -> K {
        loop {
            let changed = self.changed.notified();
            let next = self.lock().take(Instant::now());
            match next {
                Ok(key) => {
                    // There may be more for another worker.
                    self.changed.notify_one();
                    return key;
                }
                Err(Some(at)) => {
                    tokio::select! {
                        () = changed => {}
                        () = sleep_until(at) => {}
                    }
                }
                Err(None) => changed.await,
            }
        }
    }

    /// Gives a key back; tells after how many failures in a row.
    pub fn finish(&self, key: &K, outcome: Outcome) -> u32 {
        let now = Instant::now();
        let mut state = self.lock();
        let slot = state.slots.entry(key.clone()).or_default();
        slot.running = false;
        slot.failures = if outcome == Outcome::Failed { slot.failures + 1 } else { 0 };
        let failures = slot.failures;
        let asked_meanwhile = slot.due.take();
        let back = match outcome {
            Outcome::Done => None,
            Outcome::Wait(delay) => Some(now + delay),
            Outcome::Failed => Some(now + delay_after(failures)),
        };
        match (asked_meanwhile, back) {
            (None, None) => {
                state.slots.remove(key);
            }
            (Some(at), None) | (None, Some(at)) => state.schedule(key.clone(), at),
            (Some(one), Some(two)) => state.schedule(key.clone(), one.min(two)),
        }
        drop(state);
        self.changed.notify_one();
        failures
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    fn schedule(&mut self, key: K, at: Instant) {
        let slot = self.slots.entry(key.clone()).or_default();
        let earlier = slot.due.is_none_or(|due| at < due);
        if !earlier {
            return;
        }
        let before = slot.due.replace(at);
        if slot.running {
            return;
        }
        if let Some(before) = before {
            self.due.remove(&(before, key.clone()));
        }
        self.due.insert((at, key));
    }

    fn take(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        match self.due.first() {
            Some((at, _)) if *at <= now => {}
            first => return Err(first.map(|(at, _)| *at)),
        }
        let (_, key) = self.due.pop_first().expect("it was just seen");
        let slot = self.slots.entry(key.clone()).or_default();
        (slot.due, slot.running) = (None, true);
        Ok(key)
    }
}

fn delay_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    FIRST_DELAY.saturating_mul(1 << doublings).min(LONGEST_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_handled_by_one_worker_and_once_more_when_asked_meanwhile() {
        let queue = Queue::default();
        queue.push("a");
        queue.push("a");
        assert_eq!(queue.next().await, "a");
        queue.push("a");
        let other = tokio::time::timeout(Duration::from_secs(1), queue.next()).await;
        assert!(other.is_err(), "nobody else gets it");
        queue.finish(&"a", Outcome::Done);
        assert_eq!(queue.next().await, "a");
        queue.finish(&"a", Outcome::Done);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_and_an_event_comes_at_once() {
        let queue = Queue::default();
        queue.push(7);
        let mut gaps = vec![];
        for _ in 0..12 {
            let before = Instant::now();
            queue.next().await;
            gaps.push(before.elapsed().as_millis());
            queue.finish(&7, Outcome::Failed);
        }
        assert_eq!(gaps[1..4], [200, 400, 800]);
        assert_eq!(gaps.last(), Some(&60_000));
        queue.push(7);
        let before = Instant::now();
        queue.next().await;
        assert_eq!(before.elapsed().as_millis(), 0);
        queue.finish(&7, Outcome::Done);
        queue.push(7);
        queue.next().await;
        queue.finish(&7, Outcome::Failed);
        let before = Instant::now();
        queue.next().await;
        assert_eq!(before.elapsed().as_millis(), 200, "success resets the delay");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_early_when_something_happens() {
        let queue = Queue::default();
        queue.push(1);
        queue.next().await;
        queue.finish(&1, Outcome::Wait(Duration::from_secs(60)));
        let before = Instant::now();
        queue.push(1);
        queue.next().await;
        assert_eq!(before.elapsed().as_millis(), 0);
    }
}
