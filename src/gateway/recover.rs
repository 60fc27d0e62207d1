//! Calls that were begun and never ended get their end on record, `OutcomeUnknown`: those of a
//! Session after a take-over, before this host's first receipt; those of management tools when the
//! start of the gateway that ran them is gone. Nothing is sent again.

use super::peers::Peers;
use crate::{
    domain::{
        Clock,
        reason::Reason,
        record::{Entry, Kind, Outcome},
    },
    journal::{Append, AppendError, Chain, Read, ReadError},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Why open calls could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// They cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Their end cannot be written.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// How long after a failure another try is made: the first time, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Ends what is open in the chains of starts of gateways that are not alive. Gives how many calls
/// that were. A chain that fails keeps no other from its end.
///
/// # Errors
/// The journal's, the first.
pub async fn lost_starts(
    (append, read): (&dyn Append, &dyn Read),
    clock: &dyn Clock,
    alive: &HashSet<String>,
) -> Result<usize, RecoverError> {
    let (mut ended, mut failed) = (0, None);
    for chain in read.chains().await? {
        if matches!(&chain, Chain::Incarnation(id) if !alive.contains(id)) {
            match end_open((append, read), clock, &chain, 0).await {
                Ok(calls) => ended += calls,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
    }
    failed.map_or(Ok(ended), Err)
}

/// For a journal that several gateways write: ends what those left open that are gone. One that was
/// seen alive is gone when its Lease is; another had `settling` to show one. What fails is tried
/// again until it works. Runs until it is dropped.
pub async fn follow_lost(
    (append, read): (Arc<dyn Append>, Arc<dyn Read>),
    clock: Arc<dyn Clock>,
    peers: Peers,
    own: String,
    settling: Duration,
) {
    let mut changes = peers.changes();
    // the table keeps its sender, so this ends with the first list
    let _ = changes.wait_for(|version| *version > 0).await;
    let (mut lost, mut pause) = (Lost { settling, ..Lost::default() }, AGAIN.0);
    loop {
        changes.mark_unchanged();
        let mut alive = peers.incarnations();
        alive.insert(own.clone());
        let ended = lost.end((&*append, &*read), &*clock, alive).await;
        let wait = match ended {
            Ok(next) => {
                pause = AGAIN.0;
                next
            }
            Err(error) => {
                tracing::error!(%error, "calls of gateways that are gone stay open until the next try");
                let wait = pause;
                pause = (pause * 2).min(AGAIN.1);
                Some(wait)
            }
        };
        // without a next time only a change wakes it
        let next = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = next => {}
        }
    }
}

/// What is known of the starts of gateways.
#[derive(Default)]
struct Lost {
    settling: Duration,
    /// Had a Lease at some time.
    seen: HashSet<String>,
    /// Has records, but was never seen with a Lease: since when that is known.
    unseen: HashMap<String, Instant>,
    /// Is gone, and has nothing open any more.
    done: HashSet<String>,
}

impl Lost {
    /// Ends what can be ended now. Gives how long to wait until more can be, if nothing changes.
    async fn end(
        &mut self,
        (append, read): (&dyn Append, &dyn Read),
        clock: &dyn Clock,
        alive: HashSet<String>,
    ) -> Result<Option<Duration>, RecoverError> {
        self.done.retain(|start| !alive.contains(start));
        self.unseen.retain(|start, _| !alive.contains(start));
        self.seen.extend(alive.iter().cloned());
        let (mut next, mut failed) = (None, None);
        for chain in read.chains().await? {
            let Chain::Incarnation(start) = &chain else { continue };
            if alive.contains(start) || self.done.contains(start) {
                continue;
            }
            if !self.seen.contains(start) {
                let since = *self.unseen.entry(start.clone()).or_insert_with(Instant::now);
                let left = self.settling.saturating_sub(since.elapsed());
                if !left.is_zero() {
                    next = Some(next.map_or(left, |next: Duration| next.min(left)));
                    continue;
                }
            }
            match end_open((append, read), clock, &chain, 0).await {
                Ok(ended) => {
                    if ended > 0 {
                        tracing::warn!(
                            ended,
                            start,
                            "calls that a gateway which is gone left open"
                        );
                    }
                    self.unseen.remove(start);
                    self.done.insert(start.clone());
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(next), Err)
    }
}

/// Ends what an earlier host left open in the chain of a Session whose epoch this host raised. Gives
/// how many calls that were.
///
/// # Errors
/// The journal's; `Fenced` when a later host has the Session already.
pub async fn end_open(
    (append, read): (&dyn Append, &dyn Read),
    clock: &dyn Clock,
    chain: &Chain,
    epoch: i64,
) -> Result<usize, RecoverError> {
    let open = read.open_intents(chain).await?;
    for intent in &open {
        match append.append(chain, epoch, unknown(&intent.entry, clock)).await {
            // the earlier host's outcome came in between: the first one counts
            Ok(_) | Err(AppendError::AlreadyEnded) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(open.len())
}

fn unknown(intent: &Entry, clock: &dyn Clock) -> Entry {
    Entry {
        call: intent.call.clone(),
        subject: intent.subject.clone(),
        session: intent.session.clone(),
        attachment: intent.attachment.clone(),
        generation: intent.generation,
        tool: intent.tool.clone(),
        outcome: Some(Outcome::OutcomeUnknown),
        reason: Some(Reason::HostLost),
        message: Some("the gateway that ran the call is gone; the call may have run".to_owned()),
        ..Entry::new(clock.now(), Kind::Outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::record::Record,
        journal::{Position, memory::Memory},
        process::clock::SystemClock,
    };
    use futures::{FutureExt as _, future::BoxFuture};
    use rstest::rstest;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    fn lease(name: &str, holder: &str) -> k8s_openapi::api::coordination::v1::Lease {
        let annotations = json!({"awaken.dev/address": "10.0.0.1:8081"});
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"holderIdentity": holder}}))
        .unwrap()
    }

    async fn begin(journal: &Memory, incarnation: &str) -> Chain {
        let chain = Chain::Incarnation(incarnation.to_owned());
        let mut intent = Entry::new(jiff::Timestamp::UNIX_EPOCH, Kind::Intent);
        intent.call = Some(format!("call of {incarnation}"));
        journal.append(&chain, 0, intent).await.unwrap();
        chain
    }

    /// Fails the first looks at the chains, and then the first ends.
    struct Faulty {
        inner: Memory,
        looks: AtomicUsize,
        ends: AtomicUsize,
    }

    fn faulty(inner: &Memory, looks: usize, ends: usize) -> Arc<Faulty> {
        let (looks, ends) = (looks.into(), ends.into());
        Arc::new(Faulty { inner: inner.clone(), looks, ends })
    }

    fn fails(times: &AtomicUsize) -> bool {
        times.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    impl Append for Faulty {
        fn append<'a>(
            &'a self,
            chain: &'a Chain,
            epoch: i64,
            entry: Entry,
        ) -> BoxFuture<'a, Result<Position, AppendError>> {
            if fails(&self.ends) {
                return async { Err(AppendError::Unavailable("away".to_owned())) }.boxed();
            }
            self.inner.append(chain, epoch, entry)
        }

        fn raise_epoch<'a>(
            &'a self,
            chain: &'a Chain,
            epoch: i64,
        ) -> BoxFuture<'a, Result<(), AppendError>> {
            self.inner.raise_epoch(chain, epoch)
        }
    }

    impl Read for Faulty {
        fn page<'a>(
            &'a self,
            chain: &'a Chain,
            after: u64,
            limit: usize,
        ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>> {
            self.inner.page(chain, after, limit)
        }

        fn end<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>> {
            self.inner.end(chain)
        }

        fn open_intents<'a>(
            &'a self,
            chain: &'a Chain,
        ) -> BoxFuture<'a, Result<Vec<Record>, ReadError>> {
            self.inner.open_intents(chain)
        }

        fn chains(&self) -> BoxFuture<'_, Result<Vec<Chain>, ReadError>> {
            if fails(&self.looks) {
                return async { Err(ReadError::Unavailable("away".to_owned())) }.boxed();
            }
            self.inner.chains()
        }

        fn verify<'a>(&'a self, chain: &'a Chain) -> BoxFuture<'a, Result<u64, ReadError>> {
            self.inner.verify(chain)
        }
    }

    fn ended(journal: &Memory, chain: &Chain) -> bool {
        let outcome = |r: &Record| r.entry.outcome == Some(Outcome::OutcomeUnknown);
        journal.records(chain).iter().any(outcome)
    }

    #[tokio::test(start_paused = true)]
    async fn only_gateways_that_are_gone_have_their_calls_ended() {
        let (journal, peers) = (Memory::new(), Peers::default());
        let mut chains = vec![];
        for incarnation in ["own", "alive", "starting", "long-gone"] {
            chains.push(begin(&journal, incarnation).await);
        }
        let settling = Duration::from_secs(15);
        let parts: (Arc<dyn Append>, Arc<dyn Read>) =
            (Arc::new(journal.clone()), Arc::new(journal.clone()));
        let (clock, own) = (Arc::new(SystemClock), "own".to_owned());
        let following = tokio::spawn(follow_lost(parts, clock, peers.clone(), own, settling));
        let states = || chains.iter().map(|c| ended(&journal, c)).collect::<Vec<_>>();

        tokio::time::sleep(settling * 2).await;
        assert_eq!(states(), [false; 4], "before anything was listed");
        peers.apply(&lease("gw-a", "alive"));
        tokio::time::sleep(settling / 2).await;
        peers.apply(&lease("gw-b", "starting"));
        tokio::time::sleep(settling).await;
        assert_eq!(states(), [false, false, false, true]);

        peers.apply(&lease("gw-b", "another start"));
        tokio::time::sleep(settling).await;
        assert_eq!(states(), [false, false, true, true]);
        following.abort();
    }

    /// The database is away when the gateway dies.
    #[rstest]
    #[case::not_read(2, 0)]
    #[case::not_written(0, 2)]
    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_ended_is_tried_again(#[case] looks: usize, #[case] ends: usize) {
        let (journal, peers) = (Memory::new(), Peers::default());
        let chain = begin(&journal, "b-1").await;
        let faulty = faulty(&journal, looks, ends);
        let parts: (Arc<dyn Append>, Arc<dyn Read>) = (faulty.clone(), faulty.clone());
        let (clock, own) = (Arc::new(SystemClock), "own".to_owned());
        peers.apply(&lease("gw-b", "b-1"));
        let settling = Duration::from_secs(15);
        let following = tokio::spawn(follow_lost(parts, clock, peers.clone(), own, settling));
        tokio::time::sleep(settling).await;
        assert!(!ended(&journal, &chain), "while it lives");
        faulty.looks.store(looks, Relaxed);
        peers.apply(&lease("gw-b", ""));
        tokio::time::sleep(settling).await;
        assert!(ended(&journal, &chain));
        following.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_nobody_saw_alive_is_ended_too() {
        let (journal, peers) = (Memory::new(), Peers::default());
        let parts: (Arc<dyn Append>, Arc<dyn Read>) =
            (Arc::new(journal.clone()), Arc::new(journal.clone()));
        let (clock, own) = (Arc::new(SystemClock), "own".to_owned());
        peers.apply(&lease("gw-a", "own"));
        let settling = Duration::from_secs(15);
        let following = tokio::spawn(follow_lost(parts, clock, peers.clone(), own, settling));
        tokio::time::sleep(settling * 2).await;
        let chain = begin(&journal, "short").await;
        // both changes come before the follower looks
        peers.apply(&lease("gw-b", "short"));
        peers.apply(&lease("gw-b", ""));
        tokio::time::sleep(settling * 2).await;
        assert!(ended(&journal, &chain));
        following.abort();
    }

    #[tokio::test]
    async fn a_chain_that_fails_keeps_no_other_from_its_end() {
        let journal = Memory::new();
        let chains = [begin(&journal, "a").await, begin(&journal, "b").await];
        let faulty = faulty(&journal, 0, 1);
        let result = lost_starts((&*faulty, &*faulty), &SystemClock, &HashSet::new()).await;
        assert!(result.is_err());
        assert_eq!(chains.iter().filter(|c| ended(&journal, c)).count(), 1);
    }
}
