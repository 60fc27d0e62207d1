//! Does what the operator's stages ask, and answers each with a receipt.
//!
//! ```text
//!  index ─Session─► plan ─► Realize: task (connect, handshake, again) ─┐
//!                        ├► Publish ┐ one swap of                      ├─News─► receipts ─► outbox
//!                        └► Drain   ┘ the catalog ─► task (wait, cut) ─┘
//! ```
//!
//! One loop owns everything here; tasks tell it what happened. Before anything else for a Session
//! its journal epoch is raised and calls that an earlier host left open are ended. It never decides
//! about a call.

pub mod addresses;
pub mod cluster;
pub mod connect;
mod idle;
pub mod keys;
mod noise;
pub mod outbox;
pub mod post;
pub mod realize;
mod record;
mod tasks;
pub mod watchdog;

use super::{
    hosted::{Hosted, Sessions},
    index::{self, Change, Seat, SessionView},
    metrics::GatewayMetrics,
};
use crate::{
    domain::{
        Clock,
        identity::SessionKey,
        lifecycle::{
            Evidence, Verdict,
            hosting::{Death, Deed, Publish, plan},
        },
        reason::Reason,
    },
    journal::{Append, Read},
    mcp::Peer,
};
use cluster::Cluster;
use futures::{FutureExt as _, future::BoxFuture};
use post::{Post, PostId};
use realize::{Backoff, Failure, Note, Realized, Realizer};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tasks::Outlet;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use watchdog::{Ears, Pings};

/// What the host works with.
#[derive(Clone)]
pub struct Parts {
    /// Name of this gateway: of its pod and its Lease.
    pub gateway: String,
    /// This start of it.
    pub incarnation: String,
    /// What the API server says.
    pub index: index::Shared,
    /// What requests read.
    pub sessions: Sessions,
    /// Brings generations up.
    pub realizer: Arc<dyn Realizer>,
    /// Writes receipts and events.
    pub cluster: Arc<dyn Cluster>,
    /// The journal, to write.
    pub append: Arc<dyn Append>,
    /// The journal, to read.
    pub read: Arc<dyn Read>,
    /// The time for receipts and records.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: GatewayMetrics,
    /// Delays between tries.
    pub backoff: Backoff,
    /// How long a generation that was Active before a take-over is tried before it counts as lost.
    pub patience: Duration,
    /// Pings of idle servers.
    pub pings: Pings,
}

/// What happened to a Session's generation, told to the loop.
pub(super) enum News {
    Taken,
    Failed { fingerprint: String, failure: Failure, last: bool },
    Proven { fingerprint: String, realized: Box<Realized>, ears: Arc<Ears> },
    Drained { fingerprint: String, in_flight: u32, cut: u32 },
    Lost(Failure),
    Relisted(Evidence),
    Replaced(Arc<dyn Peer>),
    Noticed(Note),
}

/// What the loop takes in.
pub(super) enum Input {
    Session(SessionKey),
    About { post: PostId, generation: i64, news: News },
}

/// The loop.
pub struct Host {
    parts: Parts,
    posts: HashMap<SessionKey, Post>,
    inbox: mpsc::UnboundedReceiver<Input>,
    outlet: Outlet,
    tasks: TaskTracker,
}

/// Feeds the loop with changes of the index, and the catalogs with changes of policy.
#[derive(Clone)]
pub struct Feeder {
    sessions: Sessions,
    index: index::Shared,
    inbox: mpsc::UnboundedSender<Input>,
}

impl Feeder {
    /// Takes a change. A changed policy holds when this returns.
    pub fn take(&self, change: Change) {
        match change {
            Change::Session(key) => self.changed(key),
            // other names may be missing now
            Change::Policies(keys) => keys.into_iter().for_each(|key| self.changed(key)),
        }
    }

