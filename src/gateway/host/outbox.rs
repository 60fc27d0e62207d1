//! The receipts of one Session on their way to the API server: collected for a moment, written
//! with resourceVersion, written again after a conflict. Nothing else writes them.

use super::cluster::{Cluster, ClusterError};
use crate::{
    domain::lifecycle::{Receipt, hosting},
    gateway::{
        host::realize::Backoff,
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
    outbox: Arc<Outbox>,
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
            match write(&outbox, &ours, &latest, &*cluster, &metrics).await {
                Ok(None) => break,
                Ok(Some(written)) => {
                    (latest, overtaken) = (written, version);
                    break;
                }
                Err(ClusterError::Conflict) => match cluster.session(&ours.key).await {
                    Ok(fresh) => (latest, overtaken) = (fresh, version),
                    Err(error) => tracing::warn!(session = %ours.key, %error, "cannot be read"),
                },
                Err(ClusterError::NotFound) => return,
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
    outbox: &Outbox,
    ours: &SessionView,
    latest: &SessionView,
    cluster: &dyn Cluster,
    metrics: &GatewayMetrics,
) -> Result<Option<SessionView>, ClusterError> {
    if latest.uid != ours.uid || latest.seat != ours.seat {
        return Ok(None);
    }
    let wanted = outbox.wanted(latest);
    if wanted == latest.receipts {
        return Ok(None);
    }
    let written = cluster.write_receipts(latest, &wanted).await?;
    metrics.receipts.inc();
    Ok(Some(written))
}
