//! What Session pods may connect to, as their NetworkPolicy says.

use crate::{
    fine,
    support::{apiserver::ApiServer, gateway::Gateway, world::*},
};
use serde_json::{Value, json};

fn coder(cidr: &str) -> Value {
    let mut agent = agent("coder", &["files"]);
    agent["spec"]["environment"]["egress"] =
        json!({"mode": "Allow", "rules": [{"cidr": cidr, "ports": [{"port": 443}]}]});
    agent
}

async fn serving(cidr: &str) -> (ApiServer, Operator, Gateway, tokio::task::JoinHandle<()>) {
    let api = ApiServer::new();
    let gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let (operator, kubelet) = (Operator::start(&api), kubelet(&api));
    api.apply("agents", coder(cidr));
    api.apply("mcpattachments", stdio("files", "coder", "mcp-server-filesystem"));
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;
    (api, operator, gateway, kubelet)
}

/// The network that the one policy lets out to, beside DNS.
fn let_out(api: &ApiServer) -> Option<Value> {
    let policies = api.all("networkpolicies");
    assert_eq!(policies.len(), 1);
    policies[0].pointer("/spec/egress/1/to/0/ipBlock").cloned()
}

#[tokio::test(start_paused = true)]
async fn a_change_is_the_next_generation_and_holds_at_once() {
    let (api, _operator, gateway, _kubelet) = serving("192.0.2.0/24").await;
    assert_eq!(let_out(&api), Some(json!({"cidr": "192.0.2.0/24"})));
    // the next one never comes up
    gateway.script(|entry| match entry["generation"].as_i64() {
        Some(1) => fine(entry),
        _ => crate::support::gateway::Answer::Silence,
    });
    api.apply("agents", agent("coder", &["files"]));
    api.wait("nothing is let out", |api| let_out(api).is_none().then_some(())).await;
    until_states(&api, "files", &[(1, "Active"), (2, "Realizing")]).await;
    api.apply("agents", coder("198.51.100.0/24"));
    api.wait("it is let out", |api| {
        (let_out(api)? == json!({"cidr": "198.51.100.0/24"})).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_no_sandbox_reaches_is_refused_with_the_rule_named() {
    let (api, _operator, _gateway, _kubelet) = serving("192.0.2.0/24").await;
    api.apply("agents", coder("169.254.169.254/32"));
    let refused =
        until(&api, "mcpattachments", "files", "Accepted", false, "EgressForbidden").await;
    let said = message(&refused, "Accepted");
    assert!(said.contains("spec.environment.egress.rules[0]: 169.254.169.254/32"), "{said}");
    api.wait("its pod is gone", |api| api.all("pods").is_empty().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn the_api_server_is_left_out_wherever_it_moves() {
    let (api, _operator, _gateway, _kubelet) = serving("203.0.113.0/24").await;
    assert_eq!(let_out(&api), Some(json!({"cidr": "203.0.113.0/24"})));
    api.apply(
        "endpointslices",
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": "kubernetes", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": "IPv4", "endpoints": [{"addresses": ["203.0.113.9"]}],
        }),
    );
    api.wait("it is left out", |api| {
        (let_out(api)? == json!({"cidr": "203.0.113.0/24", "except": ["203.0.113.9/32"]}))
            .then_some(())
    })
    .await;
}
