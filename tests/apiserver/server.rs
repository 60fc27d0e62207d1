//! A way to say any request to the API server, as any account, and to see everything it answers:
//! status, warnings and body.

use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::{Client, Config, client::Body, config::Kubeconfig};
use serde_json::{Value, json};
use std::{path::Path, time::Duration};

/// The administrator.
pub const ADMIN: &str = "";
pub const OPERATOR: &str = "system:serviceaccount:awaken-system:awaken-operator";
pub const GATEWAY: &str = "system:serviceaccount:awaken-system:awaken-gateway";

/// What the API server answered.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub warnings: Vec<String>,
    pub body: Value,
}

impl Answer {
    pub fn ok(self) -> Value {
        assert!(self.code < 300, "{} {}", self.code, self.body["message"]);
        self.body
    }

    /// Asserts a refusal that says this.
    pub fn refused(&self, words: &str) {
        let message = self.body["message"].as_str().unwrap_or_default();
        assert!((400..500).contains(&self.code), "not refused: {} {}", self.code, self.body);
        assert!(message.contains(words), "`{words}` is not in: {message}");
    }
}

pub struct Server {
    client: Client,
    /// A namespace of the test's own.
    pub namespace: String,
}

impl Server {
    /// A connection and a fresh namespace; the chart is installed once for all tests.
    pub async fn new() -> Self {
        static INSTALLED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
        let path = std::env::var("AWAKEN_TEST_KUBECONFIG").expect(
            "AWAKEN_TEST_KUBECONFIG must name the kubeconfig of a cluster for tests; \
             `tests/cluster/cluster up --api-only` starts one and says where its kubeconfig is",
        );
        let file = Kubeconfig::read_from(&path).expect("AWAKEN_TEST_KUBECONFIG names a kubeconfig");
        let config = Config::from_custom_kubeconfig(file, &Default::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let mut server = Self { client, namespace: String::new() };
        INSTALLED.get_or_init(|| server.install()).await;
        server.namespace = server.new_namespace().await;
        server
    }

    /// The name of another namespace that nobody else uses.
    pub async fn new_namespace(&self) -> String {
        let body = json!({"metadata": {"generateName": "apiserver-test-"}});
        let made = self.post("/api/v1/namespaces", &body).await.ok();
        made["metadata"]["name"].as_str().unwrap().to_owned()
    }

    /// The administrator's own way to the API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Sends a request as an account; [`ADMIN`] is the kubeconfig's own.
    pub async fn call(
        &self,
        account: &str,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> Answer {
        let mut request =
            Request::builder().method(method).uri(path).header("accept", kind_accept(kind));
        request = request.header("content-type", kind);
        if account != ADMIN {
            request = request.header("impersonate-user", account);
            for group in ["system:authenticated", "system:serviceaccounts"] {
                request = request.header("impersonate-group", group);
            }
        }
        let bytes = body.map(|b| serde_json::to_vec(b).unwrap()).unwrap_or_default();
        let answer = self.client.send(request.body(Body::from(bytes)).unwrap()).await.unwrap();
        let code = answer.status().as_u16();
        let warnings = answer.headers().get_all("warning").iter();
        let warnings = warnings.map(|w| w.to_str().unwrap().to_owned()).collect();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| json!({"message": String::from_utf8_lossy(&bytes)}));
        Answer { code, warnings, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(ADMIN, Method::GET, path, "application/json", None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(ADMIN, Method::POST, path, "application/json", Some(body)).await
    }

    /// Creates an object of ours, unknown fields refused.
    pub async fn create(&self, object: &Value) -> Answer {
        let path = format!("{}?fieldValidation=Strict", self.collection(object));
        self.post(&path, object).await
    }

    /// A merge patch of an object of ours.
    pub async fn merge(&self, account: &str, object: &Value, part: &str, patch: &Value) -> Answer {
        let path = format!("{}{part}", self.path(object));
        self.call(account, Method::PATCH, &path, "application/merge-patch+json", Some(patch)).await
    }

    /// Server-side apply of any object.
    pub async fn apply(&self, object: &Value) -> Answer {
        let path =
            format!("{}?fieldManager=test&force=true&fieldValidation=Strict", self.path(object));
        self.call(ADMIN, Method::PATCH, &path, "application/apply-patch+yaml", Some(object)).await
    }

    fn collection(&self, object: &Value) -> String {
        let (version, kind) = (text(object, "apiVersion"), text(object, "kind"));
        let root = if version.contains('/') { "apis" } else { "api" };
        let plural = match kind.to_lowercase() {
            lower if lower.ends_with('y') => format!("{}ies", &lower[..lower.len() - 1]),
            lower => format!("{lower}s"),
        };
        let ours = version.starts_with("awaken.dev/").then_some(&*self.namespace);
        let namespace = object["metadata"]["namespace"].as_str().or(ours);
        let place = namespace.map(|n| format!("namespaces/{n}/")).unwrap_or_default();
        format!("/{root}/{version}/{place}{plural}")
    }

    pub fn path(&self, object: &Value) -> String {
        format!("{}/{}", self.collection(object), text(&object["metadata"], "name"))
    }

    /// Applies the chart's rendering but for what runs, and waits until its policies hold.
    async fn install(&self) {
        for object in documents("manifests/install.yaml") {
            if !matches!(text(&object, "kind"), "Deployment" | "Service" | "PersistentVolumeClaim")
            {
                self.apply(&object).await.ok();
            }
        }
        let session = json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
            "metadata": {"name": "probe", "namespace": "default", "ownerReferences": [
                {"apiVersion": "awaken.dev/v1alpha1", "kind": "Agent", "name": "a", "uid": "u"},
            ]},
            "spec": {"agentRef": {"name": "a"}},
        });
        let path = format!("{}?dryRun=All", self.collection(&session));
        self.until("the policies hold", async || {
            let said = self.post(&path, &session).await;
            said.code == 422 || said.code == 403
        })
        .await;
    }

    /// Asks again until it is so, for up to half a minute.
    pub async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> bool) {
        let mut turns = tokio::time::interval(Duration::from_millis(100));
        for _ in 0..300 {
            turns.tick().await;
            if so().await {
                return;
            }
        }
        panic!("not within 30 s: {what}");
    }
}

/// Accept: a table where that is asked for.
fn kind_accept(kind: &str) -> &'static str {
    if kind == TABLE { TABLE } else { "application/json" }
}

/// Asks for the columns that kubectl prints.
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// The objects of a file of the project.
pub fn documents(path: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    documents_of(&std::fs::read_to_string(&path).unwrap())
}

/// The objects of a YAML text.
pub fn documents_of(text: &str) -> Vec<Value> {
    use serde::Deserialize as _;
    let all = serde_yaml::Deserializer::from_str(text).map(|d| Value::deserialize(d).unwrap());
    all.filter(|object| !object.is_null()).collect()
}

/// An object of ours.
pub fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "awaken.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}
