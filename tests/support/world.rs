//! An operator against the API server in memory, and what scenarios do to it and ask of it.

use super::apiserver::{ApiServer, text};
use awaken_operator::{
    controller::{
        self, Config,
        build::{
            pod::ShimImage,
            policy::{DnsPeers, GatewayPeers},
        },
        seen::Rules,
    },
    domain::{Clock, export::Namespaces},
    process::metrics::Metrics,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const NS: &str = "team-a";

/// The API server's time.
struct ServerClock(ApiServer);

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// An operator at work.
pub struct Operator {
    pub metrics: Metrics,
    stop: CancellationToken,
    task: JoinHandle<Result<(), controller::ControllerError>>,
}

impl Operator {
    pub fn start(api: &ApiServer) -> Self {
        Self::start_as(api, "operator-1", "operator")
    }

    /// In an installation with these rules.
    pub fn start_with(api: &ApiServer, rules: Rules) -> Self {
        Self::begin(api, "operator-1", "operator", rules)
    }

    /// Another replica, or another start.
    pub fn start_as(api: &ApiServer, pod: &str, actor: &'static str) -> Self {
        Self::begin(api, pod, actor, Rules::default())
    }

    fn begin(api: &ApiServer, pod: &str, actor: &'static str, rules: Rules) -> Self {
        let config = Config {
            namespace: "awaken-system".to_owned(),
            pod: pod.to_owned(),
            incarnation: format!("{pod}-start"),
            shim: ShimImage { image: "awaken/operator:1".to_owned(), pull_policy: None },
            gateways: GatewayPeers {
                namespace: "awaken-system".to_owned(),
                labels: Config::gateway_labels("awaken"),
            },
            dns: DnsPeers {
                namespace: "kube-system".to_owned(),
                labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
                networks: vec![],
            },
            workers: 4,
            export_namespaces: Namespaces::new([NS, "team-b"]),
            rules,
        };
        let (metrics, stop) = (Metrics::new(), CancellationToken::new());
        let task = tokio::spawn({
            let (metrics, stop, client) = (metrics.clone(), stop.clone(), api.client(actor));
            let clock = Arc::new(ServerClock(api.clone()));
            async move { controller::run(config, client, clock, |_| None, &metrics, stop).await }
        });
        Self { metrics, stop, task }
    }

    /// A clean stop; the Lease is given back.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// A crash.
    pub fn kill(self) {
        self.task.abort();
    }

    /// The value of a metric's line that begins with this text.
    pub fn metric(&self, line: &str) -> f64 {
        let text = self.metrics.encode();
        let found = text.lines().find(|l| l.starts_with(line));
        found.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }
}

pub fn agent(name: &str, tool_sets: &[&str]) -> Value {
    let sets: Vec<_> = tool_sets
        .iter()
        .map(|a| json!({"attachment": a, "tools": [{"name": "read", "permission": "Allow"}]}))
        .collect();
    json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
        "metadata": {"name": name, "namespace": NS},
        "spec": {"environment": {"image": "tools:1"}, "toolSets": sets},
    })
}

/// An Agent whose Sessions users make.
pub fn on_demand(name: &str, tool_sets: &[&str]) -> Value {
    let mut agent = agent(name, tool_sets);
    agent["spec"]["session"] = json!({"mode": "OnDemand"});
    agent
}

/// A Session as a user makes one.
pub fn session(name: &str, agent: &str) -> Value {
    json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
        "metadata": {"name": name, "namespace": NS}, "spec": {"agentRef": {"name": agent}},
    })
}

pub fn http(name: &str, agent: &str, url: &str) -> Value {
    json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "McpAttachment",
        "metadata": {"name": name, "namespace": NS},
        "spec": {"agentRef": {"name": agent}, "http": {"url": url}},
    })
}

