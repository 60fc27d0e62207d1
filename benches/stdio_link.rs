//! What a call over the link costs: `StdioPeer`, `awaken-shim` and an echo server on loopback.
//!
//! Prints, for each size and number of callers, the latency and the CPU time of each of the three
//! processes, as the kernel counts it. Needs `awaken-shim` and its example `scripted` built in the
//! same profile; `AWAKEN_PROGRAMS` names another folder for them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use awaken_operator::mcp::client_stdio::{StdioPeer, StdioTarget};
use awaken_operator::mcp::{Answer, Outgoing, Peer, RawJson};
use awaken_shim::{Claim, challenge};
use ed25519_dalek::SigningKey;
use tokio_util::sync::CancellationToken;

const MEASURE: Duration = Duration::from_secs(2);
const LIMIT: usize = 16 << 20;

/// Nanoseconds that all threads of a process ran.
fn cpu(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

fn start(key: &SigningKey) -> (Child, StdioTarget) {
    let programs = std::env::var_os("AWAKEN_PROGRAMS").map_or_else(
        || {
            let own = std::env::current_exe().expect("a running program has a path");
            own.ancestors().nth(2).expect("target/PROFILE/deps/bench").to_owned()
        },
        PathBuf::from,
    );
    let mut shim = Command::new(programs.join("awaken-shim"))
        .args(["run", "--listen", "127.0.0.1:0", "--session-uid", "s", "--attachment-uid", "a"])
        .args(["--generation", "1", "--max-message-bytes", &LIMIT.to_string()])
        .args(["--termination-log", "/dev/null", "--"])
        .arg(programs.join("examples/scripted"))
        .env("AWAKEN_POD_UID", "p")
        .env("AWAKEN_GATEWAY_KEYS", challenge::format_key(&key.verifying_key()))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("build awaken-shim and its example scripted first");
    let mut lines = std::io::BufReader::new(shim.stderr.take().expect("piped")).lines();
    let address = lines
        .find_map(|line| line.ok()?.split_once("listening on ")?.1.parse().ok())
        .expect("the shim says where it listens");
    std::thread::spawn(move || lines.for_each(drop));
    let claim = Claim {
        pod_uid: "p".into(),
        session_uid: "s".into(),
        attachment_uid: "a".into(),
        generation: 1,
        epoch: 1,
        incarnation: "bench".into(),
    };
    (shim, StdioTarget { address, claim, max_message_bytes: LIMIT })
}

async fn call(peer: &StdioPeer, params: &RawJson) -> Duration {
    let begun = Instant::now();
    let request = Outgoing {
        method: "echo",
        params: Some(params.clone()),
        timeout: Duration::from_secs(30),
        cancel: CancellationToken::new(),
    };
    let answer = peer.request(request).await.expect("an echo");
    assert!(matches!(answer, Answer::Result(result) if result.bytes() == params.bytes()));
    begun.elapsed()
}

async fn callers(peer: &Arc<StdioPeer>, params: &RawJson, count: usize) -> Vec<Duration> {
    let until = Instant::now() + MEASURE;
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let (peer, params) = (peer.clone(), params.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                while Instant::now() < until {
                    took.push(call(&peer, &params).await);
                }
                took
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("no caller panics"));
    }
    all.sort();
    all
}

#[tokio::main]
async fn main() {
    let key = Arc::new(SigningKey::from_bytes(&[3; 32]));
    let (mut shim, target) = start(&key);
    let peer = StdioPeer::connect(target, key, Arc::new(|_| {})).await.expect("attached");
    let peer = Arc::new(peer);
    let children = format!("/proc/{0}/task/{0}/children", shim.id());
    let child = std::fs::read_to_string(children).expect("the shim runs");
    let child: u32 = child.trim().parse().expect("one child");
    let pids = [std::process::id(), shim.id(), child];
    println!("   bytes callers   calls  p50 µs  p99 µs | CPU µs a call: client   shim  server");
    for size in [110, 2 << 10, 60 << 10] {
        for count in [1, 64] {
            let text = format!("\"{}\"", "x".repeat(size - 2));
            let params = RawJson::parse(text.into()).expect("a string");
            call(&peer, &params).await;
            let before = pids.map(cpu);
            let took = callers(&peer, &params, count).await;
            let used =
                [0, 1, 2].map(|n| (cpu(pids[n]) - before[n]) as f64 / took.len() as f64 / 1e3);
            println!(
                "{size:8} {count:7} {:7} {:7} {:7} | {:21.1} {:6.1} {:7.1}",
                took.len(),
                took[took.len() / 2].as_micros(),
                took[took.len() * 99 / 100].as_micros(),
                used[0],
                used[1],
                used[2]
            );
        }
    }
    let _ = shim.kill();
    let _ = shim.wait();
}
