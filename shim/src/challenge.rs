//! The challenge that opens a link: what a gateway signs, and how a shim checks it.
//!
//! Only the holder of the installation's Ed25519 key can sign; the nonce makes each signature good
//! for one link. Nothing here decides about epochs or identities, see the shim's `fence`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

/// Fresh random bytes of one link.
pub type Nonce = [u8; 32];

const DOMAIN: &[u8] = b"awaken.dev/shim-attach/v1";

/// What a gateway claims on attaching; all of it is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Uid of the pod that the gateway means to reach.
    pub pod_uid: String,
    /// Uid of the Session.
    pub session_uid: String,
    /// Uid of the attachment.
    pub attachment_uid: String,
    /// Generation of the attachment.
    pub generation: u64,
    /// Epoch of the Session's host.
    pub epoch: u64,
    /// Incarnation of the gateway that holds the epoch.
    pub incarnation: String,
}

/// Why a key or a signature was not accepted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChallengeError {
    /// A public key that is no base64 of a usable Ed25519 key; the number counts from 1.
    #[error("public key {0} is not base64 of a 32-byte Ed25519 key")]
    Key(usize),
    /// No public key at all.
    #[error("no public key is given")]
    NoKey,
    /// A nonce that is no base64 of 32 bytes.
    #[error("the nonce is not base64 of 32 bytes")]
    Nonce,
    /// None of the keys made this signature over this claim.
    #[error("no known key made the signature")]
    Signature,
}

/// The bytes that are signed: a domain, then each field with its length, so that no two different
/// claims share an encoding.
pub fn canonical(nonce: &Nonce, claim: &Claim) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let mut field = |bytes: &[u8]| {
        out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        out.extend_from_slice(bytes);
    };
    field(DOMAIN);
    field(nonce);
    field(claim.pod_uid.as_bytes());
    field(claim.session_uid.as_bytes());
    field(claim.attachment_uid.as_bytes());
    field(&claim.generation.to_be_bytes());
    field(&claim.epoch.to_be_bytes());
    field(claim.incarnation.as_bytes());
    out
}

/// Signs a claim; base64.
pub fn sign(key: &SigningKey, nonce: &Nonce, claim: &Claim) -> String {
    STANDARD.encode(key.sign(&canonical(nonce, claim)).to_bytes())
}

/// Checks a signature against each key in turn.
pub fn verify(
    keys: &[VerifyingKey],
    nonce: &Nonce,
    claim: &Claim,
    signature: &str,
) -> Result<(), ChallengeError> {
    let bytes = STANDARD.decode(signature).map_err(|_| ChallengeError::Signature)?;
    let signature = Signature::from_slice(&bytes).map_err(|_| ChallengeError::Signature)?;
    let message = canonical(nonce, claim);
    if keys.iter().any(|key| key.verify_strict(&message, &signature).is_ok()) {
        Ok(())
    } else {
        Err(ChallengeError::Signature)
    }
}

/// Reads comma-separated base64 public keys, as `AWAKEN_GATEWAY_KEYS` holds them.
pub fn parse_keys(text: &str) -> Result<Vec<VerifyingKey>, ChallengeError> {
    let mut keys = Vec::new();
    for (index, part) in text.split(',').map(str::trim).filter(|part| !part.is_empty()).enumerate()
    {
        let error = ChallengeError::Key(index + 1);
        let bytes = STANDARD.decode(part).ok().and_then(|bytes| bytes.try_into().ok());
        match bytes.and_then(|bytes: [u8; 32]| VerifyingKey::from_bytes(&bytes).ok()) {
            Some(key) if !key.is_weak() => keys.push(key),
            _ => return Err(error),
        }
    }
    if keys.is_empty() { Err(ChallengeError::NoKey) } else { Ok(keys) }
}

/// A public key in the form that [`parse_keys`] reads.
pub fn format_key(key: &VerifyingKey) -> String {
    STANDARD.encode(key.as_bytes())
}

/// A nonce as text.
pub fn format_nonce(nonce: &Nonce) -> String {
    STANDARD.encode(nonce)
}

/// A nonce from text.
pub fn parse_nonce(text: &str) -> Result<Nonce, ChallengeError> {
    let bytes = STANDARD.decode(text).map_err(|_| ChallengeError::Nonce)?;
    bytes.try_into().map_err(|_| ChallengeError::Nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    fn claim() -> Claim {
        Claim {
            pod_uid: "pod-1".into(),
            session_uid: "session-2".into(),
            attachment_uid: "attachment-3".into(),
            generation: 4,
            epoch: 5,
            incarnation: "incarnation-6".into(),
        }
    }

    #[test]
    fn current_and_previous_key_are_accepted() {
        let keys = [key(1).verifying_key(), key(2).verifying_key()];
        for seed in [1, 2] {
            let signature = sign(&key(seed), &[7; 32], &claim());
            assert_eq!(verify(&keys, &[7; 32], &claim(), &signature), Ok(()));
        }
        let other = sign(&key(3), &[7; 32], &claim());
        assert_eq!(verify(&keys, &[7; 32], &claim(), &other), Err(ChallengeError::Signature));
    }

    #[test]
    fn every_altered_field_is_refused() {
        let keys = [key(1).verifying_key()];
        let signature = sign(&key(1), &[7; 32], &claim());
        let altered: [fn(&mut Claim); 6] = [
            |c| c.pod_uid.push('x'),
            |c| c.session_uid.push('x'),
            |c| c.attachment_uid.push('x'),
            |c| c.generation += 1,
            |c| c.epoch += 1,
            |c| c.incarnation.push('x'),
        ];
        for alter in altered {
            let mut other = claim();
            alter(&mut other);
            assert!(verify(&keys, &[7; 32], &other, &signature).is_err(), "{other:?}");
        }
        assert!(verify(&keys, &[8; 32], &claim(), &signature).is_err(), "another nonce");
    }

    #[test]
    fn bytes_moved_between_fields_are_refused() {
        let keys = [key(1).verifying_key()];
        let signature = sign(&key(1), &[7; 32], &claim());
        let moved = Claim { pod_uid: "pod-1s".into(), session_uid: "ession-2".into(), ..claim() };
        assert!(verify(&keys, &[7; 32], &moved, &signature).is_err());
    }

    #[test]
    fn a_damaged_signature_is_refused_not_a_panic() {
        let keys = [key(1).verifying_key()];
        let good = STANDARD.decode(sign(&key(1), &[7; 32], &claim())).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(verify(&keys, &[7; 32], &claim(), &STANDARD.encode(bad)).is_err());
        }
        for text in ["", "====", "AAAA", "not base64"] {
            assert!(verify(&keys, &[7; 32], &claim(), text).is_err());
        }
    }

    #[test]
    fn keys_are_read_or_named() {
        let two = format!(
            "{}, {}",
            format_key(&key(1).verifying_key()),
            format_key(&key(2).verifying_key())
        );
        assert_eq!(parse_keys(&two).unwrap().len(), 2);
        assert_eq!(parse_keys(" , "), Err(ChallengeError::NoKey));
        assert_eq!(parse_keys("AAAA"), Err(ChallengeError::Key(1)));
        let weak = format!("{},{}", format_key(&key(1).verifying_key()), STANDARD.encode([0; 32]));
        assert_eq!(parse_keys(&weak), Err(ChallengeError::Key(2)));
    }

    #[test]
    fn nonces_round_trip() {
        assert_eq!(parse_nonce(&format_nonce(&[9; 32])), Ok([9; 32]));
        assert_eq!(parse_nonce("AAAA"), Err(ChallengeError::Nonce));
    }
}
