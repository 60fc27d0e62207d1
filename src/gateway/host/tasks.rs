//! What goes on for a Session beside the loop, each as one future that tells the loop how it
//! ended. Nothing here touches the loop's own state after it began.

use super::{
    Input, News, Parts, idle, outbox,
    post::{Post, PostId, Unit},
    realize::{Realized, Realizer, Terms, startup, time_to_tell, until_proven},
    watchdog::{self, Ears, Sign},
};
use crate::{
    domain::lifecycle::Generation,
    gateway::{
        handle::{Fresh, Handle, Renew},
        index::SessionView,
        recover,
    },
};
use futures::{FutureExt, future::BoxFuture};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// The way to the loop.
#[derive(Clone)]
pub struct Outlet(pub(super) mpsc::UnboundedSender<Input>);

/// The way to the loop for one generation.
#[derive(Clone)]
struct Mouth {
    outlet: Outlet,
    post: PostId,
    generation: i64,
}

impl Mouth {
    fn of(outlet: &Outlet, post: &Post, generation: i64) -> Self {
        Self { outlet: outlet.clone(), post: post.id(), generation }
    }

    fn tell(&self, news: News) {
        let (post, generation) = (self.post.clone(), self.generation);
        // the loop is gone only when the gateway stops
        drop(self.outlet.0.send(Input::About { post, generation, news }));
    }
}

/// Raises the epoch and ends what an earlier host left open; again until the journal takes it.
pub fn take_over(parts: Parts, outlet: Outlet, post: &Post) -> impl Future<Output = ()> + use<> {
    let mouth = Mouth::of(&outlet, post, 0);
    let (chain, stop) = (post.hosted.chain.clone(), post.stop.clone());
    async move {
        let mut failures = 0;
        loop {
            let (journal, epoch) = ((&*parts.append, &*parts.read), mouth.post.epoch);
            let taking = async {
                parts.append.raise_epoch(&chain, epoch).await?;
                recover::end_open(journal, &*parts.clock, &chain, epoch).await
            };
            match taking.await {
                Ok(0) => break,
                Ok(ended) => {
                    tracing::warn!(session = %mouth.post.key, ended, "calls of an earlier host ended as OutcomeUnknown");
                    break;
                }
                Err(error) => {
                    tracing::error!(session = %mouth.post.key, %error, "the Session cannot be taken over yet");
                }
            }
            failures += 1;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(parts.backoff.after(failures)) => {}
            }
        }
        mouth.tell(News::Taken);
    }
}

/// Writes the Session's receipts as long as it is served here.
pub fn write_receipts(parts: &Parts, post: &Post) -> impl Future<Output = ()> + use<> {
    let world = (parts.index.clone(), parts.cluster.clone());
    let ours = SessionView::clone(&post.view);
    let outbox = (post.outbox.clone(), post.hosted.clone());
    outbox::run(outbox, ours, world, parts.metrics.clone(), post.stop.clone())
}

/// Looks again and again whether the Session is idle, as long as it is served here.
pub fn watch_use(parts: &Parts, post: &Post) -> impl Future<Output = ()> + use<> {
    idle::watch(parts.clone(), post.hosted.clone(), post.view.clone(), post.stop.clone())
}

/// Brings a generation up and tells; `patience` limits how long.
pub fn realize(
    parts: &Parts,
    outlet: &Outlet,
    post: &Post,
    generation: i64,
    patience: Option<Duration>,
) -> BoxFuture<'static, ()> {
    let mouth = Mouth::of(outlet, post, generation);
    let Some(unit) = post.units.get(&generation) else { return async {}.boxed() };
    let fingerprint = unit.charge.stage.as_ref().map(|s| s.fingerprint.clone()).unwrap_or_default();
    let (entry, stop, view) = (unit.generation.clone(), unit.stop.clone(), post.view.clone());
    let (realizer, backoff) = (parts.realizer.clone(), parts.backoff.clone());
    // after a take-over the patience is shorter than any deadline
    let tell = time_to_tell(&entry, parts.clock.now()).filter(|_| patience.is_none());
    async move {
        let ears = Arc::new(Ears::default());
        let failed = |failure, last| {
            mouth.tell(News::Failed { fingerprint: fingerprint.clone(), failure, last });
        };
        let terms = Terms { backoff: &backoff, tell, patience, stop: &stop };
        let proven = until_proven(&*realizer, &view, &entry, ears.sink(), terms, failed).await;
        if let Some(realized) = proven {
            let realized = Box::new(realized);
            mouth.tell(News::Proven { fingerprint: fingerprint.clone(), realized, ears });
        }
    }
    .boxed()
}

