//! The one state that the tasks of a shim share; all of them run on one thread.
//!
//! A task borrows it between two awaits, never across one, and wakes the others by name.

use std::cell::RefCell;
use std::rc::Rc;

use awaken_shim::Kind;
use awaken_shim::buffer::{Inbox, Outbox};
use awaken_shim::fence::Fence;
use awaken_shim::frame::{ChildInfo, Exited, Initialize, TooLarge};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::framing::{Line, PROBE};
use crate::scrub::Scrubber;
use crate::stderr::{Log, Tail};

/// Bytes of a noise sample.
const SAMPLE: usize = 200;

/// State and wake-ups.
pub struct Hub {
    /// The state.
    pub state: RefCell<State>,
    /// There is something for the link to say.
    pub output: Notify,
    /// Acknowledged output made room for the reader of stdout.
    pub room: Notify,
    /// There is something for the writer of stdin.
    pub input: Notify,
    /// The child closed stdin or stdout.
    pub broken: Notify,
    /// A link ended.
    pub link_gone: Notify,
    /// Hides secrets.
    pub scrubber: Scrubber,
    /// The pod's log.
    pub log: Log,
    /// Largest message, in bytes.
    pub limit: usize,
}

/// What is known at this moment.
pub struct State {
    /// Who may attach.
    pub fence: Fence,
    /// Output not yet acknowledged.
    pub outbox: Outbox,
    /// Input not yet written.
    pub inbox: Inbox,
    /// Bytes written to stdin that no frame reported yet.
    pub unreported: usize,
    /// Lines that were no message.
    pub dropped: u64,
    /// The first of them.
    pub sample: String,
    /// How far the handshake with the child is.
    pub initialize: Initialize,
    /// Whether `notifications/initialized` was written.
    pub initialized: bool,
    /// The process.
    pub child: ChildInfo,
    /// How it ended, once everything it said is in the outbox.
    pub exit: Option<Exited>,
    /// Whether the process is alive.
    pub running: bool,
    /// Last lines of stderr.
    pub tail: Tail,
    /// The attached link.
    pub link: Option<Link>,
    /// Number of the newest link.
    pub links: u64,
}

/// The attached link.
pub struct Link {
    /// Its number.
    pub id: u64,
    /// Cuts it.
    pub cut: Rc<Notify>,
}

impl Hub {
    /// Takes one line of stdout.
    pub fn take_line(&self, line: Line<'_>) {
        let state = &mut *self.state.borrow_mut();
        match line {
            Line::Message { text, answers } => {
                if let (Initialize::Sent { id }, Some(answered)) = (&state.initialize, answers)
                    && id.get() == answered.get()
                    && let Ok(answer) = RawValue::from_string(text.to_owned())
                {
                    state.initialize = Initialize::Answered { id: id.clone(), answer };
                }
                state.outbox.push(Kind::Message, Bytes::copy_from_slice(text.as_bytes()));
            }
            Line::Noise(bytes) => {
                if state.dropped == 0 || (state.sample.is_empty() && !bytes.is_empty()) {
                    state.sample = self.scrubber.clean(bytes, bytes.len() >= PROBE, SAMPLE);
                }
                state.dropped += 1;
            }
            Line::TooLarge(found) => {
                let notice = TooLarge {
                    limit: self.limit as u64,
                    bytes: found.bytes,
                    id: found.id.and_then(|id| RawValue::from_string(id).ok()),
                };
                let payload = serde_json::to_vec(&notice).expect("numbers and raw JSON serialize");
                state.outbox.push(Kind::TooLarge, Bytes::from(payload));
            }
        }
    }

    /// A message of the gateway is about to be written; false when it must not be.
    pub fn before_write(&self, kind: Kind, payload: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Request {
            id: Box<RawValue>,
        }
        let state = &mut *self.state.borrow_mut();
        match kind {
            Kind::Initialize => {
                if !matches!(state.initialize, Initialize::None) {
                    return false;
                }
                if let Ok(request) = serde_json::from_slice::<Request>(payload) {
                    state.initialize = Initialize::Sent { id: request.id };
                }
            }
            Kind::Initialized => state.initialized = true,
            _ => {}
        }
        true
    }
}
