//! Brings one generation up: connect, initialize, list the tools; again with growing delay as
//! long as the cause may pass. Decides nothing about the catalog.

use crate::{
    domain::{
        lifecycle::{Evidence, Generation},
        reason::{Class, Reason},
        redact::Redactor,
    },
    gateway::{handle::Surface, index::SessionView},
    mcp::{EventSink, Peer},
};
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How much earlier than the operator's deadline a try is told; a tenth of the startup timeout, if
/// that is less.
const EARLIER: Duration = Duration::from_secs(2);
/// How much longer than it may an attempt is left to end by itself.
const GRACE: Duration = Duration::from_millis(250);

/// A generation that was proven by a handshake.
pub struct Realized {
    /// The connection.
    pub peer: Arc<dyn Peer>,
    /// Its tools.
    pub surface: Surface,
    /// What the handshake proved.
    pub evidence: Evidence,
    /// Knows what is secret to it.
    pub redactor: Redactor,
    /// What was noticed on the way: goes into events.
    pub notes: Vec<Note>,
}

/// Something noticed that does not stop the generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which kind.
    pub reason: Reason,
    /// For people, scrubbed.
    pub message: String,
}

/// Why a generation did not come up, or was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Failure {
    /// Its class decides whether it is tried again.
    pub reason: Reason,
    /// For people, scrubbed.
    pub message: String,
}

impl Failure {
    /// A failure.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Whether it may pass by itself.
    pub fn is_retryable(&self) -> bool {
        self.reason.class() == Class::Retryable
    }
}

/// Makes one try.
pub trait Realizer: Send + Sync + 'static {
    /// Connects, initializes and lists, all within `limit`.
    fn realize<'a>(
        &'a self,
        session: &'a SessionView,
        generation: &'a Generation,
        events: EventSink,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Realized, Failure>>;

    /// Asks a live server for its tools again. What it says is told without what the redactor
    /// knows.
    fn relist<'a>(
        &'a self,
        generation: &'a Generation,
        peer: &'a dyn Peer,
        redactor: &'a Redactor,
    ) -> BoxFuture<'a, Result<(Surface, Vec<Note>), Failure>>;
}

/// Delays between tries.
#[derive(Clone)]
pub struct Backoff {
    /// The first.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
    /// Between 0 and 1; half of each delay is stretched by it.
    pub jitter: Arc<dyn Fn() -> f64 + Send + Sync>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
            jitter: Arc::new(|| {
                f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
            }),
        }
    }
}

impl Backoff {
    /// The delay after the given number of failures, from 1.
    pub fn after(&self, failures: u32) -> Duration {
        let doubled = self.first * 2u32.saturating_pow(failures.saturating_sub(1).min(16));
        doubled.min(self.longest).mul_f64(0.5 + 0.5 * (self.jitter)())
    }
}

/// How long a generation may take to be proven.
pub fn startup(generation: &Generation) -> Duration {
    Duration::from_millis(generation.limits.startup_timeout_ms.max(1).unsigned_abs())
}

/// How long from now until a try that still runs is ended and told: before the operator's deadline,
/// so that the cause is known when that comes. None when it is too late for that.
pub fn time_to_tell(generation: &Generation, now: Timestamp) -> Option<Duration> {
    let whole = startup(generation);
    let left = match generation.deadline {
        Some(deadline) => Duration::try_from(deadline.duration_since(now)).unwrap_or_default(),
        None => whole,
    };
    let left = left.min(whole).saturating_sub(EARLIER.min(whole / 10));
    (!left.is_zero()).then_some(left)
}

/// How long and how often is tried.
pub struct Terms<'a> {
    /// Between tries.
    pub backoff: &'a Backoff,
    /// After this time a try that still runs is ended and told; others follow.
    pub tell: Option<Duration>,
    /// After this time nothing is tried any more.
    pub patience: Option<Duration>,
    /// Ends it at once.
    pub stop: &'a CancellationToken,
}

