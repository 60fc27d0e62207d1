//! A call under way: polled by the request that made it, continued without it when that goes away.

use super::session::InFlight;
use crate::mcp::Answer;
use futures::{FutureExt as _, future::BoxFuture};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio_util::task::TaskTracker;

/// Resolves to the answer, or to none if the client cancelled. Dropped before that, the call goes
/// on in a task of the tracker, and is told that nobody waits.
pub(super) struct Pending {
    running: Option<(BoxFuture<'static, Answer>, InFlight)>,
    orphans: TaskTracker,
}

impl Pending {
    pub(super) fn new(
        call: BoxFuture<'static, Answer>,
        in_flight: InFlight,
        orphans: TaskTracker,
    ) -> Self {
        Self { running: Some((call, in_flight)), orphans }
    }

    /// What is in flight; none once it has resolved.
    pub(super) fn in_flight(&self) -> Option<&InFlight> {
        self.running.as_ref().map(|(_, in_flight)| in_flight)
    }
}

impl Future for Pending {
    type Output = Option<Answer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Answer>> {
        let Some((call, _)) = &mut self.running else { return Poll::Ready(None) };
        let answer = ready!(call.poll_unpin(cx));
        let cancelled = self.running.take().is_some_and(|(_, f)| f.cancel.is_cancelled());
        Poll::Ready((!cancelled).then_some(answer))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some((call, in_flight)) = self.running.take() else { return };
        in_flight.gone.cancel();
        // after a panic of the call there is nothing to go on with
        if let (false, Ok(runtime)) =
            (std::thread::panicking(), tokio::runtime::Handle::try_current())
        {
            let task = async move {
                call.await;
                drop(in_flight);
            };
            self.orphans.spawn_on(task, &runtime);
        }
    }
}
