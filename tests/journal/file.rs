//! What only a file can suffer: a killed process, a second process, a flipped byte, a full disk.

use super::{calls, entry, path, session};
use awaken_operator::{
    domain::record::{Kind, Outcome, Record},
    journal::{
        Append as _, AppendError, Read as _, ReadError,
        opened::Journal,
        sqlite::{Durability, OpenError, Sqlite},
        tool,
    },
    process::metrics::Metrics,
};
use futures::future::join_all;
use rstest::rstest;
use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, Durability::Full, &Metrics::new()).unwrap()
}

#[tokio::test]
async fn more_than_the_queue_holds_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, chain) = (open(&path(&dir)), session("a"));
    let all =
        join_all((0..5000).map(|_| journal.append(&chain, 1, entry(Kind::Refusal, "")))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(journal.verify(&chain).await, Ok(5000));
}

#[tokio::test]
async fn the_watch_of_a_writer_that_lives_ends_when_told() {
    let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
    let (path, stop) = (path(&dir), CancellationToken::new());
    let opened = Journal::file(&path, Durability::Full, Duration::ZERO, &metrics).await;
    let journal = opened.unwrap();
    let watch = tokio::spawn(journal.clone().watch(stop.clone()));
    journal.append().append(&session("a"), 1, entry(Kind::Refusal, "")).await.unwrap();
    assert!(!watch.is_finished());
    stop.cancel();
    watch.await.unwrap().unwrap();
    journal.close().await;
    let ended = journal.clone().watch(CancellationToken::new()).await.unwrap_err();
    assert_eq!(ended.to_string(), "the journal's writer ended; the log says why");
}

#[tokio::test]
async fn closing_writes_what_waits_and_reopening_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, chain) = (open(&path(&dir)), session("a"));
    journal.raise_epoch(&chain, 7).await.unwrap();
    for call in ["c1", "c2"] {
        drop(journal.append(&chain, 7, entry(Kind::Intent, call)));
    }
    journal.close().await;
    journal.ended().await;
    let late = journal.append(&chain, 7, entry(Kind::Refusal, "")).await;
    assert_eq!(late, Err(AppendError::Unavailable("the journal is closed".into())));

    let journal = open(&path(&dir));
    assert_eq!(calls(&journal.open_intents(&chain).await.unwrap()), ["c1", "c2"]);
    let fenced = journal.append(&chain, 6, entry(Kind::Outcome, "c1")).await;
    assert_eq!(fenced, Err(AppendError::Fenced { epoch: 6, highest: 7 }));
    journal.append(&chain, 7, entry(Kind::Outcome, "c1")).await.unwrap();
    assert_eq!(
        journal.append(&chain, 7, entry(Kind::Outcome, "c1")).await,
        Err(AppendError::AlreadyEnded)
    );
    assert_eq!(calls(&journal.open_intents(&chain).await.unwrap()), ["c2"]);
    assert_eq!(journal.verify(&chain).await, Ok(3));
}

fn source(path: &Path) -> tool::Source {
    tool::Source::file(path).unwrap()
}

