//! What the accounts of an installation and the users' roles may do, and what they may not, asked of the API
//! server itself.

use crate::server::{GATEWAY, OPERATOR, Server};
use rstest::rstest;
use serde_json::{Value, json};

/// Asks for `verb group/resource[/subresource] [name]` in a namespace, or in all of them (`*`).
async fn may(server: &Server, account: &str, what: &str, namespace: &str) -> bool {
    let mut words = what.split(' ');
    let (verb, resource, name) =
        (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or_default());
    let mut parts = resource.split('/');
    let (group, resource) = (parts.next().unwrap(), parts.next().unwrap());
    let namespace = if namespace == "*" { "" } else { namespace };
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": account, "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": {"verb": verb, "group": group, "resource": resource,
            "subresource": parts.next().unwrap_or_default(), "name": name, "namespace": namespace}}});
    let said =
        server.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await.ok();
    said["status"]["allowed"] == true
}

async fn check(account: &str, place: &str, may_do: &[&str], may_not: &[&str]) {
    let server = Server::new().await;
    let mut wrong = vec![];
    for (all, expected) in [(may_do, true), (may_not, false)] {
        for what in all {
            if may(&server, account, what, place).await != expected {
                wrong.push(format!("{what}: expected {expected}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "{account} in {place}");
}

#[tokio::test]
async fn the_operator_anywhere() {
    let may_do = [
        "list awaken.dev/agents",
        "watch awaken.dev/mcpattachments",
        "patch awaken.dev/agents/status",
        "patch awaken.dev/mcpattachments/status",
        "create awaken.dev/sessions",
        "patch awaken.dev/sessions",
        "delete awaken.dev/sessions",
        "patch awaken.dev/sessions/status",
        "update awaken.dev/sessions/finalizers",
        "update awaken.dev/agents/finalizers",
        "create /pods",
        "delete /pods",
        "watch /pods",
        "create networking.k8s.io/networkpolicies",
        "update networking.k8s.io/networkpolicies",
        "get /secrets",
        "watch /secrets",
        "create events.k8s.io/events",
        "patch events.k8s.io/events",
    ];
    let may_not = [
        "delete networking.k8s.io/networkpolicies",
        "patch awaken.dev/agents",
        "update awaken.dev/mcpattachments",
        "delete awaken.dev/agents",
        "delete awaken.dev/mcpattachments",
        "create awaken.dev/sessions/mcp",
        "get awaken.dev/sessions/trace",
        "create /secrets",
        "update /secrets",
        "delete /secrets",
        "create /pods/exec",
        "get /pods/log",
        "deletecollection /pods",
        "update /pods",
        "create /serviceaccounts/token",
        "create authentication.k8s.io/tokenreviews",
        "create rbac.authorization.k8s.io/rolebindings",
        "patch admissionregistration.k8s.io/validatingadmissionpolicies",
        "create coordination.k8s.io/leases",
        "get /configmaps",
        "get /nodes",
    ];
    check(OPERATOR, "*", &may_do, &may_not).await;
    check(OPERATOR, "team-a", &may_do, &may_not).await;
}

#[tokio::test]
async fn the_operator_at_home() {
    let may_do = [
        "create coordination.k8s.io/leases",
        "update coordination.k8s.io/leases awaken-operator",
        "watch coordination.k8s.io/leases",
        "create /secrets",
    ];
    let may_not =
        ["update /secrets awaken-link-keys", "delete /secrets", "patch /pods", "get /pods/exec"];
    check(OPERATOR, "awaken-system", &may_do, &may_not).await;
}

#[tokio::test]
async fn the_gateway_anywhere() {
    let may_do = [
        "watch awaken.dev/sessions",
        "create awaken.dev/sessions",
        "update awaken.dev/sessions",
        "patch awaken.dev/sessions/status",
        "watch awaken.dev/agents",
        "get /secrets issues-token",
        "create authentication.k8s.io/tokenreviews",
        "create authorization.k8s.io/subjectaccessreviews",
        "create events.k8s.io/events",
    ];
    let may_not = [
        "patch awaken.dev/sessions",
        "update awaken.dev/sessions/status",
        "delete awaken.dev/sessions",
        "patch awaken.dev/agents",
        "patch awaken.dev/agents/status",
        "create awaken.dev/agents",
        "patch awaken.dev/mcpattachments/status",
        "create awaken.dev/mcpattachments",
        "create /pods",
        "delete /pods",
        "list /pods",
        "list /secrets",
        "watch /secrets",
        "create /secrets",
        "create /pods/exec",
        "create networking.k8s.io/networkpolicies",
        "create /serviceaccounts/token",
        "create coordination.k8s.io/leases",
        "create rbac.authorization.k8s.io/rolebindings",
    ];
    check(GATEWAY, "*", &may_do, &may_not).await;
    check(GATEWAY, "team-a", &may_do, &may_not).await;
}

#[tokio::test]
async fn the_gateway_at_home() {
    let may_do = [
        "create coordination.k8s.io/leases",
        "update coordination.k8s.io/leases awaken-gateway-x",
        "delete coordination.k8s.io/leases awaken-gateway-x",
        "get /secrets awaken-link-keys",
    ];
    let may_not = [
        "create /secrets",
        "list coordination.k8s.io/leases",
        "get /services awaken-gateway",
        "create /pods",
        "list /secrets",
    ];
    check(GATEWAY, "awaken-system", &may_do, &may_not).await;
}

/// A role of the chart bound to an account in the test's namespace.
#[rstest]
#[case::view("view", &["list awaken.dev/agents", "get awaken.dev/sessions", "watch awaken.dev/mcpattachments"],
    &["create awaken.dev/agents", "create awaken.dev/sessions/mcp", "get awaken.dev/sessions/trace", "get /secrets"])]
#[case::edit("edit", &["create awaken.dev/agents", "delete awaken.dev/mcpattachments", "create awaken.dev/sessions/mcp", "get awaken.dev/sessions/trace",
    "create awaken.dev/sessions", "delete awaken.dev/sessions"],
    &["patch awaken.dev/agents/status", "patch awaken.dev/sessions/status"])]
