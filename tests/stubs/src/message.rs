//! JSON-RPC messages as text: read as an envelope over raw parts, written by hand.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The envelope of a message; the parts borrow its text.
#[derive(Deserialize)]
pub struct Envelope<'a> {
    /// The id, as written.
    #[serde(borrow, default)]
    pub id: Option<&'a RawValue>,
    /// The method; none for an answer.
    #[serde(default)]
    pub method: Option<String>,
    /// The params, as written.
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
}

/// The params of `tools/call`.
#[derive(Deserialize)]
pub struct CallParams<'a> {
    /// The tool.
    pub name: String,
    /// The arguments, as written.
    #[serde(borrow, default)]
    pub arguments: Option<&'a RawValue>,
    /// `_meta`.
    #[serde(rename = "_meta", default)]
    pub meta: serde_json::Value,
}

/// An answer with a result.
pub fn result(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// An answer with an error.
pub fn error(id: &str, code: i64, message: &str) -> String {
    let message = quoted(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#)
}

/// A notification.
pub fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":{},"params":{params}}}"#, quoted(method))
}

/// A request of the server.
pub fn request(id: &str, method: &str, params: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":{},"params":{params}}}"#,
        quoted(id),
        quoted(method)
    )
}

/// A call result of one text.
pub fn text_result(text: &str, is_error: bool) -> String {
    let flag = if is_error { r#","isError":true"# } else { "" };
    format!(r#"{{"content":[{{"type":"text","text":{}}}]{flag}}}"#, quoted(text))
}

/// The text as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is JSON")
}
