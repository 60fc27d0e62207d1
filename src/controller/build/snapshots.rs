//! The objects as they are sent, and that nothing of a spec is forgotten on the way into a pod.

#[cfg(test)]
mod tests {
    use crate::{
        api::{Agent, Session, agent::Environment, attachment::SandboxStdio},
        controller::{
            Config,
            build::{
                pod::{Launch, ShimImage, pod},
                policy::{DnsPeers, GatewayPeers, policy},
                session::{Ownership, ownership, standing},
            },
            egress::ways,
            seen::Rules,
        },
        domain::lifecycle::Generation,
    };
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn agent(name: &str, uid: &str) -> Agent {
        serde_json::from_value(json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": name, "namespace": "team-a", "uid": uid}, "spec": {},
        }))
        .unwrap()
    }

    fn session() -> Session {
        let mut session = standing(&agent("coder", "agent-uid"));
        session.metadata.uid = Some("session-uid".to_owned());
        session
    }

    fn stdio() -> Value {
        json!({
            "command": "mcp-server-files", "args": ["/workspace", "$(HOME)", "a$b$$c$"],
            "env": [{"name": "LEVEL", "value": "$(X) plain"}],
            "secretEnv": [
                {"name": "API_KEY", "secretKeyRef": {"name": "files-key", "key": "token"}},
            ],
        })
    }

    fn environment() -> Value {
        json!({"image": "registry.example.com/tools:1.4", "workspace": {"mountPath": "/workspace"}})
    }

    fn generation() -> Value {
        json!({
            "generation": 12, "attachment": "files", "attachmentUid": "attachment-uid",
            "server": "files", "source": "sha256:s", "state": "Realizing",
            "target": {"sandboxStdio": {"name": "coder-files-12-abc"}},
            "limits": {
                "startupTimeoutMs": 1, "callTimeoutMs": 2, "drainTimeoutMs": 3,
                "maxConcurrentCalls": 4, "maxMessageBytes": 5555,
            },
            "reason": "Realizing", "since": "2026-01-01T00:00:00Z",
        })
    }

    fn build(stdio: Value, environment: Value) -> Pod {
        let (session, shim) = (
            session(),
            ShimImage {
                image: "registry.example.com/awaken:0.1".to_owned(),
                pull_policy: Some("IfNotPresent".to_owned()),
            },
        );
        let generation: Generation = serde_json::from_value(generation()).unwrap();
        let stdio: SandboxStdio = serde_json::from_value(stdio).unwrap();
        let environment: Environment = serde_json::from_value(environment).unwrap();
        let launch = Launch {
            session: &session,
            generation: &generation,
            stdio: &stdio,
            environment: &environment,
            revision: 3,
            shim: &shim,
            gateway_keys: "cHVibGljLTE=,cHVibGljLTI=",
        };
        pod(&launch, "coder-files-12-abc")
    }

    #[test]
    fn the_pod() {
        insta::assert_yaml_snapshot!(build(stdio(), environment()));
    }

    #[test]
    fn the_policy() {
        let peers = GatewayPeers {
            namespace: "awaken-system".to_owned(),
            labels: Config::gateway_labels("awaken"),
        };
        insta::assert_yaml_snapshot!(policy(&session(), &peers, &[], &dns()));
    }

    #[test]
    fn the_policy_with_egress() {
        let peers = GatewayPeers {
            namespace: "awaken-system".to_owned(),
            labels: Config::gateway_labels("awaken"),
        };
        let egress = json!({"mode": "Allow", "rules": [
            {"cidr": "203.0.112.0/20", "except": ["203.0.113.0/25"], "ports": [
                {"port": 443}, {"port": 8000, "endPort": 8003, "protocol": "UDP"},
            ]},
            {"cidr": "10.20.0.0/16", "ports": [{"port": 5432}]},
        ]});
        let egress = serde_json::from_value(egress).unwrap();
        let ways = ways(&egress, &Rules::default()).unwrap();
        let spec = policy(&session(), &peers, &ways, &dns()).spec.unwrap();
        insta::assert_yaml_snapshot!(spec.egress);
    }

    fn dns() -> DnsPeers {
        DnsPeers {
            namespace: "kube-system".to_owned(),
            labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
            networks: vec!["169.254.20.10/32".parse().unwrap()],
        }
    }

    #[test]
    fn the_session() {
        insta::assert_yaml_snapshot!(session());
    }

    /// Every field of the specs that a pod is made from, changed to a marker that must be found.
    #[test]
    fn no_field_is_forgotten() {
        let env = |name: &str, value: Value| {
            let mut all = environment();
            all[name] = value;
            (stdio(), all)
        };
        let server = |name: &str, value: Value| {
            let mut all = stdio();
            all[name] = value;
            (all, environment())
        };
        let cases = [
            (env("image", json!("marker/image:9")), "marker/image:9"),
            (env("imagePullPolicy", json!("Always")), "Always"),
            (env("runAsUser", json!(4711)), "4711"),
            (env("resources", json!({"limits": {"memory": "777Mi"}})), "777Mi"),
            (env("workspace", json!({"mountPath": "/marker"})), "/marker"),
            (server("command", json!("marker-command")), "marker-command"),
            (server("args", json!(["marker-arg"])), "marker-arg"),
            (server("env", json!([{"name": "MARKER", "value": "marker-value"}])), "marker-value"),
            (
                server(
                    "secretEnv",
                    json!([
                        {"name": "S", "secretKeyRef": {"name": "marker-secret", "key": "marker-key"}},
                    ]),
                ),
                "marker-secret",
            ),
        ];
        let plain = serde_json::to_string(&build(stdio(), environment())).unwrap();
        for ((stdio, environment), marker) in cases {
            assert!(!plain.contains(marker), "{marker} is no marker");
            let pod = serde_json::to_string(&build(stdio, environment)).unwrap();
            assert!(pod.contains(marker), "{marker} is lost");
        }
        // A new field of either spec must be added above.
        let fields = |of: Value| of.as_object().unwrap().len();
        let environment: Environment = serde_json::from_value(json!({
            "image": "i", "imagePullPolicy": "Never", "runAsUser": 1,
            "resources": {"limits": {"cpu": "1"}}, "workspace": {"mountPath": "/w"},
            "egress": {"mode": "Allow"},
        }))
        .unwrap();
        // egress is the policy's
        assert_eq!(fields(serde_json::to_value(environment).unwrap()), 6);
        let stdio: SandboxStdio = serde_json::from_value(stdio()).unwrap();
        assert_eq!(fields(serde_json::to_value(stdio).unwrap()), 4);
    }

    #[test]
    fn the_same_input_is_the_same_pod_to_the_byte() {
        let bytes = || serde_json::to_string(&build(stdio(), environment())).unwrap();
        assert_eq!(bytes(), bytes());
    }

    #[test]
    fn home_and_tmpdir_of_the_owner_win() {
        let mut stdio = stdio();
        stdio["env"] = json!([{"name": "HOME", "value": "/workspace"}]);
        let pod = build(stdio, environment());
        let env = pod.spec.unwrap().containers[0].env.clone().unwrap();
        let home: Vec<_> = env.iter().filter(|e| e.name == "HOME").collect();
        assert_eq!(home.len(), 1);
        assert_eq!(home[0].value.as_deref(), Some("/workspace"));
    }

    #[test]
    fn whose_a_session_is() {
        let session = session();
        assert_eq!(ownership(&session, &agent("coder", "agent-uid")), Ownership::Ours);
        assert_eq!(ownership(&session, &agent("coder", "later-uid")), Ownership::Former);
        let mut foreign = session;
        foreign.metadata.owner_references = None;
        assert_eq!(ownership(&foreign, &agent("coder", "agent-uid")), Ownership::Foreign);
    }
}
