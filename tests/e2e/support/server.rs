//! A scripted HTTP server as a pod with a Service, steered from here.

use super::{
    objects::{object, pod, shown, stub_image},
    team::Team,
    wait::{LIMIT, until},
};
use awaken_stub::{http::Seen, mcp_client::Client};
use http::Method;
use serde_json::{Value, json};

/// The server.
pub struct Server {
    address: String,
    url: String,
}

impl Server {
    /// Starts one in the team's namespace and waits until it listens.
    pub async fn start(team: &Team, name: &str, script: Value) -> Self {
        let labels = json!({"app": name});
        let command =
            ["/usr/local/bin/awaken-stub", "http", "--listen", "0.0.0.0:8000", &script.to_string()];
        team.apply(pod(name, &stub_image(), &command, &labels)).await;
        team.apply(object(
            "Service",
            name,
            json!({"spec": {
                "selector": labels, "ports": [{"port": 8000, "name": "http"}],
            }}),
        ))
        .await;
        let address = until(&format!("server {name} listens"), LIMIT, || async {
            let found = team.get("Pod", name).await.ok_or("there is none")?;
            let Some(ip) = found["status"]["podIP"].as_str() else { return Err(shown(&found)) };
            let address = format!("{ip}:8000");
            let connected = tokio::net::TcpStream::connect(&address).await;
            connected.map(|_| address).map_err(|why| format!("{why} {}", shown(&found)))
        })
        .await;
        Self { address, url: format!("http://{name}.{}.svc.cluster.local:8000/mcp", team.name) }
    }

    /// Its MCP endpoint, by name.
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn control(&self, method: Method, path: &str, body: String) -> Vec<u8> {
        let url = format!("http://{}/{path}", self.address);
        let mut client = Client::new(&url, None).expect("a URL");
        let reply = client.send(method, body).await.expect("the stub answers");
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.body.to_vec()
    }

    /// Changes its script by a merge patch.
    pub async fn patch(&self, patch: Value) {
        self.control(Method::POST, "__script", patch.to_string()).await;
    }

    /// Every request that it saw.
    pub async fn seen(&self) -> Vec<Seen> {
        let body = self.control(Method::GET, "__seen", String::new()).await;
        serde_json::from_slice(&body).expect("what it saw")
    }

    /// Its MCP endpoint by the pod's address.
    pub fn direct_url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// The same, called past the gateway.
    pub fn direct(&self) -> Client {
        Client::new(&self.direct_url(), None).expect("a URL")
    }
}
