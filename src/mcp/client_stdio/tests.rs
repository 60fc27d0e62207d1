//! The peer against the real `awaken-shim` and its scripted server.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use awaken_shim::frame::{Attached, ChildInfo, Control, Initialize, PROTOCOL};
use awaken_shim::{Claim, challenge};
use bytes::Bytes;
use ed25519_dalek::SigningKey;
use futures::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::{StdioPeer, StdioTarget};
use crate::mcp::{
    Answer, ConnectionFailure, Exit, Outgoing, Peer, PeerError, PeerEvent, RawJson, Sent,
};

const LIMIT: usize = 1 << 20;
const WAIT: Duration = Duration::from_secs(20);

/// The folder of the built programs: built once for this run, or the one that is named.
fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(folder) = std::env::var_os("AWAKEN_PROGRAMS") {
            return folder.into();
        }
        let status = Command::new(env!("CARGO"))
            .args(["build", "-q", "-p", "awaken-shim", "--bin", "awaken-shim"])
            .args(["--example", "scripted"])
            .status()
            .unwrap();
        assert!(status.success());
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().to_owned()
    })
}

struct Server {
    shim: Child,
    target: StdioTarget,
    events: Arc<Mutex<Vec<PeerEvent>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.shim.kill();
        let _ = self.shim.wait();
    }
}

