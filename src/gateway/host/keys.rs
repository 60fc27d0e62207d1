//! The installation's Ed25519 key, with which the gateway proves itself to shims. The operator
//! makes it once; here it is read by GET until it is there, and never written.

use super::cluster::{Cluster, ClusterError};
use crate::process::health::Guard;
use arc_swap::ArcSwapOption;
use ed25519_dalek::{Signature, SigningKey};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Between two looks while there is no key.
const WAIT: Duration = Duration::from_secs(1);
/// Between two looks at a key that is there: it may be rotated.
const REREAD: Duration = Duration::from_secs(60);

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
        loop {
            let read = cluster.secret(&namespace, &name).await;
            match read.and_then(|data| Ok((seed(data.values.get("current"))?, data))) {
                Ok((key, data)) => {
                    let before = self.current.swap(Some(Arc::new(key)));
                    let stated = seed(data.values.get("previous")).ok().map(Arc::new);
                    let known = || before.filter(|b| Some(b) != self.current().as_ref());
                    if let Some(previous) = stated.or_else(known) {
                        self.previous.store(Some(previous));
                    }
                    guard.take();
                }
                Err(error) => tracing::info!(secret = name, %error, "no link key yet"),
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

    #[test]
    fn a_seed_has_32_bytes() {
        assert!(seed(Some(&vec![7; 32])).is_ok());
        for wrong in [None, Some(vec![]), Some(vec![7; 31]), Some(vec![7; 44])] {
            assert!(seed(wrong.as_ref()).is_err());
        }
    }
}
