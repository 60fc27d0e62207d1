//! The `awaken` program: flags and subcommands. It builds the parts and joins their tasks; it
//! decides nothing itself.

mod flags;

use anyhow::{Context as _, Result};
use awaken_operator::{
    controller, crds, gateway,
    journal::{self, sqlite},
    process::{
        health::{self, Readiness},
        logging,
        metrics::Metrics,
        tasks::Tasks,
    },
};
use clap::Parser as _;
use flags::{Command, Flags, GatewayFlags, JournalCommand, OperatorFlags, Process};
use kube::Client;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    match Flags::parse().command {
        Command::Operator(flags) => runtime()?.block_on(operator(flags)),
        Command::Gateway(flags) => runtime()?.block_on(gateway(flags)),
        Command::Crds => {
            print!("{}", crds::yaml()?);
            Ok(())
        }
        Command::Journal { file, command } => runtime()?.block_on(journal_tool(file, command)),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

async fn operator(flags: OperatorFlags) -> Result<()> {
    let (mut tasks, readiness, metrics) = begin(&flags.process)?;
    let client = Client::try_default().await.context("no way to the API server")?;
    let part =
        controller::run(flags.config(), client, readiness, metrics, tasks.stop());
    tasks.spawn("operator", part);
    Ok(tasks.run().await?)
}

async fn gateway(flags: GatewayFlags) -> Result<()> {
    let (mut tasks, readiness, metrics) = begin(&flags.process)?;
    let client = Client::try_default().await.context("no way to the API server")?;
    let store = sqlite::Sqlite::open(&flags.journal, flags.durability())
        .with_context(|| format!("cannot open the journal {}", flags.journal.display()))?;
    let store = Arc::new(store);
    let journal = gateway::Journal { append: store.clone(), read: store.clone() };
    let (config, stop) = (flags.config(), tasks.stop());
    tasks.spawn("gateway", async move {
        gateway::run(config, client, journal, readiness, &metrics, stop).await
    });
    let ended = tasks.run().await;
    store.close().await;
    Ok(ended?)
}

/// Logging, and the port for health and metrics.
fn begin(process: &Process) -> Result<(Tasks, Readiness, Metrics)> {
    logging::start(process.log_format);
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let (mut tasks, readiness, metrics) = (Tasks::default(), Readiness::default(), Metrics::new());
    let router = health::router(readiness.clone(), metrics.clone());
    tasks.spawn("ops", health::serve(process.ops_listen, router, tasks.stop()));
    Ok((tasks, readiness, metrics))
}

async fn journal_tool(file: std::path::PathBuf, command: JournalCommand) -> Result<()> {
    let store = sqlite::Sqlite::read_only(&file)
        .with_context(|| format!("cannot open the journal {}", file.display()))?;
    let mut out = std::io::stdout().lock();
    match command {
        JournalCommand::Verify => journal::tool::verify(&store, &mut out).await?,
        JournalCommand::Export => journal::tool::export(&store, &mut out).await?,
    }
    Ok(())
}
