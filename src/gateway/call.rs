//! The one way for a call, on every route.
//!
//! ```text
//!  find in the catalog → gate → canonical arguments → place in flight
//!        → intent durable → dispatch → outcome durable → answer
//! ```
//!
//! `attached` finds and makes calls of a Session's servers, `exported` those of `/v1/mcp`, which
//! are either the same or calls of management tools. What is between their finding and their answer
//! is here, once.
//!
//! A call that began ends on record, whatever becomes of its caller: whoever runs it runs it to its
//! end. What may have run is never sent again; what the server refused before running it (its MCP
//! session was forgotten) is sent once more. Refused calls are on record too. No journal, no call.

mod attached;
mod entry;
mod exported;
mod outcome;
mod params;
mod refusal;

pub use attached::Call;
pub use exported::ExportCall;

use super::{
    hosted::Hosted,
    metrics::{GatewayMetrics, OutcomeLabel, Word},
};
use crate::{
    domain::{
        Clock,
        handover::Intended,
        reason::Reason,
        record::{Entry, Kind, Outcome},
        redact::Redactor,
    },
    journal::{Append, AppendError, Chain},
    mcp::RawJson,
};
use entry::Question;
use futures::FutureExt;
use jiff::Timestamp;
use outcome::Ending;
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// JSON-RPC: the request is not one.
pub const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC: the params cannot be used.
pub const INVALID_PARAMS: i64 = -32602;
/// JSON-RPC: it did not work.
pub const INTERNAL: i64 = -32603;

/// Our own answer in place of the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The JSON-RPC code.
    pub code: i64,
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
    /// After how many seconds it may have passed, where it passes by itself.
    pub retry_after: Option<u32>,
}

impl Refusal {
    fn new(code: i64, reason: Reason, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), retry_after: None }
    }

    /// May have passed after so many seconds.
    fn again(self, seconds: u32) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }
}

/// What the caller gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The server's `result`, as given.
    Result(RawJson),
    /// The server's `error`, as given.
    Error(RawJson),
    /// Our refusal.
    Refused(Refusal),
}

/// Where the record of a refused request stands, and what knows the secrets there.
#[derive(Clone, Copy, Debug)]
pub enum Ground<'a> {
    /// With the records of a Session.
    Session(&'a Hosted),
    /// With those of this start of the gateway, which belong to no Session.
    Installation(&'a Redactor),
}

/// Runs calls.
pub struct Calls {
    journal: Arc<dyn Append>,
    clock: Arc<dyn Clock>,
    metrics: GatewayMetrics,
    tasks: TaskTracker,
    prefix: String,
    incarnation: Chain,
    next: AtomicU64,
    cut: CancellationToken,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Calls({})", self.prefix)
    }
}

/// A call that passed every check and has its place: what its records say, and how it is made.
trait Errand: Sync {
    /// Where its records stand, and under which epoch.
    fn chain(&self) -> (&Chain, i64);

    /// What both records say.
    fn entry(&self, at: Timestamp, kind: Kind) -> Entry;

    /// What the intent says beyond that.
    fn intended(&self, entry: Entry) -> Entry;

    /// Takes what is secret out of the result. Asked when the result is there: while a call runs
    /// there may come to be more that is secret.
    fn redactor(&self) -> Arc<Redactor>;

    /// Whether nobody waits for the answer any more.
    fn abandoned(&self) -> bool;

    /// Makes the call, once.
    fn make(&self) -> impl Future<Output = Ending> + Send;
}

impl Calls {
    /// The calls of a start of a gateway. Their ids begin with its incarnation, which no other
    /// start of any gateway has.
    pub fn new(
        journal: Arc<dyn Append>,
        clock: Arc<dyn Clock>,
        metrics: GatewayMetrics,
        incarnation: String,
    ) -> Self {
        Self {
            journal,
            clock,
            metrics,
            tasks: TaskTracker::new(),
            prefix: incarnation.replace('-', ""),
            incarnation: Chain::Incarnation(incarnation),
            next: AtomicU64::new(1),
            cut: CancellationToken::new(),
        }
    }

