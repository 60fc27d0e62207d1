//! Watches one live generation: its end, its pings, what it says unasked. Tells, and changes
//! nothing but the handle's own tools.

use super::{
    connect::listed,
    noise::Heard,
    realize::{Failure, Note, Realizer},
};
use crate::{
    domain::{
        lifecycle::{Evidence, Generation},
        reason::Reason,
    },
    gateway::handle::Handle,
    mcp::{
        ConnectionFailure, EventSink, Outgoing, Peer, PeerError, PeerEvent, legacy::LIST_CHANGED,
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch::Receiver},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// How often and how long.
#[derive(Clone, Copy, Debug)]
pub struct Pings {
    /// Between two pings of a server that has no call in flight.
    pub every: Duration,
    /// From a ping without answer to the next one.
    pub again: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// So many without answer in a row, and the server is lost.
    pub misses: u32,
}

impl Default for Pings {
    fn default() -> Self {
        let (every, short) = (Duration::from_secs(20), Duration::from_secs(5));
        Self { every, again: short, timeout: short, misses: 3 }
    }
}

/// How long list changes and noise are collected.
const COLLECT: Duration = Duration::from_millis(100);
/// The longest that a changed list waits before it is asked for.
const SLOWEST: Duration = Duration::from_secs(30);
/// After so long without a changed list the next one waits no longer than the first.
const QUIET: Duration = Duration::from_secs(60);

/// How soon a changed list is asked for: the more steadily a server tells of changes, the later.
#[derive(Debug, Default)]
struct Pace {
    delay: Duration,
    heard: Option<Instant>,
    due: Option<Instant>,
}

impl Pace {
    /// A change was told.
    fn hear(&mut self, now: Instant) {
        let quiet = self.heard.is_none_or(|heard| now - heard >= QUIET);
        self.heard = Some(now);
        if self.due.is_none() {
            self.delay = if quiet { COLLECT } else { (self.delay * 2).min(SLOWEST) };
            self.due = Some(now + self.delay);
        }
    }

    /// When it is time to ask; never while nothing was told.
    async fn due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }
}

/// Hears what a server says unasked. Never blocks.
#[derive(Debug, Default)]
pub struct Ears {
    listed: Notify,
    noisy: Notify,
    noise: Heard,
    skipping: Notify,
    skipped: AtomicUsize,
}

impl Ears {
    /// The sink for a peer.
    pub fn sink(self: &Arc<Self>) -> EventSink {
        let ears = self.clone();
        Arc::new(move |event| match event {
            PeerEvent::Notification { method, .. } if method == LIST_CHANGED => {
                ears.listed.notify_one();
            }
            PeerEvent::Noise { count, sample } => {
                ears.noise.keep(count, sample);
                ears.noisy.notify_one();
            }
            PeerEvent::Skipped { limit } => {
                ears.skipped.store(limit, Ordering::Relaxed);
                ears.skipping.notify_one();
            }
            PeerEvent::Notification { .. } | PeerEvent::StrayAnswer => {}
        })
    }
}

/// What the watchdog tells.
pub enum Sign {
    /// The server is gone.
    Lost(Failure),
    /// It lists other tools; the handle has them.
    Relisted(Evidence),
    /// Something for an event.
    Noticed(Note),
}

/// Watches until the server is lost or `stop`, which does not wait for the server.
pub async fn run(
    what: (Arc<Handle>, Generation),
    how: (Arc<dyn Realizer>, Arc<Ears>),
    pings: Pings,
    stop: CancellationToken,
    tell: impl Fn(Sign) + Send,
) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = watch(what, how, pings, tell) => {}
    }
}

