//! What a link does with a frame of its gateway: which it takes, which it takes no second time, and
//! which ends it.
//!
//! Pure; who reads the socket and wakes whom is decided elsewhere.

use bytes::Bytes;

use crate::buffer::{Inbox, Offer, Outbox};
use crate::{Header, Kind, Refusal};

/// What became of a frame that was in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It only acknowledged.
    Acknowledged,
    /// A message for the child.
    Taken,
    /// A message that was taken before.
    Duplicate,
}

/// Takes a frame on a link of this epoch that has handed over output up to number `sent`.
///
/// # Errors
/// Why the link is to be ended, and the same for people.
pub fn take(
    (epoch, sent): (u64, u64),
    (inbox, outbox): (&mut Inbox, &mut Outbox),
    (header, payload): (Header, Bytes),
) -> Result<Entry, (Refusal, &'static str)> {
    if header.epoch != epoch {
        return Err((Refusal::Protocol, "a frame of another epoch"));
    }
    if header.acknowledged > sent || !outbox.acknowledge(header.acknowledged) {
        return Err((Refusal::Protocol, "acknowledged what was never sent"));
    }
    match header.kind {
        Kind::Acknowledge => return Ok(Entry::Acknowledged),
        Kind::TooLarge => {
            return Err((Refusal::Protocol, "only a shim reports a message as too large"));
        }
        Kind::Message | Kind::Initialize | Kind::Initialized => {}
    }
    match inbox.offer(header.sequence, header.kind, payload) {
        Offer::Taken => Ok(Entry::Taken),
        Offer::Duplicate => Ok(Entry::Duplicate),
        Offer::Gap => Err((Refusal::Protocol, "a number is missing")),
        Offer::Overflow => {
            Err((Refusal::WindowExceeded, "more than the window, or than one message, allows"))
        }
    }
}
