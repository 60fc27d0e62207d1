//! Steady calls on every Session: one caller each, one call at a time, each with an id of its own.
//! Says what each call got; what of it is allowed is for the steps to say.

use crate::support::{LIMIT, until};
use awaken_stub::mcp_client::{Client, Reply, text_of};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// No call takes longer, whatever happens to it.
const PATIENCE: Duration = Duration::from_secs(40);
/// Between two calls of a caller.
const PAUSE: Duration = Duration::from_millis(60);

/// What a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Got {
    /// Its result.
    Answer,
    /// 503 with Retry-After, or the same as a JSON-RPC error.
    Later,
    /// `OutcomeUnknown`.
    Unknown,
    /// `JournalUnavailable`.
    NoJournal,
    /// `ServerUnreachable`: it found its server dead, and was not sent.
    Unsent,
    /// The connection broke, or could not be made: no answer at all.
    Nothing,
    /// Anything else.
    Other,
}

/// One call, or one handshake before it (without an id).
#[derive(Clone, Debug)]
pub struct Call {
    /// The Session.
    pub session: String,
    /// The id in its arguments; empty for a handshake.
    pub id: String,
    /// When it was made.
    pub begun: Instant,
    /// When it had its answer.
    pub ended: Instant,
    /// What it got.
    pub got: Got,
    /// The answer, for people.
    pub said: String,
    /// What `count` answered.
    pub number: Option<u64>,
}

/// What an HTTP answer is.
fn judge(reply: &anyhow::Result<Reply>) -> (Got, String) {
    let reply = match reply {
        Ok(reply) => reply,
        Err(why) => return (Got::Nothing, format!("{why:#}")),
    };
    let said = format!("HTTP {}: {}", reply.status, reply.text());
    let Ok(answer) = reply.answer() else { return (Got::Other, said) };
    let reason = [&answer["error"]["data"]["reason"], &answer["error"]["reason"]];
    let reason = reason.into_iter().find_map(Value::as_str).unwrap_or_default();
    let again = reply.headers.contains_key("retry-after")
        || answer["error"]["data"]["retryAfter"].is_number();
    let got = match (reply.status, reason) {
        (200, "") if answer.get("result").is_some() && answer["result"]["isError"] != true => {
            Got::Answer
        }
        (_, "OutcomeUnknown") => Got::Unknown,
        (_, "JournalUnavailable") => Got::NoJournal,
        (_, "ServerUnreachable") => Got::Unsent,
        (503, _) if reply.headers.contains_key("retry-after") => Got::Later,
        (200, "Rescheduling" | "NotServing") if again => Got::Later,
        _ => Got::Other,
    };
    (got, said)
}

/// A caller: a client that begins anew whenever its MCP session or its connection is gone.
pub struct Caller {
    url: String,
    token: String,
    client: Option<Client>,
}

impl Caller {
    /// Of an MCP endpoint.
    pub fn new(url: String, token: &str) -> Self {
        Self { url, token: token.to_owned(), client: None }
    }

    async fn hello(&mut self) -> Result<(), (Got, String)> {
        let mut client = Client::new(&self.url, Some(&self.token)).expect("a URL");
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "awaken-fleet", "version": "1"}});
        let reply = client.request("initialize", &params).await;
        let (Got::Answer, _) = judge(&reply) else { return Err(judge(&reply)) };
        let reply = reply.expect("judged");
        let session = reply.headers.get("mcp-session-id").and_then(|v| v.to_str().ok());
        client.session = session.map(str::to_owned);
        let note = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let reply = client.send(http::Method::POST, note).await;
        match reply {
            Ok(reply) if reply.status == 202 => {
                self.client = Some(client);
                Ok(())
            }
            // the gateway with the MCP session went meanwhile
            Ok(reply) if reply.status == 404 => Err((Got::Later, reply.text())),
            other => Err(judge(&other)),
        }
    }

    /// One call; the id is empty if it did not get beyond the handshake.
    pub async fn call(&mut self, session: &str, tool: &str, arguments: &Value) -> Call {
        let begun = Instant::now();
        let mut id = arguments["id"].as_str().unwrap_or_default().to_owned();
        let (got, said, answer) = match timeout(PATIENCE, self.attempt(tool, arguments)).await {
            Ok(all) => all,
            Err(_) => (Got::Other, format!("no answer within {PATIENCE:?}"), None),
        };
        if self.client.is_none() && answer.is_none() {
            id.clear();
        }
        if got != Got::Answer {
            self.client = None;
        }
        let number = answer.as_ref().and_then(|a| text_of(a).parse().ok());
        Call { session: session.to_owned(), id, begun, ended: Instant::now(), got, said, number }
    }

    /// The last part is none without a reply to the call itself.
    async fn attempt(&mut self, tool: &str, arguments: &Value) -> (Got, String, Option<Value>) {
        for _ in 0..3 {
            if self.client.is_none()
                && let Err((got, said)) = self.hello().await
            {
                return (got, said, None);
            }
            let client = self.client.as_mut().expect("said hello");
            let params = json!({"name": tool, "arguments": arguments});
            let reply = client.request("tools/call", &params).await;
            if reply.as_ref().is_ok_and(|r| r.status == 404) {
                self.client = None; // the MCP session is gone, and nothing was called
                continue;
            }
            let (got, said) = judge(&reply);
            let answer = reply.ok().and_then(|r| r.answer().ok()).unwrap_or_default();
            return (got, said, Some(answer));
        }
        (Got::Other, "404 again and again".to_owned(), None)
    }
}