    /// Runs a call of a Session's server to its end.
    pub async fn run(&self, call: Call) -> Reply {
        self.measured(self.attached(&call)).await
    }

    /// Runs a call of an exported tool to its end.
    pub async fn run_exported(&self, call: ExportCall) -> Reply {
        self.measured(self.exported(call)).await
    }

    /// Waits until no call runs any more. New ones must not come in.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Ends calls of management tools that still run as `OutcomeUnknown`. Those of servers end with
    /// their generation.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Puts a refused request on record that has nothing to do with a tool, such as a batch.
    pub async fn refuse_request(
        &self,
        ground: Ground<'_>,
        subject: &str,
        reason: Reason,
        message: &str,
    ) {
        let entry = entry::refusal(self.clock.now(), ground, subject, reason, Some(message));
        self.metrics.refused(reason);
        // nothing was to be sent: a journal that does not take it is counted and logged
        drop(self.record(self.place_of(ground), entry).await);
    }

    async fn measured(&self, call: impl Future<Output = Reply>) -> Reply {
        let begun = Instant::now();
        self.metrics.in_flight.inc();
        let reply = self.tasks.track_future(call).await;
        self.metrics.in_flight.dec();
        self.metrics.seconds.observe(begun.elapsed().as_secs_f64());
        reply
    }

    /// From the intent to the answer, for whatever passed.
    async fn carry_out(&self, errand: &impl Errand, question: Question) -> Reply {
        let id = format!("{}-{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed));
        let place = errand.chain();
        let intent = entry::intent(errand, id.clone(), self.clock.now(), question);
        let intended = match Intended::once(self.record(place, intent).await) {
            Ok(intended) => intended,
            Err(error) => return Reply::Refused(refusal::not_recorded(&error)),
        };
        // the record of what a server said is built of its words: inside the guard too
        let making = AssertUnwindSafe(async {
            let ending = errand.make().await;
            let ending = if errand.abandoned() { ending.without_caller() } else { ending };
            let entry = entry::outcome(errand, id.clone(), self.clock.now(), &ending);
            (ending, entry)
        });
        let (ending, entry) = making.catch_unwind().await.unwrap_or_else(|_| {
            let ending = Ending::panicked();
            let entry = entry::outcome(errand, id.clone(), self.clock.now(), &ending);
            (ending, entry)
        });
        self.count(ending.outcome);
        intended
            .answer(self.record(place, entry).await, ending.reply)
            .unwrap_or_else(|error| Reply::Refused(refusal::unrecorded(&error)))
    }

    /// Answers a call that does not pass, once that is on record.
    async fn refuse(
        &self,
        ground: Ground<'_>,
        (subject, tool): (&str, &str),
        refused: refusal::Refused,
    ) -> Reply {
        self.metrics.refused(refused.reason);
        let entry = entry::refused(self.clock.now(), ground, (subject, tool), &refused);
        match self.record(self.place_of(ground), entry).await {
            Ok(()) => Reply::Refused(refused.answer),
            Err(error) => Reply::Refused(refusal::not_recorded(&error)),
        }
    }

    fn place_of<'a>(&'a self, ground: Ground<'a>) -> (&'a Chain, i64) {
        match ground {
            Ground::Session(hosted) => (&hosted.chain, hosted.epoch),
            Ground::Installation(_) => self.own_place(),
        }
    }

    /// Where the records of management tools stand.
    fn own_place(&self) -> (&Chain, i64) {
        (&self.incarnation, 0)
    }

    async fn record(&self, (chain, epoch): (&Chain, i64), entry: Entry) -> Result<(), AppendError> {
        let result = self.journal.append(chain, epoch, entry).await;
        if let Err(error) = &result {
            self.metrics.unrecorded.inc();
            tracing::error!(%error, ?chain, "a record was not taken");
        }
        result.map(drop)
    }

    fn count(&self, outcome: Outcome) {
        let word = Word(outcome::word(outcome));
        self.metrics.calls.get_or_create(&OutcomeLabel { outcome: word }).inc();
    }
}
