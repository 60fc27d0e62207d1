//! awaken-operator: attaches MCP servers to agents on Kubernetes.
//!
//! The modules stand in the order of dependency: a module uses only those above it, as the table
//! in `tests/architecture.rs` says. `domain` is pure; what talks to the world is below it.

pub mod domain;

pub mod process;

pub mod api;

pub mod crds;

pub mod journal;

pub mod mcp;

pub mod controller;

pub mod gateway;
