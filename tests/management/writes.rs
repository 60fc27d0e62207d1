//! What the changing tools write, and what they say when the API server says no.

use crate::{
    apiserver::text,
    desk::{Asked, Desk, agent, attachment, no, rbac, session, spec},
};
use awaken_operator::gateway::export::{ManagementContext, ManagementError};
use serde_json::{Value, json};

fn apply(extra: Value) -> Value {
    let mut arguments = json!({"namespace": "team-a", "name": "files", "spec": spec("coder")});
    for (key, value) in extra.as_object().unwrap() {
        arguments[key] = value.clone();
    }
    arguments
}

fn writes(desk: &Desk) -> Vec<Asked> {
    desk.asked().into_iter().filter(|a| a.method != "GET").collect()
}

fn patches(asked: &Asked) -> bool {
    asked.method == "PATCH"
}

#[tokio::test(start_paused = true)]
async fn an_apply_creates_then_changes_then_leaves() {
    let desk = Desk::new();
    let answer = desk.call("attachment_apply", apply(json!({"labels": {"team": "a"}}))).await;
    assert!(answer.text.starts_with("Created.\n"), "{}", answer.text);
    let applied = answer.good();
    assert_eq!((&applied["change"], &applied["dryRun"]), (&json!("Created"), &json!(false)));
    assert_eq!(applied["attachment"]["target"], "https://mcp.example.com/mcp");
    let stored = desk.api.get("mcpattachments", "team-a", "files").unwrap();
    assert_eq!(stored["spec"], spec("coder"));
    let mut other = apply(json!({}));
    other["spec"]["http"]["url"] = json!("https://other.example.com/mcp");
    assert_eq!(desk.call("attachment_apply", other.clone()).await.good()["change"], "Changed");
    assert_eq!(desk.call("attachment_apply", other).await.good()["change"], "Unchanged");
    let write = &writes(&desk)[0];
    assert_eq!(
        write.line(),
        "PATCH /apis/awaken.dev/v1alpha1/namespaces/team-a/mcpattachments/files"
    );
    for part in ["fieldManager=awaken-mcp", "fieldValidation=Strict", "force=false"] {
        assert!(write.query.contains(part) || part == "force=false", "{}", write.query);
    }
    assert!(!write.query.contains("force=true") && !write.query.contains("dryRun"));
    assert_eq!(
        write.body["metadata"],
        json!({"name": "files", "namespace": "team-a", "labels": {"team": "a"}})
    );
    assert_eq!(write.body["spec"], spec("coder"), "as it was sent");
}

