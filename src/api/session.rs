//! The Session: the unit that has authority. It freezes the environment and owns the generations.
//!
//! Types only. `status.receipts` is the gateway's, the rest of the status the operator's; the
//! chart's admission policy names every field of the status, and a test compares the two.

use super::{
    agent::{Environment, ToolSetSpec},
    attachment::{AgentRef, AttachmentLimits, Http, SandboxStdio},
    condition,
};
use crate::domain::{
    lifecycle::{Generation, Receipt, Rollout},
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
#[x_kube(validation = ("!has(self.attachments) || self.attachments.all(a, has(self.toolSets) && self.toolSets.exists(t, t.attachment == a.name))", "each of attachments needs an entry of its name in toolSets: without one nothing of it may be used"))]
#[x_kube(validation = ("!has(self.toolSets) || self.toolSets.all(t, has(self.attachments) && self.attachments.exists(a, a.name == t.attachment))", "toolSets of a Session are for its own attachments alone: one names an attachment that attachments lacks"))]
#[x_kube(validation = ("!has(self.attachments) || self.attachments.map(a, has(a.sandboxStdio) ? size(a.sandboxStdio.command) + (has(a.sandboxStdio.args) ? a.sandboxStdio.args.map(v, size(v)).sum() : 0) : 0).sum() + self.attachments.map(a, has(a.sandboxStdio) && has(a.sandboxStdio.env) ? a.sandboxStdio.env.map(e, size(e.name) + (has(e.value) ? size(e.value) : 0)).sum() : 0).sum() <= 16384", "command, args and env of all attachments of a Session hold at most 16384 characters"))]
#[x_kube(validation = ("!has(self.attachments) || self.attachments.map(a, has(a.sandboxStdio) && has(a.sandboxStdio.secretEnv) ? size(a.sandboxStdio.secretEnv) : 0).sum() <= 64", "secretEnv of all attachments of a Session has at most 64 entries"))]
pub struct SessionSpec {
    /// The Agent, in this namespace: one whose session.mode is OnDemand. A Session that comes before
    /// its Agent waits for it. Immutable.
    #[x_kube(validation = ("self == oldSelf", "agentRef is immutable: create another Session"))]
    pub agent_ref: AgentRef,
    /// Attachments of the Session's own, beside the Agent's, as far as the Agent's
    /// sessionAttachments.max lets it. One takes the place of the Agent's of the same name; against
    /// others of the Agent's it counts as the newer, and among themselves the first of the list as
    /// the oldest. At most 16, whose command, args and env hold 16384 characters, and whose
    /// secretEnv has 64 entries, in all. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub attachments: Vec<OwnAttachment>,
    /// Which tools of the Session's own attachments may be used: one ToolSet for each of them, none
    /// for the Agent's. Nothing in it counts as wider than the Agent's sessionAttachments.max. Read
    /// live: a change holds for the next call. At most 16, with 256 tools in all. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["attachment"]))]
    #[x_kube(validation = ("self.map(t, has(t.tools) ? size(t.tools) : 0).sum() <= 256", "a Session names at most 256 tools in all its toolSets"))]
    pub tool_sets: Vec<ToolSetSpec>,
}

impl SessionSpec {
    /// A Session of this Agent that brings nothing itself.
    pub fn of(agent: String) -> Self {
        let (attachments, tool_sets) = (vec![], vec![]);
        Self { agent_ref: AgentRef { name: agent }, attachments, tool_sets }
    }
}

/// An attachment that a Session brings itself: as an McpAttachment, without an object of its own. All
/// of a Session's are one set, replaced by one write of its spec; what is taken out drains once what
/// came in beside it serves or failed, at most one startup deadline later.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("has(self.sandboxStdio) != has(self.http)", "exactly one of sandboxStdio and http must be set"))]
#[x_kube(validation = ("has(self.serverName) || size(self.name) <= 63", "name is longer than 63 characters and cannot stand in tool ids: set serverName"))]
pub struct OwnAttachment {
    /// Its name, as toolSets has it.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("!format.dns1123Subdomain().validate(self).hasValue()", "name must be one that an McpAttachment could have: lower-case letters, digits, '-' and '.'"))]
    pub name: String,
    /// The server's name in tool ids: `mcp__<serverName>__<tool>`. Default the name. Unique in the
    /// Session; must not contain `__`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$') && !self.contains('__')", "serverName may hold lower-case letters, digits, '-', '_' and '.', begins and ends with a letter or digit, and must not contain '__'"))]
    pub server_name: Option<String>,
    /// A stdio server, run in a pod of the Session with the Agent's environment. Exactly one of
    /// sandboxStdio and http is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_stdio: Option<SandboxStdio>,
    /// A server over Streamable HTTP. Exactly one of sandboxStdio and http is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// Limits of this server and of calls to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AttachmentLimits>,
    /// How a change takes the place of what serves: Surge (the default) brings the next generation
    /// up beside it; Recreate drains it first and waits until its pod is gone.
    #[serde(default, skip_serializing_if = "Rollout::is_surge")]
    pub rollout: Rollout,
    /// Takes the server out of service at once, without taking it out of the set. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
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
    /// Ready, Reconciling, Stalled, and Accepted, which speaks of the Session's own attachments.
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
    /// The last value of the annotation awaken.dev/reconcile-requested-at, which asks for another try
    /// of the Session's own attachments, that was acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub last_handled_reconcile_at: Option<String>,
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
