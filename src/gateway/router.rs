//! The routes, as a value: checks in the order Host and Origin, token, right, existence, and only
//! then the body.
//!
//! ```text
//!  POST GET DELETE  /v1/sessions/{namespace}/{session}/mcp[/{server}][/]
//!  GET              /v1/sessions/{namespace}/{session}/trace
//!  GET PUT          /v1/sessions/{namespace}/{session}/attachments
//!  POST             /v1/sessions/{namespace}
//!  POST GET DELETE  /v1/mcp[/]   while it has a token (`export::route`)
//!  anything else    404
//! ```
//!
//! A caller without the right learns nothing of what exists. A Session that another gateway serves
//! is asked there, when all of this has passed here too.

use super::{
    answer::HttpRefusal,
    auth::{Right, bearer},
    export::route,
    rest::{self, sets},
    service::{self, Endpoint},
    state::{Gateway, admit, host_and_origin},
};
use crate::{
    domain::{identity::SessionKey, reason::Reason},
    mcp::server::{self, Scope, Service},
};
use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{
        HeaderMap, HeaderValue, Method, Version,
        header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use http_body_util::BodyExt as _;
use secrecy::SecretString;
use std::sync::{Arc, atomic::Ordering};
use tokio_util::sync::CancellationToken;

/// The routes over a gateway.
pub fn router(gateway: Arc<Gateway>) -> Router {
    let session = "/v1/sessions/{namespace}/{session}";
    Router::new()
        .route(&format!("{session}/mcp"), any(all))
        .route(&format!("{session}/mcp/"), any(all))
        .route(&format!("{session}/mcp/{{server}}"), any(one))
        .route(&format!("{session}/mcp/{{server}}/"), any(one))
        .route(&format!("{session}/trace"), get(trace))
        .route(&format!("{session}/attachments"), get(set).put(replace_set))
        .route("/v1/sessions/{namespace}", post(open))
        .fallback(|| async { HttpRefusal::not_found() })
        .method_not_allowed_fallback(|| async { HttpRefusal::not_found() })
        .layer(middleware::from_fn_with_state(gateway.clone(), guard))
        .with_state(gateway)
}

/// Host and Origin, before anything else is looked at, but for the one route that has its own order.
/// A gateway that stops sends the clients that it still has to another one, by ending connections.
async fn guard(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let http1 = request.version() < Version::HTTP_2;
    let mut response = guarded(&gateway, request, next).await;
    if http1 && gateway.draining.load(Ordering::Acquire) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn guarded(gateway: &Gateway, request: Request, next: Next) -> Response {
    if let Some(tokens) = route::asked(gateway, request.uri()) {
        return route::serve(gateway, &tokens, request).await;
    }
    if let Err(refused) = host_and_origin(gateway, &request) {
        return *refused;
    }
    next.run(request).await
}

/// What a path names. One that is no text names nothing.
type Named<T> = Result<Path<T>, PathRejection>;

/// A path that names nothing: for a caller with a token it is not there.
async fn nameless(gateway: &Gateway, headers: &HeaderMap) -> Response {
    let caller = async { gateway.auth.caller(bearer(headers)?).await };
    caller.await.err().unwrap_or_else(HttpRefusal::not_found).into_response()
}

async fn all(
    State(gateway): State<Arc<Gateway>>,
    path: Named<(String, String)>,
    request: Request,
) -> Response {
    let Ok(Path((namespace, name))) = path else {
        return nameless(&gateway, request.headers()).await;
    };
    mcp(&gateway, SessionKey { namespace, name }, None, request)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn one(
    State(gateway): State<Arc<Gateway>>,
    path: Named<(String, String, String)>,
    request: Request,
) -> Response {
    let Ok(Path((namespace, name, server))) = path else {
        return nameless(&gateway, request.headers()).await;
    };
    mcp(&gateway, SessionKey { namespace, name }, Some(server.into()), request)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn mcp(
    gateway: &Gateway,
    key: SessionKey,
    server: Option<Arc<str>>,
    request: Request<Body>,
) -> Result<Response, HttpRefusal> {
    let (caller, view) = admit(gateway, request.headers(), Right::UseTools, &key).await?;
    if let Some(name) = &server
        && view.generations.iter().all(|g| *g.server != **name)
    {
        return Err(HttpRefusal::not_found());
    }
    if let (Some(forward), Some(seat)) = (&gateway.forward, &view.seat)
        && let Some(host) = forward.host(&seat.gateway, &seat.incarnation, &request)
    {
        return forward.send(&host, request).await;
    }
    let (head, body) = request.into_parts();
    if gateway.draining.load(Ordering::Acquire) {
        let message = "this gateway stops; another one serves the Session soon";
        return Err(HttpRefusal::unavailable(Reason::NotServing, message));
    }
    let hosted = gateway.sessions.serving(&key).filter(|h| h.uid == view.uid).ok_or_else(|| {
        let message = format!("{key} is not served at the moment");
        HttpRefusal::unavailable(Reason::Rescheduling, message)
    })?;
    let scope = Scope {
        subject: caller.key.clone(),
        endpoint: format!("{}/{}", view.uid, server.as_deref().unwrap_or_default()).into(),
    };
    // what waits for notices ends when the Session leaves; what waits for an answer gets it
    let ended = match head.method {
        Method::GET => hosted.left().child_token(),
        _ => CancellationToken::new(),
    };
    let shown = head.headers.get(AUTHORIZATION).cloned();
    let (calls, streams) = (gateway.calls.clone(), ended.clone());
    let service: Arc<dyn Service> = Arc::new(Endpoint::new(calls, hosted, server, caller, ended));
    let request = Request::from_parts(head, body);
    let response = server::serve(&gateway.store, &scope, &service, request).await;
    let stream = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
    Ok(if stream { reviewed(gateway, response, (key, shown), streams) } else { response })
}

/// A stream whose caller is reviewed as long as it is open.
fn reviewed(
    gateway: &Gateway,
    response: Response,
    (key, shown): (SessionKey, Option<HeaderValue>),
    ended: CancellationToken,
) -> Response {
    let mut headers = HeaderMap::new();
    headers.extend(shown.map(|value| (AUTHORIZATION, value)));
    let Ok(token) = bearer(&headers) else { return response };
    let over = CancellationToken::new();
    let both = (ended, over.clone());
    let token = SecretString::from(token.to_owned());
    let (auth, every) = (gateway.auth.clone(), gateway.review_every);
    gateway.reviews.spawn(service::review(auth, token, key, every, both));
    let guard = over.drop_guard();
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _open = &guard;
            frame
        }))
    })
}

