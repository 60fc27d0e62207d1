//! From `kubectl apply` to the first successful call, and where the time goes.

use crate::{
    report::{median, table},
    setting,
    support::{
        LIMIT, Server, Team,
        objects::stub_image,
        team::{CALLER, agent, http, stdio},
        until,
    },
};
use awaken_stub::mcp_client::Client;
use futures::StreamExt;
use kube::api::{DynamicObject, WatchEvent, WatchParams};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// The milestones, in their order.
const STEPS: &[&str] = &[
    "applied",
    "Session there",
    "pod created",
    "pod scheduled",
    "pod running",
    "stage Realize",
    "receipt Realize",
    "Active",
    "receipt Publish",
    "first call",
];

/// When each milestone was first seen.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<&'static str, Instant>>>);

impl Seen {
    fn mark(&self, step: &'static str, reached: bool) {
        if reached {
            self.0.lock().unwrap().entry(step).or_insert_with(Instant::now);
        }
    }

    fn look(&self, object: &Value) {
        if object["kind"] == "Pod" {
            self.mark("pod created", true);
            self.mark("pod scheduled", object["spec"]["nodeName"].is_string());
            self.mark("pod running", object["status"]["phase"] == "Running");
            return;
        }
        self.mark("Session there", true);
        let status = &object["status"];
        let any = |list: &str, fits: &dyn Fn(&Value) -> bool| {
            status[list].as_array().is_some_and(|all| all.iter().any(fits))
        };
        self.mark("stage Realize", any("attachments", &|g| g["stage"]["kind"] == "Realize"));
        let done = |kind: &'static str| {
            any("receipts", &move |r| r["stage"] == kind && r["verdict"] == "Done")
        };
        self.mark("receipt Realize", done("Realize"));
        self.mark("Active", any("attachments", &|g| g["state"] == "Active"));
        self.mark("receipt Publish", done("Publish"));
    }
}

async fn watch(team: &Team, kind: &'static str, seen: Seen) -> tokio::task::JoinHandle<()> {
    let api = team.cluster.api(kind, Some(&team.name));
    let now = api.list(&kube::api::ListParams::default()).await.unwrap();
    let from = now.metadata.resource_version.unwrap_or_default();
    let known: Vec<_> = now.items.iter().filter_map(|o| o.metadata.uid.clone()).collect();
    let mut events = api.watch(&WatchParams::default(), &from).await.unwrap().boxed();
    tokio::spawn(async move {
        while let Some(Ok(event)) = events.next().await {
            let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
                continue;
            };
            let object: DynamicObject = object;
            if object.metadata.uid.as_ref().is_some_and(|uid| !known.contains(uid)) {
                let mut object = serde_json::to_value(object).unwrap();
                object["kind"] = json!(kind);
                seen.look(&object);
            }
        }
    })
}

/// One run; the milliseconds from the apply to each milestone.
async fn run(
    team: &Team,
    name: &str,
    attachment: Value,
    token: &str,
) -> BTreeMap<&'static str, f64> {
    let seen = Seen::default();
    let watches =
        [watch(team, "Session", seen.clone()).await, watch(team, "Pod", seen.clone()).await];
    let sets = vec![json!({"attachment": name, "defaultPermission": "Allow"})];
    let url = team.url(name, &format!("mcp/{name}")).await;
    let start = Instant::now();
    team.apply(agent(name, &stub_image(), sets)).await;
    team.apply(attachment).await;
    seen.mark("applied", true);
    let mut client = Client::new(&url, Some(token)).unwrap();
    while start.elapsed() < LIMIT {
        if client.session.is_none() {
            let _ = client.initialize().await;
        }
        if client.session.is_some()
            && client.call("echo", &json!({})).await.is_ok_and(|a| a.get("result").is_some())
        {
            seen.mark("first call", true);
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // the watches may be a little behind the call
    let _ = tokio::time::timeout(Duration::from_secs(3), async {
        while !seen.0.lock().unwrap().contains_key("receipt Publish") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    for watch in watches {
        watch.abort();
    }
    let marks = seen.0.lock().unwrap().clone();
    assert!(marks.contains_key("first call"), "{name}: no call succeeded within {LIMIT:?}");
    team.delete("McpAttachment", name).await;
    team.delete("Agent", name).await;
    until("the run is cleaned up", LIMIT, || async {
        let gone = team.get("Session", name).await.is_none();
        gone.then_some(()).ok_or_else(|| name.to_owned())
    })
    .await;
    marks.into_iter().map(|(step, at)| (step, (at - start).as_secs_f64() * 1000.0)).collect()
}

/// Measures and shows.
pub async fn measure(team: &Team, server: &Server) -> String {
    let runs = setting("AWAKEN_BENCH_RUNS", 10);
    let token = team.token(CALLER, "awaken-gateway").await;
    let mut columns: [Vec<BTreeMap<&'static str, f64>>; 2] = [vec![], vec![]];
    for i in 0..runs {
        let name = format!("cold-stdio-{i}");
        let attachment = stdio(&name, &name, json!({"name": name}));
        columns[0].push(run(team, &name, attachment, &token).await);
        let name = format!("cold-http-{i}");
        let attachment = http(&name, &name, json!({"url": format!("{}?n={i}", server.url())}));
        columns[1].push(run(team, &name, attachment, &token).await);
    }
    let cell = |column: &[BTreeMap<&'static str, f64>], step: &str| {
        let all: Vec<f64> = column.iter().filter_map(|m| m.get(step).copied()).collect();
        if all.is_empty() { "–".to_owned() } else { format!("{:.0}", median(&all)) }
    };
    let mut rows: Vec<Vec<String>> = STEPS
        .iter()
        .map(|step| vec![(*step).to_owned(), cell(&columns[0], step), cell(&columns[1], step)])
        .collect();
    let worst = |column: &[BTreeMap<&'static str, f64>]| {
        let all = column.iter().filter_map(|m| m.get("first call").copied());
        format!("{:.0}", all.fold(0.0, f64::max))
    };
    rows.push(vec!["first call, slowest run".to_owned(), worst(&columns[0]), worst(&columns[1])]);
    format!(
        "## From apply to the first successful call\n\n\
         Milliseconds after `apply` of an Agent and an attachment began, as a watch saw them; medians of {runs} runs. \
         The image is on the node. The caller tries each 10 ms. To reach: stdio 2500, HTTP 500.\n\n{}",
        table(&["reached", "stdio", "HTTP"], &rows)
    )
}
