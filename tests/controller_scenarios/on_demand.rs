//! Agents on demand: Sessions that users make, and statuses over several of them.

use crate::{
    fine,
    support::{
        apiserver::{ApiServer, text},
        gateway::{Answer, Gateway},
        world::*,
    },
};
use awaken_operator::{api::Session, controller::build::policy};
use serde_json::{Value, json};
use std::time::Duration;

const URL: &str = "https://mcp.example.com/mcp";

/// An operator, a gateway that does everything, and an Agent on demand with one HTTP attachment.
async fn waiting() -> (ApiServer, Operator, Gateway) {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let operator = Operator::start(&api);
    api.apply("agents", on_demand("coder", &["issues"]));
    api.apply("mcpattachments", http("issues", "coder", URL));
    until(&api, "agents", "coder", "Ready", true, "NoSession").await;
    (api, operator, gateway)
}

/// The same with Sessions in service.
async fn serving(sessions: &[&str]) -> (ApiServer, Operator, Gateway) {
    let (api, operator, gateway) = waiting().await;
    for name in sessions {
        api.apply("sessions", session(name, "coder"));
    }
    for name in sessions {
        until(&api, "sessions", name, "Ready", true, "Ready").await;
    }
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    (api, operator, gateway)
}

fn uid(api: &ApiServer, session: &str) -> String {
    text(&api.get("sessions", NS, session).unwrap(), "/metadata/uid")
}

