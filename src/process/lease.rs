//! A Lease: one holder at a time, as client-go does it: every write carries a resourceVersion, and
//! another's Lease is expired only when it was not renewed for its whole duration by our own clock.
//!
//! Who acts under a Lease asks [`Held::is_valid`], which ends before others may take the Lease
//! over, counted on the monotonic clock from before the request that renewed it was sent.

use crate::domain::Clock;
use k8s_openapi::{
    api::coordination::v1::{Lease as LeaseObject, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, PostParams, Preconditions},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// What to hold.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who holds it; unique for each start of a process.
    pub identity: String,
    /// How long it is valid without renewal. Renewed each third of it. Whole seconds.
    pub duration: Duration,
    /// Labels of the object.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the object, beside those that others gave it.
    pub annotations: BTreeMap<String, String>,
    /// Owner of the object, so that it goes with it.
    pub owner: Option<OwnerReference>,
    /// Whether the Lease is ours by its name, so that an older holder is a former start of us.
    pub exclusive_name: bool,
}

/// Whether we hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Until when it is surely ours; none when it is not.
    pub until: Option<Instant>,
}

impl Held {
    /// Whether it is surely ours at this moment.
    pub fn is_valid(self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// Why a Lease is held no longer.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// It could not be renewed in time.
    #[error("the Lease {0} could not be renewed before it expired")]
    Expired(String),
    /// Another holder took it.
    #[error("the Lease {name} was taken over by {holder}")]
    TakenOver {
        /// The Lease.
        name: String,
        /// Who has it now.
        holder: String,
    },
}

/// Holds the Lease from the first chance on.
pub struct Keeper {
    api: Api<LeaseObject>,
    config: Config,
    clock: Arc<dyn Clock>,
    held: watch::Sender<Held>,
    other: Option<Observed>,
}

/// Another's Lease as we saw it change last.
struct Observed {
    version: Option<String>,
    since: Instant,
}

enum Round {
    Renewed(Instant),
    HeldBy(String),
    Conflict,
}

impl Keeper {
    /// A keeper, and where it tells whether the Lease is held.
    pub fn new(
        client: Client,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> (Self, watch::Receiver<Held>) {
        let (held, receiver) = watch::channel(Held::default());
        let api = Api::namespaced(client, &config.namespace);
        (Self { api, config, clock, held, other: None }, receiver)
    }

    /// Acquires and renews until `stop`, then gives the Lease back.
    ///
    /// # Errors
    /// When a Lease that was held is lost. What relied on it must stop at once.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), LeaseError> {
        let period = self.config.duration / 3;
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(pause) => {}
            }
            let valid_until = self.held.borrow().until;
            let limit = valid_until.map_or(period, |until| {
                period.min(until.saturating_duration_since(Instant::now()))
            });
            pause = match timeout(limit, self.round()).await {
                Ok(Ok(Round::Renewed(until))) => {
                    self.held.send_replace(Held { until: Some(until) });
                    period
                }
                Ok(Ok(Round::HeldBy(holder))) if valid_until.is_some() => {
                    self.held.send_replace(Held::default());
                    return Err(LeaseError::TakenOver { name: self.config.name, holder });
                }
                Ok(Ok(Round::HeldBy(_))) => period.min(Duration::from_secs(2)),
                Ok(Ok(Round::Conflict)) => Duration::from_millis(50),
                Ok(Err(problem)) => {
                    tracing::warn!(lease = %self.config.name, %problem, "renewing the Lease failed");
                    Duration::from_secs(1)
                }
                Err(_) => {
                    tracing::warn!(lease = %self.config.name, "renewing the Lease timed out");
                    Duration::from_millis(100)
                }
            };
            if valid_until.is_some() && !self.held.borrow().is_valid() {
                self.held.send_replace(Held::default());
                return Err(LeaseError::Expired(self.config.name));
            }
        }
        self.release().await;
        Ok(())
    }

    async fn round(&mut self) -> Result<Round, kube::Error> {
        let asked = Instant::now();
        // A tenth is kept as the distance between our end and another's beginning.
        let until = asked + self.config.duration - self.config.duration / 10;
        let Some(found) = self.api.get_opt(&self.config.name).await? else {
            return match self.api.create(&PostParams::default(), &self.object(None)).await {
                Ok(_) => Ok(Round::Renewed(until)),
                Err(e) if is_conflict(&e) => Ok(Round::Conflict),
                Err(e) => Err(e),
            };
        };
        let holder =
            found.spec.as_ref().and_then(|s| s.holder_identity.clone()).unwrap_or_default();
        let ours = holder == self.config.identity || holder.is_empty();
        if !ours && !self.config.exclusive_name && !self.has_expired(&found) {
            return Ok(Round::HeldBy(holder));
        }
        let next = self.object(Some(found));
        match self.api.replace(&self.config.name, &PostParams::default(), &next).await {
            Ok(_) => Ok(Round::Renewed(until)),
            Err(e) if is_conflict(&e) => Ok(Round::Conflict),
            Err(e) => Err(e),
        }
    }

    /// Whether another's Lease stood unchanged for its whole duration, by our clock.
    fn has_expired(&mut self, found: &LeaseObject) -> bool {
        let version = found.metadata.resource_version.clone();
        let duration = found.spec.as_ref().and_then(|s| s.lease_duration_seconds).unwrap_or(0);
        let duration = Duration::from_secs(u64::try_from(duration).unwrap_or(0));
        match &self.other {
            Some(seen) if seen.version == version => seen.since.elapsed() >= duration,
            _ => {
                self.other = Some(Observed { version, since: Instant::now() });
                false
            }
        }
    }

    fn object(&self, found: Option<LeaseObject>) -> LeaseObject {
        let now = MicroTime(self.clock.now());
        let config = &self.config;
        let mut object = found.unwrap_or_else(|| LeaseObject {
            metadata: ObjectMeta {
                name: Some(config.name.clone()),
                namespace: Some(config.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        object.metadata.labels = Some(config.labels.clone()).filter(|l| !l.is_empty());
        if !config.annotations.is_empty() {
            let annotations = object.metadata.annotations.get_or_insert_default();
            annotations.extend(config.annotations.clone());
        }
        object.metadata.owner_references = config.owner.clone().map(|o| vec![o]);
        let spec = object.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_ref() != Some(&config.identity) {
            spec.holder_identity = Some(config.identity.clone());
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + 1);
        }
        spec.lease_duration_seconds = i32::try_from(config.duration.as_secs()).ok();
        spec.renew_time = Some(now);
        object
    }

    /// Gives it back, best effort: whoever waits need not wait for the expiry.
    async fn release(&self) {
        self.held.send_replace(Held::default());
        let give_back = async {
            let Some(found) = self.api.get_opt(&self.config.name).await? else { return Ok(()) };
            let holder = found.spec.as_ref().and_then(|s| s.holder_identity.as_ref());
            if holder != Some(&self.config.identity) {
                return Ok(());
            }
            let exactly = Preconditions {
                uid: found.metadata.uid,
                resource_version: found.metadata.resource_version,
            };
            let delete = DeleteParams::default().preconditions(exactly);
            self.api.delete(&self.config.name, &delete).await.map(|_| ())
        };
        match timeout(Duration::from_secs(5), give_back).await {
            Ok(Ok(())) => {}
            Ok(Err(problem)) => {
                tracing::warn!(lease = %self.config.name, %problem, "giving the Lease back failed");
            }
            Err(_) => tracing::warn!(lease = %self.config.name, "giving the Lease back timed out"),
        }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use jiff::Timestamp;
    use kube::client::Body;
    use std::{
        convert::Infallible,
        sync::{Mutex, atomic::AtomicBool, atomic::Ordering},
    };

    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(1_800_000_000).unwrap()
        }
    }

    /// One Lease, as the API server keeps it.
    #[derive(Clone, Default)]
    struct Server {
        stored: Arc<Mutex<Option<LeaseObject>>>,
        down: Arc<AtomicBool>,
    }

    impl Server {
        fn client(&self) -> Client {
            let server = self.clone();
            Client::new(
                tower::service_fn(move |request| server.clone().answer(request)),
                "awaken-system",
            )
        }

        fn store(&self, holder: &str, version: u64) {
            let lease = LeaseObject {
                metadata: ObjectMeta {
                    name: Some("l".into()),
                    uid: Some("u".into()),
                    resource_version: Some(version.to_string()),
                    ..ObjectMeta::default()
                },
                spec: Some(LeaseSpec {
                    holder_identity: Some(holder.into()),
                    lease_duration_seconds: Some(15),
                    ..LeaseSpec::default()
                }),
            };
            *self.stored.lock().unwrap() = Some(lease);
        }

        fn holder(&self) -> Option<String> {
            self.stored.lock().unwrap().as_ref()?.spec.as_ref()?.holder_identity.clone()
        }

        async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
            let method = request.method().clone();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut stored = self.stored.lock().unwrap();
            let (status, answer) = if self.down.load(Ordering::SeqCst) {
                (StatusCode::INTERNAL_SERVER_ERROR, failure(500))
            } else if method == Method::GET {
                match &*stored {
                    Some(lease) => (StatusCode::OK, serde_json::to_vec(lease).unwrap()),
                    None => (StatusCode::NOT_FOUND, failure(404)),
                }
            } else if method == Method::DELETE {
                *stored = None;
                (
                    StatusCode::OK,
                    br#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#.to_vec(),
                )
            } else {
                let mut sent: LeaseObject = serde_json::from_slice(&body).unwrap();
                let version = |l: &LeaseObject| l.metadata.resource_version.clone();
                let present = stored.as_ref().and_then(version);
                if version(&sent) == present {
                    let next = present.map_or(1, |v| v.parse::<u64>().unwrap() + 1);
                    sent.metadata.resource_version = Some(next.to_string());
                    let answer = serde_json::to_vec(&sent).unwrap();
                    *stored = Some(sent);
                    (StatusCode::OK, answer)
                } else {
                    (StatusCode::CONFLICT, failure(409))
                }
            };
            Ok(Response::builder().status(status).body(Body::from(answer)).unwrap())
        }
    }

    fn failure(code: u16) -> Vec<u8> {
        let reason = match code {
            404 => "NotFound",
            409 => "Conflict",
            _ => "InternalError",
        };
        format!(r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","code":{code},"reason":"{reason}","message":"m"}}"#)
            .into_bytes()
    }

    fn keeper(server: &Server, exclusive_name: bool) -> (Keeper, watch::Receiver<Held>) {
        let config = Config {
            namespace: "awaken-system".into(),
            name: "l".into(),
            identity: "me".into(),
            duration: Duration::from_secs(15),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            owner: None,
            exclusive_name,
        };
        Keeper::new(server.client(), config, Arc::new(Fixed))
    }

    async fn until_held(held: &mut watch::Receiver<Held>) -> Duration {
        let start = Instant::now();
        timeout(Duration::from_secs(60), held.wait_for(|h| h.is_valid())).await.unwrap().unwrap();
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_free_lease_is_taken_and_given_back() {
        let server = Server::default();
        let (keeper, mut held) = keeper(&server, false);
        let stop = CancellationToken::new();
        let run = tokio::spawn(keeper.run(stop.clone()));
        until_held(&mut held).await;
        assert_eq!(server.holder().as_deref(), Some("me"));
        stop.cancel();
        run.await.unwrap().unwrap();
        assert_eq!(server.holder(), None);
        assert!(!held.borrow().is_valid());
    }

    #[tokio::test(start_paused = true)]
    async fn anothers_lease_is_taken_only_when_it_stood_still_for_its_duration() {
        let server = Server::default();
        server.store("other", 7);
        let (keeper, mut held) = keeper(&server, false);
        let run = tokio::spawn(keeper.run(CancellationToken::new()));
        let waited = until_held(&mut held).await;
        assert!(
            waited >= Duration::from_secs(15) && waited < Duration::from_secs(20),
            "{waited:?}"
        );
        run.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_former_start_of_ours_is_replaced_at_once() {
        let server = Server::default();
        server.store("me-before", 7);
        let (keeper, mut held) = keeper(&server, true);
        let run = tokio::spawn(keeper.run(CancellationToken::new()));
        assert!(until_held(&mut held).await < Duration::from_secs(1));
        run.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_renewed_ends_before_others_may_take_it() {
        let server = Server::default();
        let (keeper, mut held) = keeper(&server, false);
        let run = tokio::spawn(keeper.run(CancellationToken::new()));
        until_held(&mut held).await;
        let until = held.borrow().until.unwrap();
        server.down.store(true, Ordering::SeqCst);
        let error = timeout(Duration::from_secs(30), run).await.unwrap().unwrap().unwrap_err();
        assert!(matches!(error, LeaseError::Expired(_)), "{error}");
        assert!(!held.borrow().is_valid());
        assert!(Instant::now() < until + Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_another_took_is_lost() {
        let server = Server::default();
        let (keeper, mut held) = keeper(&server, false);
        let run = tokio::spawn(keeper.run(CancellationToken::new()));
        until_held(&mut held).await;
        server.store("other", 99);
        let error = timeout(Duration::from_secs(30), run).await.unwrap().unwrap().unwrap_err();
        assert!(error.to_string().contains("taken over by other"), "{error}");
    }
}
