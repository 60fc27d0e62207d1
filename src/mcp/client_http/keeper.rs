//! Keeps one MCP session in sight by the GET stream for the server's notices, where there is one. A
//! server that refuses every connection is reported as gone. Pings are the owner's.

use super::{
    Inner, Link,
    answer::{Kind, kind, short_body},
    connect::failure,
    is_session_lost, sse,
};
use crate::mcp::{ConnectionFailure, PeerError, PeerEvent, Sent, legacy, wire};
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// How long the answer to a GET may take. A server that is only busy is left alone.
const ANSWER: Duration = Duration::from_secs(10);
/// Before the stream is opened again; doubles up to [`SLOWEST`].
const AGAIN: Duration = Duration::from_millis(500);
const SLOWEST: Duration = Duration::from_secs(60);
/// A stream that was open for less counts as a failure for the pause before the next.
const LIVED: Duration = Duration::from_secs(5);
/// Connections that fail in a row before the server counts as gone.
const GONE_AFTER: u32 = 3;

/// Begins to keep a session, until its link is stopped or its server is gone.
pub(super) fn start(peer: &Arc<Inner>, link: Arc<Link>) {
    let (peer, stop) = (peer.clone(), link.stop.clone());
    peer.clone().tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = keep(&peer, &link) => {}
        }
    });
}

/// What came of one look at the server.
enum Seen {
    /// It serves no GET stream.
    NoStream,
    /// A stream was open and has ended.
    Alive,
    /// It does not know the session any more.
    SessionLost,
    /// It is busy, or says that it is unwell.
    Unwell,
    /// No connection can be made.
    Refused(PeerError),
}

async fn keep(peer: &Arc<Inner>, link: &Arc<Link>) {
    let (mut refused, mut opened) = (0, false);
    let mut pause = AGAIN;
    loop {
        let begun = Instant::now();
        let seen = listen(peer, link).await;
        refused = if matches!(seen, Seen::Refused(_)) { refused + 1 } else { 0 };
        match seen {
            Seen::NoStream => return,
            Seen::Alive => {
                let lived = begun.elapsed() >= LIVED;
                (opened, pause) = (true, if lived { AGAIN } else { (pause * 2).min(SLOWEST) });
            }
            Seen::SessionLost if opened => {
                // the owner lists again, meets the lost session and begins a new one
                let method = legacy::LIST_CHANGED.to_owned();
                (peer.events)(PeerEvent::Notification { method, params: None });
                return;
            }
            // some servers answer so to any GET
            Seen::SessionLost => return,
            Seen::Unwell => pause = (pause * 2).min(SLOWEST),
            Seen::Refused(error) if refused >= GONE_AFTER => {
                peer.closed.send_replace(Some(error));
                return;
            }
            Seen::Refused(_) => pause = AGAIN * 2_u32.pow(refused.min(4)),
        }
        tokio::time::sleep(pause + jitter(pause)).await;
    }
}

/// Up to a quarter more, so that not all peers of one server come back at once.
fn jitter(pause: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or_default();
    pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 4.0)
}

/// Opens the GET stream and hears it to its end.
async fn listen(peer: &Arc<Inner>, link: &Arc<Link>) -> Seen {
    let mut request = peer.head(link, Method::GET, Full::default());
    request.headers_mut().remove(header::CONTENT_TYPE);
    let sse = HeaderValue::from_static("text/event-stream");
    request.headers_mut().insert(header::ACCEPT, sse);
    let response = match tokio::time::timeout(ANSWER, link.client.request(request)).await {
        // a server may hold the head back until it has something to say
        Err(_) => return Seen::NoStream,
        Ok(Err(error)) => return refused(failure(&error)),
        Ok(Ok(response)) => response,
    };
    match (response.status(), kind(response.headers())) {
        (StatusCode::OK, Kind::Sse) => {
            hear(peer, link, response).await;
            Seen::Alive
        }
        (StatusCode::NOT_FOUND, _) if link.session().is_some() => Seen::SessionLost,
        (StatusCode::BAD_REQUEST, _) if link.session().is_some() => {
            match is_session_lost(StatusCode::BAD_REQUEST, true, &short_body(response).await) {
                true => Seen::SessionLost,
                false => Seen::NoStream,
            }
        }
        (StatusCode::TOO_MANY_REQUESTS, _) => Seen::Unwell,
        (status, _) if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
            Seen::Unwell
        }
        _ => Seen::NoStream,
    }
}

async fn hear(peer: &Arc<Inner>, link: &Arc<Link>, response: Response<Incoming>) {
    let (mut parser, mut events) = (sse::Parser::new(peer.target.limit), Vec::new());
    let mut body = response.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(piece) = frame.into_data() else { continue };
        parser.push(piece, &mut events);
        for event in events.drain(..) {
            if matches!(event, sse::Event::TooLarge(_)) {
                peer.skipped();
            } else if let Some(Ok(message)) = event.message().map(wire::parse) {
                peer.overheard(link, message);
            }
        }
    }
}

fn refused(error: PeerError) -> Seen {
    match &error {
        PeerError::Connection { sent: Sent::No, kind: ConnectionFailure::SessionLost, .. } => {
            Seen::SessionLost
        }
        PeerError::Connection { sent: Sent::No, kind: ConnectionFailure::Unreachable, .. } => {
            Seen::Refused(error)
        }
        _ => Seen::Unwell,
    }
}
