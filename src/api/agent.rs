//! The Agent: what may be used, and how.
//!
//! Types only; rests on the domain's permissions. Bounds and rules here are what the API server
//! enforces, so the operator may rely on them for objects that were admitted by this version.

use super::{condition, resources};
use crate::domain::gate::Permission;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An Agent says which MCP servers' tools may be used, and how. The servers themselves are
/// McpAttachments that name this Agent. Either may be applied first.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "awaken.dev",
    version = "v1alpha1",
    kind = "Agent",
    doc = "An Agent says which MCP servers' tools may be used, and how. The servers themselves are McpAttachments that name this Agent; either may be applied first.",
    namespaced,
    status = "AgentStatus",
    shortname = "agt",
    category = "awaken",
    derive = "PartialEq",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Attachments", type_ = "string", json_path = ".status.attachments"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Session", type_ = "string", json_path = ".status.session", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("!has(self.exports) || size(self.exports) == 0 || self.session.mode == 'Standing'", "exports need session.mode Standing: a Session on demand may not be there when a client calls"))]
pub struct AgentSpec {
    /// How the Agent's Sessions come to be.
    #[serde(default)]
    pub session: SessionSettings,
    /// Where sandboxed stdio servers run. Frozen into the Session as a numbered revision; a change
    /// asks the next generation of each stdio attachment in a Standing Session, and holds for new
    /// Sessions on demand. Needed as soon as one attachment is sandboxStdio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    /// Which tools of which attachment may be used: exactly one ToolSet for each attachment. An
    /// attachment without ToolSet is not started. Read live: a change holds for the next call. At
    /// most 64, with 1024 tools in all. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["attachment"]))]
    #[x_kube(validation = ("self.map(t, has(t.tools) ? size(t.tools) : 0).sum() <= 1024", "an Agent names at most 1024 tools in all its toolSets"))]
    pub tool_sets: Vec<ToolSetSpec>,
    /// What the Agent's Sessions may bring themselves.
    #[serde(default, skip_serializing_if = "SessionAttachments::is_default")]
    pub session_attachments: SessionAttachments,
    /// What of this Agent /v1/mcp shows, beside the ToolSets, which hold for its calls as for every
    /// other. Needs session.mode Standing, and a namespace that the installation lets export. At
    /// most 64. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub exports: Vec<Export>,
}

/// How an Agent's Sessions come to be.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("self.mode == 'OnDemand' || (!has(self.idleTimeout) && !has(self.maxLifetime))", "idleTimeout and maxLifetime need session.mode OnDemand: a Standing Session is always there"))]
pub struct SessionSettings {
    /// Standing: the operator keeps one Session, named like the Agent. OnDemand: users create
    /// Sessions that name the Agent, any number of them. Default Standing. Immutable.
    #[serde(default)]
    #[x_kube(validation = ("self == oldSelf", "session.mode is immutable: make another Agent"))]
    pub mode: SessionMode,
    /// A Session on demand that no call was made in for this long is deleted, as by its user: it
    /// drains. A call counts from its begin to its end. Read live. 10s to 8760h. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = ("duration(self) >= duration('10s') && duration(self) <= duration('8760h')", "idleTimeout must be between 10s and 8760h"))]
    pub idle_timeout: Option<Duration>,
    /// A Session on demand is deleted this long after its creation, used or not: it drains. Read
    /// live. 10s to 8760h. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = ("duration(self) >= duration('10s') && duration(self) <= duration('8760h')", "maxLifetime must be between 10s and 8760h"))]
    pub max_lifetime: Option<Duration>,
}

/// What an Agent's Sessions may bring themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionAttachments {
    /// The widest permission that the toolSets of a Session give, Allow or Deny: what is wider there
    /// counts as this. Deny: Sessions bring no attachments of their own. Read live, as toolSets are.
    /// Default Deny.
    #[serde(default = "deny")]
    pub max: Permission,
}

impl Default for SessionAttachments {
    fn default() -> Self {
        Self { max: deny() }
    }
}