pub fn stdio(name: &str, agent: &str, command: &str) -> Value {
    json!({
        "apiVersion": "awaken.dev/v1alpha1", "kind": "McpAttachment",
        "metadata": {"name": name, "namespace": NS},
        "spec": {
            "agentRef": {"name": agent},
            "sandboxStdio": {"command": command, "args": ["/workspace"]},
        },
    })
}

pub fn secret(name: &str, key: &str, value: &str) -> Value {
    use base64::Engine as _;
    let value = base64::engine::general_purpose::STANDARD.encode(value);
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": NS}, "data": {key: value},
    })
}

/// Status and reason of a condition.
pub fn condition(object: &Value, type_: &str) -> (bool, String) {
    let none = vec![];
    let all = object["status"]["conditions"].as_array().unwrap_or(&none);
    let found = all.iter().find(|c| c["type"] == type_);
    found.map_or((false, String::new()), |c| (c["status"] == "True", text(c, "/reason")))
}

/// The message of a condition.
pub fn message(object: &Value, type_: &str) -> String {
    let none = vec![];
    let all = object["status"]["conditions"].as_array().unwrap_or(&none);
    all.iter().find(|c| c["type"] == type_).map(|c| text(c, "/message")).unwrap_or_default()
}

/// Waits until the object's condition has this status and reason; gives the object.
pub async fn until(
    api: &ApiServer,
    plural: &str,
    name: &str,
    type_: &str,
    status: bool,
    reason: &str,
) -> Value {
    api.wait(&format!("{plural} {name} {type_}={status} {reason}"), |api| {
        let object = api.get(plural, NS, name)?;
        (condition(&object, type_) == (status, reason.to_owned())).then_some(object)
    })
    .await
}

/// The Session's entries.
pub fn entries(api: &ApiServer, session: &str) -> Vec<Value> {
    let session = api.get("sessions", NS, session).unwrap_or_default();
    session["status"]["attachments"].as_array().cloned().unwrap_or_default()
}

/// Generation and state of each entry of an attachment.
pub fn states(api: &ApiServer, session: &str, attachment: &str) -> Vec<(i64, String)> {
    let of = entries(api, session).into_iter().filter(|e| e["attachment"] == json!(attachment));
    of.map(|e| (e["generation"].as_i64().unwrap(), text(&e, "/state"))).collect()
}

/// Waits until the entries of an attachment stand so.
pub async fn until_states(api: &ApiServer, attachment: &str, expected: &[(i64, &str)]) {
    let what = format!("{attachment}: {expected:?}");
    api.wait(&what, |api| {
        let states = states(api, "coder", attachment);
        let same = states.len() == expected.len()
            && states.iter().zip(expected).all(|(a, b)| (a.0, a.1.as_str()) == *b);
        same.then_some(())
    })
    .await;
}

/// Makes every pod that is not deleted run, from now on, as a kubelet would.
pub fn kubelet(api: &ApiServer) -> JoinHandle<()> {
    let api = api.clone();
    let mut version = api.subscribe();
    tokio::spawn(async move {
        loop {
            version.borrow_and_update();
            for pod in api.all("pods") {
                if pod.get("status").is_none() {
                    let name = text(&pod, "/metadata/name");
                    api.set_status("pods", NS, &name, running("10.1.0.7"));
                }
            }
            if version.changed().await.is_err() {
                return;
            }
        }
    })
}

/// The status of a pod that runs.
pub fn running(address: &str) -> Value {
    json!({
        "phase": "Running", "podIP": address,
        "containerStatuses": [{
            "name": "server", "image": "tools:1", "imageID": "tools@sha256:1", "ready": true,
            "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }],
    })
}

/// The status of a pod whose server's container waits or ended.
pub fn container(state: Value) -> Value {
    json!({
        "phase": "Pending",
        "containerStatuses": [{
            "name": "server", "image": "tools:1", "imageID": "", "ready": false,
            "restartCount": 0, "state": state,
        }],
    })
}
