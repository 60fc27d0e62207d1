//! Waits: each end, with what is reported on the way. In virtual time.

use crate::{
    apiserver::{ApiServer, text},
    desk::{Desk, agent, attachment, entry, listening, rbac, ready, session, spec},
};
use awaken_operator::{
    api::McpAttachment,
    gateway::export::{ManagementContext, ManagementError},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

fn apply(wait: u32) -> Value {
    json!({"namespace": "team-a", "name": "files", "spec": spec("coder"), "waitSeconds": wait})
}

/// Waits until somebody watches the plural.
async fn watched(desk: &Desk, plural: &str) {
    let path = format!("/{plural}");
    let watches =
        || desk.asked().iter().any(|a| a.path.ends_with(&path) && a.query.contains("watch"));
    for _ in 0..10_000 {
        if watches() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("nobody watches {plural}");
}

fn says(api: &ApiServer, plural: &str, name: &str, status: bool, reason: &str, message: &str) {
    let object = api.get(plural, "team-a", name).unwrap();
    let generation = object["metadata"]["generation"].as_i64().unwrap();
    let old = object["status"].clone();
    let mut new = ready(status, reason, message, generation);
    if old["lastHandledReconcileAt"].is_string() {
        new["lastHandledReconcileAt"] = old["lastHandledReconcileAt"].clone();
    }
    api.set_status(plural, "team-a", name, new);
}

#[tokio::test(start_paused = true)]
async fn an_apply_waits_for_ready_and_reports_the_way() {
    let desk = Arc::new(Desk::new());
    let (context, heard) = listening();
    let calling = tokio::spawn({
        let desk = desk.clone();
        async move { desk.call_with("attachment_apply", apply(60), context).await.unwrap() }
    });
    watched(&desk, "mcpattachments").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    says(&desk.api, "mcpattachments", "files", false, "Realizing", "Being started.");
    tokio::time::sleep(Duration::from_secs(12)).await;
    // another one of the namespace is none of ours
    desk.api.apply("mcpattachments", attachment("team-a", "other", "coder"));
    says(&desk.api, "mcpattachments", "other", true, "Active", "Not this one.");
    tokio::time::sleep(Duration::from_secs(1)).await;
    says(&desk.api, "mcpattachments", "files", true, "Active", "Generation 1 serves.");
    let answer = calling.await.unwrap();
    assert!(
        answer.text.contains("Waited 15 s: Ready. Active: Generation 1 serves."),
        "{}",
        answer.text
    );
    let applied = answer.good();
    assert_eq!(applied["waited"]["state"], "Ready");
    assert_eq!(applied["attachment"]["health"]["ready"], true);
    let heard = heard.lock().unwrap();
    let messages: Vec<_> = heard.iter().map(|r| r.message.as_str()).collect();
    assert!(messages.contains(&"Realizing: Being started."), "{messages:?}");
    assert_eq!(messages.last(), Some(&"Active: Generation 1 serves."));
    assert!(!messages.iter().any(|m| m.contains("Not this one")), "{messages:?}");
    // repeated while nothing changes, and never going back
    assert!(heard.iter().filter(|r| r.message.starts_with("Realizing")).count() >= 3);
    assert!(heard.windows(2).all(|pair| pair[0].progress <= pair[1].progress), "{heard:?}");
    assert!(heard.iter().all(|r| r.total == Some(60.0)));
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_ends_the_wait_and_the_write_stands() {
    let desk = Arc::new(Desk::new());
    let calling = tokio::spawn({
        let desk = desk.clone();
        async move { desk.call("attachment_apply", apply(300)).await }
    });
    watched(&desk, "mcpattachments").await;
    says(
        &desk.api,
        "mcpattachments",
        "files",
        false,
        "SecretNotFound",
        "There is no Secret files-token.",
    );
    let answer = calling.await.unwrap();
    let (reason, message) = answer.after();
    assert_eq!(reason, "SecretNotFound");
    assert_eq!(
        message,
        "There is no Secret files-token. Create the Secret; the next try follows at once."
    );
    assert_eq!(answer.structured["waited"]["state"], "Failed");
    assert_eq!(answer.structured["change"], "Created", "it was applied");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_time_is_no_failure_and_says_so() {
    let desk = Arc::new(Desk::new());
    let calling = tokio::spawn({
        let desk = desk.clone();
        async move { desk.call("attachment_apply", apply(30)).await }
    });
    watched(&desk, "mcpattachments").await;
    says(&desk.api, "mcpattachments", "files", false, "ImagePullFailed", "No such image.");
    let answer = calling.await.unwrap();
    assert!(answer.text.contains("that is no failure, it goes on by itself"), "{}", answer.text);
    let applied = answer.good();
    let expected =
        json!({"state": "TimedOut", "seconds": 30, "message": "ImagePullFailed: No such image."});
    assert_eq!(applied["waited"], expected);
    assert_eq!(applied["attachment"]["health"]["reason"], "ImagePullFailed");
}

#[tokio::test(start_paused = true)]
async fn a_status_of_the_spec_before_ends_no_wait() {
    let desk = Desk::new();
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    says(&desk.api, "mcpattachments", "files", true, "Active", "Generation 1 serves.");
    let mut arguments = apply(20);
    arguments["spec"]["http"]["url"] = json!("https://other.example.com/mcp");
    let applied = desk.call("attachment_apply", arguments).await.good();
    assert_eq!(applied["waited"]["state"], "TimedOut");
    assert_eq!(applied["attachment"]["health"]["upToDate"], false);
    // and what is so already is waited for no moment
    let mut arguments = apply(20);
    arguments["spec"]["http"]["url"] = json!("https://other.example.com/mcp");
    says(&desk.api, "mcpattachments", "files", true, "Active", "Generation 2 serves.");
    let applied = desk.call("attachment_apply", arguments).await.good();
    assert_eq!(
        (&applied["change"], &applied["waited"]["seconds"]),
        (&json!("Unchanged"), &json!(0))
    );
}

#[tokio::test(start_paused = true)]
async fn an_apply_that_another_one_replaced_ends_its_wait() {
    let desk = Arc::new(Desk::new());
    let calling = tokio::spawn({
        let desk = desk.clone();
        async move { desk.call("attachment_apply", apply(60)).await }
    });
    watched(&desk, "mcpattachments").await;
    let mut arguments = apply(0);
    arguments["spec"]["http"]["url"] = json!("https://other.example.com/mcp");
    assert_eq!(desk.call("attachment_apply", arguments).await.good()["change"], "Changed");
    // in service is the later one, and no word of that is for the first caller
    says(&desk.api, "mcpattachments", "files", true, "Active", "Generation 2 serves.");
    let applied = calling.await.unwrap().good();
    assert_eq!(applied["waited"]["state"], "Superseded", "{applied}");
}

#[tokio::test(start_paused = true)]
async fn what_is_being_deleted_takes_no_apply_and_promises_no_try() {
    let desk = Desk::new();
    let mut held = attachment("team-a", "files", "coder");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    desk.api.apply("mcpattachments", held);
    desk.api.delete("mcpattachments", "team-a", "files");
    let before = desk.api.get("mcpattachments", "team-a", "files").unwrap();
    let refused = desk.call("attachment_apply", apply(60)).await;
    assert_eq!(refused.failed().0, "FieldConflict");
    assert!(refused.message().contains("is being deleted"), "{}", refused.message());
    assert_eq!(desk.api.get("mcpattachments", "team-a", "files").unwrap(), before);
    for wait in [0, 60] {
        let arguments = json!({"namespace": "team-a", "name": "files", "waitSeconds": wait});
        let retried = desk.call("attachment_retry", arguments).await;
        let (reason, message) = retried.after();
        assert!(reason == "FieldConflict" && message.contains("is being deleted"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspended_one_is_settled() {
    let desk = Arc::new(Desk::new());
    let calling = tokio::spawn({
        let desk = desk.clone();
        let mut arguments = apply(60);
        arguments["spec"]["suspend"] = json!(true);
        async move { desk.call("attachment_apply", arguments).await }
    });
    watched(&desk, "mcpattachments").await;
    says(&desk.api, "mcpattachments", "files", false, "Suspended", "spec.suspend is true.");
    assert_eq!(calling.await.unwrap().good()["waited"]["state"], "Settled");
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_meanwhile_is_not_found() {
    let desk = Arc::new(Desk::new());
    let calling = tokio::spawn({
        let desk = desk.clone();
        async move { desk.call("attachment_apply", apply(60)).await }
    });
    watched(&desk, "mcpattachments").await;
    desk.api.delete("mcpattachments", "team-a", "files");
    let answer = calling.await.unwrap();
    assert_eq!(
        (answer.after().0.as_str(), &answer.structured["waited"]["state"]),
        ("NotFound", &json!("Gone"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_ends_at_once_and_what_was_written_stays() {
    let desk = Arc::new(Desk::new());
    let context = ManagementContext::default();
    let cancel = context.cancel.clone();
    let calling = tokio::spawn({
        let desk = desk.clone();
        async move { desk.call_with("attachment_apply", apply(300), context).await }
    });
    watched(&desk, "mcpattachments").await;
    let before = tokio::time::Instant::now();
    cancel.cancel();
    let ended = calling.await.unwrap();
    assert_eq!(ended.unwrap_err(), ManagementError::Cancelled);
    assert!(before.elapsed() < Duration::from_secs(1));
    assert!(desk.api.get("mcpattachments", "team-a", "files").is_some());
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_watch_the_wait_says_so() {
    let desk = Desk::new();
    desk.script(|asked| {
        let listing = asked.method == "GET" && asked.path.ends_with("/mcpattachments");
        listing.then(rbac)
    });
    let answer = desk.call("attachment_apply", apply(60)).await;
    let (reason, message) = answer.after();
    assert_eq!(reason, "Forbidden");
    assert!(message.contains("Watching the McpAttachment files"), "{message}");
    let stored = desk.api.get("mcpattachments", "team-a", "files").unwrap();
    let meta = |name: &str| stored["metadata"][name].clone();
    let expected = json!({"namespace": "team-a", "name": "files", "uid": meta("uid"),
        "resourceVersion": meta("resourceVersion")});
    assert_eq!(answer.structured["written"], expected, "what was written is told");
    assert_eq!(answer.structured["change"], "Created");
    assert_eq!(answer.structured.get("waited"), None);
}

/// Everything that follows a write fails: the write is told all the same.
#[tokio::test(start_paused = true)]
async fn no_failure_after_a_write_hides_the_write() {
    for (tool, more, kept) in [
        ("attachment_apply", json!({"spec": spec("coder")}), true),
        ("attachment_retry", json!({}), true),
        ("attachment_delete", json!({}), false),
        ("session_create", json!({"agent": "writer"}), true),
        ("session_close", json!({}), false),
    ] {
        let desk = Desk::new();
        desk.api.apply("agents", agent("team-a", "writer", "OnDemand"));
        desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
        if tool == "session_close" {
            desk.api.apply("sessions", session("team-a", "files", "writer"));
        }
        let plural = if tool.starts_with("session") { "sessions" } else { "mcpattachments" };
        let before = desk.api.get(plural, "team-a", "files");
        // no list and no watch, which every wait needs, and what an attachment's view needs
        desk.script(|asked| {
            let lists =
                asked.path.ends_with("/mcpattachments") || asked.path.ends_with("/sessions");
            (asked.method == "GET" && lists).then(rbac)
        });
        let mut arguments = json!({"namespace": "team-a", "name": "files", "waitSeconds": 60});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = desk.call(tool, arguments).await;
        assert_eq!(answer.after().0, "Forbidden", "{tool}");
        let told = if kept { &answer.structured["written"] } else { &answer.structured };
        let stored = desk.api.get(plural, "team-a", "files");
        assert_eq!(stored.is_some(), kept, "{tool}");
        let meta = stored.or(before).unwrap()["metadata"].clone();
        for part in ["namespace", "name", "uid", "resourceVersion"] {
            assert_eq!(told[part], meta[part], "{tool} {part}");
        }
        assert!(answer.text.contains(meta["uid"].as_str().unwrap()), "{}", answer.text);
        if plural == "mcpattachments" && kept {
            let why = text(&answer.structured, "/attachment/incomplete");
            assert!(why.contains("Listing Sessions"), "{why}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_written_and_cannot_be_read_is_told() {
    let desk = Desk::new();
    desk.api.apply("agents", agent("team-a", "writer", "OnDemand"));
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    // of another version, as far as this one can tell
    desk.script(|asked| {
        let odd = |kind: &str, name: &str| json!({"apiVersion": "awaken.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": "team-a", "uid": "u-9", "resourceVersion": "31"},
            "spec": {"agentRef": 7}});
        match asked.method.as_str() {
            "PATCH" => Some((200, odd("McpAttachment", "files"))),
            "POST" => Some((201, odd("Session", "mine"))),
            _ => None,
        }
    });
    for (tool, arguments, object) in [
        ("attachment_apply", apply(0), "attachment"),
        ("attachment_retry", json!({"namespace": "team-a", "name": "files"}), "attachment"),
        ("session_create", json!({"namespace": "team-a", "agent": "writer"}), "session"),
    ] {
        let answer = desk.call(tool, arguments).await;
        assert_eq!(answer.after().0, "UnreadableObject", "{tool}");
        let written = &answer.structured["written"];
        assert_eq!((&written["uid"], &written["resourceVersion"]), (&json!("u-9"), &json!("31")));
        assert_eq!(answer.structured.get(object), None, "{tool}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_another_one_replaced_ends_its_wait() {
    for replaced in [Some("2030-01-01T00:00:00Z"), None] {
        let desk = Arc::new(Desk::new());
        desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
        let calling = tokio::spawn({
            let desk = desk.clone();
            let arguments = json!({"namespace": "team-a", "name": "files", "waitSeconds": 60});
            async move { desk.call("attachment_retry", arguments).await }
        });
        watched(&desk, "mcpattachments").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!calling.is_finished());
        let patch =
            json!({"metadata": {"annotations": {"awaken.dev/reconcile-requested-at": replaced}}});
        let user: Api<McpAttachment> = Api::namespaced(desk.api.client("user"), "team-a");
        user.patch("files", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        let retried = calling.await.unwrap().good();
        let waited = &retried["waited"];
        assert_eq!((&waited["state"], &waited["seconds"]), (&json!("Superseded"), &json!(2)));
        let says = replaced.unwrap_or("took the request away");
        assert!(text(waited, "/message").contains(says), "{waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_for_the_try_and_not_for_what_was() {
    let desk = Arc::new(Desk::new());
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    says(&desk.api, "mcpattachments", "files", false, "CommandNotFound", "Still the old failure.");
    let calling = tokio::spawn({
        let desk = desk.clone();
        let arguments = json!({"namespace": "team-a", "name": "files", "waitSeconds": 60});
        async move { desk.call("attachment_retry", arguments).await }
    });
    watched(&desk, "mcpattachments").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let files = desk.api.get("mcpattachments", "team-a", "files").unwrap();
    let at = files["metadata"]["annotations"]["awaken.dev/reconcile-requested-at"].clone();
    let mut status = ready(true, "Active", "Generation 2 serves.", 1);
    status["lastHandledReconcileAt"] = at;
    desk.api.set_status("mcpattachments", "team-a", "files", status);
    let retried = calling.await.unwrap().good();
    assert_eq!(
        (&retried["waited"]["state"], &retried["waited"]["seconds"]),
        (&json!("Ready"), &json!(3))
    );
}

#[tokio::test(start_paused = true)]
async fn a_delete_waits_until_no_session_runs_anything_of_it() {
    let desk = Arc::new(Desk::new());
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    let uid = text(&desk.api.get("mcpattachments", "team-a", "files").unwrap(), "/metadata/uid");
    desk.api.apply("sessions", session("team-a", "one", "coder"));
    desk.api.apply("sessions", session("team-a", "two", "coder"));
    let with = |entries: Value| json!({"lastGeneration": 2, "attachments": entries});
    let draining = || entry("files", &uid, 2, "Draining");
    let other = entry("issues", "another-uid", 1, "Active");
    desk.api.set_status("sessions", "team-a", "one", with(json!([draining(), other])));
    desk.api.set_status("sessions", "team-a", "two", with(json!([draining()])));
    let (context, heard) = listening();
    let calling = tokio::spawn({
        let desk = desk.clone();
        let arguments = json!({"namespace": "team-a", "name": "files", "waitSeconds": 60});
        async move { desk.call_with("attachment_delete", arguments, context).await.unwrap() }
    });
    watched(&desk, "sessions").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    desk.api.set_status("sessions", "team-a", "one", with(json!([other])));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!calling.is_finished());
    desk.api.remove("sessions", "team-a", "two");
    let gone = calling.await.unwrap().good();
    assert_eq!(
        gone["waited"],
        json!({"state": "Gone", "seconds": 2, "message": "Nothing of it runs any more."})
    );
    let heard: Vec<_> = heard.lock().unwrap().iter().map(|r| r.message.clone()).collect();
    assert_eq!(heard[0], "Draining: 2 generations of it are not gone yet.");
    assert_eq!(heard[1], "Draining: 1 generations of it are not gone yet.");
}

#[tokio::test(start_paused = true)]
async fn a_session_is_waited_for_and_closed_until_nothing_remains() {
    let desk = Arc::new(Desk::new());
    desk.api.apply("agents", agent("team-a", "writer", "OnDemand"));
    let calling = tokio::spawn({
        let desk = desk.clone();
        let arguments =
            json!({"namespace": "team-a", "agent": "writer", "name": "mine", "waitSeconds": 60});
        async move { desk.call("session_create", arguments).await }
    });
    watched(&desk, "sessions").await;
    says(&desk.api, "sessions", "mine", true, "Ready", "All serve.");
    assert_eq!(calling.await.unwrap().good()["waited"]["state"], "Ready");

    let mut held = desk.api.get("sessions", "team-a", "mine").unwrap();
    held["metadata"]["finalizers"] = json!(["awaken.dev/drain"]);
    desk.api.remove("sessions", "team-a", "mine");
    desk.api.apply("sessions", held);
    let before = desk.asked().len();
    let calling = tokio::spawn({
        let desk = desk.clone();
        let arguments = json!({"namespace": "team-a", "name": "mine", "waitSeconds": 60});
        async move { desk.call("session_close", arguments).await }
    });
    while !desk.asked()[before..].iter().any(|a| a.query.contains("watch")) {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!calling.is_finished());
    desk.api.remove("sessions", "team-a", "mine");
    let closed = calling.await.unwrap().good();
    assert_eq!(
        (&closed["waited"]["state"], &closed["waited"]["seconds"]),
        (&json!("Gone"), &json!(4))
    );
}