impl SessionAttachments {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Who makes an Agent's Sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SessionMode {
    /// The operator: one, named like the Agent, as long as the Agent is there.
    #[default]
    Standing,
    /// Users, as they need them.
    OnDemand,
}

/// One tool that /v1/mcp shows under a name of its own.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Export {
    /// metadata.name of the McpAttachment, as in toolSets.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("!format.dns1123Subdomain().validate(self).hasValue()", "attachment must be the metadata.name of an McpAttachment: lower-case letters, digits, '-' and '.'"))]
    pub attachment: String,
    /// The server's own, exact name of the tool.
    #[schemars(length(min = 1, max = 128))]
    pub tool: String,
    /// The name that clients of /v1/mcp see: unique in the installation (the older Agent keeps
    /// it), and not a management tool's.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = ("self.matches('^[A-Za-z0-9_-]+$')", "name may hold letters, digits, '_' and '-' only"))]
    #[x_kube(validation = ("!(self in ['agents_list', 'agent_get', 'attachments_list', 'attachment_get', 'attachment_apply', 'attachment_delete', 'attachment_retry', 'sessions_list', 'session_get', 'session_create', 'session_close', 'trace_list', 'approvals_list', 'approval_decide'])", "name is a management tool's: choose another one"))]
    pub name: String,
}

/// Where sandboxed stdio servers run.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Environment {
    /// The image that holds the servers' programs. Named in pods as written.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = ("self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@-]*$')", "image must be an image reference, for example registry.example.com/mcp-tools:1.4"))]
    pub image: String,
    /// When the image is pulled: IfNotPresent, Always or Never. Default IfNotPresent.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,
    /// The user that servers run as, never 0. Default 65532.
    #[serde(default = "default_user")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub run_as_user: i64,
    /// Requests and limits of each server's container, as quantities by resource name. For each
    /// resource that is not named: requests 10m CPU and 32Mi memory, limits 1 CPU, 512Mi memory and
    /// 1Gi ephemeral-storage, or as much as is requested.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "resources::deserialize"
    )]
    #[schemars(schema_with = "resources::schema")]
    pub resources: Option<ResourceRequirements>,
    /// A writable folder that lives as long as the generation. Default none; /tmp is always
    /// writable, the rest is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// Where servers may connect to. A change holds at once for every pod of a Standing Session, and
    /// asks the next generations as every change of the environment does. Default: nowhere.
    #[serde(default, skip_serializing_if = "Egress::is_deny")]
    pub egress: Egress,
}

/// Where sandboxed servers may connect to.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("(self.mode == 'Allow') == (has(self.rules) && size(self.rules) > 0)", "egress needs both or neither: mode Allow, and rules that name what may be reached"))]
pub struct Egress {
    /// Deny: nowhere. Allow: to what the rules name, and to the cluster's DNS. Default Deny.
    #[serde(default)]
    pub mode: EgressMode,
    /// What may be reached, at most 32. Whatever they say, link-local addresses, clouds' metadata,
    /// the API server and what the installation denies are not; and private networks only by a cidr
    /// that lies within one of them. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub rules: Vec<EgressRule>,
}

