//! Streamable HTTP toward clients (the legacy revisions), as a function from request to response.
//!
//! Relies on the caller having authenticated the request and chosen a [`Service`] for it. Must not
//! know what a tool is allowed to do: it asks the service for everything beyond the protocol.
//!
//! ```text
//! request ─► guard (Host, Origin) ─► authentication (the caller's) ─► serve
//!   serve:  headers ─► body ─► envelope ─► MCP session ─► method ─► Service::call
//!   answer: JSON within a second, else an SSE stream that ends with it
//! ```
//!
//! - A client that goes away during a call cancels nothing: the call goes on and has its outcome,
//!   and its context says that nobody waits.
//! - A session has one GET stream; a second one replaces the first. Streams are not resumed: a GET
//!   with `Last-Event-ID` is answered 405.
//! - DELETE ends the session and its GET stream; calls in flight end by themselves.

mod headers;
mod initialize;
mod list;
mod pending;
mod post;
mod progress;
mod respond;
mod service;
mod session;
mod store;
mod stream;

pub use headers::{Allowed, PROTOCOL_VERSION, SESSION_ID, guard};
pub use list::{PAGE_BYTES, PAGE_TOOLS, ToolList};
pub use progress::{ProgressReport, ProgressSink};
pub use service::{Refused, RequestContext, Scope, ServerInfo, Service, ToolCall};
pub use store::{OpenError, SessionStore, StoreConfig};

use crate::{domain::reason::Reason, mcp::wire::code};
use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use post::{Refusal, find, unsupported};
use std::sync::Arc;

/// Serves one request of an authenticated subject on an endpoint. The path is not looked at: the
/// caller routes, with and without a trailing slash.
pub async fn serve(
    store: &SessionStore,
    scope: &Scope,
    service: &Arc<dyn Service>,
    request: Request<Body>,
) -> Response {
    let served = match *request.method() {
        Method::POST => return post::serve(store, scope, service, request).await,
        Method::GET => get(store, scope, service, request.headers()),
        Method::DELETE => delete(store, scope, request.headers()),
        _ => Err(not_allowed("only POST, GET and DELETE are served here")),
    };
    served.unwrap_or_else(|refusal| {
        let mut response = refusal.respond(None);
        if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
            let allow = HeaderValue::from_static("POST, GET, DELETE");
            response.headers_mut().insert(header::ALLOW, allow);
        }
        response
    })
}

fn get(
    store: &SessionStore,
    scope: &Scope,
    service: &Arc<dyn Service>,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    if !headers::accept(headers).sse {
        let (status, reason) = (StatusCode::NOT_ACCEPTABLE, Reason::InvalidRequest);
        let message = "a GET opens a stream: the Accept takes no text/event-stream";
        return Err(Refusal::new(status, reason, code::INVALID_REQUEST, message));
    }
    headers::revision(headers).map_err(|named| unsupported(&named))?;
    let session = find(store, scope, headers)?;
    if headers.contains_key("last-event-id") {
        return Err(not_allowed("streams are not resumed here"));
    }
    let keep_alive = store.config().keep_alive;
    Ok(respond::stream(stream::notices(session.listen(), service.clone(), keep_alive)))
}

fn delete(store: &SessionStore, scope: &Scope, headers: &HeaderMap) -> Result<Response, Refusal> {
    let session = find(store, scope, headers)?;
    store.close(scope, session.id());
    Ok(respond::empty(StatusCode::NO_CONTENT))
}

fn not_allowed(message: &str) -> Refusal {
    let (status, reason) = (StatusCode::METHOD_NOT_ALLOWED, Reason::InvalidRequest);
    Refusal::new(status, reason, code::INVALID_REQUEST, message)
}
