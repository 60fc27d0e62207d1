//! Waiting for an object to get somewhere: follows a watch, reports what it sees, and ends with the
//! first thing that settles the matter, at the deadline, or when the caller cancels.

use super::{cluster::broken, problem::Problem, text::line};
use crate::gateway::export::ManagementContext;
use futures::{Stream, StreamExt as _};
use kube::runtime::{WatchStreamExt as _, watcher};
use schemars::JsonSchema;
use serde::Serialize;
use std::{pin::pin, time::Duration};
use tokio::time::Instant;

/// Progress is reported at least this often, so that clients that wait for it keep waiting.
const BEAT: Duration = Duration::from_secs(5);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum State {
    /// It is in service.
    Ready,
    /// It is gone, and nothing of it runs.
    Gone,
    /// It cannot get there before somebody acts.
    Failed,
    /// Nothing goes on, as asked for: it is suspended.
    Settled,
    /// What was asked for was replaced by a later request before it was seen to.
    Superseded,
    /// The time is over. It goes on by itself.
    TimedOut,
}

/// How a wait ended, and after how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Waited {
    /// How it ended.
    pub state: State,
    /// After this many seconds.
    pub seconds: u64,
    /// What was seen last.
    pub message: String,
}

impl Waited {
    /// One line.
    pub fn text(&self) -> String {
        let Self { state, seconds, message } = self;
        match state {
            State::TimedOut => format!(
                "Waited {seconds} s, and it is not there yet; that is no failure, it goes on by \
                 itself. Last seen: {message}\n"
            ),
            state => format!("Waited {seconds} s: {state:?}. {message}\n"),
        }
    }
}

/// What is seen at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// For people.
    pub message: String,
    /// How the wait ends; none goes on.
    pub end: Option<State>,
}

impl Seen {
    /// Not there yet.
    pub fn going(message: impl AsRef<str>) -> Self {
        Self { message: line(message.as_ref(), 600), end: None }
    }

    /// There.
    pub fn ended(end: State, message: impl AsRef<str>) -> Self {
        Self { end: Some(end), ..Self::going(message) }
    }
}

/// Follows the watch until what it shows is an end, for up to `limit`.
///
/// # Errors
/// When the caller cancels, or the account may not watch.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    context: &ManagementContext,
    watch: impl Stream<Item = watcher::Result<T>>,
    mut judge: impl FnMut(T) -> Option<Seen>,
) -> Result<Waited, Problem> {
    let begun = Instant::now();
    let mut watch = pin!(watch.default_backoff());
    let mut beat = tokio::time::interval_at(begun + BEAT, BEAT);
    let mut last = Seen::going("nothing was seen yet");
    let deadline = tokio::time::sleep_until(begun + limit);
    let mut deadline = pin!(deadline);
    let waited =
        |state, message: String| Ok(Waited { state, seconds: begun.elapsed().as_secs(), message });
    loop {
        let seen = tokio::select! {
            biased;
            () = context.cancel.cancelled() => {
                let message = format!(
                    "The wait for {what} was cancelled; what was written stays written. Last seen: {}.",
                    last.message
                );
                return Err(Problem::cancelled(&message));
            }
            event = watch.next() => match event {
                Some(Ok(event)) => judge(event),
                Some(Err(error)) => match broken(&format!("Watching {what}"), &error) {
                    Some(problem) => return Err(problem),
                    None => continue,
                },
                None => return waited(State::TimedOut, last.message),
            },
            () = &mut deadline => return waited(State::TimedOut, last.message),
            _ = beat.tick() => Some(last.clone()),
        };
        let Some(seen) = seen else { continue };
        if let Some(progress) = &context.progress {
            progress.report(
                begun.elapsed().as_secs_f64(),
                Some(limit.as_secs_f64()),
                &seen.message,
            );
        }
        if let Some(end) = seen.end {
            return waited(end, seen.message);
        }
        last = seen;
    }
}
