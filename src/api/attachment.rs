//! The McpAttachment: where a server is, and how to reach it.
//!
//! Types only. What the API server can refuse by itself is refused by the rules here; what needs
//! another object, an address or the network is judged by the operator and the gateway.

use super::condition;
use crate::domain::lifecycle::Rollout;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, core::Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An McpAttachment attaches one MCP server to one Agent: either a stdio server that runs in a
/// sandboxed pod, or a server over Streamable HTTP. What of it may be used is said by the Agent's
/// ToolSet of the same name.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "awaken.dev",
    version = "v1alpha1",
    kind = "McpAttachment",
    plural = "mcpattachments",
    doc = "An McpAttachment attaches one MCP server to one Agent: a stdio server that runs in a sandboxed pod, or a server over Streamable HTTP. What of it may be used is said by the Agent's ToolSet of the same name.",
    validation = ("has(self.spec.serverName) || size(self.metadata.name) <= 63", "metadata.name is longer than 63 characters and cannot stand in tool ids: set spec.serverName"),
    namespaced,
    status = "McpAttachmentStatus",
    shortname = "mcpa",
    category = "awaken",
    derive = "PartialEq",
    printcolumn(name = "Agent", type_ = "string", json_path = ".spec.agentRef.name"),
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
    printcolumn(name = "Tools", type_ = "integer", json_path = ".status.toolCount"),
    printcolumn(name = "Generation", type_ = "integer", json_path = ".status.desiredGeneration"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Target", type_ = "string", json_path = ".status.target", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("has(self.sandboxStdio) != has(self.http)", "exactly one of sandboxStdio and http must be set"))]
#[x_kube(validation = ("has(self.sandboxStdio) == has(oldSelf.sandboxStdio)", "the kind of target is immutable: delete the attachment and create it anew"))]
pub struct McpAttachmentSpec {
    /// The Agent, in this namespace. Immutable.
    #[x_kube(validation = ("self == oldSelf", "agentRef is immutable: delete the attachment and create it anew"))]
    pub agent_ref: AgentRef,
    /// The server's name in tool ids: `mcp__<serverName>__<tool>`. Default metadata.name. Unique
    /// among the attachments of one Agent; must not contain `__`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$') && !self.contains('__')", "serverName may hold lower-case letters, digits, '-', '_' and '.', begins and ends with a letter or digit, and must not contain '__'"))]
    pub server_name: Option<String>,
    /// A stdio server, run in a pod of the Session with the Agent's environment. Exactly one of
    /// sandboxStdio and http is set; which of them cannot change later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_stdio: Option<SandboxStdio>,
    /// A server over Streamable HTTP. Exactly one of sandboxStdio and http is set; which of them
    /// cannot change later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// Limits of this server and of calls to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AttachmentLimits>,
    /// How a change takes the place of what serves: Surge (the default) brings the next generation
    /// up beside it, so that no moment is without tools; Recreate drains it first and waits until
    /// its pod is gone, where a quota or a lock forbids two.
    #[serde(default, skip_serializing_if = "Rollout::is_surge")]
    pub rollout: Rollout,
    /// Takes the server out of service at once, without deleting anything. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// An Agent by name.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentRef {
    /// metadata.name of the Agent. It need not exist yet.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("!format.dns1123Subdomain().validate(self).hasValue()", "agentRef.name must be the metadata.name of an Agent: lower-case letters, digits, '-' and '.'"))]
    pub name: String,
}

/// A stdio server. No shell is involved: command and arguments reach the program as written.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("!has(self.env) || !has(self.secretEnv) || self.env.all(e, !self.secretEnv.exists(s, s.name == e.name))", "a variable stands in env or in secretEnv, not in both"))]
pub struct SandboxStdio {
    /// The program: a path, or a name that is looked up in the image's PATH. No secrets here.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = (r"!self.contains('\x00')", "command must not contain a NUL character"))]
    pub command: String,
    /// Its arguments, as written: nothing is expanded. At most 64 of 4096 characters, 32768 in
    /// all. Default none. No secrets here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    #[x_kube(validation = ("self.map(a, size(a)).sum() <= 32768", "args hold at most 32768 characters in all"))]
    #[x_kube(validation = (r"!self.exists(a, a.contains('\x00'))", "args must not contain a NUL character"))]
    pub args: Vec<String>,
    /// Environment variables, as written: nothing is expanded. At most 64, 32768 characters in
    /// all. Default none. No secrets here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = ("self.map(e, size(e.name) + (has(e.value) ? size(e.value) : 0)).sum() <= 32768", "env holds at most 32768 characters in all"))]
    pub env: Vec<EnvVar>,
    /// Environment variables from Secrets of this namespace. A changed value is a new generation.
    /// At most 32, whose Secret names and keys hold 1024 characters in all. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = ("self.map(e, size(e.secretKeyRef.name) + size(e.secretKeyRef.key)).sum() <= 1024", "the Secret names and keys of secretEnv hold at most 1024 characters in all"))]
    pub secret_env: Vec<SecretEnvVar>,
}

/// An environment variable.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Its name. Names beginning with AWAKEN_ or KUBERNETES_ are the sandbox's own.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = ("self.matches('^[A-Za-z_][A-Za-z0-9_]*$') && !self.startsWith('AWAKEN_') && !self.startsWith('KUBERNETES_')", "an environment variable's name holds letters, digits and '_', does not begin with a digit, and not with AWAKEN_ or KUBERNETES_"))]
    pub name: String,
    /// Its value. Default empty.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    #[x_kube(validation = (r"!self.contains('\x00')", "the value of an environment variable must not contain a NUL character"))]
    pub value: String,
}

