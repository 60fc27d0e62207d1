//! Starts the real `awaken-shim` and speaks the link's protocol by hand.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use awaken_shim::frame::{self, Attached, Control, Exited};
use awaken_shim::{Claim, Header, Kind, Refusal, challenge};
use bytes::Bytes;
use ed25519_dalek::SigningKey;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

pub const LIMIT: usize = 1 << 20;
pub const WAIT: Duration = Duration::from_secs(20);

pub fn key() -> SigningKey {
    SigningKey::from_bytes(&[11; 32])
}

pub fn claim(epoch: u64, incarnation: &str) -> Claim {
    Claim {
        pod_uid: "pod-1".into(),
        session_uid: "session-2".into(),
        attachment_uid: "attachment-3".into(),
        generation: 4,
        epoch,
        incarnation: incarnation.into(),
    }
}

/// The scripted server, built on demand: a filtered test run does not build examples.
pub fn scripted() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BUILT
        .get_or_init(|| {
            let path =
                Path::new(env!("CARGO_BIN_EXE_awaken-shim")).with_file_name("examples/scripted");
            if !path.exists() {
                let status = std::process::Command::new(env!("CARGO"))
                    .args(["build", "-q", "-p", "awaken-shim", "--example", "scripted"])
                    .status()
                    .unwrap();
                assert!(status.success());
            }
            path
        })
        .clone()
}

pub struct Shim {
    pub child: Child,
    pub address: String,
    pub log: Arc<Mutex<String>>,
    pub folder: tempfile::TempDir,
}

pub fn command(folder: &Path, command: &[&str]) -> Command {
    let key = challenge::format_key(&key().verifying_key());
    let mut shim = Command::new(env!("CARGO_BIN_EXE_awaken-shim"));
    shim.args(["run", "--listen", "127.0.0.1:0", "--session-uid", "session-2"])
        .args(["--attachment-uid", "attachment-3", "--generation", "4"])
        .args(["--max-message-bytes", &LIMIT.to_string(), "--termination-log"])
        .arg(folder.join("termination"))
        .arg("--")
        .args(command)
        .env("AWAKEN_POD_UID", "pod-1")
        .env("AWAKEN_GATEWAY_KEYS", key)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    shim
}

impl Shim {
    pub async fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, |_| {}).await
    }

    pub async fn scripted(arguments: &[&str]) -> Self {
        let scripted = scripted();
        let mut all = vec![scripted.to_str().unwrap()];
        all.extend(arguments);
        Self::start(&all).await
    }

    pub async fn start_with(arguments: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(folder.path(), arguments);
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let mut address = None;
        while address.is_none() {
            let line = timeout(WAIT, lines.next_line()).await.unwrap().unwrap();
            let line = line.unwrap_or_else(|| panic!("the shim ended: {}", log.lock().unwrap()));
            address = line.strip_prefix("awaken-shim: listening on ").map(str::to_owned);
            log.lock().unwrap().push_str(&format!("{line}\n"));
        }
        let copy = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                copy.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        Self { child, address: address.unwrap(), log, folder }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id().unwrap()).unwrap()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).unwrap();
    }

    pub async fn exit_code(&mut self) -> Option<i32> {
        timeout(WAIT, self.child.wait()).await.expect("the shim goes on").unwrap().code()
    }

    pub fn termination(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("termination")).unwrap_or_default()
    }

    pub async fn until_logged(&self, text: &str) {
        until(|| self.log.lock().unwrap().contains(text)).await;
    }

    pub async fn connect(&self) -> WebSocketStream<TcpStream> {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let url = format!("ws://{}/link", self.address);
        tokio_tungstenite::client_async(url, stream).await.unwrap().0
    }

    pub async fn attach(&self, epoch: u64, incarnation: &str) -> Link {
        self.try_attach(&claim(epoch, incarnation), &key()).await.expect("attached")
    }

    pub async fn try_attach(
        &self,
        claim: &Claim,
        key: &SigningKey,
    ) -> Result<Link, (Refusal, String)> {
        let socket = self.connect().await;
        let mut link = Link {
            socket,
            epoch: claim.epoch,
            sequence: 0,
            acknowledged: 0,
            written: 0,
            state: None,
        };
        let Some(Said::Control(Control::Challenge { protocol, nonce })) = link.hear().await else {
            panic!("no challenge")
        };
        assert_eq!(protocol, frame::PROTOCOL);
        let signature = challenge::sign(key, &challenge::parse_nonce(&nonce).unwrap(), claim);
        link.control(&Control::Attach { claim: claim.clone(), signature }).await;
        match link.hear().await {
            Some(Said::Control(Control::Attached(state))) => {
                link.sequence = state.received;
                link.state = Some(state);
                Ok(link)
            }
            Some(Said::Control(Control::Error { reason, message })) => Err((reason, message)),
            other => panic!("{other:?}"),
        }
    }
}

