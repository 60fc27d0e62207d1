//! What the built-in tools do.

use crate::{
    engine::{Engine, Out, Sink},
    message::{self, CallParams},
    script::Tool,
    tools::FULL_RESULT,
};
use serde_json::{Value, json};
use std::{
    io::Write, os::unix::fs::MetadataExt, os::unix::process::CommandExt, sync::Arc, time::Duration,
};
use tokio::{net::TcpStream, time};

/// Runs one call and writes its answer, if it has one.
pub async fn run(engine: &Arc<Engine>, does: &str, id: &str, call: &CallParams<'_>, sink: &Sink) {
    let raw = call.arguments.map_or("{}", |a| a.get());
    let args: Value = serde_json::from_str(raw).unwrap_or(Value::Null);
    let say = |text: String| drop(sink.send(Out::Message(text)));
    let text = |text: &str| say(message::result(id, &message::text_result(text, false)));
    let number = |name: &str, default: u64| args[name].as_u64().unwrap_or(default);
    let word = |name: &str| args[name].as_str().unwrap_or_default();
    let wait = |name: &str, default: u64| time::sleep(Duration::from_millis(number(name, default)));
    let tried = |what: std::io::Result<String>| {
        let (answer, bad) = match what {
            Ok(answer) => (answer, false),
            Err(why) => (why.to_string(), true),
        };
        say(message::result(id, &message::text_result(&answer, bad)));
    };
    match does {
        "echo" => {
            let quoted = message::quoted(raw);
            say(message::result(
                id,
                &format!(
                    r#"{{"content":[{{"type":"text","text":{quoted}}}],"structuredContent":{raw}}}"#
                ),
            ));
        }
        "big" => text(&"x".repeat((number("bytes", 2048) as usize).saturating_sub(80))),
        "sleep" => {
            wait("ms", 1000).await;
            text("slept");
        }
        "count" => {
            let now = engine.count();
            wait("ms", 0).await;
            match word("then") {
                "cut" => drop(sink.send(Out::Cut)),
                "hang" => std::future::pending().await,
                _ => text(&now.to_string()),
            }
        }
        "count_read" => text(&engine.counted().to_string()),
        "fail" => say(message::result(id, &message::text_result(word("message"), true))),
        "rpc_error" => {
            let code = args["code"].as_i64().unwrap_or(-32000);
            say(message::error(id, code, word("message")));
        }
        "exit" => {
            wait("ms", 0).await;
            eprintln!("{}", word("stderr"));
            let _ = sink.send(Out::Exit(number("code", 1) as i32));
        }
        "hang" => std::future::pending().await,
        "progress" => {
            for step in 1..=number("steps", 2) {
                let params = json!({"progressToken": call.meta["progressToken"], "progress": step, "total": number("steps", 2)});
                say(message::notification("notifications/progress", &params.to_string()));
                wait("every_ms", 0).await;
            }
            text("done");
        }
        "noise" => {
            let line: &[u8] = match word("kind") {
                "blank" => b"\n",
                "utf8" => b"bad \xc3\x28 bytes\n",
                _ => b"a line that is no message\n",
            };
            let _ = sink.send(Out::Raw(line.repeat(number("lines", 1) as usize)));
            text("made noise");
        }
        "stderr" => {
            flood_stderr(number("bytes", 1 << 20)).await;
            text("wrote");
        }
        "raw" => {
            let _ = sink.send(Out::Raw(word("text").as_bytes().to_vec()));
            text("wrote");
        }
        "env" => {
            let all: serde_json::Map<_, _> = std::env::vars().map(|(k, v)| (k, v.into())).collect();
            text(&Value::Object(all).to_string());
        }
        "about" => text(&about().to_string()),
        "read_file" => tried(std::fs::read_to_string(word("path"))),
        "write_file" => {
            tried(std::fs::write(word("path"), word("text")).map(|()| "written".to_owned()));
        }
        "list_dir" => tried(std::fs::read_dir(word("path")).map(|dir| {
            let names: Vec<_> = dir
                .filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned()))
                .collect();
            names.join("\n")
        })),
        "connect" => {
            let limit = Duration::from_millis(number("ms", 2000));
            text(&match time::timeout(limit, TcpStream::connect(word("address"))).await {
                Ok(Ok(_)) => "connected".to_owned(),
                Ok(Err(why)) => format!("failed: {why}"),
                Err(_) => "timed out".to_owned(),
            });
        }
        "allocate" => {
            let bytes = allocate(args["mib"].as_u64()).await;
            text(&format!("allocated {bytes} bytes"));
        }
        "spawn" => tried(spawn(args["own_group"].as_bool() == Some(true))),
        "cut" => {
            let whole = message::result(id, &message::text_result("never seen whole", false));
            let _ = sink.send(Out::Raw(whole.as_bytes()[..whole.len() / 2].to_vec()));
            let _ = sink.send(Out::Cut);
        }
        "ask" => {
            let method = args["method"].as_str().unwrap_or("sampling/createMessage");
            text(&engine.ask(method, "{}", sink).await);
        }
        "notify" => {
            let method = args["method"].as_str().unwrap_or("notifications/message");
            let params =
                if args["params"].is_object() { args["params"].clone() } else { json!({}) };
            say(message::notification(method, &params.to_string()));
            text("notified");
        }
        "twice" => {
            text("first");
            text("second");
        }
        "stray" => {
            say(message::result("987654321", r#"{"content":[]}"#));
            text("own");
        }
        "full" => say(message::result(id, FULL_RESULT)),
        "change_tools" => {
            match serde_json::from_value::<Option<Vec<Tool>>>(args["tools"].clone()) {
                Ok(tools) => engine.change_tools(tools),
                Err(why) => return say(message::error(id, -32602, &why.to_string())),
            }
            text("changed");
        }
        "seen" => text(&engine.seen()),
        other => say(message::error(id, -32603, &format!("the stub cannot do {other}"))),
    }
}

fn about() -> Value {
    let own = std::fs::metadata("/proc/self");
    json!({
        "pid": std::process::id(),
        "uid": own.as_ref().map_or(0, MetadataExt::uid),
        "gid": own.as_ref().map_or(0, MetadataExt::gid),
        "args": std::env::args().collect::<Vec<_>>(),
        "cwd": std::env::current_dir().map(|d| d.display().to_string()).unwrap_or_default(),
    })
}

async fn flood_stderr(bytes: u64) {
    let written = tokio::task::spawn_blocking(move || {
        let line = b"stderr of the stub, a line of sixty-four bytes with its newline\n";
        let mut stderr = std::io::stderr().lock();
        for _ in 0..bytes.div_ceil(line.len() as u64) {
            if stderr.write_all(line).is_err() {
                return;
            }
        }
    });
    let _ = written.await;
}

/// Touches `mib` MiB, or all that there is, and frees it again.
async fn allocate(mib: Option<u64>) -> usize {
    let mut held: Vec<Vec<u8>> = vec![];
    while mib.is_none_or(|m| (held.len() as u64) < m) {
        held.push(vec![1; 1 << 20]);
        tokio::task::yield_now().await;
    }
    std::hint::black_box(&held).iter().map(Vec::len).sum()
}

/// Starts this program again as one that only idles; its pid.
fn spawn(own_group: bool) -> std::io::Result<String> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg("idle").stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    if own_group {
        command.process_group(0);
    }
    Ok(command.spawn()?.id().to_string())
}
