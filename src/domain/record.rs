//! A record of the journal: its fields, and how arguments, results and messages become parts of it.
//!
//! Redaction comes first, then the limits; digests are over what was really said. The canonical
//! bytes and the hash chain are in `chain`.

use super::{
    canonical::{Canonical, JsonProblem, canonical_json, digest},
    reason::Reason,
    redact::Redactor,
};
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

/// The default limit of a stored payload, in bytes before redaction.
pub const PAYLOAD_LIMIT: usize = 16 * 1024;
/// Longest tool name that is stored, in bytes. A caller may send any.
pub const TOOL_LIMIT: usize = 256;
/// Longest message that is stored, in bytes.
pub const MESSAGE_LIMIT: usize = 2048;

impl Payload {
    /// Arguments as they came: the digest is over their canonical form, which is also what is
    /// stored, redacted, if the arguments have at most `limit` bytes.
    ///
    /// # Errors
    /// If they have no canonical form.
    pub fn arguments(raw: &str, redactor: &Redactor, limit: usize) -> Result<Self, JsonProblem> {
        Ok(Self::canonical(&canonical_json(raw)?, raw.len(), redactor, limit))
    }

    /// Like [`Self::arguments`], for arguments of `size` bytes whose canonical form is at hand.
    pub fn canonical(form: &Canonical, size: usize, redactor: &Redactor, limit: usize) -> Self {
        Self {
            digest: form.digest.clone(),
            size: size as u64,
            json: stored(&form.text, size, redactor, limit),
        }
    }

    /// A result or an error as it came: the digest is over its bytes. What is not JSON is not
    /// stored, since nothing can be taken out of it safely.
    pub fn result(raw: &str, redactor: &Redactor, limit: usize) -> Self {
        Self {
            digest: digest(raw),
            size: raw.len() as u64,
            json: stored(raw, raw.len(), redactor, limit),
        }
    }
}

fn stored(text: &str, size: usize, redactor: &Redactor, limit: usize) -> Option<String> {
    (size <= limit).then(|| redactor.json(text).ok())?.map(|text| text.into_owned())
}

/// The text up to `limit` bytes, cut between characters; three of the bytes are for the dots that
/// show the cut.
fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(limit - '…'.len_utf8())])
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
    /// What else the caller said with the call: `_meta`, as far as the server gets it, without
    /// trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Payload>,
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
            meta: None,
            result: None,
        }
    }

    /// Takes known values out of what a caller or a server wrote, then bounds its length.
    pub fn scrub(&mut self, redactor: &Redactor) {
        for (field, limit) in [(&mut self.tool, TOOL_LIMIT), (&mut self.message, MESSAGE_LIMIT)] {
            if let Some(text) = field {
                *text = cut(&redactor.text(text), limit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_over_what_was_said_and_the_rest_is_redacted() {
        let redactor = Redactor::new(["value-of-a-secret"]);
        let raw = r#"{ "b": {"token": "t0"}, "a": "value-of-a-secret" , "password":"p", "x": 1.0}"#;
        let payload = Payload::arguments(raw, &redactor, PAYLOAD_LIMIT).unwrap();
        let plain = r#"{"a":"value-of-a-secret","b":{"token":"t0"},"password":"p","x":1.0}"#;
        assert_eq!(payload.digest, digest(plain));
        assert_eq!(payload.size, raw.len() as u64);
        let stored =
            r#"{"a":"[redacted]","b":{"token":"[redacted]"},"password":"[redacted]","x":1.0}"#;
        assert_eq!(payload.json.as_deref(), Some(stored));
        assert!(Payload::arguments(r#"{"a":1,"a":2}"#, &redactor, 100).is_err());
    }

    #[test]
    fn a_payload_is_whole_or_absent() {
        let redactor = Redactor::default();
        let raw = format!("\"{}\"", "€".repeat(10));
        for limit in 0..40 {
            for payload in [
                Payload::result(&raw, &redactor, limit),
                Payload::arguments(&raw, &redactor, limit).unwrap(),
            ] {
                assert_eq!(
                    payload.json.as_deref(),
                    (limit >= 32).then_some(raw.as_str()),
                    "{limit}"
                );
                assert_eq!((payload.size, payload.digest), (32, digest(&raw)));
            }
        }
        assert_eq!(Payload::result("not json", &redactor, 100).json, None);
    }

    #[test]
    fn texts_are_redacted_then_cut_between_characters() {
        for extra in 0..4 {
            let mut entry = Entry::new(Timestamp::UNIX_EPOCH, Kind::Refusal);
            let text = format!(
                "{}{} s3cret-value {}",
                "x".repeat(extra),
                "€".repeat(TOOL_LIMIT / 3 - 6),
                "€".repeat(MESSAGE_LIMIT)
            );
            (entry.tool, entry.message) = (Some(text.clone()), Some(text));
            entry.scrub(&Redactor::new(["s3cret-value"]));
            for (field, limit) in [(entry.tool, TOOL_LIMIT), (entry.message, MESSAGE_LIMIT)] {
                let text = field.unwrap();
                assert!(
                    text.len() <= limit && text.len() > limit - 3 && text.ends_with('…'),
                    "{}",
                    text.len()
                );
                assert!(!text.contains("s3cr"));
            }
        }
        let mut short = Entry::new(Timestamp::UNIX_EPOCH, Kind::Refusal);
        short.tool = Some("read".into());
        short.scrub(&Redactor::default());
        assert_eq!(short.tool.as_deref(), Some("read"));
    }
}
