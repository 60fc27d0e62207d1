//! The life of a generation: what the operator writes, what the gateway answers, and which answer
//! counts.
//!
//! ```text
//!  operator ──stage(ref, fingerprint)──► Session.status.attachments[] ──► gateway
//!  operator ◄──receipt(fingerprint)───── Session.status.receipts[]    ◄── gateway
//!
//!  Requested ──► Realizing ──► Active ──► Draining ──► Removed (the entry goes)
//!      │           │    └────withdrawn──────►▲
//!      └► Removed  └──► Failed (stays until its successor is asked for)
//! ```
//!
//! The types are here; [`step`] has the operator's rules, [`hosting`] the gateway's, [`retry`] the delays.

mod change;
pub mod hosting;
pub mod naming;
mod property;
pub mod retry;
pub mod situation;
pub mod step;

pub use change::DRAIN_SLACK;
pub use naming::{generation_of, own_attachment_uid, pod_name};
pub use situation::{
    Blueprint, Desired, Effect, Ignored, Mismatch, Owner, Place, PodFact, Removal, RemovedBy,
    Situation, Step, Wish,
};
pub use step::{MAX_LIVE, step};

use super::{
    identity::{Fingerprint, McpGenerationRef},
    reason::Reason,
};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a generation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum State {
    /// Asked for; nothing was started.
    Requested,
    /// Being started and asked for its tools.
    Realizing,
    /// Proven by a handshake; the one that serves.
    Active,
    /// Takes no new call.
    Draining,
    /// Could not be proven. Terminal.
    Failed,
}

/// How a generation takes the place of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Rollout {
    /// The one before serves until the next is Active: no moment without tools.
    #[default]
    Surge,
    /// The one before drains first, and its pod is gone before the next begins: never two at a
    /// time, where a quota or a lock forbids that. Meanwhile the server has no tools.
    Recreate,
}

impl Rollout {
    /// Whether it is the default.
    pub fn is_surge(&self) -> bool {
        *self == Self::Surge
    }
}

/// Who brought an attachment into a Session.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub enum Origin {
    /// The Agent: an McpAttachment that names it, under the Agent's ToolSets.
    #[default]
    Agent,
    /// The Session itself: one of spec.attachments, under the Session's ToolSets.
    Session,
}

/// What the operator asks of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StageKind {
    /// Connect, initialize, list the tools; serve nothing yet.
    Realize,
    /// Put it into the catalog.
    Publish,
    /// Take it out of the catalog and let calls in flight finish.
    Drain,
}

/// What the operator asks of the gateway for one generation, whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// What to do.
    pub kind: StageKind,
    /// For whom: the receipt repeats it.
    #[serde(rename = "ref")]
    pub generation_ref: McpGenerationRef,
    /// Digest over the whole request: ref, kind, target and limits. A receipt repeats it.
    #[schemars(length(max = 80))]
    pub fingerprint: String,
}

/// Where the gateway finds the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    /// A server over Streamable HTTP.
    Http(HttpTarget),
    /// A stdio server in a Session pod.
    SandboxStdio(PodTarget),
}

/// A server over Streamable HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpTarget {
    /// The canonical URL.
    #[schemars(length(max = 2048))]
    pub url: String,
    /// The credential, by reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<CredentialRef>,
}

/// Where a credential lies and how it is sent. Never the value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialRef {
    /// Name of the Secret, in the namespace of the Session.
    #[schemars(length(max = 253))]
    pub secret: String,
    /// Key in the Secret.
    #[schemars(length(max = 253))]
    pub key: String,
    /// The header that carries it.
    #[schemars(length(max = 128))]
    pub header: String,
    /// The word before the value; empty for none.
    #[schemars(length(max = 64))]
    pub scheme: String,
}

/// A Session pod. Address and UID are known once it has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTarget {
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub name: String,
    /// UID of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uid: Option<String>,
    /// Address of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub address: Option<String>,
    /// The Secret keys that its environment reads: the gateway takes their values out of records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub secrets: Vec<SecretKey>,
}

/// A key of a Secret in the namespace of the Session. Never the value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    pub secret: String,
    /// Key in the Secret.
    #[schemars(length(max = 253))]
    pub key: String,
}

/// The limits of one generation, all in milliseconds or bytes, defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// From request to Active, in milliseconds.
    #[schemars(range(min = 1))]
    pub startup_timeout_ms: i64,
    /// One call, in milliseconds.
    #[schemars(range(min = 1))]
    pub call_timeout_ms: i64,
    /// From drain to cut, in milliseconds.
    #[schemars(range(min = 0))]
    pub drain_timeout_ms: i64,
    /// Calls in flight at one time.
    #[schemars(range(min = 1))]
    pub max_concurrent_calls: i64,
    /// One message, in bytes.
    #[schemars(range(min = 1))]
    pub max_message_bytes: i64,
}

