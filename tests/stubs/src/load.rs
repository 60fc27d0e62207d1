//! The load generator: callers in a closed loop, each call timed, over HTTP (one connection a
//! caller, one MCP session for all) or over the pipes of a stdio stub that all callers share.

use crate::mcp_client::Client;
use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::oneshot,
    task::JoinSet,
};

/// What to call, and how much.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// An MCP endpoint, http://…; without it a stdio stub is started and called directly.
    #[arg(long)]
    pub url: Option<String>,
    /// File with the bearer token to show.
    #[arg(long)]
    pub token_file: Option<String>,
    /// The tool.
    #[arg(long, default_value = "big")]
    pub tool: String,
    /// Its arguments, JSON.
    #[arg(long, default_value = "{}")]
    pub arguments: String,
    /// Callers at a time.
    #[arg(long, default_value_t = 1)]
    pub callers: usize,
    /// For how long, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    pub millis: u64,
    /// Calls of each caller before the clock starts.
    #[arg(long, default_value_t = 20)]
    pub warm: usize,
}

/// What came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Calls answered with a result.
    pub calls: u64,
    /// Calls answered otherwise, or not.
    pub errors: u64,
    /// One of those.
    pub first_error: Option<String>,
    /// For how long, in seconds.
    pub seconds: f64,
    /// Median, in microseconds.
    pub p50_us: u64,
    /// 90th percentile, in microseconds.
    pub p90_us: u64,
    /// 99th percentile, in microseconds.
    pub p99_us: u64,
    /// The longest, in microseconds.
    pub max_us: u64,
}

enum Caller {
    Http(Box<Client>),
    Stdio(Arc<Pipes>),
}

impl Caller {
    async fn call(&mut self, tool: &str, arguments: &Value) -> Result<()> {
        let answer = match self {
            Self::Http(client) => client.call(tool, arguments).await?,
            Self::Stdio(pipes) => {
                pipes.request("tools/call", &json!({"name": tool, "arguments": arguments})).await?
            }
        };
        let bad = answer.get("result").is_none() || answer["result"]["isError"] == true;
        anyhow::ensure!(!bad, "{answer}");
        Ok(())
    }
}

/// Runs the load.
///
/// # Errors
/// When a caller cannot even begin.
pub async fn run(options: Options) -> Result<Figures> {
    let token = options.token_file.as_ref().map(std::fs::read_to_string).transpose()?;
    let token = token.as_deref().map(str::trim);
    let arguments: Value = serde_json::from_str(&options.arguments).context("--arguments")?;
    let pipes = match options.url {
        Some(_) => None,
        None => Some(Arc::new(Pipes::start("{}").await?)),
    };
    let mut first = match &options.url {
        Some(url) => Some(Client::new(url, token)?),
        None => None,
    };
    if let Some(client) = &mut first {
        client.initialize().await.context("initialize")?;
    }
    let mut callers = vec![];
    for number in 1..=options.callers as u64 {
        callers.push(match (&first, &pipes) {
            (Some(client), _) => Caller::Http(Box::new(client.join(number))),
            (None, Some(pipes)) => Caller::Stdio(Arc::clone(pipes)),
            (None, None) => unreachable!("without a URL there are pipes"),
        });
    }
    let mut all = JoinSet::new();
    let gate = Arc::new(tokio::sync::Barrier::new(options.callers));
    for mut caller in callers {
        let (options, arguments, gate) = (options.clone(), arguments.clone(), Arc::clone(&gate));
        all.spawn(async move {
            for _ in 0..options.warm {
                let _ = caller.call(&options.tool, &arguments).await;
            }
            gate.wait().await;
            let (begin, limit) = (Instant::now(), Duration::from_millis(options.millis));
            let (mut times, mut errors, mut first) = (vec![], 0, None);
            while begin.elapsed() < limit {
                let start = Instant::now();
                match caller.call(&options.tool, &arguments).await {
                    Ok(()) => times.push(start.elapsed().as_micros() as u64),
                    Err(why) => {
                        errors += 1;
                        first.get_or_insert(format!("{why:#}"));
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
            (times, errors, first, begin.elapsed())
        });
    }
    let (mut times, mut errors, mut first_error, mut longest) = (vec![], 0, None, Duration::ZERO);
    while let Some(one) = all.join_next().await {
        let (t, e, f, spent) = one?;
        times.extend(t);
        errors += e;
        first_error = first_error.or(f);
        longest = longest.max(spent);
    }
    if let Some(client) = &mut first {
        let _ = client.send(http::Method::DELETE, "").await;
    }
    times.sort_unstable();
    let at = |share: f64| {
        times
            .get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1)))
            .copied()
    };
    Ok(Figures {
        calls: times.len() as u64,
        errors,
        first_error,
        seconds: longest.as_secs_f64(),
        p50_us: at(0.5).unwrap_or(0),
        p90_us: at(0.9).unwrap_or(0),
        p99_us: at(0.99).unwrap_or(0),
        max_us: times.last().copied().unwrap_or(0),
    })
}

type Waiting = Mutex<HashMap<u64, oneshot::Sender<Value>>>;

/// A stdio stub that this process started, and its pipes.
pub struct Pipes {
    input: tokio::sync::Mutex<ChildStdin>,
    waiting: Arc<Waiting>,
    next: AtomicU64,
    _child: Child,
}

impl Pipes {
    /// Starts this program as a stdio server and initializes it.
    ///
    /// # Errors
    /// When it does not start or does not answer.
    pub async fn start(script: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["stdio", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().context("stdin is piped")?;
        let output = child.stdout.take().context("stdout is piped")?;
        let waiting = Arc::new(Waiting::default());
        let answers = Arc::clone(&waiting);
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                let id = message["id"].as_u64().unwrap_or_default();
                let waiter = answers.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                if let Some(waiter) = waiter {
                    let _ = waiter.send(message);
                }
            }
        });
        let input = tokio::sync::Mutex::new(input);
        let pipes = Self { input, waiting, next: AtomicU64::new(1), _child: child };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "load", "version": "1"}});
        pipes.request("initialize", &hello).await?;
        Ok(pipes)
    }

    async fn request(&self, method: &str, params: &Value) -> Result<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tx, rx) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, tx);
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.input.lock().await.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(rx.await?)
    }
}