/// Runs the ignored test `child` of this file in a process of its own.
fn spawned(what: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "file::child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("JOURNAL_CHILD", what).env("JOURNAL_PATH", path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// What the child says, line by line; the words of the test harness left out.
fn said(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.map_while(Result::ok).filter_map(|l| l.split_once("child: ").map(|(_, l)| l.to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by other tests, in a process of its own"]
async fn child() {
    let Ok(what) = std::env::var("JOURNAL_CHILD") else { return };
    let path = PathBuf::from(std::env::var_os("JOURNAL_PATH").unwrap());
    let metrics = Metrics::new();
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "child: {line}").unwrap();
        out.flush().unwrap();
    };
    let journal = match Sqlite::open(&path, Durability::Full, &metrics) {
        Ok(journal) => journal,
        Err(error) => return say(error.to_string()),
    };
    match what.as_str() {
        "intent" => {
            let place = journal.append(&session("a"), 1, entry(Kind::Intent, "c1")).await.unwrap();
            say(format!("{} {}", place.seq, place.hash));
            std::future::pending().await
        }
        "load" => {
            let tasks = (0..8).map(|task| {
                let journal = journal.clone();
                tokio::spawn(async move {
                    for i in 0.. {
                        let chain = session(&format!("s{}", task % 3));
                        let entry = entry(Kind::Intent, &format!("c{task}-{i}"));
                        let place = journal.append(&chain, 1, entry).await.unwrap();
                        say(format!("{chain} {} {}", place.seq, place.hash));
                    }
                })
            });
            join_all(tasks).await;
        }
        "full" => full_disk(&path, &journal, &metrics).await,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_intent_of_a_killed_process_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawned("intent", &path(&dir)).spawn().unwrap();
    let mut lines = said(&mut process);
    let line = lines.next().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();

    let (journal, chain) = (open(&path(&dir)), session("a"));
    let open = journal.open_intents(&chain).await.unwrap();
    assert_eq!(calls(&open), ["c1"]);
    assert_eq!(format!("{} {}", open[0].seq, open[0].hash), line);
    assert_eq!(journal.verify(&chain).await, Ok(1));
    let mut unknown = entry(Kind::Outcome, "c1");
    unknown.outcome = Some(Outcome::OutcomeUnknown);
    journal.raise_epoch(&chain, 2).await.unwrap();
    journal.append(&chain, 2, unknown).await.unwrap();
    assert_eq!(journal.open_intents(&chain).await.unwrap(), []);
}

#[tokio::test]
async fn whatever_was_answered_before_a_kill_is_there() {
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=3 {
        let path = dir.path().join(format!("{round}.db"));
        let mut process = spawned("load", &path).spawn().unwrap();
        let mut lines = said(&mut process);
        let mut answered: Vec<String> = lines.by_ref().take(300 * round).collect();
        process.kill().unwrap();
        answered.extend(lines);
        process.wait().unwrap();

        let journal = open(&path);
        let mut stored = HashMap::new();
        for chain in journal.chains().await.unwrap() {
            let count = journal.verify(&chain).await.unwrap();
            for after in (0..count).step_by(1000) {
                for record in journal.page(&chain, after, 1000).await.unwrap() {
                    stored.insert(format!("{chain} {}", record.seq), record.hash);
                }
            }
        }
        assert!(answered.len() >= 300);
        for line in answered.iter().filter(|l| l.split(' ').count() == 3 && l.len() > 70) {
            let (place, hash) = line.rsplit_once(' ').unwrap();
            assert_eq!(stored.get(place).map(String::as_str), Some(hash), "{line}");
        }
    }
}

#[tokio::test]
async fn a_second_process_on_the_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&path(&dir));
    let mut process = spawned("intent", &path(&dir)).spawn().unwrap();
    let mut lines = said(&mut process);
    let line = lines.next().unwrap();
    assert_eq!(lines.next(), None);
    process.wait().unwrap();
    let name = path(&dir).display().to_string();
    assert!(line.contains(&name) && line.contains("in use by another process"), "{line}");
    let again = Sqlite::open(&path(&dir), Durability::Full, &Metrics::new());
    assert!(matches!(again, Err(OpenError::Locked { .. })));
    journal.close().await;
    open(&path(&dir)).close().await;
}

/// A journal with three records in one chain and one in another, closed.
async fn small(dir: &TempDir) -> PathBuf {
    let (path, chain) = (path(dir), session("a"));
    let journal = open(&path);
    for (kind, call) in [(Kind::Intent, "c1"), (Kind::Intent, "c2"), (Kind::Outcome, "c1")] {
        journal.append(&chain, 1, entry(kind, call)).await.unwrap();
    }
    journal.append(&session("b"), 1, entry(Kind::Refusal, "")).await.unwrap();
    journal.close().await;
    path
}

fn flip(path: &Path, find: &[u8], with: &[u8]) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(find.len()).position(|w| w == find).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    fs::write(path, bytes).unwrap();
}

fn sql(path: &Path, sql: &str) {
    rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[rstest]
#[case::byte_of_an_entry(2, |p: &Path| flip(p, br#""call":"c2""#, br#""call":"cX""#))]
#[case::byte_that_is_no_text(2, |p: &Path| flip(p, br#""call":"c2""#, b"\"call\":\"\xff\xff\""))]
#[case::entry(1, |p: &Path| sql(p, "UPDATE records SET entry = replace(entry, 'read', 'rm') WHERE seq = 1 AND chain = 1"))]
#[case::kind(1, |p: &Path| sql(p, "UPDATE records SET kind = 2 WHERE seq = 1 AND chain = 1"))]
#[case::call(3, |p: &Path| sql(p, "UPDATE records SET call = 'c3' WHERE seq = 3"))]
#[case::hash(2, |p: &Path| sql(p, "UPDATE records SET hash = zeroblob(32) WHERE seq = 2"))]
#[case::previous(2, |p: &Path| sql(p, "UPDATE records SET previous = zeroblob(32) WHERE seq = 2"))]
#[case::gone_in_the_middle(3, |p: &Path| sql(p, "DELETE FROM records WHERE seq = 2"))]
#[case::gone_at_the_end(3, |p: &Path| sql(p, "DELETE FROM records WHERE seq = 3"))]
#[tokio::test]
async fn a_changed_record_is_found(#[case] bad: u64, #[case] change: fn(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let path = small(&dir).await;
    change(&path);

    let mut text = vec![];
    let found = tool::verify(&source(&path), &mut text).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(found, tool::Verified { chains: 2, records: 1, bad: 1 }, "{text}");
    assert!(
        text.contains(&format!(
            "session/a  BAD  record {bad} of session/a is not what was written"
        )),
        "{text}"
    );
    assert!(tool::export(&source(&path), None, &mut vec![]).await.is_err());

    let journal = open(&path);
    let verified = journal.verify(&session("a")).await;
    assert!(matches!(verified, Err(ReadError::Corrupt { seq, .. }) if seq == bad), "{verified:?}");
    assert_eq!(journal.verify(&session("b")).await, Ok(1));
}

#[tokio::test]
async fn the_tools_read_a_file_in_use_and_a_copy_that_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = small(&dir).await;
    let copy = dir.path().join("copy of 100%?.db");
    fs::copy(&path, &copy).unwrap();
    let journal = open(&path);
    let records = journal.page(&session("a"), 0, 10).await.unwrap();

    for file in [&path, &copy] {
        let mut text = vec![];
        let found = tool::verify(&source(file), &mut text).await.unwrap();
        assert_eq!(found, tool::Verified { chains: 2, records: 4, bad: 0 });
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.starts_with(&format!("session/a  3 records  {}\n", records[2].hash)),
            "{text}"
        );
        assert!(text.ends_with("2 chains, 4 records, 0 bad\n"), "{text}");

        let mut lines = vec![];
        assert_eq!(tool::export(&source(file), Some(&session("a")), &mut lines).await.unwrap(), 3);
        let lines = String::from_utf8(lines).unwrap();
        let read = |l: &str| serde_json::from_str::<Record>(l).unwrap();
        assert_eq!(lines.lines().map(read).collect::<Vec<_>>(), records);
        assert!(
            lines.starts_with(
                r#"{"chain":"session/a","seq":1,"at":"2027-01-15T08:00:00.123456Z","kind":"Intent""#
            ),
            "{lines}"
        );
        assert_eq!(tool::export(&source(file), None, &mut vec![]).await.unwrap(), 4);
    }
    assert!(matches!(tool::Source::file(&dir.path().join("none")), Err(tool::ToolError::Open(_))));
}

