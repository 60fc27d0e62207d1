//! How a call ended, from what the peer gave: the outcome on record and the answer to the caller.
//! Pure: tables over values.

use super::{INTERNAL, Refusal, Reply};
use crate::{
    domain::{reason::Reason, record::Outcome, redact::Redactor},
    mcp::{Answer, PeerError, RawJson, Sent},
};
use serde::Deserialize;

/// How a call ended.
#[derive(Debug)]
pub struct Ending {
    /// For the record.
    pub outcome: Outcome,
    /// For the record, where there is more to say.
    pub reason: Option<Reason>,
    /// For the record, scrubbed.
    pub message: Option<String>,
    /// For the caller.
    pub reply: Reply,
}

impl Ending {
    /// The server answered.
    pub fn answered(answer: Answer) -> Self {
        let (outcome, reply) = match answer {
            Answer::Error(error) => (Outcome::RpcError, Reply::Error(error)),
            Answer::Result(result) if is_error(&result) => {
                (Outcome::ToolError, Reply::Result(result))
            }
            Answer::Result(result) => (Outcome::Succeeded, Reply::Result(result)),
        };
        Self { outcome, reason: None, message: None, reply }
    }

    /// There is no answer.
    pub fn failed(error: &PeerError, redactor: &Redactor) -> Self {
        let (outcome, reason) = classify(error);
        let may_have_run = match outcome {
            Outcome::TransportError | Outcome::Cancelled => "",
            _ => "; it may have run and is not sent again",
        };
        Self::refused((outcome, reason), &format!("{error}{may_have_run}"), redactor)
    }

    /// There is no answer but ours.
    pub fn refused(
        (outcome, reason): (Outcome, Reason),
        message: &str,
        redactor: &Redactor,
    ) -> Self {
        let message = redactor.text(message).into_owned();
        let refusal = Refusal::new(INTERNAL, reason, message.clone());
        Self {
            outcome,
            reason: Some(reason),
            message: Some(message),
            reply: Reply::Refused(refusal),
        }
    }

    /// Our own code failed after sending.
    pub fn panicked() -> Self {
        let message =
            "the gateway failed while the call ran; it may have run and is not sent again";
        let unknown = (Outcome::OutcomeUnknown, Reason::OutcomeUnknown);
        Self::refused(unknown, message, &Redactor::default())
    }

    /// The same for a caller who went away before the answer: what is known stays in the record.
    pub fn without_caller(self) -> Self {
        match self.outcome {
            Outcome::Succeeded | Outcome::ToolError | Outcome::RpcError => {
                Self { outcome: Outcome::ClientGone, ..self }
            }
            _ => self,
        }
    }
}

fn classify(error: &PeerError) -> (Outcome, Reason) {
    match error {
        PeerError::Connection { sent: Sent::No, .. } | PeerError::Exited { sent: Sent::No, .. } => {
            (Outcome::TransportError, Reason::ServerUnreachable)
        }
        PeerError::Status { status: 401 | 403, .. } => {
            (Outcome::TransportError, Reason::Unauthorized)
        }
        PeerError::Status { status: 300..=499, .. } => {
            (Outcome::TransportError, Reason::ServerUnreachable)
        }
        PeerError::TooLarge { sent: Sent::No, .. } => {
            (Outcome::TransportError, Reason::MessageTooLarge)
        }
        PeerError::TooLarge { sent: Sent::Maybe, .. } => {
            (Outcome::OutcomeUnknown, Reason::MessageTooLarge)
        }
        PeerError::TimedOut(_) => (Outcome::TimedOut, Reason::CallTimeout),
        PeerError::Cancelled => (Outcome::Cancelled, Reason::Cancelled),
        PeerError::Connection { .. }
        | PeerError::Exited { .. }
        | PeerError::Status { .. }
        | PeerError::NotMcp(_) => (Outcome::OutcomeUnknown, Reason::OutcomeUnknown),
    }
}

