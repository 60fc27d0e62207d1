//! The stub as an MCP server over Streamable HTTP/1.1, and its control routes.
//!
//! `GET /__seen`: every request so far, as JSON. `POST /__script`: a JSON merge patch on the script.
//! `POST /__reset`: forgets what was seen. Every other path is the MCP endpoint.

use crate::{
    answer,
    engine::{Engine, Out},
    message::Envelope,
    script::{AnswerAs, Http, Script},
};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

type Body = BoxBody<Bytes, io::Error>;

/// A request as it came.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// `GET`, `POST`, …
    pub method: String,
    /// Path and query, as written.
    pub uri: String,
    /// Name (lower case) and value, in order.
    pub headers: Vec<(String, String)>,
    /// The body as text.
    pub body: String,
}

impl Seen {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The JSON-RPC method of the body.
    pub fn rpc_method(&self) -> Option<String> {
        serde_json::from_str::<serde_json::Value>(&self.body).ok()?["method"]
            .as_str()
            .map(Into::into)
    }
}

/// The server: its engine and what HTTP adds.
pub struct Server {
    /// The MCP side.
    pub engine: Arc<Engine>,
    sessions: Mutex<HashMap<String, usize>>,
    seen: Mutex<Vec<Seen>>,
    posts: Mutex<usize>,
    exits: bool,
}

