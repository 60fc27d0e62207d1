//! What only a database can suffer: two writers, a lost connection, a server that is killed, one
//! that hangs, a record that was changed.

use super::{calls, entry, server, session};
use awaken_operator::{
    domain::record::{Entry, Kind, Record},
    journal::{
        Append, AppendError, Chain, Position, Read as _, ReadError,
        postgres::{Database, OpenError, Postgres, Url},
        tool,
    },
    process::metrics::Metrics,
};
use futures::future::join_all;
use rstest::rstest;
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, UnixStream},
};

fn tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

pub async fn open(url: &str, relaxed: bool) -> Result<Postgres, OpenError> {
    Postgres::open(Database::new(Url::Text(url.into()), tls(), relaxed)?, &Metrics::new()).await
}

/// The name of the database of a URL.
fn name(url: &str) -> &str {
    url.split(' ').find_map(|part| part.strip_prefix("dbname=")).unwrap()
}

/// Two gateways, one after the other the host of a Session.
#[tokio::test]
async fn of_two_hosts_the_former_is_fenced_and_the_chain_goes_on() {
    let url = server::shared().database();
    let (former, next) = (open(&url, false).await.unwrap(), open(&url, false).await.unwrap());
    let (chain, other) = (session("a"), session("b"));
    former.raise_epoch(&chain, 1).await.unwrap();
    former.append(&chain, 1, entry(Kind::Intent, "c1")).await.unwrap();
    former.append(&other, 1, entry(Kind::Intent, "o1")).await.unwrap();

    next.raise_epoch(&chain, 2).await.unwrap();
    assert_eq!(calls(&next.open_intents(&chain).await.unwrap()), ["c1"]);
    let mut late = former.append(&chain, 1, entry(Kind::Outcome, "c1")).await;
    assert_eq!(late, Err(AppendError::Fenced { epoch: 1, highest: 2 }));
    late = former.append(&chain, 1, entry(Kind::Intent, "c2")).await;
    assert_eq!(late, Err(AppendError::Fenced { epoch: 1, highest: 2 }));
    assert_eq!(
        former.raise_epoch(&chain, 1).await,
        Err(AppendError::Fenced { epoch: 1, highest: 2 })
    );
    // what it still hosts is not touched by that
    former.append(&other, 1, entry(Kind::Outcome, "o1")).await.unwrap();
    assert_eq!(next.append(&chain, 2, entry(Kind::Outcome, "c1")).await.unwrap().seq, 2);
    let twice = next.append(&chain, 2, entry(Kind::Outcome, "c1")).await;
    assert_eq!(twice, Err(AppendError::AlreadyEnded));
    assert_eq!(next.verify(&chain).await, Ok(2));

    // and back again: what the former remembers of the chain is old
    former.raise_epoch(&chain, 3).await.unwrap();
    assert_eq!(former.append(&chain, 3, entry(Kind::Intent, "c3")).await.unwrap().seq, 3);
    let twice = former.append(&chain, 3, entry(Kind::Outcome, "c1")).await;
    assert_eq!(twice, Err(AppendError::AlreadyEnded));
    assert_eq!(former.verify(&chain).await, Ok(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_writers_of_one_chain_leave_no_gap() {
    let url = server::shared().database();
    let journals = [open(&url, true).await.unwrap(), open(&url, true).await.unwrap()];
    let tasks = (0..400).map(|i| {
        let journal = journals[i % 2].clone();
        tokio::spawn(async move {
            let chain = session(&format!("s{}", i % 3));
            journal.append(&chain, 1, entry(Kind::Intent, &format!("c{i}"))).await
        })
    });
    let results = join_all(tasks).await;
    let taken = results.iter().filter(|r| r.as_ref().unwrap().is_ok()).count() as u64;
    let mut stored = 0;
    for chain in journals[0].chains().await.unwrap() {
        stored += journals[1].verify(&chain).await.unwrap();
    }
    assert_eq!(stored, taken);
    assert!(taken > 200, "{taken}");
}

#[tokio::test]
async fn gateways_may_begin_at_the_same_time() {
    let url = server::shared().database();
    for opened in join_all((0..8).map(|_| open(&url, false))).await {
        opened.unwrap();
    }
}

/// Appends call after call until it is told to stop; gives what was answered.
async fn load(journal: Postgres, name: String, stop: Arc<AtomicBool>) -> Vec<(Chain, Position)> {
    let (chain, mut taken) = (session(&name), vec![]);
    for i in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        for kind in [Kind::Intent, Kind::Outcome] {
            match journal.append(&chain, 1, entry(kind, &format!("{name}-{i}"))).await {
                Ok(position) => taken.push((chain.clone(), position)),
                // an intent that was not answered may be there, or not
                Err(AppendError::Unavailable(_) | AppendError::NoIntent) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
    taken
}

async fn every_answer_is_there(journal: &Postgres, taken: Vec<(Chain, Position)>) {
    let mut stored: HashMap<(Chain, u64), String> = HashMap::new();
    for chain in journal.chains().await.unwrap() {
        let count = journal.verify(&chain).await.unwrap();
        for after in (0..count).step_by(1000) {
            for record in journal.page(&chain, after, 1000).await.unwrap() {
                stored.insert((chain.clone(), record.seq), record.hash);
            }
        }
    }
    for (chain, Position { seq, hash }) in taken {
        assert_eq!(stored.get(&(chain.clone(), seq)), Some(&hash), "{chain} {seq}");
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let all = tokio::time::timeout(Duration::from_secs(60), async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    all.await.unwrap_or_else(|_| panic!("not within a minute: {what}"));
}

/// Connections that are cut at any moment: nothing is lost, written twice or refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_not_noticed() {
    let url = server::shared().database();
    let (journal, stop) = (open(&url, false).await.unwrap(), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..8)
        .map(|i| tokio::spawn(load(journal.clone(), format!("s{i}"), stop.clone())))
        .collect();
    let cut = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{}'",
        name(&url)
    );
    for round in 1..=10 {
        let before = journal.verify(&session("s0")).await.unwrap();
        until("it writes", async || journal.verify(&session("s0")).await.unwrap() > before + round)
            .await;
        assert_ne!(server::shared().sql("postgres", &cut), "0");
    }
    stop.store(true, Ordering::Relaxed);
    let mut taken = vec![];
    for task in tasks {
        taken.extend(task.await.unwrap());
    }
    for i in 0..8 {
        let chain = session(&format!("s{i}"));
        let own: Vec<u64> = taken.iter().filter(|t| t.0 == chain).map(|t| t.1.seq).collect();
        assert!(own.iter().copied().eq(1..=own.len() as u64), "every append of {chain} once");
        assert_eq!(journal.verify(&chain).await, Ok(own.len() as u64));
    }
    every_answer_is_there(&journal, taken).await;
}

/// A way to the server that swallows an answer, and the connection with it, each time it is armed.
async fn swallowing(socket: PathBuf, armed: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = UnixStream::connect(&socket).await.unwrap();
            let armed = armed.clone();
            tokio::spawn(async move {
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let up =
                    tokio::spawn(
                        async move { tokio::io::copy(&mut from_client, &mut to_server).await },
                    );
                let mut bytes = vec![0; 64 << 10];
                while let Ok(1..) =
                    from_server.read(&mut bytes).await.inspect(|n| bytes.truncate(*n))
                {
                    if armed.swap(false, Ordering::SeqCst) {
                        break;
                    }
                    to_client.write_all(&bytes).await.unwrap();
                    bytes.resize(64 << 10, 0);
                }
                up.abort();
            });
        }
    });
    port
}

/// The statement was carried out, and nobody heard of it.
#[tokio::test]
async fn what_is_written_though_its_answer_was_lost_is_not_written_again() {
    let url = server::shared().database();
    let armed = Arc::new(AtomicBool::new(false));
    let port = swallowing(server::shared().socket(), armed.clone()).await;
    let database = name(&url);
    let through =
        format!("host=127.0.0.1 port={port} user=journal dbname={database} sslmode=disable");
    let (journal, chain) = (open(&through, false).await.unwrap(), session("a"));
    journal.append(&chain, 1, entry(Kind::Refusal, "")).await.unwrap();
    for (seq, (kind, call)) in
        [(Kind::Intent, "c1"), (Kind::Outcome, "c1"), (Kind::Refusal, "")].into_iter().enumerate()
    {
        armed.store(true, Ordering::SeqCst);
        let position = journal.append(&chain, 1, entry(kind, call)).await.unwrap();
        assert_eq!(position.seq, seq as u64 + 2);
        assert!(!armed.load(Ordering::SeqCst), "an answer was swallowed");
    }
    assert_eq!(journal.verify(&chain).await, Ok(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_was_answered_before_a_crash_is_there_and_it_comes_back_by_itself() {
    let mut own = server::Server::start();
    let url = own.database();
    let (journal, stop) = (open(&url, false).await.unwrap(), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..8)
        .map(|i| tokio::spawn(load(journal.clone(), format!("s{i}"), stop.clone())))
        .collect();
    for _ in 0..3 {
        let before = journal.verify(&session("s0")).await.unwrap();
        until("it writes", async || {
            journal.verify(&session("s0")).await.is_ok_and(|count| count > before + 5)
        })
        .await;
        own.kill();
        own.again();
    }
    let before = journal.verify(&session("s0")).await.unwrap();
    until("it writes", async || journal.verify(&session("s0")).await.unwrap() > before + 5).await;
    stop.store(true, Ordering::Relaxed);
    let mut taken = vec![];
    for task in tasks {
        taken.extend(task.await.unwrap());
    }
    every_answer_is_there(&journal, taken).await;
}

#[tokio::test]
async fn without_a_database_appends_are_refused_until_it_is_back() {
    let mut own = server::Server::start();
    let url = own.database();
    let (journal, chain) = (open(&url, false).await.unwrap(), session("a"));
    journal.append(&chain, 1, entry(Kind::Intent, "c1")).await.unwrap();
    own.kill();
    for kind in [Kind::Outcome, Kind::Refusal] {
        let refused = journal.append(&chain, 1, entry(kind, "c1")).await;
        assert!(matches!(&refused, Err(AppendError::Unavailable(_))), "{refused:?}");
    }
    let read = journal.page(&chain, 0, 10).await;
    assert!(matches!(read, Err(ReadError::Unavailable(_))), "{read:?}");
    let again = open(&url, false).await;
    assert!(matches!(again, Err(OpenError::Connect(_))), "{again:?}", again = again.err());
    own.again();
    until("it writes", async || {
        journal.append(&chain, 1, entry(Kind::Outcome, "c1")).await.is_ok()
    })
    .await;
    assert_eq!(journal.verify(&chain).await, Ok(2));
}

/// A server that does not answer is given up after some seconds, and what it did write after all
/// is not written again.
#[tokio::test]
async fn a_hanging_database_is_given_up() {
    let own = server::Server::start();
    let url = own.database();
    let (journal, chain) = (open(&url, false).await.unwrap(), session("a"));
    journal.append(&chain, 1, entry(Kind::Intent, "c1")).await.unwrap();
    own.signal("STOP");
    let refused = journal.append(&chain, 1, entry(Kind::Outcome, "c1")).await;
    own.signal("CONT");
    assert!(matches!(&refused, Err(AppendError::Unavailable(_))), "{refused:?}");
    until("it writes", async || {
        let again = journal.append(&chain, 1, entry(Kind::Outcome, "c1")).await;
        again.is_ok() || again == Err(AppendError::AlreadyEnded)
    })
    .await;
    assert_eq!(journal.verify(&chain).await, Ok(2));
}

#[rstest]
#[case::entry(
    1,
    "UPDATE records SET entry = convert_to(replace(convert_from(entry, 'UTF8'), 'read', 'rm'), 'UTF8') WHERE seq = 1 AND chain = 1"
)]
#[case::byte_that_is_no_text(
    2,
    r"UPDATE records SET entry = set_byte(entry, 20, 255) WHERE seq = 2"
)]
#[case::kind(1, "UPDATE records SET kind = 2 WHERE seq = 1 AND chain = 1")]
#[case::call(3, "UPDATE records SET call = 'c3' WHERE seq = 3")]
#[case::hash(2, "UPDATE records SET hash = '' WHERE seq = 2")]
#[case::previous(2, "UPDATE records SET previous = hash WHERE seq = 2")]
#[case::gone_in_the_middle(3, "DELETE FROM records WHERE seq = 2")]
#[case::gone_at_the_end(3, "DELETE FROM records WHERE seq = 3")]
#[case::gone_at_the_end_with_its_note(
    4,
    "DELETE FROM records WHERE seq = 3; UPDATE chains SET seq = 4 WHERE id = 1"
)]
#[tokio::test]
async fn a_changed_record_is_found(#[case] bad: u64, #[case] change: &str) {
    let url = server::shared().database();
    let (journal, chain) = (open(&url, false).await.unwrap(), session("a"));
    for (kind, call) in [(Kind::Intent, "c1"), (Kind::Intent, "c2"), (Kind::Outcome, "c1")] {
        journal.append(&chain, 1, entry(kind, call)).await.unwrap();
    }
    journal.append(&session("b"), 1, entry(Kind::Refusal, "")).await.unwrap();
    server::shared().sql(name(&url), change);
    let bad = bad.min(3);
    let verified = journal.verify(&chain).await;
    assert!(matches!(verified, Err(ReadError::Corrupt { seq, .. }) if seq == bad), "{verified:?}");
    assert_eq!(journal.verify(&session("b")).await, Ok(1));
}

