//! The frames of the link: a fixed header before a raw payload, and the control frames.
//!
//! Relies on nothing but its arguments; decoding never panics, whatever the bytes are.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::challenge::Claim;

/// Version of this protocol; a gateway and a shim of different versions refuse each other.
pub const PROTOCOL: u32 = 1;
/// Bytes of the binary header.
pub const HEADER: usize = 25;
/// Bytes that a gateway may have sent and not yet seen written, beyond the message being sent.
pub const WINDOW: usize = 1 << 20;
/// Bytes of unacknowledged output that the shim keeps, beyond the message being read.
pub const KEEP: usize = 4 << 20;
/// The shim acknowledges at the latest when this many bytes were written unreported.
pub const ACKNOWLEDGE_EVERY: usize = WINDOW / 4;
/// Bytes that a WebSocket frame may be larger than the largest message.
pub const SLACK: usize = 64 << 10;
/// After this many seconds without a frame from the other side a ping is sent.
pub const PING_AFTER_SECONDS: u64 = 10;
/// After this many seconds without a frame from the other side the link is dead.
pub const DEAD_AFTER_SECONDS: u64 = 30;
/// Path of the WebSocket.
pub const PATH: &str = "/link";

/// What a binary frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One JSON-RPC message, either direction.
    Message = 1,
    /// Gateway to shim: the `initialize` request; the shim keeps its answer.
    Initialize = 2,
    /// Gateway to shim: the `notifications/initialized` that follows the answer.
    Initialized = 3,
    /// No payload and no sequence of its own: only `acknowledged` counts.
    Acknowledge = 4,
    /// Shim to gateway: a message was over the limit; the payload is a [`TooLarge`] as JSON.
    TooLarge = 5,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Message,
            2 => Self::Initialize,
            3 => Self::Initialized,
            4 => Self::Acknowledge,
            5 => Self::TooLarge,
            _ => return None,
        })
    }
}

/// The header of a binary frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The epoch under which the link was attached.
    pub epoch: u64,
    /// The sender's own number of this message; 0 for [`Kind::Acknowledge`].
    pub sequence: u64,
    /// The highest number of the other direction that is dealt with.
    pub acknowledged: u64,
}

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// Fewer bytes than a header.
    #[error("a binary frame of {0} bytes is shorter than its header of {HEADER} bytes")]
    Short(usize),
    /// A kind that this version does not know.
    #[error("unknown kind of binary frame: {0}")]
    Kind(u8),
    /// A text frame that is no [`Control`].
    #[error("not a control frame: {0}")]
    Control(String),
}

impl Header {
    fn write(&self, out: &mut [u8]) {
        out[0] = self.kind as u8;
        out[1..9].copy_from_slice(&self.epoch.to_be_bytes());
        out[9..17].copy_from_slice(&self.sequence.to_be_bytes());
        out[17..HEADER].copy_from_slice(&self.acknowledged.to_be_bytes());
    }
}

/// Puts a header before a payload; copies the payload once.
pub fn encode(header: Header, payload: &[u8]) -> Bytes {
    let mut draft = Draft::with_capacity(payload.len());
    draft.put(payload);
    draft.finish(header)
}

/// A frame that is written before its header is known.
pub struct Draft(BytesMut);

impl Draft {
    /// Room for the header and so many bytes.
    pub fn with_capacity(payload: usize) -> Self {
        let mut bytes = BytesMut::with_capacity(HEADER + payload);
        bytes.put_bytes(0, HEADER);
        Self(bytes)
    }

    /// Appends to the payload.
    pub fn put(&mut self, part: &[u8]) {
        self.0.put_slice(part);
    }

    /// Makes the payload one line: a line break in JSON text stands between tokens, so it may
    /// become a blank, and nobody smuggles in a second message.
    pub fn one_line(&mut self) {
        for byte in &mut self.0[HEADER..] {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
    }

    /// Bytes of the payload.
    pub fn payload_len(&self) -> usize {
        self.0.len() - HEADER
    }

    /// Fills in the header; copies nothing.
    pub fn finish(mut self, header: Header) -> Bytes {
        header.write(&mut self.0[..HEADER]);
        self.0.freeze()
    }
}

/// Splits a binary frame into header and payload; the payload shares the frame's memory.
pub fn decode(mut frame: Bytes) -> Result<(Header, Bytes), FrameError> {
    if frame.len() < HEADER {
        return Err(FrameError::Short(frame.len()));
    }
    let payload = frame.split_off(HEADER);
    let kind = Kind::from_byte(frame[0]).ok_or(FrameError::Kind(frame[0]))?;
    let number = |at: usize| {
        u64::from_be_bytes(frame[at..at + 8].try_into().expect("a range of eight is eight bytes"))
    };
    let header = Header { kind, epoch: number(1), sequence: number(9), acknowledged: number(17) };
    Ok((header, payload))
}

/// A control frame, sent as JSON text: `{"challenge": {…}}`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Shim, first frame of a link.
    Challenge {
        /// [`PROTOCOL`] of the shim.
        protocol: u32,
        /// Fresh random bytes, base64.
        nonce: String,
    },
    /// Gateway, the answer to the challenge.
    Attach {
        /// What the gateway says it is and wants.
        claim: Claim,
        /// Ed25519 over [`crate::challenge::canonical`], base64.
        signature: String,
    },
    /// Shim: the link is open.
    Attached(Attached),
    /// Shim: the link is refused or cut; a close follows.
    Error {
        /// The stable name.
        reason: Refusal,
        /// One sentence for people.
        message: String,
    },
    /// Shim: lines on stdout that are no messages; at once for the first, then at most every 10 s.
    Noise {
        /// Lines dropped since the child started.
        dropped: u64,
        /// The first of them, scrubbed, at most 200 bytes.
        sample: String,
    },
    /// Shim: the child is gone and everything it said was sent; a close follows.
    Exited(Exited),
}

