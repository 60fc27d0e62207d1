//! The NetworkPolicy of a Session's pods: in from the gateways only, out to nowhere.

use super::{
    COMPONENT, MANAGED_BY, MANAGER, SESSION_COMPONENT, SESSION_UID, SHIM_PORT, owned_by_session,
};
use crate::{api::Session, domain::identity::Fingerprint};
use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
        NetworkPolicySpec,
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

/// The name of a Session's NetworkPolicy.
pub fn name(session: &Session) -> String {
    let uid = session.metadata.uid.as_deref().unwrap_or_default();
    let digest = Fingerprint::new("policy-name").field(uid).finish();
    let head: String = session.name_any().chars().take(200).collect();
    format!("{}-sandbox-{}", head.trim_end_matches(['.', '-']), &digest["sha256:".len()..][..16])
}

/// The one policy that selects the Session's pods.
pub fn policy(session: &Session, gateways: &GatewayPeers) -> NetworkPolicy {
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
            // Nothing is allowed out. An absent list is what the API server stores for an empty one.
            egress: None,
        }),
    }
}

fn matching(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}
