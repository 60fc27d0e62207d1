//! Gateways that are there, replaced and killed, and a killed operator.

use crate::{
    Chance,
    audit::{Before, agree},
    fleet::{Fleet, kubectl},
    load::{Calls, Got, Load},
    support::{LIMIT, until},
};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

/// Service is back within this time.
pub const BACK: Duration = Duration::from_secs(20);

/// Fails if a Session was out of service for too long; the figures of a step.
pub fn figures(calls: &Calls) -> String {
    let (gap, session) = calls.gap();
    assert!(gap < BACK, "{session} answered nothing for {gap:?}");
    format!("{:?}, longest without an answer {gap:.1?} ({session})", calls.counts())
}

/// Any gateway serves any Session, and reads any trace.
pub async fn spread(fleet: &Fleet) -> String {
    let mut hosts = BTreeMap::<String, usize>::new();
    for (name, _) in &fleet.sessions {
        *hosts.entry(fleet.host(name).await.0).or_default() += 1;
    }
    assert_eq!(hosts.len(), 2, "both gateways have Sessions: {hosts:?}");
    for gateway in fleet.gateways().await {
        for (name, _) in &fleet.sessions {
            fleet.answered_at(&gateway, name).await;
            let trace = fleet.trace_at(&fleet.endpoint(&gateway, name, "trace")).await;
            assert!(!trace.expect("a trace").is_empty(), "{name}");
        }
    }
    format!("Sessions by gateway: {:?}", hosts.values().collect::<Vec<_>>())
}

/// A rollout under load; the children outlive it.
pub async fn rolled(fleet: &Fleet) -> String {
    let (pods, before) = (fleet.pods().await, Before::read(fleet).await);
    let load = Load::start("b", &fleet.sessions, &fleet.token);
    load.served().await;
    kubectl(&["rollout", "restart", "deployment/awaken-gateway"]).await;
    kubectl(&["rollout", "status", "deployment/awaken-gateway", "--timeout=120s"]).await;
    fleet.whole().await;
    load.served().await;
    let calls = load.end().await;
    let said = figures(&calls);
    calls.only(&[Got::Answer, Got::Later, Got::Unknown]);
    outlived(fleet, pods).await;
    agree(fleet, "b", &calls, Some(before)).await;
    said
}

/// `kill -9` of a gateway that serves Sessions, twice.
pub async fn killed(fleet: &Fleet, chance: &mut Chance) -> String {
    let (pods, before) = (fleet.pods().await, Before::read(fleet).await);
    let load = Load::start("c", &fleet.sessions, &fleet.token);
    for _ in 0..2 {
        load.served().await;
        let mut hosts = vec![];
        for (name, _) in &fleet.sessions {
            hosts.push(fleet.host(name).await.0);
        }
        let gateway = chance.one(&hosts).clone();
        let pod = fleet.gateways().await.into_iter().find(|p| p["metadata"]["name"] == *gateway);
        let pod = pod.expect("the host is there");
        let restarts = pod["status"]["containerStatuses"][0]["restartCount"].clone();
        fleet.node.kill(&pod);
        until("it was started again", LIMIT, || async {
            let all = fleet.gateways().await;
            let now = all.iter().find(|p| p["metadata"]["name"] == *gateway);
            let status = &now.ok_or("gone")?["status"]["containerStatuses"][0];
            let ok = status["restartCount"] != restarts && status["ready"] == true;
            if ok { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    }
    fleet.whole().await;
    load.served().await;
    let calls = load.end().await;
    let said = figures(&calls);
    calls.only(&[Got::Answer, Got::Later, Got::Unknown, Got::Nothing]);
    outlived(fleet, pods).await;
    agree(fleet, "c", &calls, Some(before)).await;
    said
}

async fn outlived(fleet: &Fleet, pods: Vec<(String, String)>) {
    assert_eq!(fleet.pods().await, pods, "the Session pods are the same");
    for name in fleet.stdio() {
        assert_eq!(fleet.handshakes(&name).await, json!(1), "{name} was initialized once");
    }
}

/// `kill -9` of the operator: calls do not need it.
pub async fn operator_killed(fleet: &Fleet) -> String {
    let before = Before::read(fleet).await;
    let load = Load::start("d", &fleet.sessions, &fleet.token);
    load.served().await;
    for pod in fleet.team.cluster.component("operator").await {
        fleet.node.kill(&pod);
    }
    until("the operator was started again", LIMIT, || async {
        let all = fleet.team.cluster.component("operator").await;
        let status = &all.first().ok_or("none")?["status"]["containerStatuses"][0];
        let ok = status["restartCount"] != 0 && status["ready"] == true;
        if ok { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    load.served().await;
    let calls = load.end().await;
    calls.only(&[Got::Answer]);
    agree(fleet, "d", &calls, Some(before)).await;
    figures(&calls)
}
