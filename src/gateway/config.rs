//! Every setting of the gateway with its default. Read by `main` from flags; read nowhere else.

use super::export::secret::BearerSecret;
use crate::{
    domain::export::Namespaces,
    mcp::server::{Allowed, StoreConfig},
    process::api_server::ApiServer,
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

/// The settings of a gateway.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens. Default `0.0.0.0:8080`.
    pub listen: SocketAddr,
    /// Where it takes requests from other gateways of the installation. Default none: there is no
    /// other, since the journal is a file.
    pub internal_listen: Option<SocketAddr>,
    /// Namespace of the installation.
    pub namespace: String,
    /// Name of this pod; also of its Lease.
    pub pod_name: String,
    /// UID of this pod, the owner of its Lease. None outside a cluster.
    pub pod_uid: Option<String>,
    /// Address of this pod.
    pub pod_ip: Option<IpAddr>,
    /// `app.kubernetes.io/instance` on the Lease. Default `awaken`.
    pub instance: String,
    /// Name of the Service in front of the gateways. Default `awaken-gateway`.
    pub service: String,
    /// Addresses of that Service.
    pub service_addresses: Vec<IpAddr>,
    /// The cluster's domain. Default `cluster.local`.
    pub cluster_domain: String,
    /// More host names that requests may name.
    pub allowed_hosts: Vec<String>,
    /// Origins that requests may come from.
    pub allowed_origins: Vec<String>,
    /// Targets in these networks are refused. CIDR.
    pub denied_networks: Vec<String>,
    /// Targets in these networks pass although they would be refused otherwise. CIDR.
    pub allowed_networks: Vec<String>,
    /// Addresses of the API server, never a target.
    pub api_server: ApiServer,
    /// Whether a Secret goes nowhere without the annotation `awaken.dev/allowed-targets`. Default
    /// false.
    pub require_allowed_targets: bool,
    /// The longest body, in bytes. Default 16 MiB.
    pub max_body: usize,
    /// Connections of clients at one time; one over it is closed at once. Default 10,000, and at
    /// most three quarters of the files that the process may open.
    pub max_connections: usize,
    /// Between two comments on a silent stream. Default 15 s.
    pub keep_alive: Duration,
    /// MCP sessions of one subject. Default 64.
    pub sessions_per_subject: usize,
    /// An MCP session without any traffic ends after this. Default 30 min.
    pub session_idle: Duration,
    /// How long calls in flight may still run after SIGTERM. Default 25 s.
    pub grace: Duration,
    /// The gateway's Lease. Default 15 s; renewed each third of it.
    pub lease: Duration,
    /// Whether a lock on the journal's volume keeps every other gateway away (one replica, SQLite,
    /// persistent): then it serves on while its Lease cannot be renewed. Default false.
    pub fenced_by_volume: bool,
    /// Name of the Secret with the link keys. Default `awaken-link-keys`.
    pub link_keys: String,
    /// What `/v1/mcp` shows, and to whom.
    pub mcp: McpConfig,
}

/// The settings of the route `/v1/mcp`.
#[derive(Clone, Debug, Default)]
pub struct McpConfig {
    /// The Secret with its tokens. None: there is no such route.
    pub bearer: Option<BearerSecret>,
    /// Management tools that are shown, by name. Default none.
    pub exports: Vec<String>,
    /// Namespaces whose Agents' exports are shown. Default none.
    pub export_namespaces: Namespaces,
    /// Namespaces that management tools see and act in. Default none.
    pub management_namespaces: Vec<String>,
    /// User name of the account that management tools act under. None: they cannot act.
    pub management_account: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        let store = StoreConfig::default();
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, 8080).into(),
            internal_listen: None,
            namespace: "awaken-system".to_owned(),
            pod_name: "awaken-gateway".to_owned(),
            pod_uid: None,
            pod_ip: None,
            instance: "awaken".to_owned(),
            service: "awaken-gateway".to_owned(),
            service_addresses: vec![],
            cluster_domain: "cluster.local".to_owned(),
            allowed_hosts: vec![],
            allowed_origins: vec![],
            denied_networks: vec![],
            allowed_networks: vec![],
            api_server: ApiServer::default(),
            require_allowed_targets: false,
            max_body: store.max_body,
            max_connections: 10_000,
            keep_alive: store.keep_alive,
            sessions_per_subject: store.sessions_per_subject,
            session_idle: store.idle,
            grace: Duration::from_secs(25),
            lease: Duration::from_secs(15),
            fenced_by_volume: false,
            link_keys: "awaken-link-keys".to_owned(),
            mcp: McpConfig::default(),
        }
    }
}

impl Config {
    /// The name and port of the gateway's own Service, to look up its addresses.
    pub fn service_name(&self) -> String {
        format!("{}.{}.svc.{}:80", self.service, self.namespace, self.cluster_domain)
    }

    /// What is wrong with settings that each alone are fine.
    ///
    /// # Errors
    /// Which ones, and why.
    pub fn check(&self) -> Result<(), String> {
        if self.mcp.management_namespaces.contains(&self.namespace) {
            return Err(format!(
                "--mcp-management-namespace={}: {0} holds the keys of the installation",
                self.namespace
            ));
        }
        if let (Some(listen), None) = (self.internal_listen, self.pod_ip) {
            return Err(format!(
                "--internal-listen={listen} without --pod-ip: other gateways would not know where"
            ));
        }
        Ok(())
    }

    /// The hosts and origins that requests may name: the Service's names and addresses, the pod's
    /// address, loopback, and what is configured.
    pub fn allowed(&self) -> Allowed {
        let (service, namespace) = (&self.service, &self.namespace);
        let mut hosts = vec![
            service.clone(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.{}", self.cluster_domain),
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "[::1]".to_owned(),
        ];
        let addresses = self.service_addresses.iter().chain(&self.pod_ip);
        hosts.extend(addresses.map(|ip| match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        }));
        hosts.extend(self.allowed_hosts.iter().cloned());
        Allowed { hosts, origins: self.allowed_origins.clone() }
    }

    /// The settings of the MCP server.
    /// Its session ids carry `mark`.
    pub fn store(&self, mark: &str) -> StoreConfig {
        StoreConfig {
            mark: mark.to_owned(),
            sessions_per_subject: self.sessions_per_subject,
            idle: self.session_idle,
            max_body: self.max_body,
            keep_alive: self.keep_alive,
            ..StoreConfig::default()
        }
    }
}