#[tokio::test(start_paused = true)]
async fn nothing_that_was_not_sent_is_applied() {
    let desk = Desk::new();
    let sent = json!({"agentRef": {"name": "coder"}, "suspend": null, "limits": {"callTimeout": "90s"},
        "sandboxStdio": {"command": "c", "env": [{"name": "A"}]}});
    desk.call("attachment_apply", json!({"namespace": "team-a", "name": "files", "spec": sent}))
        .await;
    let mut expected = sent;
    expected.as_object_mut().unwrap().remove("suspend");
    assert_eq!(writes(&desk)[0].body["spec"], expected);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_writes_nothing_and_says_so() {
    let desk = Desk::new();
    let arguments = apply(json!({"dryRun": true, "waitSeconds": 60}));
    let answer = desk.call("attachment_apply", arguments).await;
    assert!(
        answer.text.starts_with("Created (dry run: nothing was written).\n"),
        "{}",
        answer.text
    );
    let applied = answer.good();
    assert_eq!((&applied["dryRun"], applied.get("waited")), (&json!(true), None));
    assert!(writes(&desk).iter().all(|w| w.query.contains("dryRun=All")));
    assert_eq!(desk.api.get("mcpattachments", "team-a", "files"), None);
}

#[tokio::test(start_paused = true)]
async fn force_is_passed_on() {
    let desk = Desk::new();
    desk.call("attachment_apply", apply(json!({"force": true}))).await.good();
    assert!(writes(&desk)[0].query.contains("force=true"));
}

#[tokio::test(start_paused = true)]
async fn another_managers_field_is_told_with_the_managers_name() {
    let desk = Desk::new();
    desk.script(|asked| {
        let cause = json!({"reason": "FieldManagerConflict", "field": ".spec.http.url",
            "message": "conflict with \"kustomize-controller\" using awaken.dev/v1alpha1"});
        patches(asked).then(|| no(409, "Conflict", "Apply failed with 1 conflict", &[cause]))
    });
    let answer = desk.call("attachment_apply", apply(json!({}))).await;
    assert_eq!(answer.failed(), ("FieldConflict".to_owned(), Some("spec.http.url".to_owned())));
    let message = answer.message();
    assert!(message.contains("kustomize-controller") && message.contains("force"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn what_admission_refuses_names_the_field() {
    for (code, message, causes, field) in [
        (
            422,
            "McpAttachment.awaken.dev \"files\" is invalid: spec: exactly one of",
            json!([{"reason": "FieldValueInvalid", "field": "spec",
                "message": "Invalid value: \"object\": exactly one of sandboxStdio and http must be set"}]),
            Some("spec"),
        ),
        (
            422,
            "too many",
            json!([{"reason": "FieldValueTooMany", "field": "spec.sandboxStdio.args",
                "message": "Too many: 65: must have at most 64 items"}]),
            Some("spec.sandboxStdio.args"),
        ),
        (
            400,
            "failed to create typed patch object: .spec.x: field not declared in schema; unknown field \"spec.x\"",
            json!([]),
            Some("spec.x"),
        ),
        (422, "ValidatingAdmissionPolicy 'no-http' denied request: not here", json!([]), None),
    ] {
        let desk = Desk::new();
        let causes = causes.as_array().unwrap().clone();
        let said = causes.first().map_or(message.to_owned(), |c| text(c, "/message"));
        desk.script(move |asked| patches(asked).then(|| no(code, "Invalid", message, &causes)));
        let answer = desk.call("attachment_apply", apply(json!({}))).await;
        assert_eq!(answer.failed(), ("InvalidArguments".to_owned(), field.map(str::to_owned)));
        assert!(answer.message().contains(&said), "{}", answer.message());
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_is_unknown_and_a_read_is_not() {
    let desk = Desk::new();
    // what answers is no API server
    desk.script(|asked| patches(asked).then(|| (200, json!("<html>"))));
    let ended =
        desk.call_with("attachment_apply", apply(json!({})), ManagementContext::default()).await;
    assert!(matches!(ended, Err(ManagementError::OutcomeUnknown(_))), "{ended:?}");
    desk.script(|_| Some((200, json!("<html>"))));
    let read = desk.call("attachment_get", json!({"namespace": "team-a", "name": "files"})).await;
    assert_eq!(read.failed().0, "ApiServerUnavailable");
}

#[tokio::test(start_paused = true)]
async fn a_delete_deletes_what_it_saw() {
    let desk = Desk::new();
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    let uid = text(&desk.api.get("mcpattachments", "team-a", "files").unwrap(), "/metadata/uid");
    let arguments = json!({"namespace": "team-a", "name": "files"});
    let gone = desk.call("attachment_delete", arguments.clone()).await.good();
    assert_eq!(gone["agent"], "coder");
    assert_eq!(desk.api.get("mcpattachments", "team-a", "files"), None);
    assert_eq!(writes(&desk)[0].body["preconditions"]["uid"], json!(uid));
    assert_eq!(desk.call("attachment_delete", arguments).await.failed().0, "NotFound");
}

#[tokio::test(start_paused = true)]
async fn a_retry_sets_the_annotation_and_nothing_else() {
    let desk = Desk::new();
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    let retried =
        desk.call("attachment_retry", json!({"namespace": "team-a", "name": "files"})).await.good();
    let write = &writes(&desk)[0];
    let at = retried["requestedAt"].clone();
    let expected = json!({"metadata": {"annotations": {"awaken.dev/reconcile-requested-at": at}}});
    assert_eq!(write.body, expected);
    assert!(write.query.contains("fieldManager=awaken-mcp"));
    let files = desk.api.get("mcpattachments", "team-a", "files").unwrap();
    assert_eq!(files["metadata"]["annotations"]["awaken.dev/reconcile-requested-at"], at);
    assert_eq!(files["spec"], spec("coder"));
}

#[tokio::test(start_paused = true)]
async fn a_session_gets_the_name_that_was_asked_for_or_one_of_its_own() {
    let desk = Desk::new();
    desk.api.apply("agents", agent("team-a", "writer", "OnDemand"));
    let arguments = json!({"namespace": "team-a", "agent": "writer", "name": "mine"});
    let made = desk.call("session_create", arguments.clone()).await;
    assert!(made.text.starts_with("Created the Session team-a/mine; end it with session_close."));
    assert_eq!(made.good()["session"]["endpoint"], "/v1/sessions/team-a/mine/mcp");
    let spec = desk.api.get("sessions", "team-a", "mine").unwrap()["spec"].clone();
    assert_eq!(spec, json!({"agentRef": {"name": "writer"}}));
    desk.script(|asked| {
        let taken = asked.method == "POST" && asked.body["metadata"]["name"] == "mine";
        taken.then(|| no(409, "AlreadyExists", "sessions.awaken.dev \"mine\" already exists", &[]))
    });
    assert_eq!(desk.call("session_create", arguments).await.failed().0, "AlreadyExists");
    let made = desk.call("session_create", json!({"namespace": "team-a", "agent": "writer"})).await;
    assert_eq!(made.good()["session"]["name"], "writer-x7k2q");
    let long = format!("{}.a", "a".repeat(251));
    desk.api.apply("agents", agent("team-a", &long, "OnDemand"));
    let made = desk.call("session_create", json!({"namespace": "team-a", "agent": long})).await;
    assert!(text(&made.good(), "/session/name").len() <= 253);
}

#[tokio::test(start_paused = true)]
async fn a_standing_agent_takes_no_session_and_keeps_its_own() {
    let desk = Desk::new();
    desk.api.apply("agents", agent("team-a", "coder", "Standing"));
    let made = desk.call("session_create", json!({"namespace": "team-a", "agent": "coder"})).await;
    assert_eq!(made.failed(), ("SessionNotOnDemand".to_owned(), Some("agent".to_owned())));
    let mut standing = session("team-a", "coder", "coder");
    standing["metadata"]["ownerReferences"] = json!([{"apiVersion": "awaken.dev/v1alpha1",
        "kind": "Agent", "name": "coder", "uid": "u1", "controller": true}]);
    desk.api.apply("sessions", standing);
    let closed = desk.call("session_close", json!({"namespace": "team-a", "name": "coder"})).await;
    assert_eq!(closed.failed(), ("SessionNotOnDemand".to_owned(), Some("name".to_owned())));
    assert!(closed.message().contains("suspend its attachments"), "{}", closed.message());
    assert!(writes(&desk).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_closed_is_deleted() {
    let desk = Desk::new();
    desk.api.apply("sessions", session("team-a", "mine", "writer"));
    let arguments = json!({"namespace": "team-a", "name": "mine"});
    assert_eq!(desk.call("session_close", arguments).await.good()["agent"], "writer");
    assert_eq!(desk.api.get("sessions", "team-a", "mine"), None);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_can_still_go_unless_an_agent_keeps_it() {
    let desk = Desk::new();
    let mut mine = session("team-a", "mine", "writer");
    mine["spec"]["agentRef"] = json!(7);
    let mut standing = mine.clone();
    standing["metadata"] = json!({"name": "coder", "namespace": "team-a",
        "ownerReferences": [{"apiVersion": "awaken.dev/v1alpha1",
            "kind": "Agent", "name": "coder", "uid": "u1", "controller": true}]});
    let mut files = attachment("team-a", "files", "coder");
    files["spec"]["agentRef"] = json!(7);
    desk.api.apply("sessions", mine);
    desk.api.apply("sessions", standing);
    desk.api.apply("mcpattachments", files);
    let of = |name: &str| json!({"namespace": "team-a", "name": name, "waitSeconds": 60});
    let kept = desk.call("session_close", of("coder")).await;
    assert_eq!(kept.failed(), ("SessionNotOnDemand".to_owned(), Some("name".to_owned())));
    for (tool, name, plural) in
        [("session_close", "mine", "sessions"), ("attachment_delete", "files", "mcpattachments")]
    {
        let uid = text(&desk.api.get(plural, "team-a", name).unwrap(), "/metadata/uid");
        let answer = desk.call(tool, of(name)).await;
        assert!(answer.text.contains(&format!("team-a/{name} (uid {uid}) is")), "{}", answer.text);
        let gone = answer.good();
        assert_eq!((gone.get("agent"), &gone["waited"]["state"]), (None, &json!("Gone")), "{tool}");
        assert_eq!(desk.api.get(plural, "team-a", name), None);
        let deletes: Vec<_> =
            writes(&desk).into_iter().filter(|w| w.path.ends_with(name)).collect();
        assert_eq!(deletes[0].body["preconditions"]["uid"], json!(uid), "{tool}");
    }
    // and what an unreadable Session runs is not taken for nothing
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    let gone = desk.call("attachment_delete", of("files")).await.good();
    assert!(text(&gone, "/waited/message").ends_with("that can be read; 1 cannot."), "{gone}");
}

#[tokio::test(start_paused = true)]
async fn rights_for_reading_alone_write_nothing() {
    let desk = Desk::new();
    desk.api.apply("agents", agent("team-a", "writer", "OnDemand"));
    desk.api.apply("mcpattachments", attachment("team-a", "files", "coder"));
    desk.api.apply("sessions", session("team-a", "mine", "writer"));
    desk.script(|asked| (asked.method != "GET").then(rbac));
    for (tool, arguments) in [
        ("attachment_apply", apply(json!({}))),
        ("attachment_delete", json!({"namespace": "team-a", "name": "files"})),
        ("attachment_retry", json!({"namespace": "team-a", "name": "files"})),
        ("session_create", json!({"namespace": "team-a", "agent": "writer"})),
        ("session_close", json!({"namespace": "team-a", "name": "mine"})),
    ] {
        assert_eq!(desk.call(tool, arguments).await.failed().0, "Forbidden", "{tool}");
    }
    assert!(desk.api.writes().is_empty());
}
