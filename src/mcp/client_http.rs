//! A server over Streamable HTTP: one [`Peer`] for one MCP session at a time.
//!
//! Relies on its owner for the handshake and for what follows from a failure. Connects to addresses
//! that it resolved and checked itself at `initialize`, and to no others until the next one;
//! follows no redirect, uses no proxy, sends the credential to the target's origin only, and never
//! sends a request twice.
//!
//! ```text
//! request ─► link (pinned addresses, pooled connections) ─► answer: JSON, or the SSE stream up to it
//! keeper  ─► GET stream for notices, where there is one; three refused connections: closed
//! ```

mod answer;
mod connect;
mod keeper;
mod resolve;
mod sse;
mod target;

pub use connect::tls_config;
pub use resolve::{AddressPolicy, resolve};
pub use target::{Credential, HttpTarget, TargetError};

use super::{
    Answer, ConnectionFailure, EventSink, Outgoing, Peer, PeerError, PeerEvent, RawJson, Sent,
    wire::{self, Id, RpcError, code},
};
use answer::Reading;
use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use connect::{Connector, failure};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// How long a message may take that wants no answer: notifications, our answers, DELETE.
const ASIDE: Duration = Duration::from_secs(10);

/// One HTTP server. Dropped or closed, it ends its own tasks and connections.
pub struct HttpPeer(Arc<Inner>);

struct Inner {
    target: HttpTarget,
    policy: AddressPolicy,
    tls: Arc<rustls::ClientConfig>,
    events: EventSink,
    next_id: AtomicU64,
    link: ArcSwapOption<Link>,
    closed: watch::Sender<Option<PeerError>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The connections and headers of one MCP session.
struct Link {
    client: Client<Connector, Full<Bytes>>,
    /// The headers of a POST: those of the target, then session and revision once they are known.
    headers: ArcSwap<HeaderMap>,
    stop: CancellationToken,
}

impl Link {
    fn set(&self, name: &HeaderName, value: HeaderValue) {
        let mut headers = HeaderMap::clone(&self.headers.load());
        headers.insert(name, value);
        self.headers.store(Arc::new(headers));
    }

    fn session(&self) -> Option<HeaderValue> {
        self.headers.load().get(SESSION_ID).cloned()
    }
}

impl HttpPeer {
    /// A peer that has not connected yet: that comes with `initialize`.
    pub fn new(
        target: HttpTarget,
        policy: AddressPolicy,
        tls: Arc<rustls::ClientConfig>,
        events: EventSink,
    ) -> Self {
        Self(Arc::new(Inner {
            target,
            policy,
            tls,
            events,
            next_id: AtomicU64::new(1),
            link: ArcSwapOption::empty(),
            closed: watch::Sender::new(None),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }))
    }
}

impl Drop for HttpPeer {
    fn drop(&mut self) {
        self.0.stop.cancel();
    }
}

impl Peer for HttpPeer {
    fn request(&self, request: Outgoing) -> BoxFuture<'_, Result<Answer, PeerError>> {
        Box::pin(async move {
            let id = Id::number(self.0.next_id.fetch_add(1, Ordering::Relaxed));
            let exchange = self.0.exchange(&id, &request);
            let ended = tokio::select! {
                biased;
                ended = tokio::time::timeout(request.timeout, exchange) => ended,
                () = request.cancel.cancelled() => {
                    self.0.tell_cancelled(&id, &request, "cancelled by the caller");
                    return Err(PeerError::Cancelled);
                }
            };
            ended.unwrap_or_else(|_| {
                self.0.tell_cancelled(&id, &request, "no answer in time");
                Err(PeerError::TimedOut(request.timeout))
            })
        })
    }

    fn notify<'a>(
        &'a self,
        method: &'static str,
        params: Option<RawJson>,
    ) -> BoxFuture<'a, Result<(), PeerError>> {
        Box::pin(async move {
            let link = self.0.linked()?;
            self.0.post_aside(&link, wire::notification(method, params.as_ref())).await?;
            if method == "notifications/initialized" {
                keeper::start(&self.0, link);
            }
            Ok(())
        })
    }

    fn negotiated(&self, protocol_version: &str) {
        let value = HeaderValue::from_str(protocol_version);
        if let (Some(link), Ok(value)) = (&*self.0.link.load(), value) {
            link.set(&PROTOCOL_VERSION, value);
        }
    }

    fn closed(&self) -> watch::Receiver<Option<PeerError>> {
        self.0.closed.subscribe()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.stop.cancel();
            let Some(link) = self.0.link.swap(None) else { return };
            link.stop.cancel();
            if link.session().is_some() {
                let request = self.0.head(&link, Method::DELETE, Full::default());
                let _ = tokio::time::timeout(ASIDE, link.client.request(request)).await;
            }
            self.0.tasks.close();
            let _ = tokio::time::timeout(ASIDE, self.0.tasks.wait()).await;
        })
    }
}

