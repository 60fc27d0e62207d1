//! Reconcile scenarios: the whole operator against an API server in memory and a scripted gateway,
//! in virtual time. Each is named after what it shows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "controller_scenarios/egress.rs"]
mod egress;
#[path = "controller_scenarios/expiry.rs"]
mod expiry;
#[path = "controller_scenarios/exports.rs"]
mod exports;
#[path = "controller_scenarios/leaving.rs"]
mod leaving;
#[path = "controller_scenarios/on_demand.rs"]
mod on_demand;
#[path = "controller_scenarios/own.rs"]
mod own;
#[path = "controller_scenarios/secrets.rs"]
mod secrets;
mod support;
#[path = "controller_scenarios/tampering.rs"]
mod tampering;

use serde_json::json;
use std::time::Duration;
use support::{
    apiserver::{ApiServer, text},
    gateway::{Answer, Gateway},
    world::*,
};

fn fine(_: &serde_json::Value) -> Answer {
    Answer::Done(5)
}

/// An operator, a gateway that does everything, and one HTTP attachment in service.
async fn serving() -> (ApiServer, Operator, Gateway) {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let operator = Operator::start(&api);
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    (api, operator, gateway)
}

#[tokio::test(start_paused = true)]
async fn an_http_attachment_comes_into_service() {
    let (api, _operator, _gateway) = serving().await;
    let attachment = api.get("mcpattachments", NS, "issues").unwrap();
    let status = &attachment["status"];
    assert_eq!(status["desiredGeneration"], 1);
    assert_eq!(status["activeGeneration"], 1);
    assert_eq!(status["toolCount"], 5);
    assert_eq!(status["protocolVersion"], "2025-11-25");
    assert_eq!(status["target"], "https://mcp.example.com/mcp");
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(condition(&attachment, "Accepted"), (true, "Accepted".into()));
    assert_eq!(condition(&attachment, "Serving"), (true, "Active".into()));
    assert!(!condition(&attachment, "Stalled").0 && !condition(&attachment, "Reconciling").0);
    let agent = until(&api, "agents", "coder", "Ready", true, "Ready").await;
    assert_eq!(agent["status"]["attachments"], "1/1");
    assert_eq!(agent["status"]["session"], "coder");
    let session = until(&api, "sessions", "coder", "Ready", true, "Ready").await;
    assert_eq!(session["status"]["phase"], "Serving");
    assert_eq!(
        session["status"]["host"],
        json!({"gateway": "gw-a", "incarnation": "inc-1", "epoch": 1})
    );
    assert_eq!(session["metadata"]["ownerReferences"][0]["uid"], agent["metadata"]["uid"]);
    assert_eq!(session["metadata"]["finalizers"], json!(["awaken.dev/drain"]));
    assert!(api.all("pods").is_empty() && api.all("networkpolicies").is_empty());
}

#[tokio::test(start_paused = true)]
async fn tools_that_the_toolset_names_and_the_server_lacks_are_told_while_it_serves() {
    let (api, _operator, gateway) = serving().await;
    let said = |api: &ApiServer| {
        let attachment = api.get("mcpattachments", NS, "issues")?;
        assert_eq!(condition(&attachment, "Ready"), (true, "Active".into()));
        assert_eq!(condition(&attachment, "Serving"), (true, "Active".into()));
        let all = attachment["status"]["conditions"].as_array()?.clone();
        let ready = all.into_iter().find(|c| c["type"] == "Ready")?;
        Some(ready["message"].as_str()?.to_owned())
    };
    assert_eq!(said(&api).unwrap(), "Generation 1 serves.");
    gateway.script(|_| Answer::Lacking(5, &["raed", "wirte"]));
    let told = "Generation 1 serves. ToolNotFound: the ToolSet names what the server does not list: raed, wirte.";
    api.wait("the message", |api| said(api).filter(|said| said == told)).await;
    let event = |api: &ApiServer| {
        let found = |e: &serde_json::Value| e["reason"] == "ToolNotFound" && e["type"] == "Warning";
        api.all("events").into_iter().find(found)
    };
    let event = api.wait("the event", event).await;
    assert!(event["note"].as_str().unwrap().contains("raed, wirte"), "{event}");
    gateway.script(fine);
    api.wait("it is mended", |api| said(api).filter(|said| said == "Generation 1 serves.")).await;
}