/// The tools read it too; a URL in a file is read again for each connection.
#[tokio::test]
async fn the_tools_read_a_database_in_use() {
    let (dir, url) = (tempfile::tempdir().unwrap(), server::shared().database());
    let file = dir.path().join("url");
    let database = || Database::new(Url::File(file.clone()), tls(), false);
    assert!(matches!(database().err(), Some(OpenError::Url(m)) if m.contains("cannot be read")));
    std::fs::write(&file, format!("{url}\n")).unwrap();
    let journal = Postgres::open(database().unwrap(), &Metrics::new()).await.unwrap();
    for (kind, call) in [(Kind::Intent, "c1"), (Kind::Outcome, "c1")] {
        journal.append(&session("a"), 1, entry(kind, call)).await.unwrap();
    }
    let source = tool::Source::database(database().unwrap());
    let mut text = vec![];
    let found = tool::verify(&source, &mut text).await.unwrap();
    assert_eq!(found, tool::Verified { chains: 1, records: 2, bad: 0 });
    assert!(String::from_utf8(text).unwrap().starts_with("session/a  2 records  "));
    let mut lines = vec![];
    assert_eq!(tool::export(&source, None, &mut lines).await.unwrap(), 2);
    let first = lines.split(|b| *b == b'\n').next().unwrap();
    let record: Record = serde_json::from_slice(first).unwrap();
    assert_eq!(record, journal.page(&session("a"), 0, 1).await.unwrap()[0]);

    server::shared().sql(name(&url), "UPDATE records SET kind = 2 WHERE seq = 1");
    assert_eq!(tool::verify(&source, &mut vec![]).await.unwrap().bad, 1);
    std::fs::write(&file, "nonsense").unwrap();
    let again = tool::Source::database(
        Database::new(Url::Text(url.as_str().into()), tls(), false).unwrap(),
    );
    assert_eq!(tool::verify(&again, &mut vec![]).await.unwrap().chains, 1);
}

