//! The figures of a real cluster: from apply to the first call, and what the gateway adds to one.
//!
//! `scripts/bench` prepares the cluster and runs this. Prints Markdown; with `AWAKEN_BENCH_WRITE`
//! it also writes `docs/benchmarks.md`. Part names as arguments (`cold`, `calls`) run those alone;
//! `scale` runs only when it is named, and is written to `docs/scale.md`:
//! `AWAKEN_BENCH_ATTACHMENTS` (1000) and `AWAKEN_BENCH_IDLE_SECONDS` (600) set its size.
//! `AWAKEN_BENCH_ROUNDS` (5) and `AWAKEN_BENCH_MILLIS` (2000) set how long it takes.

#![allow(clippy::unwrap_used, reason = "a benchmark ends where it goes wrong")]

mod calls;
mod cold;
#[allow(dead_code, reason = "the other benchmark uses all of it")]
mod cpu;
mod report;
mod scale;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../../tests/e2e/support/mod.rs"]
mod support;

use std::env;
use support::{Server, Team};

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[tokio::main]
async fn main() {
    let wanted: Vec<String> = env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|w| w == part);
    let team = Team::alone("bench").await;
    let server =
        Server::start(&team, "remote", serde_json::json!({"http": {"record": false}})).await;
    let mut parts = vec![report::machine()];
    if runs("cold") {
        parts.push(cold::measure(&team, &server).await);
    }
    if runs("calls") {
        parts.push(calls::measure(&team, &server).await);
    }
    if wanted.iter().any(|w| w == "scale") {
        parts.push(scale::measure(&team, &server).await);
    }
    let text = parts.join("\n");
    println!("{text}");
    if env::var_os("AWAKEN_BENCH_WRITE").is_some() {
        let scale = wanted == ["scale"];
        report::write(&text, if scale { "scale" } else { "benchmarks" });
    }
    team.end().await;
}
