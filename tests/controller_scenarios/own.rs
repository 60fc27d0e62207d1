//! What a Session brings itself: replaced as one set, in the place of the Agent's or beside it.

use crate::{
    fine,
    support::{
        apiserver::{ApiServer, text},
        gateway::{Answer, Gateway},
        world::*,
    },
};
use serde_json::{Value, json};
use std::time::Duration;

/// An Agent on demand that lets its Sessions bring what they want.
fn open(tool_sets: &[&str]) -> Value {
    let mut agent = on_demand("coder", tool_sets);
    agent["spec"]["sessionAttachments"] = json!({"max": "Allow"});
    agent
}

fn target(name: &str, url: &str) -> Value {
    json!({"name": name, "http": {"url": url}})
}

/// A Session with this set.
fn with(set: &[Value]) -> Value {
    let sets: Vec<_> = set
        .iter()
        .map(|own| json!({"attachment": own["name"], "defaultPermission": "Allow"}))
        .collect();
    let mut session = session("job", "coder");
    session["spec"]["attachments"] = json!(set);
    session["spec"]["toolSets"] = json!(sets);
    session
}

/// An Agent with one attachment, `files`, and a Session in which it serves.
async fn serving() -> (ApiServer, Operator, Gateway) {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let operator = Operator::start(&api);
    api.apply("agents", open(&["files"]));
    api.apply("mcpattachments", http("files", "coder", "https://agent.example.com/mcp"));
    api.apply("sessions", session("job", "coder"));
    until(&api, "sessions", "job", "Ready", true, "Ready").await;
    (api, operator, gateway)
}

