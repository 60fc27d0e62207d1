//! What the watches fill and everybody else reads: one store for each kind.

use crate::api::{Agent, McpAttachment, Session};
use k8s_openapi::api::{
    core::v1::{Pod, Secret},
    networking::v1::NetworkPolicy,
};
use kube::{core::PartialObjectMeta, runtime::reflector::Store};

/// Everything that is watched, as it was last seen.
#[derive(Clone)]
pub struct Stores {
    /// Agents.
    pub agents: Store<Agent>,
    /// Attachments.
    pub attachments: Store<McpAttachment>,
    /// Sessions.
    pub sessions: Store<Session>,
    /// Session pods, without their specs.
    pub pods: Store<Pod>,
    /// NetworkPolicies of Sessions.
    pub policies: Store<NetworkPolicy>,
    /// All Secrets, metadata only.
    pub secrets: Store<PartialObjectMeta<Secret>>,
}

impl Stores {
    /// Waits until every store was filled once.
    pub async fn ready(&self) {
        let Self { agents, attachments, sessions, pods, policies, secrets } = self;
        // An error means that the watch is gone, which ends the process by itself.
        let _ = agents.wait_until_ready().await;
        let _ = attachments.wait_until_ready().await;
        let _ = sessions.wait_until_ready().await;
        let _ = pods.wait_until_ready().await;
        let _ = policies.wait_until_ready().await;
        let _ = secrets.wait_until_ready().await;
    }
}
