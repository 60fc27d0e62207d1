//! The hop to the gateway that serves a Session, or holds an MCP session, over the port that only
//! gateways use.
//!
//! ```text
//!  client ──► any gateway ── not served here? ──► the host's internal port ──► its routes
//! ```
//!
//! The request goes as it came, body and answer streamed, so the host authenticates the caller
//! itself. A signature by the installation's key says that a gateway sent it, to this start of the
//! host, a moment ago; it stands in the header [`HEADER`], which counts on no other port. Who has
//! it forwards no further: one hop.

use super::{
    answer::HttpRefusal,
    host::keys::LinkKeys,
    peers::{Peers, Sibling},
};
use crate::domain::{Clock, reason::Reason};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, Uri,
        header::{self, AUTHORIZATION, HOST},
        uri::PathAndQuery,
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ed25519_dalek::{Signature, Signer as _};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use sha2::{Digest as _, Sha256};
use std::{sync::Arc, time::Duration};

/// Says that a gateway forwarded the request.
pub const HEADER: HeaderName = HeaderName::from_static("awaken-forwarded");
/// A signature is good for this long, either way: the clocks of two nodes may differ.
const GOOD_FOR: i64 = 60;
/// How long the connection to a host may take.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection on which nothing comes is probed this often.
const PROBE: Duration = Duration::from_secs(3);
/// A host that acknowledges nothing for this long is gone.
#[cfg(target_os = "linux")]
const SILENT: Duration = Duration::from_secs(10);
/// An idle connection to a host is kept for this long; the host keeps it for longer.
const IDLE: Duration = Duration::from_secs(30);
/// Headers that speak of one connection only.
const HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
];

/// Marks a request that a gateway forwarded, and that was checked to be such a one.
#[derive(Clone, Copy, Debug)]
pub struct Forwarded;

/// Sends requests on, and checks those that were sent on.
#[derive(Clone)]
pub struct Forward {
    peers: Peers,
    keys: LinkKeys,
    clock: Arc<dyn Clock>,
    incarnation: Arc<str>,
    client: Client<HttpConnector, Body>,
}