#[tokio::test]
async fn a_later_schema_and_other_databases_are_left_alone() {
    let url = server::shared().database();
    open(&url, false).await.unwrap().close().await;
    server::shared().sql(name(&url), "UPDATE journal_schema SET version = 99");
    assert!(matches!(open(&url, false).await.err(), Some(OpenError::Newer(99))));
    let url = server::shared().database();
    server::shared().sql(name(&url), "CREATE TABLE records (x int)");
    let problem = open(&url, false).await.err().unwrap();
    assert!(matches!(&problem, OpenError::Database(m) if m.contains("records")), "{problem}");
    assert_eq!(server::shared().sql(name(&url), "SELECT to_regclass('chains')"), "");
}

/// The intent of a call that another chain has already.
#[tokio::test]
async fn one_bad_entry_does_not_spoil_those_beside_it() {
    let url = server::shared().database();
    let journal = open(&url, false).await.unwrap();
    journal.append(&session("a"), 1, entry(Kind::Intent, "c1")).await.unwrap();
    let all = join_all(["c0", "c1", "c2", "c2"].map(|call| {
        let journal = journal.clone();
        async move { journal.append(&session("b"), 1, entry(Kind::Intent, call)).await }
    }))
    .await;
    let bad = |r: &Result<Position, AppendError>| matches!(r, Err(AppendError::BadEntry(_)));
    assert!(all[0].is_ok() && bad(&all[1]) && all[2].is_ok() && bad(&all[3]), "{all:?}");
    assert_eq!(journal.verify(&session("b")).await, Ok(2));
    let large = Entry { message: Some("x".repeat(2 << 20)), ..entry(Kind::Refusal, "") };
    assert_eq!(journal.append(&session("b"), 1, large).await.unwrap().seq, 3);
}

#[tokio::test]
async fn closing_writes_what_waits() {
    let url = server::shared().database();
    let (journal, chain) = (open(&url, false).await.unwrap(), session("a"));
    for call in ["c1", "c2"] {
        drop(journal.append(&chain, 7, entry(Kind::Intent, call)));
    }
    journal.close().await;
    journal.ended().await;
    let late = journal.append(&chain, 7, entry(Kind::Refusal, "")).await;
    assert_eq!(late, Err(AppendError::Unavailable("the journal is closed".into())));
    assert_eq!(calls(&journal.open_intents(&chain).await.unwrap()), ["c1", "c2"]);
}
