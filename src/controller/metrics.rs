//! What the operator counts of its own work.

use crate::{domain::lifecycle::Mismatch, process::metrics::Metrics};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
};
use std::time::Duration;

/// Counters of the operator; cheap to clone.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    reconciles: Family<ResultLabel, Counter>,
    seconds: Histogram,
    writes: Family<WriteLabel, Counter>,
    ignored: Family<MismatchLabel, Counter>,
    unreadable: Family<KindLabel, Counter>,
    events_dropped: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WriteLabel {
    kind: String,
    verb: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MismatchLabel {
    mismatch: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

impl ControllerMetrics {
    /// Registers the counters.
    pub fn new(metrics: &Metrics) -> Self {
        const BOUNDS: [f64; 8] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0];
        Self {
            reconciles: metrics.register(
                "operator_reconciles",
                "Reconciles by result: done, wait, failed",
                Family::default(),
            ),
            seconds: metrics.register(
                "operator_reconcile_seconds",
                "Duration of a reconcile in seconds",
                Histogram::new(BOUNDS),
            ),
            writes: metrics.register(
                "operator_api_writes",
                "Writes to the API server by kind and verb",
                Family::default(),
            ),
            ignored: metrics.register(
                "operator_receipts_ignored",
                "Receipts that did not match the present stage, by what did not match",
                Family::default(),
            ),
            unreadable: metrics.register(
                "operator_unreadable_objects",
                "Objects that could not be read, by kind",
                Family::default(),
            ),
            events_dropped: metrics.register(
                "operator_events_dropped",
                "Kubernetes events that were not written because too many were waiting",
                Counter::default(),
            ),
        }
    }

    /// A reconcile ended.
    pub fn reconciled(&self, result: &'static str, took: Duration) {
        self.reconciles.get_or_create(&ResultLabel { result }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// A write was sent.
    pub fn wrote(&self, kind: &str, verb: &'static str) {
        self.writes.get_or_create(&WriteLabel { kind: kind.to_owned(), verb }).inc();
    }

    /// A receipt did not count.
    pub fn ignored(&self, mismatch: Mismatch) {
        self.ignored.get_or_create(&MismatchLabel { mismatch: format!("{mismatch:?}") }).inc();
    }

    /// An object could not be read.
    pub fn unreadable(&self, kind: &str) {
        self.unreadable.get_or_create(&KindLabel { kind: kind.to_owned() }).inc();
    }

    /// An event was dropped.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }
}
