//! What the gateway counts. Labels are words of closed lists; no names of users or tools.

use crate::{
    domain::reason::Reason,
    process::{listen::Meter, metrics::Metrics},
};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};
use std::fmt::Write as _;

/// A word of a closed list as a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Word(pub &'static str);

impl EncodeLabelValue for Word {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.0)
    }
}

/// The label of call outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// How the call ended.
    pub outcome: Word,
}

/// The label of things that have a reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    /// Why.
    pub reason: Word,
}

/// The gateway's metrics.
#[derive(Clone, Debug)]
pub struct GatewayMetrics {
    /// Calls that ended, by outcome.
    pub calls: Family<OutcomeLabel, Counter>,
    /// Requests that were refused, by reason.
    pub refusals: Family<ReasonLabel, Counter>,
    /// From request to answer, in seconds.
    pub seconds: Histogram,
    /// Calls in flight.
    pub in_flight: Gauge,
    /// Records that the journal did not take.
    pub unrecorded: Counter,
    /// Generations that did not come up or were lost, by reason.
    pub generation_failures: Family<ReasonLabel, Counter>,
    /// Sessions that are served here.
    pub sessions: Gauge,
    /// Receipts that were written.
    pub receipts: Counter,
    /// Objects that cannot be read.
    pub unreadable: Gauge,
    /// Connections of clients.
    pub clients: Meter,
}

impl GatewayMetrics {
    /// Registers all of them.
    pub fn new(metrics: &Metrics) -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.000_25, 2.0, 18));
        let new = metrics;
        Self {
            calls: new.register("gateway_calls", "Calls that ended, by outcome", Family::default()),
            refusals: new.register(
                "gateway_refusals",
                "Refused requests, by reason",
                Family::default(),
            ),
            seconds: new.register("gateway_call_seconds", "From request to answer", seconds()),
            in_flight: new.register("gateway_calls_in_flight", "Calls in flight", Gauge::default()),
            unrecorded: new.register(
                "gateway_unrecorded",
                "Records that the journal did not take",
                Counter::default(),
            ),
            generation_failures: new.register(
                "gateway_generation_failures",
                "Generations that failed or were lost, by reason",
                Family::default(),
            ),
            sessions: new.register("gateway_sessions", "Sessions served here", Gauge::default()),
            receipts: new.register(
                "gateway_receipt_writes",
                "Writes of receipts",
                Counter::default(),
            ),
            unreadable: new.register(
                "gateway_unreadable_objects",
                "Objects that cannot be read at present",
                Gauge::default(),
            ),
            clients: Meter {
                open: new.register(
                    "gateway_connections",
                    "Connections of clients",
                    Gauge::default(),
                ),
                refused: new.register(
                    "gateway_connections_refused",
                    "Connections closed at once because there were too many",
                    Counter::default(),
                ),
            },
        }
    }

    /// Counts a refused request.
    pub fn refused(&self, reason: Reason) {
        self.refusals.get_or_create(&ReasonLabel { reason: Word(reason.as_str()) }).inc();
    }

    /// Counts a generation that failed or was lost.
    pub fn generation_failed(&self, reason: Reason) {
        let label = ReasonLabel { reason: Word(reason.as_str()) };
        self.generation_failures.get_or_create(&label).inc();
    }
}
