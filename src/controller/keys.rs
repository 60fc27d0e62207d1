//! The installation's own keys, made once by the operator and never by a chart: the Ed25519 key
//! that gateways sign with toward shims, and the key that Secret values are hashed with.

use super::{
    apply::{Apply, ApplyError, Created},
    build::{MANAGED_BY, MANAGER},
};
use crate::domain::identity::hex;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::SigningKey;
use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::{
    ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sha2::Sha256;
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// Secret with the seeds `current` and, after a rotation, `previous`.
pub const LINK_KEYS: &str = "awaken-link-keys";
/// Secret with the key of the source hashes.
pub const SOURCE_KEY: &str = "awaken-source-key";

const CURRENT: &str = "current";
const PREVIOUS: &str = "previous";
const KEY: &str = "key";

/// Why the keys are not there.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The Secret could not be made or read.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The Secret was refused.
    #[error("the Secret {0} is refused: {1}")]
    Refused(&'static str, String),
    /// What lies in the Secret is no key.
    #[error("the Secret {0} has no 32 bytes at {1}")]
    Malformed(&'static str, &'static str),
    /// The machine gives no random bytes.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

/// Makes both Secrets where they are missing; gives back the key of the source hashes.
///
/// # Errors
/// When one cannot be made or read.
pub async fn ensure(apply: &Apply, namespace: &str) -> Result<SourceKey, KeyError> {
    let link = ensure_one(apply, namespace, LINK_KEYS, CURRENT).await?;
    public_keys(&link)?;
    let source = ensure_one(apply, namespace, SOURCE_KEY, KEY).await?;
    Ok(SourceKey(Zeroizing::new(bytes(&source, SOURCE_KEY, KEY)?)))
}

async fn ensure_one(
    apply: &Apply,
    namespace: &str,
    name: &'static str,
    field: &str,
) -> Result<Secret, KeyError> {
    let mut fresh = Zeroizing::new([0u8; 32]);
    getrandom::fill(&mut *fresh)?;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some([(MANAGED_BY.to_owned(), MANAGER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(field.to_owned(), ByteString(fresh.to_vec()))])),
        ..Secret::default()
    };
    match apply.create_secret(&secret).await? {
        Created::Made(secret) | Created::Exists(secret) => Ok(secret),
        Created::Refused(problem) => Err(KeyError::Refused(name, problem.message)),
    }
}

/// The public keys of the link, current first, as shims take them: comma-separated base64.
///
/// # Errors
/// When the Secret holds something else.
pub fn public_keys(secret: &Secret) -> Result<String, KeyError> {
    let public = |field| -> Result<String, KeyError> {
        let seed = Zeroizing::new(bytes(secret, LINK_KEYS, field)?);
        Ok(STANDARD.encode(SigningKey::from_bytes(&seed).verifying_key().as_bytes()))
    };
    let mut all = public(CURRENT)?;
    if secret.data.as_ref().is_some_and(|d| d.contains_key(PREVIOUS)) {
        all = format!("{all},{}", public(PREVIOUS)?);
    }
    Ok(all)
}

fn bytes(secret: &Secret, name: &'static str, field: &'static str) -> Result<[u8; 32], KeyError> {
    let data = secret.data.as_ref().and_then(|d| d.get(field));
    data.and_then(|v| v.0.as_slice().try_into().ok()).ok_or(KeyError::Malformed(name, field))
}

/// Hashes values of Secrets, so that a change shows and the value does not.
#[derive(Clone)]
pub struct SourceKey(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for SourceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SourceKey")
    }
}

impl SourceKey {
    /// A key of these bytes.
    pub fn new(key: [u8; 32]) -> Self {
        Self(Zeroizing::new(key))
    }

    /// The keyed hash of one value.
    pub fn hash(&self, value: &[u8]) -> String {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(self.0.as_slice())
            .expect("HMAC takes a key of any length");
        mac.update(value);
        hex(&mac.finalize().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(fields: &[(&str, u8)]) -> Secret {
        let data = fields.iter().map(|(k, b)| ((*k).to_owned(), ByteString(vec![*b; 32])));
        Secret { data: Some(data.collect()), ..Secret::default() }
    }

    #[test]
    fn the_current_key_comes_first_and_the_previous_is_still_known() {
        let one = public_keys(&secret(&[("current", 1)])).unwrap();
        let two = public_keys(&secret(&[("current", 2), ("previous", 1)])).unwrap();
        assert_eq!(two.split(',').nth(1), Some(one.as_str()));
        assert!(public_keys(&secret(&[("previous", 1)])).is_err());
    }

    #[test]
    fn hashes_depend_on_key_and_value() {
        let (a, b) = (SourceKey::new([1; 32]), SourceKey::new([2; 32]));
        assert_eq!(a.hash(b"v"), a.hash(b"v"));
        assert_ne!(a.hash(b"v"), a.hash(b"w"));
        assert_ne!(a.hash(b"v"), b.hash(b"v"));
    }
}
