//! The one way for a call, on every route.
//!
//! ```text
//!  find in the catalog → gate → canonical arguments → place in flight
//!        → intent durable → dispatch → outcome durable → answer
//! ```
//!
//! A call that began ends on record, whatever becomes of its caller: whoever runs it runs it to its
//! end. What may have run is never sent again; what the server refused before running it (its MCP
//! session was forgotten) is sent once more. Refused calls are on record too. No journal, no call.

mod entry;
mod outcome;
mod params;

use super::{
    catalog::Catalog,
    handle::{Handle, NoPlace, Tool},
    hosted::Hosted,
    metrics::{GatewayMetrics, OutcomeLabel, Word},
};
use crate::{
    domain::{
        Clock,
        canonical::JsonProblem,
        gate::{self, Permit},
        reason::Reason,
        record::{Entry, Outcome},
    },
    journal::{Append, AppendError, Chain},
    mcp::{Answer, ConnectionFailure, Outgoing, Peer, PeerError, RawJson, Sent},
};
use entry::{Begun, Question};
use futures::FutureExt;
use outcome::Ending;
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// JSON-RPC: the request is not one.
pub const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC: the params cannot be used.
pub const INVALID_PARAMS: i64 = -32602;
/// JSON-RPC: it did not work.
pub const INTERNAL: i64 = -32603;

/// A call as the caller sent it.
#[derive(Debug)]
pub struct Call {
    /// The Session.
    pub hosted: Arc<Hosted>,
    /// The server, on an endpoint of one server.
    pub server: Option<Arc<str>>,
    /// User name of the caller.
    pub subject: Arc<str>,
    /// The tool as the caller named it.
    pub tool: String,
    /// The arguments, raw.
    pub arguments: Option<RawJson>,
    /// The whole params, raw.
    pub params: RawJson,
    /// Cancelled when the caller cancels.
    pub cancel: CancellationToken,
    /// Cancelled when the caller no longer waits. The call goes on.
    pub gone: CancellationToken,
}

/// Our own answer in place of the server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The JSON-RPC code.
    pub code: i64,
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
}

impl Refusal {
    fn new(code: i64, reason: Reason, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
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

/// Runs calls.
pub struct Calls {
    journal: Arc<dyn Append>,
    clock: Arc<dyn Clock>,
    metrics: GatewayMetrics,
    tasks: TaskTracker,
    prefix: String,
    next: AtomicU64,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Calls({})", self.prefix)
    }
}

/// What passed every check and has a place.
struct Admitted {
    handle: Arc<Handle>,
    tool: Arc<Tool>,
    permit: Permit,
    place: OwnedSemaphorePermit,
}

impl Calls {
    /// Calls are numbered under the prefix, which no other start of any gateway has.
    pub fn new(
        journal: Arc<dyn Append>,
        clock: Arc<dyn Clock>,
        metrics: GatewayMetrics,
        prefix: String,
    ) -> Self {
        let tasks = TaskTracker::new();
        Self { journal, clock, metrics, tasks, prefix, next: AtomicU64::new(1) }
    }

    /// Runs a call to its end.
    pub async fn run(&self, call: Call) -> Reply {
        let begun = Instant::now();
        self.metrics.in_flight.inc();
        let reply = self.tasks.track_future(self.whole(call)).await;
        self.metrics.in_flight.dec();
        self.metrics.seconds.observe(begun.elapsed().as_secs_f64());
        reply
    }

    /// Waits until no call runs any more. New ones must not come in.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn whole(&self, call: Call) -> Reply {
        match self.admit(&call) {
            Ok((admitted, question)) => self.dispatch(&call, admitted, question).await,
            Err(refused) => self.refuse(&call, refused).await,
        }
    }

    /// Every check, none of which waits.
    fn admit(&self, call: &Call) -> Result<(Admitted, Question), Refused> {
        // a draining generation left the catalog before it began to refuse: look again
        for _ in 0..3 {
            let catalog: Arc<Catalog> = call.hosted.catalogs.load();
            let found = catalog
                .find(call.server.as_deref(), &call.tool)
                .ok_or_else(|| Refused::unknown(&call.tool))?;
            let permit = gate::pass(found.server.policy.as_deref(), &found.tool.name)
                .map_err(|rule| Refused::denied(&call.tool, &found, rule))?;
            let question = Question::read(call.arguments.as_ref(), &found.server.handle.redactor)
                .map_err(|problem| Refused::arguments(&found, &problem))?;
            match found.server.handle.admit() {
                Ok(place) => {
                    let handle = found.server.handle.clone();
                    let tool = found.tool.clone();
                    return Ok((Admitted { handle, tool, permit, place }, question));
                }
                Err(NoPlace::Full) => return Err(Refused::full(&found)),
                Err(NoPlace::Draining) => {}
            }
        }
        Err(Refused::leaving(call))
    }

