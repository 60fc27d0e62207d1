//! Where the values of a Secret may go, by its annotation and by whose it is; and targets at the
//! API server's own addresses.

use super::{
    fine,
    support::{
        apiserver::ApiServer,
        gateway::{Answer, Gateway},
        world::*,
    },
};
use awaken_operator::controller::seen::Rules;
use serde_json::{Value, json};

const TARGETS: &str = "awaken.dev/allowed-targets";

fn with_token(mut attachment: Value, secret: &str) -> Value {
    let reference = json!({"secretKeyRef": {"name": secret, "key": "token"}});
    attachment["spec"]["http"]["credential"] = reference;
    attachment
}

fn with_env(mut attachment: Value, secret: &str) -> Value {
    let reference = json!({"name": "TOKEN", "secretKeyRef": {"name": secret, "key": "token"}});
    attachment["spec"]["sandboxStdio"]["secretEnv"] = json!([reference]);
    attachment
}

fn allowed(name: &str, targets: &str) -> Value {
    let mut secret = secret(name, "token", "hunter2");
    secret["metadata"]["annotations"] = json!({TARGETS: targets});
    secret
}

#[tokio::test(start_paused = true)]
async fn an_annotated_secret_goes_nowhere_else_and_the_right_annotation_repairs_it() {
    let api = ApiServer::new();
    let (_kubelet, _gateway) = (kubelet(&api), Gateway::start(&api, "gw-a", "inc-1", fine));
    let _operator = Operator::start(&api);
    api.apply("secrets", allowed("shared", "https://other.example.com"));
    api.apply("agents", agent("coder", &["issues", "files"]));
    let issues = http("issues", "coder", "https://mcp.example.com/mcp");
    api.apply("mcpattachments", with_token(issues, "shared"));
    api.apply("mcpattachments", with_env(stdio("files", "coder", "serve"), "shared"));
    for (name, says) in [
        (
            "issues",
            "spec.http.credential names the Secret \"shared\", which does not name \
            https://mcp.example.com in its annotation awaken.dev/allowed-targets. Name the",
        ),
        (
            "files",
            "spec.sandboxStdio.secretEnv TOKEN names the Secret \"shared\", which does not \
            name stdio in its annotation",
        ),
    ] {
        let no = until(&api, "mcpattachments", name, "Accepted", false, "SecretNotAllowed").await;
        let told = message(&no, "Accepted");
        assert!(told.starts_with(says), "{told}");
        assert!(condition(&no, "Stalled").0);
    }
    assert!(entries(&api, "coder").is_empty() && api.all("pods").is_empty());

    api.apply("secrets", allowed("shared", "stdio, https://mcp.example.com"));
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
    until(&api, "mcpattachments", "files", "Ready", true, "Active").await;

    let serving = states(&api, "coder", "files");

    // narrowed again: what serves must not go on with it
    api.apply("secrets", allowed("shared", "stdio"));
    until(&api, "mcpattachments", "issues", "Accepted", false, "SecretNotAllowed").await;
    until_states(&api, "issues", &[]).await;
    assert_eq!(states(&api, "coder", "files"), serving);
}

#[tokio::test(start_paused = true)]
async fn an_installation_can_demand_the_annotation() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    let rules = Rules { require_allowed_targets: true, ..Rules::default() };
    let _operator = Operator::start_with(&api, rules);
    api.apply("secrets", secret("issues-token", "token", "hunter2"));
    api.apply("agents", agent("coder", &["issues"]));
    let issues = http("issues", "coder", "https://mcp.example.com/mcp");
    api.apply("mcpattachments", with_token(issues, "issues-token"));
    let no = until(&api, "mcpattachments", "issues", "Accepted", false, "SecretNotAllowed").await;
    assert!(message(&no, "Accepted").contains("lacks the annotation"));
    api.apply("secrets", allowed("issues-token", "https://mcp.example.com"));
    until(&api, "mcpattachments", "issues", "Ready", true, "Active").await;
}

#[tokio::test(start_paused = true)]
async fn the_installations_own_secrets_go_to_no_server() {
    const HOME: &str = "awaken-system";
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", |_| Answer::Silence);
    let reserved_secrets = vec!["awaken-mcp-bearer".to_owned()];
    let _operator = Operator::start_with(&api, Rules { reserved_secrets, ..Rules::default() });
    let own = ["awaken-link-keys", "awaken-source-key", "awaken-mcp-bearer"];
    let at_home = |mut object: Value| {
        object["metadata"]["namespace"] = json!(HOME);
        object
    };
    let issues =
        |secret: &str| with_token(http(secret, "coder", "https://mcp.example.com/mcp"), secret);
    api.apply("secrets", at_home(secret("awaken-mcp-bearer", "token", "hunter2")));
    for place in [HOME, NS] {
        let mut agent = agent("coder", &own);
        agent["metadata"]["namespace"] = json!(place);
        api.apply("agents", agent);
    }
    for name in own {
        api.apply("mcpattachments", at_home(issues(name)));
        api.apply("mcpattachments", issues(name));
        let what = format!("{name} is refused at home");
        let no = api.wait(&what, |api| {
            let object = api.get("mcpattachments", HOME, name)?;
            (condition(&object, "Accepted") == (false, "SecretReserved".into())).then_some(object)
        });
        let told = message(&no.await, "Accepted");
        assert!(told.contains("the installation's own") && told.ends_with("Name another Secret."));
        // elsewhere it is a name like any other
        until(&api, "mcpattachments", name, "Ready", false, "SecretNotFound").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_of_the_api_server_is_no_target() {
    let api = ApiServer::new();
    let _gateway = Gateway::start(&api, "gw-a", "inc-1", fine);
    api.apply(
        "endpointslices",
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.7"]}],
        }),
    );
    let _operator = Operator::start(&api);
    api.apply("agents", agent("coder", &["api", "other"]));
    api.apply("mcpattachments", http("api", "coder", "https://192.0.2.7:6443/api"));
    api.apply("mcpattachments", http("other", "coder", "https://192.0.2.8/mcp"));
    let no = until(&api, "mcpattachments", "api", "Accepted", false, "TargetForbidden").await;
    assert!(message(&no, "Accepted").contains("names the API server"), "{no}");
    until(&api, "mcpattachments", "other", "Ready", true, "Active").await;
}
