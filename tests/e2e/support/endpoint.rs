//! The route `/v1/mcp` of the installation and its bearer.

use super::{
    cluster::{Cluster, SYSTEM},
    objects::object,
    team::Team,
    wait::{LIMIT, until},
};
use awaken_operator::domain::export::MANAGEMENT_TOOLS;
use awaken_stub::mcp_client::{Client, Reply};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The namespaces whose Agents may export, as `values.yaml` names them.
const EXPORTING: [&str; 3] = ["e2e-mcp-sdk", "e2e-mcp-inspector", "e2e-mcp-wire"];
/// The Secret of the bearer.
pub const SECRET: &str = "awaken-mcp-bearer";
/// Who changes the bearer holds it alone. Taken after the product, never before.
static BEARER: RwLock<()> = RwLock::const_new(());

enum Hold {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

/// The route, there and with a bearer that is valid.
pub struct Endpoint {
    /// Its URL.
    pub url: String,
    /// The bearer.
    pub token: String,
    cluster: Cluster,
    _hold: Hold,
}

impl Endpoint {
    /// The route; the bearer stays as it is while this is held.
    pub async fn shared(cluster: &Cluster) -> Self {
        Self::open(cluster, Hold::Shared { _guard: BEARER.read().await }).await
    }

    /// The route for a test that changes the bearer, or what is exported.
    pub async fn alone(cluster: &Cluster) -> Self {
        Self::open(cluster, Hold::Alone { _guard: BEARER.write().await }).await
    }

    async fn open(cluster: &Cluster, hold: Hold) -> Self {
        let url = format!("{}/v1/mcp", cluster.gateway().await);
        let token = format!("e2e-bearer-{}", std::process::id());
        let this = Self { url, token, cluster: cluster.clone(), _hold: hold };
        this.set(&[("token", &this.token)]).await;
        this.answers(Some(&this.token), 200).await;
        this
    }

    /// The route for a test that exports from the team's namespace: nothing is exported beside it,
    /// so that it can know the whole list.
    pub async fn exporting(team: &Team) -> Self {
        let this = Self::alone(&team.cluster).await;
        for namespace in EXPORTING.into_iter().filter(|n| *n != team.name) {
            // what a failed run left
            for agent in this.cluster.list("Agent", Some(namespace), "").await {
                let name = agent["metadata"]["name"].as_str().expect("a name");
                this.cluster.delete("Agent", Some(namespace), name).await;
            }
        }
        until("nothing is exported", LIMIT, || async {
            let tools = this.connected().await.tools().await.map_err(|why| format!("{why:#}"))?;
            if tools == MANAGEMENT_TOOLS { Ok(()) } else { Err(format!("{tools:?}")) }
        })
        .await;
        this
    }

    /// Writes the Secret with these keys and no others.
    pub async fn set(&self, keys: &[(&str, &str)]) {
        let data: serde_json::Map<String, Value> =
            keys.iter().map(|(k, v)| ((*k).to_owned(), json!(STANDARD.encode(v)))).collect();
        let secret = object("Secret", SECRET, json!({"data": data}));
        self.cluster.apply(Some(SYSTEM), &secret).await.expect("the Secret is applied");
    }

    /// Deletes the Secret.
    pub async fn remove(&self) {
        self.cluster.delete("Secret", Some(SYSTEM), SECRET).await;
    }

    /// A client of the route that shows a token.
    pub fn client(&self, token: Option<&str>) -> Client {
        Client::new(&self.url, token).expect("a URL")
    }

    /// An initialized client with the bearer.
    pub async fn connected(&self) -> Client {
        let mut client = self.client(Some(&self.token));
        client.initialize().await.expect("the bearer is valid");
        client
    }

    /// Says hello with a token.
    pub async fn hello(&self, token: Option<&str>) -> anyhow::Result<Reply> {
        self.client(token).send(Method::POST, HELLO).await
    }

    /// Waits until a hello with this token gets that status.
    pub async fn answers(&self, token: Option<&str>, status: u16) -> Reply {
        until(&format!("/v1/mcp answers {status}"), LIMIT, || async {
            let reply = self.hello(token).await.map_err(|why| format!("{why:#}"))?;
            if reply.status == status { Ok(reply) } else { Err(format!("HTTP {}", reply.status)) }
        })
        .await
    }
}

/// An initialize request.
pub const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"awaken-test","version":"1"}}}"#;