impl Forward {
    /// For this start of this gateway.
    pub fn new(peers: Peers, keys: LinkKeys, clock: Arc<dyn Clock>, incarnation: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        // a host whose node is gone sends nothing, not even an end
        connector.set_keepalive(Some(PROBE));
        connector.set_keepalive_interval(Some(PROBE));
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(SILENT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Self { peers, keys, clock, incarnation: incarnation.into(), client }
    }

    /// The other gateway that serves what is seated there; none if that is this one, if it is not
    /// known, or if the request has made its hop.
    pub fn host(&self, gateway: &str, incarnation: &str, request: &Request) -> Option<Sibling> {
        let away = incarnation != &*self.incarnation && !was_forwarded(request);
        self.peers.get(gateway, incarnation).filter(|_| away)
    }

    /// The other gateway that holds the MCP session of this id.
    pub fn holder(&self, id: &str, request: &Request) -> Option<Sibling> {
        let (mark, _) = id.split_once('.')?;
        let away = mark != super::peers::mark_of(&self.incarnation) && !was_forwarded(request);
        self.peers.marked(mark).filter(|_| away)
    }

    /// Sends the request to that gateway and gives what it answers.
    ///
    /// # Errors
    /// 503 if it cannot be reached. `OutcomeUnknown` if it was lost after a POST was sent: the
    /// request may have been carried out, and the trace tells.
    pub async fn send(&self, peer: &Sibling, request: Request) -> Result<Response, HttpRefusal> {
        let method = request.method().clone();
        let sent = self.signed(peer, request)?;
        match self.client.request(sent).await {
            // the Lease of a start that is gone: nothing was looked at
            Ok(answer) if answer.headers().contains_key(HEADER) => {
                let message = "the gateway that serves this has just been started again";
                Err(HttpRefusal::unavailable(Reason::Rescheduling, message))
            }
            Ok(answer) => {
                let mut answer = answer.map(Body::new);
                drop_hop(answer.headers_mut());
                Ok(answer)
            }
            Err(error) if error.is_connect() || method != Method::POST => {
                tracing::warn!(address = %peer.address, %error, "the host cannot be reached");
                let message = "the gateway that serves this cannot be reached at the moment";
                Err(HttpRefusal::unavailable(Reason::Rescheduling, message))
            }
            Err(error) => {
                tracing::warn!(address = %peer.address, %error, "the host was lost");
                let message = "the gateway that serves this was lost while it worked on the request; \
                               what became of it is in the trace";
                Err(HttpRefusal::internal(Reason::OutcomeUnknown, message))
            }
        }
    }

    fn signed(&self, peer: &Sibling, request: Request) -> Result<Request, HttpRefusal> {
        let (mut head, body) = request.into_parts();
        if let (None, Some(host)) = (head.headers.get(HOST), head.uri.authority()) {
            let host = HeaderValue::try_from(host.as_str());
            head.headers.extend(host.ok().map(|host| (HOST, host)));
        }
        drop_hop(&mut head.headers);
        let no_key = || {
            let message = "this gateway has no key yet";
            HttpRefusal::unavailable(Reason::Rescheduling, message)
        };
        let key = self.keys.current().ok_or_else(no_key)?;
        let path = path_of(&head.uri);
        let now = self.clock.now().as_second();
        let text = statement(&peer.incarnation, now, &head.method, path, &head.headers);
        let signature = URL_SAFE_NO_PAD.encode(key.sign(text.as_bytes()).to_bytes());
        let proof = HeaderValue::try_from(format!("{now}.{signature}")).map_err(|_| no_key())?;
        head.uri = format!("http://{}{path}", peer.address)
            .parse()
            .map_err(|_| HttpRefusal::invalid(Reason::InvalidRequest, "the path cannot be used"))?;
        head.headers.insert(HEADER, proof);
        head.version = axum::http::Version::HTTP_11;
        Ok(Request::from_parts(head, body))
    }

    /// Whether another gateway sent this to this one.
    fn is_proven(&self, request: &Request) -> bool {
        let proof = request.headers().get(HEADER).and_then(|v| v.to_str().ok());
        let Some((second, signature)) = proof.and_then(|p| p.split_once('.')) else { return false };
        let (Ok(at), Ok(bytes)) = (second.parse::<i64>(), URL_SAFE_NO_PAD.decode(signature)) else {
            return false;
        };
        let Ok(signature) = Signature::from_slice(&bytes) else { return false };
        let path = path_of(request.uri());
        let text = statement(&self.incarnation, at, request.method(), path, request.headers());
        let age = self.clock.now().as_second().saturating_sub(at);
        age.abs() <= GOOD_FOR && self.keys.verify(text.as_bytes(), &signature)
    }
}

/// Whether a gateway of the installation forwarded this, as the [`door`] found.
pub fn was_forwarded(request: &Request) -> bool {
    request.extensions().get::<Forwarded>().is_some()
}

fn path_of(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", PathAndQuery::as_str)
}

/// What is signed: for whom, when, which request, and on whose behalf.
fn statement(to: &str, at: i64, method: &Method, path: &str, headers: &HeaderMap) -> String {
    let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let shown = URL_SAFE_NO_PAD.encode(Sha256::digest(shown));
    format!("awaken-forward-v1\n{to}\n{at}\n{method} {path}\n{shown}")
}

fn drop_hop(headers: &mut HeaderMap) {
    for name in &HOP {
        headers.remove(name);
    }
}

/// The door of the internal port: what no gateway of the installation sent to this start of it is
/// turned away, and [`HEADER`] in the answer says that it was the door.
pub async fn door(State(forward): State<Forward>, mut request: Request, next: Next) -> Response {
    if !forward.is_proven(&request) {
        let message = "this port is for gateways of the installation";
        let mut refused = HttpRefusal::unauthenticated(message).into_response();
        refused.headers_mut().insert(HEADER, HeaderValue::from_static("refused"));
        return refused;
    }
    request.headers_mut().remove(HEADER);
    request.extensions_mut().insert(Forwarded);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::SigningKey;
    use jiff::Timestamp;
    use rstest::rstest;

    struct At(i64);

    impl Clock for At {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(self.0).unwrap()
        }
    }

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    fn gateway(incarnation: &str, keys: LinkKeys, at: i64) -> Forward {
        Forward::new(Peers::default(), keys, Arc::new(At(at)), incarnation)
    }

    fn peer() -> Sibling {
        Sibling { incarnation: "b".into(), address: "127.0.0.1:1".parse().unwrap() }
    }

    fn request() -> Request {
        Request::post("/v1/sessions/a/b/mcp?x=1")
            .header("host", "gateway:80")
            .header("authorization", "Bearer t")
            .header("connection", "close")
            .body(Body::empty())
            .unwrap()
    }