#[tokio::test(start_paused = true)]
async fn a_stdio_attachment_gets_a_guarded_pod_and_comes_into_service() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", |entry| {
        // The stage carries the pod's address, and the policy stands before.
        assert_eq!(entry["target"]["sandboxStdio"]["address"], "10.1.0.7");
        Answer::Done(3)
    });
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    api.apply("agents", agent("coder", &["files"]));
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    let pods = api.all("pods");
    assert_eq!(pods.len(), 1);
    let entry = &entries(&api, "coder")[0];
    assert_eq!(entry["target"]["sandboxStdio"]["uid"], pods[0]["metadata"]["uid"]);
    assert_eq!(entry["target"]["sandboxStdio"]["name"], pods[0]["metadata"]["name"]);
    let session = api.get("sessions", NS, "coder").unwrap();
    assert_eq!(pods[0]["metadata"]["ownerReferences"][0]["uid"], session["metadata"]["uid"]);
    let order: Vec<_> = api
        .writes()
        .into_iter()
        .filter(|w| w.verb == "create" && ["pods", "networkpolicies"].contains(&w.plural.as_str()))
        .map(|w| w.plural)
        .collect();
    assert_eq!(order, ["networkpolicies", "pods"]);
    let digest = &session["status"]["environment"]["imageDigest"];
    assert_eq!(*digest, "tools@sha256:1");
}