#[case::caller("caller", &["create awaken.dev/sessions/mcp coder", "get awaken.dev/sessions coder", "get awaken.dev/sessions/trace coder"],
    &["list awaken.dev/sessions", "get awaken.dev/agents", "create awaken.dev/agents", "get /secrets"])]
#[tokio::test]
async fn a_role_for_users(#[case] role: &str, #[case] may_do: &[&str], #[case] may_not: &[&str]) {
    let server = Server::new().await;
    let account = format!("system:serviceaccount:{}:user", server.namespace);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": server.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("awaken-{role}")},
        "subjects": [{"kind": "ServiceAccount", "name": "user", "namespace": server.namespace}]});
    server.apply(&binding).await.ok();
    server
        .until("the binding is known", async || {
            may(&server, &account, may_do[0], &server.namespace).await
        })
        .await;
    for what in may_do {
        assert!(may(&server, &account, what, &server.namespace).await, "{role} may not {what}");
        assert!(!may(&server, &account, what, "default").await, "{role} may {what} elsewhere");
    }
    for what in may_not {
        assert!(!may(&server, &account, what, &server.namespace).await, "{role} may {what}");
    }
}

#[tokio::test]
async fn roles_join_the_clusters_own() {
    let server = Server::new().await;
    let labels = async |name: &str| -> Value {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}");
        server.get(&path).await.ok()["metadata"]["labels"].clone()
    };
    let to = |role: &str| format!("rbac.authorization.k8s.io/aggregate-to-{role}");
    assert_eq!(labels("awaken-view").await[to("view")], "true");
    assert_eq!(labels("awaken-edit").await[to("edit")], "true");
    assert_eq!(labels("awaken-edit").await[to("view")], Value::Null);
    assert_eq!(labels("awaken-caller").await[to("edit")], Value::Null);
}

