//! What every route works with, and the first question that the routes of a Session ask: may this
//! caller do it, and is the Session there?

use super::{
    answer::HttpRefusal,
    auth::{Auth, Caller, Right, bearer},
    call::Calls,
    export::Export,
    forward::{Forward, was_forwarded},
    hosted::Sessions,
    index::{self, SessionView},
};
use crate::{
    domain::identity::SessionKey,
    journal::Read,
    mcp::server::{self, Allowed, SessionStore},
};
use axum::{extract::Request, http::HeaderMap, response::Response};
use kube::Client;
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio_util::task::TaskTracker;

/// What the routes work with.
pub struct Gateway {
    /// Who may what.
    pub auth: Arc<Auth>,
    /// Hosts and origins that may be named.
    pub allowed: Allowed,
    /// What the API server says.
    pub index: index::Shared,
    /// The API server, under the gateway's own account.
    pub client: Client,
    /// What is served here.
    pub sessions: Sessions,
    /// The way for a call.
    pub calls: Arc<Calls>,
    /// What `/v1/mcp` works with.
    pub export: Export,
    /// MCP sessions.
    pub store: SessionStore,
    /// The journal, to read.
    pub read: Arc<dyn Read>,
    /// The way to other gateways. None where there is no other.
    pub forward: Option<Forward>,
    /// Reviews of open streams.
    pub reviews: TaskTracker,
    /// How often an open stream's caller is reviewed again.
    pub review_every: Duration,
    /// Whether nothing new is taken any more.
    pub draining: AtomicBool,
}

/// Host and Origin. The gateway that forwarded a request has looked at both, and they may name that
/// gateway alone.
pub(super) fn host_and_origin(gateway: &Gateway, request: &Request) -> Result<(), Box<Response>> {
    if was_forwarded(request) {
        return Ok(());
    }
    server::guard(request.headers(), request.uri(), &gateway.allowed)
}

/// A caller who may do it, and the Session, which exists.
pub(super) async fn admit(
    gateway: &Gateway,
    headers: &HeaderMap,
    right: Right,
    key: &SessionKey,
) -> Result<(Arc<Caller>, Arc<SessionView>), HttpRefusal> {
    let caller = gateway.auth.caller(bearer(headers)?).await?;
    gateway.auth.allow(&caller, right, key).await?;
    let view = gateway.index.load().session(key).cloned().ok_or_else(HttpRefusal::not_found)?;
    Ok((caller, view))
}
