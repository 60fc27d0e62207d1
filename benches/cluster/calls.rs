//! What the gateway adds to a call: the same server called directly and through the gateway, in
//! turns, so that both see the same machine.

use crate::{
    cpu::Process,
    report::{median, table},
    setting,
    support::{
        Server, Team,
        team::{AGENT, CALLER, http, stdio},
    },
};
use awaken_stub::load::Figures;
use serde_json::{Value, json};
use std::{env, fs, path::PathBuf};
use tokio::process::Command;

const SIZES: &[(&str, u64)] = &[("110 B", 110), ("2 KB", 2048), ("60 KB", 61_440)];
const CALLERS: &[usize] = &[1, 64];

/// The load generator, built for release: by `scripts/bench`.
fn generator() -> PathBuf {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/target/release/awaken-stub");
    env::var_os("AWAKEN_BENCH_LOAD").map_or_else(|| default.into(), Into::into)
}

struct Way<'a> {
    url: Option<&'a str>,
    token: Option<&'a str>,
}

async fn load(way: &Way<'_>, bytes: u64, callers: usize, millis: u64) -> Figures {
    let mut command = Command::new(generator());
    command.arg("load").args([
        "--tool",
        "big",
        "--arguments",
        &json!({"bytes": bytes}).to_string(),
    ]);
    command.args(["--callers", &callers.to_string(), "--millis", &millis.to_string()]);
    if let Some(url) = way.url {
        command.args(["--url", url]);
    }
    if let Some(token) = way.token {
        command.args(["--token-file", token]);
    }
    let out = command.output().await.expect("the load generator is built: scripts/bench builds it");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let figures: Figures = serde_json::from_slice(&out.stdout).expect("figures");
    assert_eq!(figures.errors, 0, "no call fails: {:?}", figures.first_error);
    figures
}

/// An attachment that takes as many calls at a time as there are callers.
fn roomy(mut attachment: Value) -> Value {
    attachment["spec"]["limits"] = json!({"maxConcurrentCalls": 256});
    attachment
}

/// Measures and shows.
pub async fn measure(team: &Team, server: &Server) -> String {
    team.apply(roomy(stdio("local", AGENT, json!({})))).await;
    team.apply(roomy(http("remote", AGENT, json!({"url": server.url()})))).await;
    team.agent(&["local", "remote"]).await;
    team.ready("local").await;
    team.ready("remote").await;
    team.client().await;
    let token = env::temp_dir().join(format!("awaken-bench-token-{}", std::process::id()));
    fs::write(&token, team.token(CALLER, "awaken-gateway").await).unwrap();
    let token_file = token.to_str().unwrap();

    let gateways = team.cluster.component("gateway").await;
    let uid_of = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let gateway = gateways.first().and_then(|p| Process::of_pod(&uid_of(p), "awaken"));
    let shim =
        team.session_pods().await.first().and_then(|p| Process::of_pod(&uid_of(p), "awaken-shim"));
    let (rounds, millis) =
        (setting("AWAKEN_BENCH_ROUNDS", 5), setting("AWAKEN_BENCH_MILLIS", 2000));

    let mut rows = vec![];
    for (transport, name, direct) in
        [("stdio", "local", None), ("HTTP", "remote", Some(server.direct_url()))]
    {
        let through = team.url(AGENT, &format!("mcp/{name}")).await;
        let ways = [
            Way { url: direct.as_deref(), token: None },
            Way { url: Some(&through), token: Some(token_file) },
        ];
        for callers in CALLERS {
            for (size, bytes) in SIZES {
                let (mut cpu, mut shim_cpu, mut calls) = (0.0, 0.0, 0);
                let mut all: [Vec<Figures>; 2] = [vec![], vec![]];
                for _ in 0..rounds {
                    all[0].push(load(&ways[0], *bytes, *callers, millis).await);
                    let read = |p: &Option<Process>| p.as_ref().map_or(f64::NAN, Process::micros);
                    let before = (read(&gateway), read(&shim));
                    let figures = load(&ways[1], *bytes, *callers, millis).await;
                    cpu += read(&gateway) - before.0;
                    shim_cpu += read(&shim) - before.1;
                    // the warm-up is in the CPU time as well
                    calls += figures.calls + 20 * *callers as u64;
                    all[1].push(figures);
                }
                let of = |way: usize, value: fn(&Figures) -> f64| {
                    median(&all[way].iter().map(value).collect::<Vec<_>>())
                };
                let p50 = |w| of(w, |f| f.p50_us as f64);
                let p99 = |w| of(w, |f| f.p99_us as f64);
                let rate = |w| of(w, |f| f.calls as f64 / f.seconds);
                let per_call = |micros: f64| format!("{:.0}", micros / calls as f64);
                let shim_cell =
                    if transport == "stdio" { per_call(shim_cpu) } else { String::new() };
                rows.push(vec![
                    transport.to_owned(),
                    callers.to_string(),
                    (*size).to_owned(),
                    format!("{:.0}", p50(0)),
                    format!("{:.0}", p50(1)),
                    format!("{:.0}", p50(1) - p50(0)),
                    format!("{:.0}", p99(0)),
                    format!("{:.0}", p99(1)),
                    format!("{:.0}", rate(0)),
                    format!("{:.0}", rate(1)),
                    per_call(cpu),
                    shim_cell,
                ]);
                eprintln!("{}", rows[rows.len() - 1].join("  "));
            }
        }
    }
    fs::remove_file(&token).unwrap();
    let memory = gateway.as_ref().map_or(f64::NAN, Process::memory);
    let head = [
        "transport",
        "callers",
        "result",
        "p50 direct",
        "p50 gateway",
        "p50 added",
        "p99 direct",
        "p99 gateway",
        "calls/s direct",
        "calls/s gateway",
        "gateway CPU a call",
        "shim CPU a call",
    ];
    format!(
        "## A call, direct and through the gateway\n\n\
         Microseconds. {rounds} rounds of {millis} ms each way, in turns; medians of the rounds. Through the gateway each call is \
         authenticated, gated and recorded (intent and outcome, SQLite, full durability). Direct stdio is over pipes on this \
         machine without a pod; direct HTTP is to the server's pod. At 64 callers both cores are busy and the load generator \
         takes its share, so latency there is queueing: compare calls a second and CPU.\n\n{}\n\
         Gateway memory after this: {memory:.0} MiB.\n",
        table(&head, &rows)
    )
}
