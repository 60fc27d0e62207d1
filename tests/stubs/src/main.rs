//! `awaken-stub`: the scripted MCP server as a program, and the load generator.

use anyhow::Context;
use awaken_stub::{engine::Engine, http::Server, load, script::Script, stdio};
use clap::{Parser, Subcommand};
use std::net::SocketAddr;

/// A scripted MCP server, for tests and benchmarks only.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves over stdin and stdout.
    Stdio {
        /// JSON text, or @file.
        #[arg(env = "STUB_SCRIPT", default_value = "{}")]
        script: String,
    },
    /// Serves over Streamable HTTP.
    Http {
        /// Where to listen.
        #[arg(long, default_value = "0.0.0.0:8000")]
        listen: SocketAddr,
        /// JSON text, or @file.
        #[arg(env = "STUB_SCRIPT", default_value = "{}")]
        script: String,
    },
    /// Calls an MCP server from many callers and prints the latencies as one line of JSON.
    Load(load::Options),
    /// Does nothing until it is ended.
    Idle,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build()?;
    let code = runtime.block_on(run(cli.command))?;
    // Not a return: a read of stdin that blocks would keep the process.
    stdio::exit(code)
}

async fn run(command: Command) -> anyhow::Result<i32> {
    match command {
        Command::Stdio { script } => {
            let engine = Engine::new(Script::read(&script).context("the script")?);
            Ok(stdio::serve(engine, tokio::io::stdin(), tokio::io::stdout()).await)
        }
        Command::Http { listen, script } => {
            let script = Script::read(&script).context("the script")?;
            let ends = script.exit_after_ms.map(|ms| (ms, script.exit_code));
            let listener = tokio::net::TcpListener::bind(listen).await.context("listen")?;
            eprintln!("listening on {}", listener.local_addr()?);
            let serving = Server::new(script, true).serve(listener);
            match ends {
                None => {
                    serving.await;
                    Ok(0)
                }
                Some((ms, code)) => {
                    let limit = std::time::Duration::from_millis(ms);
                    let _ = tokio::time::timeout(limit, serving).await;
                    Ok(code)
                }
            }
        }
        Command::Load(options) => {
            println!("{}", serde_json::to_string(&load::run(options).await?)?);
            Ok(0)
        }
        Command::Idle => std::future::pending().await,
    }
}
