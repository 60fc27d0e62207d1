//! The revisions with sessions (2024-11-05 to 2025-11-25): the handshake toward a server.

mod handshake;
mod revision;
mod tools;

pub use handshake::{Handshake, HandshakeError, LIST_CHANGED, handshake, relist};
pub use revision::Revision;
pub use tools::{Quarantined, Tool, ToolListing};
