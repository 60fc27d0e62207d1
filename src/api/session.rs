//! The Session: the unit that has authority. It freezes the environment and owns the generations.
//!
//! Types only. `status.receipts` is the gateway's, the rest of the status the operator's; the
//! chart's admission policy names every field of the status, and a test compares the two.

use super::{agent::Environment, attachment::AgentRef, condition};
use crate::domain::{
    lifecycle::{Generation, Receipt},
    usage::Activity,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Session is where an Agent's servers are attached and called. For an Agent that is Standing the
/// operator keeps one, named like it; for one that is OnDemand users create them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "awaken.dev",
    version = "v1alpha1",
    kind = "Session",
    doc = "A Session is where an Agent's servers are attached and called. For an Agent that is Standing the operator keeps one, named like it; for one that is OnDemand users create them.",
    namespaced,
    status = "SessionStatus",
    shortname = "sess",
    category = "awaken",
    derive = "PartialEq",
    printcolumn(name = "Agent", type_ = "string", json_path = ".spec.agentRef.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Attachments", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Host", type_ = "string", json_path = ".status.host.gateway"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.host.epoch", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionSpec {
    /// The Agent, in this namespace: one whose session.mode is OnDemand. A Session that comes before
    /// its Agent waits for it. Immutable.
    #[x_kube(validation = ("self == oldSelf", "agentRef is immutable: create another Session"))]
    pub agent_ref: AgentRef,
}

/// What the operator decided and what the gateway answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatus {
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the Session stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Ready, Reconciling, Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// The gateway that serves the Session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// The environment of the Agent, frozen: in a Standing Session as the newest revision, in one on
    /// demand as the first, for its whole life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<FrozenEnvironment>,
    /// The highest generation number that was given out.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub last_generation: i64,
    /// One entry for each generation that is not gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 192), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["generation"]))]
    pub attachments: Vec<Generation>,
    /// What the gateway answered, the last for each generation. Written by the gateway alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 192), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["generation"]))]
    pub receipts: Vec<Receipt>,
    /// Whether anybody uses the Session, as far as there was anything to say: it was idle for the
    /// Agent's idleTimeout, or is used again after that. Written by the gateway alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// Attachments in service of all, for example `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub summary: Option<String>,
}

/// Where a Session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// No host or environment yet.
    Pending,
    /// Served by its host.
    Serving,
    /// Its host is gone; the next one takes over.
    Rescheduling,
    /// Being deleted; generations drain.
    Terminating,
}

/// Which gateway serves the Session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// Name of the gateway's pod, and of its Lease.
    #[schemars(length(max = 253))]
    pub gateway: String,
    /// Which start of it.
    #[schemars(length(max = 64))]
    pub incarnation: String,
    /// Raised at each move.
    #[schemars(range(min = 1))]
    pub epoch: i64,
}

/// The environment as the Session froze it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrozenEnvironment {
    /// Number of the revision, from 1.
    #[schemars(range(min = 1))]
    pub revision: i64,
    /// What was frozen.
    pub spec: Environment,
    /// The digest of the image that the first pod of this revision reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub image_digest: Option<String>,
    /// When.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Timestamp,
}
