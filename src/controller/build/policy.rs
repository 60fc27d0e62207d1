//! The NetworkPolicy of a Session's pods: in from the gateways only, out to what the environment's
//! egress names, and then to the cluster's DNS too.

use super::{
    COMPONENT, MANAGED_BY, MANAGER, SESSION_COMPONENT, SESSION_UID, SHIM_PORT, owned_by_session,
};
use crate::{
    api::{
        Session,
        agent::{EgressPort, EgressProtocol},
    },
    controller::egress::Way,
    domain::{
        egress::{Block, Net},
        identity::Fingerprint,
    },
};
use k8s_openapi::{
    api::networking::v1::{
        IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule,
        NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Where the gateways are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayPeers {
    /// The installation's namespace.
    pub namespace: String,
    /// The labels of gateway pods.
    pub labels: BTreeMap<String, String>,
}

/// Where the cluster's DNS is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsPeers {
    /// The namespace of its pods.
    pub namespace: String,
    /// Their labels.
    pub labels: BTreeMap<String, String>,
    /// Addresses beside them, such as that of a cache on each node.
    pub networks: Vec<Net>,
}

/// The port of DNS.
const DNS_PORT: i32 = 53;

/// The name of a Session's NetworkPolicy.
pub fn name(session: &Session) -> String {
    let uid = session.metadata.uid.as_deref().unwrap_or_default();
    let digest = Fingerprint::new("policy-name").field(uid).finish();
    let head: String = session.name_any().chars().take(200).collect();
    format!("{}-sandbox-{}", head.trim_end_matches(['.', '-']), &digest["sha256:".len()..][..16])
}

/// The one policy that selects the Session's pods.
pub fn policy(
    session: &Session,
    gateways: &GatewayPeers,
    ways: &[Way],
    dns: &DnsPeers,
) -> NetworkPolicy {
    let uid = session.metadata.uid.clone().unwrap_or_default();
    let labels =
        [(MANAGED_BY, MANAGER), (COMPONENT, SESSION_COMPONENT), (SESSION_UID, uid.as_str())];
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(name(session)),
            namespace: session.namespace(),
            labels: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            owner_references: owned_by_session(session),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(matching([(SESSION_UID.to_owned(), uid.clone())].into())),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![NetworkPolicyPeer {
                    namespace_selector: Some(matching(
                        [("kubernetes.io/metadata.name".to_owned(), gateways.namespace.clone())]
                            .into(),
                    )),
                    pod_selector: Some(matching(gateways.labels.clone())),
                    ..NetworkPolicyPeer::default()
                }]),
                ports: Some(vec![NetworkPolicyPort {
                    port: Some(IntOrString::Int(SHIM_PORT)),
                    protocol: Some("TCP".to_owned()),
                    ..NetworkPolicyPort::default()
                }]),
            }]),
            // An absent list is what the API server stores for an empty one.
            egress: (!ways.is_empty()).then(|| egress(ways, dns)),
        }),
    }
}

fn egress(ways: &[Way], dns: &DnsPeers) -> Vec<NetworkPolicyEgressRule> {
    let names = NetworkPolicyPeer {
        namespace_selector: Some(matching(
            [("kubernetes.io/metadata.name".to_owned(), dns.namespace.clone())].into(),
        )),
        pod_selector: Some(matching(dns.labels.clone())),
        ..NetworkPolicyPeer::default()
    };
    let networks = dns.networks.iter().map(|net| to(net.to_string(), vec![]));
    let port = |port, end_port, protocol: &str| NetworkPolicyPort {
        port: Some(IntOrString::Int(port)),
        end_port,
        protocol: Some(protocol.to_owned()),
    };
    let mut rules = vec![NetworkPolicyEgressRule {
        to: Some(std::iter::once(names).chain(networks).collect()),
        ports: Some(vec![port(DNS_PORT, None, "UDP"), port(DNS_PORT, None, "TCP")]),
    }];
    rules.extend(ways.iter().map(|Way { block: Block { net, except }, ports }| {
        let except = except.iter().map(Net::to_string).collect();
        let ports = ports.iter().map(|EgressPort { port: first, end_port, protocol }| {
            let protocol = match protocol {
                EgressProtocol::Tcp => "TCP",
                EgressProtocol::Udp => "UDP",
            };
            port(*first, *end_port, protocol)
        });
        NetworkPolicyEgressRule {
            to: Some(vec![to(net.to_string(), except)]),
            ports: Some(ports.collect()),
        }
    }));
    rules
}

fn to(cidr: String, except: Vec<String>) -> NetworkPolicyPeer {
    let except = (!except.is_empty()).then_some(except);
    NetworkPolicyPeer { ip_block: Some(IPBlock { cidr, except }), ..NetworkPolicyPeer::default() }
}

fn matching(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}
