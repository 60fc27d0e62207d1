//! What a server wrote to stdout that is no protocol message: told once for a generation, and with
//! the failure of a server that is not proven.

use super::realize::{Failure, Note};
use crate::{
    domain::{reason::Reason, redact::Redactor},
    mcp::{EventSink, PeerEvent},
};
use std::sync::{Arc, Mutex, PoisonError};

/// What is shown of a line, in characters.
const SAMPLE: usize = 120;

/// How many lines, and one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noise {
    /// How many so far.
    pub count: u64,
    /// One of them.
    pub sample: String,
}

impl Noise {
    /// For people, without what is secret.
    fn text(&self, redactor: &Redactor) -> String {
        let sample: String = redactor.text(&self.sample).chars().take(SAMPLE).collect();
        let lines = if self.count == 1 { "1 line" } else { &format!("{} lines", self.count) };
        format!("{lines} on stdout, no protocol messages, for example: {sample}")
    }

    /// For an event.
    pub fn note(&self, redactor: &Redactor) -> Note {
        Note { reason: Reason::ProtocolNoise, message: self.text(redactor) }
    }

    /// The failure of the server that wrote it.
    pub fn explain(self, failure: Failure, redactor: &Redactor) -> Failure {
        let message = format!("{}; {}", failure.message, self.text(redactor));
        Failure::new(failure.reason, message)
    }
}

/// The newest noise of one server, heard on the way to whoever else hears it.
#[derive(Clone, Debug, Default)]
pub struct Heard(Arc<Mutex<Option<Noise>>>);

impl Heard {
    /// Keeps the noise.
    pub fn keep(&self, count: u64, sample: String) {
        let noise = Noise { count, sample };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(noise);
    }

    /// What was heard last.
    pub fn latest(&self) -> Option<Noise> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A sink that keeps noise and passes everything on.
    pub fn before(&self, next: EventSink) -> EventSink {
        let heard = self.clone();
        Arc::new(move |event| {
            if let PeerEvent::Noise { count, sample } = &event {
                heard.keep(*count, sample.clone());
            }
            next(event);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_tells_of_the_noise_without_secrets() {
        let passed = Arc::new(Mutex::new(0));
        let counter = passed.clone();
        let heard = Heard::default();
        let sink = heard.before(Arc::new(move |_| *counter.lock().unwrap() += 1));
        assert_eq!(heard.latest(), None);
        for count in 1..=7 {
            sink(PeerEvent::Noise { count, sample: format!("key=s3cr3t {}", "x".repeat(500)) });
        }
        sink(PeerEvent::StrayAnswer);
        let redactor = Redactor::new(["s3cr3t"]);
        let failure = Failure::new(Reason::HandshakeTimeout, "initialize: no answer");
        let told = heard.latest().unwrap().explain(failure, &redactor);
        assert_eq!(told.reason, Reason::HandshakeTimeout);
        let begin = "initialize: no answer; 7 lines on stdout, no protocol messages, for example: key=[redacted] xx";
        assert!(told.message.starts_with(begin) && told.message.len() < 250, "{told}");
        assert_eq!(*passed.lock().unwrap(), 8);
    }
}
