//! The addresses of the API server, which no target may have: those that the process is told, and
//! those behind its Service, read from the EndpointSlices of `default/kubernetes`. Only reads.

use arc_swap::ArcSwap;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, api::ListParams};
use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

/// The Service of the API server, and the label that its EndpointSlices have.
const NAMESPACE: &str = "default";
const SLICES: &str = "kubernetes.io/service-name=kubernetes";
/// Between two reads.
const EVERY: Duration = Duration::from_secs(180);
/// After one that failed.
const AGAIN: Duration = Duration::from_secs(20);
/// How long one read may take.
const READ: Duration = Duration::from_secs(5);

/// What is known of the API server's addresses. Clones know the same.
#[derive(Clone, Debug, Default)]
pub struct ApiServer {
    told: Arc<[IpAddr]>,
    behind: Arc<ArcSwap<BTreeSet<IpAddr>>>,
    changes: Arc<watch::Sender<u64>>,
}

impl ApiServer {
    /// With the addresses that the process is told.
    pub fn new(told: impl IntoIterator<Item = IpAddr>) -> Self {
        Self {
            told: told.into_iter().map(|ip| ip.to_canonical()).collect(),
            behind: Arc::default(),
            changes: Arc::default(),
        }
    }

    /// All of them.
    pub fn all(&self) -> BTreeSet<IpAddr> {
        self.told.iter().chain(&**self.behind.load()).copied().collect()
    }

    /// Wakes when there are others than before.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether it is one of the API server's.
    pub fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.told.contains(&address) || self.behind.load().contains(&address)
    }

    /// Reads what is behind the Service; says whether that was possible. What was known stays
    /// known when it was not.
    pub async fn read(&self, client: &Client) -> bool {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
        let params = ListParams::default().labels(SLICES);
        let problem = match timeout(READ, slices.list(&params)).await {
            Ok(Ok(found)) => {
                let found = addresses(&found.items);
                if **self.behind.load() != found {
                    self.behind.store(Arc::new(found));
                    self.changes.send_modify(|version| *version += 1);
                }
                return true;
            }
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => format!("no answer within {READ:?}"),
        };
        tracing::warn!(problem, "the API server's endpoints cannot be read");
        false
    }

    /// Reads again and again until `stop`; soon if what was read `before` could not be.
    pub async fn follow(self, client: Client, before: bool, stop: CancellationToken) {
        let mut pause = if before { EVERY } else { AGAIN };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = if self.read(&client).await { EVERY } else { AGAIN };
        }
    }
}

fn addresses(slices: &[EndpointSlice]) -> BTreeSet<IpAddr> {
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
    addresses.filter_map(|a| Some(a.parse::<IpAddr>().ok()?.to_canonical())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::convert::Infallible;

    /// Answers every request so.
    fn answering(status: u16, body: serde_json::Value) -> Client {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let body = body.clone();
            async move {
                let (path, query) = (request.uri().path(), request.uri().query().unwrap_or(""));
                assert_eq!(path, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices");
                assert!(query.contains("service-name%3Dkubernetes"), "{query}");
                let body = axum::body::Body::from(body.to_string());
                Ok::<_, Infallible>(http::Response::builder().status(status).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn what_is_behind_the_service_is_known_too_and_stays_known() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let api = ApiServer::new([ip("10.96.0.1")]);
        let slices = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
            "metadata": {}, "items": [
            {"metadata": {"name": "kubernetes"}, "addressType": "IPv4",
                "endpoints": [{"addresses": ["192.0.2.7"]}, {"addresses": ["192.0.2.8"]}]},
            {"metadata": {"name": "six"}, "addressType": "IPv6", "endpoints":
                [{"addresses": ["2001:db8::7"]}]},
            {"metadata": {"name": "none"}, "addressType": "IPv4", "endpoints": null},
        ]});
        assert!(api.has(ip("10.96.0.1")) && api.has(ip("::ffff:10.96.0.1")));
        assert!(!api.has(ip("192.0.2.8")));
        let mut changes = api.changes();
        assert!(api.read(&answering(200, slices.clone())).await);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(api.read(&answering(200, slices)).await);
        assert!(!changes.has_changed().unwrap(), "the same again");
        let known = ["10.96.0.1", "192.0.2.7", "192.0.2.8", "::ffff:192.0.2.8", "2001:db8::7"];
        assert!(known.iter().all(|address| api.has(ip(address))));
        let all = ["10.96.0.1", "192.0.2.7", "192.0.2.8", "2001:db8::7"];
        assert_eq!(api.all(), all.map(ip).into());
        assert!(!api.has(ip("192.0.2.9")));
        let no = json!({"kind": "Status", "status": "Failure", "code": 403, "message": "no",
            "reason": "Forbidden"});
        assert!(!api.read(&answering(403, no)).await);
        assert!(api.has(ip("192.0.2.7")));
    }
}