/// Most requests that `/__seen` remembers.
const MOST_SEEN: usize = 20_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// A server; `exits`: whether the script may end the process.
    pub fn new(script: Script, exits: bool) -> Arc<Self> {
        Arc::new(Self {
            engine: Engine::new(script),
            sessions: Mutex::default(),
            seen: Mutex::default(),
            posts: Mutex::default(),
            exits,
        })
    }

    /// Serves until it is dropped.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let server = Arc::clone(&self);
            let service = hyper::service::service_fn(move |request| {
                let server = Arc::clone(&server);
                async move { server.route(request).await }
            });
            connections.spawn(async move {
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
            while connections.try_join_next().is_some() {}
        }
    }

    async fn route(self: Arc<Self>, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        match parts.uri.path() {
            "/__seen" => {
                let all = serde_json::to_string(&*lock(&self.seen)).map_err(io::Error::other)?;
                return Ok(plain(200, "application/json", all));
            }
            "/__reset" => {
                lock(&self.seen).clear();
                return Ok(plain(200, "text/plain", ""));
            }
            "/__script" => return Ok(self.patch_script(&body)),
            _ => {}
        }
        let script = self.engine.script();
        if script.http.record {
            let mut seen = lock(&self.seen);
            if seen.len() < MOST_SEEN {
                seen.push(Seen {
                    method: parts.method.to_string(),
                    uri: parts.uri.to_string(),
                    headers: parts
                        .headers
                        .iter()
                        .map(|(n, v)| (n.to_string(), String::from_utf8_lossy(v.as_bytes()).into()))
                        .collect(),
                    body: String::from_utf8_lossy(&body).into_owned(),
                });
            }
        }
        if let Some(bad) = self.scripted(&script.http, &parts.method) {
            return Ok(bad);
        }
        if !credential_fits(&script.http, &parts.headers) {
            return Ok(plain(script.http.refuse_with, "text/plain", "the credential does not fit"));
        }
        let session = parts.headers.get("mcp-session-id").and_then(|v| v.to_str().ok());
        match parts.method {
            Method::POST => self.post(&script.http, session, body).await,
            Method::GET if script.http.get_stream => Ok(self.get_stream(&script.http)),
            Method::DELETE => {
                let known = session.is_some_and(|s| lock(&self.sessions).remove(s).is_some());
                Ok(plain(if known { 200 } else { 404 }, "text/plain", ""))
            }
            _ => Ok(plain(405, "text/plain", "method not allowed")),
        }
    }

    fn patch_script(&self, body: &[u8]) -> Response<Body> {
        let patched = serde_json::from_slice(body)
            .map_err(anyhow::Error::from)
            .and_then(|patch| self.engine.script().patched(&patch));
        match patched {
            Ok(script) => {
                self.engine.set_script(script);
                *lock(&self.posts) = 0;
                plain(200, "text/plain", "")
            }
            Err(why) => plain(400, "text/plain", why.to_string()),
        }
    }

    /// What the script answers instead of MCP.
    fn scripted(&self, http: &Http, method: &Method) -> Option<Response<Body>> {
        if method != Method::POST {
            return None;
        }
        let before = std::mem::replace(&mut *lock(&self.posts), 0);
        *lock(&self.posts) = before + 1;
        if http.status_first > 0 && before >= http.status_first {
            return None;
        }
        if let Some(location) = &http.redirect {
            let mut response = plain(http.status.unwrap_or(302), "text/plain", "over there");
            response.headers_mut().insert("location", location.parse().ok()?);
            return Some(response);
        }
        if http.html {
            return Some(plain(200, "text/html", "<!doctype html><title>Welcome</title>"));
        }
        if let Some(body) = &http.body {
            return Some(plain(200, "application/json", body.clone()));
        }
        let mut response = plain(http.status?, "text/plain", "as the script says");
        if let Some(seconds) = http.retry_after {
            response.headers_mut().insert("retry-after", seconds.into());
        }
        Some(response)
    }

    async fn post(
        self: &Arc<Self>,
        http: &Http,
        session: Option<&str>,
        body: Bytes,
    ) -> io::Result<Response<Body>> {
        let envelope = serde_json::from_slice::<Envelope<'_>>(&body).ok();
        let method = envelope.as_ref().and_then(|e| e.method.clone());
        let begins = method.as_deref() == Some("initialize");
        if http.sessions && !begins {
            match session {
                None => return Ok(plain(400, "text/plain", "Mcp-Session-Id is missing")),
                Some(id) if !self.session_lives(http, id) => {
                    return Ok(plain(404, "text/plain", "no such MCP session"));
                }
                Some(_) => {}
            }
        }
        let is_request = envelope.is_none_or(|e| e.id.is_some() && e.method.is_some());
        let (sink, mut outbox) = mpsc::unbounded_channel();
        let engine = Arc::clone(&self.engine);
        tokio::spawn(async move { engine.handle(&body, sink).await });
        let first = outbox.recv().await;
        if let Some(Out::Exit(code)) = first {
            return self.end(code);
        }
        if !is_request {
            return Ok(plain(202, "text/plain", ""));
        }
        let mut response = match first {
            None | Some(Out::Cut | Out::Exit(_)) => {
                return Err(io::Error::other("cut by the script"));
            }
            Some(Out::Message(text)) if http.answer == AnswerAs::Json && is_answer(&text) => {
                plain(200, "application/json", text)
            }
            Some(Out::Raw(bytes)) if http.answer == AnswerAs::Json => {
                let frames = vec![Ok(Frame::data(Bytes::from(bytes)))];
                let cut = Err(io::Error::other("cut by the script"));
                let whole = !matches!(outbox.recv().await, Some(Out::Cut));
                let frames = frames.into_iter().chain((!whole).then_some(cut));
                let body = StreamBody::new(futures_util::stream::iter(frames)).boxed();
                with_type(200, "application/json", body)
            }
            Some(first) => stream(http.clone(), Some(first), outbox),
        };
        if http.sessions && begins {
            let id = format!("stub-{:016x}", random());
            let left = if http.session_requests == 0 { usize::MAX } else { http.session_requests };
            response.headers_mut().insert("mcp-session-id", id.parse().map_err(io::Error::other)?);
            lock(&self.sessions).insert(id, left);
        }
        Ok(response)
    }

    fn session_lives(&self, _: &Http, id: &str) -> bool {
        let mut sessions = lock(&self.sessions);
        match sessions.get_mut(id) {
            None => false,
            Some(0) => {
                sessions.remove(id);
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    fn get_stream(&self, http: &Http) -> Response<Body> {
        let (sink, outbox) = mpsc::unbounded_channel();
        let mut unasked = self.engine.unasked();
        tokio::spawn(async move {
            while let Ok(text) = unasked.recv().await {
                if sink.send(Out::Message(text)).is_err() {
                    return;
                }
            }
        });
        stream(http.clone(), None, outbox)
    }

    /// Ends the process if it may, else the connection.
    fn end(&self, code: i32) -> io::Result<Response<Body>> {
        if self.exits {
            crate::stdio::exit(code);
        }
        Err(io::Error::other("the script ends the server"))
    }
}

fn is_answer(text: &str) -> bool {
    serde_json::from_str::<Envelope<'_>>(text).is_ok_and(|e| e.method.is_none())
}

fn credential_fits(http: &Http, headers: &HeaderMap) -> bool {
    let Some(wanted) = &http.bearer else { return true };
    let shown = headers.get(&http.bearer_header).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let shown = match http.bearer_header.as_str() {
        "authorization" => shown.strip_prefix("Bearer ").unwrap_or_default(),
        _ => shown,
    };
    shown == wanted
}

fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn with_type(status: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT);
    response.headers_mut().insert("content-type", http::HeaderValue::from_static(content_type));
    response
}

fn plain(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    with_type(status, content_type, Full::new(body.into()).map_err(|never| match never {}).boxed())
}

/// An event stream of what comes; each piece goes out before the next.
fn stream(
    http: Http,
    first: Option<Out>,
    mut outbox: mpsc::UnboundedReceiver<Out>,
) -> Response<Body> {
    let (frames, body) = mpsc::channel::<io::Result<Frame<Bytes>>>(1);
    tokio::spawn(async move {
        let mut number = 0;
        let mut opening = if http.prime { answer::prime(&http) } else { vec![] };
        let mut next = first;
        loop {
            for piece in opening.drain(..) {
                if frames.send(Ok(Frame::data(piece.into()))).await.is_err() {
                    return;
                }
                if http.piece_bytes > 0 || http.split_newline {
                    // Long enough for the piece to leave alone.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            let out = match next.take() {
                Some(out) => Some(out),
                None => tokio::select! {
                    out = outbox.recv() => out,
                    () = frames.closed() => return,
                },
            };
            number += 1;
            opening = match out {
                Some(Out::Message(text)) => answer::event(&http, number, &text),
                Some(Out::Raw(bytes)) => vec![bytes],
                Some(Out::Cut | Out::Exit(_)) => {
                    let _ = frames.send(Err(io::Error::other("cut by the script"))).await;
                    return;
                }
                None => return,
            };
        }
    });
    let body = futures_util::stream::unfold(body, |mut body| async move {
        body.recv().await.map(|frame| (frame, body))
    });
    with_type(200, "text/event-stream", StreamBody::new(body).boxed())
}

/// A server in the test's own process, on a free port of loopback; ends when dropped.
pub struct Stub {
    /// The server.
    pub server: Arc<Server>,
    /// Where it listens.
    pub address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Stub {
    /// Starts one.
    ///
    /// # Panics
    /// When no port can be bound.
    pub async fn start(script: Script) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), script).await
    }

    /// Starts one at an address, for example the one of a stub that was dropped.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub async fn start_at(address: SocketAddr, script: Script) -> Self {
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let server = Server::new(script, false);
        let task = tokio::spawn(Arc::clone(&server).serve(listener));
        Self { server, address, task }
    }

    /// Its MCP endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.server.seen).clone()
    }

    /// Changes the script by a JSON merge patch.
    ///
    /// # Panics
    /// When the result is no script.
    pub fn patch(&self, patch: &serde_json::Value) {
        let script = self.server.engine.script().patched(patch).expect("the patch fits the script");
        self.server.engine.set_script(script);
        *lock(&self.server.posts) = 0;
    }

    /// Forgets every MCP session: the next request of each gets 404.
    pub fn forget_sessions(&self) {
        lock(&self.server.sessions).clear();
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}