#[tokio::test]
async fn nobody_else_may_read_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&path(&dir));
    journal.append(&session("a"), 1, entry(Kind::Refusal, "")).await.unwrap();
    for file in ["journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock"] {
        let mode = fs::metadata(dir.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn other_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (other, text, newer) =
        (dir.path().join("other"), dir.path().join("text"), small(&dir).await);
    sql(&other, "CREATE TABLE t (x)");
    fs::write(&text, "what is this?\n".repeat(100)).unwrap();
    sql(&newer, "PRAGMA user_version = 99");
    let open = |path: &Path| Sqlite::open(path, Durability::Full, &Metrics::new()).unwrap_err();
    assert!(matches!(open(&other), OpenError::NotAJournal(_)));
    assert!(matches!(open(&text), OpenError::Sqlite(_)));
    assert!(matches!(open(&newer), OpenError::Newer { version: 99, .. }));
    assert!(matches!(open(Path::new("/nowhere/journal.db")), OpenError::Lock { .. }));
}

/// On a file system of one MiB: appends until it is full, sees refusals and what is counted, makes
/// room, and goes on with the same journal.
async fn full_disk(path: &Path, journal: &Sqlite, metrics: &Metrics) {
    let filler = path.with_file_name("filler");
    fs::write(&filler, vec![0; 300 << 10]).unwrap();
    let chain = session("a");
    let large = |i: usize| {
        let mut entry = entry(Kind::Intent, &format!("c{i}"));
        entry.message = Some("x".repeat(3000));
        entry
    };
    let (mut kept, mut i) = (vec![], 0);
    let problem = loop {
        i += 1;
        match journal.append(&chain, 1, large(i)).await {
            Ok(place) => kept.push(place),
            Err(AppendError::Unavailable(problem)) => break problem,
            Err(other) => panic!("{other}"),
        }
        assert!(i < 10_000, "the disk never gets full");
    };
    assert!(problem.contains("full"), "{problem}");
    let more = join_all((0..20).map(|n| journal.append(&chain, 1, large(i + 1 + n)))).await;
    for answer in more {
        match answer {
            Ok(place) => kept.push(place),
            Err(e) => assert!(matches!(e, AppendError::Unavailable(_)), "{e}"),
        }
    }
    let lost = |text: String| {
        text.lines()
            .any(|l| l.starts_with("awaken_journal_unavailable_total ") && !l.ends_with(" 0"))
    };
    assert!(lost(metrics.encode()), "{}", metrics.encode());

    fs::remove_file(&filler).unwrap();
    kept.push(journal.append(&chain, 1, large(i + 100)).await.unwrap());
    let count = journal.verify(&chain).await.unwrap();
    let stored = journal.page(&chain, 0, 1000).await.unwrap();
    for place in &kept {
        assert_eq!(stored[place.seq as usize - 1].hash, place.hash);
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "child: {} {count} recovered", kept.len()).unwrap();
}

#[test]
fn a_full_disk_is_answered_and_survived() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=1m none "$1" && shift && exec "$@""#;
    let inside = spawned("full", &dir.path().join("journal.db"));
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    command.arg(dir.path()).arg(inside.get_program()).args(inside.get_args());
    for (key, value) in inside.get_envs() {
        command.env(key, value.unwrap());
    }
    let output = command.output();
    let Ok(output) = output else {
        return eprintln!("skipped: there is no unshare here to mount a small file system with");
    };
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() && !out.contains("running 1 test") {
        return eprintln!("skipped: no small file system can be mounted here: {err}");
    }
    assert!(output.status.success() && out.contains(" recovered"), "{out}\n{err}");
}
