//! The CPU and time of a call through the gateway's own code, without a cluster: the routes, the
//! gate, the journal and the transports of the product in this process; server, shim and load
//! generator in processes of their own on loopback.
//!
//! `cargo bench --bench call_path`. Needs the release builds of `awaken-stub` and `awaken-shim`
//! (without the latter the stdio rows are left out). `AWAKEN_BENCH_ROUNDS` (3) and
//! `AWAKEN_BENCH_MILLIS` (1500) set how long it takes. An argument picks rows: `http`, `stdio`.

#![allow(clippy::unwrap_used, reason = "a benchmark ends where it goes wrong")]

#[path = "../cluster/cpu.rs"]
#[allow(dead_code, reason = "the other benchmark uses all of it")]
mod cpu;
#[path = "../cluster/report.rs"]
#[allow(dead_code, reason = "the other benchmark uses all of it")]
mod report;
mod server;
mod world;

use awaken_operator::journal::sqlite::Durability;
use awaken_stub::load::Figures;
use cpu::Process;
use report::{machine, median, table};
use std::{env, path::PathBuf, process::Command};
use world::World;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: &[(&str, u64)] = &[("110 B", 110), ("2 KB", 2048), ("60 KB", 61_440)];
const CALLERS: &[usize] = &[1, 64];

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// A release build of a program of this workspace.
fn program(name: &str) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/target").into(), PathBuf::from);
    target.join("release").join(name)
}

/// Runs the load generator; without a URL it calls a stdio stub over pipes.
fn load(url: Option<&str>, bytes: u64, callers: usize) -> Figures {
    let mut command = Command::new(program("awaken-stub"));
    command.arg("load").args(["--arguments", &format!("{{\"bytes\":{bytes}}}")]);
    command.args(["--callers", &callers.to_string()]);
    command.args(["--millis", &setting("AWAKEN_BENCH_MILLIS", 1500).to_string()]);
    if let Some(url) = url {
        command.args(["--url", url, "--token-file", &world::token_file()]);
    }
    let out = command.output().expect("cargo build --release -p awaken-stub");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let figures: Figures = serde_json::from_slice(&out.stdout).expect("figures");
    assert_eq!(figures.errors, 0, "no call fails: {:?}", figures.first_error);
    figures
}

fn main() {
    let wanted: Vec<String> = env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|w| w == part);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let http = server::Http::start(&program("awaken-stub"));
    let stdio = program("awaken-shim")
        .exists()
        .then(|| server::Stdio::start(&program("awaken-shim"), &program("awaken-stub")));
    let own = Process::own();
    let mut rows = vec![];
    for (journal, durability) in [
        ("none on disk", None),
        ("relaxed", Some(Durability::Relaxed)),
        ("full", Some(Durability::Full)),
    ] {
        let world = runtime.block_on(World::start(durability, &http, stdio.as_ref()));
        for transport in ["http", "stdio"].into_iter().filter(|t| runs(t) && world.serves(t)) {
            let direct = (transport == "http").then(|| http.url());
            for callers in CALLERS {
                for (size, bytes) in SIZES {
                    let (mut cpu, mut calls) = (0.0, 0);
                    let mut all: [Vec<Figures>; 2] = [vec![], vec![]];
                    for _ in 0..setting("AWAKEN_BENCH_ROUNDS", 3) {
                        all[0].push(load(direct.as_deref(), *bytes, *callers));
                        let before = own.micros();
                        let figures = load(Some(&world.url(transport)), *bytes, *callers);
                        cpu += own.micros() - before;
                        // the warm-up is in the CPU time as well
                        calls += figures.calls + 20 * *callers as u64;
                        all[1].push(figures);
                    }
                    let p50 = |way: usize| {
                        median(&all[way].iter().map(|f| f.p50_us as f64).collect::<Vec<_>>())
                    };
                    let rate = |f: &Figures| f.calls as f64 / f.seconds;
                    let rows_of = [
                        transport.to_owned(),
                        journal.to_owned(),
                        callers.to_string(),
                        (*size).to_owned(),
                        format!("{:.0}", p50(0)),
                        format!("{:.0}", p50(1)),
                        format!("{:.0}", p50(1) - p50(0)),
                        format!("{:.0}", median(&all[1].iter().map(rate).collect::<Vec<_>>())),
                        format!("{:.0}", cpu / calls as f64),
                    ];
                    eprintln!("{}", rows_of.join("  "));
                    rows.push(rows_of.to_vec());
                }
            }
        }
        runtime.block_on(world.end());
    }
    let head = [
        "transport",
        "journal",
        "callers",
        "result",
        "p50 direct",
        "p50 gateway",
        "p50 added",
        "calls/s gateway",
        "gateway CPU a call",
    ];
    println!("{}\nMicroseconds.\n\n{}", machine(), table(&head, &rows));
}
