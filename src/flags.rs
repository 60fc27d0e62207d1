//! The flags of the `awaken` program. Texts here are what `--help` shows.

use awaken_operator::{
    controller::{
        self,
        build::{
            pod::ShimImage,
            policy::{DnsPeers, GatewayPeers},
        },
        seen::Rules,
    },
    domain::{
        egress::Net,
        export::{MANAGEMENT_TOOLS, Namespaces, RESERVED_TOOLS},
    },
    gateway,
    journal::sqlite::Durability,
    process::{api_server::ApiServer, logging::Format},
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// Attaches MCP servers to agents on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "awaken", version)]
pub struct Flags {
    /// What to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The programs in this one.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watches Agents and McpAttachments, decides, and launches Session pods.
    Operator(Box<OperatorFlags>),
    /// Serves MCP clients and speaks to MCP servers.
    Gateway(Box<GatewayFlags>),
    /// Prints the CustomResourceDefinitions.
    Crds,
    /// Reads a journal.
    Journal {
        /// Where it is.
        #[command(flatten)]
        place: JournalPlace,
        /// What to do with it.
        #[command(subcommand)]
        command: JournalCommand,
    },
}

/// Where a journal is that is read.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct JournalPlace {
    /// The journal's file.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A file with the URL of the journal's Postgres database.
    #[arg(long, value_name = "FILE")]
    pub postgres_url_file: Option<PathBuf>,
}

/// What can be done with a journal.
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Compares every hash of every chain; fails with the first record that is not what was written.
    Verify,
    /// Writes every record as a JSON line.
    Export,
}

/// What both Deployments have.
#[derive(Debug, Args)]
pub struct Process {
    /// Namespace of the installation.
    #[arg(long, env = "POD_NAMESPACE", default_value = "awaken-system")]
    pub namespace: String,
    /// Value of the label app.kubernetes.io/instance on what belongs to this installation.
    #[arg(long, env = "AWAKEN_INSTANCE", default_value = "awaken")]
    pub instance: String,
    /// An address of the API server, which no target may be. May be repeated. Those behind its
    /// Service are read from the EndpointSlices of default/kubernetes. A name, as some platforms put
    /// into the variable, adds none.
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", value_delimiter = ',', value_name = "IP")]
    pub api_server: Vec<String>,
    /// A Secret without the annotation awaken.dev/allowed-targets goes to no server.
    #[arg(long)]
    pub require_allowed_targets: bool,
    /// Where /healthz, /readyz and /metrics are.
    #[arg(long, default_value = "0.0.0.0:9090")]
    pub ops_listen: SocketAddr,
    /// How log lines look. What is logged is set by AWAKEN_LOG (default info).
    #[arg(long, env = "AWAKEN_LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: Format,
}

/// Flags of `awaken operator`.
#[derive(Debug, Args)]
pub struct OperatorFlags {
    /// What both programs have.
    #[command(flatten)]
    pub process: Process,
    /// Name of this pod, the holder of the Lease.
    #[arg(long, env = "POD_NAME", default_value = "awaken-operator")]
    pub pod_name: String,
    /// Image with awaken-shim, for the init container of Session pods.
    #[arg(long, env = "AWAKEN_SHIM_IMAGE")]
    pub shim_image: String,
    /// When that image is pulled: IfNotPresent, Always or Never.
    #[arg(long, env = "AWAKEN_SHIM_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    pub shim_image_pull_policy: String,
    /// How many Sessions are reconciled side by side.
    #[arg(long, env = "AWAKEN_WORKERS", default_value_t = 8)]
    pub workers: usize,
    /// A namespace whose Agents may export tools; * is every namespace. May be repeated.
    #[arg(long = "export-namespace", value_name = "NAMESPACE")]
    pub export_namespaces: Vec<String>,
    /// Name of a Secret in the namespace of the installation that goes to no server, beside the
    /// operator's own keys. May be repeated.
    #[arg(long = "reserved-secret", value_name = "NAME")]
    pub reserved_secrets: Vec<String>,
    /// A network, as CIDR, that no sandbox reaches whatever its Agent allows. May be repeated.
    #[arg(long = "denied-egress", value_name = "CIDR")]
    pub denied_egress: Vec<Net>,
    /// Namespace of the cluster's DNS pods, which sandboxes reach when their Agent allows them
    /// anything.
    #[arg(long, default_value = "kube-system")]
    pub dns_namespace: String,
    /// A label of those pods. May be repeated; they have all of them.
    #[arg(long = "dns-label", value_name = "KEY=VALUE", value_parser = label, default_value = "k8s-app=kube-dns")]
    pub dns_labels: Vec<(String, String)>,
    /// A network, as CIDR, where DNS is answered beside those pods, such as that of a cache on each
    /// node. May be repeated.
    #[arg(long = "dns-network", value_name = "CIDR")]
    pub dns_networks: Vec<Net>,
}

