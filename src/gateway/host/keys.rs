//! The installation's Ed25519 key, with which the gateway proves itself to shims. The operator
//! makes it once; here it is read by GET until it is there, and never written.

use super::cluster::{Cluster, ClusterError};
use crate::process::health::Guard;
use arc_swap::ArcSwapOption;
use ed25519_dalek::{Signature, SigningKey};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two looks while there is no key.
const WAIT: Duration = Duration::from_secs(1);
/// Between two looks at a key that is there: it may be rotated.
const REREAD: Duration = Duration::from_secs(60);

/// How long the key before is good that the Secret does not state.
const GRACE: Duration = Duration::from_secs(120);

/// The keys, once they are there. Clones share them.
#[derive(Clone, Default)]
pub struct LinkKeys {
    current: Arc<ArcSwapOption<SigningKey>>,
    previous: Arc<ArcSwapOption<SigningKey>>,
}

impl LinkKeys {
    /// Keys that are known already.
    pub fn new(current: SigningKey, previous: Option<SigningKey>) -> Self {
        let keys = Self::default();
        keys.current.store(Some(Arc::new(current)));
        keys.previous.store(previous.map(Arc::new));
        keys
    }

    /// The current key.
    pub fn current(&self) -> Option<Arc<SigningKey>> {
        self.current.load_full()
    }

    /// Whether one of the keys signed this. The one before the current is good too: another gateway
    /// may not have seen the change yet, or this one.
    pub fn verify(&self, message: &[u8], signature: &Signature) -> bool {
        let keys = [self.current.load_full(), self.previous.load_full()];
        keys.into_iter()
            .flatten()
            .any(|key| key.verifying_key().verify_strict(message, signature).is_ok())
    }

    /// Reads the Secret until `stop`; drops the guard when there is a key.
    pub async fn load(
        self,
        cluster: Arc<dyn Cluster>,
        (namespace, name): (String, String),
        guard: Guard,
        stop: CancellationToken,
    ) {
        let mut guard = Some(guard);
        let mut replaced: Option<(Arc<SigningKey>, Instant)> = None;
        loop {
            let read = cluster.secret(&namespace, &name).await;
            match read.and_then(|data| Ok((seed(data.values.get("current"))?, data))) {
                Ok((key, data)) => {
                    let key = Arc::new(key);
                    if let Some(before) = self.current.swap(Some(key.clone())).filter(|b| *b != key)
                    {
                        replaced = Some((before, Instant::now()));
                    }
                    // what the Secret does not state any more opens nothing, but for the moment in
                    // which others may not have seen the change
                    let stated = seed(data.values.get("previous")).ok().map(Arc::new);
                    replaced = replaced.filter(|(_, at)| at.elapsed() < GRACE);
                    let known = replaced.as_ref().map(|(key, _)| key.clone());
                    self.previous.store(stated.or(known));
                    guard.take();
                }
                Err(error) if guard.is_some() => {
                    tracing::info!(secret = name, %error, "no link key yet");
                }
                Err(error) => {
                    tracing::warn!(secret = name, %error, "the link keys cannot be read again");
                }
            }
            let pause = if guard.is_some() { WAIT } else { REREAD };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

fn seed(bytes: Option<&Vec<u8>>) -> Result<SigningKey, ClusterError> {
    let seed: Option<&[u8; 32]> = bytes.and_then(|b| b.as_slice().try_into().ok());
    let wrong = || ClusterError::Other("`current` is not a seed of 32 bytes".to_owned());
    seed.map(SigningKey::from_bytes).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{identity::SessionKey, lifecycle::Receipt, usage::Activity},
        gateway::{
            host::{cluster::SecretView, realize::Note},
            index::SessionView,
        },
        process::health::Readiness,
    };
    use ed25519_dalek::Signer as _;
    use futures::{FutureExt as _, future::BoxFuture};
    use std::sync::Mutex;

    /// Holds one Secret, and nothing else.
    #[derive(Default)]
    struct Stated(Mutex<SecretView>);

    impl Stated {
        fn set(&self, keys: &[(&str, u8)]) {
            let values = keys.iter().map(|(k, seed)| ((*k).to_owned(), vec![*seed; 32]));
            self.0.lock().unwrap().values = values.collect();
        }
    }

    impl Cluster for Stated {
        fn session<'a>(
            &'a self,
            _: &'a SessionKey,
        ) -> BoxFuture<'a, Result<SessionView, ClusterError>> {
            std::future::pending().boxed()
        }

        fn write_receipts<'a>(
            &'a self,
            _: &'a SessionView,
            _: &'a [Receipt],
            _: Option<&'a Activity>,
        ) -> BoxFuture<'a, Result<SessionView, ClusterError>> {
            std::future::pending().boxed()
        }

        fn secret<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
        ) -> BoxFuture<'a, Result<SecretView, ClusterError>> {
            let view = self.0.lock().unwrap().clone();
            async { Ok(view) }.boxed()
        }

        fn event<'a>(
            &'a self,
            _: &'a SessionView,
            _: (&'a str, &'a str),
            _: Note,
        ) -> BoxFuture<'a, ()> {
            std::future::pending().boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_withdrawn_opens_nothing() {
        let (cluster, keys) = (Arc::new(Stated::default()), LinkKeys::default());
        cluster.set(&[("current", 1)]);
        let guard = Readiness::default().guard("link keys");
        let (name, stop) = (("ns".into(), "keys".into()), CancellationToken::new());
        let loading = tokio::spawn(keys.clone().load(cluster.clone(), name, guard, stop.clone()));
        let opens = || {
            [1, 2].map(|seed| {
                let signature = SigningKey::from_bytes(&[seed; 32]).sign(b"m");
                keys.verify(b"m", &signature)
            })
        };
        tokio::time::sleep(REREAD / 2).await;
        assert_eq!(opens(), [true, false]);
        cluster.set(&[("current", 2), ("previous", 1)]);
        tokio::time::sleep(GRACE + REREAD * 2).await;
        assert_eq!(opens(), [true, true]);
        cluster.set(&[("current", 2)]);
        tokio::time::sleep(REREAD).await;
        assert_eq!(opens(), [false, true]);
        // a change that states no previous one
        cluster.set(&[("current", 1)]);
        tokio::time::sleep(REREAD).await;
        assert_eq!(opens(), [true, true]);
        tokio::time::sleep(GRACE).await;
        assert_eq!(opens(), [true, false]);
        stop.cancel();
        loading.await.unwrap();
    }

    #[test]
    fn a_seed_has_32_bytes() {
        assert!(seed(Some(&vec![7; 32])).is_ok());
        for wrong in [None, Some(vec![]), Some(vec![7; 31]), Some(vec![7; 44])] {
            assert!(seed(wrong.as_ref()).is_err());
        }
    }
}
