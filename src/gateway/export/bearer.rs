//! The tokens of the route: compared in constant time, kept as digests, replaced while in use.
//!
//! Two may be valid, so that one can be rotated without a refused request. What hangs on a token
//! that is valid no longer ends at once.

use crate::{domain::redact::Redactor, gateway::auth::is_usable};
use arc_swap::ArcSwapOption;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use subtle::ConstantTimeEq as _;
use tokio_util::sync::CancellationToken;

/// The tokens as they are now. Clones share them. One writer.
#[derive(Clone, Debug, Default)]
pub struct Bearer(Arc<ArcSwapOption<Tokens>>);

/// The valid tokens at one moment.
pub struct Tokens {
    current: Known,
    previous: Option<Known>,
    redactor: Arc<Redactor>,
}

struct Known {
    digest: [u8; 32],
    /// Cancelled when it is valid no longer.
    withdrawn: CancellationToken,
}

/// The proof that a request showed a valid token.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Cancelled when that token is valid no longer.
    pub withdrawn: CancellationToken,
    /// What must not stand in a record of the request.
    pub secrets: Secrets,
}

/// The tokens that must stand in no record: those that were valid when a request came in, and those
/// that are when the record is made.
#[derive(Clone, Debug)]
pub struct Secrets {
    bearer: Bearer,
    then: Arc<Redactor>,
}

impl Secrets {
    /// Takes them out of a text. Asked for each record: while a call runs a token may come.
    pub fn redactor(&self) -> Arc<Redactor> {
        match self.bearer.tokens() {
            Some(now) if !Arc::ptr_eq(&now.redactor, &self.then) => {
                Arc::new(self.then.beside(&now.redactor))
            }
            _ => self.then.clone(),
        }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.all().count())
    }
}

impl Bearer {
    /// Takes the values of the Secret as they are now; white space around them is no part of them.
    /// Without a current one there is no route, whatever else there is.
    pub fn set(&self, current: Option<&[u8]>, previous: Option<&[u8]>) {
        let old = self.0.load_full();
        let usable = |value: Option<&'_ [u8]>| value.is_some_and(|v| is_usable(v.trim_ascii()));
        let new = current.filter(|_| usable(current)).map(|current| {
            let previous = previous.filter(|_| usable(previous));
            let redactor = Redactor::new([Some(current), previous].into_iter().flatten());
            let known = |value| Known::new(value, old.as_deref());
            Arc::new(Tokens {
                current: known(current),
                previous: previous.map(known),
                redactor: Arc::new(redactor),
            })
        });
        self.0.store(new.clone());
        for known in old.iter().flat_map(|tokens| tokens.all()) {
            let stays = new.iter().flat_map(|tokens| tokens.all());
            if !stays.into_iter().any(|k| k.digest == known.digest) {
                known.withdrawn.cancel();
            }
        }
    }

    /// The valid tokens; none without a route.
    pub fn tokens(&self) -> Option<Arc<Tokens>> {
        self.0.load_full()
    }

    /// Whether a token is one of these. Takes as long for one as for another.
    pub fn check(&self, tokens: &Tokens, shown: &str) -> Option<Pass> {
        let withdrawn = tokens.find(shown)?;
        let secrets = Secrets { bearer: self.clone(), then: tokens.redactor.clone() };
        Some(Pass { withdrawn, secrets })
    }
}

impl Known {
    /// A token; the one that was valid before is still the same.
    fn new(value: &[u8], old: Option<&Tokens>) -> Self {
        let digest = Sha256::digest(value.trim_ascii()).into();
        let before = old.and_then(|tokens| tokens.all().find(|k| k.digest == digest));
        let withdrawn = before.map(|k| k.withdrawn.clone()).unwrap_or_default();
        Self { digest, withdrawn }
    }
}

