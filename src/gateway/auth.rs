//! Who calls, and what they may do: bearer parsing, TokenReview, SubjectAccessReview, and for how
//! long their answers count.
//!
//! Tokens are kept as a keyed hash only and never stand in a log or an error. One review runs for
//! many requests that ask the same. Where the API server cannot be asked, nobody passes.

mod bearer;
mod reviews;

pub use bearer::{bearer, is_usable};
pub use reviews::ApiReviews;

use super::answer::HttpRefusal;
use crate::domain::{
    identity::{Fingerprint, SessionKey, Subject},
    reason::Reason,
};
use futures::future::BoxFuture;
use hmac::{Hmac, KeyInit, Mac};
use moka::{Expiry, future::Cache};
use sha2::Sha256;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// The audience that tokens must be for.
pub const AUDIENCE: &str = "awaken-gateway";

/// An authenticated caller.
#[derive(Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who, as the API server named it.
    pub subject: Subject,
    /// What the authenticator added; shown to the authorizer as it came.
    pub extra: BTreeMap<String, Vec<String>>,
    /// The same for every token of one subject, different for any two.
    pub key: Arc<str>,
    /// The same as long as the authorizer would say the same.
    standing: Arc<str>,
    /// The user name, for records.
    pub user: Arc<str>,
}

impl Caller {
    /// A caller as reviewed.
    pub fn new(subject: Subject, extra: BTreeMap<String, Vec<String>>) -> Self {
        let key = Fingerprint::new("subject").field(&subject.user).field(&subject.uid).finish();
        let standing = Fingerprint::new("caller").field(&key);
        let standing = fields(standing, &subject.groups).field(extra.len().to_string());
        let standing = extra.iter().fold(standing, |f, (key, values)| fields(f.field(key), values));
        let standing = standing.finish();
        let user = subject.user.as_str().into();
        Self { user, key: key.into(), standing: standing.into(), subject, extra }
    }
}

fn fields(print: Fingerprint, values: &[String]) -> Fingerprint {
    values.iter().fold(print.field(values.len().to_string()), |f, value| f.field(value))
}

/// A right on one Session, or on those of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// `create sessions/mcp`: use its tools.
    UseTools,
    /// `get sessions/trace`: read its records.
    ReadTrace,
    /// `get sessions`: know of it.
    Know,
    /// `update sessions`: replace its own attachments.
    Replace,
    /// `create sessions`: open one in the namespace. It has no name yet.
    Open,
}

impl Right {
    /// Verb and subresource.
    pub fn verb(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::UseTools => ("create", Some("mcp")),
            Self::ReadTrace => ("get", Some("trace")),
            Self::Know => ("get", None),
            Self::Replace => ("update", None),
            Self::Open => ("create", None),
        }
    }
}

/// The API server cannot be asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the API server cannot review the request: {0}")]
pub struct ReviewError(pub String);

/// What the API server answers to.
pub trait Reviews: Send + Sync + 'static {
    /// Who a token belongs to; none if it is not valid for [`AUDIENCE`].
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, ReviewError>>;

    /// Whether a caller has a right.
    fn access<'a>(
        &'a self,
        caller: &'a Caller,
        right: Right,
        session: &'a SessionKey,
    ) -> BoxFuture<'a, Result<bool, ReviewError>>;
}

/// How long answers count.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Of a token that is valid. The API server may itself remember it for 10 s; both together
    /// stay below 60 s.
    pub valid: Duration,
    /// Of a token that is not.
    pub invalid: Duration,
    /// Of a right.
    pub access: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            valid: Duration::from_secs(45),
            invalid: Duration::from_secs(5),
            access: Duration::from_secs(10),
        }
    }
}

type TokenKey = [u8; 32];
type AccessKey = (Arc<str>, Right, SessionKey);

struct TokenTimes(Times);

impl Expiry<TokenKey, Option<Arc<Caller>>> for TokenTimes {
    fn expire_after_create(
        &self,
        _: &TokenKey,
        caller: &Option<Arc<Caller>>,
        _: Instant,
    ) -> Option<Duration> {
        Some(if caller.is_some() { self.0.valid } else { self.0.invalid })
    }
}

/// Authentication and authorization of every route.
pub struct Auth {
    reviews: Arc<dyn Reviews>,
    key: [u8; 32],
    tokens: Cache<TokenKey, Option<Arc<Caller>>>,
    access: Cache<AccessKey, bool>,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Auth")
    }
}