/// Tries until it works, cannot work, the patience is over, or `stop`. Each failure is told; the
/// last one with `true`.
pub async fn until_proven(
    realizer: &dyn Realizer,
    session: &SessionView,
    generation: &Generation,
    events: EventSink,
    terms: Terms<'_>,
    mut failed: impl FnMut(Failure, bool) + Send,
) -> Option<Realized> {
    let Terms { backoff, tell, patience, stop } = terms;
    let begun = Instant::now();
    let whole = startup(generation);
    let mut failures = 0;
    let mut before: Option<Failure> = None;
    loop {
        let spent = begun.elapsed();
        // a pause may overshoot
        if let (Some(before), Some(patience)) = (&before, patience)
            && spent >= patience
        {
            failed(before.clone(), true);
            return None;
        }
        let left = [tell, patience].into_iter().flatten().map(|limit| limit.saturating_sub(spent));
        let limit = left.filter(|left| !left.is_zero()).fold(whole, Duration::min);
        let attempt = realizer.realize(session, generation, events.clone(), limit);
        let failure = tokio::select! {
            () = stop.cancelled() => return None,
            // the attempt keeps the time; this bounds one that does not
            result = tokio::time::timeout(limit + GRACE, attempt) => match result {
                Ok(Ok(realized)) => return Some(realized),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::new(
                    Reason::HandshakeTimeout,
                    format!("no handshake within {} ms", limit.as_millis()),
                ),
            },
        };
        failures += 1;
        let delay = backoff.after(failures);
        let over = patience.is_some_and(|limit| begun.elapsed() + delay > limit);
        let last = over || !failure.is_retryable();
        let told = match &before {
            Some(before) if failure.reason == Reason::HandshakeTimeout && *before != failure => {
                Failure::new(
                    failure.reason,
                    format!("{}; the try before: {before}", failure.message),
                )
            }
            _ => failure.clone(),
        };
        before = Some(failure);
        failed(told, last);
        if last {
            return None;
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        identity::SessionKey,
        lifecycle::{HttpTarget, Limits, State, Target},
    };
    use jiff::SignedDuration;
    use rstest::rstest;
    use std::sync::Mutex;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn generation(startup_ms: i64, deadline_in: Option<SignedDuration>) -> Generation {
        Generation {
            generation: 3,
            attachment: "files".into(),
            attachment_uid: "a-uid".into(),
            origin: crate::domain::lifecycle::Origin::Agent,
            server: "files".into(),
            source: "sha256:s".into(),
            state: State::Realizing,
            stage: None,
            target: Target::Http(HttpTarget { url: "https://h/mcp".into(), credential: None }),
            limits: Limits {
                startup_timeout_ms: startup_ms,
                call_timeout_ms: 7,
                drain_timeout_ms: 8,
                max_concurrent_calls: 9,
                max_message_bytes: 10,
            },
            reason: Reason::Realizing,
            message: String::new(),
            since: NOW,
            deadline: deadline_in.map(|left| NOW + left),
            failures: 0,
            evidence: None,
            published: false,
        }
    }

    #[rstest]
    #[case::the_whole(60_000, Some(60_000), Some(58_000))]
    #[case::short(5_000, Some(5_000), Some(4_500))]
    #[case::a_slow_pod(60_000, Some(10_000), Some(8_000))]
    #[case::another_clock(60_000, Some(90_000), Some(58_000))]
    #[case::too_late(60_000, Some(1_000), None)]
    #[case::over(60_000, Some(-5_000), None)]
    #[case::no_deadline(60_000, None, Some(58_000))]
    fn what_still_runs_is_told_before_the_deadline(
        #[case] startup: i64,
        #[case] left: Option<i64>,
        #[case] tell: Option<u64>,
    ) {
        let generation = generation(startup, left.map(SignedDuration::from_millis));
        assert_eq!(time_to_tell(&generation, NOW), tell.map(Duration::from_millis));
    }

    /// Refuses once, then says nothing; keeps the time or does not.
    struct Silent {
        tries: Mutex<u32>,
        keeps_time: bool,
    }

    impl Realizer for Silent {
        fn realize<'a>(
            &'a self,
            _: &'a SessionView,
            _: &'a Generation,
            _: EventSink,
            limit: Duration,
        ) -> BoxFuture<'a, Result<Realized, Failure>> {
            Box::pin(async move {
                let first = {
                    let mut tries = self.tries.lock().unwrap();
                    *tries += 1;
                    *tries == 1
                };
                if first {
                    return Err(Failure::new(Reason::ConnectFailed, "refused"));
                }
                match self.keeps_time {
                    true => tokio::time::sleep(limit).await,
                    false => std::future::pending().await,
                }
                Err(Failure::new(Reason::HandshakeTimeout, "initialize: no answer"))
            })
        }

        fn relist<'a>(
            &'a self,
            _: &'a Generation,
            _: &'a dyn Peer,
            _: &'a Redactor,
        ) -> BoxFuture<'a, Result<(Surface, Vec<Note>), Failure>> {
            Box::pin(std::future::pending())
        }
    }

    #[rstest]
    #[case::kept(true, "initialize: no answer")]
    #[case::not_kept(false, "no handshake within ")]
    #[tokio::test(start_paused = true)]
    async fn silence_is_told_in_time_with_the_try_before_and_tried_again(
        #[case] keeps_time: bool,
        #[case] words: &str,
    ) {
        let silent = Silent { tries: Mutex::default(), keeps_time };
        let (stop, backoff) = (CancellationToken::new(), Backoff::default());
        let view = SessionView {
            key: SessionKey { namespace: "team-a".into(), name: "coder".into() },
            uid: "s-uid".into(),
            resource_version: "1".into(),
            agent: "coder".into(),
            own: crate::gateway::catalog::ToolSets::new(),
            seat: None,
            generations: vec![],
            receipts: vec![],
            activity: None,
            leaving: false,
        };
        let (begun, mut told) = (Instant::now(), vec![]);
        let generation = generation(60_000, None);
        let terms = Terms {
            backoff: &backoff,
            tell: time_to_tell(&generation, NOW),
            patience: None,
            stop: &stop,
        };
        let failed = |failure: Failure, last: bool| {
            assert!(!last);
            told.push((begun.elapsed(), failure));
            if told.len() == 2 {
                stop.cancel();
            }
        };
        let events: EventSink = Arc::new(|_| ());
        let proven = until_proven(&silent, &view, &generation, events, terms, failed).await;
        assert!(proven.is_none());
        let (at, failure) = &told[1];
        assert!((58_000..59_000).contains(&at.as_millis()), "{at:?}");
        assert_eq!(failure.reason, Reason::HandshakeTimeout);
        let message = &failure.message;
        assert!(message.starts_with(words), "{message}");
        assert!(message.ends_with("; the try before: ConnectFailed: refused"), "{message}");
    }
}
