//! A record of the journal: its fields, its canonical bytes, the hash chain, and what is taken out
//! before anything is stored.

use super::reason::Reason;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What a record tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A call passed the gate and is about to be sent. Durable before anything is sent.
    Intent,
    /// How a call ended. Durable before the caller has the answer. The first one of a call counts.
    Outcome,
    /// A request was refused before there was an intent.
    Refusal,
    /// A generation was realized, published, drained or lost, or a host took the Session over.
    Lifecycle,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The server answered with a result.
    Succeeded,
    /// The server answered with a result that has `isError`.
    ToolError,
    /// The server answered with a JSON-RPC error.
    RpcError,
    /// The call did not reach the server.
    TransportError,
    /// The gate said no, or there is no such tool.
    Denied,
    /// The caller cancelled.
    Cancelled,
    /// The deadline passed.
    TimedOut,
    /// The caller went away before the answer.
    ClientGone,
    /// Somebody said no.
    ApprovalRefused,
    /// Nobody said anything in time.
    ApprovalExpired,
    /// It may have run; nobody knows.
    OutcomeUnknown,
}

/// A piece of JSON as it is stored: whole up to a limit, beyond it digest and size alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Payload {
    /// `sha256:…` over the canonical form for arguments, over the bytes for results.
    pub digest: String,
    /// Size of the whole, in bytes, before redaction.
    pub size: u64,
    /// The JSON text after redaction; absent beyond the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
}

/// What a record says, before it has its place in a chain. Absent fields are not written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// What it tells of.
    pub kind: Kind,
    /// Id of the call: joins intent and outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// User name of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// `namespace/name` of the Session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// metadata.name of the attachment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
    /// The generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The exact target: the URL, or `stdio:pod/uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The credential by reference: `secret/key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The tool as the caller named it (for an intent: the server's own name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Digest of the tool's definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<String>,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why, where there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// More for people, scrubbed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Payload>,
    /// The result or the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
}

/// An entry in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Place in the chain, from 1, without gaps.
    pub seq: u64,
    /// What it says.
    #[serde(flatten)]
    pub entry: Entry,
    /// Hash of the record before; 64 zeros for the first.
    pub previous: String,
    /// Hash over `previous`, `seq` and the canonical bytes of the entry.
    pub hash: String,
}

impl Entry {
    /// An entry with nothing but its time and kind.
    pub fn new(at: Timestamp, kind: Kind) -> Self {
        Self {
            at,
            kind,
            call: None,
            subject: None,
            session: None,
            attachment: None,
            generation: None,
            target: None,
            credential: None,
            tool: None,
            descriptor: None,
            rule: None,
            outcome: None,
            reason: None,
            message: None,
            arguments: None,
            result: None,
        }
    }
}
