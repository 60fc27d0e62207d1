//! What was sent and not yet written to the server's stdin, kept to be sent again on a new link.

use std::collections::VecDeque;

use awaken_shim::Kind;
use awaken_shim::frame::WINDOW;
use bytes::Bytes;

/// Bytes that only the small messages of the keeper may use.
const RESERVE: usize = 64 << 10;

/// Whether a message was dealt with before: a new link hands over again what was not acknowledged.
pub fn is_old(sequence: u64, delivered: u64) -> bool {
    sequence <= delivered
}

/// Sent messages, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    kept: VecDeque<(u64, Kind, Bytes)>,
    bytes: usize,
}

impl Window {
    /// Whether a request may be sent.
    pub fn is_open(&self) -> bool {
        self.bytes < WINDOW - RESERVE
    }

    /// Whether a small message may be sent.
    pub fn is_open_for_small(&self) -> bool {
        self.bytes < WINDOW
    }

    /// Keeps what is being sent.
    pub fn push(&mut self, sequence: u64, kind: Kind, payload: Bytes) {
        self.bytes += payload.len();
        self.kept.push_back((sequence, kind, payload));
    }

    /// Forgets everything up to `sequence`; true when that opened the window.
    pub fn acknowledge(&mut self, sequence: u64) -> bool {
        let was_open = self.is_open();
        while self.kept.front().is_some_and(|(first, ..)| *first <= sequence) {
            let (_, _, payload) = self.kept.pop_front().expect("there is a first");
            self.bytes -= payload.len();
        }
        !was_open && self.is_open_for_small()
    }

    /// What is to be sent again when `taken` is the newest that arrived.
    pub fn after(&self, taken: u64) -> Vec<(u64, Kind, Bytes)> {
        self.kept.iter().filter(|(sequence, ..)| *sequence > taken).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(len: usize) -> Bytes {
        Bytes::from(vec![b'x'; len])
    }

    #[test]
    fn it_closes_at_the_bound_and_opens_on_acknowledgement() {
        let mut window = Window::default();
        window.push(1, Kind::Message, payload(WINDOW - RESERVE - 1));
        assert!(window.is_open());
        window.push(2, Kind::Message, payload(2 * WINDOW));
        assert!(!window.is_open() && !window.is_open_for_small());
        assert!(!window.acknowledge(1), "still over");
        assert!(window.acknowledge(2));
        assert!(window.is_open());
        assert!(!window.acknowledge(2), "it was open");
        window.push(3, Kind::Message, payload(WINDOW - RESERVE));
        assert!(!window.is_open() && window.is_open_for_small());
    }

    #[test]
    fn only_what_did_not_arrive_is_sent_again() {
        let mut window = Window::default();
        for sequence in 1..=4 {
            window.push(sequence, Kind::Message, payload(sequence as usize));
        }
        window.acknowledge(1);
        let again: Vec<u64> = window.after(3).into_iter().map(|(sequence, ..)| sequence).collect();
        assert_eq!(again, [4]);
        assert_eq!(window.after(0).len(), 3);
    }
}
