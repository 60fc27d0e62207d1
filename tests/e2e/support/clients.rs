//! The clients that users have, as programs: the MCP SDK from PyPI and the inspector from npm.

use serde_json::Value;
use std::{process::Stdio, time::Duration};
use tokio::{io::AsyncWriteExt, process::Command};

/// Longer than an installation and a story take.
const PATIENCE: Duration = Duration::from_secs(400);

/// Takes steps with the SDK, as `client/client.py` describes them; its report.
///
/// # Panics
/// When the client fails.
pub async fn sdk(url: &str, token: &str, steps: Value) -> Value {
    let mut child = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/client/run"))
        .arg(url)
        .env("AWAKEN_TOKEN", token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the client starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(steps.to_string().as_bytes()).await.expect("the client reads");
    drop(stdin);
    let out =
        tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("in time").unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("the client prints JSON")
}

/// What the inspector said.
#[derive(Debug)]
pub struct Inspected {
    /// Its exit status.
    pub status: i32,
    /// Its result, or its error.
    pub said: Value,
}

/// One run of the inspector's command line.
///
/// # Panics
/// When it cannot be run, or prints no JSON.
pub async fn inspector(url: &str, token: &str, arguments: &[&str]) -> Inspected {
    let run = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/inspector/run"))
        .args([
            "--server-url",
            url,
            "--transport",
            "http",
            "--format",
            "json",
            "--stored-auth-only",
        ])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let out = tokio::time::timeout(PATIENCE, run).await.expect("in time").expect("it runs");
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    let status = out.status.code().unwrap_or(-1);
    let text = if out.stdout.is_empty() { &out.stderr } else { &out.stdout };
    let said: Value = serde_json::from_slice(text).unwrap_or_else(|why| {
        panic!("status {status}, {why}: {} {stderr}", String::from_utf8_lossy(&out.stdout))
    });
    let said = said.get("result").cloned().unwrap_or(said);
    Inspected { status, said }
}

/// A call of a tool with it; the result.
pub async fn inspector_call(url: &str, token: &str, tool: &str, arguments: Value) -> Inspected {
    let arguments = arguments.to_string();
    let call = ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", &arguments];
    inspector(url, token, &call).await
}