/// Applies the chart's rendering with these values, but for what runs and what other tests
/// share, as a release `probe` in the test's namespace.
async fn install_probe(server: &Server, values: &[&str]) {
    let root = env!("CARGO_MANIFEST_DIR");
    let run = |program: &str, arguments: &[&str]| {
        let out = std::process::Command::new(program).args(arguments).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let helm = run(&format!("{root}/tests/cluster/cluster"), &["program", "helm"]);
    let chart = format!("{root}/charts/awaken-operator");
    let mut arguments = vec!["template", "probe", &chart, "--namespace", &server.namespace];
    arguments.extend(values.iter().flat_map(|value| ["--set", *value]));
    for object in crate::server::documents_of(&run(helm.trim(), &arguments)) {
        let kind = object["kind"].as_str().unwrap();
        if matches!(kind, "ServiceAccount" | "Role" | "RoleBinding") {
            server.apply(&object).await.ok();
        }
    }
}

/// The rights in this namespace of an account of the release, of those that matter to the
/// endpoint.
async fn rights(server: &Server, account: &str, namespace: &str) -> Vec<String> {
    let account = format!("system:serviceaccount:{}:{account}", server.namespace);
    let mut found = vec![];
    for resource in ["agents", "mcpattachments", "sessions"] {
        for verb in ["get", "list", "watch", "create", "update", "patch", "delete"] {
            found.push(format!("{verb} awaken.dev/{resource}"));
        }
        found.push(format!("patch awaken.dev/{resource}/status"));
    }
    let others = ["get awaken.dev/sessions/trace", "create awaken.dev/sessions/mcp"];
    found.extend(others.map(str::to_owned));
    for others in ["/secrets", "/pods", "/events", "/configmaps", "/serviceaccounts"] {
        for verb in ["get", "list", "create", "impersonate"] {
            found.push(format!("{verb} {others}"));
        }
    }
    let mut held = vec![];
    for what in found {
        if may(server, &account, &what, namespace).await {
            assert!(!may(server, &account, &what, "default").await, "{what} elsewhere");
            held.push(what.replace("awaken.dev/", ""));
        }
    }
    held
}

#[rstest]
#[case::reader("{agents_list,attachment_get}",
    &["list agents", "get mcpattachments", "list sessions"])]
#[case::everything(
    "{agents_list,agent_get,attachments_list,attachment_get,attachment_apply,attachment_delete,attachment_retry,sessions_list,session_get,session_create,session_close,trace_list}",
    &["get agents", "list agents",
      "get mcpattachments", "list mcpattachments", "watch mcpattachments", "create mcpattachments", "patch mcpattachments", "delete mcpattachments",
      "get sessions", "list sessions", "watch sessions", "create sessions", "delete sessions", "get sessions/trace"])]
#[tokio::test]
async fn the_account_of_the_management_tools_holds_what_the_exported_ones_need(
    #[case] exports: &str,
    #[case] expected: &[&str],
) {
    let server = Server::new().await;
    let managed = server.new_namespace().await;
    let values = [
        "gateway.mcp.bearerSecretRef.name=bearer",
        &format!("gateway.mcp.exports={exports}"),
        &format!("gateway.mcp.management.namespaces={{{managed}}}"),
    ];
    install_probe(&server, &values).await;
    server
        .until("the bindings are known", async || {
            rights(&server, "probe-mcp", &managed).await == expected
        })
        .await;
    let at_home = rights(&server, "probe-mcp", &server.namespace).await;
    assert_eq!(at_home, Vec::<String>::new(), "in the installation's own namespace");

    let gateway = format!("system:serviceaccount:{}:probe-gateway", server.namespace);
    for (what, expected) in [
        ("impersonate /serviceaccounts probe-mcp", true),
        ("impersonate /serviceaccounts probe-operator", false),
        ("impersonate /serviceaccounts", false),
        ("impersonate /users system:admin", false),
        ("impersonate /groups system:masters", false),
        ("impersonate /groups system:authenticated", false),
        ("watch /secrets bearer", true),
        ("list /secrets bearer", true),
        ("watch /secrets other", false),
        ("list /secrets", false),
        ("delete awaken.dev/mcpattachments", false),
    ] {
        assert_eq!(may(&server, &gateway, what, &server.namespace).await, expected, "{what}");
    }
}

#[tokio::test]
async fn without_an_export_nobody_is_impersonated() {
    let server = Server::new().await;
    let values =
        ["gateway.mcp.bearerSecretRef.name=bearer", "gateway.mcp.exportNamespaces={team-a}"];
    install_probe(&server, &values).await;
    let gateway = format!("system:serviceaccount:{}:probe-gateway", server.namespace);
    server
        .until("the binding is known", async || {
            may(&server, &gateway, "watch /secrets bearer", &server.namespace).await
        })
        .await;
    for what in ["impersonate /serviceaccounts probe-mcp", "impersonate /serviceaccounts"] {
        assert!(!may(&server, &gateway, what, &server.namespace).await, "{what}");
    }
}