/// Waits for a condition that another process brings about.
pub async fn until(mut condition: impl FnMut() -> bool) {
    let looking = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, looking).await.expect("the condition never held");
}

#[derive(Debug)]
pub enum Said {
    Control(Control),
    Data(Header, Bytes),
}

pub struct Link {
    pub socket: WebSocketStream<TcpStream>,
    pub epoch: u64,
    pub sequence: u64,
    pub acknowledged: u64,
    pub written: u64,
    pub state: Option<Attached>,
}

impl Link {
    pub fn state(&self) -> &Attached {
        self.state.as_ref().unwrap()
    }

    pub async fn hear(&mut self) -> Option<Said> {
        loop {
            let message = timeout(WAIT, self.socket.next()).await.expect("the shim says nothing");
            return match message? {
                Ok(Message::Text(text)) => Some(Said::Control(Control::from_text(&text).unwrap())),
                Ok(Message::Binary(bytes)) => {
                    let (header, payload) = frame::decode(bytes).unwrap();
                    self.written = header.acknowledged;
                    Some(Said::Data(header, payload))
                }
                Ok(Message::Close(_)) | Err(_) => None,
                Ok(_) => continue,
            };
        }
    }

    pub async fn control(&mut self, control: &Control) {
        self.socket.send(Message::text(control.to_text())).await.unwrap();
    }

    pub async fn send(&mut self, kind: Kind, payload: &[u8]) {
        self.sequence += u64::from(kind != Kind::Acknowledge);
        let sequence = if kind == Kind::Acknowledge { 0 } else { self.sequence };
        let header = Header { kind, epoch: self.epoch, sequence, acknowledged: self.acknowledged };
        self.socket.send(Message::Binary(frame::encode(header, payload))).await.unwrap();
    }

    pub async fn call(&mut self, id: &str, method: &str, params: &str) {
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"{method}\",\"params\":{params}}}"
        );
        let kind = if method == "initialize" { Kind::Initialize } else { Kind::Message };
        self.send(kind, text.as_bytes()).await;
    }

    pub async fn acknowledge(&mut self, sequence: u64) {
        self.acknowledged = sequence;
        self.send(Kind::Acknowledge, b"").await;
    }

    /// The next message, and its number.
    pub async fn message(&mut self) -> (u64, String) {
        loop {
            match self.hear().await {
                Some(Said::Data(header, _)) if header.kind == Kind::Acknowledge => {}
                Some(Said::Data(header, payload)) => {
                    assert_eq!(header.epoch, self.epoch);
                    return (header.sequence, String::from_utf8(payload.to_vec()).unwrap());
                }
                Some(Said::Control(Control::Noise { .. })) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The answer to a call, passing over notifications.
    pub async fn answer(&mut self, id: &str) -> (u64, String) {
        loop {
            let (sequence, text) = self.message().await;
            if text.contains(&format!("\"id\":\"{id}\"")) {
                return (sequence, text);
            }
        }
    }

    /// The next control frame, passing over messages; none at the end of the link.
    pub async fn next_control(&mut self) -> Option<Control> {
        loop {
            match self.hear().await {
                Some(Said::Data(..)) => {}
                Some(Said::Control(control)) => return Some(control),
                None => return None,
            }
        }
    }

    pub async fn refused(&mut self) -> Refusal {
        match self.next_control().await {
            Some(Control::Error { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    pub async fn exited(&mut self) -> Exited {
        loop {
            match self.next_control().await {
                Some(Control::Exited(exit)) => return exit,
                Some(Control::Noise { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

pub fn answer(id: &str, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"result\":{result}}}")
}
