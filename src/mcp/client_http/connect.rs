//! Connections to pinned addresses, and what a failed one means.

use crate::mcp::{ConnectionFailure, PeerError, Sent};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{
    ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream,
};
use hyper_util::{
    client::legacy::{Client, Error},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use std::{
    error::Error as StdError,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::net::TcpStream;
use tower::Service;

/// Kept connections are closed after this long without use: common servers close theirs after 5 s,
/// and a request that meets such a close cannot be told from one that ran.
const IDLE: Duration = Duration::from_secs(4);

/// TLS toward servers: the machine's roots. Made once, shared by all peers.
///
/// # Errors
/// No usable root certificate on the machine.
pub fn tls_config() -> io::Result<Arc<rustls::ClientConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_native_roots()?
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Makes connections to fixed addresses, whatever the host of the URI; TLS checks that host.
#[derive(Clone)]
pub(super) struct Connector {
    https: HttpsConnector<Pinned>,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(
        addresses: Vec<SocketAddr>,
        tls: &rustls::ClientConfig,
        timeout: Duration,
    ) -> Self {
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls.clone())
            .https_or_http()
            .enable_http1()
            .wrap_connector(Pinned(addresses.into()));
        Self { https, timeout }
    }

    /// Every connection is kept for the next call: there are no more of them than calls at a time.
    pub(super) fn client(self) -> Client<Self, Full<Bytes>> {
        Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(self)
    }
}

type BoxError = Box<dyn StdError + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, timeout) = (self.https.call(uri), self.timeout);
        Box::pin(async move {
            tokio::time::timeout(timeout, connecting)
                .await
                .map_err(|_| format!("no connection within {timeout:?}"))?
        })
    }
}

/// TCP to the first of the addresses that answers.
#[derive(Clone)]
struct Pinned(Arc<[SocketAddr]>);

impl Service<Uri> for Pinned {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let addresses = self.0.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(&*addresses).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// What a failed request means: without a connection nothing was sent.
pub(super) fn failure(error: &Error) -> PeerError {
    let sent = if error.is_connect() { Sent::No } else { Sent::Maybe };
    let kind = match find_tls(error) {
        true if error.is_connect() => ConnectionFailure::Tls,
        _ => ConnectionFailure::Unreachable,
    };
    PeerError::Connection { sent, kind, message: root(error).to_string() }
}

/// Whether TLS is among the causes; an `io::Error` hides what it wraps from `source`.
fn find_tls(error: &(dyn StdError + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    if wrapped.is_some_and(|inner| find_tls(inner)) {
        return true;
    }
    error.source().is_some_and(find_tls)
}

fn root<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error
}