/// Whether a result says of itself that the tool failed.
fn is_error(result: &RawJson) -> bool {
    #[derive(Deserialize)]
    struct Flag {
        #[serde(default, rename = "isError")]
        is_error: Option<bool>,
    }
    // most results do not have the member at all, and a search is cheaper than a parse
    result.as_str().contains("isError")
        && serde_json::from_str::<Flag>(result.as_str()).is_ok_and(|f| f.is_error == Some(true))
}

/// The outcome as a metric's label.
pub fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "Succeeded",
        Outcome::ToolError => "ToolError",
        Outcome::RpcError => "RpcError",
        Outcome::TransportError => "TransportError",
        Outcome::Denied => "Denied",
        Outcome::Cancelled => "Cancelled",
        Outcome::TimedOut => "TimedOut",
        Outcome::ClientGone => "ClientGone",
        Outcome::ApprovalRefused => "ApprovalRefused",
        Outcome::ApprovalExpired => "ApprovalExpired",
        Outcome::OutcomeUnknown => "OutcomeUnknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::{ConnectionFailure, Exit};
    use bytes::Bytes;
    use rstest::rstest;
    use std::time::Duration;

    fn connection(sent: Sent) -> PeerError {
        PeerError::Connection {
            sent,
            kind: ConnectionFailure::Unreachable,
            message: "reset".to_owned(),
        }
    }

    fn status(status: u16) -> PeerError {
        PeerError::Status { status, body: String::new() }
    }

    fn too_large(sent: Sent) -> PeerError {
        PeerError::TooLarge { sent, limit: 9 }
    }

    fn exited(sent: Sent) -> PeerError {
        PeerError::Exited { sent, exit: Exit { code: Some(1), ..Exit::default() } }
    }

    #[rstest]
    #[case(connection(Sent::No), Outcome::TransportError, Reason::ServerUnreachable)]
    #[case(connection(Sent::Maybe), Outcome::OutcomeUnknown, Reason::OutcomeUnknown)]
    #[case(exited(Sent::No), Outcome::TransportError, Reason::ServerUnreachable)]
    #[case(exited(Sent::Maybe), Outcome::OutcomeUnknown, Reason::OutcomeUnknown)]
    #[case(status(401), Outcome::TransportError, Reason::Unauthorized)]
    #[case(status(403), Outcome::TransportError, Reason::Unauthorized)]
    #[case(status(307), Outcome::TransportError, Reason::ServerUnreachable)]
    #[case(status(429), Outcome::TransportError, Reason::ServerUnreachable)]
    #[case(status(502), Outcome::OutcomeUnknown, Reason::OutcomeUnknown)]
    #[case(too_large(Sent::No), Outcome::TransportError, Reason::MessageTooLarge)]
    #[case(too_large(Sent::Maybe), Outcome::OutcomeUnknown, Reason::MessageTooLarge)]
    #[case(PeerError::TimedOut(Duration::from_secs(2)), Outcome::TimedOut, Reason::CallTimeout)]
    #[case(PeerError::Cancelled, Outcome::Cancelled, Reason::Cancelled)]
    #[case(PeerError::NotMcp("x".into()), Outcome::OutcomeUnknown, Reason::OutcomeUnknown)]
    fn failures(#[case] error: PeerError, #[case] outcome: Outcome, #[case] reason: Reason) {
        assert_eq!(classify(&error), (outcome, reason));
    }

    fn raw(text: &str) -> RawJson {
        RawJson::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[rstest]
    #[case(r#"{"content":[],"isError":true}"#, Outcome::ToolError)]
    #[case(r#"{"content":[],"isError":false}"#, Outcome::Succeeded)]
    #[case(r#"{"content":[{"text":"isError\":true"}]}"#, Outcome::Succeeded)]
    #[case(r#"{"structuredContent":{"isError":true}}"#, Outcome::Succeeded)]
    #[case(r#"{"isError":null}"#, Outcome::Succeeded)]
    #[case("{}", Outcome::Succeeded)]
    fn results(#[case] result: &str, #[case] outcome: Outcome) {
        let ending = Ending::answered(Answer::Result(raw(result)));
        assert_eq!(ending.outcome, outcome);
        assert_eq!(ending.reply, Reply::Result(raw(result)), "the bytes pass unchanged");
    }
}
