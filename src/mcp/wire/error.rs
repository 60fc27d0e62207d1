//! JSON-RPC error objects of our own making, each with its reason in `data`.

use super::RawJson;
use crate::domain::reason::Reason;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The codes that JSON-RPC and MCP fix.
pub mod code {
    /// The text is not JSON.
    pub const PARSE: i64 = -32700;
    /// The JSON is no message, or one that cannot be taken here.
    pub const INVALID_REQUEST: i64 = -32600;
    /// There is no such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The MCP session is unknown or ended.
    pub const SESSION: i64 = -32001;
    /// The params cannot be used; also for unknown tools and cursors.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Something failed here.
    pub const INTERNAL: i64 = -32603;
    /// A failure on the way to the server.
    pub const SERVER: i64 = -32000;
    /// The protocol revision is not spoken here.
    pub const UNSUPPORTED_VERSION: i64 = -32022;
}

/// An error object under construction.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    code: i64,
    message: Cow<'static, str>,
    data: Map<String, Value>,
}

impl RpcError {
    /// An error of this code and text for people.
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: Map::new() }
    }

    /// An error with its reason in `data.reason`.
    pub fn because(reason: Reason, code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(code, message).with("reason", reason.as_str())
    }

    /// Adds a member to `data`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.data.insert(key.to_owned(), value.into());
        self
    }

    /// The code.
    pub fn code(&self) -> i64 {
        self.code
    }

    /// The text for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The error object as JSON.
    pub fn to_json(&self) -> RawJson {
        #[derive(serde::Serialize)]
        struct Wire<'a> {
            code: i64,
            message: &'a str,
            #[serde(skip_serializing_if = "Map::is_empty")]
            data: &'a Map<String, Value>,
        }
        RawJson::of(&Wire { code: self.code, message: &self.message, data: &self.data })
            .expect("strings and values are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_stands_in_data() {
        let error =
            RpcError::because(Reason::MessageTooLarge, code::INVALID_REQUEST, "too \"big\"")
                .with("limit", 7);
        assert_eq!(
            error.to_json().as_str(),
            r#"{"code":-32600,"message":"too \"big\"","data":{"limit":7,"reason":"MessageTooLarge"}}"#
        );
        assert_eq!(
            RpcError::new(code::METHOD_NOT_FOUND, "no").to_json().as_str(),
            r#"{"code":-32601,"message":"no"}"#
        );
    }
}