#[tokio::test(start_paused = true)]
async fn a_pair_may_be_applied_in_either_order() {
    for agent_first in [true, false] {
        let api = ApiServer::new();
        let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
        let _operator = Operator::start(&api);
        let attachment = http("issues", "coder", "https://mcp.example.com/mcp");
        if agent_first {
            api.apply("agents", agent("coder", &["issues"]));
            let told = until(&api, "agents", "coder", "Accepted", false, "AttachmentMissing").await;
            assert!(!condition(&told, "Stalled").0, "the partner may come at any time");
            api.apply("mcpattachments", attachment);
        } else {
            api.apply("mcpattachments", attachment);
            until(&api, "mcpattachments", "issues", "Accepted", false, "AgentNotFound").await;
            api.apply("agents", agent("coder", &["issues"]));
        }
        until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
        until(&api, "agents", "coder", "Ready", true, "Ready").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_may_come_last_and_its_absence_is_told() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let mut attachment = http("issues", "coder", "https://mcp.example.com/mcp");
    attachment["spec"]["http"]["credential"] =
        json!({"secretKeyRef": {"name": "issues-token", "key": "token"}});
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", attachment);
    until(&api, "mcpattachments", "issues", "Ready", false, "SecretNotFound").await;
    api.apply("secrets", secret("issues-token", "other", "v"));
    let told = until(&api, "mcpattachments", "issues", "Ready", false, "SecretKeyNotFound").await;
    assert!(message(&told, "Ready").contains("\"token\""), "{}", message(&told, "Ready"));
    api.apply("secrets", secret("issues-token", "token", "hunter2"));
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    api.delete("secrets", NS, "issues-token");
    let held = until(&api, "mcpattachments", "issues", "Ready", false, "SecretNotFound").await;
    assert_eq!(condition(&held, "Serving"), (true, "Active".into()), "what serves goes on");
    assert!(!api.dump().contains("hunter2"), "a value leaked");
}

#[tokio::test(start_paused = true)]
async fn a_rotated_secret_surges_and_a_touched_one_does_not() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let mut attachment = http("issues", "coder", "https://mcp.example.com/mcp");
    attachment["spec"]["http"]["credential"] =
        json!({"secretKeyRef": {"name": "issues-token", "key": "token"}});
    api.apply("secrets", secret("issues-token", "token", "one"));
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", attachment);
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    let mut touched = secret("issues-token", "token", "one");
    touched["metadata"]["annotations"] = json!({"touched": "yes"});
    api.apply("secrets", touched);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(states(&api, "coder", "issues"), [(1, "Active".to_owned())]);
    api.apply("secrets", secret("issues-token", "token", "two"));
    until_states(&api, "issues", &[(2, "Active")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_surges_so_that_the_old_serves_until_the_new_does() {
    let (api, _operator, gateway) = serving().await;
    gateway.script(|entry| match entry["generation"].as_i64() {
        Some(1) => Answer::Done(5),
        _ => Answer::Silence,
    });
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/v2"));
    until_states(&api, "issues", &[(1, "Active"), (2, "Realizing")]).await;
    let waiting = until(&api, "mcpattachments", "issues", "Ready", false, "Realizing").await;
    assert_eq!(condition(&waiting, "Serving"), (true, "Active".into()));
    assert_eq!(waiting["status"]["desiredGeneration"], 2);
    assert_eq!(waiting["status"]["activeGeneration"], 1);
    // One patch makes the new one Active and drains the old.
    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(6),
    });
    until_states(&api, "issues", &[(1, "Draining"), (2, "Active")]).await;
    let old = &entries(&api, "coder")[0];
    assert_eq!(
        (text(old, "/reason"), text(old, "/stage/kind")),
        ("Replaced".into(), "Drain".into())
    );
    gateway.script(fine);
    until_states(&api, "issues", &[(2, "Active")]).await;
    assert_eq!(api.get("sessions", NS, "coder").unwrap()["status"]["lastGeneration"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_recreated_drains_the_old_before_the_new_begins() {
    let (api, _operator, gateway) = serving().await;
    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(6),
    });
    let mut changed = http("issues", "coder", "https://mcp.example.com/v2");
    changed["spec"]["rollout"] = "Recreate".into();
    api.apply("mcpattachments", changed);
    until_states(&api, "issues", &[(1, "Draining")]).await;
    assert!(!condition(&api.get("mcpattachments", NS, "issues").unwrap(), "Ready").0);
    gateway.script(fine);
    until_states(&api, "issues", &[(2, "Active")]).await;
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
}

#[tokio::test(start_paused = true)]
async fn a_new_generation_that_fails_leaves_the_old_one_serving() {
    let (api, _operator, gateway) = serving().await;
    gateway.script(|entry| match entry["generation"].as_i64() {
        Some(1) => Answer::Done(5),
        _ => Answer::Failed("Unauthorized", "401 from the server."),
    });
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/v2"));
    let failed = until(&api, "mcpattachments", "issues", "Ready", false, "Unauthorized").await;
    assert_eq!(states(&api, "coder", "issues"), [(1, "Active".into()), (2, "Failed".into())]);
    assert_eq!(condition(&failed, "Serving"), (true, "Active".into()));
    assert!(condition(&failed, "Stalled").0);
    let said = message(&failed, "Ready");
    assert!(said.contains("401") && said.contains("Generation 1 still serves"), "{said}");
    // Back to what serves: nothing new is needed.
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    until_states(&api, "issues", &[(1, "Active")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_tried_again_slowly_and_at_once_on_request() {
    let api = ApiServer::new();
    let _gateway =
        Gateway::start(&api, "gw-a", "inc-1", |_| Answer::Failed("Unauthorized", "401."));
    let _operator = Operator::start(&api);
    let mut attachment = http("issues", "coder", "https://mcp.example.com/mcp");
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", attachment.clone());
    until_states(&api, "issues", &[(1, "Failed")]).await;
    let first = tokio::time::Instant::now();
    until_states(&api, "issues", &[(2, "Failed")]).await;
    let gap = first.elapsed().as_secs();
    assert!((59..=62).contains(&gap), "{gap} s");
    let second = tokio::time::Instant::now();
    until_states(&api, "issues", &[(3, "Failed")]).await;
    let gap = second.elapsed().as_secs();
    assert!((119..=122).contains(&gap), "{gap} s");
    attachment["metadata"]["annotations"] = json!({"awaken.dev/reconcile-requested-at": "now-1"});
    let third = tokio::time::Instant::now();
    api.apply("mcpattachments", attachment);
    until_states(&api, "issues", &[(4, "Failed")]).await;
    assert!(third.elapsed() < Duration::from_secs(1));
    api.wait("the request is answered", |api| {
        let status = &api.get("mcpattachments", NS, "issues")?["status"];
        (status["lastHandledReconcileAt"] == "now-1").then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(states(&api, "coder", "issues"), [(4, "Failed".to_owned())], "answered once");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_another_try_that_fits_nowhere_is_no_request() {
    let (api, _operator, _gateway) = serving().await;
    api.edit("mcpattachments", NS, "issues", |object| {
        let asked = "x".repeat(129);
        object["metadata"]["annotations"] = json!({"awaken.dev/reconcile-requested-at": asked});
        object["spec"]["suspend"] = json!(true);
    });
    let told = until(&api, "mcpattachments", "issues", "Ready", false, "Suspended").await;
    assert!(told["status"].get("lastHandledReconcileAt").is_none(), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_retryable_failure_ends_at_the_startup_deadline_with_its_last_cause() {
    let api = ApiServer::new();
    let _gateway =
        Gateway::start(&api, "gw-a", "inc-1", |_| Answer::Failed("ConnectFailed", "refused."));
    let _operator = Operator::start(&api);
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    let trying = until(&api, "mcpattachments", "issues", "Ready", false, "ConnectFailed").await;
    assert!(condition(&trying, "Reconciling").0 && !condition(&trying, "Stalled").0);
    let late = until(&api, "mcpattachments", "issues", "Ready", false, "StartupTimeout").await;
    let said = message(&late, "Ready");
    assert!(said.contains("ConnectFailed") && said.contains("refused."), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_is_replaced_after_a_second() {
    let (api, _operator, gateway) = serving().await;
    gateway.script(|entry| {
        match (entry["generation"].as_i64(), text(entry, "/stage/kind").as_str()) {
            (Some(1), "Publish") => Answer::Lost("ServerLost"),
            _ => Answer::Done(5),
        }
    });
    let died = tokio::time::Instant::now();
    until_states(&api, "issues", &[(2, "Active")]).await;
    let gap = died.elapsed();
    assert!(gap >= Duration::from_millis(900) && gap < Duration::from_secs(3), "{gap:?}");
}

#[tokio::test(start_paused = true)]
async fn suspension_drains_and_resuming_serves_again() {
    let (api, _operator, _gateway) = serving().await;
    let mut attachment = http("issues", "coder", "https://mcp.example.com/mcp");
    attachment["spec"]["suspend"] = json!(true);
    api.apply("mcpattachments", attachment.clone());
    until(&api, "mcpattachments", "issues", "Ready", false, "Suspended").await;
    until_states(&api, "issues", &[]).await;
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    attachment["spec"]["suspend"] = json!(false);
    api.apply("mcpattachments", attachment);
    until_states(&api, "issues", &[(2, "Active")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pair_that_breaks_drains_and_says_so() {
    let (api, _operator, _gateway) = serving().await;
    api.apply("agents", agent("coder", &[]));
    until(&api, "mcpattachments", "issues", "Accepted", false, "ToolSetMissing").await;
    until_states(&api, "issues", &[]).await;
    api.apply("agents", agent("coder", &["issues"]));
    until_states(&api, "issues", &[(2, "Active")]).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_with_one_name_or_target_the_older_stays() {
    let (api, _operator, _gateway) = serving().await;
    api.apply("agents", agent("coder", &["issues", "same-target", "same-name", "other"]));
    let mut named = http("same-name", "coder", "https://other.example.com/mcp");
    named["spec"]["serverName"] = json!("issues");
    api.apply("mcpattachments", http("same-target", "coder", "HTTPS://MCP.example.com:443/mcp"));
    api.apply("mcpattachments", named);
    api.apply("mcpattachments", http("other", "coder", "https://third.example.com/mcp"));
    let twin =
        until(&api, "mcpattachments", "same-target", "Accepted", false, "DuplicateTarget").await;
    assert!(message(&twin, "Ready").contains("\"issues\""));
    assert!(condition(&twin, "Stalled").0 && !condition(&twin, "Reconciling").0);
    until(&api, "mcpattachments", "same-name", "Accepted", false, "DuplicateServerName").await;
    until(&api, "mcpattachments", "other", "Ready", true, "Active").await;
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    api.wait("2/4", |api| {
        (api.get("agents", NS, "coder")?["status"]["attachments"] == "2/4").then_some(())
    })
    .await;
    // Repaired as soon as the cause is gone.
    api.delete("mcpattachments", NS, "issues");
    until(&api, "mcpattachments", "same-target", "Ready", true, "Active").await;
    until(&api, "mcpattachments", "same-name", "Ready", true, "Active").await;
}

#[tokio::test(start_paused = true)]
async fn deletion_drains_and_leaves_nothing() {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.apply("agents", agent("coder", &["files", "issues"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(5),
    });
    api.delete("agents", NS, "coder");
    api.wait("draining", |api| {
        let session = api.get("sessions", NS, "coder")?;
        let all = session["status"]["attachments"].as_array()?;
        let draining = all.len() == 2 && all.iter().all(|e| e["stage"]["kind"] == "Drain");
        (session["status"]["phase"] == "Terminating" && draining).then_some(())
    })
    .await;
    assert_eq!(api.all("pods").len(), 1, "the pod stays until its calls are done");
    gateway.script(fine);
    api.wait("nothing is left", |api| {
        let left = ["sessions", "pods", "networkpolicies"].iter().any(|p| !api.all(p).is_empty());
        (!left).then_some(())
    })
    .await;
    until(&api, "mcpattachments", "files", "Accepted", false, "AgentNotFound").await;
}

#[tokio::test(start_paused = true)]
async fn deletion_needs_no_gateway() {
    let (api, _operator, gateway) = serving().await;
    drop(gateway);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let began = tokio::time::Instant::now();
    api.delete("agents", NS, "coder");
    api.wait("the Session is gone", |api| api.all("sessions").is_empty().then_some(())).await;
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_says_nothing_does_not_hold_a_deletion_for_ever() {
    let (api, _operator, gateway) = serving().await;
    gateway.script(|_| Answer::Silence);
    let began = tokio::time::Instant::now();
    api.delete("agents", NS, "coder");
    api.wait("the Session is gone", |api| api.all("sessions").is_empty().then_some(())).await;
    let took = began.elapsed().as_secs();
    assert!((39..=42).contains(&took), "drainTimeout and slack, not {took} s");
}

#[tokio::test(start_paused = true)]
async fn a_session_of_somebody_else_is_never_adopted() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let foreign = json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
        "metadata": {"name": "coder", "namespace": NS}, "spec": {"agentRef": {"name": "coder"}},
    });
    api.apply("sessions", foreign);
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    let taken = until(&api, "agents", "coder", "Ready", false, "SessionNameTaken").await;
    assert!(condition(&taken, "Stalled").0);
    until(&api, "mcpattachments", "issues", "Ready", false, "SessionNameTaken").await;
    let session = until(&api, "sessions", "coder", "Ready", false, "SessionNotOnDemand").await;
    assert!(session["metadata"].get("finalizers").is_none());
    assert_eq!(entries(&api, "coder"), Vec::<serde_json::Value>::new());
    api.delete("sessions", NS, "coder");
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
}

#[tokio::test(start_paused = true)]
async fn a_receipt_of_another_epoch_is_ignored_and_counted() {
    let (api, operator, gateway) = serving().await;
    gateway.script(|_| Answer::Silence);
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/v2"));
    until_states(&api, "issues", &[(1, "Active"), (2, "Realizing")]).await;
    let session = api.get("sessions", NS, "coder").unwrap();
    let stage = entries(&api, "coder")[1]["stage"].clone();
    for (field, wrong) in [("epoch", json!(9)), ("incarnation", json!("inc-0"))] {
        let mut status = session["status"].clone();
        let mut reference = stage["ref"].clone();
        reference[field] = wrong;
        status["receipts"] = json!([{
            "generation": 2, "stage": "Realize", "ref": reference,
            "fingerprint": stage["fingerprint"], "verdict": "Done",
            "evidence": {"toolCount": 1}, "at": "2026-01-01T00:00:00Z",
        }]);
        api.set_status("sessions", NS, "coder", status);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let now = states(&api, "coder", "issues");
    assert_eq!(now, [(1, "Active".to_owned()), (2, "Realizing".to_owned())]);
    let counted = |mismatch: &str| {
        let line = format!("awaken_operator_receipts_ignored_total{{mismatch=\"{mismatch}\"}}");
        operator.metric(&line)
    };
    assert_eq!((counted("Epoch"), counted("Incarnation")), (1.0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_dies_is_followed_by_another_under_the_next_epoch() {
    let (api, _operator, first) = serving().await;
    drop(first);
    let lost = until(&api, "mcpattachments", "issues", "Ready", false, "NoGateway").await;
    assert!(!condition(&lost, "Serving").0);
    let session = api.get("sessions", NS, "coder").unwrap();
    assert_eq!(session["status"]["phase"], "Rescheduling");
    let _second = Gateway::start(&api, "gw-b", "inc-2", fine);
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    let session = api.get("sessions", NS, "coder").unwrap();
    let host = json!({"gateway": "gw-b", "incarnation": "inc-2", "epoch": 2});
    assert_eq!(session["status"]["host"], host);
    assert_eq!(states(&api, "coder", "issues"), [(1, "Active".to_owned())], "same generation");
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_gateway_was_draining_goes_as_host_lost() {
    let (api, _operator, gateway) = serving().await;
    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(5),
    });
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/v2"));
    until_states(&api, "issues", &[(1, "Draining"), (2, "Active")]).await;
    drop(gateway);
    until_states(&api, "issues", &[(2, "Active")]).await;
    let told = api
        .wait("an event", |api| api.all("events").into_iter().find(|e| e["reason"] == "HostLost"));
    assert_eq!(told.await["regarding"]["name"], "issues");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_when_nothing_changes() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.apply("agents", agent("coder", &["files", "issues"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    // Leases are renewed, and a start of the operator asks for its two keys; all else is a stir.
    let stirs = || {
        let all = api.writes().into_iter();
        all.filter(|w| !["leases", "secrets"].contains(&w.plural.as_str())).collect::<Vec<_>>()
    };
    let (before, pods) = (stirs(), api.all("pods"));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(stirs(), before, "an idle hour");
    // Another start of the operator changes nothing either.
    operator.stop().await;
    let _again = Operator::start_as(&api, "operator-2", "operator");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(stirs(), before, "a restart");
    assert_eq!(api.all("pods"), pods);
}

#[tokio::test(start_paused = true)]
async fn what_drains_goes_on_draining_over_a_restart_of_the_operator() {
    let (api, operator, gateway) = serving().await;
    gateway.script(|entry| match text(entry, "/stage/kind").as_str() {
        "Drain" => Answer::Silence,
        _ => Answer::Done(5),
    });
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/v2"));
    until_states(&api, "issues", &[(1, "Draining"), (2, "Active")]).await;
    operator.stop().await;
    let _again = Operator::start_as(&api, "operator-2", "operator");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(states(&api, "coder", "issues")[0], (1, "Draining".to_owned()));
    gateway.script(fine);
    until_states(&api, "issues", &[(2, "Active")]).await;
}

#[tokio::test(start_paused = true)]
async fn broken_pods_tell_their_cause_and_go() {
    let cases = [
        (
            container(json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}})),
            "ImagePullFailed",
            true,
        ),
        (
            container(json!({"waiting": {"reason": "CreateContainerConfigError", "message": "x"}})),
            "PodConfigError",
            false,
        ),
        (
            container(json!({"terminated": {"exitCode": 127, "reason": "Error"}})),
            "CommandNotFound",
            false,
        ),
        (
            container(json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})),
            "OutOfMemory",
            false,
        ),
        (
            container(json!({"terminated": {"exitCode": 2, "reason": "Error", "message": "boom"}})),
            "ServerExited",
            false,
        ),
    ];
    for (status, reason, stays) in cases {
        let api = ApiServer::new();
        let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
        let _operator = Operator::start(&api);
        api.apply("agents", agent("coder", &["files", "issues"]));
        api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
        api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
        let pod = api.wait("a pod", |api| api.all("pods").pop()).await;
        api.set_status("pods", NS, &text(&pod, "/metadata/name"), status);
        until(&api, "mcpattachments", "files", "Ready", false, reason).await;
        until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
        if stays {
            assert_eq!(api.all("pods").len(), 1, "{reason}: it may still come");
        } else {
            api.wait("no pod", |api| api.all("pods").is_empty().then_some(())).await;
            let states = states(&api, "coder", "files");
            assert!(states.len() == 1 && states[0].1 == "Failed", "{states:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_pod_is_told_and_a_full_quota_is_waited_out() {
    for (said, reason, permanent) in [
        ("pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\"", "PodRefused", true),
        ("pods \"x\" is forbidden: exceeded quota: small", "QuotaExceeded", false),
    ] {
        let api = ApiServer::new();
        let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
        let _operator = Operator::start(&api);
        let _kubelet = kubelet(&api);
        api.refuse(move |w, _| {
            (w.plural == "pods" && w.verb == "create").then(|| (403, said.to_owned()))
        });
        api.apply("agents", agent("coder", &["files"]));
        api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
        let told = until(&api, "mcpattachments", "files", "Ready", false, reason).await;
        assert!(message(&told, "Ready").contains("forbidden"));
        assert_eq!(condition(&told, "Stalled").0, permanent);
        api.refuse_nothing();
        let ready = until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
        let generation = if permanent { 2 } else { 1 };
        assert_eq!(ready["status"]["activeGeneration"], generation, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_is_taken_away_or_changed_comes_back_while_its_pods_run() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.apply("agents", agent("coder", &["files"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    let wanted = api.all("networkpolicies").pop().unwrap();
    let name = text(&wanted, "/metadata/name");
    api.delete("networkpolicies", NS, &name);
    assert!(api.all("networkpolicies").is_empty());
    let back = api.wait("the policy", |api| api.get("networkpolicies", NS, &name)).await;
    assert_eq!(back["spec"], wanted["spec"]);
    let mut open = back.clone();
    open["spec"]["ingress"] = json!([{}]);
    api.apply("networkpolicies", open);
    api.wait("the policy as it was", |api| {
        (api.get("networkpolicies", NS, &name)?["spec"] == wanted["spec"]).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_session_is_told_and_tried_again() {
    for (said, reason, stalled) in [
        ("sessions \"coder\" is forbidden: exceeded quota: small", "QuotaExceeded", false),
        ("admission webhook \"x\" denied the request", "ObjectRefused", true),
    ] {
        let api = ApiServer::new();
        let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
        let _operator = Operator::start(&api);
        api.refuse(move |w, _| {
            (w.plural == "sessions" && w.verb == "create").then(|| (403, said.to_owned()))
        });
        api.apply("agents", agent("coder", &["issues"]));
        api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
        let told = until(&api, "agents", "coder", "Ready", false, reason).await;
        assert_eq!(condition(&told, "Stalled").0, stalled);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        api.refuse_nothing();
        let began = tokio::time::Instant::now();
        until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_agent_was_deleted_without_it_goes_when_it_is_deleted() {
    for (with_agent, session_first) in [(false, false), (true, false), (true, true)] {
        let (api, _operator, _gateway) = serving().await;
        // kubectl delete agent coder --cascade=orphan
        api.orphan("sessions", NS, "coder");
        api.delete("agents", NS, "coder");
        if session_first {
            api.delete("sessions", NS, "coder");
        }
        if with_agent {
            api.apply("agents", agent("coder", &["issues"]));
        }
        if !session_first {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(api.get("sessions", NS, "coder").is_some(), "it is left alone");
            api.delete("sessions", NS, "coder");
        }
        if with_agent {
            until(&api, "agents", "coder", "Ready", true, "Ready").await;
        } else {
            api.wait("the end", |api| api.all("sessions").is_empty().then_some(())).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_that_name_that_is_anothers_is_left_alone() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    api.refuse(|w, _| (w.plural == "pods").then(|| (500, "not yet".to_owned())));
    api.apply("agents", agent("coder", &["files"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    let name = api
        .wait("an entry", |_| {
            let name = text(entries(&api, "coder").first()?, "/target/sandboxStdio/name");
            (!name.is_empty()).then_some(name)
        })
        .await;
    let foreign = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NS},
        "spec": {"containers": []},
    });
    api.apply("pods", foreign);
    api.refuse_nothing();
    until(&api, "mcpattachments", "files", "Ready", false, "PodRefused").await;
    assert_eq!(api.all("pods").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_of_a_served_generation_is_a_loss_and_the_next_one_comes() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.apply("agents", agent("coder", &["files"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    let pod = api.all("pods").pop().unwrap();
    api.delete("pods", NS, &text(&pod, "/metadata/name"));
    until(&api, "mcpattachments", "files", "Ready", false, "PodLost").await;
    until_states(&api, "files", &[(2, "Active")]).await;
    assert_eq!(api.all("pods").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_changed_environment_is_the_next_revision_and_rolls_stdio_only() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    let mut coder = agent("coder", &["files", "issues"]);
    api.apply("agents", coder.clone());
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    let issues = states(&api, "coder", "issues");
    coder["spec"]["environment"] = json!({"image": "tools:2"});
    api.apply("agents", coder);
    api.wait("revision 2 serves", |api| {
        let session = api.get("sessions", NS, "coder")?;
        let revision = session["status"]["environment"]["revision"] == 2;
        let now = states(api, "coder", "files");
        (revision && now == [(3, "Active".to_owned())]).then_some(())
    })
    .await;
    assert_eq!(states(&api, "coder", "issues"), issues);
    let pods = api.all("pods");
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0]["spec"]["containers"][0]["image"], "tools:2");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_is_told_and_the_others_go_on() {
    let (api, operator, _gateway) = serving().await;
    let mut broken = http("broken", "coder", "https://b.example.com/mcp");
    broken["spec"]["fromTheFuture"] = json!({"x": 1});
    api.apply("mcpattachments", broken);
    let event = api
        .wait("an event", |api| {
            api.all("events").into_iter().find(|e| e["reason"] == "UnreadableObject")
        })
        .await;
    assert_eq!(event["regarding"]["name"], "broken");
    api.apply("agents", agent("coder", &["issues", "other"]));
    api.apply("mcpattachments", http("other", "coder", "https://o.example.com/mcp"));
    until(&api, "mcpattachments", "other", "Ready", true, "Active").await;
    assert!(operator.metric("awaken_operator_unreadable_objects_total") >= 1.0);
    // One that serves and becomes unreadable is held, not drained.
    let mut newer = http("issues", "coder", "https://mcp.example.com/mcp");
    newer["spec"]["fromTheFuture"] = json!(1);
    api.apply("mcpattachments", newer);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(states(&api, "coder", "issues"), [(1, "Active".to_owned())]);
    // And once it is gone, it is gone.
    api.delete("mcpattachments", NS, "issues");
    until_states(&api, "issues", &[]).await;
    until(&api, "agents", "coder", "Accepted", false, "AttachmentMissing").await;
}

#[tokio::test(start_paused = true)]
async fn what_was_never_readable_and_is_gone_holds_nothing() {
    let (api, operator, _gateway) = serving().await;
    operator.stop().await;
    let mut newer = http("issues", "coder", "https://mcp.example.com/mcp");
    newer["spec"]["fromTheFuture"] = json!(1);
    api.apply("mcpattachments", newer);
    let _operator = Operator::start(&api);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(states(&api, "coder", "issues"), [(1, "Active".to_owned())]);
    api.delete("mcpattachments", NS, "issues");
    until_states(&api, "issues", &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_value_that_looks_like_a_secret_is_warned_of_without_the_value() {
    let api = ApiServer::new();
    let _operator = Operator::start(&api);
    let mut attachment = stdio("files", "coder", "mcp-server-filesystem");
    attachment["spec"]["sandboxStdio"]["env"] =
        json!([{"name": "API_KEY", "value": "hunter2hunter2"}]);
    api.apply("mcpattachments", attachment);
    let event = api
        .wait("an event", |api| {
            api.all("events").into_iter().find(|e| e["reason"] == "SuspiciousValue")
        })
        .await;
    assert!(text(&event, "/note").contains("env API_KEY"));
    assert!(!text(&event, "/note").contains("hunter2"));
}

#[tokio::test(start_paused = true)]
async fn without_a_gateway_everything_waits_and_starts_when_one_comes() {
    let api = ApiServer::new();
    let _operator = Operator::start(&api);
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    until(&api, "mcpattachments", "issues", "Ready", false, "NoGateway").await;
    until_states(&api, "issues", &[(1, "Requested")]).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    until_states(&api, "issues", &[(1, "Requested")]).await;
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    assert_eq!(states(&api, "coder", "issues"), [(1, "Active".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_deleted_refuses_creates_and_nothing_hangs() {
    let (api, _operator, _gateway) = serving().await;
    api.refuse(|w, _| {
        (w.verb == "create" && w.plural != "leases").then(|| {
            (
                403,
                "unable to create new content in namespace team-a because it is being terminated"
                    .to_owned(),
            )
        })
    });
    api.delete("mcpattachments", NS, "issues");
    api.delete("sessions", NS, "coder");
    api.delete("agents", NS, "coder");
    api.wait("nothing is left", |api| {
        let left = ["sessions", "agents", "mcpattachments"].iter().any(|p| !api.all(p).is_empty());
        (!left).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_operators_and_only_the_holder_of_the_lease_writes() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let first = Operator::start_as(&api, "operator-1", "first");
    api.wait("the first one leads", |api| api.get("leases", "awaken-system", "awaken-operator"))
        .await;
    let _second = Operator::start_as(&api, "operator-2", "second");
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/mcp"));
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    let by = |actor| {
        api.writes().into_iter().filter(|w| w.actor == actor && w.plural != "leases").count()
    };
    assert_eq!(by("second"), 0);
    first.kill();
    api.apply("mcpattachments", http("issues", "coder", "https://mcp.example.com/v2"));
    until_states(&api, "issues", &[(2, "Active")]).await;
    assert!(by("second") > 0);
}

#[tokio::test(start_paused = true)]
async fn a_whole_life_costs_few_writes() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.apply("agents", agent("coder", &["files"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    api.delete("mcpattachments", NS, "files");
    until_states(&api, "files", &[]).await;
    api.wait("no pod", |api| api.all("pods").is_empty().then_some(())).await;
    // What is made once for a Session, or kept for readers only, is not a generation's.
    let once = ["leases", "secrets", "events", "networkpolicies"];
    let writes: Vec<_> = api
        .writes()
        .into_iter()
        .filter(|w| !once.contains(&w.plural.as_str()))
        .filter(|w| (w.plural.as_str(), w.verb) != ("sessions", "create"))
        .map(|w| format!("{} {}", w.verb, w.plural))
        .collect();
    let of = |what: &str| writes.iter().filter(|w| *w == what).count();
    println!("{} writes of the operator for one life: {writes:#?}", writes.len());
    // Requested; staged; proven; published; draining; gone.
    assert_eq!(of("patch-status sessions"), 6, "{writes:#?}");
    assert_eq!((of("create pods"), of("delete pods")), (1, 1));
    assert_eq!(of("patch-status mcpattachments"), 2, "being started; in service: {writes:#?}");
    assert!(of("patch-status agents") <= 3, "waiting; ready; without it: {writes:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_end_of_a_pod_makes_no_stir() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let operator = Operator::start(&api);
    let _kubelet = kubelet(&api);
    api.slow_pods();
    api.apply("agents", agent("coder", &["files"]));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    until(&api, "agents", "coder", "Ready", true, "Ready").await;
    api.delete("mcpattachments", NS, "files");
    api.wait("the pod is asked to end", |api| {
        let pod = api.all("pods").pop()?;
        pod["metadata"].get("deletionTimestamp").map(|_| ())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let reconciles = || operator.metric("awaken_operator_reconcile_seconds_count");
    let (before, writes) = (reconciles(), api.writes().len());
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(reconciles() - before <= 2.0, "{}", reconciles() - before);
    let new: Vec<_> =
        api.writes().into_iter().skip(writes).filter(|w| w.plural != "leases").collect();
    assert!(new.is_empty(), "{new:?}");
    assert_eq!(states(&api, "coder", "files"), [(1, "Draining".to_owned())]);
    let pod = api.all("pods").pop().unwrap();
    api.remove("pods", NS, &text(&pod, "/metadata/name"));
    until_states(&api, "files", &[]).await;
}

#[tokio::test(start_paused = true)]
async fn secrets_are_read_by_name_and_only_when_they_changed() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let _operator = Operator::start(&api);
    let mut attachment = http("issues", "coder", "https://mcp.example.com/mcp");
    attachment["spec"]["http"]["credential"] =
        json!({"secretKeyRef": {"name": "issues-token", "key": "token"}});
    api.apply("secrets", secret("issues-token", "token", "one"));
    api.apply("secrets", secret("unrelated", "token", "two"));
    api.apply("agents", agent("coder", &["issues"]));
    api.apply("mcpattachments", attachment);
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    let secrets = || {
        let reads = api.reads().into_iter();
        reads.filter(|r| r.starts_with("secrets/team-a/")).collect::<Vec<_>>()
    };
    assert_eq!(secrets(), ["secrets/team-a/issues-token"]);
    api.apply("secrets", secret("issues-token", "token", "three"));
    until_states(&api, "issues", &[(2, "Active")]).await;
    assert_eq!(secrets().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_stops_cleanly_is_replaced_at_once() {
    let (api, _operator, first) = serving().await;
    let _second = Gateway::start(&api, "gw-b", "inc-2", fine);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let session = api.get("sessions", NS, "coder").unwrap();
    assert_eq!(session["status"]["host"]["gateway"], "gw-a", "it stays where it is");
    let began = tokio::time::Instant::now();
    first.stop();
    api.wait("a move", |api| {
        let session = api.get("sessions", NS, "coder")?;
        (session["status"]["host"]["gateway"] == "gw-b").then_some(())
    })
    .await;
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    assert!(began.elapsed() < Duration::from_secs(2));
}
