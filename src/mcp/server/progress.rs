//! Progress of one call, from the one that works to the client that asked for it.
//!
//! Knows no stream: a [`ProgressSink`] is told, and whoever made it sends.

use std::{fmt, sync::Arc};

/// How far a call is.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressReport {
    /// How far, in a unit of the tool's choice.
    pub progress: f64,
    /// Of how much, where that is known.
    pub total: Option<f64>,
    /// For people.
    pub message: String,
}

/// Takes reports of one call. Cheap to clone; never blocks.
#[derive(Clone)]
pub struct ProgressSink(Arc<dyn Fn(ProgressReport) + Send + Sync>);

impl fmt::Debug for ProgressSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressSink")
    }
}

impl ProgressSink {
    /// Hands each report to `tell`, which must not block.
    pub fn new(tell: impl Fn(ProgressReport) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Reports. A value that is not above the one before is not sent on, nor is each of many in a
    /// short time: the last one wins.
    pub fn report(&self, progress: f64, total: Option<f64>, message: &str) {
        (self.0)(ProgressReport { progress, total, message: message.to_owned() });
    }
}