fn key() -> Arc<SigningKey> {
    Arc::new(SigningKey::from_bytes(&[21; 32]))
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut shim = Command::new(programs().join("awaken-shim"))
            .args(["run", "--listen", "127.0.0.1:0", "--session-uid", "session-2"])
            .args(["--attachment-uid", "attachment-3", "--generation", "4"])
            .args(["--max-message-bytes", &LIMIT.to_string(), "--termination-log", "/dev/null"])
            .arg("--")
            .arg(programs().join("examples/scripted"))
            .args(arguments)
            .env("AWAKEN_POD_UID", "pod-1")
            .env("AWAKEN_GATEWAY_KEYS", challenge::format_key(&key().verifying_key()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(shim.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .find_map(|line| Some(line.ok()?.split_once("listening on ")?.1.parse().unwrap()))
            .unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        let claim = Claim {
            pod_uid: "pod-1".into(),
            session_uid: "session-2".into(),
            attachment_uid: "attachment-3".into(),
            generation: 4,
            epoch: 7,
            incarnation: "incarnation-6".into(),
        };
        let target = StdioTarget { address, claim, max_message_bytes: LIMIT };
        Self { shim, target, events: Arc::default() }
    }

    async fn peer(&self) -> StdioPeer {
        self.try_peer(self.target.clone()).await.unwrap()
    }

    async fn peer_of(&self, epoch: u64) -> StdioPeer {
        let mut target = self.target.clone();
        target.claim.epoch = epoch;
        target.claim.incarnation = format!("incarnation of {epoch}");
        self.try_peer(target).await.unwrap()
    }

    async fn try_peer(&self, target: StdioTarget) -> Result<StdioPeer, PeerError> {
        let events = self.events.clone();
        let sink = Arc::new(move |event| events.lock().unwrap().push(event));
        StdioPeer::connect(target, key(), sink).await
    }

    async fn until_event(&self, wanted: impl Fn(&PeerEvent) -> bool) {
        until(|| self.events.lock().unwrap().iter().any(&wanted)).await;
    }
}

async fn until(mut condition: impl FnMut() -> bool) {
    let looking = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, looking).await.expect("the condition never held");
}

fn raw(text: impl Into<String>) -> RawJson {
    RawJson::parse(Bytes::from(text.into())).unwrap()
}

fn asking(method: &'static str, params: impl Into<String>, timeout: Duration) -> Outgoing {
    let cancel = CancellationToken::new();
    Outgoing { method, params: Some(raw(params)), timeout, cancel }
}

async fn ask(peer: &StdioPeer, method: &'static str, params: &str) -> Result<String, PeerError> {
    match peer.request(asking(method, params, WAIT)).await? {
        Answer::Result(result) => Ok(result.as_str().to_owned()),
        Answer::Error(error) => Ok(format!("error {}", error.as_str())),
    }
}

#[tokio::test]
async fn answers_come_verbatim_results_and_errors_alike() {
    let server = Server::start(&[]);
    let peer = server.peer().await;
    let odd = r#"{"z":1.0, "a":12345678901234567890123,"é":"\u00e9","e":1E400}"#;
    assert_eq!(ask(&peer, "echo", odd).await.unwrap(), odd);
    let refused = ask(&peer, "nonsense", "{}").await.unwrap();
    assert_eq!(refused, r#"error {"code":-32601,"message":"no such method"}"#);
    assert_eq!(ask(&peer, "echo", "{\"a\":\n1}").await.unwrap(), "{\"a\": 1}");
}

#[tokio::test]
async fn a_slow_call_delays_no_other() {
    let server = Server::start(&[]);
    let peer = server.peer().await;
    let started = Instant::now();
    let quick = async {
        for n in 0..10 {
            assert_eq!(ask(&peer, "echo", &n.to_string()).await.unwrap(), n.to_string());
        }
        assert!(started.elapsed() < Duration::from_secs(1));
    };
    let (slow, ()) = tokio::join!(ask(&peer, "slow", "{\"ms\":1500}"), quick);
    assert_eq!(slow.unwrap(), "{\"slept\":1500}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_get_their_own_answers() {
    let server = Server::start(&[]);
    let peer = Arc::new(server.peer().await);
    let callers: Vec<_> = (0..64)
        .map(|caller| {
            let peer = peer.clone();
            tokio::spawn(async move {
                for n in 0..20 {
                    let text = format!("[{caller},{n},\"{}\"]", "x".repeat(caller * 50));
                    assert_eq!(ask(&peer, "echo", &text).await.unwrap(), text);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(peer.stray_answers(), 0);
}

#[tokio::test]
async fn a_call_that_ends_early_is_taken_back_and_its_late_answer_dropped() {
    let server = Server::start(&[]);
    let peer = server.peer().await;
    let short = Duration::from_millis(100);
    let timed_out = peer.request(asking("slow", "{\"ms\":600}", short)).await;
    assert_eq!(timed_out, Err(PeerError::TimedOut(short)));

    let cancelled = asking("slow", "{\"ms\":600}", WAIT);
    let cancel = cancelled.cancel.clone();
    let (result, ()) = tokio::join!(peer.request(cancelled), async {
        ask(&peer, "echo", "0").await.unwrap();
        cancel.cancel();
    });
    assert_eq!(result, Err(PeerError::Cancelled));

    let dropped = tokio::time::timeout(short, ask(&peer, "slow", "{\"ms\":600}")).await;
    assert!(dropped.is_err());
    let mut counts = String::new();
    let deadline = Instant::now() + WAIT;
    while !counts.contains("\"cancelled\":3") && Instant::now() < deadline {
        counts = ask(&peer, "counts", "{}").await.unwrap();
    }
    assert!(counts.contains("\"cancelled\":3"), "{counts}");
    until(|| peer.stray_answers() == 3).await;
    server.until_event(|event| *event == PeerEvent::StrayAnswer).await;
    assert_eq!(ask(&peer, "echo", "5").await.unwrap(), "5");
}

#[tokio::test]
async fn a_server_that_asks_is_refused_at_once() {
    let server = Server::start(&[]);
    let peer = server.peer().await;
    let got = ask(&peer, "ask", "{}").await.unwrap();
    assert_eq!(got, r#"{"got":{"code":-32601,"message":"Method not found"}}"#);
}

#[tokio::test]
async fn an_exit_ends_calls_with_code_and_last_lines_and_says_what_was_sent() {
    let server = Server::start(&[]);
    let peer = server.peer().await;
    let pending = ask(&peer, "silent", "{}");
    let ending = ask(&peer, "exit", "{\"code\":1,\"stderr\":\"disk full\"}");
    let (pending, ending) = tokio::join!(pending, ending);
    let exit = Exit { code: Some(1), signal: None, stderr_tail: "disk full".into() };
    let expected = PeerError::Exited { sent: Sent::Maybe, exit: exit.clone() };
    assert_eq!((pending, ending), (Err(expected.clone()), Err(expected.clone())));
    assert_eq!(expected.to_string(), "the server ended: exit code 1; disk full");
    let later = ask(&peer, "echo", "0").await;
    assert_eq!(later, Err(PeerError::Exited { sent: Sent::No, exit }));
    assert_eq!(*peer.closed().borrow(), Some(expected));
}

#[tokio::test]
async fn messages_over_the_limit_end_their_call_only() {
    let server = Server::start(&[]);
    let peer = server.peer().await;
    let beside = ask(&peer, "slow", "{\"ms\":300}");
    let big = format!("{{\"size\":{}}}", 2 * LIMIT);
    let (beside, big) = tokio::join!(beside, ask(&peer, "big", &big));
    assert_eq!(big, Err(PeerError::TooLarge { sent: Sent::Maybe, limit: LIMIT }));
    assert_eq!(beside.unwrap(), "{\"slept\":300}");
    let huge = format!("\"{}\"", "x".repeat(LIMIT));
    let never_sent = Err(PeerError::TooLarge { sent: Sent::No, limit: LIMIT });
    assert_eq!(ask(&peer, "echo", &huge).await, never_sent);
    let large = format!("\"{}\"", "x".repeat(LIMIT - 200));
    assert_eq!(ask(&peer, "echo", &large).await.unwrap(), large);
}

#[tokio::test]
async fn a_server_that_writes_before_it_reads_and_is_sent_much_serves_all() {
    let server = Server::start(&["--notify", &(6 << 20).to_string(), "--banner", "36"]);
    let peer = server.peer().await;
    let text = format!("\"{}\"", "y".repeat(300 << 10));
    let calls = (0..10).map(|_| ask(&peer, "echo", &text));
    for answer in futures::future::join_all(calls).await {
        assert_eq!(answer.unwrap(), text);
    }
    let events = server.events.lock().unwrap();
    let notified =
        events.iter().filter(|event| matches!(event, PeerEvent::Notification { .. })).count();
    assert_eq!(notified, 6 << 10);
    let noise: Vec<_> =
        events.iter().filter(|event| matches!(event, PeerEvent::Noise { .. })).collect();
    let expected = PeerEvent::Noise { count: 36, sample: "Starting up, line 0".into() };
    assert_eq!(noise, [&expected], "once, not 36 times");
}

#[tokio::test]
async fn a_busy_server_fills_the_window_and_then_takes_everything() {
    let server = Server::start(&[]);
    let peer = server.peer().await;
    let text = format!("\"{}\"", "y".repeat(500 << 10));
    let busy = ask(&peer, "busy", "{\"ms\":2000}");
    let short = Duration::from_millis(100);
    let many = async {
        let calls = (0..8).map(|_| ask(&peer, "echo", &text));
        futures::future::join_all(calls).await
    };
    let late = async {
        tokio::task::yield_now().await;
        peer.request(asking("echo", "0", short)).await
    };
    let (busy, many, late) = tokio::join!(busy, many, late);
    busy.unwrap();
    assert!(many.into_iter().all(|answer| answer.unwrap() == text));
    let Err(PeerError::Connection { sent: Sent::No, .. }) = late else {
        panic!("it was never sent, and that is known: {late:?}")
    };
}

#[tokio::test]
async fn initialize_reaches_a_child_once_whoever_asks() {
    let server = Server::start(&["--slow-initialize", "300"]);
    let first = server.peer_of(7).await;
    let asked = asking("initialize", "{}", Duration::from_millis(100));
    assert!(first.request(asked).await.is_err(), "slower than that");
    let second = server.peer_of(8).await;
    let kept = ask(&second, "initialize", "{}").await.unwrap();
    assert!(kept.contains("\"count\":1"), "{kept}");
    second.notify("notifications/initialized", None).await.unwrap();
    let third = server.peer_of(9).await;
    assert_eq!(ask(&third, "initialize", "{}").await.unwrap(), kept);
    third.notify("notifications/initialized", None).await.unwrap();
    assert_eq!(ask(&third, "initialize", "{}").await.unwrap(), kept);
    let counts = ask(&third, "counts", "{}").await.unwrap();
    assert_eq!(counts, "{\"cancelled\":0,\"initialize\":1}");
}

#[tokio::test]
async fn a_higher_epoch_ends_the_older_peer_and_gets_none_of_its_answers() {
    let server = Server::start(&[]);
    let old = server.peer_of(7).await;
    let (in_flight, new) = tokio::join!(ask(&old, "slow", "{\"ms\":400}"), async {
        ask(&old, "echo", "0").await.unwrap();
        server.peer_of(8).await
    });
    let Err(PeerError::Connection { sent: Sent::Maybe, kind, message }) = in_flight else {
        panic!("{in_flight:?}")
    };
    assert_eq!(kind, ConnectionFailure::LinkRefused);
    assert!(message.contains("Superseded"), "{message}");
    until(|| new.stray_answers() >= 1).await;
    assert_eq!(ask(&new, "echo", "1").await.unwrap(), "1");
    let mut stale = server.target.clone();
    stale.claim.epoch = 6;
    let refused = server.try_peer(stale).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("StaleEpoch"), "{refused}");
}

/// Forwards bytes to a shim; each connection ends when told.
async fn proxy(
    target: std::net::SocketAddr,
) -> (std::net::SocketAddr, Arc<Mutex<CancellationToken>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cut = Arc::new(Mutex::new(CancellationToken::new()));
    let current = cut.clone();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let mut to = TcpStream::connect(target).await.unwrap();
            let ended = current.lock().unwrap().clone();
            tokio::spawn(async move {
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                    () = ended.cancelled() => {}
                }
            });
        }
    });
    (address, cut)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_breaks_loses_and_repeats_nothing() {
    let server = Server::start(&[]);
    let (address, cut) = proxy(server.target.address).await;
    let peer = server.try_peer(StdioTarget { address, ..server.target.clone() }).await.unwrap();
    let peer = Arc::new(peer);
    let slow = tokio::spawn({
        let peer = peer.clone();
        async move { ask(&peer, "slow", "{\"ms\":900}").await }
    });
    for n in 0..8 {
        let text = format!("[{n},\"{}\"]", "z".repeat(200_000));
        let (answer, ()) = tokio::join!(ask(&peer, "echo", &text), async {
            tokio::time::sleep(Duration::from_millis(n)).await;
            std::mem::take(&mut *cut.lock().unwrap()).cancel();
        });
        assert_eq!(answer.unwrap(), text);
    }
    assert_eq!(slow.await.unwrap().unwrap(), "{\"slept\":900}");
    assert_eq!(peer.stray_answers(), 0, "nothing ran twice");
}

#[tokio::test]
async fn a_shim_that_is_gone_closes_the_peer() {
    let mut server = Server::start(&[]);
    let peer = server.peer().await;
    let pending = ask(&peer, "silent", "{}");
    let killing = async {
        ask(&peer, "echo", "0").await.unwrap();
        server.shim.kill().unwrap();
    };
    let (pending, ()) = tokio::join!(pending, killing);
    let Err(PeerError::Connection { sent: Sent::Maybe, kind, .. }) = pending else {
        panic!("{pending:?}")
    };
    assert_eq!(kind, ConnectionFailure::Unreachable);
    assert!(peer.closed().borrow().is_some());
}

/// A shim that attaches whoever comes and then reads nothing.
async fn attach_and_stall(listener: &TcpListener) -> impl Sized {
    let (stream, _) = listener.accept().await.unwrap();
    let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
    let nonce = challenge::format_nonce(&[5; 32]);
    let challenge = Control::Challenge { protocol: PROTOCOL, nonce };
    socket.send(Message::text(challenge.to_text())).await.unwrap();
    socket.next().await.unwrap().unwrap();
    let attached = Control::Attached(Attached {
        highest_sequence: 0,
        acknowledged: 0,
        received: 0,
        max_message_bytes: 64 << 20,
        child: ChildInfo { pid: 3, started: 4 },
        initialize: Initialize::None,
        initialized: false,
    });
    socket.send(Message::text(attached.to_text())).await.unwrap();
    socket
}

/// As when the pod is killed: nobody is at its address any more, not even to refuse.
#[tokio::test]
async fn a_pod_that_ends_the_link_and_then_is_silent_is_soon_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut server = Server::start(&[]);
    server.target.address = listener.local_addr().unwrap();
    let (peer, link) = tokio::join!(server.peer(), attach_and_stall(&listener));
    drop(link);
    let mut closed = peer.closed();
    let gone = closed.wait_for(Option::is_some);
    tokio::time::timeout(Duration::from_secs(2), gone).await.expect("soon").unwrap();
}

#[tokio::test]
async fn a_link_that_hears_nothing_is_cut_although_a_sender_is_stuck() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut server = Server::start(&[]);
    server.target.address = listener.local_addr().unwrap();
    server.target.max_message_bytes = 64 << 20;
    let (peer, _stalled) = tokio::join!(server.peer(), attach_and_stall(&listener));
    let text = format!("\"{}\"", "x".repeat(48 << 20));
    let stuck = peer.request(asking("echo", text, Duration::from_secs(3600)));
    let cut = async {
        until(|| peer.core.writer.try_lock().is_err()).await;
        tokio::time::pause();
        let again = tokio::time::timeout(Duration::from_secs(45), listener.accept()).await;
        again.expect("it attaches again").unwrap();
    };
    tokio::select! {
        answer = stuck => panic!("{answer:?}"),
        () = cut => {}
    }
}

#[tokio::test]
async fn links_that_cannot_be_are_named() {
    let server = Server::start(&[]);
    let stranger = Arc::new(SigningKey::from_bytes(&[22; 32]));
    let refused = StdioPeer::connect(server.target.clone(), stranger, Arc::new(|_| {})).await;
    let Err(PeerError::Connection { sent: Sent::No, kind, message }) = refused.map(drop) else {
        panic!("attached")
    };
    assert_eq!(kind, ConnectionFailure::LinkRefused);
    assert!(message.contains("BadSignature"), "{message}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let target = StdioTarget { address: closed, ..server.target.clone() };
    let Err(PeerError::Connection { sent: Sent::No, kind, .. }) =
        server.try_peer(target).await.map(drop)
    else {
        panic!("attached")
    };
    assert_eq!(kind, ConnectionFailure::Unreachable);
}

#[tokio::test]
async fn closing_a_peer_leaves_the_child() {
    let server = Server::start(&[]);
    let peer = server.peer().await;
    ask(&peer, "initialize", "{}").await.unwrap();
    peer.close().await;
    peer.close().await;
    let after = ask(&peer, "echo", "0").await;
    assert!(matches!(after, Err(PeerError::Connection { sent: Sent::No, .. })), "{after:?}");
    let again = server.peer().await;
    assert!(ask(&again, "counts", "{}").await.unwrap().contains("\"initialize\":1"));
}
