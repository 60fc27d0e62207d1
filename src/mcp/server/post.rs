//! POST: one message in, its answer out.

use super::{
    Refused, RequestContext, Scope, Service, SessionStore, ToolCall,
    headers::{self, Accept, SESSION_ID},
    initialize,
    pending::Pending,
    progress::Progress,
    respond,
    session::McpSession,
    stream,
};
use crate::{
    domain::{
        canonical::{JsonProblem, find_repeated_key},
        reason::Reason,
    },
    mcp::{
        Answer,
        body::{self, BodyError},
        legacy::Revision,
        wire::{self, Id, MembersError, Message, RawJson, RpcError, code},
    },
};
use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use std::{sync::Arc, time::Duration};

/// How much of a body over the limit is read to its end, as a multiple of the limit, so that the
/// connection stays; beyond it the connection is closed.
const SKIP: u64 = 4;
/// How long the next piece of a body may take.
const SILENCE: Duration = Duration::from_secs(30);

/// A refusal with its HTTP status.
pub(super) struct Refusal {
    pub status: StatusCode,
    pub reason: Reason,
    pub error: RpcError,
}

impl Refusal {
    pub(super) fn new(
        status: StatusCode,
        reason: Reason,
        code: i64,
        message: impl Into<String>,
    ) -> Self {
        Self { status, reason, error: RpcError::because(reason, code, message.into()) }
    }

    fn bad(message: &str) -> Self {
        let status = StatusCode::BAD_REQUEST;
        Self::new(status, Reason::InvalidRequest, code::INVALID_REQUEST, message)
    }

    fn params(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(StatusCode::OK, reason, code::INVALID_PARAMS, message)
    }

    pub(super) fn respond(&self, id: Option<&Id>) -> Response {
        respond::error(self.status, id, &self.error)
    }
}

/// What every step of a POST needs.
struct Post<'a> {
    store: &'a SessionStore,
    scope: &'a Scope,
    service: &'a Arc<dyn Service>,
    headers: &'a HeaderMap,
    accept: Accept,
}

pub(super) async fn serve(
    store: &SessionStore,
    scope: &Scope,
    service: &Arc<dyn Service>,
    request: Request<Body>,
) -> Response {
    let (head, body) = request.into_parts();
    let post = Post {
        store,
        scope,
        service,
        headers: &head.headers,
        accept: headers::accept(&head.headers),
    };
    if let Err(refusal) = post.check_types() {
        return refusal.respond(None);
    }
    let limit = store.config().max_body;
    let message = match body::read(body, limit, SKIP * limit as u64, SILENCE).await {
        Ok(bytes) => wire::parse(&bytes),
        Err(BodyError::Broken) => return Refusal::bad("the body broke off").respond(None),
        Err(BodyError::Silent) => return silent().respond(None),
        Err(BodyError::TooLarge(id)) => return post.too_large(id, limit).await,
    };
    match message {
        Ok(Message::Request { id, method, params }) => post.request(id, method, params).await,
        Ok(Message::Notification { method, params }) => post.notification(&method, params.as_ref()),
        Ok(Message::Response { .. }) => match post.session() {
            Ok(_) => respond::empty(StatusCode::ACCEPTED),
            Err(refusal) => refusal.respond(None),
        },
        Err(malformed) => {
            let (status, reason) = (StatusCode::BAD_REQUEST, malformed.reason());
            let refusal = Refusal { status, reason, error: malformed.to_error() };
            post.refuse(refusal, malformed.id(), None).await
        }
    }
}

