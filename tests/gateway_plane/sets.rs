//! A Session's own set over REST: who may, what is refused, and that a refusal changes nothing.

use super::{apiserver::text, support::*};
use axum::{body::Body, http::StatusCode};
use rstest::rstest;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

pub const SET: &str = "/v1/sessions/team-a/job/attachments";
pub const OPEN: &str = "/v1/sessions/team-a";

/// Agents of both modes, one of which lets its Sessions bring what they want, and a Session of it.
pub fn world() -> World {
    let world = World::new();
    let agent = |name: &str, spec: Value| {
        json!({"apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": name, "namespace": "team-a"}, "spec": spec})
    };
    let on_demand = json!({"mode": "OnDemand"});
    let leave = json!({"max": "Allow"});
    world
        .api
        .apply("agents", agent("open", json!({"session": on_demand, "sessionAttachments": leave})));
    world.api.apply("agents", agent("closed", json!({"session": on_demand})));
    world.api.apply("agents", agent("standing", json!({"sessionAttachments": leave})));
    let session = json!({"apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
        "metadata": {"name": "job", "namespace": "team-a", "labels": {"of": "a user"}},
        "spec": {"agentRef": {"name": "open"}, "attachments": one("before")["attachments"],
            "toolSets": one("before")["toolSets"], "later": "a field of a later version"}});
    world.api.apply("sessions", session);
    world
}

pub fn one(name: &str) -> Value {
    json!({
        "attachments": [{"name": name, "http": {"url": format!("https://{name}.example.com/mcp")}}],
        "toolSets": [{"attachment": name, "defaultPermission": "Allow"}],
    })
}

pub fn opening(agent: &str, set: Value) -> Value {
    let mut body = set;
    body["agentRef"] = json!({"name": agent});
    body
}

async fn send(world: &World, method: &str, path: &str, token: Option<&str>, body: &str) -> Reply {
    let mut request = request(method, path, token);
    *request.body_mut() = Body::from(body.to_owned());
    world.send(request).await
}

fn stored(world: &World) -> Value {
    world.api.get("sessions", "team-a", "job").unwrap()
}

