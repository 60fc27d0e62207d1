//! The cluster and the installation.

use super::{
    objects::{condition, object, resource, shown},
    wait::{LIMIT, until},
};
use anyhow::{Context, Result, bail};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use std::{env, sync::OnceLock};
use tokio::{process::Command, sync::OnceCell};

/// Namespace of the installation.
pub const SYSTEM: &str = "awaken-system";

/// The namespaces that `values.yaml` opens to the management tools.
pub const MANAGED: [&str; 3] = ["e2e-mcp-sdk", "e2e-mcp-inspector", "e2e-mcp-wire"];

/// A namespace that admits no pod but those that PodSecurity `restricted` does.
pub fn restricted(name: &str) -> Value {
    let mut namespace = object("Namespace", name, json!({}));
    namespace["metadata"]["labels"] = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    namespace
}

/// Whether the gateway of this Deployment has the route `/v1/mcp`.
fn has_endpoint(deployment: &Value) -> bool {
    let arguments = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    let arguments = arguments.as_array().map_or(&[][..], Vec::as_slice);
    arguments.iter().any(|a| a == &format!("--mcp-bearer-secret={}", super::endpoint::SECRET))
}

/// A client of the cluster. One for each test: it belongs to the test's runtime.
#[derive(Clone)]
pub struct Cluster {
    /// The API server.
    pub client: Client,
}

/// The kubeconfig to use.
///
/// # Panics
/// When none is named.
pub fn kubeconfig() -> String {
    env::var("AWAKEN_E2E_KUBECONFIG").or_else(|_| env::var("AWAKEN_TEST_KUBECONFIG")).expect(
        "AWAKEN_E2E_KUBECONFIG must name the kubeconfig of a test cluster: tests/cluster/cluster up",
    )
}

impl Cluster {
    /// Connects; the chart is installed if it is not.
    pub async fn connect() -> Self {
        static INSTALLED: OnceCell<()> = OnceCell::const_new();
        let config = Kubeconfig::read_from(kubeconfig()).expect("the kubeconfig can be read");
        let options = KubeConfigOptions::default();
        let mut config =
            Config::from_custom_kubeconfig(config, &options).await.expect("kubeconfig");
        config.proxy_url = None;
        let cluster = Self { client: Client::try_from(config).expect("a client") };
        INSTALLED
            .get_or_init(|| async { cluster.installed().await.expect("the product is up") })
            .await;
        cluster
    }

    async fn installed(&self) -> Result<()> {
        let found = self.get("Deployment", Some(SYSTEM), "awaken-gateway").await;
        if !found.as_ref().is_some_and(has_endpoint) {
            self.install(found.is_some()).await?;
        }
        for name in ["awaken-operator", "awaken-gateway"] {
            self.available(name).await;
        }
        Ok(())
    }

    /// Installs the chart with the tests' values, or upgrades it to them.
    async fn install(&self, upgrade: bool) -> Result<()> {
        for name in MANAGED {
            self.apply(None, &restricted(name)).await?;
        }
        let root = env!("CARGO_MANIFEST_DIR");
        let (chart, values) =
            (format!("{root}/charts/awaken-operator"), format!("{root}/tests/e2e/values.yaml"));
        let mut helm = Command::new("helm");
        helm.args(["upgrade", "--install", "awaken", &chart, "--namespace", SYSTEM])
            .args(["--create-namespace", "--wait", "--timeout", "2m", "--values", &values])
            .env("KUBECONFIG", kubeconfig());
        if upgrade {
            helm.arg("--reuse-values");
        } else {
            let image =
                env::var("AWAKEN_E2E_IMAGE").unwrap_or("localhost/awaken-operator:dev".to_owned());
            let (repository, tag) = image.rsplit_once(':').context("AWAKEN_E2E_IMAGE has a tag")?;
            helm.args(["--set", &format!("image.repository={repository},image.tag={tag}")]);
        }
        let out = helm.output().await.context("helm")?;
        if !out.status.success() {
            bail!("helm: {}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(())
    }

    /// Waits until a Deployment of the installation is whole.
    pub async fn available(&self, name: &str) {
        until(&format!("Deployment {name} is available"), LIMIT * 2, || async {
            let found = self.get("Deployment", Some(SYSTEM), name).await.ok_or("none")?;
            let settled = found["status"]["observedGeneration"] == found["metadata"]["generation"]
                && found["status"]["updatedReplicas"] == found["spec"]["replicas"]
                && found["status"]["replicas"] == found["spec"]["replicas"];
            let ok = settled && condition(&found, "Available")["status"] == "True";
            ok.then_some(()).ok_or_else(|| shown(&found))
        })
        .await;
    }

    /// The objects of a kind.
    pub fn api(&self, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(ns) => Api::namespaced_with(self.client.clone(), ns, &resource(kind)),
            None => Api::all_with(self.client.clone(), &resource(kind)),
        }
    }

    /// One object.
    pub async fn get(&self, kind: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        let found =
            self.api(kind, namespace).get_opt(name).await.expect("the API server answers")?;
        Some(serde_json::to_value(found).expect("an object is JSON"))
    }

    /// All objects of a kind in a namespace.
    pub async fn list(&self, kind: &str, namespace: Option<&str>, labels: &str) -> Vec<Value> {
        let params = ListParams::default().labels(labels);
        let found = self.api(kind, namespace).list(&params).await.expect("the API server answers");
        found
            .items
            .into_iter()
            .map(|o| serde_json::to_value(o).expect("an object is JSON"))
            .collect()
    }

    /// Applies an object as the server does it; what it says no to is the error.
    pub async fn apply(
        &self,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<Value, kube::Error> {
        let kind = object["kind"].as_str().expect("a kind");
        let name = object["metadata"]["name"].as_str().expect("a name");
        let params = PatchParams::apply("awaken-e2e").force();
        let made = self.api(kind, namespace).patch(name, &params, &Patch::Apply(object)).await?;
        Ok(serde_json::to_value(made).expect("an object is JSON"))
    }

    /// Deletes an object; it may take its time.
    pub async fn delete(&self, kind: &str, namespace: Option<&str>, name: &str) {
        let params = DeleteParams::default();
        let _ = self.api(kind, namespace).delete(name, &params).await.expect("it can be deleted");
    }

    /// `http://address:port` of the gateway's Service.
    pub async fn gateway(&self) -> String {
        if let Ok(given) = env::var("AWAKEN_E2E_GATEWAY") {
            return given;
        }
        static FOUND: OnceLock<String> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return found.clone();
        }
        let service =
            self.get("Service", Some(SYSTEM), "awaken-gateway").await.expect("the Service");
        let address = service["spec"]["clusterIP"].as_str().expect("a ClusterIP");
        FOUND.get_or_init(|| format!("http://{address}:80")).clone()
    }

    /// The pods of a component of the installation.
    pub async fn component(&self, component: &str) -> Vec<Value> {
        let labels = format!("app.kubernetes.io/component={component}");
        self.list("Pod", Some(SYSTEM), &labels).await
    }

    /// The log of every container of a pod.
    pub async fn logs(&self, namespace: &str, pod: &str) -> String {
        let pods: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.client.clone(), namespace);
        let Ok(Some(found)) = pods.get_opt(pod).await else { return String::new() };
        let spec = found.spec.expect("a pod has a spec");
        let names = spec.init_containers.unwrap_or_default().into_iter().chain(spec.containers);
        let mut all = String::new();
        for container in names {
            let params = LogParams { container: Some(container.name), ..LogParams::default() };
            all.push_str(&pods.logs(pod, &params).await.unwrap_or_default());
        }
        all
    }
}
