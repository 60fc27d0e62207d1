//! The data plane: who may call what, and the one way for a call.
//!
//! ```text
//!  router → auth → service → catalog → gate → journal → dispatch (a Peer) → journal → answer
//!  index (watch) → host (stage → receipt) → catalog
//!  export (the route /v1/mcp) → the same gate, journal and dispatch
//! ```
//!
//! Talks MCP, creates no pod, decides nothing about generations. It meets the operator in the API
//! server and nowhere else.

pub mod answer;
pub mod auth;
pub mod call;
pub mod catalog;
pub mod config;
pub mod export;
pub mod forward;
pub mod handle;
pub mod host;
pub mod hosted;
pub mod index;
pub mod management;
pub mod metrics;
pub mod peers;
pub mod recover;
pub mod rest;
pub mod router;
pub mod run;
pub mod service;
pub mod state;
pub mod usage;

pub use config::{Config, McpConfig};
pub use export::secret::BearerSecret;
pub use run::{GatewayError, Journal, run};