/// An environment variable whose value lies in a Secret.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretEnvVar {
    /// Its name. Names beginning with AWAKEN_ or KUBERNETES_ are the sandbox's own.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = ("self.matches('^[A-Za-z_][A-Za-z0-9_]*$') && !self.startsWith('AWAKEN_') && !self.startsWith('KUBERNETES_')", "an environment variable's name holds letters, digits and '_', does not begin with a digit, and not with AWAKEN_ or KUBERNETES_"))]
    pub name: String,
    /// Where the value lies.
    pub secret_key_ref: SecretKeyRef,
}

/// A key of a Secret in the same namespace.
#[derive(
    KubeSchema, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRef {
    /// metadata.name of the Secret, in this namespace.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')", "the name of a Secret holds lower-case letters, digits, '-' and '.'"))]
    pub name: String,
    /// The key in its data.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self.matches('^[A-Za-z0-9._-]+$')", "a key of a Secret holds letters, digits, '-', '_' and '.'"))]
    pub key: String,
}

/// A server over Streamable HTTP.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("!has(self.credential) || self.url.startsWith('https://') || (has(self.insecureCredential) && self.insecureCredential)", "a credential travels over https only: use an https url, or set insecureCredential to true"))]
pub struct Http {
    /// The MCP endpoint: absolute, http or https, without user information and fragment. Used as
    /// written, with path and query. At most 1024 characters. Redirects are not followed.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = ("isURL(self) && (url(self).getScheme() == 'http' || url(self).getScheme() == 'https') && url(self).getHostname() != ''", "url must be an absolute http or https URL"))]
    #[x_kube(validation = ("!self.matches('^[a-zA-Z]+://[^/?#]*@')", "url must not contain user information: put the credential into a Secret and name it in credential"))]
    #[x_kube(validation = ("!self.contains('#')", "url must not contain a fragment"))]
    #[x_kube(validation = (r"self.matches(r'^[A-Za-z0-9._~:/?\[\]@!$&()*+,;=%#-]+$')", "url must be plain ASCII: percent-encode other characters"))]
    pub url: String,
    /// What the gateway shows to the server. Sent to this URL's origin only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<Credential>,
    /// Allows the credential over plain http. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure_credential: bool,
}

/// A credential for an HTTP server. A changed value is a new generation.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Credential {
    /// Where the value lies.
    pub secret_key_ref: SecretKeyRef,
    /// The header that carries it. Default Authorization.
    #[serde(default = "authorization")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = ("self.matches('^[A-Za-z0-9-]+$') && !self.matches('(?i)^(accept(-.*)?|content-.*|mcp-.*|connection|expect|host|http2-settings|keep-alive|last-event-id|origin|proxy-connection|te|traceparent|tracestate|trailers?|transfer-encoding|upgrade|user-agent)$')", "header must be an ordinary header name, not one that the transport itself sets"))]
    pub header: String,
    /// The word before the value; empty for none. Default Bearer.
    #[serde(default = "bearer")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self.matches('^[A-Za-z0-9-]*$')", "scheme must be one word or empty"))]
    pub scheme: String,
}

fn authorization() -> String {
    "Authorization".to_owned()
}

fn bearer() -> String {
    "Bearer".to_owned()
}

/// Limits. Durations are written as in Kubernetes, for example `90s` or `5m`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttachmentLimits {
    /// From the request of a generation to its proof. Default 60s; 1s to 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = ("duration(self) >= duration('1s') && duration(self) <= duration('1h')", "startupTimeout must be between 1s and 1h"))]
    pub startup_timeout: Option<Duration>,
    /// One call. Default 60s; 1s to 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = ("duration(self) >= duration('1s') && duration(self) <= duration('1h')", "callTimeout must be between 1s and 1h"))]
    pub call_timeout: Option<Duration>,
    /// How long calls in flight may still run when the server is taken out of service. Default
    /// 30s; 0s to 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"))]
    #[x_kube(validation = ("duration(self) >= duration('0s') && duration(self) <= duration('1h')", "drainTimeout must be between 0s and 1h"))]
    pub drain_timeout: Option<Duration>,
    /// Calls in flight at one time; more are refused. Default 16; 1 to 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrent_calls: Option<i64>,
    /// The longest message of the server, and of a stdio server also the longest one to it, in
    /// bytes. Default 16777216; 1024 to 67108864.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub max_message_bytes: Option<i64>,
}

/// What the operator saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpAttachmentStatus {
    /// The metadata.generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready (of the newest generation), Reconciling, Stalled, Accepted, Serving (some generation
    /// is callable).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// The newest generation that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// The generation that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_generation: Option<i64>,
    /// How many tools the server lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_count: Option<i64>,
    /// Digest over the server's tool surface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub surface_digest: Option<String>,
    /// The MCP revision that was negotiated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub protocol_version: Option<String>,
    /// The target in one line: the URL, or the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub target: Option<String>,
    /// The last value of the annotation awaken.dev/reconcile-requested-at that was acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub last_handled_reconcile_at: Option<String>,
}