/// A label, `key=value`.
fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is written key=value")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Flags of `awaken gateway`.
#[derive(Debug, Args)]
pub struct GatewayFlags {
    /// What both programs have.
    #[command(flatten)]
    pub process: Process,
    /// Name of this pod; also of its Lease.
    #[arg(long, env = "POD_NAME", default_value = "awaken-gateway")]
    pub pod_name: String,
    /// UID of this pod, the owner of its Lease.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// Address of this pod.
    #[arg(long, env = "POD_IP")]
    pub pod_ip: Option<IpAddr>,
    /// Where MCP clients connect.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Where other gateways of the installation reach this one. Without the flag there is no other.
    #[arg(long, requires = "journal_postgres_url_file")]
    pub internal_listen: Option<SocketAddr>,
    /// Name of the Service in front of the gateway.
    #[arg(long, env = "AWAKEN_SERVICE", default_value = "awaken-gateway")]
    pub service: String,
    /// An address of that Service, which requests may name as host and no target may be. May be
    /// repeated. Without the flag it is looked up by the Service's name at the start, for up to 60
    /// s; the start ends if there is none.
    #[arg(long = "service-address", value_name = "IP")]
    pub service_addresses: Vec<IpAddr>,
    /// The cluster's domain.
    #[arg(long, env = "AWAKEN_CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// The journal's file.
    #[arg(long, value_name = "FILE", required_unless_present = "journal_postgres_url_file")]
    pub journal: Option<PathBuf>,
    /// A file with the URL of a Postgres database that holds the journal:
    /// postgres://user:password@host:5432/database?sslmode=require. It is read again for each
    /// connection.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["journal", "fenced_by_volume"])]
    pub journal_postgres_url_file: Option<PathBuf>,
    /// full: a record is on disk before its call goes on. relaxed: it is written, and on disk soon.
    #[arg(long, value_enum, default_value = "full")]
    pub journal_durability: JournalDurability,
    /// The journal's volume is locked for this gateway alone and persistent: it serves on while its
    /// Lease cannot be renewed.
    #[arg(long)]
    pub fenced_by_volume: bool,
    /// One more host name that requests may name. May be repeated.
    #[arg(long = "allowed-host", value_name = "HOST")]
    pub allowed_hosts: Vec<String>,
    /// An origin that requests may come from. May be repeated.
    #[arg(long = "allowed-origin", value_name = "ORIGIN")]
    pub allowed_origins: Vec<String>,
    /// A network that no target may be in. May be repeated.
    #[arg(long = "denied-network", value_name = "CIDR")]
    pub denied_networks: Vec<String>,
    /// A network that targets may be in although they would be refused otherwise. May be repeated.
    #[arg(long = "allowed-network", value_name = "CIDR")]
    pub allowed_networks: Vec<String>,
    /// The longest request body, in bytes.
    #[arg(long, default_value_t = 16 * 1024 * 1024)]
    pub max_body_bytes: usize,
    /// Connections of clients at one time; one over it is closed at once. At most three quarters of
    /// the files that the process may open.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Seconds between two comments on a silent stream, so that nothing on the way takes it for dead.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub sse_keep_alive_seconds: u64,
    /// Seconds that calls in flight may still run after SIGTERM.
    #[arg(long, default_value_t = 25)]
    pub grace_seconds: u64,
    /// Threads that serve requests, beside the one that writes the journal. 0: half of the
    /// processors, at least one. More of them than that wake each other for every call.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// What /v1/mcp shows, and to whom.
    #[command(flatten)]
    pub mcp: McpFlags,
}

