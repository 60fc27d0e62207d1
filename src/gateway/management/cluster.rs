//! Requests to the API server, each with its limit, each failure told as a problem. Knows no tool.

use super::{problem::Problem, text::line};
use crate::domain::reason::Reason;
use futures::{Stream, StreamExt as _};
use http::header::WARNING;
use http_body_util::BodyExt as _;
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
    client::Body,
    core::{DeserializeGuard, Request, Status},
    runtime::watcher,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{fmt::Debug, time::Duration};

/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Warnings of one answer that are told.
const WARNINGS: usize = 16;

/// A kind of ours.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Runs a request that changes nothing. `doing` names it in messages: "Reading x".
///
/// # Errors
/// What the API server said, or that it said nothing.
pub async fn read<T>(
    doing: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(LIMIT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Problem::of_kube(doing, &error)),
        Err(_) => Err(Problem::unavailable(doing, &late())),
    }
}

/// Runs a request that changes something: without an answer nobody knows whether it did.
///
/// # Errors
/// As [`read`]; without an answer `OutcomeUnknown`.
pub async fn write<T>(
    doing: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Problem> {
    let why = match tokio::time::timeout(LIMIT, request).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error @ (kube::Error::Api(_) | kube::Error::BuildRequest(_)))) => {
            return Err(Problem::of_kube(doing, &error));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => late(),
    };
    let cause = format!("{doing}: the API server did not answer: {}.", line(&why, 512));
    Err(Problem::new(Reason::OutcomeUnknown, cause))
}

fn late() -> String {
    format!("no answer within {} s", LIMIT.as_secs())
}

/// Creates an object. It may be one that cannot be read afterwards.
///
/// # Errors
/// What the API server said.
pub async fn create<K: Kind + Serialize>(
    client: &Client,
    namespace: &str,
    params: &PostParams,
    object: &K,
) -> Result<DeserializeGuard<K>, kube::Error> {
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let request = Request::new(K::url_path(&(), Some(namespace))).create(params, body);
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

/// Applies an object by server-side apply; gives it as it is now, and what the API server warns of.
/// It may be one that cannot be read afterwards.
///
/// # Errors
/// What the API server said.
pub async fn apply<K: Kind>(
    client: &Client,
    namespace: &str,
    name: &str,
    params: &PatchParams,
    object: &Value,
) -> Result<(DeserializeGuard<K>, Vec<String>), kube::Error> {
    let request = Request::new(K::url_path(&(), Some(namespace)));
    let request = request.patch(name, params, &Patch::Apply(object));
    let request = request.map_err(kube::Error::BuildRequest)?.map(Body::from);
    let (head, body) = client.send(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    if head.status.is_success() {
        let object = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
        let warnings = head.headers.get_all(WARNING).into_iter().take(WARNINGS);
        return Ok((object, warnings.filter_map(|w| warning(w.to_str().ok()?)).collect()));
    }
    let said: Option<Status> = serde_json::from_slice(&body).ok();
    let status = said.unwrap_or_else(|| {
        let said = String::from_utf8_lossy(&body);
        Status::failure(&said, "Unreadable").with_code(head.status.as_u16())
    });
    Err(kube::Error::Api(status.boxed()))
}

/// The text of a `Warning` header (RFC 9111, the form that Kubernetes writes: `299 - "text"`).
fn warning(header: &str) -> Option<String> {
    let quoted = header.split_once('"')?.1;
    let (mut text, mut chars) = (String::new(), quoted.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    Some(line(&text, 512)).filter(|text| !text.is_empty())
}

/// The object, where it can be read.
///
/// # Errors
/// `UnreadableObject`.
pub fn readable<K: Kind>(guarded: DeserializeGuard<K>) -> Result<K, Problem> {
    guarded.0.map_err(|invalid| {
        let name = invalid.metadata.name.unwrap_or_default();
        Problem::new(
            Reason::UnreadableObject,
            format!("{} {name} cannot be read: {}.", K::kind(&()), line(&invalid.error, 400)),
        )
    })
}

/// Follows one object: as it is, as a problem where it cannot be read, none where it is not there.
pub fn follow<K: Kind>(
    api: Api<DeserializeGuard<K>>,
    name: &str,
) -> impl Stream<Item = watcher::Result<Option<Result<K, Problem>>>> + Send + use<K> {
    watcher::watch_object(api, name).map(|event| event.map(|found| found.map(readable)))
}

/// A watch that cannot go on, as a problem; none when it is tried again by itself.
pub fn broken(doing: &str, error: &watcher::Error) -> Option<Problem> {
    let problem = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Problem::of_kube(doing, error),
        _ => return None,
    };
    (problem.reason == Reason::Forbidden).then_some(problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(r#"299 - "spec.args[0] looks like a secret""#, Some("spec.args[0] looks like a secret"))]
    #[case(r#"299 - "a \"b\" \\ c" "Tue, 01 Dec 2026 00:00:00 GMT""#, Some(r#"a "b" \ c"#))]
    #[case(r#"299 - """#, None)]
    #[case("299 -", None)]
    #[case(r#"299 - "cut"#, Some("cut"))]
    fn the_text_of_a_warning(#[case] header: &str, #[case] text: Option<&str>) {
        assert_eq!(warning(header).as_deref(), text);
    }
}
