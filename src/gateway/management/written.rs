//! What every tool that writes says of its write, and of what followed: a write that happened is
//! told whatever comes after it. A wait or a reading that fails is a problem beside it, and no
//! failure of the tool.

use super::{
    answer::ErrorBody,
    cluster::{Kind, readable},
    names::WaitSeconds,
    problem::Problem,
    view::{Health, known},
    wait::{Seen, State, Waited, until},
};
use crate::{domain::reason::Reason, gateway::export::ManagementContext};
use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource as _,
    api::{DeleteParams, Preconditions},
    core::DeserializeGuard,
    runtime::watcher,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::{fmt::Write as _, time::Duration};

/// The object that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Written {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its metadata.uid.
    pub uid: String,
    /// Its metadata.resourceVersion: as the write left it; of a deletion, as it was before.
    pub resource_version: String,
}

impl Written {
    /// The object with this metadata.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }

    /// Deletes exactly this object.
    pub fn deletion(&self) -> DeleteParams {
        let uid = Some(self.uid.clone()).filter(|uid| !uid.is_empty());
        let preconditions = Preconditions { uid, ..Preconditions::default() };
        DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
    }
}

/// How long to wait; none without a wait.
pub fn limit(wait: Option<WaitSeconds>) -> Option<Duration> {
    wait.filter(|wait| wait.0 > 0).map(|wait| Duration::from_secs(wait.0.into()))
}

/// What followed a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// How the wait ended, where there was one that came to an end.
    pub waited: Option<Waited>,
    /// What went wrong.
    pub problem: Option<Problem>,
}

impl After {
    /// A wait that came to its end, or broke off.
    ///
    /// # Errors
    /// When the caller cancelled it.
    pub fn of(waited: Result<Waited, Problem>) -> Result<Self, Problem> {
        match waited {
            Ok(waited) => Ok(Self { waited: Some(waited), problem: None }),
            Err(problem) if problem.reason == Reason::Cancelled => Err(problem),
            Err(problem) => Ok(Self { waited: None, problem: Some(problem) }),
        }
    }

    /// For structured content.
    pub fn told(self) -> (Option<Waited>, Option<ErrorBody>) {
        (self.waited, self.problem.as_ref().map(ErrorBody::of))
    }
}

/// Lines on a write and on what followed it.
pub fn text(
    written: Option<&Written>,
    waited: Option<&Waited>,
    problem: Option<&ErrorBody>,
) -> String {
    let mut out = String::new();
    if let Some(Written { namespace, name, uid, resource_version }) = written {
        let _ = writeln!(
            out,
            "Written: {namespace}/{name}, uid {uid}, resourceVersion {resource_version}."
        );
    }
    if let Some(waited) = waited {
        out += &waited.text();
    }
    if let Some(ErrorBody { reason, message, .. }) = problem {
        let _ = writeln!(out, "The write stands; after it: {reason}: {message}");
    }
    out
}

/// Follows an object that was written until it is settled, where a wait was asked for; gives it as
/// it was seen last, none if it never could be read.
///
/// # Errors
/// When the caller cancels.
pub async fn settled<K: Kind>(
    written: DeserializeGuard<K>,
    limit: Option<Duration>,
    context: &ManagementContext,
    watch: impl Stream<Item = watcher::Result<Option<Result<K, Problem>>>>,
    judge: impl Fn(&K) -> Seen,
    health: impl Fn(&K) -> Health,
) -> Result<(Option<K>, After), Problem> {
    let Written { namespace, name, uid, .. } = Written::of(written.meta());
    let (kind, uid) = (K::kind(&()), Some(uid));
    let what = format!("the {kind} {name}");
    let (mut latest, mut unreadable) = match readable(written) {
        Ok(object) => (Some(object), None),
        Err(problem) => (None, Some(problem)),
    };
    let mut after = After::default();
    if let Some(limit) = limit {
        let waited = until(&what, limit, context, watch, |found| match found {
            Some(Ok(found)) if found.meta().uid == uid => {
                let seen = match found.meta().deletion_timestamp {
                    Some(_) => Seen::ended(State::Gone, "It is being deleted."),
                    None => judge(&found),
                };
                (latest, unreadable) = (Some(found), None);
                Some(seen)
            }
            Some(Err(problem)) => {
                let seen = Seen::going(&problem.message);
                unreadable = Some(problem);
                Some(seen)
            }
            _ => Some(Seen::ended(State::Gone, "It was deleted meanwhile.")),
        });
        after = After::of(waited.await)?;
    }
    let state = after.waited.as_ref().map(|waited| waited.state);
    let ended = match (state, &latest) {
        (Some(State::Failed), Some(latest)) => {
            let health = health(latest);
            let reason = health.reason.as_deref().and_then(known);
            let problem = Problem::new(reason.unwrap_or(Reason::NotServing), &health.message);
            Some(problem.next(health.next_step.as_deref().unwrap_or_default()))
        }
        (_, Some(latest)) if latest.meta().deletion_timestamp.is_some() => {
            Some(Problem::leaving(&kind, &namespace, &name))
        }
        (Some(State::Gone), _) => Some(Problem::missing(&kind, &namespace, &name)),
        _ => None,
    };
    after.problem = after.problem.or(ended).or(unreadable);
    Ok((latest, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_is_of_one_object_alone() {
        let uid = |uid: &str| {
            let meta = ObjectMeta { uid: Some(uid.to_owned()), ..ObjectMeta::default() };
            Written::of(&meta).deletion().preconditions.unwrap().uid
        };
        assert_eq!((uid("u-1"), uid("")), (Some("u-1".to_owned()), None));
    }

    #[test]
    fn only_a_cancelled_wait_is_a_failure() {
        let broken = Problem::new(Reason::Forbidden, "No.");
        let after = After::of(Err(broken.clone())).unwrap();
        assert_eq!(after, After { waited: None, problem: Some(broken) });
        assert!(After::of(Err(Problem::cancelled("x"))).is_err());
    }
}