impl Post<'_> {
    fn check_types(&self) -> Result<(), Refusal> {
        let refuse = |status, message: &str| {
            Err(Refusal::new(status, Reason::InvalidRequest, code::INVALID_REQUEST, message))
        };
        if !headers::is_json(self.headers) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return refuse(status, "the Content-Type is not application/json");
        }
        if !self.accept.json && !self.accept.sse {
            let message = "the Accept takes neither application/json nor text/event-stream";
            return refuse(StatusCode::NOT_ACCEPTABLE, message);
        }
        Ok(())
    }

    /// The session that the headers name.
    fn session(&self) -> Result<Arc<McpSession>, Refusal> {
        headers::revision(self.headers).map_err(|named| unsupported(&named))?;
        find(self.store, self.scope, self.headers)
    }

    fn notification(&self, method: &str, params: Option<&RawJson>) -> Response {
        let session = match self.session() {
            Ok(session) => session,
            Err(refusal) => return refusal.respond(None),
        };
        if method == "notifications/cancelled" {
            let members = params.and_then(|p| wire::members(p).ok().map(|m| (p, m)));
            let id = members.and_then(|(params, members)| {
                let (_, raw) = members.into_iter().find(|(key, _)| key == "requestId")?;
                Id::from_json(&params.part(raw)).ok()
            });
            if let Some(id) = id {
                session.cancel(&id);
            }
        }
        respond::empty(StatusCode::ACCEPTED)
    }

    async fn request(&self, id: Id, method: String, params: Option<RawJson>) -> Response {
        match self.dispatch(&id, &method, params).await {
            Ok(response) => response,
            Err(refusal) => self.refuse(refusal, Some(&id), Some(method)).await,
        }
    }

    async fn dispatch(
        &self,
        id: &Id,
        method: &str,
        params: Option<RawJson>,
    ) -> Result<Response, Refusal> {
        if method == "initialize" {
            return self.initialize(id, params);
        }
        if method == "server/discover" {
            let named = headers::revision(self.headers).map(|_| "2026-07-28".to_owned());
            return Err(unsupported(&named.unwrap_or_else(|named| named)));
        }
        let session = self.session()?;
        if session.has(id) {
            return Err(duplicate());
        }
        let answer = match method {
            "ping" => RawJson::from_static("{}"),
            "tools/list" => self.list(&session, params.as_ref())?,
            "tools/call" => return self.call(session, id, params).await,
            _ => {
                let message = format!("there is no method {method:?} here");
                let (reason, code) = (Reason::UnknownMethod, code::METHOD_NOT_FOUND);
                return Err(Refusal::new(StatusCode::OK, reason, code, message));
            }
        };
        Ok(self.answer(id, &Answer::Result(answer)))
    }

    fn initialize(&self, id: &Id, params: Option<RawJson>) -> Result<Response, Refusal> {
        if self.headers.contains_key(SESSION_ID) {
            return Err(Refusal::bad("initialize begins a session and cannot name one"));
        }
        let asked = initialize::asked_version(params.as_ref()).ok_or_else(|| {
            Refusal::params(Reason::InvalidArguments, "protocolVersion is no string")
        })?;
        let revision = Revision::negotiate(&asked);
        let session = self.store.open(self.scope, revision).map_err(|error| {
            let status = StatusCode::TOO_MANY_REQUESTS;
            Refusal::new(status, Reason::TooManySessions, code::SERVER, error.to_string())
        })?;
        let result = initialize::result(revision, &self.service.info());
        let mut response = self.answer(id, &Answer::Result(result));
        let value = HeaderValue::from_str(session.id()).expect("base64 is a header value");
        response.headers_mut().insert(SESSION_ID, value);
        Ok(response)
    }

    fn list(&self, session: &McpSession, params: Option<&RawJson>) -> Result<RawJson, Refusal> {
        let bad = |message: &str| Err(Refusal::params(Reason::InvalidArguments, message));
        let mut cursor = None;
        if let Some(params) = params {
            let members = wire::members(params).map_err(members_refusal)?;
            if let Some((_, raw)) = members.iter().find(|(key, _)| key == "cursor") {
                match serde_json::from_str::<Option<String>>(raw.get()) {
                    Ok(text) => cursor = text,
                    Err(_) => return bad("the cursor is no string"),
                }
            }
        }
        let tools = self.service.tools();
        match tools.page(cursor.as_deref()) {
            Some(page) => {
                if cursor.is_none() {
                    session.tell(*tools.digest());
                }
                Ok(page)
            }
            None => bad("the cursor is not one of this list; begin again without one"),
        }
    }

    async fn call(
        &self,
        session: Arc<McpSession>,
        id: &Id,
        params: Option<RawJson>,
    ) -> Result<Response, Refusal> {
        let params = params
            .ok_or_else(|| Refusal::params(Reason::InvalidArguments, "tools/call needs params"))?;
        let (name, arguments) = tool_and_arguments(&params)?;
        let in_flight = session.begin(id.clone()).ok_or_else(duplicate)?;
        let asked = || Progress::asked(&params, session.revision());
        let progress = self.accept.sse.then(asked).flatten();
        let context = RequestContext {
            session: session.id().clone(),
            id: id.clone(),
            revision: session.revision(),
            cancel: in_flight.cancel.clone(),
            gone: in_flight.gone.clone(),
            progress: progress.as_ref().map(Progress::sink),
        };
        let call = self.service.call(ToolCall { name, arguments, params, context });
        let mut pending = Pending::new(call, in_flight, self.store.orphans().clone());
        let (config, ended) = (self.store.config(), self.service.ended());
        if self.accept.json {
            let within = config.json_within;
            let answer = match &progress {
                // the first report makes it a stream
                Some(progress) => tokio::select! {
                    biased;
                    answer = &mut pending => Some(answer),
                    () = progress.told() => None,
                    () = tokio::time::sleep(within) => None,
                },
                None if self.accept.sse => tokio::time::timeout(within, &mut pending).await.ok(),
                None => tokio::select! {
                    biased;
                    answer = &mut pending => Some(answer),
                    () = ended.cancelled() => return Ok(withdrawn().respond(Some(id))),
                },
            };
            match answer {
                Some(Some(answer)) => {
                    return Ok(respond::json(StatusCode::OK, Some(id), &answer));
                }
                Some(None) if self.accept.sse => return Ok(respond::stream(Body::empty())),
                Some(None) => return Ok(respond::empty(StatusCode::ACCEPTED)),
                None => {}
            }
        }
        let pending = (pending, progress);
        Ok(respond::stream(stream::answer(pending, id.clone(), ended, config.keep_alive)))
    }

    async fn too_large(&self, id: Option<Id>, limit: usize) -> Response {
        let message = format!("the message is over the limit of {limit} bytes");
        let (status, reason) = (StatusCode::PAYLOAD_TOO_LARGE, Reason::MessageTooLarge);
        let mut refusal = Refusal::new(status, reason, code::INVALID_REQUEST, message);
        refusal.error = refusal.error.with("limit", limit);
        self.refuse(refusal, id.as_ref(), None).await
    }

    /// Tells the service of a refusal that belongs on record, then answers it.
    async fn refuse(&self, refusal: Refusal, id: Option<&Id>, method: Option<String>) -> Response {
        let on_record = !matches!(refusal.reason, Reason::UnknownMcpSession);
        if on_record {
            let (reason, message) = (refusal.reason, refusal.error.message().to_owned());
            self.service.refused(Refused { reason, message, method }).await;
        }
        match (id, refusal.status) {
            (Some(id), StatusCode::OK) => self.answer(id, &Answer::Error(refusal.error.to_json())),
            _ => refusal.respond(id),
        }
    }

    /// An answer that is there at once, in a form that the client takes. What is refused by an HTTP
    /// status is JSON in any case.
    fn answer(&self, id: &Id, answer: &Answer) -> Response {
        match self.accept.json {
            true => respond::json(StatusCode::OK, Some(id), answer),
            false => respond::one_event(Some(id), answer),
        }
    }
}

