//! Responses: JSON as one body or in pieces, SSE events, errors.

use crate::mcp::{
    Answer,
    wire::{self, Id, RpcError},
};
use axum::{
    body::{Body, HttpBody},
    response::Response,
};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use hyper::body::{Frame, SizeHint};
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// Answers over this many bytes are sent in pieces and not copied.
const COPY_UP_TO: usize = 16 << 10;

/// A JSON-RPC error with an HTTP status.
pub(super) fn error(status: StatusCode, id: Option<&Id>, error: &RpcError) -> Response {
    json(status, id, &Answer::Error(error.to_json()))
}

/// A JSON-RPC response with an HTTP status.
pub(super) fn json(status: StatusCode, id: Option<&Id>, answer: &Answer) -> Response {
    let (Answer::Result(part) | Answer::Error(part)) = answer;
    let body = if part.bytes().len() <= COPY_UP_TO {
        Body::from(wire::response(id, answer))
    } else {
        Body::new(Pieces(wire::response_parts(id, answer).into_iter()))
    };
    with_type(status, "application/json", body)
}

/// A status without a body.
pub(super) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// An open stream of events.
pub(super) fn stream(body: Body) -> Response {
    let mut response = with_type(StatusCode::OK, "text/event-stream", body);
    let headers = response.headers_mut();
    let no_cache = HeaderValue::from_static("no-cache, no-transform");
    headers.insert(header::CACHE_CONTROL, no_cache);
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn with_type(status: StatusCode, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A stream that is over after one answer.
pub(super) fn one_event(id: Option<&Id>, answer: &Answer) -> Response {
    stream(Body::from(event(&wire::response(id, answer))))
}

/// A message as an SSE event. Line breaks between its tokens become lines of the event.
pub(super) fn event(message: &Bytes) -> Bytes {
    const HEAD: &[u8] = b"event: message\ndata: ";
    let mut out = Vec::with_capacity(HEAD.len() + message.len() + 2);
    out.extend_from_slice(HEAD);
    for byte in message {
        match byte {
            b'\n' => out.extend_from_slice(b"\ndata: "),
            b'\r' => out.push(b' '),
            _ => out.push(*byte),
        }
    }
    out.extend_from_slice(b"\n\n");
    out.into()
}

/// A body of known length in pieces that are shared, not copied.
struct Pieces(std::array::IntoIter<Bytes, 3>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.len() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_slice().iter().map(|piece| piece.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::RawJson;

    #[tokio::test]
    async fn big_answers_arrive_whole_with_their_length() {
        let text = format!("\"{}\"", "é".repeat(COPY_UP_TO));
        let raw = RawJson::parse(Bytes::from(text.clone())).unwrap();
        let response = json(StatusCode::OK, Some(&Id::number(3)), &Answer::Result(raw));
        let expected = format!(r#"{{"jsonrpc":"2.0","id":3,"result":{text}}}"#);
        assert_eq!(response.body().size_hint().exact(), Some(expected.len() as u64));
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert_eq!(body, expected);
    }

    #[test]
    fn an_event_keeps_the_lines_of_its_message() {
        let lines = Bytes::from_static(b"{\r\n\"a\":1\n}");
        assert_eq!(event(&lines), "event: message\ndata: { \ndata: \"a\":1\ndata: }\n\n");
    }
}
