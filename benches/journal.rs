//! What the journal and the work on JSON cost: `cargo bench --bench journal [FOLDER]`.
//!
//! The file is written in FOLDER, else in the current one: the figures are those of its disk. CPU is that of
//! all threads of the process, read from /proc.

#![expect(
    clippy::unwrap_used,
    reason = "a program for people that ends with a message when something fails"
)]

use awaken_operator::{
    domain::{
        canonical::{canonical_json, find_repeated_key},
        record::{Entry, Kind, Outcome, PAYLOAD_LIMIT, Payload},
        redact::Redactor,
    },
    journal::{
        Append, Chain,
        sqlite::{Durability, Sqlite},
    },
    process::metrics::Metrics,
};
use jiff::Timestamp;
use std::{
    fs,
    hint::black_box,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Arguments as a client writes them, of about `size` bytes.
fn arguments(size: usize) -> String {
    let item = |i: usize| {
        format!(
            r#"{{"path": "/workspace/src/{i}.rs", "line": {i}, "text": "let x = \"a\";\n", "mode": null}}"#
        )
    };
    let mut text = String::from(r#"{"path": "/workspace", "edits": ["#);
    for i in 0.. {
        text.push_str(&item(i));
        if text.len() + 60 >= size {
            break;
        }
        text.push_str(", ");
    }
    text + r#"], "dryRun": false}"#
}

/// Nanoseconds of one run, the best of some rounds.
fn nanoseconds<T>(mut work: impl FnMut() -> T) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..20 {
        let (begin, mut runs) = (Instant::now(), 0u32);
        while begin.elapsed() < Duration::from_millis(5) {
            for _ in 0..16 {
                black_box(work());
            }
            runs += 16;
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(runs));
    }
    best
}

fn json() {
    let secrets: Vec<String> =
        (0..8).map(|i| format!("secret-value-number-{i}-ABCDEFGH")).collect();
    let (none, redactor) = (Redactor::default(), Redactor::new(&secrets));
    println!(
        "{:>8}  {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}  ns",
        "bytes", "repeated key", "canonical", "redact", "8 secrets", "payload", "serde_json"
    );
    for size in [110, 2 << 10, 60 << 10] {
        let raw = arguments(size);
        println!(
            "{:>8}  {:>12.0} {:>12.0} {:>12.0} {:>12.0} {:>12.0} {:>12.0}",
            raw.len(),
            nanoseconds(|| find_repeated_key(raw.as_bytes()).unwrap()),
            nanoseconds(|| canonical_json(&raw).unwrap()),
            nanoseconds(|| none.json(&raw).unwrap().len()),
            nanoseconds(|| redactor.json(&raw).unwrap().len()),
            nanoseconds(|| Payload::arguments(&raw, &redactor, PAYLOAD_LIMIT).unwrap()),
            nanoseconds(|| serde_json::from_str::<serde::de::IgnoredAny>(&raw).unwrap()),
        );
    }
}

/// CPU time of all threads that live.
fn cpu() -> Duration {
    let of =
        |dir: fs::DirEntry| fs::read_to_string(dir.path().join("schedstat")).unwrap_or_default();
    let used =
        |text: String| text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(tasks.map(|dir| used(of(dir.unwrap()))).sum())
}

fn entry(kind: Kind, call: String, payload: Payload) -> Entry {
    let mut entry = Entry::new(Timestamp::new(1_800_000_000, 123_456_789).unwrap(), kind);
    entry.call = Some(call);
    entry.subject = Some("system:serviceaccount:team-a:runtime".into());
    entry.session = Some("team-a/coder".into());
    entry.attachment = Some("files".into());
    entry.generation = Some(3);
    entry.target = Some("stdio:coder-files-3/6f0b7f2e-6a2c-4a55-8f8e-0f8a2a3d9b11".into());
    entry.tool = Some("read_text_file".into());
    if kind == Kind::Outcome {
        entry.outcome = Some(Outcome::Succeeded);
        entry.result = Some(payload);
    } else {
        entry.descriptor = Some(payload.digest.clone());
        entry.rule = Some("files/read_text_file".into());
        entry.arguments = Some(payload);
    }
    entry
}

/// Calls of an intent and an outcome each, by `writers` at once; a line of figures for one append.
async fn appends(folder: &std::path::Path, durability: Durability, writers: usize, size: usize) {
    let dir = tempfile::tempdir_in(folder).unwrap();
    let journal = Arc::new(
        Sqlite::open(&dir.path().join("journal.db"), durability, &Metrics::new()).unwrap(),
    );
    let payload = Payload::result(&arguments(size), &Redactor::default(), PAYLOAD_LIMIT);
    let calls = if writers == 1 { 3000 } else { 30_000 / writers };
    let (begin, before) = (Instant::now(), cpu());
    let tasks = (0..writers).map(|writer| {
        let (journal, payload) = (Arc::clone(&journal), payload.clone());
        tokio::spawn(async move {
            let chain =
                Chain::Session(format!("7d0b7f2e-6a2c-4a55-8f8e-0f8a2a3d9b{:02}", writer % 16));
            let mut times = Vec::with_capacity(calls * 2);
            for i in 0..calls {
                let call = format!("0197f2e0-6a2c-7a55-8f8e-{writer:04x}{i:08x}");
                for kind in [Kind::Intent, Kind::Outcome] {
                    let begin = Instant::now();
                    let entry = entry(kind, call.clone(), payload.clone());
                    journal.append(&chain, 1, entry).await.unwrap();
                    times.push(begin.elapsed());
                }
            }
            times
        })
    });
    let mut times: Vec<Duration> =
        futures::future::join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect();
    let (wall, used, count) = (begin.elapsed(), cpu() - before, times.len());
    times.sort_unstable();
    let micro = |d: Duration| d.as_secs_f64() * 1e6;
    println!(
        "{:>8} {writers:>8} {size:>8}  {:>10.0} {:>10.0} {:>10.1} {:>10.1}",
        format!("{durability:?}"),
        micro(times[count / 2]),
        micro(times[count * 99 / 100]),
        micro(wall) / count as f64,
        micro(used) / count as f64,
    );
    journal.close().await;
}

fn main() {
    let folder =
        std::env::args().skip(1).find(|a| !a.starts_with("--")).map_or(".".into(), PathBuf::from);
    json();
    println!(
        "\n{:>8} {:>8} {:>8}  {:>10} {:>10} {:>10} {:>10}  µs an append",
        "", "writers", "bytes", "p50", "p99", "wall", "CPU"
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for durability in [Durability::Full, Durability::Relaxed] {
        for writers in [1, 64] {
            for size in [110, 2 << 10] {
                runtime.block_on(appends(&folder, durability, writers, size));
            }
        }
    }
}