    async fn dispatch(&self, call: &Call, admitted: Admitted, question: Question) -> Reply {
        let Admitted { handle, tool, permit, place } = admitted;
        let id = format!("{}-{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed));
        let begun = Begun { id, call, handle: &handle, tool: &tool, permit: &permit };
        let params = params::toward_server(permit.tool(), call.arguments.as_ref(), &call.params);
        let intent = begun.intent(self.clock.now(), question);
        if let Err(error) = self.record(&call.hosted.chain, call.hosted.epoch, intent).await {
            return Reply::Refused(self.not_recorded(&error));
        }
        let sending = AssertUnwindSafe(self.send(call, &handle, params)).catch_unwind();
        let ending = sending.await.unwrap_or_else(|_| Ending::panicked());
        let ending = if call.gone.is_cancelled() { ending.without_caller() } else { ending };
        let entry = begun.outcome(self.clock.now(), &ending);
        self.count(ending.outcome);
        let recorded = self.record(&call.hosted.chain, call.hosted.epoch, entry).await;
        drop(place);
        match recorded {
            Ok(()) => ending.reply,
            Err(error) => Reply::Refused(self.unrecorded(&error)),
        }
    }

    async fn send(&self, call: &Call, handle: &Handle, params: RawJson) -> Ending {
        if call.cancel.is_cancelled() {
            return Ending::failed(&PeerError::Cancelled, handle);
        }
        let peer = handle.peer();
        let mut answer = ask(call, handle, &*peer, params.clone()).await;
        // refused before it ran, since the server forgot the MCP session: once more
        if let Err(PeerError::Connection {
            sent: Sent::No,
            kind: ConnectionFailure::SessionLost,
            ..
        }) = &answer
            && let Some(fresh) = handle.renewed(&peer).await
        {
            answer = ask(call, handle, &*fresh, params).await;
        }
        answer.map_or_else(|error| Ending::failed(&error, handle), Ending::answered)
    }

    /// Puts a refused request on record that has nothing to do with a tool, such as a batch.
    pub async fn refuse_request(
        &self,
        hosted: &Hosted,
        subject: &str,
        reason: Reason,
        message: &str,
    ) {
        let entry = entry::refusal(self.clock.now(), hosted, subject, reason, Some(message));
        self.metrics.refused(reason);
        // nothing was to be sent: a journal that does not take it is counted and logged
        drop(self.record(&hosted.chain, hosted.epoch, entry).await);
    }

    async fn refuse(&self, call: &Call, refused: Refused) -> Reply {
        self.metrics.refused(refused.reason);
        let entry = entry::refused(self.clock.now(), call, &refused);
        match self.record(&call.hosted.chain, call.hosted.epoch, entry).await {
            Ok(()) => Reply::Refused(refused.answer),
            Err(error) => Reply::Refused(self.not_recorded(&error)),
        }
    }

    async fn record(&self, chain: &Chain, epoch: i64, entry: Entry) -> Result<(), AppendError> {
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

    /// Nothing was sent, since it could not be recorded.
    fn not_recorded(&self, error: &AppendError) -> Refusal {
        match error {
            AppendError::Fenced { .. } => Refusal::new(
                INTERNAL,
                Reason::NotServing,
                "another gateway serves the Session now; nothing was sent",
            ),
            _ => Refusal::new(
                INTERNAL,
                Reason::JournalUnavailable,
                "the journal cannot take the record, so nothing was sent",
            ),
        }
    }

    /// It was sent and has an end that could not be recorded: the end is not told either.
    fn unrecorded(&self, error: &AppendError) -> Refusal {
        let why = match error {
            AppendError::Fenced { .. } | AppendError::AlreadyEnded => {
                "another gateway took the Session over while the call ran"
            }
            _ => "the journal did not take the record of how the call ended",
        };
        Refusal::new(
            INTERNAL,
            Reason::OutcomeUnknown,
            format!("{why}; the call may have run and is not sent again"),
        )
    }
}

async fn ask(
    call: &Call,
    handle: &Handle,
    peer: &dyn Peer,
    params: RawJson,
) -> Result<Answer, PeerError> {
    let request = Outgoing {
        method: "tools/call",
        params: Some(params),
        timeout: handle.call_timeout(),
        cancel: call.cancel.clone(),
    };
    tokio::select! {
        biased;
        answer = peer.request(request) => answer,
        () = handle.cut().cancelled() => Err(PeerError::Connection {
            sent: Sent::Maybe,
            kind: ConnectionFailure::Unreachable,
            message: "the server was taken out of service while the call ran".to_owned(),
        }),
    }
}

/// A call that does not pass.
pub(super) struct Refused {
    reason: Reason,
    rule: Option<String>,
    server: Option<(String, i64)>,
    answer: Refusal,
}

impl Refused {
    fn about(found: &super::catalog::Found<'_>, answer: Refusal) -> Self {
        let handle = &found.server.handle;
        let server = Some((handle.attachment.clone(), handle.generation));
        Self { reason: answer.reason, rule: None, server, answer }
    }

    fn unknown(tool: &str) -> Self {
        Self { reason: Reason::UnknownTool, rule: None, server: None, answer: unknown(tool) }
    }

    /// On record as denied; to the caller the same as unknown.
    fn denied(tool: &str, found: &super::catalog::Found<'_>, rule: String) -> Self {
        let refused = Self::about(found, unknown(tool));
        Self { reason: Reason::Denied, rule: Some(rule), ..refused }
    }

    /// Its generation takes no call and has no successor here.
    fn leaving(call: &Call) -> Self {
        let message = format!("{} is not served here any more", call.hosted.label);
        let answer = Refusal::new(INTERNAL, Reason::NotServing, message);
        Self { reason: answer.reason, rule: None, server: None, answer }
    }

    fn full(found: &super::catalog::Found<'_>) -> Self {
        let limit = found.server.handle.limits.max_concurrent_calls;
        let message = format!("{limit} calls are in flight, as many as allowed");
        Self::about(found, Refusal::new(INTERNAL, Reason::TooManyCalls, message))
    }

    fn arguments(found: &super::catalog::Found<'_>, problem: &JsonProblem) -> Self {
        let reason = match problem {
            JsonProblem::RepeatedKey { .. } => Reason::RepeatedKey,
            _ => Reason::InvalidArguments,
        };
        Self::about(found, Refusal::new(INVALID_PARAMS, reason, problem.to_string()))
    }
}

/// The same words for a tool that is not there and for one that is denied.
fn unknown(tool: &str) -> Refusal {
    let shown: String = tool.chars().take(128).collect();
    Refusal::new(INVALID_PARAMS, Reason::UnknownTool, format!("Unknown tool: {shown}"))
}