/// One generation of one attachment, as it stands in `Session.status.attachments[]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Generation {
    /// The number, from `status.lastGeneration`; never used twice in a Session.
    #[schemars(range(min = 1))]
    pub generation: i64,
    /// metadata.name of the McpAttachment, or the name in spec.attachments.
    #[schemars(length(max = 253))]
    pub attachment: String,
    /// UID of the McpAttachment; for one of spec.attachments made from the Session's UID and the
    /// name.
    #[schemars(length(max = 64))]
    pub attachment_uid: String,
    /// Who brought it: the Agent, or the Session by spec.attachments.
    #[serde(default)]
    pub origin: Origin,
    /// The server's name in tool ids.
    #[schemars(length(max = 63))]
    pub server: String,
    /// Fingerprint of what made it: target, environment revision, keyed hash of Secret values.
    #[schemars(length(max = 80))]
    pub source: String,
    /// Where it stands.
    pub state: State,
    /// What the gateway is asked for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Where the server is.
    pub target: Target,
    /// Its limits.
    pub limits: Limits,
    /// Why it is as it is.
    pub reason: Reason,
    /// The same for people: cause and next step, at most 512 bytes.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub message: String,
    /// When the state was entered.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Timestamp,
    /// When Realizing ends as StartupTimeout; of an Active one that leaves its Session, when it
    /// drains at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub deadline: Option<Timestamp>,
    /// How often the attachment failed in a row, this one included; it sets the delay of the next.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub failures: i64,
    /// What the handshake proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// Whether the gateway said that it serves it (the Publish receipt).
    #[serde(default)]
    pub published: bool,
}

/// What a receipt proves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// The MCP revision that was negotiated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub protocol_version: Option<String>,
    /// serverInfo.name and version, cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub server_info: Option<String>,
    /// How many tools the server lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub tool_count: Option<i64>,
    /// Digest over the whole tool surface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub surface_digest: Option<String>,
    /// For Publish: tools that the ToolSet names and the server does not list; the first of them, in
    /// all at most 512 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 512)))]
    pub missing_tools: Vec<String>,
    /// For Drain: calls that were in flight at the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub in_flight: Option<i64>,
    /// For Drain: calls that were cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cut: Option<i64>,
}

/// Names that one evidence holds, at most.
const MISSING: usize = 8;
/// Bytes of all of them together, at most.
const MISSING_BYTES: usize = 512;

impl Evidence {
    /// As many of the names of missing tools as an evidence holds.
    pub fn missing<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
        let mut left = MISSING_BYTES;
        let fits = |name: &&String| {
            let fits = name.len() <= left;
            left -= if fits { name.len() } else { 0 };
            fits
        };
        names.filter(fits).take(MISSING).cloned().collect()
    }
}

/// How a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Verdict {
    /// Done, with evidence.
    Done,
    /// It cannot be done, or not yet: the class of the reason tells.
    Failed,
    /// Unasked, after Publish: the server is gone.
    Lost,
}

/// The gateway's answer to a stage, in `Session.status.receipts[]`, one for each generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// The generation.
    #[schemars(range(min = 1))]
    pub generation: i64,
    /// The stage that it answers.
    pub stage: StageKind,
    /// The ref of that stage.
    #[serde(rename = "ref")]
    pub generation_ref: McpGenerationRef,
    /// The fingerprint of that stage.
    #[schemars(length(max = 80))]
    pub fingerprint: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What was proven.
    #[serde(default)]
    pub evidence: Evidence,
    /// Why it failed or was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The same for people, scrubbed, at most 512 bytes.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it was written.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub at: Timestamp,
}

/// The digest that a stage carries and its receipt repeats: over the ref, the kind, the target and
/// the limits, so that an answer to anything else is no answer.
pub fn fingerprint(
    generation_ref: &McpGenerationRef,
    kind: StageKind,
    target: &Target,
    limits: &Limits,
) -> String {
    let McpGenerationRef { session_uid, attachment_uid, generation, incarnation, epoch } =
        generation_ref;
    let kind = match kind {
        StageKind::Realize => "Realize",
        StageKind::Publish => "Publish",
        StageKind::Drain => "Drain",
    };
    let digest = Fingerprint::new("stage")
        .field(session_uid)
        .field(attachment_uid)
        .field(generation.to_be_bytes())
        .field(incarnation)
        .field(epoch.to_be_bytes())
        .field(kind);
    limits.digest(target.digest(digest)).finish()
}

impl Target {
    fn digest(&self, to: Fingerprint) -> Fingerprint {
        match self {
            Target::Http(HttpTarget { url, credential: None }) => {
                to.field("http").field(url).field("open")
            }
            Target::Http(HttpTarget {
                url,
                credential: Some(CredentialRef { secret, key, header, scheme }),
            }) => {
                let to = to.field("http").field(url).field("credential");
                to.field(secret).field(key).field(header).field(scheme)
            }
            Target::SandboxStdio(PodTarget { name, uid, address, secrets }) => {
                let to = to.field("pod").field(name).optional(uid.as_ref());
                let to = to.optional(address.as_ref());
                secrets.iter().fold(to, |to, SecretKey { secret, key }| to.field(secret).field(key))
            }
        }
    }
}

impl Limits {
    /// Adds the limits to a digest.
    #[must_use]
    pub fn digest(&self, to: Fingerprint) -> Fingerprint {
        let Limits {
            startup_timeout_ms,
            call_timeout_ms,
            drain_timeout_ms,
            max_concurrent_calls,
            max_message_bytes,
        } = self;
        to.field(startup_timeout_ms.to_be_bytes())
            .field(call_timeout_ms.to_be_bytes())
            .field(drain_timeout_ms.to_be_bytes())
            .field(max_concurrent_calls.to_be_bytes())
            .field(max_message_bytes.to_be_bytes())
    }
}

impl Stage {
    /// Whether the receipt answers exactly this stage of this generation.
    pub fn answered_by(&self, receipt: &Receipt) -> bool {
        receipt.generation == self.generation_ref.generation
            && receipt.stage == self.kind
            && receipt.generation_ref == self.generation_ref
            && receipt.fingerprint == self.fingerprint
    }
}
