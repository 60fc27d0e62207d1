//! Writing messages: one allocation, raw parts as they are.

use super::{Answer, Id, RawJson};
use bytes::Bytes;

const HEAD: &str = r#"{"jsonrpc":"2.0","id":"#;

/// A response. Without an id it answers what could not be read.
pub fn response(id: Option<&Id>, answer: &Answer) -> Bytes {
    let [head, body, tail] = response_parts(id, answer);
    let mut out = Vec::with_capacity(head.len() + body.len() + tail.len());
    out.extend_from_slice(&head);
    out.extend_from_slice(&body);
    out.extend_from_slice(&tail);
    out.into()
}

/// A response in three pieces, the middle one shared with the answer, for bodies too big to copy.
pub fn response_parts(id: Option<&Id>, answer: &Answer) -> [Bytes; 3] {
    let id = id.map_or("null", Id::as_json);
    let (member, body) = match answer {
        Answer::Result(raw) => (r#","result":"#, raw),
        Answer::Error(raw) => (r#","error":"#, raw),
    };
    let mut head = Vec::with_capacity(HEAD.len() + id.len() + member.len());
    head.extend_from_slice(HEAD.as_bytes());
    head.extend_from_slice(id.as_bytes());
    head.extend_from_slice(member.as_bytes());
    [head.into(), body.bytes().clone(), Bytes::from_static(b"}")]
}

/// A request. `method` is one of ours and needs no escaping.
pub fn request(id: &Id, method: &'static str, params: Option<&RawJson>) -> Bytes {
    let id = id.as_json();
    let mut out = Vec::with_capacity(HEAD.len() + id.len() + room(method, params));
    out.extend_from_slice(HEAD.as_bytes());
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"method\":\"");
    finish(out, method, params)
}

/// A notification. `method` is one of ours and needs no escaping.
pub fn notification(method: &'static str, params: Option<&RawJson>) -> Bytes {
    let mut out = Vec::with_capacity(HEAD.len() + room(method, params));
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
    finish(out, method, params)
}

fn room(method: &str, params: Option<&RawJson>) -> usize {
    method.len() + crate::mcp::size(params) + r#","method":"","params":}"#.len()
}

fn finish(mut out: Vec<u8>, method: &'static str, params: Option<&RawJson>) -> Bytes {
    debug_assert!(method.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\'));
    out.extend_from_slice(method.as_bytes());
    out.push(b'"');
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params.bytes());
    }
    out.push(b'}');
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_written_in_one_piece() {
        let params = RawJson::from_static(r#"{"a":1.00}"#);
        assert_eq!(
            request(&Id::number(7), "tools/call", Some(&params)),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":1.00}}"#
        );
        assert_eq!(
            request(&Id::number(8), "ping", None),
            r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#
        );
        assert_eq!(
            notification("notifications/initialized", None),
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#
        );
        let result = Answer::Result(params);
        assert_eq!(
            response(Some(&Id::number(9)), &result),
            r#"{"jsonrpc":"2.0","id":9,"result":{"a":1.00}}"#
        );
        let error = Answer::Error(RawJson::from_static("{}"));
        assert_eq!(response(None, &error), r#"{"jsonrpc":"2.0","id":null,"error":{}}"#);
    }
}