    fn sent() -> Request {
        let from = gateway("a", LinkKeys::new(key(1), None), 1000);
        from.signed(&peer(), request()).unwrap()
    }

    #[test]
    fn a_request_goes_as_it_came_but_for_what_is_of_one_connection() {
        let sent = sent();
        assert_eq!(sent.uri(), "http://127.0.0.1:1/v1/sessions/a/b/mcp?x=1");
        assert_eq!(sent.headers()["host"], "gateway:80");
        assert_eq!(sent.headers()["authorization"], "Bearer t");
        assert_eq!(sent.headers().get("connection"), None);
    }

    #[rstest]
    #[case::as_it_was_sent("b", 1, 1000, |_: &mut Request| {}, true)]
    #[case::a_slow_clock("b", 1, 941, |_: &mut Request| {}, true)]
    #[case::a_key_before("b", 2, 1000, |_: &mut Request| {}, true)]
    #[case::another_host("c", 1, 1000, |_: &mut Request| {}, false)]
    #[case::too_late("b", 1, 1061, |_: &mut Request| {}, false)]
    #[case::too_early("b", 1, 939, |_: &mut Request| {}, false)]
    #[case::another_installation("b", 3, 1000, |_: &mut Request| {}, false)]
    #[case::another_path("b", 1, 1000, |r: &mut Request| *r.uri_mut() = Uri::from_static("/v1/x"), false)]
    #[case::another_method("b", 1, 1000, |r: &mut Request| *r.method_mut() = Method::DELETE, false)]
    #[case::another_caller("b", 1, 1000, |r: &mut Request| { r.headers_mut().insert("authorization", HeaderValue::from_static("Bearer u")); }, false)]
    #[case::no_caller("b", 1, 1000, |r: &mut Request| { r.headers_mut().remove("authorization"); }, false)]
    #[case::no_proof("b", 1, 1000, |r: &mut Request| { r.headers_mut().remove(HEADER); }, false)]
    #[case::no_signature("b", 1, 1000, |r: &mut Request| { r.headers_mut().insert(HEADER, HeaderValue::from_static("1000.")); }, false)]
    #[case::nonsense("b", 1, 1000, |r: &mut Request| { r.headers_mut().insert(HEADER, HeaderValue::from_bytes("é".as_bytes()).unwrap()); }, false)]
    fn only_what_a_gateway_sent_here_a_moment_ago_passes(
        #[case] incarnation: &str,
        #[case] current: u8,
        #[case] now: i64,
        #[case] change: fn(&mut Request),
        #[case] passes: bool,
    ) {
        let previous = (current == 2).then(|| key(1));
        let to = gateway(incarnation, LinkKeys::new(key(current), previous), now);
        let mut sent = sent();
        change(&mut sent);
        assert_eq!(to.is_proven(&sent), passes);
    }

    #[tokio::test]
    async fn a_host_that_is_not_there_is_503() {
        let from = gateway("a", LinkKeys::new(key(1), None), 1000);
        let refused = from.send(&peer(), request()).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.reason), (503, Reason::Rescheduling));
    }

    /// The Lease is that of an earlier start: the new one at that address turns the request away.
    #[tokio::test]
    async fn a_host_that_was_started_again_is_503() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let again = gateway("b2", LinkKeys::new(key(1), None), 1000);
        let routes = axum::Router::new().fallback(|| async { "not reached" });
        let routes = routes.layer(axum::middleware::from_fn_with_state(again, door));
        let host = tokio::spawn(async move { axum::serve(listener, routes).await });
        let from = gateway("a", LinkKeys::new(key(1), None), 1000);
        let refused = from.send(&Sibling { address, ..peer() }, request()).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.reason), (503, Reason::Rescheduling));
        host.abort();
    }

    /// A host that takes the request and is gone.
    #[rstest]
    #[case(Method::POST, 500, Reason::OutcomeUnknown)]
    #[case(Method::GET, 503, Reason::Rescheduling)]
    #[tokio::test]
    async fn a_host_that_is_lost_with_the_request_leaves_its_outcome_open(
        #[case] method: Method,
        #[case] status: u16,
        #[case] reason: Reason,
    ) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let host = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncReadExt::read_u8(&mut stream).await.unwrap();
        });
        let from = gateway("a", LinkKeys::new(key(1), None), 1000);
        let mut request = request();
        *request.method_mut() = method;
        let refused = from.send(&Sibling { address, ..peer() }, request).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.reason), (status, reason));
        host.await.unwrap();
    }
}