async fn until_states_in(api: &ApiServer, session: &str, of: &str, expected: &[(i64, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(n, s)| (*n, (*s).to_owned())).collect();
    let what = format!("{of} in {session}: {expected:?}");
    api.wait(&what, |api| (states(api, session, of) == expected).then_some(())).await;
}

async fn until_gone(api: &ApiServer, session: &str) {
    let what = format!("{session} is gone");
    api.wait(&what, |api| api.get("sessions", NS, session).is_none().then_some(())).await;
}

/// The writes but for Leases, keys and events, as `verb plural name`.
fn stirs(api: &ApiServer) -> Vec<String> {
    let all = api.writes().into_iter();
    all.filter(|w| !["leases", "secrets", "events"].contains(&w.plural.as_str()))
        .map(|w| format!("{} {} {}", w.verb, w.plural, w.name))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn without_a_session_everything_is_ready_and_nothing_is_started() {
    let (api, _operator, _gateway) = waiting().await;
    let attachment = until(&api, "mcpattachments", "issues", "Ready", true, "NoSession").await;
    assert_eq!(condition(&attachment, "Accepted"), (true, "Accepted".into()));
    assert!(!condition(&attachment, "Serving").0 && !condition(&attachment, "Stalled").0);
    assert!(!condition(&attachment, "Reconciling").0);
    assert!(attachment["status"].get("desiredGeneration").is_none());
    let agent = api.get("agents", NS, "coder").unwrap();
    assert_eq!(agent["status"]["attachments"], "0/1");
    assert!(agent["status"].get("session").is_none());
    assert!(api.all("sessions").is_empty());
    // What is wrong without any Session is told without any.
    api.apply("agents", on_demand("coder", &[]));
    until(&api, "mcpattachments", "issues", "Accepted", false, "ToolSetMissing").await;
    until(&api, "agents", "coder", "Ready", false, "WaitingForAttachments").await;
}

#[tokio::test(start_paused = true)]
async fn a_session_of_a_user_comes_into_service() {
    let (api, _operator, _gateway) = waiting().await;
    api.apply("sessions", session("job-1", "coder"));
    let attachment = until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    assert_eq!(attachment["status"]["activeGeneration"], 1);
    assert_eq!(attachment["status"]["toolCount"], 5);
    assert!(condition(&attachment, "Serving").0);
    let session = until(&api, "sessions", "job-1", "Ready", true, "Ready").await;
    assert_eq!(session["status"]["phase"], "Serving");
    assert_eq!(session["status"]["summary"], "1/1");
    assert_eq!(session["metadata"]["finalizers"], json!(["awaken.dev/drain"]));
    assert!(session["metadata"].get("ownerReferences").is_none());
    let agent = until(&api, "agents", "coder", "Ready", true, "Ready").await;
    assert_eq!(agent["status"]["attachments"], "1/1");
    assert!(agent["status"].get("session").is_none());
    assert_eq!(api.all("sessions").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_stands_before_anything_runs() {
    let (api, _operator, _gateway) = waiting().await;
    let before = stirs(&api).len();
    api.apply("sessions", session("job-1", "coder"));
    until(&api, "sessions", "job-1", "Ready", true, "Ready").await;
    let all = stirs(&api);
    let of_session: Vec<_> =
        all[before..].iter().filter(|w| w.ends_with("sessions job-1")).collect();
    assert_eq!(of_session[..2], ["patch sessions job-1", "patch-status sessions job-1"]);
}

#[tokio::test(start_paused = true)]
async fn each_session_has_its_own_pods_and_one_that_is_closed_leaves_nothing() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.apply("agents", on_demand("coder", &["files"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    // The first one has its Agent's name, which on demand means nothing.
    let names = ["coder", "job-1", "job-2"];
    for name in names {
        api.apply("sessions", session(name, "coder"));
    }
    for name in names {
        until(&api, "sessions", name, "Ready", true, "Ready").await;
    }
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    let owners = |plural: &str| {
        let mut all: Vec<_> =
            api.all(plural).iter().map(|p| text(p, "/metadata/ownerReferences/0/uid")).collect();
        all.sort();
        all
    };
    let mut sessions: Vec<_> = names.iter().map(|name| uid(&api, name)).collect();
    sessions.sort();
    assert_eq!((owners("pods"), owners("networkpolicies")), (sessions.clone(), sessions));
    api.delete("sessions", NS, "job-1");
    until_gone(&api, "job-1").await;
    let mut left: Vec<_> = ["coder", "job-2"].iter().map(|name| uid(&api, name)).collect();
    left.sort();
    assert_eq!((owners("pods"), owners("networkpolicies")), (left.clone(), left));
    let attachment = api.get("mcpattachments", NS, "files").unwrap();
    assert_eq!(condition(&attachment, "Ready"), (true, "Active".into()));
    for name in ["coder", "job-2"] {
        api.delete("sessions", NS, name);
        until_gone(&api, name).await;
    }
    until(&api, "mcpattachments", "files", "Ready", true, "NoSession").await;
    assert!(api.all("pods").is_empty() && api.all("networkpolicies").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_drains_before_it_goes() {
    let (api, _operator, gateway) = serving(&["job-1"]).await;
    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(5),
    });
    api.delete("sessions", NS, "job-1");
    let leaving = until(&api, "sessions", "job-1", "Ready", false, "Draining").await;
    assert_eq!(leaving["status"]["phase"], "Terminating");
    until_states_in(&api, "job-1", "issues", &[(1, "Draining")]).await;
    // It does not count any more.
    until(&api, "mcpattachments", "issues", "Ready", true, "NoSession").await;
    gateway.script(fine);
    until_gone(&api, "job-1").await;
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_without_a_gateway() {
    let (api, _operator, gateway) = serving(&["job-1"]).await;
    drop(gateway);
    until(&api, "sessions", "job-1", "Ready", false, "Rescheduling").await;
    until(&api, "mcpattachments", "issues", "Ready", false, "NoGateway").await;
    let began = tokio::time::Instant::now();
    api.delete("sessions", NS, "job-1");
    until_gone(&api, "job-1").await;
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn statuses_speak_of_the_session_in_which_it_is_worst() {
    let (api, _operator, gateway) = serving(&["job-1", "job-2"]).await;
    let attachment = until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    assert_eq!(message(&attachment, "Ready"), "It serves in every Session.");
    let bad = "job-3";
    gateway.script({
        let api = api.clone();
        move |entry| match api.get("sessions", NS, bad) {
            Some(s) if entry["stage"]["ref"]["sessionUid"] == s["metadata"]["uid"] => {
                Answer::Failed("Unauthorized", "401 from the server.")
            }
            _ => Answer::Done(5),
        }
    });
    api.apply("sessions", session(bad, "coder"));
    let failed = until(&api, "mcpattachments", "issues", "Ready", false, "Unauthorized").await;
    let said = message(&failed, "Ready");
    assert!(said.starts_with("Session job-3: ") && said.contains("401"), "{said}");
    assert!(condition(&failed, "Stalled").0 && !condition(&failed, "Serving").0);
    let agent = until(&api, "agents", "coder", "Ready", false, "WaitingForAttachments").await;
    let said = message(&agent, "Ready");
    assert!(said.starts_with("Session job-3: ") && said.contains("issues"), "{said}");
    assert_eq!(agent["status"]["attachments"], "0/1");
    for name in ["job-1", "job-2"] {
        let session = api.get("sessions", NS, name).unwrap();
        assert_eq!(condition(&session, "Ready"), (true, "Ready".into()), "{name}");
    }
    api.delete("sessions", NS, bad);
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    let agent = until(&api, "agents", "coder", "Ready", true, "Ready").await;
    assert_eq!(agent["status"]["attachments"], "1/1");
}

#[tokio::test(start_paused = true)]
async fn the_environment_is_frozen_for_a_sessions_life() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    let mut coder = on_demand("coder", &["files"]);
    api.apply("agents", coder.clone());
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    api.apply("sessions", session("old", "coder"));
    until(&api, "sessions", "old", "Ready", true, "Ready").await;
    coder["spec"]["environment"] = json!({"image": "tools:2"});
    api.apply("agents", coder.clone());
    api.apply("sessions", session("new", "coder"));
    until(&api, "sessions", "new", "Ready", true, "Ready").await;
    coder["spec"].as_object_mut().unwrap().remove("environment");
    api.apply("agents", coder);
    tokio::time::sleep(Duration::from_secs(60)).await;
    for (name, image) in [("old", "tools:1"), ("new", "tools:2")] {
        until_states_in(&api, name, "files", &[(1, "Active")]).await;
        let session = api.get("sessions", NS, name).unwrap();
        let frozen = &session["status"]["environment"];
        assert_eq!((&frozen["revision"], &frozen["spec"]["image"]), (&json!(1), &json!(image)));
        let pods = api.all("pods");
        let pod = pods
            .iter()
            .find(|p| p["metadata"]["ownerReferences"][0]["uid"] == session["metadata"]["uid"]);
        assert_eq!(pod.unwrap()["spec"]["containers"][0]["image"], image);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_of_a_standing_agent_is_refused_and_left_alone() {
    let (api, _operator, _gateway) = crate::serving().await;
    api.apply("sessions", session("job-1", "coder"));
    let refused = until(&api, "sessions", "job-1", "Ready", false, "SessionNotOnDemand").await;
    assert!(condition(&refused, "Stalled").0 && !condition(&refused, "Reconciling").0);
    let said = message(&refused, "Ready");
    assert!(said.contains("\"coder\"") && said.contains("OnDemand"), "{said}");
    assert!(refused["metadata"].get("finalizers").is_none());
    assert!(refused["status"].get("host").is_none());
    assert_eq!(refused["status"]["phase"], "Pending");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(entries(&api, "job-1"), Vec::<Value>::new());
    assert_eq!(states(&api, "coder", "issues"), [(1, "Active".to_owned())]);
    let attachment = api.get("mcpattachments", NS, "issues").unwrap();
    assert_eq!(message(&attachment, "Ready"), "Generation 1 serves.");
    api.delete("sessions", NS, "job-1");
    assert!(api.get("sessions", NS, "job-1").is_none(), "nothing holds it");
}

#[tokio::test(start_paused = true)]
async fn a_session_may_come_before_its_agent_and_outlives_it() {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    api.apply("sessions", session("job-1", "coder"));
    let alone = until(&api, "sessions", "job-1", "Ready", false, "AgentNotFound").await;
    assert!(condition(&alone, "Reconciling").0 && !condition(&alone, "Stalled").0);
    api.apply("mcpattachments", http("issues", "coder", URL));
    until(&api, "mcpattachments", "issues", "Accepted", false, "AgentNotFound").await;
    api.apply("agents", on_demand("coder", &["issues"]));
    until(&api, "sessions", "job-1", "Ready", true, "Ready").await;
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;

    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(5),
    });
    api.delete("agents", NS, "coder");
    until_states_in(&api, "job-1", "issues", &[(1, "Draining")]).await;
    let alone = until(&api, "sessions", "job-1", "Ready", false, "AgentNotFound").await;
    assert_eq!(alone["status"]["phase"], "Serving", "it drains where it served");
    until(&api, "mcpattachments", "issues", "Ready", false, "AgentNotFound").await;
    gateway.script(fine);
    until_states_in(&api, "job-1", "issues", &[]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(api.get("sessions", NS, "job-1").is_some(), "it stays");
    api.apply("agents", on_demand("coder", &["issues"]));
    until_states_in(&api, "job-1", "issues", &[(2, "Active")]).await;
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
}

#[tokio::test(start_paused = true)]
async fn a_session_of_another_agents_name_keeps_it_and_that_agent_says_so() {
    let (api, _operator, _gateway) = serving(&["reviewer"]).await;
    api.apply("agents", agent("reviewer", &["docs"]));
    api.apply("mcpattachments", http("docs", "reviewer", "https://docs.example.com/mcp"));
    let taken = until(&api, "agents", "reviewer", "Ready", false, "SessionNameTaken").await;
    assert!(condition(&taken, "Stalled").0);
    until(&api, "mcpattachments", "docs", "Ready", false, "SessionNameTaken").await;
    let session = until(&api, "sessions", "reviewer", "Ready", true, "Ready").await;
    assert_eq!(session["spec"]["agentRef"]["name"], "coder");
    until_states_in(&api, "reviewer", "docs", &[]).await;
    until_states_in(&api, "reviewer", "issues", &[(1, "Active")]).await;
    api.delete("sessions", NS, "reviewer");
    until(&api, "agents", "reviewer", "Ready", true, "Ready").await;
    let session = until(&api, "sessions", "reviewer", "Ready", true, "Ready").await;
    assert_eq!(session["spec"]["agentRef"]["name"], "reviewer");
    until(&api, "mcpattachments", "issues", "Ready", true, "NoSession").await;
}

#[tokio::test(start_paused = true)]
async fn a_standing_agent_that_is_made_anew_on_demand_leaves_its_session_behind() {
    let (api, _operator, gateway) = crate::serving().await;
    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(5),
    });
    let old = uid(&api, "coder");
    api.delete("agents", NS, "coder");
    api.apply("agents", on_demand("coder", &["issues"]));
    api.apply("sessions", session("job-1", "coder"));
    until(&api, "sessions", "job-1", "Ready", true, "Ready").await;
    until(&api, "sessions", "coder", "Ready", false, "Draining").await;
    let attachment = until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    assert_eq!(message(&attachment, "Ready"), "It serves in every Session.");
    gateway.script(fine);
    until_gone(&api, "coder").await;
    api.apply("sessions", session("coder", "coder"));
    until(&api, "sessions", "coder", "Ready", true, "Ready").await;
    assert_ne!(uid(&api, "coder"), old);
}

#[tokio::test(start_paused = true)]
async fn a_rotated_secret_reaches_every_session() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let mut attachment = http("issues", "coder", URL);
    attachment["spec"]["http"]["credential"] =
        json!({"secretKeyRef": {"name": "issues-token", "key": "token"}});
    api.apply("agents", on_demand("coder", &["issues"]));
    api.apply("mcpattachments", attachment);
    until(&api, "mcpattachments", "issues", "Ready", false, "SecretNotFound").await;
    for name in ["job-1", "job-2"] {
        api.apply("sessions", session(name, "coder"));
        until(&api, "sessions", name, "Ready", false, "WaitingForAttachments").await;
    }
    api.apply("secrets", secret("issues-token", "token", "one"));
    for name in ["job-1", "job-2"] {
        until_states_in(&api, name, "issues", &[(1, "Active")]).await;
    }
    api.apply("secrets", secret("issues-token", "token", "two"));
    for name in ["job-1", "job-2"] {
        until_states_in(&api, name, "issues", &[(2, "Active")]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_for_another_try_is_taken_up_once_in_every_session() {
    let (api, _operator, gateway) = serving(&["job-1", "job-2"]).await;
    gateway.script(|entry| match entry["generation"].as_i64() {
        Some(1) => Answer::Done(5),
        _ => Answer::Failed("Unauthorized", "401."),
    });
    let mut changed = http("issues", "coder", "https://mcp.example.com/v2");
    api.apply("mcpattachments", changed.clone());
    for name in ["job-1", "job-2"] {
        until_states_in(&api, name, "issues", &[(1, "Active"), (2, "Failed")]).await;
    }
    changed["metadata"]["annotations"] = json!({"awaken.dev/reconcile-requested-at": "now-1"});
    let answered = |api: &ApiServer| {
        let status = &api.get("mcpattachments", NS, "issues")?["status"];
        (status["lastHandledReconcileAt"] == "now-1").then_some(())
    };
    api.refuse(|w, _| (w.name == "job-2").then(|| (500, "not yet".to_owned())));
    api.apply("mcpattachments", changed);
    until_states_in(&api, "job-1", "issues", &[(1, "Active"), (3, "Failed")]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(answered(&api), None, "one of the Sessions has not taken it up");
    api.refuse_nothing();
    until_states_in(&api, "job-2", "issues", &[(1, "Active"), (3, "Failed")]).await;
    api.wait("the request is answered", answered).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    for name in ["job-1", "job-2"] {
        until_states_in(&api, name, "issues", &[(1, "Active"), (3, "Failed")]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_between_others_costs_few_writes_and_idle_ones_none() {
    let (api, operator, _gateway) = serving(&["job-1", "job-2"]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let before = stirs(&api).len();
    api.apply("sessions", session("job-3", "coder"));
    until(&api, "sessions", "job-3", "Ready", true, "Ready").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let new = stirs(&api)[before..].to_vec();
    let of = |what: &str| new.iter().filter(|w| w.contains(what)).count();
    println!("{} writes for a Session's start: {new:#?}", new.len());
    assert!(
        of("sessions job-3") <= 6 && of("mcpattachments") <= 2 && of("agents") <= 2,
        "{new:#?}"
    );
    assert_eq!(of("job-1") + of("job-2"), 0, "{new:#?}");
    let before = stirs(&api);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    operator.stop().await;
    let _again = Operator::start_as(&api, "operator-2", "operator");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(stirs(&api), before, "an idle hour and a restart");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_under_a_sessions_name_does_not_hold_it() {
    let (api, _operator, _gateway) = serving(&["job-1"]).await;
    let mut broken = agent("job-1", &[]);
    broken["spec"]["fromTheFuture"] = json!(1);
    api.apply("agents", broken);
    api.wait("an event", |api| {
        api.all("events").into_iter().find(|e| e["reason"] == "UnreadableObject")
    })
    .await;
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/v2"));
    until_states_in(&api, "job-1", "issues", &[(2, "Active")]).await;
}

#[tokio::test(start_paused = true)]
async fn sessions_move_with_their_gateway() {
    let (api, _operator, first) = serving(&["job-1", "job-2"]).await;
    drop(first);
    until(&api, "mcpattachments", "issues", "Ready", false, "NoGateway").await;
    let _second = Gateway::start(&api, "gw-b", "inc-2", fine);
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    for name in ["job-1", "job-2"] {
        let session = until(&api, "sessions", name, "Ready", true, "Ready").await;
        let host = json!({"gateway": "gw-b", "incarnation": "inc-2", "epoch": 2});
        assert_eq!(session["status"]["host"], host);
        until_states_in(&api, name, "issues", &[(1, "Active")]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_a_user_wrote_makes_no_session_of_another_name_standing() {
    let (api, _operator, _gateway) = crate::serving().await;
    let agent = api.get("agents", NS, "coder").unwrap();
    let mut forged = session("job-1", "coder");
    forged["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "awaken.dev/v1alpha1", "kind": "Agent", "name": "coder",
        "uid": agent["metadata"]["uid"], "controller": true,
    }]);
    api.apply("sessions", forged);
    until(&api, "sessions", "job-1", "Ready", false, "SessionNotOnDemand").await;
    assert_eq!(entries(&api, "job-1"), Vec::<Value>::new());
}

#[tokio::test(start_paused = true)]
async fn a_policy_of_that_name_that_is_anothers_lets_no_pod_start() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.refuse(|w, _| (w.plural == "networkpolicies").then(|| (500, "not yet".to_owned())));
    api.apply("agents", on_demand("coder", &["files"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    api.apply("sessions", session("job-1", "coder"));
    api.wait("an entry", |api| entries(api, "job-1").first().map(|_| ())).await;
    let ours: Session = serde_json::from_value(api.get("sessions", NS, "job-1").unwrap()).unwrap();
    let foreign = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": policy::name(&ours), "namespace": NS}, "spec": {"podSelector": {}},
    });
    api.apply("networkpolicies", foreign);
    api.refuse_nothing();
    let told = until(&api, "mcpattachments", "files", "Ready", false, "ObjectRefused").await;
    assert!(message(&told, "Ready").contains("NetworkPolicy"), "{}", message(&told, "Ready"));
    assert!(api.all("pods").is_empty());
}