/// Flags of the route /v1/mcp.
#[derive(Debug, Args)]
pub struct McpFlags {
    /// Name of the Secret with the bearer of /v1/mcp, in the namespace of the installation. Without
    /// the flag, and while the Secret or its token is missing, there is no such route.
    #[arg(long = "mcp-bearer-secret", value_name = "NAME")]
    pub bearer_secret: Option<String>,
    /// Key of that Secret with the token.
    #[arg(long = "mcp-bearer-key", value_name = "KEY", default_value = "token")]
    pub bearer_key: String,
    /// Key of that Secret with the token before, which is valid too while the key is there.
    #[arg(long = "mcp-bearer-previous-key", value_name = "KEY", default_value = "previous-token")]
    pub bearer_previous_key: String,
    /// A management tool that /v1/mcp shows. May be repeated.
    #[arg(long = "mcp-export", value_name = "TOOL", value_parser = management_tool)]
    pub exports: Vec<String>,
    /// A namespace whose Agents' exports /v1/mcp shows; `*` for every one. May be repeated.
    #[arg(long = "mcp-export-namespace", value_name = "NS")]
    pub export_namespaces: Vec<String>,
    /// A namespace that management tools see and act in. May be repeated.
    #[arg(long = "mcp-management-namespace", value_name = "NS", value_parser = one_namespace)]
    pub management_namespaces: Vec<String>,
    /// User name of the account that management tools act under, as
    /// system:serviceaccount:NAMESPACE:NAME.
    #[arg(long = "mcp-management-account", value_name = "USER", value_parser = account)]
    pub management_account: Option<String>,
}

fn management_tool(name: &str) -> Result<String, String> {
    if MANAGEMENT_TOOLS.contains(&name) {
        return Ok(name.to_owned());
    }
    let problem = match RESERVED_TOOLS.contains(&name) {
        true => "it comes with approvals",
        false => "there is no such management tool",
    };
    Err(format!("{problem}; those that can be exported are {}", MANAGEMENT_TOOLS.join(", ")))
}

fn one_namespace(name: &str) -> Result<String, String> {
    match name {
        "*" | "" => Err("management acts in namespaces that are named, one by one".to_owned()),
        _ => Ok(name.to_owned()),
    }
}

fn account(user: &str) -> Result<String, String> {
    let parts: Vec<_> = user.split(':').collect();
    match parts[..] {
        ["system", "serviceaccount", namespace, name]
            if !namespace.is_empty() && !name.is_empty() =>
        {
            Ok(user.to_owned())
        }
        _ => Err("it is not written system:serviceaccount:NAMESPACE:NAME".to_owned()),
    }
}

/// When a record counts as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JournalDurability {
    /// On disk.
    Full,
    /// With the operating system.
    Relaxed,
}

/// Those that are addresses.
fn addresses(all: &[String]) -> impl Iterator<Item = IpAddr> {
    all.iter().filter_map(|text| text.trim().parse().ok())
}

impl OperatorFlags {
    /// The settings of this start of the operator.
    pub fn config(self, incarnation: String) -> controller::Config {
        controller::Config {
            gateways: GatewayPeers {
                namespace: self.process.namespace.clone(),
                labels: controller::Config::gateway_labels(&self.process.instance),
            },
            dns: DnsPeers {
                namespace: self.dns_namespace,
                labels: self.dns_labels.into_iter().collect(),
                networks: self.dns_networks,
            },
            namespace: self.process.namespace,
            pod: self.pod_name,
            incarnation,
            shim: ShimImage {
                image: self.shim_image,
                pull_policy: Some(self.shim_image_pull_policy),
            },
            workers: self.workers,
            export_namespaces: Namespaces::new(self.export_namespaces),
            rules: Rules {
                reserved_secrets: self.reserved_secrets,
                require_allowed_targets: self.process.require_allowed_targets,
                api_server: ApiServer::new(addresses(&self.process.api_server)),
                denied_egress: self.denied_egress,
            },
        }
    }
}

impl GatewayFlags {
    /// Threads that serve requests.
    pub fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        if self.threads == 0 { processors().div_ceil(2) } else { self.threads }
    }

    /// How durable records are.
    pub fn durability(&self) -> Durability {
        match self.journal_durability {
            JournalDurability::Full => Durability::Full,
            JournalDurability::Relaxed => Durability::Relaxed,
        }
    }

    /// The settings of the gateway.
    pub fn config(self) -> gateway::Config {
        let namespace = self.process.namespace.clone();
        gateway::Config {
            mcp: self.mcp.config(namespace),
            api_server: ApiServer::new(addresses(&self.process.api_server)),
            require_allowed_targets: self.process.require_allowed_targets,
            service_addresses: self.service_addresses,
            listen: self.listen,
            internal_listen: self.internal_listen,
            namespace: self.process.namespace,
            instance: self.process.instance,
            pod_name: self.pod_name,
            pod_uid: self.pod_uid,
            pod_ip: self.pod_ip,
            service: self.service,
            cluster_domain: self.cluster_domain,
            allowed_hosts: self.allowed_hosts,
            allowed_origins: self.allowed_origins,
            denied_networks: self.denied_networks,
            allowed_networks: self.allowed_networks,
            max_body: self.max_body_bytes,
            max_connections: usize::try_from(self.max_connections).unwrap_or(usize::MAX),
            keep_alive: Duration::from_secs(self.sse_keep_alive_seconds),
            grace: Duration::from_secs(self.grace_seconds),
            fenced_by_volume: self.fenced_by_volume,
            ..gateway::Config::default()
        }
    }
}

