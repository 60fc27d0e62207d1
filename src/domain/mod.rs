//! The rules, pure: no async, no clock, no I/O, no Kubernetes, no HTTP. Time, ids and randomness
//! come in as arguments, so every rule is a table test.

pub mod address;
pub mod allowed_targets;
pub mod canonical;
pub mod chain;
pub mod egress;
pub mod export;
pub mod gate;
pub mod handover;
pub mod identity;
pub mod lifecycle;
pub mod reason;
pub mod record;
pub mod redact;
mod scan;
mod secret_key;
pub mod usage;

use jiff::Timestamp;

/// Where the time comes from. Decision code takes a [`Timestamp`]; what must ask for the time
/// takes a `Clock`, and tests give it one that they move.
pub trait Clock: Send + Sync + 'static {
    /// The present wall-clock time.
    fn now(&self) -> Timestamp;
}