async fn watch(
    (handle, generation): (Arc<Handle>, Generation),
    (realizer, ears): (Arc<dyn Realizer>, Arc<Ears>),
    pings: Pings,
    tell: impl Fn(Sign) + Send,
) {
    let lost = |error: Option<&PeerError>| {
        let message = error.map_or_else(|| "the connection closed".to_owned(), ToString::to_string);
        Sign::Lost(Failure::new(Reason::ServerLost, handle.redactor().text(&message)))
    };
    let (mut missed, mut told_noise, mut told_skipped) = (0, false, false);
    let mut pace = Pace::default();
    let mut next_ping = Instant::now() + pings.every;
    loop {
        let peer = handle.peer();
        let mut closed = peer.closed();
        tokio::select! {
            error = end(&mut closed) => {
                if Arc::ptr_eq(&peer, &handle.peer()) {
                    return tell(lost(error.as_ref()));
                }
            }
            () = ears.listed.notified() => pace.hear(Instant::now()),
            () = pace.due() => {
                pace.due = None;
                relist(&handle, &generation, &*realizer, &*peer).await.into_iter().for_each(&tell);
            }
            () = ears.skipping.notified(), if !told_skipped => {
                told_skipped = true;
                let limit = ears.skipped.load(Ordering::Relaxed);
                let message = format!("a notification of the server was over the limit of {limit} bytes and was skipped");
                tell(Sign::Noticed(Note { reason: Reason::MessageTooLarge, message }));
            }
            () = ears.noisy.notified(), if !told_noise => {
                told_noise = true;
                tokio::time::sleep(COLLECT).await;
                if let Some(noise) = ears.noise.latest() {
                    tell(Sign::Noticed(noise.note(&handle.redactor())));
                }
            }
            () = tokio::time::sleep_until(next_ping) => {
                next_ping = Instant::now() + pings.every;
                // a server that is busy with a known call is not unhealthy
                if handle.in_flight() > 0 {
                    continue;
                }
                match ping(&*peer, pings.timeout).await {
                    Ok(()) => missed = 0,
                    Err(PeerError::Connection { kind: ConnectionFailure::SessionLost, .. })
                        if handle.renewed(&peer).await.is_some() => missed = 0,
                    Err(error) => {
                        missed += 1;
                        if missed >= pings.misses {
                            return tell(lost(Some(&error)));
                        }
                        next_ping = Instant::now() + pings.again;
                    }
                }
            }
        }
    }
}

/// Why the server is gone, once it is.
async fn end(closed: &mut Receiver<Option<PeerError>>) -> Option<PeerError> {
    closed.wait_for(Option::is_some).await.ok().and_then(|error| error.clone())
}

async fn ping(peer: &dyn Peer, timeout: Duration) -> Result<(), PeerError> {
    let cancel = CancellationToken::new();
    // an error is an answer too: the server lives
    peer.request(Outgoing { method: "ping", params: None, timeout, cancel }).await.map(drop)
}

