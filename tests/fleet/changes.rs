//! Edits and a rotated Secret under load, and a Session pod that dies in a call.

use crate::{
    Chance,
    audit::{agree, id_of},
    fleet::{Fleet, credential, stdio_of},
    load::{Caller, Got, Load},
    moves::figures,
    support::{LIMIT, until},
};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// No call fails: N serves until N+1 does.
pub async fn edits_and_rotation(fleet: &Fleet, chance: &mut Chance) -> String {
    let load = Load::start("e", &fleet.sessions, &fleet.token);
    load.served().await;
    let (stdio, http) = (fleet.stdio(), fleet.http());
    let edited = chance.one(&stdio);
    for round in 0..3 {
        let generation = fleet.generation(edited).await;
        fleet.team.apply(stdio_of(edited, &format!("edited-{round}"))).await;
        fleet.beyond(edited, generation, LIMIT).await;
    }
    let mut generations = vec![];
    for name in &http {
        generations.push((name, fleet.generation(name).await));
    }
    let written = Instant::now();
    fleet.team.apply(credential("second")).await;
    for (name, generation) in generations {
        fleet.beyond(name, generation, LIMIT).await;
    }
    let rotated = written.elapsed();
    load.served().await;
    until("the edited server's pod is alone again", LIMIT, || async {
        let pods = fleet.pods().await.len();
        if pods == stdio.len() { Ok(()) } else { Err(format!("{pods} pods")) }
    })
    .await;
    let calls = load.end().await;
    calls.only(&[Got::Answer]);
    agree(fleet, "e", &calls, None).await;
    let seen = fleet.seen().await;
    let last = seen.iter().rev().find(|s| s.body.contains("\"e.http")).expect("calls came");
    let shown = last.headers.iter().find(|h| h.0 == "authorization").map(|h| h.1.as_str());
    assert_eq!(shown, Some("Bearer second"));
    format!("3 edits of {edited}, {} rotations in {rotated:.1?}; {}", http.len(), figures(&calls))
}

/// The call in flight is answered at once, and the next generation comes by itself.
pub async fn session_pod_killed(fleet: &Fleet, chance: &mut Chance) -> String {
    let names = fleet.stdio();
    let name = chance.one(&names).clone();
    let load = Load::start("f", &fleet.sessions, &fleet.token);
    load.served().await;
    let generation = fleet.generation(&name).await;
    let url = fleet.team.url(&name, "mcp").await;
    let mut caller = Caller::new(url, &fleet.token);
    let (session, tool) = (name.clone(), format!("mcp__{name}__sleep"));
    let running = tokio::spawn(async move {
        caller.call(&session, &tool, &json!({"id": "sleeper", "ms": 60_000})).await
    });
    until("the call is on its way", LIMIT, || async {
        let all = fleet.trace(&name).await;
        let sent = all.iter().any(|r| r["kind"] == "Intent" && id_of(r) == "sleeper");
        if sent { Ok(()) } else { Err(format!("{} records", all.len())) }
    })
    .await;
    let pods = fleet.team.session_pods().await;
    let of = |p: &&serde_json::Value| {
        p["metadata"]["annotations"]["awaken.dev/session"] == name.as_str()
    };
    let killed = Instant::now();
    fleet.node.kill(pods.iter().find(of).expect("its pod"));
    let answer = running.await.expect("no panic");
    let took = answer.ended - killed;
    assert_eq!(answer.got, Got::Unknown, "{answer:?}");
    assert!(took < Duration::from_secs(2), "answered after {took:?}: {answer:?}");
    fleet.beyond(&name, generation, LIMIT).await;
    load.served().await;
    let calls = load.end().await;
    // a call may come between the death of the server and its leaving the catalog
    calls.only(&[Got::Answer, Got::Later, Got::Unknown, Got::Unsent]);
    let others = calls.0.iter().filter(|c| c.session != name && c.got != Got::Answer);
    assert_eq!(others.count(), 0, "the other Sessions notice nothing");
    agree(fleet, "f", &calls, None).await;
    format!("{name} killed, its call answered after {took:.1?}; {}", figures(&calls))
}
