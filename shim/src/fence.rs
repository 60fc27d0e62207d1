//! Decides who may attach: the signature first, then the identity, then the epoch.
//!
//! Pure; it cuts no link itself. What it admits is the newest, so the caller ends the older link.

use crate::{Claim, Nonce, Refusal, challenge};
use ed25519_dalek::VerifyingKey;

/// What this shim is; a claim must name exactly this.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Uid of this pod.
    pub pod_uid: String,
    /// Uid of the Session.
    pub session_uid: String,
    /// Uid of the attachment.
    pub attachment_uid: String,
    /// Generation.
    pub generation: u64,
}

/// The fence; remembers the highest epoch and whose it is.
#[derive(Clone, Debug)]
pub struct Fence {
    identity: Identity,
    keys: Vec<VerifyingKey>,
    highest: Option<(u64, String)>,
}

impl Fence {
    /// A fence that has seen no epoch.
    pub fn new(identity: Identity, keys: Vec<VerifyingKey>) -> Self {
        Self { identity, keys, highest: None }
    }

    /// The highest epoch, and whose it is.
    pub fn highest(&self) -> Option<&(u64, String)> {
        self.highest.as_ref()
    }

    /// Admits a claim and remembers its epoch, or says why not and for people.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn admit(
        &mut self,
        nonce: &Nonce,
        claim: &Claim,
        signature: &str,
    ) -> Result<(), (Refusal, String)> {
        if let Err(error) = challenge::verify(&self.keys, nonce, claim, signature) {
            return Err((Refusal::BadSignature, error.to_string()));
        }
        self.take(claim)
    }

    /// The same for a claim that is known to be the gateway's.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn take(&mut self, claim: &Claim) -> Result<(), (Refusal, String)> {
        let own = &self.identity;
        let pairs = [
            (Refusal::WrongPod, "pod", &own.pod_uid, &claim.pod_uid),
            (Refusal::WrongSession, "Session", &own.session_uid, &claim.session_uid),
            (Refusal::WrongAttachment, "attachment", &own.attachment_uid, &claim.attachment_uid),
        ];
        for (refusal, what, own, theirs) in pairs {
            if own != theirs {
                return Err((refusal, format!("this is {what} {own}, not {theirs}")));
            }
        }
        if own.generation != claim.generation {
            let message =
                format!("this is generation {}, not {}", own.generation, claim.generation);
            return Err((Refusal::WrongGeneration, message));
        }
        match &self.highest {
            Some((epoch, _)) if claim.epoch < *epoch => {
                let message = format!("epoch {} is below {epoch}, the highest seen", claim.epoch);
                return Err((Refusal::StaleEpoch, message));
            }
            Some((epoch, holder)) if claim.epoch == *epoch && *holder != claim.incarnation => {
                return Err((Refusal::EpochTaken, format!("epoch {epoch} belongs to {holder}")));
            }
            _ => self.highest = Some((claim.epoch, claim.incarnation.clone())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::SigningKey;
    use rstest::rstest;

    const NONCE: Nonce = [5; 32];

    fn key() -> SigningKey {
        SigningKey::from_bytes(&[1; 32])
    }

    fn fence() -> Fence {
        let identity = Identity {
            pod_uid: "pod-1".into(),
            session_uid: "session-2".into(),
            attachment_uid: "attachment-3".into(),
            generation: 4,
        };
        Fence::new(identity, vec![key().verifying_key()])
    }

    fn claim(epoch: u64, incarnation: &str) -> Claim {
        Claim {
            pod_uid: "pod-1".into(),
            session_uid: "session-2".into(),
            attachment_uid: "attachment-3".into(),
            generation: 4,
            epoch,
            incarnation: incarnation.into(),
        }
    }

    fn admit(fence: &mut Fence, claim: &Claim) -> Option<Refusal> {
        let signature = challenge::sign(&key(), &NONCE, claim);
        fence.admit(&NONCE, claim, &signature).err().map(|(refusal, _)| refusal)
    }

    #[rstest]
    #[case::pod(|c: &mut Claim| c.pod_uid = "pod-9".into(), Refusal::WrongPod)]
    #[case::session(|c: &mut Claim| c.session_uid = "x".into(), Refusal::WrongSession)]
    #[case::attachment(|c: &mut Claim| c.attachment_uid = "x".into(), Refusal::WrongAttachment)]
    #[case::generation(|c: &mut Claim| c.generation = 3, Refusal::WrongGeneration)]
    fn another_identity_is_refused_by_name(
        #[case] alter: fn(&mut Claim),
        #[case] expected: Refusal,
    ) {
        let mut fence = fence();
        let mut other = claim(7, "a");
        alter(&mut other);
        assert_eq!(admit(&mut fence, &other), Some(expected));
        assert_eq!(admit(&mut fence, &claim(1, "b")), None, "a refused epoch leaves no trace");
    }

    #[test]
    fn a_wrong_key_is_refused_before_anything_is_told() {
        let mut fence = fence();
        let other = Claim { pod_uid: "pod-9".into(), ..claim(7, "a") };
        let signature = challenge::sign(&SigningKey::from_bytes(&[2; 32]), &NONCE, &other);
        let (refusal, message) = fence.admit(&NONCE, &other, &signature).unwrap_err();
        assert_eq!(refusal, Refusal::BadSignature);
        assert!(!message.contains("pod-1"), "{message}");
    }

    #[test]
    fn epochs_only_rise() {
        let mut fence = fence();
        let steps = [
            (5, "a", None),
            (5, "a", None),
            (4, "a", Some(Refusal::StaleEpoch)),
            (5, "b", Some(Refusal::EpochTaken)),
            (6, "b", None),
            (5, "a", Some(Refusal::StaleEpoch)),
            (u64::MAX, "c", None),
            (6, "b", Some(Refusal::StaleEpoch)),
        ];
        for (epoch, incarnation, expected) in steps {
            assert_eq!(admit(&mut fence, &claim(epoch, incarnation)), expected, "epoch {epoch}");
        }
    }
}