/// Waits until the Session's entries are these: origin, attachment, generation, state.
async fn until_entries(api: &ApiServer, expected: &[(&str, &str, i64, &str)]) {
    let what = format!("{expected:?}");
    api.wait(&what, |api| {
        let entries = entries(api, "job");
        let seen: Vec<_> = entries
            .iter()
            .map(|e| {
                let generation = e["generation"].as_i64().unwrap();
                (text(e, "/origin"), text(e, "/attachment"), generation, text(e, "/state"))
            })
            .collect();
        let seen: Vec<_> = seen.iter().map(|(o, a, g, s)| (&**o, &**a, *g, &**s)).collect();
        (seen == expected).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_set_comes_in_and_the_agents_of_a_name_gives_way_once_it_serves() {
    let (api, _operator, gateway) = serving().await;
    gateway.script(|entry| match text(entry, "/attachment").as_str() {
        "slow" => Answer::Silence,
        _ => Answer::Done(5),
    });
    api.apply(
        "sessions",
        with(&[
            target("files", "https://own.example.com/"),
            target("slow", "https://slow.example.com/"),
        ]),
    );
    let moved = [("Session", "files", 2, "Active"), ("Session", "slow", 3, "Realizing")];
    until_entries(&api, &moved).await;
    let session = until(&api, "sessions", "job", "Ready", false, "WaitingForAttachments").await;
    assert_eq!(condition(&session, "Accepted"), (true, "Accepted".into()));
    assert_eq!(session["status"]["summary"], "1/2", "the Agent's is not asked for");
    // The Agent and its attachment are as they should be: nothing of theirs is missing.
    let files = until(&api, "mcpattachments", "files", "Ready", true, "Outranked").await;
    assert_eq!(condition(&files, "Accepted"), (true, "Accepted".into()));
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    gateway.script(fine);
    until(&api, "sessions", "job", "Ready", true, "Ready").await;
    // And back: the Agent's serves again, what was brought drains when it does.
    api.apply("sessions", with(&[]));
    until_entries(&api, &[("Agent", "files", 4, "Active")]).await;
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    let session = until(&api, "sessions", "job", "Ready", true, "Ready").await;
    assert_eq!(session["status"]["summary"], "1/1");
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_out_serves_until_what_came_in_does() {
    let (api, _operator, gateway) = serving().await;
    api.apply("sessions", with(&[target("old", "https://old.example.com/")]));
    until_entries(&api, &[("Agent", "files", 1, "Active"), ("Session", "old", 2, "Active")]).await;
    gateway.script(|entry| match text(entry, "/attachment").as_str() {
        "new" => Answer::Silence,
        _ => Answer::Done(5),
    });
    let new = || with(&[target("new", "https://new.example.com/")]);
    api.apply("sessions", new());
    let both = [
        ("Agent", "files", 1, "Active"),
        ("Session", "old", 2, "Active"),
        ("Session", "new", 3, "Realizing"),
    ];
    until_entries(&api, &both).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    until_entries(&api, &both).await;
    // One startup deadline later it goes, whatever the new one does.
    tokio::time::sleep(Duration::from_secs(15)).await;
    until_entries(&api, &[("Agent", "files", 1, "Active"), ("Session", "new", 3, "Failed")]).await;
    let session = api.get("sessions", NS, "job").unwrap();
    let said = message(&session, "Ready");
    assert!(said.contains("new: ") && said.contains("StartupTimeout"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_takes_its_leave_back_drains_what_was_brought() {
    let (api, _operator, _gateway) = serving().await;
    api.apply("sessions", with(&[target("files", "https://own.example.com/")]));
    until_entries(&api, &[("Session", "files", 2, "Active")]).await;
    api.apply("agents", on_demand("coder", &["files"]));
    until_entries(&api, &[("Agent", "files", 3, "Active")]).await;
    let session =
        until(&api, "sessions", "job", "Accepted", false, "SessionAttachmentsDenied").await;
    let said = message(&session, "Accepted");
    assert!(said.starts_with("files: ") && said.contains("sessionAttachments.max"), "{said}");
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    let told = |api: &ApiServer| {
        let of = |e: &Value| e["reason"] == "SessionAttachmentsDenied";
        api.all("events").into_iter().find(of)
    };
    let event = api.wait("the event", told).await;
    assert_eq!(event["regarding"]["kind"], "Session");
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_a_sessions_own_is_read_in_its_namespace_and_rotates() {
    let (api, _operator, _gateway) = serving().await;
    let mut own = target("issues", "https://issues.example.com/");
    own["http"]["credential"] = json!({"secretKeyRef": {"name": "token", "key": "k"}});
    api.apply("sessions", with(&[own]));
    let held = until(&api, "sessions", "job", "Ready", false, "WaitingForAttachments").await;
    let said = message(&held, "Ready");
    assert!(said.contains("issues (SecretNotFound)"), "{said}");
    assert!(said.contains("spec.attachments[issues].http.credential names"), "{said}");
    api.apply("secrets", secret("token", "k", "hunter2"));
    let files = ("Agent", "files", 1, "Active");
    until_entries(&api, &[files, ("Session", "issues", 2, "Active")]).await;
    api.apply("secrets", secret("token", "k", "hunter3"));
    until_entries(&api, &[files, ("Session", "issues", 3, "Active")]).await;
    assert!(!api.dump().contains("hunter"), "a value leaked");
}

#[tokio::test(start_paused = true)]
async fn one_of_several_sessions_that_outranks_it_says_nothing_of_the_agents_attachment() {
    let (api, _operator, _gateway) = serving().await;
    api.apply("sessions", session("other", "coder"));
    until(&api, "sessions", "other", "Ready", true, "Ready").await;
    api.apply("sessions", with(&[target("files", "https://own.example.com/")]));
    until_entries(&api, &[("Session", "files", 2, "Active")]).await;
    let files = until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    assert!(condition(&files, "Serving").0);
    let agent = until(&api, "agents", "coder", "Ready", true, "Ready").await;
    assert_eq!(agent["status"]["attachments"], "1/1");
}

#[tokio::test(start_paused = true)]
async fn the_standing_session_of_an_agent_may_bring_some_too() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    let mut coder = agent("coder", &["issues"]);
    coder["spec"]["sessionAttachments"] = json!({"max": "Allow"});
    api.apply("agents", coder);
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    until(&api, "sessions", "coder", "Ready", true, "Ready").await;
    api.edit("sessions", NS, "coder", |session| {
        session["spec"]["attachments"] =
            json!([{"name": "files", "sandboxStdio": {"command": "server"}}]);
        session["spec"]["toolSets"] = json!([{"attachment": "files"}]);
    });
    until_states(&api, "files", &[(2, "Active")]).await;
    let pod = api.all("pods").pop().unwrap();
    let uid = text(&entries(&api, "coder")[1], "/attachmentUid");
    assert_eq!(pod["metadata"]["labels"]["awaken.dev/attachment-uid"], *uid);
    let session = until(&api, "sessions", "coder", "Ready", true, "Ready").await;
    assert_eq!(session["status"]["summary"], "2/2");
    // A request for another try is one for what the Session brings.
    api.edit("sessions", NS, "coder", |session| {
        session["metadata"]["annotations"] = json!({"awaken.dev/reconcile-requested-at": "t1"});
    });
    let answered = |api: &ApiServer| {
        let session = api.get("sessions", NS, "coder")?;
        (session["status"]["lastHandledReconcileAt"] == "t1").then_some(())
    };
    api.wait("the answer", answered).await;
}
