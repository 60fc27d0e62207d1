//! The records of a call. Only what was redacted goes in; pieces beyond the limit are digest and
//! size alone.

use super::{Call, Refused, Reply, outcome::Ending};
use crate::{
    domain::{
        canonical::JsonProblem,
        gate::Permit,
        reason::Reason,
        record::{Entry, Kind, Outcome, PAYLOAD_LIMIT, Payload},
        redact::Redactor,
    },
    gateway::{
        handle::{Handle, Tool},
        hosted::Hosted,
    },
    mcp::RawJson,
};
use jiff::Timestamp;

/// The arguments as they stand in the record.
pub struct Question(Option<Payload>);

impl Question {
    /// Reads the arguments once: canonical form, digest, redaction.
    ///
    /// # Errors
    /// A key that stands twice, or nesting without end.
    pub fn read(arguments: Option<&RawJson>, redactor: &Redactor) -> Result<Self, JsonProblem> {
        let Some(arguments) = arguments else { return Ok(Self(None)) };
        Payload::arguments(arguments.as_str(), redactor, PAYLOAD_LIMIT).map(|p| Self(Some(p)))
    }
}

/// A call that passed every check.
pub struct Begun<'a> {
    /// Joins intent and outcome.
    pub id: String,
    /// As the caller sent it.
    pub call: &'a Call,
    /// The generation.
    pub handle: &'a Handle,
    /// The tool.
    pub tool: &'a Tool,
    /// The gate's.
    pub permit: &'a Permit,
}

impl Begun<'_> {
    /// The intent: durable before anything is sent.
    pub fn intent(&self, at: Timestamp, question: Question) -> Entry {
        Entry {
            target: Some(self.handle.target.clone()),
            credential: self.handle.credential.clone(),
            descriptor: Some(self.tool.digest.clone()),
            rule: Some(self.permit.rule().to_owned()),
            arguments: question.0,
            ..self.entry(at, Kind::Intent)
        }
    }

    /// The outcome: durable before the caller has the answer.
    pub fn outcome(&self, at: Timestamp, ending: &Ending) -> Entry {
        let result = match &ending.reply {
            Reply::Result(raw) | Reply::Error(raw) => {
                Some(Payload::result(raw.as_str(), &self.handle.redactor, PAYLOAD_LIMIT))
            }
            Reply::Refused(_) => None,
        };
        Entry {
            outcome: Some(ending.outcome),
            reason: ending.reason,
            message: ending.message.clone(),
            result,
            ..self.entry(at, Kind::Outcome)
        }
    }

    fn entry(&self, at: Timestamp, kind: Kind) -> Entry {
        Entry {
            call: Some(self.id.clone()),
            subject: Some(self.call.subject.as_ref().to_owned()),
            session: Some(self.call.hosted.label.clone()),
            attachment: Some(self.handle.attachment.clone()),
            generation: Some(self.handle.generation),
            tool: Some(self.permit.tool().to_owned()),
            ..Entry::new(at, kind)
        }
    }
}

/// A call that was refused.
pub(super) fn refused(at: Timestamp, call: &Call, refused: &Refused) -> Entry {
    let (attachment, generation) = refused.server.clone().unzip();
    let denied = matches!(refused.reason, Reason::Denied | Reason::UnknownTool);
    let mut entry = Entry {
        attachment,
        generation,
        tool: Some(call.tool.clone()),
        rule: refused.rule.clone(),
        outcome: denied.then_some(Outcome::Denied),
        message: (!denied).then(|| refused.answer.message.clone()),
        ..refusal(at, &call.hosted, &call.subject, refused.reason, None)
    };
    scrub(&mut entry, &call.hosted);
    entry
}

/// A refused request.
pub fn refusal(
    at: Timestamp,
    hosted: &Hosted,
    subject: &str,
    reason: Reason,
    message: Option<&str>,
) -> Entry {
    let mut entry = Entry {
        subject: Some(subject.to_owned()),
        session: Some(hosted.label.clone()),
        reason: Some(reason),
        message: message.map(str::to_owned),
        ..Entry::new(at, Kind::Refusal)
    };
    scrub(&mut entry, hosted);
    entry
}

/// A refused request may name anything: nothing that is secret to any server of the Session stays.
fn scrub(entry: &mut Entry, hosted: &Hosted) {
    for redactor in hosted.catalogs.load().redactors() {
        for text in [&mut entry.tool, &mut entry.message].into_iter().flatten() {
            *text = redactor.text(text).into_owned();
        }
    }
    // last, since a value that is cut is not found any more
    entry.scrub(&Redactor::default());
}
