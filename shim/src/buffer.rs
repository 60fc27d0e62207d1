//! What is under way between child and gateway: output not yet acknowledged, input not yet written.
//!
//! Pure bookkeeping with bounds; who reads, writes and waits is decided elsewhere.

use std::collections::VecDeque;

use crate::Kind;
use crate::frame::{KEEP, WINDOW};
use bytes::Bytes;

/// Output of the child, numbered from 1, kept until it is acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Outbox {
    kept: VecDeque<(Kind, Bytes)>,
    bytes: usize,
    acknowledged: u64,
}

impl Outbox {
    /// Keeps one message and gives it the next number.
    pub fn push(&mut self, kind: Kind, payload: Bytes) -> u64 {
        self.bytes += payload.len();
        self.kept.push_back((kind, payload));
        self.highest()
    }

    /// Number of the newest message; 0 before the first.
    pub fn highest(&self) -> u64 {
        self.acknowledged + self.kept.len() as u64
    }

    /// Number of the newest acknowledged message.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether another message may be read.
    pub fn has_room(&self) -> bool {
        self.bytes < KEEP
    }

    /// Forgets everything up to `sequence`; false when it was never given out.
    pub fn acknowledge(&mut self, sequence: u64) -> bool {
        if sequence > self.highest() {
            return false;
        }
        while self.acknowledged < sequence {
            let (_, payload) = self.kept.pop_front().expect("numbers up to the highest are kept");
            self.bytes -= payload.len();
            self.acknowledged += 1;
        }
        true
    }

    /// The message after `sequence`, with its number.
    pub fn after(&self, sequence: u64) -> Option<(u64, Kind, Bytes)> {
        let next = sequence.max(self.acknowledged) + 1;
        let index = usize::try_from(next - self.acknowledged - 1).ok()?;
        self.kept.get(index).map(|(kind, payload)| (next, *kind, payload.clone()))
    }
}

/// What became of a message that a gateway sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// It will be written.
    Taken,
    /// It was taken before, on an earlier link of this epoch.
    Duplicate,
    /// A number is missing before it.
    Gap,
    /// More than the window allows.
    Overflow,
}

/// Input for the child, numbered by the gateway from 1 in each epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inbox {
    limit: usize,
    epoch: u64,
    taken: u64,
    written: u64,
    queue: VecDeque<(Kind, Bytes)>,
    bytes: usize,
}