    fn changed(&self, key: SessionKey) {
        let snapshot = self.index.load();
        let hosted = self.sessions.get(&key);
        if let (Some(hosted), Some(view)) = (hosted, snapshot.session(&key))
            && hosted.uid == view.uid
        {
            hosted.catalogs.set_policies(snapshot.policies(view));
        }
        // the receiver is gone only when the gateway stops
        drop(self.inbox.send(Input::Session(key)));
    }
}

impl Host {
    /// A host with nothing to do yet, and what feeds it.
    pub fn new(parts: Parts) -> (Self, Feeder) {
        let (sender, inbox) = mpsc::unbounded_channel();
        let feeder = Feeder {
            sessions: parts.sessions.clone(),
            index: parts.index.clone(),
            inbox: sender.clone(),
        };
        let (tasks, posts) = (TaskTracker::new(), HashMap::new());
        (Self { parts, posts, inbox, outlet: Outlet(sender), tasks }, feeder)
    }

    /// Works until `stop`, then ends every task and connection of its own. Calls in flight must
    /// have ended before.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let input = tokio::select! {
                () = stop.cancelled() => break,
                input = self.inbox.recv() => input,
            };
            match input {
                None => break,
                Some(Input::Session(key)) => self.session(&key),
                Some(Input::About { post, generation, news }) => {
                    let current = self.posts.get(&post.key).is_some_and(|p| p.id() == post);
                    if current {
                        self.news(&post.key, generation, news);
                    }
                }
            }
            self.parts.metrics.sessions.set(i64::try_from(self.posts.len()).unwrap_or(i64::MAX));
        }
        let keys: Vec<_> = self.posts.keys().cloned().collect();
        for key in keys {
            self.leave(&key);
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// A Session was written, or is gone.
    fn session(&mut self, key: &SessionKey) {
        let snapshot = self.parts.index.load_full();
        let ours = |view: &Arc<SessionView>| {
            let seat = view.seat.clone()?;
            let here =
                seat.gateway == self.parts.gateway && seat.incarnation == self.parts.incarnation;
            here.then(|| (view.clone(), seat))
        };
        let Some((view, seat)) = snapshot.session(key).and_then(ours) else {
            return self.leave(key);
        };
        let same = |p: &Post| p.view.uid == view.uid && p.seat == seat;
        if !self.posts.get(key).is_some_and(same) {
            self.leave(key);
            self.take_over(view, seat);
            return;
        }
        if let Some(post) = self.posts.get_mut(key) {
            post.view = view;
            // how long it may be idle may have changed
            post.hosted.usage.poke();
        }
        self.act(key);
    }

    fn take_over(&mut self, view: Arc<SessionView>, seat: Seat) {
        let policies = self.parts.index.load().policies(&view);
        let hosted = Hosted::new(view.key.clone(), view.uid.clone(), seat.epoch, policies);
        let hosted = Arc::new(hosted);
        self.parts.sessions.put(hosted.clone());
        // a policy that changed since it was read reaches only what is in the table
        hosted.catalogs.set_policies(self.parts.index.load().policies(&view));
        let post = Post::new(hosted, view, seat);
        tracing::info!(session = %post.view.key, epoch = post.seat.epoch, "taking over");
        self.tasks.spawn(tasks::take_over(self.parts.clone(), self.outlet.clone(), &post));
        self.tasks.spawn(tasks::write_receipts(&self.parts, &post));
        self.posts.insert(post.view.key.clone(), post);
    }

    /// Another gateway has it now, or it is gone.
    fn leave(&mut self, key: &SessionKey) {
        let Some(post) = self.posts.remove(key) else { return };
        tracing::info!(session = %key, epoch = post.seat.epoch, "leaving");
        self.parts.sessions.remove(key);
        post.hosted.set_open(false);
        post.hosted.left().cancel();
        post.hosted.usage.goes();
        post.stop.cancel();
        for unit in post.units.into_values() {
            self.tasks.spawn(tasks::end(unit));
        }
    }

    /// Does what the stored Session asks for and was not done yet.
    fn act(&mut self, key: &SessionKey) {
        let Some(post) = self.posts.get_mut(key).filter(|p| p.taken) else { return };
        let now = self.parts.clock.now();
        post.outbox.prune(&post.view);
        let plan = plan(&post.view.uid, post.owner(), &post.view.generations, &post.acted());
        if plan.ignored > 0 {
            tracing::warn!(session = %key, ignored = plan.ignored, "stages that are not for this host");
        }
        let (mut put, mut take) = (vec![], vec![]);
        // what refuses calls begins after the swap: who is refused finds the successor
        let mut after: Vec<BoxFuture<'static, ()>> = vec![];
        for deed in plan.deeds {
            match deed {
                Deed::Forget(n) | Deed::Stop(n) => {
                    take.push(n);
                    let Some(unit) = post.units.remove(&n) else { continue };
                    unit.stop.cancel();
                    after.push(tasks::end(unit).boxed());
                }
                Deed::Realize(n) => {
                    let Some(before) = post.restart(n) else { continue };
                    after.push(tasks::close(before).boxed());
                    after.push(tasks::realize(&self.parts, &self.outlet, post, n, None));
                }
                Deed::Publish(n) => match post.publish(n) {
                    Publish::Put(handle) => put.push(handle),
                    Publish::BringUp => {
                        let patience = Some(self.parts.patience);
                        after.push(tasks::realize(&self.parts, &self.outlet, post, n, patience));
                    }
                    Publish::Refuse(failure) => {
                        post.answer(n, Verdict::Failed, Evidence::default(), Some(&failure), now);
                    }
                },
                Deed::Drain(n) => {
                    take.push(n);
                    after.extend(tasks::drain(&self.outlet, post, n));
                }
            }
        }
        self.swap(key, &put, &take);
        for task in after {
            self.tasks.spawn(task);
        }
    }

    /// Puts in and takes out in one step, and answers for what was put in.
    fn swap(&mut self, key: &SessionKey, put: &[Arc<super::handle::Handle>], take: &[i64]) {
        let Some(post) = self.posts.get_mut(key) else { return };
        let units = put.iter().map(|h| h.generation);
        for n in units.clone() {
            if let Some(unit) = post.units.get_mut(&n) {
                unit.charge.published = true;
            }
        }
        let coming = post.coming();
        if put.is_empty() && take.is_empty() {
            post.hosted.catalogs.set_coming(coming);
        } else {
            post.hosted.catalogs.swap(put, take, coming);
        }
        let published = post.units.iter().filter(|(_, unit)| unit.charge.published);
        for n in published.map(|(n, _)| *n).collect::<Vec<_>>() {
            let (lacks_others, new) = (post.note_missing(n), units.clone().any(|put| put == n));
            let Some(unit) = post.units.get(&n) else { continue };
            let evidence = unit.evidence.clone();
            if new || lacks_others {
                post.answer(n, Verdict::Done, evidence, None, self.parts.clock.now());
            }
            if new {
                self.tasks.spawn(record::lifecycle(&self.parts, post, n, "published"));
            }
        }
    }

    fn news(&mut self, key: &SessionKey, n: i64, news: News) {
        let Some(post) = self.posts.get_mut(key) else { return };
        let now = self.parts.clock.now();
        match news {
            News::Taken => {
                post.taken = true;
                let hosted = post.hosted.clone();
                self.tasks.spawn(tasks::watch_use(&self.parts, post));
                self.act(key);
                // nobody waits for a server that does not come up: calls of it are told so
                hosted.set_open(!hosted.left().is_cancelled());
            }
            News::Failed { fingerprint, failure, last } => {
                let Some(unit) = post.doing(n, &fingerprint) else { return };
                tracing::info!(session = %key, generation = n, attachment = unit.generation.attachment, %failure, last, "not proven");
                if last {
                    self.parts.metrics.generation_failed(failure.reason);
                }
                if unit.charge.failed(failure.clone(), last) {
                    post.answer(n, Verdict::Failed, Evidence::default(), Some(&failure), now);
                }
            }
            News::Proven { fingerprint, realized, ears } => {
                if post.doing(n, &fingerprint).is_none() {
                    self.tasks.spawn(async move { realized.peer.close().await });
                    return;
                }
                let adopted = tasks::adopt(&self.parts, &self.outlet, post, n, *realized, ears);
                let Some((publish, task)) = adopted else { return };
                self.tasks.spawn(task);
                let Some(unit) = post.units.get(&n) else { return };
                let (handle, evidence) = (unit.charge.server.clone(), unit.evidence.clone());
                if publish {
                    self.swap(key, handle.as_slice(), &[]);
                } else {
                    post.answer(n, Verdict::Done, evidence, None, now);
                }
            }
            News::Drained { fingerprint, in_flight, cut } => {
                let Some(unit) = post.doing(n, &fingerprint) else { return };
                unit.charge.drained();
                let evidence = Evidence {
                    in_flight: Some(in_flight.into()),
                    cut: Some(cut.into()),
                    ..Evidence::default()
                };
                let cut = (cut > 0)
                    .then(|| Failure::new(Reason::DrainTimeout, format!("{cut} calls were cut")));
                post.answer(n, Verdict::Done, evidence, cut.as_ref(), now);
                self.tasks.spawn(record::lifecycle(&self.parts, post, n, "drained"));
            }
            News::Lost(failure) => self.lost(key, n, failure),
            News::Relisted(evidence) => {
                let Some(unit) = post.units.get_mut(&n) else { return };
                let before = std::mem::take(&mut unit.evidence);
                unit.evidence = Evidence {
                    protocol_version: evidence.protocol_version.or(before.protocol_version),
                    server_info: evidence.server_info.or(before.server_info),
                    tool_count: evidence.tool_count,
                    surface_digest: evidence.surface_digest,
                    ..before
                };
                let published = unit.charge.published;
                post.hosted.catalogs.refresh();
                if published {
                    post.note_missing(n);
                    let evidence = post.units.get(&n).map(|unit| unit.evidence.clone());
                    post.answer(n, Verdict::Done, evidence.unwrap_or_default(), None, now);
                }
            }
            News::Replaced(peer) => drop(self.tasks.spawn(async move { peer.close().await })),
            News::Noticed(note) => self.notice(key, n, note),
        }
    }

    /// A live server is gone: out of the catalog at once.
    fn lost(&mut self, key: &SessionKey, n: i64, failure: Failure) {
        let Some(post) = self.posts.get_mut(key) else { return };
        let Some(unit) = post.units.get_mut(&n) else { return };
        let death = unit.charge.died(failure.clone());
        if death == Death::Known {
            return;
        }
        tracing::warn!(session = %key, generation = n, attachment = unit.generation.attachment, %failure, "lost");
        self.parts.metrics.generation_failed(failure.reason);
        if death == Death::Published {
            let evidence = unit.evidence.clone();
            let coming = post.coming();
            post.hosted.catalogs.swap(&[], &[n], coming);
            post.answer(n, Verdict::Lost, evidence, Some(&failure), self.parts.clock.now());
            self.tasks.spawn(record::lifecycle(&self.parts, post, n, "lost"));
        }
    }

    fn notice(&mut self, key: &SessionKey, n: i64, note: Note) {
        let Some(post) = self.posts.get(key) else { return };
        let Some(unit) = post.units.get(&n) else { return };
        let names = (unit.generation.attachment.clone(), unit.generation.attachment_uid.clone());
        let (cluster, view) = (self.parts.cluster.clone(), post.view.clone());
        self.tasks.spawn(async move { cluster.event(&view, (&names.0, &names.1), note).await });
    }
}
