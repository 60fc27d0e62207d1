//! Calls that do not pass, and calls whose record was not taken: what the record says, and what
//! the caller is told. Pure.

use super::{INTERNAL, INVALID_PARAMS, Refusal};
use crate::{
    domain::{canonical::JsonProblem, reason::Reason, redact::Redactor},
    gateway::{
        answer::RETRY_SECONDS,
        catalog::{Expected, Found},
    },
    journal::AppendError,
};
use jiff::Timestamp;

/// A call that does not pass.
pub struct Refused {
    /// For the record.
    pub reason: Reason,
    /// The rule that denied it.
    pub rule: Option<String>,
    /// Attachment and generation, where the name led to one.
    pub server: Option<(String, i64)>,
    /// For the caller.
    pub answer: Refusal,
}

impl Refused {
    /// The same for record and caller.
    pub fn new(answer: Refusal) -> Self {
        Self { reason: answer.reason, rule: None, server: None, answer }
    }

    /// Without what the redactor knows, in the record and in the answer: what a caller sent may come
    /// back in a message.
    pub fn without(mut self, redactor: &Redactor) -> Self {
        let message = &mut self.answer.message;
        *message = redactor.text(message).into_owned();
        self
    }

    fn about(found: &Found<'_>, answer: Refusal) -> Self {
        let handle = &found.server.handle;
        let server = Some((handle.attachment.clone(), handle.generation));
        Self { server, ..Self::new(answer) }
    }

    /// There is no such tool.
    pub fn unknown(shown: &str) -> Self {
        Self::new(unknown(shown))
    }

    /// On record as denied; to the caller the same as unknown.
    pub fn denied(shown: &str, found: Option<&Found<'_>>, rule: String) -> Self {
        let refused = match found {
            Some(found) => Self::about(found, unknown(shown)),
            None => Self::unknown(shown),
        };
        Self { reason: Reason::Denied, rule: Some(rule), ..refused }
    }

    /// Its server is not in service yet, or again, and comes.
    pub fn coming(expected: &Expected<'_>, shown: &str, now: Timestamp) -> Self {
        let coming = expected.coming;
        let server = Some((coming.attachment.clone(), coming.generation));
        Self { server, ..Self::new(away(coming.next_try, shown, now)) }
    }

    /// Its server is not in service, and nothing is under way that would bring it there.
    pub fn out_of_service(shown: &str) -> Self {
        let message = format!(
            "{}: its server is not in service, and does not come by itself; the McpAttachment tells \
             why",
            short(shown)
        );
        Self::new(Refusal::new(INTERNAL, Reason::NotServing, message))
    }

    /// Its generation takes no call and has no successor here.
    pub fn leaving(session: &str) -> Self {
        let message = format!("{session} is not served here any more");
        Self::new(Refusal::new(INTERNAL, Reason::NotServing, message).again(RETRY_SECONDS))
    }

    /// As many calls of its server as allowed are in flight.
    pub fn full(found: &Found<'_>) -> Self {
        let limit = found.server.handle.limits.max_concurrent_calls;
        Self::about(found, too_many(limit))
    }

    /// As many calls of management tools as allowed are in flight.
    pub fn crowded(limit: usize) -> Self {
        Self::new(too_many(limit as i64))
    }

    /// The arguments of a server's tool cannot be used.
    pub fn arguments(found: &Found<'_>, problem: &JsonProblem) -> Self {
        Self::about(found, unusable(problem))
    }

    /// The arguments of a management tool cannot be used.
    pub fn arguments_of_ours(problem: &JsonProblem) -> Self {
        Self::new(unusable(problem))
    }
}

/// Its server is not in service at the moment, and comes; after a failure not before `next_try`.
pub fn away(next_try: Option<Timestamp>, tool: &str, now: Timestamp) -> Refusal {
    let wait = next_try.map_or(0, |at| at.as_second().saturating_sub(now.as_second()));
    let seconds = u32::try_from(wait).unwrap_or(0).max(RETRY_SECONDS);
    let mut message = format!("{}: its server is not in service at the moment", short(tool));
    if seconds > RETRY_SECONDS {
        message += &format!("; it failed, and the next try is in {seconds} s");
    }
    Refusal::new(INTERNAL, Reason::Rescheduling, message).again(seconds)
}

fn too_many(limit: i64) -> Refusal {
    let message = format!("{limit} calls are in flight, as many as allowed");
    Refusal::new(INTERNAL, Reason::TooManyCalls, message)
}

fn unusable(problem: &JsonProblem) -> Refusal {
    let reason = match problem {
        JsonProblem::RepeatedKey { .. } => Reason::RepeatedKey,
        _ => Reason::InvalidArguments,
    };
    Refusal::new(INVALID_PARAMS, reason, problem.to_string())
}

/// The same words for a tool that is not there and for one that is denied.
fn unknown(tool: &str) -> Refusal {
    Refusal::new(INVALID_PARAMS, Reason::UnknownTool, format!("Unknown tool: {}", short(tool)))
}

fn short(tool: &str) -> String {
    tool.chars().take(128).collect()
}

/// Nothing was sent, since it could not be recorded.
pub fn not_recorded(error: &AppendError) -> Refusal {
    match error {
        AppendError::Fenced { .. } => Refusal::new(
            INTERNAL,
            Reason::NotServing,
            "another gateway serves the Session now; nothing was sent",
        )
        .again(RETRY_SECONDS),
        _ => Refusal::new(
            INTERNAL,
            Reason::JournalUnavailable,
            "the journal cannot take the record, so nothing was sent",
        ),
    }
}

/// It was sent and has an end that could not be recorded: the end is not told either.
pub fn unrecorded(error: &AppendError) -> Refusal {
    let why = match error {
        AppendError::Fenced { .. } | AppendError::AlreadyEnded => {
            "another gateway took the Session over while the call ran"
        }
        _ => "the journal did not take the record of how the call ended",
    };
    let message = format!("{why}; the call may have run and is not sent again");
    Refusal::new(INTERNAL, Reason::OutcomeUnknown, message)
}
