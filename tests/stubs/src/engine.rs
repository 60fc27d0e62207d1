//! The server's side of the protocol, whatever the transport: takes one message, writes what the
//! script says of it to the sink it came with. Knows neither stdio nor HTTP.

use crate::{
    calls,
    message::{self, CallParams, Envelope},
    script::{HandshakeMode, Script, Tool},
    tools,
};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::Write,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

/// What goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// A JSON-RPC message.
    Message(String),
    /// Bytes as they are (stdio only).
    Raw(Vec<u8>),
    /// The stream ends here, unfinished.
    Cut,
    /// The process ends here, with this code.
    Exit(i32),
}

/// Where the output for one message goes. What cannot be sent any more is dropped.
pub type Sink = mpsc::UnboundedSender<Out>;

/// The versions that it speaks.
pub const VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// The memory of the server.
#[derive(Default)]
struct Memory {
    counter: u64,
    methods: BTreeMap<String, u64>,
    cancelled: Vec<String>,
    asked: HashMap<String, oneshot::Sender<String>>,
    next_ask: u64,
    running: HashMap<String, watch::Sender<bool>>,
}

/// One server.
pub struct Engine {
    script: Mutex<Arc<Script>>,
    memory: Mutex<Memory>,
    unasked: broadcast::Sender<String>,
}

