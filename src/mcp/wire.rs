//! The JSON-RPC envelope over raw bytes: what is read is the envelope, its parts stay as they came.
//!
//! May rely on nothing but bytes. Must not look into params, results or errors, nor judge them.

mod error;
mod id_scan;
mod members;
mod parse;
mod raw;
mod write;

pub use error::{RpcError, code};
pub use id_scan::IdScan;
pub use members::{MembersError, members};
pub use parse::{Malformed, parse};
pub use raw::RawJson;
pub use write::{notification, request, response, response_parts};

use super::Answer;
use bytes::Bytes;

/// A request id as it came: the token of a JSON number or string.
///
/// Two ids are the same when they mean the same: a string with an escape equals the one without.
#[derive(Clone)]
pub struct Id(Bytes);

impl Id {
    /// The id that we count toward a server.
    pub fn number(n: u64) -> Self {
        Self(Bytes::from(n.to_string()))
    }

    /// Takes a JSON token.
    ///
    /// # Errors
    /// Whatever is neither a number nor a string.
    pub fn from_json(raw: &RawJson) -> Result<Self, Malformed> {
        match raw.bytes().first() {
            Some(b'"' | b'-' | b'0'..=b'9') => Ok(Self(raw.bytes().clone())),
            _ => Err(Malformed::invalid("the id is neither a number nor a string")),
        }
    }

    /// The token as it came.
    pub fn as_json(&self) -> &str {
        std::str::from_utf8(&self.0).expect("an id is a JSON token")
    }

    /// The number, if it is a whole one that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_json().parse().ok()
    }

    /// What two equal ids have in common.
    fn meaning(&self) -> std::borrow::Cow<'_, str> {
        if self.0.contains(&b'\\') {
            let plain: Option<String> = serde_json::from_slice(&self.0).ok();
            if let Some(plain) = plain {
                return format!("\"{plain}\"").into();
            }
        }
        self.as_json().into()
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || self.meaning() == other.meaning()
    }
}

impl Eq for Id {}

impl std::hash::Hash for Id {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.meaning().hash(state);
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_json())
    }
}

/// One JSON-RPC message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Wants an answer.
    Request {
        /// Repeated in the answer.
        id: Id,
        /// The method, unescaped.
        method: String,
        /// The params as they came; none for no member.
        params: Option<RawJson>,
    },
    /// Wants none.
    Notification {
        /// The method, unescaped.
        method: String,
        /// The params as they came; none for no member.
        params: Option<RawJson>,
    },
    /// An answer. Without an id it answers a message that could not be read.
    Response {
        /// The id of the request.
        id: Option<Id>,
        /// The result or the error.
        answer: Answer,
    },
}
