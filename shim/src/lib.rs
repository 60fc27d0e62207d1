//! What the shim and the gateway agree on: the frames of the link and the challenge that opens it.
//!
//! With them what the shim decides about a link ([`fence`], [`buffer`], [`entry`]), so that a test can
//! run both ends against each other.
//!
//! Pure data: no sockets, no clock, no randomness, so both ends and every test can use it alike.
//! It must not learn what a JSON-RPC message means; a payload passes as the bytes it came as.
//!
//! ```text
//!   gateway                                  shim (port 7411)                     child
//!      │  GET /link, WebSocket                 │                                    │
//!      │──────────────────────────────────────►│                                    │
//!      │◄── challenge {protocol, nonce} ───────│                                    │
//!      │─── attach {claim, signature} ────────►│  checks keys, pod, epoch; cuts the │
//!      │◄── attached {…} or error {reason} ────│  older link                        │
//!      │                                       │                                    │
//!      │◄══ kept messages, oldest first ═══════│  what nobody acknowledged yet      │
//!      │═══ message, sequence 1, 2, … ════════►│── one line on stdin ──────────────►│
//!      │◄══ message, own sequence ═════════════│◄─ one line on stdout ──────────────│
//!      │─── acknowledge (or on a message) ────►│  forgets what is acknowledged      │
//!      │◄── noise, exited {code, stderr} ──────│                                    │
//! ```
//!
//! `───` is a text frame that holds one [`Control`] as JSON. `═══` is a binary frame:
//!
//! ```text
//!   0      1            9             17              25
//!   ┌──────┬────────────┬─────────────┬───────────────┬───────────────────────────────┐
//!   │ kind │ epoch      │ sequence    │ acknowledged  │ one JSON-RPC message, verbatim │
//!   │ u8   │ u64 BE     │ u64 BE      │ u64 BE        │ (empty for Acknowledge)        │
//!   └──────┴────────────┴─────────────┴───────────────┴───────────────────────────────┘
//! ```
//!
//! The two directions number their messages apart. Shim to gateway: one numbering for the life of
//! the child. Gateway to shim: from 1 in each epoch, without a gap. `acknowledged` is the highest
//! number of the *other* direction that is dealt with: by the gateway, recorded; by the shim,
//! written to the child's stdin. A sender may have [`frame::WINDOW`] bytes unacknowledged beyond
//! the message it is sending (the shim: [`frame::KEEP`]) and then waits.

pub mod buffer;
pub mod challenge;
pub mod entry;
pub mod fence;
pub mod frame;

pub use challenge::{ChallengeError, Claim, Nonce};
pub use frame::{Control, FrameError, Header, Kind, Refusal};
