//! Watches the one Secret with the tokens of the route, so that the route appears, changes and goes
//! with it. Reads no other Secret, and forgets what it read.

use super::Bearer;
use crate::{gateway::auth::is_usable, process::health::Guard};
use futures::StreamExt as _;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use std::collections::BTreeMap;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroize as _;

/// Tokens shorter than this, in bytes, are warned of.
const SAFE: usize = 16;

/// Which Secret, and which of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BearerSecret {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The key of the token.
    pub key: String,
    /// The key of the token before, which is valid too.
    pub previous_key: String,
}

impl BearerSecret {
    /// Hands the tokens of the Secret's data over, and overwrites every value.
    fn read(&self, bearer: &Bearer, mut data: BTreeMap<String, ByteString>) {
        let value = |key: &str| data.get(key).map(|ByteString(value)| value.as_slice());
        let (current, previous) = (value(&self.key), value(&self.previous_key));
        if current.is_none_or(|v| v.trim_ascii().is_empty()) {
            tracing::warn!(secret = self.name, key = self.key, "no token: /v1/mcp does not exist");
        } else if current.is_some_and(|v| !is_usable(v.trim_ascii())) {
            tracing::warn!(
                secret = self.name,
                key = self.key,
                "a token has letters, digits and -._~+/= only, at most 16 KiB: /v1/mcp does not exist"
            );
        }
        let short = |value: &[u8]| (1..SAFE).contains(&value.trim_ascii().len());
        if [current, previous].into_iter().flatten().any(short) {
            tracing::warn!(
                secret = self.name,
                "a token of /v1/mcp is shorter than {SAFE} characters: it can be guessed; make one with openssl rand -hex 32"
            );
        }
        bearer.set(current, previous);
        data.values_mut().for_each(|ByteString(value)| value.zeroize());
    }
}

/// Watches until `stop`; drops the guard once it is known whether there is such a Secret. While the
/// API server does not answer, what was last known counts.
pub async fn watch(
    client: Client,
    secret: BearerSecret,
    bearer: Bearer,
    guard: Guard,
    stop: CancellationToken,
) {
    let api: Api<Secret> = Api::namespaced(client, &secret.namespace);
    let one = watcher::Config::default().fields(&format!("metadata.name={}", secret.name));
    let events = watcher(api, one).default_backoff();
    tokio::pin!(events);
    let (mut guard, mut listed) = (Some(guard), None);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            None => return,
            Some(Err(error)) => {
                tracing::warn!(secret = secret.name, %error, "the watch of the bearer's Secret broke; trying again");
            }
            // the API server selects; what it would not be asked for is not looked at
            Some(Ok(
                watcher::Event::Apply(object)
                | watcher::Event::Delete(object)
                | watcher::Event::InitApply(object),
            )) if object.metadata.name.as_deref() != Some(&secret.name) => {}
            Some(Ok(watcher::Event::Apply(object))) => {
                secret.read(&bearer, object.data.unwrap_or_default());
            }
            Some(Ok(watcher::Event::Delete(_))) => secret.read(&bearer, BTreeMap::new()),
            Some(Ok(watcher::Event::Init)) => listed = None,
            Some(Ok(watcher::Event::InitApply(object))) => listed = object.data,
            Some(Ok(watcher::Event::InitDone)) => {
                secret.read(&bearer, listed.take().unwrap_or_default());
                guard.take();
            }
        }
    }
}
