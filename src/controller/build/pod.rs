//! The pod of one generation of a sandboxed stdio server.
//!
//! ```text
//!  init container  shim image    awaken-shim copy ──► emptyDir /awaken
//!  server          environment   /awaken/awaken-shim run … -- command args
//! ```
//!
//! It passes PodSecurity `restricted`, has no service account token, and holds no secret but its
//! declared `secretEnv`.

use super::{
    ATTACHMENT_UID, COMPONENT, GENERATION, MANAGED_BY, MANAGER, SESSION_COMPONENT, SESSION_UID,
    SHIM_PORT, owned_by_session,
};
use crate::{
    api::{
        Session,
        agent::{Environment, PullPolicy},
        attachment::{SandboxStdio, SecretEnvVar},
    },
    controller::pods::{SERVER, SHIM},
    domain::lifecycle::Generation,
};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
        ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, ResourceRequirements,
        SeccompProfile, SecretKeySelector, SecurityContext, Volume, VolumeMount,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Where the shim lies in the pod.
const SHIM_DIR: &str = "/awaken";
const SHIM_FILE: &str = "/awaken/awaken-shim";
const TMP: &str = "/tmp";
const HOME: &str = "/tmp/home";
/// What is set aside for a server of whose environment nothing is said.
const REQUESTS: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "32Mi")];
/// What such a server may use at most.
const LIMITS: [(&str, &str); 3] = [("cpu", "1"), ("memory", "512Mi"), ("ephemeral-storage", "1Gi")];
/// After SIGTERM, before the kubelet kills. What was in flight was drained before.
const GRACE_SECONDS: i64 = 10;

/// Where the shim comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimImage {
    /// The operator's own image.
    pub image: String,
    /// When it is pulled; the kubelet's default when absent.
    pub pull_policy: Option<String>,
}

/// What a pod is made from.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The Session.
    pub session: &'a Session,
    /// The generation, with its pod's name and its limits.
    pub generation: &'a Generation,
    /// What runs.
    pub stdio: &'a SandboxStdio,
    /// Where it runs.
    pub environment: &'a Environment,
    /// The number of that environment.
    pub revision: i64,
    /// Where the shim comes from.
    pub shim: &'a ShimImage,
    /// The installation's public keys, comma-separated base64.
    pub gateway_keys: &'a str,
}

/// The pod, by the given name.
pub fn pod(launch: &Launch<'_>, name: &str) -> Pod {
    let Launch { session, generation, environment, .. } = launch;
    let number = generation.generation.to_string();
    let uid = session.metadata.uid.clone().unwrap_or_default();
    let labels = [
        (MANAGED_BY, MANAGER),
        (COMPONENT, SESSION_COMPONENT),
        (SESSION_UID, uid.as_str()),
        (ATTACHMENT_UID, generation.attachment_uid.as_str()),
        (GENERATION, number.as_str()),
    ];
    let annotations = [
        ("awaken.dev/session", session.name_any()),
        ("awaken.dev/attachment", generation.attachment.clone()),
        (REVISION, launch.revision.to_string()),
    ];
    let user = environment.run_as_user;
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: session.namespace(),
            labels: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            annotations: Some(annotations.map(|(k, v)| (k.to_owned(), v)).into()),
            owner_references: owned_by_session(session),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(user),
                run_as_group: Some(user),
                fs_group: Some(user),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            init_containers: Some(vec![shim_container(launch)]),
            containers: vec![server_container(launch)],
            volumes: Some(volumes(environment)),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// Annotation: the revision of the environment that a pod runs in.
pub const REVISION: &str = "awaken.dev/environment-revision";

fn shim_container(launch: &Launch<'_>) -> Container {
    let amounts = |cpu: &str, memory: &str| quantities([("cpu", cpu), ("memory", memory)]);
    Container {
        name: SHIM.to_owned(),
        image: Some(launch.shim.image.clone()),
        image_pull_policy: launch.shim.pull_policy.clone(),
        command: Some(vec![
            "/usr/local/bin/awaken-shim".to_owned(),
            "copy".to_owned(),
            SHIM_FILE.to_owned(),
        ]),
        resources: Some(ResourceRequirements {
            requests: Some(amounts("10m", "16Mi")),
            limits: Some(amounts("500m", "64Mi")),
            ..ResourceRequirements::default()
        }),
        security_context: Some(restricted()),
        volume_mounts: Some(vec![mount("awaken", SHIM_DIR, false)]),
        ..Container::default()
    }
}

fn server_container(launch: &Launch<'_>) -> Container {
    let Launch { session, generation, stdio, environment, .. } = launch;
    let flag = |name: &str, value: String| [name.to_owned(), value];
    let mut args = vec!["run".to_owned()];
    args.extend(flag("--listen", format!("0.0.0.0:{SHIM_PORT}")));
    args.extend(flag("--session-uid", session.metadata.uid.clone().unwrap_or_default()));
    args.extend(flag("--attachment-uid", generation.attachment_uid.clone()));
    args.extend(flag("--generation", generation.generation.to_string()));
    args.extend(flag("--max-message-bytes", generation.limits.max_message_bytes.to_string()));
    let secret: Vec<_> = stdio.secret_env.iter().map(|e| e.name.as_str()).collect();
    if !secret.is_empty() {
        args.extend(flag("--secret-env", secret.join(",")));
    }
    args.push("--".to_owned());
    args.push(literal(&stdio.command));
    args.extend(stdio.args.iter().map(|a| literal(a)));
    let mut mounts =
        vec![mount("awaken", SHIM_DIR, true), mount("tmp", TMP, false), mount("home", HOME, false)];
    if let Some(workspace) = &environment.workspace {
        mounts.push(mount("workspace", &workspace.mount_path, false));
    }
    Container {
        name: SERVER.to_owned(),
        image: Some(environment.image.clone()),
        image_pull_policy: Some(
            match environment.image_pull_policy {
                PullPolicy::IfNotPresent => "IfNotPresent",
                PullPolicy::Always => "Always",
                PullPolicy::Never => "Never",
            }
            .to_owned(),
        ),
        command: Some(vec![SHIM_FILE.to_owned()]),
        args: Some(args),
        env: Some(env(launch)),
        ports: Some(vec![ContainerPort {
            name: Some("shim".to_owned()),
            container_port: SHIM_PORT,
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(resources(environment.resources.as_ref())),
        security_context: Some(restricted()),
        termination_message_policy: Some("File".to_owned()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

fn env(launch: &Launch<'_>) -> Vec<EnvVar> {
    let plain = |name: &str, value: String| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    };
    let from = |name: &str, source: EnvVarSource| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(source),
    };
    let mut env = vec![
        from(
            "AWAKEN_POD_UID",
            EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".to_owned()),
                    field_path: "metadata.uid".to_owned(),
                }),
                ..EnvVarSource::default()
            },
        ),
        plain("AWAKEN_GATEWAY_KEYS", launch.gateway_keys.to_owned()),
    ];
    let declared = |name: &str| {
        launch.stdio.env.iter().any(|e| e.name == name)
            || launch.stdio.secret_env.iter().any(|e| e.name == name)
    };
    for (name, value) in [("HOME", HOME), ("TMPDIR", TMP)] {
        if !declared(name) {
            env.push(plain(name, value.to_owned()));
        }
    }
    env.extend(launch.stdio.env.iter().map(|e| plain(&e.name, literal(&e.value))));
    env.extend(launch.stdio.secret_env.iter().map(|SecretEnvVar { name, secret_key_ref }| {
        let selector = SecretKeySelector {
            name: secret_key_ref.name.clone(),
            key: secret_key_ref.key.clone(),
            optional: None,
        };
        from(name, EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() })
    }));
    env
}

/// Kubernetes replaces `$(NAME)` in arguments and values and reads `$$` as one `$`; with each `$`
/// doubled the text arrives as written.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Capabilities::default()
        }),
        privileged: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        ..SecurityContext::default()
    }
}

