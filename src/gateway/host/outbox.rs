//! The receipts of one Session on their way to the API server, and what is said of its use:
//! collected for a moment, written with resourceVersion, written again after a conflict. Nothing
//! else writes them.

use super::cluster::{Cluster, ClusterError};
use crate::{
    domain::{
        lifecycle::{Receipt, hosting},
        usage::{Activity, Word},
    },
    gateway::{
        host::realize::Backoff,
        hosted::Hosted,
        index::{self, SessionView},
        metrics::GatewayMetrics,
    },
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long receipts are collected before they are written.
const COLLECT: Duration = Duration::from_millis(20);
/// The shortest time between two writes for one Session.
const PAUSE: Duration = Duration::from_millis(80);

/// The receipts that should stand in the Session.
#[derive(Debug, Default)]
pub struct Outbox {
    receipts: Mutex<BTreeMap<i64, Receipt>>,
    changed: Notify,
}

impl Outbox {
    /// Puts a receipt in place of an older one of the same generation. A failure that says the
    /// same as the one before is not written again.
    pub fn put(&self, receipt: Receipt) {
        let mut all = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        if hosting::remember(&mut all, receipt) {
            self.changed.notify_one();
        }
    }

    /// Forgets the receipts of generations that are gone from the Session, and has them taken out
    /// of it.
    pub fn prune(&self, view: &SessionView) {
        let exists = |n: i64| view.generations.iter().any(|g| g.generation == n);
        let mut all = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|n, _| exists(*n));
        if view.receipts.iter().any(|r| !exists(r.generation)) {
            self.changed.notify_one();
        }
    }

    /// What should stand in the Session: ours, and older ones of generations that still exist.
    fn wanted(&self, view: &SessionView) -> Vec<Receipt> {
        let ours = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        hosting::receipts(&view.generations, &view.receipts, &ours)
    }
}

/// Writes what is in the outbox until `stop`, as long as the Session is ours.
pub async fn run(
    (outbox, hosted): (Arc<Outbox>, Arc<Hosted>),
    ours: SessionView,
    (index, cluster): (index::Shared, Arc<dyn Cluster>),
    metrics: GatewayMetrics,
    stop: CancellationToken,
) {
    let mut latest = ours.clone();
    // the version at which the index stood when something newer was at hand
    let mut overtaken = String::new();
    let backoff = Backoff::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = outbox.changed.notified() => tokio::time::sleep(COLLECT).await,
            () = hosted.usage.told() => {}
        }
        let mut failures = 0;
        loop {
            let shown = index.load().session(&ours.key).cloned();
            let version = shown.as_ref().map(|v| v.resource_version.clone()).unwrap_or_default();
            if let Some(view) = shown
                && version != overtaken
            {
                latest = SessionView::clone(&view);
            }
            match write((&outbox, &hosted), &ours, &latest, &*cluster, &metrics).await {
                Ok(None) => break,
                Ok(Some(written)) => {
                    (latest, overtaken) = (written, version);
                    break;
                }
                Err(ClusterError::Conflict) => match cluster.session(&ours.key).await {
                    Ok(fresh) => (latest, overtaken) = (fresh, version),
                    Err(error) => tracing::warn!(session = %ours.key, %error, "cannot be read"),
                },
                Err(ClusterError::NotFound) => return hosted.usage.goes(),
                Err(ClusterError::Other(error)) => {
                    tracing::warn!(session = %ours.key, error, "receipts were not written; trying again");
                }
            }
            // the first conflict is no trouble: somebody else was faster
            failures += 1;
            let pause = if failures == 1 { Duration::ZERO } else { backoff.after(failures) };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

async fn write(
    (outbox, hosted): (&Outbox, &Hosted),
    ours: &SessionView,
    latest: &SessionView,
    cluster: &dyn Cluster,
    metrics: &GatewayMetrics,
) -> Result<Option<SessionView>, ClusterError> {
    if latest.uid != ours.uid || latest.seat != ours.seat {
        return Ok(None);
    }
    if latest.leaving {
        hosted.usage.goes();
    }
    let (receipts, word) = (outbox.wanted(latest), hosted.usage.word());
    let activity = word.and_then(|word| activity(ours, word)).or_else(|| latest.activity.clone());
    let written = if (&receipts, &activity) == (&latest.receipts, &latest.activity) {
        None
    } else {
        let written = cluster.write_receipts(latest, &receipts, activity.as_ref()).await?;
        metrics.receipts.inc();
        Some(written)
    };
    if let Some(word) = word {
        hosted.usage.stands(word);
    }
    Ok(written)
}

/// What this gateway says under its epoch.
fn activity(ours: &SessionView, Word { idle_since, at }: Word) -> Option<Activity> {
    let seat = ours.seat.as_ref()?;
    Some(Activity { incarnation: seat.incarnation.clone(), epoch: seat.epoch, idle_since, at })
}