/// The session that the headers name, if it is the scope's.
pub(super) fn find(
    store: &SessionStore,
    scope: &Scope,
    headers: &HeaderMap,
) -> Result<Arc<McpSession>, Refusal> {
    if !headers.contains_key(SESSION_ID) {
        return Err(Refusal::bad("the request names no MCP session: send Mcp-Session-Id"));
    }
    let session = headers::session_id(headers).and_then(|id| store.get(scope, id));
    session.ok_or_else(|| {
        let (reason, code) = (Reason::UnknownMcpSession, code::SESSION);
        let message = "the MCP session is unknown or ended; initialize again";
        Refusal::new(StatusCode::NOT_FOUND, reason, code, message)
    })
}

/// The refusal of a revision that is not spoken here.
pub(super) fn unsupported(named: &str) -> Refusal {
    let supported: Vec<_> = Revision::ALL.iter().map(|r| r.as_str()).collect();
    let message = format!("the protocol version {named:?} is not spoken here");
    let (status, reason) = (StatusCode::BAD_REQUEST, Reason::UnsupportedProtocolVersion);
    let mut refusal = Refusal::new(status, reason, code::UNSUPPORTED_VERSION, message);
    refusal.error = refusal.error.with("supported", supported).with("requested", named);
    refusal
}

fn silent() -> Refusal {
    let message = format!("the next piece of the body did not come within {SILENCE:?}");
    let (status, reason) = (StatusCode::REQUEST_TIMEOUT, Reason::InvalidRequest);
    Refusal::new(status, reason, code::INVALID_REQUEST, message)
}

/// Where no stream can simply end. What is on record is the call, which goes on.
fn withdrawn() -> Refusal {
    let message = "what this request came with is valid no longer; the call goes on, and nobody \
        hears of its end";
    Refusal::new(StatusCode::FORBIDDEN, Reason::Forbidden, code::SERVER, message)
}

fn duplicate() -> Refusal {
    // not 200: a client that joins answers by id alone would take it for the first one's
    let (status, reason) = (StatusCode::BAD_REQUEST, Reason::DuplicateRequestId);
    let message = "a request with this id is in flight in this MCP session";
    Refusal::new(status, reason, code::INVALID_REQUEST, message)
}

fn members_refusal(error: MembersError) -> Refusal {
    let reason = match error {
        MembersError::NotAnObject => Reason::InvalidArguments,
        MembersError::RepeatedKey(_) => Reason::RepeatedKey,
    };
    Refusal::params(reason, format!("params: {error}"))
}

fn problem_refusal(problem: JsonProblem) -> Refusal {
    let reason = match problem {
        JsonProblem::RepeatedKey { .. } => Reason::RepeatedKey,
        _ => Reason::InvalidArguments,
    };
    Refusal::params(reason, format!("params: {problem}"))
}

fn tool_and_arguments(params: &RawJson) -> Result<(String, Option<RawJson>), Refusal> {
    let bad = |message: &str| Refusal::params(Reason::InvalidArguments, message);
    let (mut name, mut arguments) = (None, None);
    for (key, value) in wire::members(params).map_err(members_refusal)? {
        match key.as_ref() {
            "name" => name = serde_json::from_str::<String>(value.get()).ok(),
            "arguments" => arguments = Some(params.part(value)),
            // nothing else of params is read twice, so it is looked at here
            _ => find_repeated_key(value.get().as_bytes()).map_err(problem_refusal)?,
        }
    }
    let name = name.ok_or_else(|| bad("params.name is no string"))?;
    let arguments = arguments.filter(|a| a.as_str() != "null");
    if arguments.as_ref().is_some_and(|a| !a.is_object()) {
        return Err(bad("params.arguments is no object"));
    }
    Ok((name, arguments))
}
