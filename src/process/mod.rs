//! What every program of ours needs of its process: logs, metrics, health, readiness, signals,
//! name lookups, the API server's addresses, serving HTTP, the real clock, tasks that are joined, and Leases.

pub mod api_server;
pub mod clock;
pub mod health;
pub mod lease;
pub mod listen;
pub mod logging;
pub mod lookup;
pub mod metrics;
pub mod tasks;