/// The state that a gateway finds on attaching.
#[derive(Debug, Serialize, Deserialize)]
pub struct Attached {
    /// Number of the newest message of the child.
    pub highest_sequence: u64,
    /// Number of the newest message that some gateway acknowledged; what follows is sent again.
    pub acknowledged: u64,
    /// Number of the newest message that was taken from a gateway in this epoch.
    pub received: u64,
    /// Largest message, in bytes, in either direction.
    pub max_message_bytes: u64,
    /// The process.
    pub child: ChildInfo,
    /// How far the MCP handshake with this child went, under whatever gateway.
    pub initialize: Initialize,
    /// Whether `notifications/initialized` was written to the child.
    pub initialized: bool,
}

/// The process behind the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildInfo {
    /// Process id, in the pod's view.
    pub pid: u32,
    /// Start, milliseconds since 1970.
    pub started: u64,
}

/// How far `initialize` went.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initialize {
    /// Nobody sent it yet.
    None,
    /// Sent, not answered; the answer will come under this JSON-RPC id.
    Sent {
        /// Id of the request, as JSON.
        id: Box<RawValue>,
    },
    /// Answered.
    Answered {
        /// Id of the request, as JSON.
        id: Box<RawValue>,
        /// The whole JSON-RPC answer, verbatim.
        answer: Box<RawValue>,
    },
}

/// How the child ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    /// Exit code, when it exited.
    pub code: Option<i32>,
    /// Signal number, when one ended it.
    pub signal: Option<i32>,
    /// Last lines of stderr, scrubbed, at most 2 KiB.
    pub stderr_tail: String,
}

/// What the last lines of a server that was ended for memory close with.
pub const OUT_OF_MEMORY: &str = "out of memory: the container reached its memory limit";

/// Payload of [`Kind::TooLarge`].
#[derive(Debug, Serialize, Deserialize)]
pub struct TooLarge {
    /// The limit, in bytes.
    pub limit: u64,
    /// Size of the message that was skipped, in bytes.
    pub bytes: u64,
    /// JSON-RPC id of the answer; none when the message was no answer or has none to be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Box<RawValue>>,
}

/// Why a link is refused or cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Another version of this protocol, or a frame out of place.
    Protocol,
    /// No key of this pod made the signature.
    BadSignature,
    /// The claim names another pod.
    WrongPod,
    /// The claim names another Session.
    WrongSession,
    /// The claim names another attachment.
    WrongAttachment,
    /// The claim names another generation.
    WrongGeneration,
    /// A higher epoch was seen.
    StaleEpoch,
    /// This epoch belongs to another incarnation.
    EpochTaken,
    /// Another link with the same or a higher epoch took over.
    Superseded,
    /// More was sent than the window allows.
    WindowExceeded,
}

impl Control {
    /// As a text frame.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("control frames hold only strings, numbers and raw JSON")
    }

    /// From a text frame.
    pub fn from_text(text: &str) -> Result<Self, FrameError> {
        serde_json::from_str(text).map_err(|error| FrameError::Control(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Message),
            Just(Kind::Initialize),
            Just(Kind::Initialized),
            Just(Kind::Acknowledge),
            Just(Kind::TooLarge)
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(
            kind in kinds(), epoch: u64, sequence: u64, acknowledged: u64, payload: Vec<u8>
        ) {
            let header = Header { kind, epoch, sequence, acknowledged };
            let (back, rest) = decode(encode(header, &payload)).unwrap();
            prop_assert_eq!(back, header);
            prop_assert_eq!(&rest[..], &payload[..]);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, text: String) {
            let _ = decode(Bytes::from(bytes));
            let _ = Control::from_text(&text);
        }
    }

    #[test]
    fn the_layout_is_the_drawing() {
        let header = Header { kind: Kind::Message, epoch: 2, sequence: 3, acknowledged: 4 };
        let mut expected = vec![1];
        for number in [2u8, 3, 4] {
            expected.extend([0, 0, 0, 0, 0, 0, 0, number]);
        }
        expected.extend(b"{}");
        assert_eq!(encode(header, b"{}"), expected);
    }

    #[test]
    fn short_and_unknown_frames_are_named() {
        assert_eq!(decode(Bytes::from_static(&[1; 24])), Err(FrameError::Short(24)));
        assert_eq!(decode(Bytes::from_static(&[9; 25])), Err(FrameError::Kind(9)));
    }

    #[test]
    fn an_initialize_answer_travels_verbatim() {
        let answer =
            r#"{"jsonrpc":"2.0","id":"7-1","result":{"b":1.10,"a":123456789012345678901}}"#;
        let frame = Control::Attached(Attached {
            highest_sequence: 5,
            acknowledged: 3,
            received: 2,
            max_message_bytes: 100,
            child: ChildInfo { pid: 9, started: 11 },
            initialize: Initialize::Answered {
                id: RawValue::from_string("\"7-1\"".into()).unwrap(),
                answer: RawValue::from_string(answer.into()).unwrap(),
            },
            initialized: true,
        });
        let Control::Attached(back) = Control::from_text(&frame.to_text()).unwrap() else {
            panic!("another frame")
        };
        let Initialize::Answered { id, answer: raw } = back.initialize else { panic!("no answer") };
        assert_eq!((id.get(), raw.get()), ("\"7-1\"", answer));
    }
}
