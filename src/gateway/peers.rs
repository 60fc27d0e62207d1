//! The other gateways of the installation: which start of each, and where it takes requests from
//! its like. All of it stands on their Leases: a start is there as long as it holds one, reachable
//! or not. Where Sessions go is not decided here: the operator places them, and who does not answer
//! is answered for with 503.

use arc_swap::ArcSwap;
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The annotation of a gateway's Lease that says where it takes requests from other gateways.
pub const ADDRESS: &str = "awaken.dev/address";
/// The label that tells Leases of gateways from others, and its value.
pub const LABEL: (&str, &str) = ("awaken.dev/lease", "gateway");

/// One start of another gateway that takes requests from its like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sibling {
    /// Which start of it.
    pub incarnation: String,
    /// Where it takes requests from other gateways.
    pub address: SocketAddr,
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    incarnation: String,
    /// None: nothing can be sent there, but it is there.
    address: Option<SocketAddr>,
}

impl Holder {
    fn sibling(&self) -> Option<Sibling> {
        self.address.map(|address| Sibling { incarnation: self.incarnation.clone(), address })
    }
}

/// The gateways with a Lease, by name. Clones share the table.
#[derive(Clone, Debug)]
pub struct Peers {
    table: Arc<ArcSwap<HashMap<String, Holder>>>,
    /// How often the table was replaced or changed; 0: nothing was listed yet.
    version: Arc<watch::Sender<u64>>,
}

impl Default for Peers {
    fn default() -> Self {
        Self { table: Arc::default(), version: Arc::new(watch::channel(0).0) }
    }
}

impl Peers {
    /// That start of that gateway, while it has the Lease.
    pub fn get(&self, gateway: &str, incarnation: &str) -> Option<Sibling> {
        self.table.load().get(gateway).filter(|h| h.incarnation == incarnation)?.sibling()
    }

    /// The gateway whose ids of MCP sessions carry this mark.
    pub fn marked(&self, mark: &str) -> Option<Sibling> {
        self.table.load().values().find(|h| mark_of(&h.incarnation) == mark)?.sibling()
    }

    /// Whether a gateway is there.
    pub fn has(&self, address: IpAddr) -> bool {
        let table = self.table.load();
        table.values().filter_map(|h| h.address).any(|a| a.ip().to_canonical() == address)
    }

    /// Every start of a gateway that has a Lease, whether or not it can be reached.
    pub fn incarnations(&self) -> HashSet<String> {
        self.table.load().values().map(|holder| holder.incarnation.clone()).collect()
    }

    /// Wakes when the table changed. It begins at 0, before anything was listed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn set(&self, name: &str, holder: Option<Holder>) {
        if self.table.load().get(name) == holder.as_ref() {
            return;
        }
        self.table.rcu(|old| {
            let mut new = HashMap::clone(old);
            match &holder {
                Some(holder) => new.insert(name.to_owned(), holder.clone()),
                None => new.remove(name),
            };
            new
        });
        self.version.send_modify(|version| *version += 1);
    }

    /// Takes a Lease in as it is now.
    pub(super) fn apply(&self, lease: &Lease) {
        self.set(&lease.name_any(), holder_of(lease));
    }

    /// Follows the Leases until `stop`. Watch errors are logged and tried again with backoff.
    pub async fn watch(
        self,
        client: Client,
        namespace: String,
        instance: String,
        stop: CancellationToken,
    ) {
        let api: Api<Lease> = Api::namespaced(client, &namespace);
        let (label, value) = LABEL;
        let labels = format!("{label}={value},app.kubernetes.io/instance={instance}");
        let leases = watcher(api, watcher::Config::default().labels(&labels));
        let mut events = leases.default_backoff().boxed();
        let mut listed = HashMap::new();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = events.next() => event,
            };
            match event {
                Ok(watcher::Event::Apply(lease)) => self.apply(&lease),
                Ok(watcher::Event::Delete(lease)) => self.set(&lease.name_any(), None),
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(lease)) => {
                    listed.extend(holder_of(&lease).map(|holder| (lease.name_any(), holder)));
                }
                Ok(watcher::Event::InitDone) => {
                    self.table.store(Arc::new(std::mem::take(&mut listed)));
                    self.version.send_modify(|version| *version += 1);
                }
                Err(error) => tracing::warn!(%error, "the watch of Leases broke; trying again"),
            }
        }
    }
}

/// What ids of MCP sessions carry of the start of the gateway that holds them.
pub fn mark_of(incarnation: &str) -> &str {
    incarnation.split('-').next().unwrap_or_default()
}

fn holder_of(lease: &Lease) -> Option<Holder> {
    let incarnation = lease.spec.as_ref()?.holder_identity.clone().filter(|i| !i.is_empty())?;
    let address = lease.annotations().get(ADDRESS).and_then(|address| address.parse().ok());
    Some(Holder { incarnation, address })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lease(name: &str, holder: &str, address: &str) -> Lease {
        let lease = json!({"metadata": {"name": name, "annotations": {ADDRESS: address}},
            "spec": {"holderIdentity": holder}});
        serde_json::from_value(lease).unwrap()
    }

    #[test]
    fn one_start_of_a_gateway_is_found_by_name_and_by_mark() {
        let peers = Peers::default();
        peers.apply(&lease("gw-a", "0f1e2d3c-1", "10.0.0.1:8081"));
        peers.apply(&lease("gw-b", "aaaabbbb-1", "10.0.0.2:8081"));
        let found = peers.get("gw-a", "0f1e2d3c-1").unwrap();
        assert_eq!(found.address, "10.0.0.1:8081".parse().unwrap());
        assert_eq!(peers.get("gw-a", "another start"), None);
        assert_eq!(peers.marked("aaaabbbb").unwrap().incarnation, "aaaabbbb-1");
        assert_eq!(peers.marked("00000000"), None);

        peers.apply(&lease("gw-a", "99999999-2", "10.0.0.1:8081"));
        assert_eq!(peers.get("gw-a", "0f1e2d3c-1"), None);
        peers.apply(&lease("gw-a", "", "10.0.0.1:8081"));
        peers.apply(&lease("gw-b", "aaaabbbb-1", "nowhere"));
        assert_eq!((peers.marked("99999999"), peers.marked("aaaabbbb")), (None, None));
        assert_eq!(
            peers.incarnations(),
            ["aaaabbbb-1".to_owned()].into(),
            "there, but unreachable"
        );
        peers.apply(&lease("gw-b", "aaaabbbb-1", "[fd00::2]:8081"));
        peers.set("gw-b", None);
        assert_eq!(peers.marked("aaaabbbb"), None);
    }
}