async fn trace(
    State(gateway): State<Arc<Gateway>>,
    path: Named<(String, String)>,
    request: Request,
) -> Response {
    let Ok(Path((namespace, name))) = path else {
        return nameless(&gateway, request.headers()).await;
    };
    rest::trace(&gateway, SessionKey { namespace, name }, request)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn set(
    State(gateway): State<Arc<Gateway>>,
    path: Named<(String, String)>,
    request: Request,
) -> Response {
    let Ok(Path((namespace, name))) = path else {
        return nameless(&gateway, request.headers()).await;
    };
    sets::show(&gateway, SessionKey { namespace, name }, request)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn replace_set(
    State(gateway): State<Arc<Gateway>>,
    path: Named<(String, String)>,
    request: Request,
) -> Response {
    let Ok(Path((namespace, name))) = path else {
        return nameless(&gateway, request.headers()).await;
    };
    sets::replace(&gateway, SessionKey { namespace, name }, request)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn open(
    State(gateway): State<Arc<Gateway>>,
    path: Named<String>,
    request: Request,
) -> Response {
    let Ok(Path(namespace)) = path else {
        return nameless(&gateway, request.headers()).await;
    };
    sets::open(&gateway, namespace, request).await.unwrap_or_else(IntoResponse::into_response)
}