impl Engine {
    /// A server that does what the script says.
    pub fn new(script: Script) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(Arc::new(script)),
            memory: Mutex::default(),
            unasked: broadcast::channel(64).0,
        })
    }

    /// The script as it is now.
    pub fn script(&self) -> Arc<Script> {
        Arc::clone(&self.script.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Another script from here on.
    pub fn set_script(&self, script: Script) {
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(script);
    }

    /// What is sent to everybody who listens (GET streams, stdout).
    pub fn unasked(&self) -> broadcast::Receiver<String> {
        self.unasked.subscribe()
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one message; returns when everything that it causes is written.
    pub async fn handle(self: &Arc<Self>, text: &[u8], sink: Sink) {
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(text) else {
            let _ = sink.send(Out::Message(message::error("null", -32700, "Parse error")));
            return;
        };
        let Some(method) = envelope.method else {
            self.answered(envelope.id.map_or("", |i| i.get()), text);
            return;
        };
        let count = {
            let mut memory = self.memory();
            let count = memory.methods.entry(method.clone()).or_default();
            *count += 1;
            *count
        };
        let params = envelope.params.map(|p| p.get());
        let Some(id) = envelope.id.map(|i| i.get().to_owned()) else {
            self.notified(&method, params, &sink);
            return;
        };
        let (cancel, mut cancelled) = watch::channel(false);
        self.memory().running.insert(id.clone(), cancel);
        tokio::select! {
            () = self.answer(&method, &id, params, count, &sink) => {}
            _ = cancelled.wait_for(|c| *c) => {}
            () = sink.closed() => {}
        }
        self.memory().running.remove(&id);
    }

    async fn answer(
        self: &Arc<Self>,
        method: &str,
        id: &str,
        params: Option<&str>,
        count: u64,
        sink: &Sink,
    ) {
        let script = self.script();
        let say = |text: String| drop(sink.send(Out::Message(text)));
        match method {
            "initialize" => self.initialize(id, params, count, sink).await,
            "ping" if script.ignore_ping => std::future::pending().await,
            "ping" => say(message::result(id, "{}")),
            "tools/list" => {
                let cursor = params
                    .and_then(|p| serde_json::from_str::<serde_json::Value>(p).ok())
                    .and_then(|v| v["cursor"].as_str().map(str::to_owned));
                match tools::list(&script, cursor.as_deref()) {
                    Ok(list) => say(message::result(id, &list)),
                    Err(why) => say(message::error(id, -32602, &why)),
                }
            }
            "tools/call" => match params.map(serde_json::from_str::<CallParams<'_>>) {
                Some(Ok(call)) => match tools::behaviour(&script, &call.name) {
                    Some(does) => calls::run(self, &does, id, &call, sink).await,
                    None => {
                        say(message::error(id, -32602, &format!("Unknown tool: {}", call.name)))
                    }
                },
                _ => say(message::error(id, -32602, "Invalid params")),
            },
            _ => say(message::error(id, -32601, "Method not found")),
        }
    }

    async fn initialize(&self, id: &str, params: Option<&str>, count: u64, sink: &Sink) {
        let script = self.script();
        let how = &script.handshake;
        let started = self.tally("starts").unwrap_or(count);
        let delay = how.delays_ms.get(started as usize - 1).or(how.delays_ms.last());
        if let Some(ms) = delay {
            tokio::time::sleep(Duration::from_millis(*ms)).await;
        }
        let mode = if how.once && count > 1 { HandshakeMode::Error } else { how.mode };
        let _ = match mode {
            HandshakeMode::Silent => std::future::pending().await,
            HandshakeMode::Error => sink.send(Out::Message(message::error(
                id,
                -32603,
                "initialize refused by the script",
            ))),
            HandshakeMode::Exit => sink.send(Out::Exit(how.exit_code)),
            HandshakeMode::Garbage => sink.send(Out::Raw(b"this is no protocol\n".to_vec())),
            HandshakeMode::Answer => {
                let asked = params
                    .and_then(|p| serde_json::from_str::<serde_json::Value>(p).ok())
                    .and_then(|v| v["protocolVersion"].as_str().map(str::to_owned))
                    .filter(|v| VERSIONS.contains(&v.as_str()));
                let version = how.version.clone().or(asked).unwrap_or("2025-11-25".to_owned());
                let result = format!(
                    r#"{{"protocolVersion":{},"capabilities":{},"serverInfo":{{"name":{},"version":"1.2.3"}},"instructions":"A stub."}}"#,
                    message::quoted(&version),
                    how.capabilities.as_deref().unwrap_or(r#"{"tools":{"listChanged":true}}"#),
                    message::quoted(script.name.as_deref().unwrap_or("awaken-stub")),
                );
                sink.send(Out::Message(message::result(id, &result)))
            }
        };
    }

    fn notified(&self, method: &str, params: Option<&str>, sink: &Sink) {
        if method != "notifications/cancelled" {
            return;
        }
        let id = params
            .and_then(|p| serde_json::from_str::<serde_json::Value>(p).ok())
            .map_or(String::new(), |v| v["requestId"].to_string());
        let mut memory = self.memory();
        memory.cancelled.push(id.clone());
        if let Some(running) = memory.running.get(&id) {
            running.send_replace(true);
        }
        drop(memory);
        if let Some(code) = self.script().exit_on_cancel {
            let _ = sink.send(Out::Exit(code));
        }
    }

    fn answered(&self, id: &str, text: &[u8]) {
        if let Some(waiting) = self.memory().asked.remove(id) {
            let _ = waiting.send(String::from_utf8_lossy(text).into_owned());
        }
    }

    /// Sends a request to the client and waits for its answer, whole.
    pub async fn ask(&self, method: &str, params: &str, sink: &Sink) -> String {
        let (tx, rx) = oneshot::channel();
        let id = {
            let mut memory = self.memory();
            memory.next_ask += 1;
            let id = format!("stub-{}", memory.next_ask);
            memory.asked.insert(message::quoted(&id), tx);
            id
        };
        let _ = sink.send(Out::Message(message::request(&id, method, params)));
        rx.await.unwrap_or_default()
    }

    /// Raises the counter, durably where the script names a folder, and returns it.
    pub fn count(&self) -> u64 {
        self.tally("count").unwrap_or_else(|| {
            let mut memory = self.memory();
            memory.counter += 1;
            memory.counter
        })
    }

    /// The counter.
    pub fn counted(&self) -> u64 {
        match &self.script().state {
            Some(dir) => fs::metadata(Path::new(dir).join("count")).map_or(0, |m| m.len()),
            None => self.memory().counter,
        }
    }

    /// One more byte in a file of the state folder; its length is the count.
    fn tally(&self, name: &str) -> Option<u64> {
        let script = self.script();
        let path = Path::new(script.state.as_ref()?).join(name);
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).ok()?;
        file.write_all(b"+").ok()?;
        file.metadata().ok().map(|m| m.len())
    }

    /// How often each method was seen, and what was cancelled, as JSON.
    pub fn seen(&self) -> String {
        let memory = self.memory();
        serde_json::json!({"methods": memory.methods, "cancelled": memory.cancelled}).to_string()
    }

    /// Replaces the tools and tells everybody.
    pub fn change_tools(&self, tools: Option<Vec<Tool>>) {
        let mut script = Script::clone(&self.script());
        script.tools = tools;
        self.set_script(script);
        self.say_unasked(message::notification("notifications/tools/list_changed", "{}"));
    }

    /// Sends a message to everybody who listens.
    pub fn say_unasked(&self, text: String) {
        let _ = self.unasked.send(text);
    }
}