impl Inbox {
    /// `limit`: the largest message, in bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, epoch: 0, taken: 0, written: 0, queue: VecDeque::new(), bytes: 0 }
    }

    /// A gateway attached: what an older epoch sent and was not begun is dropped. Returns the
    /// number of messages dropped.
    pub fn begin(&mut self, epoch: u64) -> usize {
        if epoch <= self.epoch {
            return 0;
        }
        let dropped = self.queue.len();
        *self = Self { epoch, ..Self::new(self.limit) };
        dropped
    }

    /// Number of the newest message taken in this epoch.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Number of the newest message of this epoch that the child's stdin took.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Takes a message of the current epoch.
    pub fn offer(&mut self, sequence: u64, kind: Kind, payload: Bytes) -> Offer {
        if sequence <= self.taken {
            return Offer::Duplicate;
        }
        if sequence != self.taken + 1 {
            return Offer::Gap;
        }
        if self.bytes >= WINDOW || payload.len() > self.limit {
            return Offer::Overflow;
        }
        self.taken = sequence;
        self.bytes += payload.len();
        self.queue.push_back((kind, payload));
        Offer::Taken
    }

    /// The next message to write, with its epoch and number.
    pub fn pop(&mut self) -> Option<(u64, u64, Kind, Bytes)> {
        let sequence = self.taken - self.queue.len() as u64 + 1;
        let (kind, payload) = self.queue.pop_front()?;
        Some((self.epoch, sequence, kind, payload))
    }

    /// A popped message was written.
    pub fn wrote(&mut self, epoch: u64, sequence: u64, len: usize) {
        if epoch == self.epoch {
            self.written = sequence;
            self.bytes -= len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(len: usize) -> Bytes {
        Bytes::from(vec![b'x'; len])
    }

    #[test]
    fn output_is_numbered_kept_and_handed_over_from_the_acknowledged_on() {
        let mut outbox = Outbox::default();
        for len in 1..=4 {
            assert_eq!(outbox.push(Kind::Message, payload(len)), len as u64);
        }
        assert!(outbox.acknowledge(2));
        assert_eq!((outbox.acknowledged(), outbox.highest()), (2, 4));
        let handed: Vec<_> =
            [0, 2, 3, 4].map(|at| outbox.after(at).map(|(n, _, b)| (n, b.len()))).into();
        assert_eq!(handed, [Some((3, 3)), Some((3, 3)), Some((4, 4)), None]);
        assert!(outbox.acknowledge(1), "an old acknowledgement is harmless");
        assert_eq!(outbox.acknowledged(), 2);
        assert!(!outbox.acknowledge(5), "never given out");
        assert!(outbox.acknowledge(4) && outbox.after(4).is_none());
    }

    #[test]
    fn output_stops_at_the_bound_and_goes_on_after_acknowledgement() {
        let mut outbox = Outbox::default();
        outbox.push(Kind::Message, payload(KEEP - 1));
        assert!(outbox.has_room(), "one message beyond the bound");
        outbox.push(Kind::Message, payload(KEEP));
        assert!(!outbox.has_room());
        outbox.acknowledge(1);
        assert!(!outbox.has_room());
        outbox.acknowledge(2);
        assert!(outbox.has_room());
    }

    #[test]
    fn input_is_taken_once_and_in_order() {
        let mut inbox = Inbox::new(100);
        inbox.begin(3);
        assert_eq!(inbox.offer(2, Kind::Message, payload(1)), Offer::Gap);
        assert_eq!(inbox.offer(1, Kind::Message, payload(1)), Offer::Taken);
        assert_eq!(inbox.offer(1, Kind::Message, payload(1)), Offer::Duplicate);
        assert_eq!(inbox.offer(2, Kind::Message, payload(2)), Offer::Taken);
        assert_eq!(inbox.pop().map(|(e, n, _, b)| (e, n, b.len())), Some((3, 1, 1)));
        assert_eq!((inbox.taken(), inbox.written()), (2, 0));
        inbox.wrote(3, 1, 1);
        assert_eq!(inbox.written(), 1);
        assert_eq!(inbox.pop().map(|(e, n, _, b)| (e, n, b.len())), Some((3, 2, 2)));
        assert_eq!(inbox.pop(), None);
    }

    #[test]
    fn a_higher_epoch_drops_what_was_not_begun() {
        let mut inbox = Inbox::new(100);
        inbox.begin(3);
        inbox.offer(1, Kind::Message, payload(1));
        inbox.offer(2, Kind::Message, payload(2));
        let begun = inbox.pop().unwrap();
        assert_eq!(inbox.begin(3), 0, "the same epoch keeps them");
        assert_eq!(inbox.begin(4), 1);
        inbox.wrote(begun.0, begun.1, 1);
        assert_eq!((inbox.taken(), inbox.written()), (0, 0));
        assert_eq!(inbox.offer(1, Kind::Message, payload(3)), Offer::Taken);
        assert_eq!(inbox.pop().map(|(e, n, _, b)| (e, n, b.len())), Some((4, 1, 3)));
    }

    #[test]
    fn the_window_holds_one_message_beyond_itself() {
        let mut inbox = Inbox::new(2 * WINDOW);
        inbox.begin(1);
        assert_eq!(inbox.offer(1, Kind::Message, payload(WINDOW - 1)), Offer::Taken);
        assert_eq!(inbox.offer(2, Kind::Message, payload(2 * WINDOW)), Offer::Taken);
        assert_eq!(inbox.offer(3, Kind::Message, payload(1)), Offer::Overflow);
        let mut small = Inbox::new(10);
        small.begin(1);
        assert_eq!(small.offer(1, Kind::Message, payload(11)), Offer::Overflow);
    }
}