#[tokio::test]
async fn a_set_is_replaced_whole_and_nothing_else_is_touched() {
    let world = world();
    let before = stored(&world);
    let reply = send(&world, "PUT", SET, Some(TOKEN), &one("after").to_string()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
    let said = reply.json();
    assert_eq!(
        (&said["attachments"], &said["toolSets"]),
        (&one("after")["attachments"], &one("after")["toolSets"])
    );
    let after = stored(&world);
    assert_eq!(said["uid"], after["metadata"]["uid"]);
    assert_eq!(after["spec"]["attachments"], one("after")["attachments"]);
    assert_eq!(after["spec"]["later"], "a field of a later version");
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    let shown = send(&world, "GET", SET, Some(KNOWING_TOKEN), "").await;
    assert_eq!(shown.json(), said);
    // Nothing is a set too, and takes the ToolSets out with the attachments.
    let none = send(&world, "PUT", SET, Some(TOKEN), r#"{"attachments": []}"#).await;
    assert_eq!((none.status, &none.json()["toolSets"]), (StatusCode::OK, &json!([])));
    let writes: Vec<_> = world.api.writes().into_iter().map(|w| (w.actor, w.verb)).collect();
    assert_eq!(writes, [("gateway", "replace"), ("gateway", "replace")]);
}

#[tokio::test]
async fn how_the_sessions_own_do_is_shown_and_the_agents_are_not() {
    let world = world();
    let entry = |generation: i64, name: &str, origin: &str| {
        json!({"generation": generation, "attachment": name, "attachmentUid": "u", "origin": origin,
            "server": name, "source": "s", "state": "Failed", "target": {"http": {"url": "https://h/"}},
            "limits": {"startupTimeoutMs": 1, "callTimeoutMs": 2, "drainTimeoutMs": 3,
                "maxConcurrentCalls": 4, "maxMessageBytes": 5555},
            "reason": "Unauthorized", "message": "401", "since": "2026-01-01T00:00:00Z"})
    };
    let status =
        json!({"attachments": [entry(1, "files", "Agent"), entry(2, "before", "Session")]});
    world.api.set_status("sessions", "team-a", "job", status);
    let shown = send(&world, "GET", SET, Some(TOKEN), "").await.json();
    let expected = json!([{"attachment": "before", "generation": 2, "state": "Failed",
        "reason": "Unauthorized", "message": "401"}]);
    assert_eq!(shown["generations"], expected);
}

#[tokio::test]
async fn a_write_that_somebody_was_faster_than_is_made_on_what_they_wrote() {
    let world = world();
    let tries = AtomicUsize::new(0);
    let api = world.api.clone();
    world.api.refuse(move |write, _| {
        let first = write.verb == "replace" && tries.fetch_add(1, Ordering::SeqCst) < 2;
        first.then(|| (409, "the object has been modified".to_owned()))
    });
    let reply = send(&world, "PUT", SET, Some(TOKEN), &one("after").to_string()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
    assert_eq!(
        api.get("sessions", "team-a", "job").unwrap()["spec"]["attachments"],
        one("after")["attachments"]
    );
}

#[rstest]
#[case::no_token(None, "PUT", 401)]
#[case::stranger(Some(OTHER_TOKEN), "PUT", 404)]
#[case::viewer(Some(KNOWING_TOKEN), "PUT", 403)]
#[case::stranger_reads(Some(OTHER_TOKEN), "GET", 404)]
#[case::no_token_reads(None, "GET", 401)]
#[tokio::test]
async fn who_may_not_changes_nothing(
    #[case] token: Option<&str>,
    #[case] method: &str,
    #[case] status: u16,
) {
    let world = world();
    let reply = send(&world, method, SET, token, &one("after").to_string()).await;
    assert_eq!(reply.status.as_u16(), status, "{}", reply.text);
    let paths = [OPEN, "/v1/sessions/team-z"];
    for path in paths.iter().filter(|_| method == "PUT") {
        let body = opening("open", one("mine")).to_string();
        let reply = send(&world, "POST", path, token, &body).await;
        let expected = if *path == OPEN || token.is_none() { status } else { 404 };
        assert_eq!(reply.status.as_u16(), expected, "{path}: {}", reply.text);
    }
    assert!(world.api.writes().is_empty() && world.api.reads().is_empty());
}

#[rstest]
#[case("/v1/sessions/team-a/job%2Fstatus/attachments")]
#[case("/v1/sessions/team-a/..%2F..%2Fsecrets%2Fx/attachments")]
#[case("/v1/sessions/team-a/Job/attachments")]
#[case("/v1/sessions/team-a/%2e%2e/attachments")]
#[case("/v1/sessions/team-a/nothing/attachments")]
#[tokio::test]
async fn what_no_session_is_named_is_not_there(#[case] path: &str) {
    let world = world();
    for method in ["GET", "PUT"] {
        let reply = send(&world, method, path, Some(TOKEN), &one("after").to_string()).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{method}: {}", reply.text);
    }
    assert!(world.api.writes().is_empty());
    let reads = world.api.reads();
    assert!(reads.iter().all(|read| read == "sessions/team-a/nothing"), "{reads:?}");
}

/// The table that docs/kinds/session.md speaks of: nothing of it leaves a trace.
#[rstest]
#[case::no_body("", "InvalidRequest")]
#[case::no_json("{", "InvalidRequest")]
#[case::a_list("[]", "InvalidRequest")]
#[case::unknown_field(r#"{"attachments": [], "spec": {}}"#, "InvalidRequest")]
#[case::a_field_twice(r#"{"attachments": [], "attachments": []}"#, "InvalidRequest")]
#[case::a_secret_in_clear(
    r#"{"attachments": [{"name": "a", "http": {"url": "https://h/", "token": "t"}}]}"#,
    "InvalidRequest"
)]
#[case::half_a_set(
    r#"{"attachments": [{"name": "a", "http": {"url": "https://h/"}}]}"#,
    "ToolSetMissing"
)]
#[case::forbidden(
    r#"{"attachments": [{"name": "a", "http": {"url": "http://169.254.169.254/"}}], "toolSets": [{"attachment": "a"}]}"#,
    "TargetForbidden"
)]
#[case::nowhere_to_run(
    r#"{"attachments": [{"name": "a", "sandboxStdio": {"command": "c"}}], "toolSets": [{"attachment": "a"}]}"#,
    "EnvironmentMissing"
)]
#[tokio::test]
async fn a_set_that_cannot_be_taken_is_400(#[case] body: &str, #[case] reason: &str) {
    let world = world();
    let before = stored(&world);
    let put = send(&world, "PUT", SET, Some(TOKEN), body).await;
    assert_eq!((put.status, &*put.reason()), (StatusCode::BAD_REQUEST, reason), "{}", put.text);
    assert_eq!(put.json()["error"]["type"], "invalid_request_error");
    let body = serde_json::from_str(body).map_or(body.to_owned(), |set: Value| match set {
        Value::Object(_) if !body.contains(", \"attachments\"") => opening("open", set).to_string(),
        _ => body.to_owned(),
    });
    let open = send(&world, "POST", OPEN, Some(TOKEN), &body).await;
    assert_eq!((open.status, &*open.reason()), (StatusCode::BAD_REQUEST, reason), "{}", open.text);
    assert_eq!(stored(&world), before);
    assert_eq!(world.api.all("sessions").len(), 1);
    assert!(world.api.writes().is_empty());
}

