//! The stub as a stdio server. Reading and writing run apart, one task a message.

use crate::{
    engine::{Engine, Out},
    script::{Noise, Script},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
};

/// Serves until the input ends; returns the exit code.
pub async fn serve(
    engine: Arc<Engine>,
    input: impl AsyncRead + Unpin + Send + 'static,
    mut output: impl AsyncWrite + Unpin + Send + 'static,
) -> i32 {
    let script = engine.script();
    if let Some(code) = refused(&script) {
        return code;
    }
    let (sink, outbox) = mpsc::unbounded_channel();
    let mut opening = b"banner of the stub, no protocol\n".repeat(script.noise.banner_lines);
    while script.noise.flood_bytes > opening.len() {
        opening.extend_from_slice(br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"flood"}}"#);
        opening.push(b'\n');
    }
    // Before anything is read, as a server that floods does.
    if output.write_all(&opening).await.is_err() || output.flush().await.is_err() {
        return 1;
    }
    let mut writer = tokio::spawn(write(outbox, output, script.noise.clone()));
    let reader = read(&engine, input, sink);
    let lifetime = async {
        match script.exit_after_ms {
            Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        code = &mut writer => code.unwrap_or(101),
        () = lifetime => script.exit_code,
        () = reader => writer.await.unwrap_or(101),
    }
}

/// Why it does not even start.
fn refused(script: &Script) -> Option<i32> {
    if let Some(text) = &script.handshake.stderr {
        eprintln!("{text}");
    }
    if let Some(name) = &script.handshake.stderr_env {
        eprintln!("{name} is {}", std::env::var(name).unwrap_or_default());
    }
    assert!(!script.panic, "the script asks for a panic");
    let name = script.need_env.as_ref()?;
    if std::env::var_os(name).is_some() {
        return None;
    }
    eprintln!("fatal: the environment variable {name} is not set");
    Some(2)
}

async fn read(engine: &Arc<Engine>, input: impl AsyncRead + Unpin, sink: crate::engine::Sink) {
    let mut lines = BufReader::new(input).split(b'\n');
    let mut unasked = engine.unasked();
    let everybody = sink.clone();
    let relay = tokio::spawn(async move {
        while let Ok(text) = unasked.recv().await {
            let _ = everybody.send(Out::Message(text));
        }
    });
    while let Ok(Some(line)) = lines.next_segment().await {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        if engine.script().single_threaded {
            engine.handle(&line, sink.clone()).await;
        } else {
            let (engine, sink) = (Arc::clone(engine), sink.clone());
            tokio::spawn(async move { engine.handle(&line, sink).await });
        }
    }
    relay.abort();
}

/// Writes until every sender is gone, the stream is cut or the process is to end; the exit code.
async fn write(
    mut outbox: mpsc::UnboundedReceiver<Out>,
    mut output: impl AsyncWrite + Unpin,
    noise: Noise,
) -> i32 {
    let mut buffer = Vec::new();
    while let Some(out) = outbox.recv().await {
        buffer.clear();
        let mut next = Some(out);
        while let Some(out) = next {
            match out {
                Out::Message(text) => dress(&noise, &text, &mut buffer),
                Out::Raw(bytes) => buffer.extend_from_slice(&bytes),
                Out::Cut | Out::Exit(_) => {
                    let _ = output.write_all(&buffer).await;
                    let _ = output.flush().await;
                    return if let Out::Exit(code) = out { code } else { 0 };
                }
            }
            next = outbox.try_recv().ok();
        }
        if output.write_all(&buffer).await.is_err() || output.flush().await.is_err() {
            return 1;
        }
    }
    0
}

/// A message as a line, with the noise that belongs to it.
fn dress(noise: &Noise, text: &str, buffer: &mut Vec<u8>) {
    if noise.text {
        buffer.extend_from_slice(b"log: a line that is no message\n");
    }
    if noise.blank {
        buffer.extend_from_slice(b"\n");
    }
    if noise.invalid_utf8 {
        buffer.extend_from_slice(b"\xc3\x28\n");
    }
    if noise.bom {
        buffer.extend_from_slice("\u{feff}".as_bytes());
    }
    buffer.extend_from_slice(text.as_bytes());
    buffer.extend_from_slice(if noise.crlf { b"\r\n" } else { b"\n" });
}

/// Ends the process. Only for what a script asks for.
#[expect(clippy::disallowed_methods, reason = "the script asks for a server that ends abruptly")]
pub fn exit(code: i32) -> ! {
    std::process::exit(code)
}