/// What is asked for, and for each resource that is not named our defaults: no container is without
/// limits.
fn resources(asked: Option<&ResourceRequirements>) -> ResourceRequirements {
    let asked = asked.cloned().unwrap_or_default();
    let (mut requests, mut limits) =
        (asked.requests.unwrap_or_default(), asked.limits.unwrap_or_default());
    for (name, amount) in REQUESTS {
        // with a limit alone, Kubernetes sets aside as much
        if !limits.contains_key(name) {
            requests.entry(name.to_owned()).or_insert_with(|| Quantity(amount.to_owned()));
        }
    }
    for (name, amount) in LIMITS {
        let default = Quantity(amount.to_owned());
        limits.entry(name.to_owned()).or_insert_with(|| match requests.get(name) {
            Some(request) if units(request) > units(&default) => request.clone(),
            _ => default,
        });
    }
    let (requests, limits) = (Some(requests), Some(limits));
    ResourceRequirements { requests, limits, ..asked }
}

/// How much a quantity is, near enough to compare two; what is no quantity is as much as can be.
fn units(quantity: &Quantity) -> f64 {
    let text = quantity.0.trim_start_matches('+');
    if let Ok(number) = text.parse() {
        return number;
    }
    let end = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (number, suffix) = text.split_at(end);
    let scale = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        _ => return f64::INFINITY,
    };
    number.parse().map_or(f64::INFINITY, |number: f64| number * scale)
}

fn quantities<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<String, Quantity> {
    all.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into()
}

fn volumes(environment: &Environment) -> Vec<Volume> {
    let empty = |name: &str| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    };
    let mut all = vec![empty("awaken"), empty("tmp"), empty("home")];
    if environment.workspace.is_some() {
        all.push(empty("workspace"));
    }
    all
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case::nothing(
        json!(null),
        json!({"requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"}})
    )]
    #[case::some_limits(
        json!({"limits": {"cpu": "2", "memory": "1Gi"}}),
        json!({"requests": {}, "limits": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}})
    )]
    #[case::requests_alone(
        json!({"requests": {"cpu": "50m", "memory": "2Gi"}}),
        json!({"requests": {"cpu": "50m", "memory": "2Gi"},
            "limits": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "1Gi"}})
    )]
    #[case::others_stay(
        json!({"limits": {"example.com/gpu": "1", "ephemeral-storage": "5G"}}),
        json!({"requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "5G", "example.com/gpu": "1"}})
    )]
    fn every_container_has_limits(#[case] asked: Value, #[case] expected: Value) {
        let asked: Option<ResourceRequirements> = serde_json::from_value(asked).unwrap();
        let expected: ResourceRequirements = serde_json::from_value(expected).unwrap();
        assert_eq!(resources(asked.as_ref()), expected);
    }

    #[test]
    fn quantities_are_compared_whatever_their_suffix() {
        let rising = ["1n", "1u", "10m", "0.5", "1", "2e3", "1Mi", "2M", "600Mi", "1G", "1Gi", "x"];
        let of = |text: &str| units(&Quantity(text.to_owned()));
        assert!(rising.is_sorted_by(|a, b| of(a) < of(b)), "{:?}", rising.map(of));
    }
}