impl Egress {
    /// Whether nothing may be reached.
    pub fn is_deny(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether servers may connect to anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EgressMode {
    /// To nothing.
    #[default]
    Deny,
    /// To what the rules name.
    Allow,
}

/// A network that may be reached.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("!has(self.except) || !isCIDR(self.cidr) || self.except.all(e, isCIDR(e) && e != self.cidr && cidr(self.cidr).containsCIDR(e))", "except must name networks within cidr, and not all of it"))]
pub struct EgressRule {
    /// The network, for example 203.0.113.0/24. 0.0.0.0/0 is the internet, without private networks.
    #[schemars(length(min = 1, max = 43))]
    #[x_kube(validation = ("isCIDR(self) && cidr(self) == cidr(self).masked()", "cidr must be a network in CIDR notation without bits beyond its prefix, for example 203.0.113.0/24"))]
    pub cidr: String,
    /// Parts of it that may not be reached, at most 16. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 43)))]
    #[x_kube(validation = ("self.all(e, isCIDR(e) && cidr(e) == cidr(e).masked())", "except must be networks in CIDR notation without bits beyond their prefix"))]
    pub except: Vec<String>,
    /// The ports there, 1 to 16.
    #[schemars(length(min = 1, max = 16))]
    pub ports: Vec<EgressPort>,
}

/// Ports that may be reached.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("!has(self.endPort) || self.endPort >= self.port", "endPort must not be below port"))]
pub struct EgressPort {
    /// The port, or the first one.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// The last one. Default: port alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<i32>,
    /// TCP or UDP. Default TCP.
    #[serde(default)]
    pub protocol: EgressProtocol,
}

/// What is spoken at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum EgressProtocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

fn default_user() -> i64 {
    65532
}

/// When the kubelet pulls the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Only when the node does not have it.
    #[default]
    IfNotPresent,
    /// At each start.
    Always,
    /// Never; the node must have it.
    Never,
}

/// A writable folder.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workspace {
    /// Where it is mounted: an absolute path, not / and not below /tmp, /awaken, /proc, /sys, /dev
    /// or /var/run/secrets, which the sandbox uses itself.
    #[schemars(length(min = 2, max = 256))]
    #[x_kube(validation = ("self.matches('^(/[A-Za-z0-9._-]+)+$') && !self.matches('/[.]{1,2}(/|$)')", "mountPath must be an absolute path of letters, digits, '.', '_' and '-', without '.' and '..' as parts"))]
    #[x_kube(validation = ("!self.matches('^/(tmp|awaken|proc|sys|dev|var/run/secrets|run/secrets)(/|$)')", "mountPath must be outside /tmp, /awaken, /proc, /sys, /dev, /run/secrets and /var/run/secrets, which the sandbox uses itself"))]
    pub mount_path: String,
}

/// The policy over one attachment's tools.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolSetSpec {
    /// In an Agent, metadata.name of the McpAttachment, in this namespace; it need not exist yet. In
    /// a Session, the name in spec.attachments.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("!format.dns1123Subdomain().validate(self).hasValue()", "attachment must be the metadata.name of an McpAttachment: lower-case letters, digits, '-' and '.'"))]
    pub attachment: String,
    /// For tools that `tools` does not name: Allow or Deny. Default Deny, so that `tools` is an
    /// allow list.
    #[serde(default = "deny")]
    pub default_permission: Permission,
    /// Tools by the server's own, exact name; at most 256. Absent and empty mean the same: nothing
    /// is named, and defaultPermission holds for every tool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tools: Vec<ToolRule>,
}

fn deny() -> Permission {
    Permission::Deny
}

/// What is said of one tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolRule {
    /// The server's own, exact name of the tool.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// Allow: calls pass. Deny: the tool is neither listed nor callable.
    pub permission: Permission,
}

/// What the operator saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, Accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// Name of the Standing Session. Absent for an Agent on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub session: Option<String>,
    /// Attachments in service of all that name this Agent, for example `2/3`. On demand, those in
    /// service in every Session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub attachments: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::export::{MANAGEMENT_TOOLS, RESERVED_TOOLS};
    use kube::CustomResourceExt as _;

    #[test]
    fn the_rule_over_export_names_lists_every_reserved_name() {
        let crd = serde_json::to_value(Agent::crd()).unwrap();
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/exports\
            /items/properties/name/x-kubernetes-validations";
        let rules = crd.pointer(schema).unwrap();
        let names: Vec<_> =
            MANAGEMENT_TOOLS.iter().chain(&RESERVED_TOOLS).map(|n| format!("'{n}'")).collect();
        let wanted = format!("!(self in [{}])", names.join(", "));
        assert!(rules.as_array().unwrap().iter().any(|r| r["rule"] == wanted), "{rules:#}");
    }

    #[test]
    fn without_a_word_an_agent_is_standing_and_exports_nothing() {
        let spec: AgentSpec = serde_json::from_value(serde_json::json!({})).unwrap();
        assert_eq!(spec.session.mode, SessionMode::Standing);
        assert_eq!(spec.exports, []);
    }
}
