//! Serves HTTP/1 and HTTP/2 over TCP: so many connections and no more, none that keeps silent, and
//! an end at which what is under way finishes. Knows nothing of what is served.
//!
//! ```text
//!  accept ──► over the cap: closed at once, counted
//!     └─────► connection:  no whole request head in time ──► told to end, then cut
//!                          nothing for long after an answer ──► the same
//!                          a request or answer under way ──► lives, however long it takes
//! ```
//!
//! How long a body may be silent is for whoever reads it.

use axum::{Router, body::Body, extract::Request, response::Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// What a server lets its clients do.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at one time; one over it is closed at once.
    pub connections: usize,
    /// How long the head of a request may take, from the connection's begin or its first byte.
    pub head: Duration,
    /// How long a connection may be idle after an answer.
    pub idle: Duration,
}

impl Limits {
    /// The usual times, with so many connections: 10 s for a head, 75 s idle.
    pub fn new(connections: usize) -> Self {
        Self { connections, head: Duration::from_secs(10), idle: Duration::from_secs(75) }
    }
}

/// What is counted.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Connections that are open.
    pub open: Gauge,
    /// Connections that were closed at once because of the cap.
    pub refused: Counter,
}

/// How often a connection is looked at: a limit is kept to within this.
const LOOK: Duration = Duration::from_secs(2);
/// How long a connection that was told to end may take.
const LEAVE: Duration = Duration::from_secs(5);
/// Between two pings to a client over HTTP/2, and how long its answer may take.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// After the machine had no descriptor for a connection.
const AGAIN: Duration = Duration::from_millis(200);

/// How many connections of clients there may be when so many are wanted: at most three quarters of
/// the files that this process may open, since what is behind the clients needs some too.
pub fn room(wanted: usize) -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let room = allowed(wanted, &limits);
    if room < wanted {
        tracing::warn!(wanted, room, "fewer connections: the limit of open files is too low");
    }
    room
}

fn allowed(wanted: usize, limits: &str) -> usize {
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    match files.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()) {
        Some(files) => wanted.min((files / 4 * 3).max(1)),
        None => wanted,
    }
}

