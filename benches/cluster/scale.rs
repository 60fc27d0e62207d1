//! Many attachments: how long until all are Ready, what it costs the API server, what the product
//! holds in memory, what is written when nothing happens; and one Session with as many as it may
//! have, each of them replaced.

use crate::{
    cpu::Process,
    report::table,
    setting,
    support::{
        Server, Team,
        objects::{condition, stub_image},
        team::{agent, http},
    },
};
use futures::StreamExt as _;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Attachments of one Agent.
const EACH: usize = 10;
/// Attachments that one Session may have.
const MOST: usize = 64;
/// Applies under way at once.
const AT_ONCE: usize = 8;
/// Given up when it is not there after this.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Writes by resource and verb, as the API server counts them.
type Writes = BTreeMap<String, u64>;

/// What the API server took in the groups that the product writes in.
async fn writes(team: &Team) -> Writes {
    let request = http::Request::get("/metrics").body(vec![]).unwrap();
    let text = team.cluster.client.request_text(request).await.unwrap();
    let mut all = Writes::new();
    for line in text.lines().filter(|l| l.starts_with("apiserver_request_total{")) {
        let (labels, count) = line.rsplit_once(' ').unwrap();
        let label = |name: &str| {
            let rest = labels.split_once(&format!("{name}=\"")).map_or("", |(_, rest)| rest);
            rest.split('"').next().unwrap_or_default().to_owned()
        };
        let verb = label("verb");
        if !["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&&*verb) {
            continue;
        }
        let (resource, part) = (label("resource"), label("subresource"));
        let part = if part.is_empty() { part } else { format!("/{part}") };
        let refused = if label("code").starts_with('2') { "" } else { " refused" };
        let count = count.parse::<f64>().unwrap_or_default() as u64;
        *all.entry(format!("{verb} {resource}{part}{refused}")).or_default() += count;
    }
    all
}

fn since(before: &Writes, after: &Writes) -> Writes {
    let more = |(key, n): (&String, &u64)| {
        let more = n - before.get(key).copied().unwrap_or_default();
        (more > 0).then(|| (key.clone(), more))
    };
    after.iter().filter_map(more).collect()
}

/// What somebody who applies writes, and what the machine writes anyway.
fn of_the_product(key: &str) -> bool {
    let (verb, resource) = key.split_once(' ').unwrap_or_default();
    let applied =
        matches!(verb, "APPLY" | "PATCH") && matches!(resource, "agents" | "mcpattachments");
    let reviews = resource.contains("reviews") || resource.contains("serviceaccounts");
    !applied && !reviews && !resource.starts_with("nodes") && !resource.starts_with("leases")
}

fn told(writes: &Writes, attachments: usize) -> String {
    let rows: Vec<_> = writes
        .iter()
        .filter(|(key, _)| of_the_product(key))
        .map(|(key, n)| {
            vec![key.clone(), n.to_string(), format!("{:.2}", *n as f64 / attachments as f64)]
        })
        .collect();
    table(&["write", "count", "an attachment"], &rows)
}

async fn apply_all(team: &Team, objects: Vec<Value>) {
    futures::stream::iter(objects)
        .for_each_concurrent(AT_ONCE, |object| async move {
            drop(team.apply(object).await);
        })
        .await;
}

async fn ready(team: &Team, names: &[String]) -> usize {
    let all = team.cluster.list("McpAttachment", Some(&team.name), "").await;
    let is_ready = |a: &&Value| {
        condition(a, "Ready")["status"] == "True"
            && a["status"]["observedGeneration"] == a["metadata"]["generation"]
    };
    let named = |a: &&Value| names.iter().any(|n| a["metadata"]["name"] == **n);
    all.iter().filter(named).filter(is_ready).count()
}

