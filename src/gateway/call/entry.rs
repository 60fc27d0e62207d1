//! The records of a call. Only what was redacted goes in; pieces beyond the limit are digest and
//! size alone.

use super::{Errand, Ground, Reply, outcome::Ending, params, refusal::Refused};
use crate::{
    domain::{
        canonical::JsonProblem,
        reason::Reason,
        record::{Entry, Kind, Outcome, PAYLOAD_LIMIT, Payload},
        redact::Redactor,
    },
    mcp::RawJson,
};
use jiff::Timestamp;

/// What the caller said, as it stands in the record.
pub struct Question {
    arguments: Option<Payload>,
    meta: Option<Payload>,
}

impl Question {
    /// Reads arguments and `_meta` once: canonical form, digest, redaction.
    ///
    /// # Errors
    /// A key that stands twice, or nesting without end.
    pub fn read(
        arguments: Option<&RawJson>,
        params: &RawJson,
        redactor: &Redactor,
    ) -> Result<Self, JsonProblem> {
        let read = |text: &str| Payload::arguments(text, redactor, PAYLOAD_LIMIT);
        let arguments = arguments.map(|raw| read(raw.as_str())).transpose()?;
        let meta = params::meta_on_record(params).map(|text| read(&text)).transpose()?;
        Ok(Self { arguments, meta })
    }
}

/// The intent: durable before anything is sent.
pub(super) fn intent(errand: &impl Errand, id: String, at: Timestamp, question: Question) -> Entry {
    let Question { arguments, meta } = question;
    Entry { call: Some(id), arguments, meta, ..errand.intended(errand.entry(at, Kind::Intent)) }
}

/// The outcome: durable before the caller has the answer.
pub(super) fn outcome(errand: &impl Errand, id: String, at: Timestamp, ending: &Ending) -> Entry {
    let result = match &ending.reply {
        Reply::Result(raw) | Reply::Error(raw) => {
            Some(Payload::result(raw.as_str(), &errand.redactor(), PAYLOAD_LIMIT))
        }
        Reply::Refused(_) => None,
    };
    Entry {
        call: Some(id),
        outcome: Some(ending.outcome),
        reason: ending.reason,
        message: ending.message.clone(),
        result,
        ..errand.entry(at, Kind::Outcome)
    }
}

/// A call that was refused.
pub(super) fn refused(
    at: Timestamp,
    ground: Ground<'_>,
    (subject, tool): (&str, &str),
    refused: &Refused,
) -> Entry {
    let (attachment, generation) = refused.server.clone().unzip();
    let denied = matches!(refused.reason, Reason::Denied | Reason::UnknownTool);
    let mut entry = Entry {
        attachment,
        generation,
        tool: Some(tool.to_owned()),
        rule: refused.rule.clone(),
        outcome: denied.then_some(Outcome::Denied),
        message: (!denied).then(|| refused.answer.message.clone()),
        ..refusal(at, ground, subject, refused.reason, None)
    };
    scrub(&mut entry, ground);
    entry
}

/// A refused request.
pub(super) fn refusal(
    at: Timestamp,
    ground: Ground<'_>,
    subject: &str,
    reason: Reason,
    message: Option<&str>,
) -> Entry {
    let session = match ground {
        Ground::Session(hosted) => Some(hosted.label.clone()),
        Ground::Installation(_) => None,
    };
    let mut entry = Entry {
        subject: Some(subject.to_owned()),
        session,
        reason: Some(reason),
        message: message.map(str::to_owned),
        ..Entry::new(at, Kind::Refusal)
    };
    scrub(&mut entry, ground);
    entry
}

/// A refused request may name anything: nothing stays that is secret to any server of the Session,
/// or to the installation.
fn scrub(entry: &mut Entry, ground: Ground<'_>) {
    let mut clean = |redactor: &Redactor| {
        for text in [&mut entry.tool, &mut entry.message].into_iter().flatten() {
            *text = redactor.text(text).into_owned();
        }
    };
    match ground {
        Ground::Session(hosted) => {
            hosted.catalogs.load().redactors().for_each(|redactor| clean(&redactor))
        }
        Ground::Installation(redactor) => clean(redactor),
    }
    // last, since a value that is cut is not found any more
    entry.scrub(&Redactor::default());
}
