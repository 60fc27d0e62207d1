//! The servers, in processes of their own, that end with this one.

use ed25519_dalek::SigningKey;
use std::{
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio as Pipe},
    sync::Arc,
    time::{Duration, Instant},
};

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A stub over HTTP.
pub struct Http {
    address: String,
    _child: Ended,
}

impl Http {
    /// Starts one on a free port.
    pub fn start(stub: &Path) -> Self {
        let mut child = Command::new(stub)
            .args(["http", "--listen", "127.0.0.1:0", r#"{"http":{"record":false}}"#])
            .stderr(Pipe::piped())
            .spawn()
            .expect("cargo build --release -p awaken-stub");
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { address, _child: Ended(child) }
    }

    /// Its MCP endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

/// A stub over stdio behind a shim.
pub struct Stdio {
    /// Where the shim listens.
    pub address: SocketAddr,
    /// The key that it trusts.
    pub key: Arc<SigningKey>,
    _child: Ended,
}

impl Stdio {
    /// Starts one on a free port and waits until it listens.
    pub fn start(shim: &Path, stub: &Path) -> Self {
        let key = SigningKey::from_bytes(&[7; 32]);
        let public = {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.encode(key.verifying_key().as_bytes())
        };
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(shim)
            .args(["run", "--listen", &address.to_string(), "--session-uid", "uid-session"])
            .args(["--attachment-uid", "uid-stdio", "--generation", "2"])
            .args(["--max-message-bytes", "16777216", "--termination-log", "/dev/null", "--"])
            .arg(stub)
            .arg("stdio")
            .env("AWAKEN_POD_UID", "uid-pod")
            .env("AWAKEN_GATEWAY_KEYS", public)
            .stderr(Pipe::null())
            .spawn()
            .expect("the shim starts");
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "the shim does not listen");
            std::thread::yield_now();
        }
        Self { address, key: Arc::new(key), _child: Ended(child) }
    }
}
