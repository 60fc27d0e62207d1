//! `trace_list`: what stands in a Session's trace, for an account that may read it.

use super::{
    Desk, Hints, Tool,
    answer::Spoken,
    args::Arguments,
    names::{Limit, Name, Namespace, USUAL},
    problem::Problem,
    text::{line, shown},
};
use crate::{
    domain::{
        identity::SessionKey,
        reason::Reason,
        record::{Payload, Record},
    },
    gateway::export::ManagementContext,
    journal::Chain,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The longest payload that is shown, in bytes of JSON text.
const PAYLOAD: usize = 2048;
/// A page ends after this many bytes of records.
const ENOUGH_BYTES: usize = 80 * 1024;

/// What to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListArguments {
    /// The Session's namespace.
    namespace: Namespace,
    /// The Session's name. A Standing Session is named like its Agent.
    session: Name,
    /// The place after which the page begins: a `next`, or the `seq` of a record. Default 0: from
    /// the first record.
    #[schemars(range(min = 0))]
    after: Option<u64>,
    /// Records on the page. Default 50.
    limit: Option<Limit>,
}

impl Arguments for ListArguments {}

/// Arguments or a result as they are on record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct PayloadView {
    /// Size of the whole, in bytes.
    pub size: u64,
    /// Digest of the whole.
    pub digest: String,
    /// The JSON text, redacted; its beginning where it is long, absent where it is not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct RecordView {
    /// Its place in the trace, from 1.
    pub seq: u64,
    /// When.
    pub at: String,
    /// Intent, Outcome, Refusal or Lifecycle.
    pub kind: String,
    /// Joins the intent and the outcome of one call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// Who called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The attachment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
    /// Its generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The rule that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// How the call ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Why, where there is more to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub reason: Option<Reason>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<PayloadView>,
    /// What else was said with the call: `_meta`, without trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<PayloadView>,
    /// The result or the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<PayloadView>,
}

/// A page of a trace.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct List {
    /// The Session.
    pub session: String,
    /// The records, the oldest first.
    pub records: Vec<RecordView>,
    /// Whether there may be more.
    pub more: bool,
    /// The argument `after` of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl Spoken for List {
    fn text(&self) -> String {
        let mut out = match self.records.len() {
            0 => format!("No records in the trace of {}.\n", self.session),
            count => format!("{count} records of the trace of {}:\n", self.session),
        };
        for record in &self.records {
            let RecordView { seq, at, kind, .. } = record;
            let _ = write!(out, "#{seq} {at} {kind}");
            let words = [
                ("call", &record.call),
                ("by", &record.subject),
                ("attachment", &record.attachment),
                ("tool", &record.tool),
                ("outcome", &record.outcome),
            ];
            for (name, word) in words {
                if let Some(word) = word {
                    let _ = write!(out, " {name}={}", line(word, 128));
                }
            }
            if let Some(reason) = record.reason {
                let _ = write!(out, " reason={reason}");
            }
            if let Some(message) = &record.message {
                let _ = write!(out, " {}", line(message, 160));
            }
            for (name, payload) in [
                ("arguments", &record.arguments),
                ("meta", &record.meta),
                ("result", &record.result),
            ] {
                if let Some(json) = payload.as_ref().and_then(|p| p.json.as_ref()) {
                    let _ = write!(out, " {name}={}", line(json, 160));
                }
            }
            out += "\n";
        }
        if let Some(next) = self.next {
            let _ = writeln!(out, "There may be more: call again with after = {next}");
        }
        out
    }
}

/// `trace_list`.
pub struct TraceList;

impl Tool for TraceList {
    const NAME: &'static str = "trace_list";
    const TITLE: &'static str = "List a trace";
    const DESCRIPTION: &'static str = "Lists the records of a Session's trace, the oldest first: \
        who called which tool with which arguments, which rule let it pass, and how it ended. \
        Secrets are redacted; long arguments and results are cut.";
    const HINTS: Hints = Hints::READ;
    type Arguments = ListArguments;
    type Output = List;

    async fn run(
        desk: &Desk,
        ListArguments { namespace, session: name, after, limit }: ListArguments,
        _: &ManagementContext,
    ) -> Result<List, Problem> {
        let session = desk.session(&namespace, &name).await?;
        let key = SessionKey { namespace: namespace.to_string(), name: name.to_string() };
        desk.account.may_read_trace(&desk.own, &key).await?;
        let chain = Chain::Session(session.metadata.uid.unwrap_or_default());
        let limit = limit.map_or(USUAL, |l| l.0) as usize;
        let records = desk.journal.page(&chain, after.unwrap_or(0), limit).await;
        let records = records.map_err(|error| {
            tracing::error!(%error, "the trace cannot be read");
            Problem::new(Reason::JournalUnavailable, "The trace cannot be read.")
                .next("Try again; look at the journal's volume or database.")
        })?;
        let asked_for = records.len() == limit;
        let (mut shown, mut bytes) = (vec![], 0);
        let total = records.len();
        for record in records {
            if bytes >= ENOUGH_BYTES {
                break;
            }
            let view = view(record);
            bytes += serde_json::to_vec(&view).map_or(0, |text| text.len());
            shown.push(view);
        }
        let more = asked_for || shown.len() < total;
        let next = shown.last().map(|r| r.seq).filter(|_| more);
        Ok(List { session: key.to_string(), records: shown, more, next })
    }
}

fn view(Record { seq, entry, .. }: Record) -> RecordView {
    RecordView {
        seq,
        at: entry.at.to_string(),
        kind: word(entry.kind),
        call: entry.call,
        subject: entry.subject.map(|s| line(&s, 256)),
        attachment: entry.attachment,
        generation: entry.generation,
        tool: entry.tool.map(|t| line(&t, 256)),
        rule: entry.rule.map(|r| line(&r, 256)),
        outcome: entry.outcome.map(word),
        reason: entry.reason,
        message: entry.message.map(|m| line(&m, 512)),
        arguments: entry.arguments.map(payload),
        meta: entry.meta.map(payload),
        result: entry.result.map(payload),
    }
}

fn payload(Payload { digest, size, json }: Payload) -> PayloadView {
    PayloadView { size, digest, json: json.map(|json| shown(&json, PAYLOAD)) }
}

/// The word as it stands in the record.
fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}
