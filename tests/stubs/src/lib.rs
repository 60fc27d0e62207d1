//! A scripted MCP server, over stdio and over Streamable HTTP, that behaves well or badly as its
//! script says. For tests and benchmarks only: it is in no product image.
//!
//! Tests use it as the program `awaken-stub` ([`binary`]) or, for HTTP, in their own process
//! ([`http::Stub`]). It relies on nothing of the product, so that both do not share one mistake.

pub mod answer;
pub mod calls;
pub mod engine;
pub mod http;
pub mod load;
pub mod mcp_client;
pub mod message;
pub mod script;
pub mod stdio;
pub mod tools;

use std::{path::PathBuf, process::Command, sync::OnceLock};

/// The path of the program `awaken-stub`, built first if need be (once in a process).
///
/// # Panics
/// When cargo cannot build it.
pub fn binary() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let out = Command::new(cargo)
            .args(["build", "--quiet", "--message-format=json", "--bin", "awaken-stub"])
            .args(["--manifest-path", manifest])
            .output()
            .expect("cargo runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let lines = String::from_utf8_lossy(&out.stdout);
        lines
            .lines()
            .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
            .filter(|m| m["target"]["name"] == "awaken-stub")
            .find_map(|m| m["executable"].as_str().map(PathBuf::from))
            .expect("cargo names the program that it built")
    })
    .clone()
}