impl McpFlags {
    fn config(self, namespace: String) -> gateway::McpConfig {
        let (key, previous_key) = (self.bearer_key, self.bearer_previous_key);
        let secret = self.bearer_secret.filter(|name| !name.is_empty());
        let bearer =
            secret.map(|name| gateway::BearerSecret { namespace, name, key, previous_key });
        gateway::McpConfig {
            bearer,
            exports: self.exports,
            export_namespaces: Namespaces::new(self.export_namespaces),
            management_namespaces: self.management_namespaces,
            management_account: self.management_account,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn gateway(flags: &[&str]) -> Result<gateway::Config, String> {
        let all = ["awaken", "gateway", "--journal=/j"].iter().chain(flags);
        match Flags::try_parse_from(all).map_err(|e| e.to_string())?.command {
            Command::Gateway(flags) => Ok(flags.config()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_flags_there_is_no_route_and_nothing_is_shown() {
        let mcp = gateway(&[]).unwrap().mcp;
        assert!(mcp.bearer.is_none() && mcp.exports.is_empty() && mcp.management_account.is_none());
        assert!(mcp.export_namespaces.is_empty() && mcp.management_namespaces.is_empty());
        assert!(gateway(&["--mcp-bearer-secret="]).unwrap().mcp.bearer.is_none());
    }

    #[test]
    fn every_flag_of_the_route_arrives() {
        let mcp = gateway(&[
            "--mcp-bearer-secret=s",
            "--mcp-bearer-key=k",
            "--mcp-bearer-previous-key=p",
            "--mcp-export=agents_list",
            "--mcp-export=trace_list",
            "--mcp-export-namespace=team-a",
            "--mcp-management-namespace=team-b",
            "--mcp-management-account=system:serviceaccount:awaken-system:awaken-mcp",
        ])
        .unwrap()
        .mcp;
        let bearer = mcp.bearer.unwrap();
        assert_eq!((&*bearer.namespace, &*bearer.name), ("awaken-system", "s"));
        assert_eq!((&*bearer.key, &*bearer.previous_key), ("k", "p"));
        assert_eq!(mcp.exports, ["agents_list", "trace_list"]);
        assert!(mcp.export_namespaces.allows("team-a") && !mcp.export_namespaces.allows("team-b"));
        assert_eq!(mcp.management_namespaces, ["team-b"]);
    }

    #[test]
    fn management_stays_out_of_the_installations_namespace() {
        let flags = |namespace| gateway(&[&format!("--mcp-management-namespace={namespace}")]);
        assert_eq!(flags("team-a").unwrap().check(), Ok(()));
        let told = flags("awaken-system").unwrap().check().unwrap_err();
        assert!(told.contains("awaken-system holds the keys of the installation"), "{told}");
    }

    #[test]
    fn a_port_for_other_gateways_needs_an_address_that_they_can_reach() {
        let mut config = gateway(&["--internal-listen=0.0.0.0:8081"]).unwrap();
        config.pod_ip = None;
        let told = config.check().unwrap_err();
        assert!(told.contains("--internal-listen=0.0.0.0:8081 without --pod-ip"), "{told}");
        config.pod_ip = Some([10, 0, 0, 1].into());
        assert_eq!(config.check(), Ok(()));
    }

    #[rstest]
    #[case("--mcp-export=agent_list", "agents_list, agent_get")]
    #[case("--mcp-export=approvals_list", "comes with approvals")]
    #[case("--mcp-export=", "no such management tool")]
    #[case("--mcp-management-namespace=*", "named, one by one")]
    #[case("--mcp-management-account=awaken-mcp", "system:serviceaccount:NAMESPACE:NAME")]
    fn what_cannot_be_ends_the_start_with_the_next_step(#[case] flag: &str, #[case] says: &str) {
        let told = gateway(&[flag]).unwrap_err();
        assert!(told.contains(says), "{told}");
    }
}