/// Serves until `stop`, then lets what is under way finish. Dropped, it cuts every connection.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    meter: Meter,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok(_) if connections.len() >= limits.connections => {
                meter.refused.inc();
            }
            Ok((stream, _)) => {
                // without it the last packet of an answer waits for the client's acknowledgement
                drop(stream.set_nodelay(true));
                let open = Open::new(&meter.open);
                let served = connection(stream, router.clone(), limits.clone(), stop.clone());
                connections.spawn(async move {
                    served.await;
                    drop(open);
                });
            }
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be taken");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// One connection, to its end.
async fn connection<I>(io: I, router: Router, limits: Limits, stop: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let pulse = Pulse::new();
    let mut builder = Builder::new(TokioExecutor::new());
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    let service = hyper::service::service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let (router, busy) = (router.clone(), Busy::new(&pulse));
        async move {
            let request: Request = request.map(Body::new);
            let Ok(response): Result<Response, std::convert::Infallible> =
                router.oneshot(request).await;
            Ok::<_, std::convert::Infallible>(response.map(|body| Counted { body, _busy: busy }))
        }
    });
    let heard = Heard { io, pulse: pulse.clone() };
    let served = builder.serve_connection(TokioIo::new(heard), service);
    let (look, stopped) = (tokio::time::sleep(LOOK), stop.cancelled());
    tokio::pin!(served, look, stopped);
    let (mut stopping, mut leaving) = (false, None);
    loop {
        tokio::select! {
            // what it ends with is the client's affair
            _ = served.as_mut() => return,
            () = &mut stopped, if !stopping => {
                stopping = true;
                served.as_mut().graceful_shutdown();
            }
            () = &mut look => {
                let now = Instant::now();
                look.as_mut().reset(now + LOOK);
                match leaving {
                    _ if !pulse.is_overdue(now, &limits) => leaving = None,
                    Some(since) if now < since + LEAVE => {}
                    Some(_) => return,
                    None => {
                        leaving = Some(now);
                        served.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
}

/// Counts an open connection.
struct Open(Gauge);

impl Open {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What is known of a connection: what is under way, and since when nothing is.
#[derive(Clone)]
struct Pulse(Arc<Mutex<State>>);

struct State {
    under_way: usize,
    /// Since when nothing is under way, or a head is being read.
    since: Instant,
    /// Whether a request was answered, and nothing was heard after it.
    answered: bool,
}

impl Pulse {
    fn new() -> Self {
        let state = State { under_way: 0, since: Instant::now(), answered: false };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something came in.
    fn hear(&self) {
        let mut state = self.lock();
        if state.under_way == 0 && state.answered {
            state.answered = false;
            state.since = Instant::now();
        }
    }

    fn is_overdue(&self, now: Instant, limits: &Limits) -> bool {
        let state = self.lock();
        let limit = if state.answered { limits.idle } else { limits.head };
        state.under_way == 0 && now >= state.since + limit
    }
}

/// A request that is under way, until its answer has gone out.
struct Busy(Pulse);

impl Busy {
    fn new(pulse: &Pulse) -> Self {
        pulse.lock().under_way += 1;
        Self(pulse.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.under_way -= 1;
        state.answered = true;
        if state.under_way == 0 {
            state.since = Instant::now();
        }
    }
}

/// The body of an answer, which is under way as long as it is there.
struct Counted {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Counted {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that tells when something comes in.
struct Heard<I> {
    io: I,
    pulse: Pulse,
}

impl<I: AsyncRead + Unpin> AsyncRead for Heard<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if polled.is_ready() {
            self.pulse.hear();
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Heard<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use futures::{StreamExt as _, stream};
    use rstest::rstest;
    use std::convert::Infallible;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
        net::TcpStream,
    };

    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";

    /// Answers at once, and after 20 minutes with a stream that comes in two pieces.
    fn router() -> Router {
        let long = || async {
            let late = stream::once(async {
                tokio::time::sleep(Duration::from_secs(1200)).await;
                "late"
            });
            let pieces = stream::iter(["soon"]).chain(late);
            Body::from_stream(pieces.map(Ok::<_, Infallible>))
        };
        Router::new().route("/", get(|| async { "ok" })).route("/long", get(long))
    }

    fn connected(stop: &CancellationToken) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 * 1024);
        tokio::spawn(connection(far, router(), Limits::new(9), stop.clone()));
        near
    }

    /// Reads up to this end of what is read.
    async fn until(io: &mut (impl AsyncRead + Unpin), end: &str) -> String {
        let mut all = vec![];
        while !all.ends_with(end.as_bytes()) {
            assert_ne!(io.read_buf(&mut all).await.unwrap(), 0, "{all:?}");
        }
        String::from_utf8(all).unwrap()
    }

    /// How many seconds until the connection is at its end.
    async fn seconds(io: &mut (impl AsyncRead + Unpin)) -> u64 {
        let (begun, mut rest) = (Instant::now(), vec![]);
        drop(io.read_to_end(&mut rest).await);
        begun.elapsed().as_secs()
    }

    #[rstest]
    #[case::silent(b"")]
    #[case::http2(b"PRI * HTTP/2.0\r\n")]
    #[case::half(b"GET / HTTP/1.1\r\nhost")]
    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_ends_the_connection(#[case] begin: &[u8]) {
        let mut io = connected(&CancellationToken::new());
        io.write_all(begin).await.unwrap();
        let seconds = seconds(&mut io).await;
        assert!((10..=20).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_comes_byte_by_byte_does_too() {
        let mut io = connected(&CancellationToken::new());
        io.write_all(GET).await.unwrap();
        until(&mut io, "ok").await;
        let begun = Instant::now();
        for byte in GET {
            if io.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        assert!(begun.elapsed() <= Duration::from_secs(24), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn between_two_requests_a_connection_may_rest() {
        let mut io = connected(&CancellationToken::new());
        for _ in 0..3 {
            io.write_all(GET).await.unwrap();
            until(&mut io, "ok").await;
            tokio::time::sleep(Duration::from_secs(70)).await;
        }
        let seconds = seconds(&mut io).await;
        assert!((5..=15).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_as_long_as_it_takes() {
        let mut io = connected(&CancellationToken::new());
        io.write_all(b"GET /long HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
        until(&mut io, "late\r\n0\r\n\r\n").await;
        io.write_all(GET).await.unwrap();
        until(&mut io, "ok").await;
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_what_is_under_way_finishes() {
        let stop = CancellationToken::new();
        let (mut idle, mut busy) = (connected(&stop), connected(&stop));
        idle.write_all(GET).await.unwrap();
        until(&mut idle, "ok").await;
        busy.write_all(b"GET /long HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
        until(&mut busy, "soon\r\n").await;
        stop.cancel();
        assert_eq!(seconds(&mut idle).await, 0);
        until(&mut busy, "late\r\n0\r\n\r\n").await;
        assert_eq!(seconds(&mut busy).await, 0);
    }

    #[tokio::test]
    async fn over_the_cap_a_connection_is_closed_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (meter, stop) = (Meter::default(), CancellationToken::new());
        let limits = Limits::new(1);
        let serving = serve(listener, router(), limits, meter.clone(), stop.clone());
        let serving = tokio::spawn(serving);
        let ask = async |io: &mut TcpStream| {
            let mut head = [0; 12];
            let asked = io.write_all(GET).await;
            asked.is_ok() && io.read_exact(&mut head).await.is_ok() && head.ends_with(b"200")
        };
        let mut first = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut first).await);
        let mut second = TcpStream::connect(address).await.unwrap();
        assert!(!ask(&mut second).await);
        assert_eq!((meter.open.get(), meter.refused.get()), (1, 1));
        drop(first);
        let again = async {
            while !ask(&mut TcpStream::connect(address).await.unwrap()).await {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), again).await.unwrap();
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(20), serving).await.unwrap().unwrap();
        assert_eq!(meter.open.get(), 0);
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[rstest]
    #[case("Max open files            1024                 1048576              files", 768)]
    #[case("Max cpu time              3                    3                    seconds", 10_000)]
    #[case("Max open files            unlimited            unlimited            files", 10_000)]
    #[case("Max open files            1048576              1048576              files", 10_000)]
    #[case("Max open files            1                    1                    files", 1)]
    fn the_limit_of_files_counts(#[case] limits: &str, #[case] room: usize) {
        assert_eq!(allowed(10_000, &format!("Limit  Soft  Hard\n{limits}\n")), room);
    }
}
