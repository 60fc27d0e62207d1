//! What somebody changes by hand in what the operator made, and how it comes right again.

use super::support::{apiserver::ApiServer, gateway::Gateway, world::*};
use super::{fine, serving};
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn a_pod_whose_label_is_taken_away_is_deleted_and_replaced() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    api.apply("agents", agent("coder", &["files"]));
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    let before = api.all("pods").remove(0)["metadata"]["name"].as_str().unwrap().to_owned();
    api.edit("pods", NS, &before, |pod| {
        let labels = pod["metadata"]["labels"].as_object_mut().unwrap();
        labels.remove("awaken.dev/session-uid");
        labels.remove("awaken.dev/generation");
    });
    until_states(&api, "files", &[(2, "Active")]).await;
    let pods = api.all("pods");
    assert_eq!(pods.len(), 1, "the one without its label is gone");
    assert_ne!(pods[0]["metadata"]["name"], before);
}

#[tokio::test(start_paused = true)]
async fn finalizer_and_owner_of_a_standing_session_are_put_back() {
    let (api, _operator, _gateway) = serving().await;
    let agent = api.get("agents", NS, "coder").unwrap();
    for part in ["finalizers", "ownerReferences"] {
        api.edit("sessions", NS, "coder", |session| {
            session["metadata"].as_object_mut().unwrap().remove(part);
        });
        api.wait(part, |api| {
            let session = api.get("sessions", NS, "coder")?;
            let meta = &session["metadata"];
            let held = meta["finalizers"] == json!(["awaken.dev/drain"]);
            (held && meta["ownerReferences"][0]["uid"] == agent["metadata"]["uid"]).then_some(())
        })
        .await;
    }
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    assert_eq!(states(&api, "coder", "issues"), [(1, "Active".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_never_was_the_agents_is_not_adopted() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let mut lookalike = session("coder", "coder");
    lookalike["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "awaken-operator"});
    lookalike["metadata"]["finalizers"] = json!(["awaken.dev/drain"]);
    api.apply("sessions", lookalike);
    let _operator = Operator::start(&api);
    api.apply("agents", super::support::world::agent("coder", &[]));
    until(&api, "agents", "coder", "Ready", false, "SessionNameTaken").await;
}

#[tokio::test(start_paused = true)]
async fn a_value_that_no_program_takes_makes_no_pod() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    let mut attachment = stdio("files", "coder", "mcp-server-filesystem");
    attachment["spec"]["sandboxStdio"]["secretEnv"] =
        json!([{"name": "KEY", "secretKeyRef": {"name": "key", "key": "token"}}]);
    api.apply("secrets", secret("key", "token", "canary\0tail"));
    api.apply("mcpattachments", attachment);
    api.apply("agents", agent("coder", &["files"]));
    let told = until(&api, "mcpattachments", "files", "Ready", false, "SecretValueInvalid").await;
    let said = message(&told, "Ready");
    assert!(said.contains("secretEnv KEY") && !said.contains("canary"), "{said}");
    assert!(api.all("pods").is_empty());
    api.apply("secrets", secret("key", "token", "canary"));
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
}
