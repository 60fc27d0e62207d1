//! A database that dies, and a gateway without the API server.

use crate::{
    Chance,
    audit::{Before, agree},
    fleet::{Fleet, kubectl},
    load::{Caller, Got, Load},
    moves::figures,
    support::{LIMIT, cluster::SYSTEM, until},
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// No journal, no call; then it goes on by itself, and every chain is whole.
pub async fn postgres_killed(fleet: &Fleet) -> String {
    let before = Before::read(fleet).await;
    let load = Load::start("g", &fleet.sessions, &fleet.token);
    load.served().await;
    let pods = fleet.team.cluster.list("Pod", Some(SYSTEM), "app=awaken-postgres").await;
    let killed = Instant::now();
    fleet.node.kill(&pods[0]);
    until("Postgres was started again", LIMIT, || async {
        let all = fleet.team.cluster.list("Pod", Some(SYSTEM), "app=awaken-postgres").await;
        let status = &all.first().ok_or("none")?["status"]["containerStatuses"][0];
        let ok = status["restartCount"] != 0 && status["ready"] == true;
        if ok { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    load.served().await;
    let back = killed.elapsed();
    let calls = load.end().await;
    calls.only(&[Got::Answer, Got::Later, Got::Unknown, Got::NoJournal]);
    agree(fleet, "g", &calls, Some(before)).await;
    let url = "--postgres-url-file=/etc/awaken/journal/url";
    let command = ["exec", "deployment/awaken-gateway", "--", "/usr/local/bin/awaken", "journal"];
    let said = kubectl(&[&command[..], &[url, "verify"][..]].concat()).await;
    let last = said.lines().last().unwrap_or_default();
    format!("back after {back:.1?}; {}; verify: {last}", figures(&calls))
}

/// A gateway that cannot renew its Lease stops before others take over, and comes back.
pub async fn cut_off(fleet: &Fleet, chance: &mut Chance) -> String {
    let (pods, before) = (fleet.pods().await, Before::read(fleet).await);
    let mut hosted = vec![];
    for (name, _) in &fleet.sessions {
        hosted.push((name.clone(), fleet.host(name).await));
    }
    let (session, (gateway, epoch)) = chance.one(&hosted).clone();
    let all = fleet.gateways().await;
    let pod = all.iter().find(|p| p["metadata"]["name"] == *gateway).expect("the host is there");
    let address = pod["status"]["podIP"].as_str().expect("an address");
    let load = Load::start("h", &fleet.sessions, &fleet.token);
    load.served().await;

    let cut = fleet.node.cut(address, &api_addresses(fleet).await);
    let since = Instant::now();
    let mut direct = Caller::new(fleet.endpoint(pod, &session, "mcp"), &fleet.token);
    let tool = format!("mcp__{session}__count_read");
    let (mut last, mut moved) = (None, None);
    // a little beyond the move, to see that nothing is served then
    while moved.is_none_or(|at: Instant| at.elapsed() < Duration::from_secs(5)) {
        assert!(since.elapsed() < LIMIT, "the Session did not move");
        let call = direct.call(&session, &tool, &json!({})).await;
        if call.got == Got::Answer {
            assert!(moved.is_none(), "served by the gateway that is cut off, after the move");
            last = Some(call.ended);
        }
        if moved.is_none() && fleet.host(&session).await.1 > epoch {
            moved = Some(Instant::now());
        }
        sleep(Duration::from_millis(50)).await;
    }
    load.served().await;
    drop(cut);
    let mended = Instant::now();
    fleet.whole().await;
    fleet.answered_at(pod, &session).await;
    let back = mended.elapsed();
    load.served().await;
    let calls = load.end().await;
    let said = figures(&calls);
    // its process ends, and is still found through the Service until the kubelet has seen it
    calls.only(&[Got::Answer, Got::Later, Got::Unknown, Got::Nothing]);
    assert_eq!(fleet.pods().await, pods, "the Session pods are the same");
    agree(fleet, "h", &calls, Some(before)).await;
    let (last, moved) = (last.map(|at| at - since), moved.map(|at| at - since));
    format!("served by it for {last:.1?}, moved after {moved:.1?}, back after {back:.1?}; {said}")
}

/// Where pods find the API server: behind its Service, and at its own address.
async fn api_addresses(fleet: &Fleet) -> Vec<(String, u16)> {
    let cluster = &fleet.team.cluster;
    let service = cluster.get("Service", Some("default"), "kubernetes").await.expect("a Service");
    let text = |v: &Value| v.as_str().expect("an address").to_owned();
    let mut all = vec![(text(&service["spec"]["clusterIP"]), 443)];
    let labels = "kubernetes.io/service-name=kubernetes";
    for slice in cluster.list("EndpointSlice", Some("default"), labels).await {
        all.extend(
            slice["endpoints"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|endpoint| (text(&endpoint["addresses"][0]), 6443)),
        );
    }
    all
}
