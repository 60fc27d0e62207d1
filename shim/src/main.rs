//! Entry point of a Session pod: runs one stdio server and lets one gateway at a time speak to it.
//!
//! ```text
//!                  ┌───────────── hub (one thread) ─────────────┐
//!  gateway ◄─────► │ link ────► inbox  ──► pump::write_stdin ───┼──► stdin   ┐
//!                  │        ◄── outbox ◄── pump::read_stdout ◄──┼─── stdout  │ child, own
//!                  │ fence      tail   ◄── stderr::drain ◄──────┼─── stderr  ┘ process group
//!                  └──────────────────────────────│─────────────┘
//!  main: signals, reaping, shutdown               └──► pod log (thread)
//! ```
//!
//! It knows no MCP beyond the one answer it keeps, resolves no names and holds no secret.

mod args;
mod attach;
mod child;
mod framing;
mod http;
mod hub;
mod link;
mod oom;
mod pump;
mod run;
mod scan;
mod scrub;
mod stderr;
mod termination;

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

fn main() -> ExitCode {
    let result = match args::parse(std::env::args().skip(1)) {
        Ok(args::Command::Copy(dest)) => copy(&dest).map(|()| ExitCode::SUCCESS),
        Ok(args::Command::Run(args)) => run::run(*args),
        Err(error) => {
            eprintln!("awaken-shim: {error}\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("awaken-shim: {error:#}");
        ExitCode::FAILURE
    })
}

/// Copies this executable, whole or not at all.
fn copy(dest: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find the own executable")?;
    let mut part = dest.as_os_str().to_owned();
    part.push(".part");
    let what = || format!("cannot copy {} to {}", own.display(), dest.display());
    let mut from = std::fs::File::open(&own).with_context(what)?;
    let mut to = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o755)
        .open(&part)
        .with_context(what)?;
    std::io::copy(&mut from, &mut to).with_context(what)?;
    to.set_permissions(std::fs::Permissions::from_mode(0o755)).with_context(what)?;
    drop(to);
    std::fs::rename(&part, dest).with_context(what)
}
