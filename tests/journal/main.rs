//! The journal as those who use it see it: one suite over every store; `file` and `postgres` have
//! what only one of them can suffer.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod file;
mod postgres;
#[path = "../support/postgres.rs"]
mod server;
mod tls;

use awaken_operator::{
    domain::record::{Entry, Kind, Outcome, Record},
    journal::{
        Append, AppendError, Chain, Position, Read,
        memory::Memory,
        sqlite::{Durability, Sqlite},
    },
    process::metrics::Metrics,
};
use futures::future::join_all;
use jiff::Timestamp;
use rstest::rstest;
use std::{collections::HashMap, path::PathBuf, sync::Arc};
use tempfile::TempDir;

trait Journal: Append + Read {}
impl<T: Append + Read> Journal for T {}

#[derive(Clone, Copy, Debug)]
enum Store {
    Memory,
    File,
    FileRelaxed,
    Postgres,
    PostgresRelaxed,
}

/// A journal, and the folder that lives as long.
async fn journal(store: Store) -> (Arc<dyn Journal>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file =
        |durability| Arc::new(Sqlite::open(&path(&dir), durability, &Metrics::new()).unwrap());
    let database = async |relaxed| {
        let url = server::shared().database();
        Arc::new(postgres::open(&url, relaxed).await.unwrap())
    };
    let journal: Arc<dyn Journal> = match store {
        Store::Memory => Arc::new(Memory::new()),
        Store::File => file(Durability::Full),
        Store::FileRelaxed => file(Durability::Relaxed),
        Store::Postgres => database(false).await,
        Store::PostgresRelaxed => database(true).await,
    };
    (journal, dir)
}

fn path(dir: &TempDir) -> PathBuf {
    dir.path().join("journal.db")
}

fn session(uid: &str) -> Chain {
    Chain::Session(uid.into())
}

fn entry(kind: Kind, call: &str) -> Entry {
    let mut entry = Entry::new(Timestamp::new(1_800_000_000, 123_456_000).unwrap(), kind);
    entry.call = (!call.is_empty()).then(|| call.into());
    entry.outcome = (kind == Kind::Outcome).then_some(Outcome::Succeeded);
    entry.tool = Some("read \"é\"".into());
    entry
}

fn calls(records: &[Record]) -> Vec<&str> {
    records.iter().map(|r| r.entry.call.as_deref().unwrap_or_default()).collect()
}