#[tokio::test]
async fn a_body_that_is_too_long_is_400() {
    let world = world();
    let reply = send(&world, "PUT", SET, Some(TOKEN), &" ".repeat((1 << 20) + 1)).await;
    assert_eq!((reply.status, &*reply.reason()), (StatusCode::BAD_REQUEST, "MessageTooLarge"));
}

#[tokio::test]
async fn a_session_is_opened_with_its_set() {
    let world = world();
    let mut body = opening("open", one("mine"));
    let reply = send(&world, "POST", OPEN, Some(TOKEN), &body.to_string()).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.text);
    let name = text(&reply.json(), "/name");
    assert!(name.starts_with("open-"), "{name}");
    assert_eq!(reply.headers["location"], format!("/v1/sessions/team-a/{name}").as_str());
    let made = world.api.get("sessions", "team-a", &name).unwrap();
    let mut spec = one("mine");
    spec["agentRef"] = json!({"name": "open"});
    assert_eq!(made["spec"], spec);
    body["name"] = json!("named");
    let named = send(&world, "POST", OPEN, Some(TOKEN), &body.to_string()).await;
    assert_eq!((named.status, text(&named.json(), "/name")), (StatusCode::CREATED, "named".into()));
}

#[rstest]
#[case::no_agent(json!({"attachments": []}), "InvalidRequest")]
#[case::agent_by_path(opening("../x", json!({})), "InvalidRequest")]
#[case::unknown_agent(opening("nobody", json!({})), "AgentNotFound")]
#[case::standing(opening("standing", json!({})), "SessionNotOnDemand")]
#[case::without_leave(opening("closed", one("mine")), "SessionAttachmentsDenied")]
#[tokio::test]
async fn a_session_that_could_not_run_is_not_opened(#[case] body: Value, #[case] reason: &str) {
    let world = world();
    let reply = send(&world, "POST", OPEN, Some(TOKEN), &body.to_string()).await;
    assert_eq!(
        (reply.status, &*reply.reason()),
        (StatusCode::BAD_REQUEST, reason),
        "{}",
        reply.text
    );
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    assert!(world.api.writes().is_empty() && world.api.all("sessions").len() == 1);
}

#[rstest]
#[case::schema(
    422,
    "spec.attachments[0].http.url: url must not contain a fragment",
    400,
    "invalid_request_error",
    "InvalidRequest"
)]
#[case::quota(403, "exceeded quota: sessions", 400, "invalid_request_error", "ObjectRefused")]
#[case::our_right(
    403,
    "User \"gateway\" cannot update resource \"sessions\"",
    500,
    "api_error",
    "ApiServerUnavailable"
)]
#[case::broken(500, "etcd is away", 500, "api_error", "ApiServerUnavailable")]
#[tokio::test]
async fn what_the_api_server_refuses_leaves_everything_as_it_was(
    #[case] code: u16,
    #[case] message: &'static str,
    #[case] status: u16,
    #[case] type_: &str,
    #[case] reason: &str,
) {
    let world = world();
    let before = stored(&world);
    world.api.refuse(move |_, _| Some((code, message.to_owned())));
    let body = opening("open", one("after")).to_string();
    for (method, path, body) in [("PUT", SET, one("after").to_string()), ("POST", OPEN, body)] {
        let reply = send(&world, method, path, Some(TOKEN), &body).await;
        assert_eq!((reply.status.as_u16(), &*reply.reason()), (status, reason), "{}", reply.text);
        assert_eq!(reply.json()["error"]["type"], type_);
        if status == 400 {
            assert!(reply.text.contains(&message[..10]), "the user learns why: {}", reply.text);
        }
    }
    world.api.refuse_nothing();
    let shown = send(&world, "GET", SET, Some(TOKEN), "").await.json();
    assert_eq!(shown["attachments"], one("before")["attachments"], "the old set is there");
    assert_eq!(stored(&world), before);
    assert_eq!(world.api.all("sessions").len(), 1);
}

#[tokio::test]
async fn a_name_that_is_taken_is_400() {
    let world = world();
    let mut body = opening("open", json!({}));
    body["name"] = json!("job");
    let before = stored(&world);
    let reply = send(&world, "POST", OPEN, Some(TOKEN), &body.to_string()).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.text);
    assert_eq!(stored(&world), before);
}