impl Tokens {
    fn all(&self) -> impl Iterator<Item = &Known> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten()
    }

    /// What ends with the token, if it is one of these.
    fn find(&self, shown: &str) -> Option<CancellationToken> {
        let digest: [u8; 32] = Sha256::digest(shown.as_bytes()).into();
        let second = self.previous.as_ref().unwrap_or(&self.current);
        let is_current = self.current.digest.ct_eq(&digest);
        let is_second = second.digest.ct_eq(&digest);
        if !bool::from(is_current | is_second) {
            return None;
        }
        let known = if bool::from(is_current) { &self.current } else { second };
        Some(known.withdrawn.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn check(bearer: &Bearer, shown: &str) -> Option<Pass> {
        let tokens = bearer.tokens()?;
        bearer.check(&tokens, shown)
    }

    fn passes(bearer: &Bearer, shown: &str) -> bool {
        check(bearer, shown).is_some()
    }

    #[rstest]
    #[case::nothing(None, None, false)]
    #[case::empty(Some(&b""[..]), None, false)]
    #[case::blank(Some(&b" \n"[..]), None, false)]
    #[case::previous_alone(None, Some(&b"old"[..]), false)]
    #[case::empty_beside_previous(Some(&b"\n"[..]), Some(&b"old"[..]), false)]
    #[case::current(Some(&b"new"[..]), None, true)]
    #[case::both(Some(&b"new"[..]), Some(&b"old"[..]), true)]
    fn there_is_a_route_while_there_is_a_current_token(
        #[case] current: Option<&[u8]>,
        #[case] previous: Option<&[u8]>,
        #[case] route: bool,
    ) {
        let bearer = Bearer::default();
        bearer.set(current, previous);
        assert_eq!(bearer.tokens().is_some(), route);
        assert_eq!(passes(&bearer, "new"), route);
        assert_eq!(passes(&bearer, "old"), route && previous.is_some());
        for other in ["", "ne", "neww", "New", " new"] {
            assert!(!passes(&bearer, other), "{other:?}");
        }
    }

    #[test]
    fn white_space_around_a_value_is_no_part_of_it() {
        let bearer = Bearer::default();
        bearer.set(Some(b"new\r\n"), Some(b" old"));
        assert!(passes(&bearer, "new") && passes(&bearer, "old"));
    }

    #[test]
    fn what_hangs_on_a_token_ends_when_it_is_valid_no_longer_and_not_before() {
        let bearer = Bearer::default();
        bearer.set(Some(b"one"), None);
        let one = check(&bearer, "one").unwrap();
        bearer.set(Some(b"two"), Some(b"one"));
        let two = check(&bearer, "two").unwrap();
        assert!(!one.withdrawn.is_cancelled(), "moved to the other key");
        bearer.set(Some(b"two"), None);
        assert!(one.withdrawn.is_cancelled() && !two.withdrawn.is_cancelled());
        assert!(!passes(&bearer, "one"));
        bearer.set(None, Some(b"two"));
        assert!(two.withdrawn.is_cancelled());
        bearer.set(Some(b"two"), None);
        let again = check(&bearer, "two").unwrap();
        assert!(!again.withdrawn.is_cancelled(), "a token that comes back is a new one");
    }

    #[test]
    fn nothing_shows_a_value() {
        let bearer = Bearer::default();
        bearer.set(Some(b"token-value-1"), Some(b"token-value-2"));
        let pass = check(&bearer, "token-value-1").unwrap();
        let shown = format!("{bearer:?} {pass:?}");
        assert!(!shown.contains("token-value"), "{shown}");
        assert_eq!(pass.secrets.redactor().text("a token-value-2 b"), "a [redacted] b");
    }

    #[test]
    fn what_is_taken_out_are_the_tokens_of_then_and_of_now() {
        let bearer = Bearer::default();
        bearer.set(Some(b"token-value-1"), None);
        let secrets = check(&bearer, "token-value-1").unwrap().secrets;
        bearer.set(Some(b"token-value-3"), Some(b"token-value-2"));
        let text = "token-value-1 token-value-2 token-value-3";
        assert_eq!(secrets.redactor().text(text), "[redacted] [redacted] [redacted]");
        bearer.set(None, None);
        assert_eq!(secrets.redactor().text("token-value-1"), "[redacted]");
    }
}
