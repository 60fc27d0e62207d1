//! The `awaken` program: flags and subcommands. It builds the parts and joins their tasks; it
//! decides nothing itself.

mod flags;

use anyhow::{Context as _, Result};
use awaken_operator::{
    controller, crds, gateway,
    journal::{
        opened::Journal,
        postgres::{Database, Url},
        sqlite::Durability,
        tool::{self, Source},
    },
    mcp::client_http,
    process::{
        clock::SystemClock,
        health::{self, Readiness},
        logging, lookup,
        metrics::Metrics,
        tasks::Tasks,
    },
};
use clap::Parser as _;
use flags::{Command, Flags, GatewayFlags, JournalCommand, JournalPlace, OperatorFlags, Process};
use kube::Client;
use std::{path::Path, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    match Flags::parse().command {
        Command::Operator(flags) => runtime(None)?.block_on(operator(*flags)),
        Command::Gateway(flags) => runtime(Some(flags.threads()))?.block_on(gateway(*flags)),
        Command::Crds => {
            print!("{}", crds::yaml()?);
            Ok(())
        }
        Command::Journal { place, command } => {
            runtime(Some(1))?.block_on(journal_tool(place, command))
        }
    }
}

fn runtime(threads: Option<usize>) -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("cannot start the runtime")
}

async fn operator(flags: OperatorFlags) -> Result<()> {
    let (mut tasks, readiness, metrics) = begin(&flags.process)?;
    let client = Client::try_default().await.context("no way to the API server")?;
    let config = flags.config(uuid::Uuid::new_v4().to_string());
    let stop = tasks.stop();
    tasks.spawn("operator", async move {
        let ready = |name| Some(readiness.guard(name));
        controller::run(config, client, Arc::new(SystemClock), ready, &metrics, stop).await
    });
    Ok(tasks.run().await?)
}

async fn gateway(flags: GatewayFlags) -> Result<()> {
    let (mut tasks, readiness, metrics) = begin(&flags.process)?;
    let client = Client::try_default().await.context("no way to the API server")?;
    let stop = tasks.stop();
    tasks.spawn("gateway", serve(flags, client, readiness, metrics, stop));
    Ok(tasks.run().await?)
}

async fn serve(
    flags: GatewayFlags,
    client: Client,
    readiness: Readiness,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<()> {
    let waiting = (readiness.guard("journal"), readiness.guard("own Service"));
    let store = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        opened = open(&flags, &metrics) => opened?,
    };
    let journal = gateway::Journal {
        append: store.append(),
        read: store.read(),
        exclusive: store.is_exclusive(),
    };
    let mut config = flags.config();
    if config.service_addresses.is_empty() {
        let name = config.service_name();
        config.service_addresses = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            found = lookup::addresses(&name) => found?,
        };
    }
    drop(waiting);
    let writer = async {
        let ended = store.clone().watch(stop.clone()).await;
        // unasked: nothing can be recorded any more
        stop.cancel();
        ended
    };
    let run = gateway::run(config, client, journal, readiness, &metrics, stop.clone());
    let run = async {
        let ended = run.await;
        stop.cancel();
        ended
    };
    let (writer, run) = tokio::join!(writer, run);
    store.close().await;
    writer.context("the journal")?;
    Ok(run?)
}

/// The journal. A gateway that is being replaced keeps its file until its calls have ended: that is
/// waited for.
async fn open(flags: &GatewayFlags, metrics: &Metrics) -> Result<Journal> {
    let patience = Duration::from_secs(flags.grace_seconds) + Duration::from_secs(10);
    Ok(match (&flags.journal, &flags.journal_postgres_url_file) {
        (_, Some(url)) => {
            let relaxed = flags.durability() == Durability::Relaxed;
            Journal::database(database(url, relaxed)?, patience, metrics).await?
        }
        (Some(file), None) => Journal::file(file, flags.durability(), patience, metrics).await?,
        (None, None) => anyhow::bail!("no journal: --journal or --journal-postgres-url-file"),
    })
}

/// The database whose URL is in this file.
fn database(url: &Path, relaxed: bool) -> Result<Database> {
    let tls = client_http::tls_config().context("TLS toward the journal's database")?;
    Ok(Database::new(Url::File(url.to_owned()), (*tls).clone(), relaxed)?)
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

async fn journal_tool(place: JournalPlace, command: JournalCommand) -> Result<()> {
    let source = match (place.file, place.postgres_url_file) {
        (Some(file), _) => Source::file(&file)?,
        (None, Some(url)) => Source::database(database(&url, false)?),
        (None, None) => anyhow::bail!("no journal: --file or --postgres-url-file"),
    };
    let mut out = std::io::stdout();
    match command {
        JournalCommand::Verify => {
            let found = tool::verify(&source, &mut out).await?;
            anyhow::ensure!(found.bad == 0, "{} chains are not what was written", found.bad);
        }
        JournalCommand::Export => {
            tool::export(&source, None, &mut out).await?;
        }
    }
    Ok(())
}
