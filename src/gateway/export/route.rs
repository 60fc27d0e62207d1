//! The route `/v1/mcp`: the bearer before anything else, then Host and Origin, then MCP.
//!
//! It is asked before the other routes and stands in no table of them: without a token a request
//! for its path goes the way of every unknown path, through the same code.

use super::{PATH, SUBJECT, bearer::Tokens, endpoint::ExportEndpoint};
use crate::{
    domain::reason::Reason,
    gateway::{
        answer::HttpRefusal,
        auth::bearer,
        state::{Gateway, host_and_origin},
    },
    mcp::server::{self, SESSION_ID, Scope, Service},
};
use axum::{
    extract::Request,
    http::Uri,
    response::{IntoResponse as _, Response},
};
use std::sync::{Arc, atomic::Ordering};

/// The tokens that are valid, if the request is for the route and there is one.
pub fn asked(gateway: &Gateway, uri: &Uri) -> Option<Arc<Tokens>> {
    let path = uri.path();
    let ours = path.strip_suffix('/').unwrap_or(path) == PATH;
    gateway.export.bearer.tokens().filter(|_| ours)
}

/// Serves a request for the route.
pub async fn serve(gateway: &Gateway, tokens: &Tokens, request: Request) -> Response {
    let shown = bearer(request.headers());
    let pass = match shown.map(|token| gateway.export.bearer.check(tokens, token)) {
        Ok(Some(pass)) => pass,
        Ok(None) => {
            return HttpRefusal::unauthenticated("the bearer is not valid here").into_response();
        }
        Err(refused) => return refused.into_response(),
    };
    if let Err(refused) = host_and_origin(gateway, &request) {
        return *refused;
    }
    let id = request.headers().get(SESSION_ID).and_then(|id| id.to_str().ok());
    if let (Some(forward), Some(id)) = (&gateway.forward, id)
        && let Some(holder) = forward.holder(id, &request)
    {
        let answer = forward.send(&holder, request).await;
        return answer.unwrap_or_else(|refused| refused.into_response());
    }
    if gateway.draining.load(Ordering::Acquire) {
        let message = "this gateway stops; another one serves soon";
        return HttpRefusal::unavailable(Reason::NotServing, message).into_response();
    }
    let scope = Scope { subject: SUBJECT.into(), endpoint: PATH.into() };
    let (calls, set) = (gateway.calls.clone(), gateway.export.set.clone());
    let service: Arc<dyn Service> = Arc::new(ExportEndpoint { calls, set, pass });
    server::serve(&gateway.store, &scope, &service, request).await
}