async fn relist(
    handle: &Handle,
    generation: &Generation,
    realizer: &dyn Realizer,
    peer: &dyn Peer,
) -> Vec<Sign> {
    match realizer.relist(generation, peer, &handle.redactor()).await {
        Ok((surface, notes)) => {
            let evidence = listed(&surface);
            handle.relisted(surface);
            let notes = notes.into_iter().map(Sign::Noticed);
            std::iter::once(Sign::Relisted(evidence)).chain(notes).collect()
        }
        Err(failure) => {
            tracing::warn!(attachment = handle.attachment, generation = handle.generation, %failure,
                "the server's changed list cannot be read; the old one stays");
            let Failure { reason, message } = failure;
            match reason {
                Reason::InvalidToolList | Reason::MessageTooLarge => {
                    vec![Sign::Noticed(Note { reason, message })]
                }
                _ => vec![],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{
            lifecycle::{HttpTarget, Limits, State, Target},
            redact::Redactor,
        },
        gateway::{
            handle::{Fresh, Renew, Surface},
            host::realize::Realized,
            index::SessionView,
        },
        mcp::{Answer, RawJson},
    };
    use futures::future::BoxFuture;
    use jiff::Timestamp;
    use std::sync::Mutex;

    /// A server that is well.
    struct Well(tokio::sync::watch::Sender<Option<PeerError>>);

    impl Peer for Well {
        fn request(&self, _: Outgoing) -> BoxFuture<'_, Result<Answer, PeerError>> {
            Box::pin(async { Ok(Answer::Result(RawJson::from_static("{}"))) })
        }

        fn notify<'a>(
            &'a self,
            _: &'static str,
            _: Option<RawJson>,
        ) -> BoxFuture<'a, Result<(), PeerError>> {
            Box::pin(async { Ok(()) })
        }

        fn negotiated(&self, _: &str) {}

        fn closed(&self) -> Receiver<Option<PeerError>> {
            self.0.subscribe()
        }

        fn close(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }
    }

    struct Never;

    impl Renew for Never {
        fn renew(&self) -> BoxFuture<'_, Option<Fresh>> {
            Box::pin(async { None })
        }
    }

    /// Notes when it is asked for the list.
    #[derive(Default)]
    struct Lists(Mutex<Vec<Instant>>);

    impl Realizer for Lists {
        fn realize<'a>(
            &'a self,
            _: &'a SessionView,
            _: &'a Generation,
            _: EventSink,
            _: Duration,
        ) -> BoxFuture<'a, Result<Realized, Failure>> {
            Box::pin(std::future::pending())
        }

        fn relist<'a>(
            &'a self,
            _: &'a Generation,
            _: &'a dyn Peer,
            _: &'a Redactor,
        ) -> BoxFuture<'a, Result<(Surface, Vec<Note>), Failure>> {
            self.0.lock().unwrap().push(Instant::now());
            Box::pin(async { Ok((Surface::default(), vec![])) })
        }
    }

    fn generation() -> Generation {
        Generation {
            generation: 3,
            attachment: "files".into(),
            attachment_uid: "a-uid".into(),
            origin: crate::domain::lifecycle::Origin::Agent,
            server: "files".into(),
            source: "sha256:s".into(),
            state: State::Active,
            stage: None,
            target: Target::Http(HttpTarget { url: "https://h/mcp".into(), credential: None }),
            limits: Limits {
                startup_timeout_ms: 6,
                call_timeout_ms: 7,
                drain_timeout_ms: 8,
                max_concurrent_calls: 9,
                max_message_bytes: 10,
            },
            reason: Reason::Active,
            message: String::new(),
            since: Timestamp::UNIX_EPOCH,
            deadline: None,
            failures: 0,
            evidence: None,
            published: true,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_changed_lists_is_asked_for_less_and_less_often() {
        let (ears, lists) = (Arc::new(Ears::default()), Arc::new(Lists::default()));
        let (generation, peer) = (generation(), Arc::new(Well(Default::default())));
        let (surface, redactor) = (Surface::default(), Redactor::default());
        let handle = Handle::new(&generation, peer, surface, redactor, Arc::new(Never));
        let stop = CancellationToken::new();
        let what = (Arc::new(handle), generation);
        let how = (lists.clone() as Arc<dyn Realizer>, ears.clone());
        let watching = tokio::spawn(run(what, how, Pings::default(), stop.clone(), |_| ()));
        let sink = ears.sink();
        let tell = || {
            let method = LIST_CHANGED.to_owned();
            sink(PeerEvent::Notification { method, params: None });
        };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(120) {
            tell();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let times = lists.0.lock().unwrap().split_off(0);
        let gaps: Vec<_> = times.windows(2).map(|w| (w[1] - w[0]).as_millis()).collect();
        assert!((times[0] - begun).as_millis() < 130, "the first is asked for soon");
        assert!((9..12).contains(&times.len()), "{gaps:?}");
        let grow = gaps.windows(2).all(|w| w[1] + 50 >= w[0]);
        assert!(grow && gaps.last().is_some_and(|gap| *gap >= 29_900), "{gaps:?}");
        // the one that was still on its way, then a quiet minute
        tokio::time::sleep(Duration::from_secs(95)).await;
        lists.0.lock().unwrap().clear();
        let begun = Instant::now();
        tell();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let times = lists.0.lock().unwrap().clone();
        assert!(times.len() == 1 && (times[0] - begun).as_millis() < 130, "{times:?}");
        stop.cancel();
        watching.await.unwrap();
    }
}
