//! The params of a call toward the server: its own name for the tool, arguments and `_meta` as
//! they came, without the caller's progress token, which means nothing on another connection.

use crate::mcp::RawJson;
use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<Meta<'a>>,
}

/// The members of `_meta`, in their order.
struct Meta<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Meta<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Meta<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = vec![];
                while let Some((key, value)) = map.next_entry::<Key<'de>, &RawValue>()? {
                    members.push((key.0, value));
                }
                Ok(Meta(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The params that are sent. `_meta` that is no object is left out.
pub fn toward_server(tool: &str, arguments: Option<&RawJson>, params: &RawJson) -> RawJson {
    let size = arguments.map_or(0, |p| p.bytes().len());
    let mut out = Vec::with_capacity(tool.len() + size + 64);
    out.extend_from_slice(br#"{"name":"#);
    string(&mut out, tool);
    if let Some(arguments) = arguments {
        out.extend_from_slice(br#","arguments":"#);
        out.extend_from_slice(arguments.bytes());
    }
    // most calls have no such member, and a search is cheaper than a parse
    if params.as_str().contains("_meta") {
        meta(&mut out, params);
    }
    out.push(b'}');
    RawJson::parse(Bytes::from(out)).expect("an object of valid parts is valid")
}

/// The members of `_meta` that belong on record, as an object; none if there are none. Neither the
/// progress token nor trace context says what is asked for.
pub fn meta_on_record(params: &RawJson) -> Option<String> {
    if !params.as_str().contains("_meta") {
        return None;
    }
    let mut out = vec![];
    members(&mut out, params, b"", &["progressToken", "traceparent", "tracestate"]);
    String::from_utf8(out).ok().filter(|text| !text.is_empty())
}

fn meta(out: &mut Vec<u8>, params: &RawJson) {
    members(out, params, br#","_meta":"#, &["progressToken"]);
}

/// Writes the members of `_meta` but these, as an object after `before`; nothing if there are none.
fn members(out: &mut Vec<u8>, params: &RawJson, before: &[u8], without: &[&str]) {
    let Ok(Params { meta: Some(Meta(members)) }) = serde_json::from_str(params.as_str()) else {
        return;
    };
    let mut members = members.iter().filter(|(key, _)| !without.contains(&&**key)).peekable();
    if members.peek().is_none() {
        return;
    }
    out.extend_from_slice(before);
    let mut begin = b'{';
    for (key, value) in members {
        out.push(begin);
        string(out, key);
        out.push(b':');
        out.extend_from_slice(value.get().as_bytes());
        begin = b',';
    }
    out.push(b'}');
}

fn string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing a string to a Vec cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn raw(text: &str) -> RawJson {
        RawJson::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    #[rstest]
    #[case::none(r#"{"name":"x"}"#, r#"{"name":"re\"ad"}"#)]
    #[case::kept(
        r#"{"_meta":{"a.b/c": 1e2,"d":{"x" : 1}}}"#,
        r#"{"name":"re\"ad","_meta":{"a.b/c":1e2,"d":{"x" : 1}}}"#
    )]
    #[case::token(r#"{"_meta":{"progressToken":7}}"#, r#"{"name":"re\"ad"}"#)]
    #[case::token_among(
        r#"{"_meta":{"a":1,"progressToken":"t","b":2}}"#,
        r#"{"name":"re\"ad","_meta":{"a":1,"b":2}}"#
    )]
    #[case::not_an_object(r#"{"_meta":[1]}"#, r#"{"name":"re\"ad"}"#)]
    #[case::null(r#"{"_meta":null}"#, r#"{"name":"re\"ad"}"#)]
    #[case::others_stay_here(
        r#"{"name":"x","task":{"ttl":1},"authorization":"t"}"#,
        r#"{"name":"re\"ad"}"#
    )]
    fn members(#[case] params: &str, #[case] sent: &str) {
        assert_eq!(toward_server("re\"ad", None, &raw(params)).as_str(), sent);
    }

    #[rstest]
    #[case::none(r#"{"name":"x"}"#, None)]
    #[case::empty(r#"{"_meta":{}}"#, None)]
    #[case::transport(r#"{"_meta":{"progressToken":7,"traceparent":"a","tracestate":"b"}}"#, None)]
    #[case::rest(
        r#"{"_meta":{"x.y/z":[1e2],"traceparent":"a","k":{}}}"#,
        Some(r#"{"x.y/z":[1e2],"k":{}}"#)
    )]
    #[case::another_place(r#"{"name":"_meta","arguments":{"_meta":{"a":1}}}"#, None)]
    fn on_record(#[case] params: &str, #[case] meta: Option<&str>) {
        assert_eq!(meta_on_record(&raw(params)).as_deref(), meta);
    }

    #[test]
    fn arguments_keep_their_bytes() {
        let arguments = raw(r#"{"b":1e2, "a":12345678901234567890}"#);
        let sent = toward_server("t", Some(&arguments), &raw("{}"));
        assert_eq!(
            sent.as_str(),
            r#"{"name":"t","arguments":{"b":1e2, "a":12345678901234567890}}"#
        );
    }
}