/// Callers at work.
pub struct Load {
    stop: CancellationToken,
    calls: Arc<Mutex<Vec<Call>>>,
    sessions: Vec<String>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts one caller for each Session: its name and its MCP endpoint. `label` begins every id.
    pub fn start(label: &str, sessions: &[(String, String)], token: &str) -> Self {
        let stop = CancellationToken::new();
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let start = |(name, url): &(String, String)| {
            let (mut caller, label) = (Caller::new(url.clone(), token), label.to_owned());
            let (stop, calls, name) = (stop.clone(), calls.clone(), name.clone());
            tokio::spawn(async move {
                let tool = format!("mcp__{name}__count");
                for number in 0u64.. {
                    if stop.is_cancelled() {
                        return;
                    }
                    let arguments = json!({"id": format!("{label}.{name}.{number}")});
                    let call = caller.call(&name, &tool, &arguments).await;
                    calls.lock().unwrap().push(call);
                    sleep(PAUSE).await;
                }
            })
        };
        let callers = sessions.iter().map(start).collect();
        Self { stop, calls, callers, sessions: sessions.iter().map(|s| s.0.clone()).collect() }
    }

    /// Waits until every Session has answered a call that was made from now on.
    pub async fn served(&self) {
        let since = Instant::now();
        until("every Session is served", LIMIT, || async {
            let calls = self.calls.lock().unwrap();
            let fresh = |s: &&String| {
                !calls.iter().any(|c| &c.session == *s && c.got == Got::Answer && c.begun >= since)
            };
            match self.sessions.iter().find(fresh) {
                None => Ok(()),
                Some(s) => Err(format!("{:?}", calls.iter().rev().find(|c| &c.session == s))),
            }
        })
        .await;
    }

    /// Lets them end their calls; all that was called.
    pub async fn end(self) -> Calls {
        self.stop.cancel();
        for caller in self.callers {
            caller.await.expect("a caller does not panic");
        }
        Calls(std::mem::take(&mut *self.calls.lock().unwrap()))
    }
}

/// What was called in one step.
pub struct Calls(pub Vec<Call>);

impl Calls {
    /// Fails unless every call got one of these.
    pub fn only(&self, allowed: &[Got]) {
        let other: Vec<_> = self.0.iter().filter(|c| !allowed.contains(&c.got)).collect();
        let first: Vec<_> = other.iter().take(5).collect();
        assert!(other.is_empty(), "{} calls of {}: {first:#?}", other.len(), self.0.len());
    }

    /// The longest time in which a Session answered nothing.
    pub fn gap(&self) -> (Duration, String) {
        let mut last = BTreeMap::<&str, Instant>::new();
        let mut longest = (Duration::ZERO, String::new());
        let mut all: Vec<_> = self.0.iter().filter(|c| c.got == Got::Answer).collect();
        all.sort_by_key(|c| c.ended);
        for call in all {
            if let Some(before) = last.insert(&call.session, call.ended) {
                let gap = call.ended - before;
                if gap > longest.0 {
                    longest = (gap, call.session.clone());
                }
            }
        }
        longest
    }

    /// How many got what.
    pub fn counts(&self) -> BTreeMap<Got, usize> {
        let mut all = BTreeMap::new();
        for call in &self.0 {
            *all.entry(call.got).or_default() += 1;
        }
        all
    }
}
