//! Kubernetes objects as JSON: the kinds by name, and the usual bodies.

use kube::core::ApiResource;
use serde_json::{Value, json};

/// Kind, group, version, plural.
const KINDS: &[(&str, &str, &str, &str)] = &[
    ("Agent", "awaken.dev", "v1alpha1", "agents"),
    ("McpAttachment", "awaken.dev", "v1alpha1", "mcpattachments"),
    ("Session", "awaken.dev", "v1alpha1", "sessions"),
    ("Pod", "", "v1", "pods"),
    ("Service", "", "v1", "services"),
    ("Secret", "", "v1", "secrets"),
    ("ConfigMap", "", "v1", "configmaps"),
    ("Namespace", "", "v1", "namespaces"),
    ("ServiceAccount", "", "v1", "serviceaccounts"),
    ("Event", "", "v1", "events"),
    ("ResourceQuota", "", "v1", "resourcequotas"),
    ("LimitRange", "", "v1", "limitranges"),
    ("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
    ("Deployment", "apps", "v1", "deployments"),
    ("ReplicaSet", "apps", "v1", "replicasets"),
    ("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    ("Role", "rbac.authorization.k8s.io", "v1", "roles"),
    ("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings"),
    ("Lease", "coordination.k8s.io", "v1", "leases"),
    ("EndpointSlice", "discovery.k8s.io", "v1", "endpointslices"),
];

/// Namespaced kinds that somebody could leave behind.
pub const LEFT_BEHIND: &[&str] = &[
    "Agent",
    "McpAttachment",
    "Session",
    "Pod",
    "Service",
    "Secret",
    "ConfigMap",
    "PersistentVolumeClaim",
    "Deployment",
    "NetworkPolicy",
    "Lease",
    "ServiceAccount",
    "Role",
    "RoleBinding",
];

/// The resource of a kind.
pub fn resource(kind: &str) -> ApiResource {
    let (kind, group, version, plural) =
        *KINDS.iter().find(|k| k.0 == kind).unwrap_or_else(|| panic!("no kind {kind} here"));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// An object's head.
pub fn object(kind: &str, name: &str, rest: Value) -> Value {
    let mut whole = json!({
        "apiVersion": resource(kind).api_version, "kind": kind, "metadata": {"name": name},
    });
    let fields = rest.as_object().expect("an object's fields").clone();
    whole.as_object_mut().expect("made above").extend(fields);
    whole
}

/// The image of the scripted servers.
pub fn stub_image() -> String {
    std::env::var("AWAKEN_E2E_STUB_IMAGE").unwrap_or("localhost/awaken-stub:dev".to_owned())
}

/// The image of the real servers.
pub fn servers_image() -> String {
    std::env::var("AWAKEN_E2E_SERVERS_IMAGE").unwrap_or("localhost/mcp-servers:dev".to_owned())
}

/// A pod that PodSecurity `restricted` admits.
pub fn pod(name: &str, image: &str, command: &[&str], labels: &Value) -> Value {
    let mut whole = object(
        "Pod",
        name,
        json!({"spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "server", "image": image, "imagePullPolicy": "IfNotPresent", "command": command,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        }}),
    );
    whole["metadata"]["labels"] = labels.clone();
    whole
}

/// A condition of an object; Null for none.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    const NONE: &Value = &Value::Null;
    let all = object["status"]["conditions"].as_array();
    all.and_then(|c| c.iter().find(|c| c["type"] == kind)).unwrap_or(NONE)
}

/// Conditions of an object in one line each, for people.
pub fn shown(object: &Value) -> String {
    serde_json::to_string_pretty(&json!({
        "metadata": {"name": object["metadata"]["name"], "uid": object["metadata"]["uid"]},
        "status": object["status"],
    }))
    .unwrap_or_default()
}
