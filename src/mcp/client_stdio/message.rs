//! The few JSON-RPC messages that this client writes, around raw parts, and the envelope it reads.

use std::borrow::Cow;

use awaken_shim::frame::Draft;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::mcp::RawJson;

/// Ids of a server's requests that are longer are not answered.
const ID_LIMIT: usize = 1 << 10;

/// What is read of a message; the parts stay raw.
#[derive(Deserialize)]
pub struct Envelope<'a> {
    /// Of a request or an answer.
    #[serde(borrow, default)]
    pub id: Option<&'a RawValue>,
    /// Of a request or a notification.
    #[serde(borrow, default)]
    pub method: Option<Cow<'a, str>>,
    /// Of a request or a notification.
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
    /// Of an answer.
    #[serde(borrow, default)]
    pub result: Option<&'a RawValue>,
    /// Of an answer.
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

fn draft(parts: &[&[u8]], params: Option<&RawJson>) -> Draft {
    let raw: &[u8] = params.map_or(b"", |params| params.bytes());
    let size = parts.iter().map(|part| part.len()).sum::<usize>() + raw.len() + 12;
    let mut draft = Draft::with_capacity(size);
    parts.iter().for_each(|part| draft.put(part));
    if params.is_some() {
        draft.put(b",\"params\":");
        draft.put(raw);
    }
    draft.put(b"}");
    draft.one_line();
    draft
}

/// A request with our own id.
pub fn request(epoch: u64, number: u64, method: &str, params: Option<&RawJson>) -> Draft {
    let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{epoch}-{number}\",\"method\":\"{method}\"");
    draft(&[head.as_bytes()], params)
}

/// A notification.
pub fn notification(method: &str, params: Option<&RawJson>) -> Draft {
    draft(&[b"{\"jsonrpc\":\"2.0\",\"method\":\"", method.as_bytes(), b"\""], params)
}

/// Takes a request back.
pub fn cancelled(epoch: u64, number: u64) -> Draft {
    let text = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\
         \"params\":{{\"requestId\":\"{epoch}-{number}\"}}"
    );
    draft(&[text.as_bytes()], None)
}

/// The answer to a request of the server: `ping` is answered, nothing else was declared. None
/// for an id that is too long to repeat.
pub fn answer_to_server(id: &RawValue, method: &str) -> Option<Draft> {
    let rest: &[u8] = if method == "ping" {
        b",\"result\":{}"
    } else {
        b",\"error\":{\"code\":-32601,\"message\":\"Method not found\"}"
    };
    let id = id.get().as_bytes();
    (id.len() <= ID_LIMIT).then(|| draft(&[b"{\"jsonrpc\":\"2.0\",\"id\":", id, rest], None))
}

/// The number in an id that we made under this epoch.
pub fn number_of(epoch: u64, id: &str) -> Option<u64> {
    let (ours, number) = id.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
    let plain = number.bytes().all(|byte| byte.is_ascii_digit());
    (plain && ours.parse() == Ok(epoch)).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use awaken_shim::{Header, Kind, frame};
    use bytes::Bytes;
    use rstest::rstest;

    fn text(draft: Draft) -> String {
        let header = Header { kind: Kind::Message, epoch: 1, sequence: 1, acknowledged: 0 };
        let (_, payload) = frame::decode(draft.finish(header)).unwrap();
        String::from_utf8(payload.to_vec()).unwrap()
    }

    #[test]
    fn messages_are_one_line_around_verbatim_parts() {
        let params =
            RawJson::parse(Bytes::from_static(b"{\"z\":1.0,\n\"a\": 12345678901234567890}"));
        let params = params.unwrap();
        assert_eq!(
            text(request(7, 3, "tools/call", Some(&params))),
            r#"{"jsonrpc":"2.0","id":"7-3","method":"tools/call","params":{"z":1.0, "a": 12345678901234567890}}"#
        );
        assert_eq!(text(notification("x", None)), r#"{"jsonrpc":"2.0","method":"x"}"#);
        assert_eq!(
            text(cancelled(7, 3)),
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"7-3"}}"#
        );
    }

    #[test]
    fn a_server_may_ping_and_nothing_else() {
        let id = RawValue::from_string("\"s-1\"".into()).unwrap();
        assert_eq!(
            text(answer_to_server(&id, "ping").unwrap()),
            r#"{"jsonrpc":"2.0","id":"s-1","result":{}}"#
        );
        let refused = text(answer_to_server(&id, "roots/list").unwrap());
        assert!(refused.contains("-32601") && refused.contains("\"id\":\"s-1\""), "{refused}");
        let long = RawValue::from_string(format!("\"{}\"", "x".repeat(2000))).unwrap();
        assert!(answer_to_server(&long, "ping").is_none());
    }

    #[rstest]
    #[case("\"7-3\"", Some(3))]
    #[case("\"8-3\"", None)]
    #[case("\"7-\"", None)]
    #[case("\"7-+3\"", None)]
    #[case("\"7-3-1\"", None)]
    #[case("73", None)]
    #[case("null", None)]
    #[case("\"", None)]
    fn only_our_own_ids_have_a_number(#[case] id: &str, #[case] number: Option<u64>) {
        assert_eq!(number_of(7, id), number);
    }
}