impl Auth {
    /// `key` is random and stays in this process: hashes of tokens mean nothing elsewhere.
    pub fn new(reviews: Arc<dyn Reviews>, key: [u8; 32], times: Times) -> Self {
        let tokens = Cache::builder().max_capacity(10_000).expire_after(TokenTimes(times)).build();
        let access = Cache::builder().max_capacity(50_000).time_to_live(times.access).build();
        Self { reviews, key, tokens, access }
    }

    /// The caller behind a token.
    ///
    /// # Errors
    /// 401 for a token that is not valid, 503 where the API server cannot be asked.
    pub async fn caller(&self, token: &str) -> Result<Arc<Caller>, HttpRefusal> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.key)
            .expect("HMAC takes a key of any length");
        mac.update(token.as_bytes());
        let key: TokenKey = mac.finalize().into_bytes().into();
        if let Some(known) = self.tokens.get(&key).await {
            return known.ok_or_else(invalid_token);
        }
        let review = async { Ok(self.reviews.token(token).await?.map(Arc::new)) };
        let reviewed: Result<_, Arc<ReviewError>> = self.tokens.try_get_with(key, review).await;
        reviewed.map_err(|e| unavailable(&e))?.ok_or_else(invalid_token)
    }

    /// Lets a caller pass who has the right.
    ///
    /// # Errors
    /// 403 if the caller may at least know of the Session, else 404 as if there were none; 503
    /// where the API server cannot be asked.
    pub async fn allow(
        &self,
        caller: &Arc<Caller>,
        right: Right,
        session: &SessionKey,
    ) -> Result<(), HttpRefusal> {
        if self.has(caller, right, session).await? {
            return Ok(());
        }
        if !self.has(caller, Right::Know, session).await? {
            return Err(HttpRefusal::not_found());
        }
        let (verb, sub) = right.verb();
        let sub = sub.map(|sub| format!("/{sub}")).unwrap_or_default();
        let place = match session.name.is_empty() {
            true => format!("in {}", session.namespace),
            false => format!("on {session}"),
        };
        Err(HttpRefusal::forbidden(format!("{} may not {verb} sessions{sub} {place}", caller.user)))
    }

    async fn has(
        &self,
        caller: &Arc<Caller>,
        right: Right,
        session: &SessionKey,
    ) -> Result<bool, HttpRefusal> {
        let key = (caller.standing.clone(), right, session.clone());
        if let Some(known) = self.access.get(&key).await {
            return Ok(known);
        }
        let review = self.reviews.access(caller, right, session);
        self.access.try_get_with(key, review).await.map_err(|e| unavailable(&e))
    }
}

fn invalid_token() -> HttpRefusal {
    HttpRefusal::unauthenticated(format!("the token is not valid for audience {AUDIENCE}"))
}

fn unavailable(error: &ReviewError) -> HttpRefusal {
    tracing::warn!(%error, "a review failed");
    HttpRefusal::unavailable(Reason::NotServing, "the API server cannot review the request")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn callers_of_different_standing_share_no_answer() {
        let caller = |user: &str, groups: &[&str], extra: &[(&str, &[&str])]| {
            let owned = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect();
            let subject =
                Subject { user: user.into(), uid: format!("uid of {user}"), groups: owned(groups) };
            let extra = extra.iter().map(|(k, v)| ((*k).to_owned(), owned(v))).collect();
            Caller::new(subject, extra)
        };
        let all = [
            caller("ann", &[], &[]),
            caller("bob", &[], &[]),
            caller("ann", &["g"], &[]),
            caller("ann", &["g", "h"], &[]),
            caller("ann", &["g"], &[("h", &[])]),
            caller("ann", &["g"], &[("h", &["x"])]),
            caller("ann", &["g"], &[("h", &["y"])]),
            caller("ann", &["g"], &[("h", &["x", "y"])]),
            caller("ann", &["g"], &[("h", &["x"]), ("y", &[])]),
        ];
        let standings: BTreeSet<_> = all.iter().map(|c| c.standing.clone()).collect();
        assert_eq!(standings.len(), all.len());
        assert_eq!(all[2].standing, caller("ann", &["g"], &[]).standing);
    }
}