impl Inner {
    async fn exchange(self: &Arc<Self>, id: &Id, request: &Outgoing) -> Result<Answer, PeerError> {
        let begins = request.method == "initialize";
        let link = if begins { self.connect().await? } else { self.linked()? };
        let body = wire::request(id, request.method, request.params.as_ref());
        let response = self.send(&link, Method::POST, body).await?;
        if begins
            && response.status().is_success()
            && let Some(session) = response.headers().get(SESSION_ID)
        {
            link.set(&SESSION_ID, session.clone());
        }
        Reading { peer: self, link: &link, id }.answer(response).await
    }

    /// Resolves, checks and pins the target's addresses, for the session that begins.
    async fn connect(&self) -> Result<Arc<Link>, PeerError> {
        if self.stop.is_cancelled() {
            return Err(not_connected());
        }
        let addresses = resolve(self.target.host(), self.target.port(), &self.policy).await?;
        let connector = Connector::new(addresses, &self.tls, self.target.connect_timeout);
        let link = Arc::new(Link {
            client: connector.client(),
            headers: ArcSwap::from_pointee(self.target.headers()),
            stop: self.stop.child_token(),
        });
        if let Some(before) = self.link.swap(Some(link.clone())) {
            before.stop.cancel();
        }
        Ok(link)
    }

    fn linked(&self) -> Result<Arc<Link>, PeerError> {
        self.link.load_full().ok_or_else(not_connected)
    }

    fn head(&self, link: &Link, method: Method, body: Full<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = self.target.uri().clone();
        *request.headers_mut() = HeaderMap::clone(&link.headers.load());
        request
    }

    async fn send(
        &self,
        link: &Link,
        method: Method,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, PeerError> {
        let request = self.head(link, method, Full::new(body));
        link.client.request(request).await.map_err(|e| failure(&e))
    }

    /// Sends what wants no answer, and waits until the server took it.
    async fn post_aside(self: &Arc<Self>, link: &Arc<Link>, body: Bytes) -> Result<(), PeerError> {
        let sent = async {
            let response = self.send(link, Method::POST, body).await?;
            Reading { peer: self, link, id: &Id::number(0) }.acceptance(response).await
        };
        tokio::time::timeout(ASIDE, sent).await.unwrap_or(Err(PeerError::TimedOut(ASIDE)))
    }

    /// Sends a message by a task of its own; nobody hears how that went.
    fn spawn_aside(self: &Arc<Self>, link: Arc<Link>, body: Bytes) {
        let peer = self.clone();
        self.tasks.spawn(async move {
            let _ = peer.post_aside(&link, body).await;
        });
    }

    fn tell_cancelled(self: &Arc<Self>, id: &Id, request: &Outgoing, why: &str) {
        let Ok(link) = self.linked() else { return };
        if request.method != "initialize" {
            let params = format!(r#"{{"requestId":{},"reason":"{why}"}}"#, id.as_json());
            let params = RawJson::parse(params.into()).ok();
            self.spawn_aside(link, wire::notification("notifications/cancelled", params.as_ref()));
        }
    }

    /// Takes a message that is not the answer that is waited for.
    fn overheard(self: &Arc<Self>, link: &Arc<Link>, message: wire::Message) {
        match message {
            wire::Message::Notification { method, params } => {
                (self.events)(PeerEvent::Notification { method, params });
            }
            wire::Message::Response { .. } => (self.events)(PeerEvent::StrayAnswer),
            wire::Message::Request { id, method, .. } => {
                let answer = match method.as_str() {
                    "ping" => Answer::Result(RawJson::from_static("{}")),
                    _ => {
                        let message = "the client declares nothing that could be asked for";
                        Answer::Error(RpcError::new(code::METHOD_NOT_FOUND, message).to_json())
                    }
                };
                self.spawn_aside(link.clone(), wire::response(Some(&id), &answer));
            }
        }
    }

    /// A message over the limit was skipped that is not the answer that is waited for.
    fn skipped(&self) {
        (self.events)(PeerEvent::Skipped { limit: self.target.limit });
    }

    /// What a server said, cut, on one line and without the credential.
    fn scrub(&self, text: &[u8]) -> String {
        self.target.scrub(&String::from_utf8_lossy(text))
    }
}

fn not_connected() -> PeerError {
    PeerError::Connection {
        sent: Sent::No,
        kind: ConnectionFailure::Unreachable,
        message: "there is no connection".to_owned(),
    }
}

fn session_lost() -> PeerError {
    PeerError::Connection {
        sent: Sent::No,
        kind: ConnectionFailure::SessionLost,
        message: "the server does not know the MCP session any more".to_owned(),
    }
}

/// Whether a failed answer speaks of the MCP session that was named: 404 as the revisions say, or
/// the 400 of servers that say it in words.
fn is_session_lost(status: StatusCode, had_session: bool, body: &[u8]) -> bool {
    let says_session = || String::from_utf8_lossy(body).to_ascii_lowercase().contains("session");
    had_session
        && (status == StatusCode::NOT_FOUND
            || (status == StatusCode::BAD_REQUEST && says_session()))
}
