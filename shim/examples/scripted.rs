//! A stdio server for tests that does on request what real servers do by accident.
//!
//! Flags, done before the first read: `--banner N` lines of text, `--notify BYTES` of
//! notifications, `--stderr TEXT`. Later: `--slow-initialize
//! MILLISECONDS`, `--ignore-eof`. Then each method does what its arm says.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

static INITIALIZED: AtomicU64 = AtomicU64::new(0);
static CANCELLED: AtomicU64 = AtomicU64::new(0);

fn write(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(bytes);
    let _ = out.flush();
}

fn answer(id: &RawValue, result: impl std::fmt::Display) {
    write(format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{result}}}\n", id.get()).as_bytes());
}

fn wait(milliseconds: u64) {
    let (_keep, never) = std::sync::mpsc::channel::<()>();
    let _ = never.recv_timeout(Duration::from_millis(milliseconds));
}

#[derive(serde::Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        args.iter().position(|arg| arg == name).map(|at| args[at + 1].clone()).unwrap_or_default()
    };
    // in one piece, so that a link that is made meanwhile sees all of it or nothing
    let banner =
        (0..value("--banner").parse().unwrap_or(0)).map(|n| format!("Starting up, line {n}\n"));
    write(banner.collect::<String>().as_bytes());
    notify(value("--notify").parse().unwrap_or(0));
    if !value("--stderr").is_empty() {
        eprintln!("{}", value("--stderr"));
    }
    let mut asked_by: Option<Box<RawValue>> = None;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(message) = serde_json::from_str::<Message<'_>>(&line) else {
            eprintln!("not understood: {line}");
            continue;
        };
        let params = message.params.map_or("{}", RawValue::get);
        let parsed: Value = serde_json::from_str(params).unwrap_or_default();
        let number = |name: &str| parsed[name].as_u64().unwrap_or(0);
        let Some(id) = message.id else {
            if message.method.as_deref() == Some("notifications/cancelled") {
                CANCELLED.fetch_add(1, Ordering::SeqCst);
                eprintln!("cancelled {}", parsed["requestId"]);
            }
            continue;
        };
        match message.method.as_deref() {
            None => {
                if let Some(asker) = asked_by.take() {
                    let error = message.error.map_or("null", RawValue::get);
                    answer(&asker, format!("{{\"got\":{error}}}"));
                }
            }
            Some("initialize") => {
                wait(value("--slow-initialize").parse().unwrap_or(0));
                let n = INITIALIZED.fetch_add(1, Ordering::SeqCst) + 1;
                answer(
                    id,
                    json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "scripted", "version": "1"}, "count": n}),
                );
            }
            Some("echo") => answer(id, params),
            Some("line") => answer(id, serde_json::to_string(&line).unwrap()),
            Some("counts") => answer(
                id,
                json!({"initialize": INITIALIZED.load(Ordering::SeqCst),
                "cancelled": CANCELLED.load(Ordering::SeqCst)}),
            ),
            Some("slow") => {
                let (id, ms) = (id.to_owned(), number("ms"));
                std::thread::spawn(move || {
                    wait(ms);
                    answer(&id, json!({"slept": ms}));
                });
            }
            Some("busy") => {
                wait(number("ms"));
                answer(id, json!({}));
            }
            Some("silent") => {}
            Some("env") => {
                let env: std::collections::BTreeMap<String, String> = std::env::vars().collect();
                answer(id, json!(env));
            }
            Some("raw") => {
                let bytes: Vec<u8> = serde_json::from_value(parsed["bytes"].clone()).unwrap();
                write(&bytes);
                answer(id, json!({}));
            }
            Some("big") => {
                let size = usize::try_from(number("size")).unwrap();
                let text = "x".repeat(size);
                write(
                    format!("{{\"jsonrpc\":\"2.0\",\"result\":\"{text}\",\"id\":{}}}\n", id.get())
                        .as_bytes(),
                );
            }
            Some("stderr") => {
                let line = format!("{}\n", "e".repeat(99));
                for _ in 0..number("size") / 100 {
                    let _ = std::io::stderr().write_all(line.as_bytes());
                }
                answer(id, json!({}));
            }
            Some("notify") => {
                notify(number("size"));
                answer(id, json!({}));
            }
            Some("ask") => {
                asked_by = Some(id.to_owned());
                write(
                    b"{\"jsonrpc\":\"2.0\",\"id\":\"s-1\",\"method\":\"sampling/createMessage\"}\n",
                );
            }
            Some("exit") => {
                if let Some(text) = parsed["stderr"].as_str() {
                    eprintln!("{text}");
                }
                let code = i32::try_from(number("code")).unwrap();
                #[expect(clippy::disallowed_methods, reason = "a server that exits mid-call")]
                std::process::exit(code);
            }
            Some(_) => write(
                format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{{\"code\":-32601,\
                     \"message\":\"no such method\"}}}}\n",
                    id.get()
                )
                .as_bytes(),
            ),
        }
    }
    if args.iter().any(|arg| arg == "--ignore-eof") {
        wait(600_000);
    }
}

/// Writes notifications of 1 KiB each.
fn notify(bytes: u64) {
    let pad = "n".repeat(1024 - 66);
    for n in 0..bytes / 1024 {
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":[{n:6},\"{pad}\"]}}\n"
        );
        write(line.as_bytes());
    }
}