#[rstest]
#[tokio::test]
async fn records_come_back_as_they_were_appended(
    #[values(
        Store::Memory,
        Store::File,
        Store::FileRelaxed,
        Store::Postgres,
        Store::PostgresRelaxed
    )]
    store: Store,
) {
    let (journal, _dir) = journal(store).await;
    let (a, b) = (session("a"), Chain::Incarnation("a".into()));
    let mut places = vec![];
    for (kind, call) in
        [(Kind::Intent, "c1"), (Kind::Lifecycle, ""), (Kind::Refusal, "c0"), (Kind::Outcome, "c1")]
    {
        places.push(journal.append(&a, 1, entry(kind, call)).await.unwrap());
    }
    let other = journal.append(&b, 0, entry(Kind::Refusal, "")).await.unwrap();
    assert_eq!(other.seq, 1);

    let records = journal.page(&a, 0, 1000).await.unwrap();
    assert_eq!(records.iter().map(|r| r.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(calls(&records), ["c1", "", "c0", "c1"]);
    assert_eq!(records[0].entry, entry(Kind::Intent, "c1"));
    assert_eq!(records[0].previous, "0".repeat(64));
    for (record, place) in records.iter().zip(&places) {
        assert_eq!(Position { seq: record.seq, hash: record.hash.clone() }, *place);
    }
    for pair in records.windows(2) {
        assert_eq!(pair[0].hash, pair[1].previous);
    }
    assert_eq!(journal.page(&a, 1, 2).await.unwrap(), records[1..3]);
    assert_eq!(journal.page(&a, 4, 2).await.unwrap(), []);
    assert_eq!(journal.page(&a, u64::MAX, 2).await.unwrap(), []);
    assert_eq!(journal.page(&session("none"), 0, 2).await.unwrap(), []);
    for (chain, end) in [(&a, 4), (&b, 1), (&session("none"), 0)] {
        assert_eq!(journal.end(chain).await, Ok(end));
    }
    assert_eq!(journal.chains().await.unwrap().len(), 2);
    assert_eq!(journal.verify(&a).await, Ok(4));
    assert_eq!(journal.verify(&b).await, Ok(1));
    assert_eq!(journal.verify(&session("none")).await, Ok(0));
}

#[rstest]
#[tokio::test]
async fn a_page_has_at_most_a_thousand(
    #[values(Store::Memory, Store::FileRelaxed, Store::PostgresRelaxed)] store: Store,
) {
    let (journal, _dir) = journal(store).await;
    let chain = session("a");
    join_all((0..1100).map(|_| journal.append(&chain, 1, entry(Kind::Refusal, "")))).await;
    assert_eq!(journal.page(&chain, 0, usize::MAX).await.unwrap().len(), 1000);
    assert_eq!(journal.page(&chain, 1000, usize::MAX).await.unwrap().len(), 100);
    assert_eq!(journal.verify(&chain).await, Ok(1100));
}

#[rstest]
#[tokio::test]
async fn the_first_outcome_of_a_call_is_the_only_one(
    #[values(Store::Memory, Store::File, Store::Postgres)] store: Store,
) {
    let (journal, _dir) = journal(store).await;
    let (chain, other) = (session("a"), session("b"));
    let append = |chain, kind, call| journal.append(chain, 1, entry(kind, call));
    assert_eq!(append(&chain, Kind::Outcome, "c1").await, Err(AppendError::NoIntent));
    append(&chain, Kind::Intent, "c1").await.unwrap();
    append(&chain, Kind::Intent, "c2").await.unwrap();
    assert_eq!(append(&other, Kind::Outcome, "c1").await, Err(AppendError::NoIntent));
    for again in [&chain, &other] {
        let second = append(again, Kind::Intent, "c1").await;
        assert!(matches!(second, Err(AppendError::BadEntry(_))), "{second:?}");
    }
    assert_eq!(calls(&journal.open_intents(&chain).await.unwrap()), ["c1", "c2"]);
    assert_eq!(append(&chain, Kind::Outcome, "c1").await.unwrap().seq, 3);
    assert_eq!(append(&chain, Kind::Outcome, "c1").await, Err(AppendError::AlreadyEnded));
    assert!(matches!(append(&chain, Kind::Intent, "c1").await, Err(AppendError::BadEntry(_))));
    assert!(matches!(append(&chain, Kind::Intent, "").await, Err(AppendError::BadEntry(_))));
    let nothing = Entry { outcome: None, ..entry(Kind::Outcome, "c2") };
    assert!(matches!(journal.append(&chain, 1, nothing).await, Err(AppendError::BadEntry(_))));
    assert_eq!(calls(&journal.open_intents(&chain).await.unwrap()), ["c2"]);
    assert_eq!(journal.open_intents(&other).await.unwrap(), []);
    assert_eq!(journal.verify(&chain).await, Ok(3));
}

#[rstest]
#[tokio::test]
async fn of_many_outcomes_at_once_one_is_kept(
    #[values(Store::Memory, Store::File, Store::Postgres)] store: Store,
) {
    let (journal, _dir) = journal(store).await;
    let chain = session("a");
    journal.append(&chain, 1, entry(Kind::Intent, "c1")).await.unwrap();
    let ends =
        join_all((0..20).map(|_| journal.append(&chain, 1, entry(Kind::Outcome, "c1")))).await;
    assert_eq!(ends.iter().filter(|r| r.is_ok()).count(), 1);
    assert_eq!(ends.iter().filter(|r| **r == Err(AppendError::AlreadyEnded)).count(), 19);
    assert_eq!(journal.verify(&chain).await, Ok(2));
}

#[rstest]
#[tokio::test]
async fn a_lower_epoch_is_fenced(
    #[values(Store::Memory, Store::File, Store::Postgres)] store: Store,
) {
    let (journal, _dir) = journal(store).await;
    let (chain, other) = (session("a"), session("b"));
    let append = |chain, epoch| journal.append(chain, epoch, entry(Kind::Lifecycle, ""));
    journal.raise_epoch(&chain, 3).await.unwrap();
    journal.raise_epoch(&chain, 3).await.unwrap();
    let fenced = |epoch, highest| AppendError::Fenced { epoch, highest };
    assert_eq!(journal.raise_epoch(&chain, 2).await, Err(fenced(2, 3)));
    assert_eq!(append(&chain, 2).await, Err(fenced(2, 3)));
    append(&chain, 3).await.unwrap();
    append(&other, 1).await.unwrap();
    journal.raise_epoch(&chain, 4).await.unwrap();
    assert_eq!(append(&chain, 3).await, Err(fenced(3, 4)));
    let own = Chain::Incarnation("i".into());
    journal.raise_epoch(&own, 5).await.unwrap();
    append(&own, 0).await.unwrap();
    assert_eq!(journal.verify(&chain).await, Ok(1));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_appends_at_once_leave_no_gap(
    #[values(Store::Memory, Store::File, Store::Postgres)] store: Store,
) {
    let (journal, _dir) = journal(store).await;
    let tasks = (0..1000).map(|i| {
        let journal = journal.clone();
        tokio::spawn(async move {
            let chain = session(&format!("s{}", i % 10));
            (
                chain.clone(),
                journal.append(&chain, 1, entry(Kind::Intent, &format!("c{i}"))).await.unwrap(),
            )
        })
    });
    let mut places: HashMap<Chain, Vec<Position>> = HashMap::new();
    for done in join_all(tasks).await {
        let (chain, place) = done.unwrap();
        places.entry(chain).or_default().push(place);
    }
    for (chain, mut places) in places {
        places.sort_by_key(|p| p.seq);
        assert!(places.iter().map(|p| p.seq).eq(1..=100));
        assert_eq!(journal.verify(&chain).await, Ok(100));
        let stored = journal.page(&chain, 0, 1000).await.unwrap();
        assert!(stored.iter().map(|r| &r.hash).eq(places.iter().map(|p| &p.hash)));
        assert_eq!(journal.open_intents(&chain).await.unwrap(), stored);
    }
}

#[rstest]
#[tokio::test]
async fn an_append_that_nobody_waits_for_is_written(
    #[values(Store::Memory, Store::File, Store::Postgres)] store: Store,
) {
    let (journal, _dir) = journal(store).await;
    let chain = session("a");
    drop(journal.append(&chain, 1, entry(Kind::Intent, "c1")));
    let next = journal.append(&chain, 1, entry(Kind::Outcome, "c1")).await.unwrap();
    assert_eq!(next.seq, 2);
}

#[tokio::test]
async fn a_broken_journal_in_memory_refuses_and_recovers() {
    let (journal, chain) = (Memory::new(), session("a"));
    journal.break_with(Some("disk full"));
    let refused = journal.append(&chain, 1, entry(Kind::Refusal, "")).await;
    assert_eq!(refused, Err(AppendError::Unavailable("disk full".into())));
    assert!(journal.page(&chain, 0, 1).await.is_err());
    journal.break_with(None);
    assert_eq!(journal.append(&chain, 1, entry(Kind::Refusal, "")).await.unwrap().seq, 1);
}

#[test]
fn a_chain_is_read_as_it_is_written() {
    for chain in [session("a/b"), Chain::Incarnation("i".into())] {
        assert_eq!(chain.to_string().parse(), Ok(chain));
    }
    assert!("session/".parse::<Chain>().is_err() && "pod/x".parse::<Chain>().is_err());
}