/// Makes a handle of what was proven, puts it into its unit, and watches it. Tells with it whether
/// it goes into the catalog now. None for a unit that is not there.
pub fn adopt(
    parts: &Parts,
    outlet: &Outlet,
    post: &mut Post,
    generation: i64,
    realized: Realized,
    ears: Arc<Ears>,
) -> Option<(bool, BoxFuture<'static, ()>)> {
    let mouth = Mouth::of(outlet, post, generation);
    let view = post.view.clone();
    let unit = post.units.get_mut(&generation)?;
    let entry = unit.generation.clone();
    for note in realized.notes {
        mouth.tell(News::Noticed(note));
    }
    let renewal = Renewal {
        realizer: parts.realizer.clone(),
        entry: entry.clone(),
        ears: ears.clone(),
        mouth: mouth.clone(),
        view,
    };
    let Realized { peer, surface, evidence, redactor, .. } = realized;
    let handle = Arc::new(Handle::new(&entry, peer, surface, redactor, Arc::new(renewal)));
    let publish = unit.charge.adopt(handle.clone());
    unit.evidence = evidence;
    let (what, pings, stop) = ((parts.realizer.clone(), ears), parts.pings, unit.stop.clone());
    let tell = move |sign| {
        mouth.tell(match sign {
            Sign::Lost(failure) => News::Lost(failure),
            Sign::Relisted(evidence) => News::Relisted(evidence),
            Sign::Noticed(note) => News::Noticed(note),
        });
    };
    Some((publish, watchdog::run((handle, entry), what, pings, stop, tell).boxed()))
}

/// Lets a generation's calls finish, cuts the rest, closes the connection. None for a unit that is
/// not there.
pub fn drain(outlet: &Outlet, post: &mut Post, generation: i64) -> Option<BoxFuture<'static, ()>> {
    let mouth = Mouth::of(outlet, post, generation);
    let entry = post.entry(generation)?.clone();
    let unit = post.unit(&entry);
    let fingerprint = entry.stage.as_ref()?.fingerprint.clone();
    let handle = unit.charge.drain(entry.stage);
    // ends tries and the watchdog: a server that dies while it drains is no news
    unit.stop.cancel();
    let task = async move {
        let (mut in_flight, mut cut) = (0, 0);
        if let Some(handle) = handle {
            in_flight = handle.in_flight();
            cut = handle.drain(handle.drain_timeout()).await;
            handle.peer().close().await;
        }
        mouth.tell(News::Drained { fingerprint, in_flight, cut });
    };
    Some(task.boxed())
}

/// Ends a unit that nobody asks for any more: cuts its calls, closes its connection.
pub async fn end(unit: Unit) {
    if let Some(handle) = unit.charge.server {
        handle.drain(Duration::ZERO).await;
        handle.peer().close().await;
    }
}

/// Closes the connection of a handle that is replaced.
pub async fn close(handle: Option<Arc<Handle>>) {
    if let Some(handle) = handle {
        handle.peer().close().await;
    }
}

struct Renewal {
    realizer: Arc<dyn Realizer>,
    view: Arc<SessionView>,
    entry: Generation,
    ears: Arc<Ears>,
    mouth: Mouth,
}

impl Renew for Renewal {
    fn renew(&self) -> BoxFuture<'_, Option<Fresh>> {
        Box::pin(async move {
            let (events, limit) = (self.ears.sink(), startup(&self.entry));
            match self.realizer.realize(&self.view, &self.entry, events, limit).await {
                Ok(Realized { peer, surface, evidence, redactor, notes }) => {
                    let mouth = self.mouth.clone();
                    let placed = Box::new(move |forgotten| {
                        mouth.tell(News::Relisted(evidence));
                        notes.into_iter().for_each(|note| mouth.tell(News::Noticed(note)));
                        mouth.tell(News::Replaced(forgotten));
                    });
                    Some(Fresh { peer, surface, redactor, placed })
                }
                Err(failure) => {
                    if !failure.is_retryable() {
                        self.mouth.tell(News::Lost(failure));
                    }
                    None
                }
            }
        })
    }
}
