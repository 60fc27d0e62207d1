//! Reading what a server answers to a POST: JSON, an SSE stream up to the answer, or a refusal.

use super::{Inner, Link, is_session_lost, session_lost, sse};
use crate::mcp::{
    Answer, ConnectionFailure, PeerError, Sent,
    body::{self, BodyError},
    wire::{self, Id, Message},
};
use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::{sync::Arc, time::Duration};

/// A body that is no answer is read up to this many bytes.
const SHORT: usize = 64 << 10;
/// How long such a body may take, and a stream to end after its answer.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// What a refusal says, as far as it is short and comes at once; otherwise nothing.
pub(super) async fn short_body(response: Response<Incoming>) -> Bytes {
    let read = body::read(response.into_body(), SHORT, 0, AFTERWARDS);
    let read = tokio::time::timeout(AFTERWARDS, read).await;
    read.ok().and_then(Result::ok).unwrap_or_default()
}

/// Reads the answer to one request.
pub(super) struct Reading<'a> {
    pub peer: &'a Arc<Inner>,
    pub link: &'a Arc<Link>,
    pub id: &'a Id,
}

impl Reading<'_> {
    /// The answer of the request, or why there is none.
    pub(super) async fn answer(&self, response: Response<Incoming>) -> Result<Answer, PeerError> {
        let status = response.status();
        match kind(response.headers()) {
            _ if !status.is_success() => self.refused(response).await,
            _ if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT => {
                Err(PeerError::NotMcp(format!("HTTP {} and no answer", status.as_u16())))
            }
            Kind::Json => self.json(response.into_body()).await,
            Kind::Sse => self.stream(response.into_body()).await,
            Kind::Other(kind) => {
                let kind = self.peer.scrub(kind.as_bytes());
                Err(PeerError::NotMcp(format!("HTTP {} with {kind:?}", status.as_u16())))
            }
        }
    }

    async fn json(&self, body: Incoming) -> Result<Answer, PeerError> {
        let limit = self.peer.target.limit;
        let bytes = body::read(body, limit, 0, Duration::MAX).await.map_err(|e| match e {
            BodyError::TooLarge(_) => PeerError::TooLarge { sent: Sent::Maybe, limit },
            BodyError::Broken | BodyError::Silent => broken("the answer broke off"),
        })?;
        match wire::parse(&bytes) {
            Ok(Message::Response { id: Some(id), answer }) if id == *self.id => Ok(answer),
            Ok(Message::Response { id: None, answer: error @ Answer::Error(_) }) => Ok(error),
            Ok(_) => Err(PeerError::NotMcp("a message that is not the answer".to_owned())),
            Err(malformed) => {
                Err(PeerError::NotMcp(self.peer.scrub(malformed.to_string().as_bytes())))
            }
        }
    }

    async fn stream(&self, mut body: Incoming) -> Result<Answer, PeerError> {
        let limit = self.peer.target.limit;
        let (mut parser, mut events) = (sse::Parser::new(limit), Vec::new());
        let mut garbage = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| broken("the stream broke off before the answer"))?;
            let Ok(piece) = frame.into_data() else { continue };
            parser.push(piece, &mut events);
            for event in events.drain(..) {
                if let sse::Event::TooLarge(over) = &event {
                    if over.answers(self.id) {
                        return Err(PeerError::TooLarge { sent: Sent::Maybe, limit });
                    }
                    self.peer.skipped();
                }
                let Some(data) = event.message() else { continue };
                match wire::parse(data) {
                    Ok(Message::Response { id: Some(id), answer }) if id == *self.id => {
                        self.drain(body);
                        return Ok(answer);
                    }
                    Ok(other) => self.peer.overheard(self.link, other),
                    Err(malformed) => garbage = Some(malformed),
                }
            }
            // without waiting for its end, which may never come
            if parser.over().is_some_and(|over| over.answers(self.id)) {
                return Err(PeerError::TooLarge { sent: Sent::Maybe, limit });
            }
        }
        Err(match garbage {
            Some(malformed) => PeerError::NotMcp(self.peer.scrub(malformed.to_string().as_bytes())),
            None => broken("the stream ended before the answer"),
        })
    }

    /// Lets a stream end after its answer, so that the connection is kept.
    fn drain(&self, mut body: Incoming) {
        if matches!(body.frame().now_or_never(), Some(None | Some(Err(_)))) {
            return;
        }
        self.peer.tasks.spawn(tokio::time::timeout(AFTERWARDS, async move {
            while let Some(Ok(_)) = body.frame().await {}
        }));
    }

    /// A status that is no success may still carry the answer.
    async fn refused(&self, response: Response<Incoming>) -> Result<Answer, PeerError> {
        let status = response.status();
        let json = matches!(kind(response.headers()), Kind::Json);
        let body = short_body(response).await;
        let theirs = matches!(status.as_u16(), 401 | 403 | 404 | 429 | 300..=399 | 500..=599);
        if json
            && !theirs
            && let Ok(Message::Response { id: Some(id), answer }) = wire::parse(&body)
            && id == *self.id
        {
            return Ok(answer);
        }
        Err(self.classify(status, &body))
    }

    /// Whether the server took a message that wants no answer. What it says nevertheless is read
    /// and thrown away, so that the connection is kept.
    pub(super) async fn acceptance(&self, response: Response<Incoming>) -> Result<(), PeerError> {
        let status = response.status();
        if status == StatusCode::ACCEPTED {
            return Ok(());
        }
        let body = short_body(response).await;
        if status.is_success() { Ok(()) } else { Err(self.classify(status, &body)) }
    }

    fn classify(&self, status: StatusCode, body: &[u8]) -> PeerError {
        if status.is_redirection() {
            return PeerError::Connection {
                sent: Sent::No,
                kind: ConnectionFailure::Redirected,
                message: format!("HTTP {}: redirects are not followed", status.as_u16()),
            };
        }
        if is_session_lost(status, self.link.session().is_some(), body) {
            return session_lost();
        }
        // a page is no message for people
        let body = if body.trim_ascii_start().starts_with(b"<") { &[] } else { body };
        PeerError::Status { status: status.as_u16(), body: self.peer.scrub(body) }
    }
}

/// A connection that broke when the request had left.
fn broken(message: &str) -> PeerError {
    PeerError::Connection {
        sent: Sent::Maybe,
        kind: ConnectionFailure::Unreachable,
        message: message.to_owned(),
    }
}

/// What a body is said to be.
pub(super) enum Kind {
    Json,
    Sse,
    Other(String),
}

pub(super) fn kind(headers: &HeaderMap) -> Kind {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let name = value.split(';').next().unwrap_or_default().trim();
    if name.eq_ignore_ascii_case("application/json") {
        Kind::Json
    } else if name.eq_ignore_ascii_case("text/event-stream") {
        Kind::Sse
    } else {
        Kind::Other(value.to_owned())
    }
}
