//! Sessions on demand whose time is over: idle for idleTimeout as their gateway says, or as old as
//! maxLifetime.

use crate::{
    fine,
    support::{
        apiserver::{ApiServer, text},
        gateway::{Answer, Gateway},
        world::*,
    },
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const MINUTE: Duration = Duration::from_secs(60);

fn worker(settings: Value) -> Value {
    let mut agent = on_demand("worker", &["issues"]);
    for (name, value) in settings.as_object().unwrap() {
        agent["spec"]["session"][name] = value.clone();
    }
    agent
}

/// A Session in service, of an Agent with these settings.
async fn serving(settings: Value) -> (ApiServer, Operator, Gateway) {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let operator = Operator::start(&api);
    api.apply("agents", worker(settings));
    api.apply("mcpattachments", http("issues", "worker", "https://mcp.example.com/mcp"));
    api.apply("sessions", session("job-1", "worker"));
    until(&api, "sessions", "job-1", "Ready", true, "Ready").await;
    (api, operator, gateway)
}

fn ago(api: &ApiServer, minutes: i64) -> Option<Timestamp> {
    Some(api.now() - SignedDuration::from_mins(minutes))
}

fn job(api: &ApiServer) -> Option<Value> {
    api.get("sessions", NS, "job-1")
}

/// Whether it is there and nobody deleted it.
fn stands(api: &ApiServer) -> bool {
    job(api).is_some_and(|job| job["metadata"].get("deletionTimestamp").is_none())
}

async fn until_gone(api: &ApiServer) {
    api.wait("job-1 is gone", |api| job(api).is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_drains_and_goes_and_an_event_says_why() {
    let (api, _operator, gateway) = serving(json!({"idleTimeout": "10m"})).await;
    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(5),
    });
    let since = ago(&api, 10).unwrap();
    gateway.say_idle("job-1", Some(since));
    let leaving = until(&api, "sessions", "job-1", "Ready", false, "Draining").await;
    assert_eq!(leaving["status"]["phase"], "Terminating");
    assert_eq!(states(&api, "job-1", "issues"), [(1, "Draining".to_owned())]);
    gateway.script(fine);
    until_gone(&api).await;
    let event = |api: &ApiServer| {
        let all = api.all("events");
        all.into_iter().find(|e| e["reason"] == "SessionIdle" && e["type"] == "Normal")
    };
    let event = api.wait("the event", event).await;
    assert_eq!(event["regarding"]["name"], "job-1");
    assert!(text(&event, "/note").contains(&format!("{since:.0}")), "{event}");
    until(&api, "mcpattachments", "issues", "Ready", true, "NoSession").await;
    let deletes = api.writes().into_iter().filter(|w| w.verb == "delete");
    assert_eq!(deletes.map(|w| w.plural).collect::<Vec<_>>(), ["sessions"]);
}

#[tokio::test(start_paused = true)]
async fn it_is_deleted_only_as_it_stood_when_it_was_idle() {
    let (api, _operator, gateway) = serving(json!({"idleTimeout": "10m"})).await;
    let asked = Arc::new(Mutex::new(vec![]));
    let (tries, uid) = (asked.clone(), text(&job(&api).unwrap(), "/metadata/uid"));
    // somebody is always a little faster
    api.refuse(move |write, body| {
        if (write.verb, write.plural.as_str()) != ("delete", "sessions") {
            return None;
        }
        assert_eq!(text(body, "/preconditions/uid"), uid);
        tries.lock().unwrap().push(text(body, "/preconditions/resourceVersion"));
        Some((409, "the object has been modified".to_owned()))
    });
    gateway.say_idle("job-1", ago(&api, 10));
    let as_it_stands = text(&job(&api).unwrap(), "/metadata/resourceVersion");
    api.wait("tries", |_| (asked.lock().unwrap().len() > 2).then_some(())).await;
    assert_eq!(asked.lock().unwrap().last(), Some(&as_it_stands));
    gateway.say_idle("job-1", None);
    api.refuse_nothing();
    tokio::time::sleep(60 * MINUTE).await;
    assert!(stands(&api), "it is used again");
    assert_eq!(states(&api, "job-1", "issues"), [(1, "Active".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn how_long_it_may_be_idle_is_read_live() {
    let (api, _operator, gateway) = serving(json!({})).await;
    gateway.say_idle("job-1", ago(&api, 100));
    tokio::time::sleep(MINUTE).await;
    assert!(stands(&api), "without a limit");
    api.apply("agents", worker(json!({"idleTimeout": "110m"})));
    tokio::time::sleep(8 * MINUTE).await;
    assert!(stands(&api), "not yet");
    tokio::time::sleep(2 * MINUTE).await;
    until_gone(&api).await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_was_away_comes_to_the_same() {
    let (api, operator, gateway) = serving(json!({"idleTimeout": "10m"})).await;
    operator.kill();
    gateway.say_idle("job-1", ago(&api, 10));
    tokio::time::sleep(30 * MINUTE).await;
    assert!(stands(&api));
    let _operator = Operator::start_as(&api, "operator-2", "operator");
    until_gone(&api).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_host_said_does_not_count() {
    let (api, _operator, gateway) = serving(json!({"idleTimeout": "10m"})).await;
    gateway.say_idle("job-1", ago(&api, 5));
    drop(gateway);
    let gateway = Gateway::start(&api, "gw-a", "inc-2", fine);
    api.wait("the move", |api| {
        let host = &job(api)?["status"]["host"];
        (*host == json!({"gateway": "gw-a", "incarnation": "inc-2", "epoch": 2})).then_some(())
    })
    .await;
    tokio::time::sleep(60 * MINUTE).await;
    assert!(stands(&api));
    gateway.say_idle("job-1", ago(&api, 10));
    until_gone(&api).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_lives_for_max_lifetime_from_its_creation_on() {
    let (api, operator, _gateway) = serving(json!({"maxLifetime": "1h"})).await;
    tokio::time::sleep(40 * MINUTE).await;
    operator.kill();
    let _operator = Operator::start_as(&api, "operator-2", "operator");
    tokio::time::sleep(18 * MINUTE).await;
    assert!(stands(&api), "not yet");
    tokio::time::sleep(3 * MINUTE).await;
    until_gone(&api).await;
    let event = |e: Value| e["reason"] == "SessionOutlived";
    api.wait("the event", |api| api.all("events").into_iter().any(event).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_used_is_looked_at_without_a_write() {
    let (api, _operator, gateway) = serving(json!({"idleTimeout": "10m"})).await;
    gateway.say_idle("job-1", ago(&api, 10));
    gateway.say_idle("job-1", None);
    tokio::time::sleep(MINUTE).await;
    let stirs = |api: &ApiServer| {
        let all = api.writes().into_iter();
        all.filter(|w| !["leases", "events"].contains(&w.plural.as_str())).count()
    };
    let before = stirs(&api);
    tokio::time::sleep(120 * MINUTE).await;
    assert_eq!(stirs(&api), before);
    assert!(stands(&api));
}