async fn until_ready(team: &Team, names: &[String]) {
    let begun = Instant::now();
    while ready(team, names).await < names.len() {
        assert!(begun.elapsed() < PATIENCE, "not all attachments are Ready");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn memory(team: &Team, component: &str) -> f64 {
    let pods = team.cluster.component(component).await;
    let uid = pods.first().and_then(|p| p["metadata"]["uid"].as_str().map(str::to_owned));
    uid.and_then(|uid| Process::of_pod(&uid, "awaken")).map_or(f64::NAN, |p| p.memory())
}

fn sets(names: &[String]) -> Vec<Value> {
    names.iter().map(|n| json!({"attachment": n, "defaultPermission": "Allow"})).collect()
}

fn target(server: &Server, name: &str, edit: usize) -> Value {
    json!({"url": format!("{}?of={name}&edit={edit}", server.url())})
}

/// Measures and shows.
pub async fn measure(team: &Team, server: &Server) -> String {
    let count = usize::try_from(setting("AWAKEN_BENCH_ATTACHMENTS", 1000)).unwrap();
    let idle = Duration::from_secs(setting("AWAKEN_BENCH_IDLE_SECONDS", 600));
    let many = many(team, server, count, idle).await;
    let one = one_session(team, server).await;
    format!("{many}\n{one}")
}

async fn many(team: &Team, server: &Server, count: usize, idle: Duration) -> String {
    let names: Vec<String> = (0..count).map(|n| format!("many-{n}")).collect();
    let agents: Vec<_> = names.chunks(EACH).enumerate().collect();
    let before = writes(team).await;
    let begun = Instant::now();
    let objects = agents.iter().flat_map(|(n, names)| {
        let name = format!("many-{n}");
        let own = agent(&name, &stub_image(), sets(names));
        let attachments: Vec<_> =
            names.iter().map(|a| http(a, &name, target(server, a, 0))).collect();
        std::iter::once(own).chain(attachments)
    });
    apply_all(team, objects.collect()).await;
    let applied = begun.elapsed();
    until_ready(team, &names).await;
    let all_ready = begun.elapsed();
    // the last statuses are on their way
    tokio::time::sleep(Duration::from_secs(5)).await;
    let made = since(&before, &writes(team).await);
    let (operator, gateway) = (memory(team, "operator").await, memory(team, "gateway").await);
    let quiet = writes(team).await;
    tokio::time::sleep(idle).await;
    let idle_writes: Vec<_> = since(&quiet, &writes(team).await)
        .into_iter()
        .map(|(key, n)| format!("{n} {key}"))
        .collect();
    let (operator_later, gateway_later) =
        (memory(team, "operator").await, memory(team, "gateway").await);
    let out = format!(
        "## {count} attachments over {} Agents\n\n\
         HTTP servers, all answered by one scripted server in the cluster; applied {AT_ONCE} at a time.\n\n\
         - all applied after {:.1} s, all Ready after {:.1} s\n\
         - memory: operator {operator:.0} MiB, gateway {gateway:.0} MiB; after {} idle seconds \
         {operator_later:.0} and {gateway_later:.0}\n\
         - writes to the API server in those idle seconds, of the whole cluster: {}\n\n\
         Writes of the product and the control plane until all were Ready (those of whoever applied \
         are left out):\n\n{}",
        agents.len(),
        applied.as_secs_f64(),
        all_ready.as_secs_f64(),
        idle.as_secs(),
        if idle_writes.is_empty() { "none".to_owned() } else { idle_writes.join(", ") },
        told(&made, count),
    );
    let begun = Instant::now();
    for (n, _) in &agents {
        team.delete("Agent", &format!("many-{n}")).await;
    }
    for name in &names {
        team.delete("McpAttachment", name).await;
    }
    while !team.cluster.list("Session", Some(&team.name), "").await.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "not all Sessions went");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    format!(
        "{out}\nAll deleted, and no Session left, after {:.1} s.\n",
        begun.elapsed().as_secs_f64()
    )
}

async fn one_session(team: &Team, server: &Server) -> String {
    let names: Vec<String> = (0..MOST).map(|n| format!("one-{n}")).collect();
    let attachment = |name: &String, edit| http(name, "one", target(server, name, edit));
    team.apply(agent("one", &stub_image(), sets(&names))).await;
    apply_all(team, names.iter().map(|n| attachment(n, 0)).collect()).await;
    until_ready(team, &names).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let size = async || {
        let session = team.get("Session", "one").await.unwrap();
        session["status"].to_string().len()
    };
    let (before, settled) = (writes(team).await, size().await);
    let begun = Instant::now();
    let replacing = apply_all(team, names.iter().map(|n| attachment(n, 1)).collect());
    let mut largest = settled;
    let watching = async {
        loop {
            largest = largest.max(size().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = watching => {}
        () = async {
            replacing.await;
            until_ready(team, &names).await;
        } => {}
    }
    let took = begun.elapsed();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let made = since(&before, &writes(team).await);
    team.delete("Agent", "one").await;
    format!(
        "## {MOST} attachments in one Session, each replaced once\n\n\
         - all replaced after {:.1} s\n\
         - the Session's status: {settled} bytes of JSON before, {largest} at most meanwhile\n\n{}",
        took.as_secs_f64(),
        told(&made, MOST),
    )
}
