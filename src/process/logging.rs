//! Logs: JSON lines on stderr, or text where a person reads. The filter is `AWAKEN_LOG`, default
//! `info`.

use tracing_subscriber::{EnvFilter, fmt, prelude::*};

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// Starts logging; called once, by `main`.
pub fn start(format: Format) {
    let filter = EnvFilter::try_from_env("AWAKEN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        Format::Json => registry
            .with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr))
            .init(),
        Format::Text => registry.with(fmt::layer().with_writer(std::io::stderr)).init(),
    }
}
