//! Tables for reading the envelope.

use super::*;
use proptest::prelude::*;
use rstest::rstest;

fn read(text: &str) -> Result<Message, Malformed> {
    parse(&Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn parts_are_slices_of_what_came() {
    let whole = Bytes::from_static(
        br#"{"jsonrpc":"2.0","id":"a\u0062","method":"tools\/call","params":{"z":1e400,"a":[ ]},"x":1}"#,
    );
    let Ok(Message::Request { id, method, params: Some(params) }) = parse(&whole) else { panic!() };
    assert_eq!(id.as_json(), r#""a\u0062""#);
    assert_eq!(method, "tools/call");
    assert_eq!(params.as_str(), r#"{"z":1e400,"a":[ ]}"#);
    assert!(whole.as_ptr_range().contains(&params.bytes().as_ptr()), "no copy");
}

#[rstest]
#[case::bom("\u{feff}{\"jsonrpc\":\"2.0\",\"method\":\"a\"}")]
#[case::spaces(" \r\n\t{\"jsonrpc\":\"2.0\",\"method\":\"a\"}\r\n")]
#[case::escaped_key(r#"{"jsonrpc":"2.0","\u006dethod":"a"}"#)]
fn read_as_the_plain_notification(#[case] text: &str) {
    assert_eq!(read(text), Ok(Message::Notification { method: "a".into(), params: None }));
}

#[rstest]
#[case::number("-1", true)]
#[case::big("12345678901234567890123", true)]
#[case::string("\"é\"", true)]
#[case::empty_string("\"\"", true)]
#[case::null("null", false)]
#[case::truth("true", false)]
#[case::list("[1]", false)]
#[case::object("{}", false)]
fn ids(#[case] token: &str, #[case] good: bool) {
    let text = format!(r#"{{"jsonrpc":"2.0","method":"m","id":{token}}}"#);
    match read(&text) {
        Ok(Message::Request { id, .. }) => assert!(good && id.as_json() == token),
        other => {
            assert!(!good);
            assert_eq!(other.unwrap_err().to_error().code(), code::INVALID_REQUEST);
        }
    }
}

#[rstest]
#[case::method(r#"{"jsonrpc":"2.0","id":31,"method":"a","method":"b"}"#, "method", Some("31"))]
#[case::escaped(r#"{"jsonrpc":"2.0","id":32,"params":{},"p\u0061rams":{}}"#, "params", Some("32"))]
#[case::id(r#"{"jsonrpc":"2.0","id":33,"id":34,"method":"a"}"#, "id", None)]
#[case::same_value(
    r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":35,"method":"a"}"#,
    "jsonrpc",
    Some("35")
)]
#[case::unknown(r#"{"jsonrpc":"2.0","x":1,"id":36,"x":2,"method":"a"}"#, "x", Some("36"))]
fn a_repeated_key_is_refused(#[case] text: &str, #[case] key: &str, #[case] id: Option<&str>) {
    let error = read(text).unwrap_err();
    assert_eq!(error.reason(), Reason::RepeatedKey);
    assert!(error.to_string().contains(&format!("{key:?}")), "{error}");
    assert_eq!(error.id().map(Id::as_json), id);
}

#[rstest]
#[case::batch(
    "[{\"jsonrpc\":\"2.0\",\"method\":\"a\"}]",
    Reason::BatchRefused,
    code::INVALID_REQUEST
)]
#[case::empty_batch(" []", Reason::BatchRefused, code::INVALID_REQUEST)]
#[case::broken_batch("[1", Reason::InvalidRequest, code::PARSE)]
#[case::nothing("", Reason::InvalidRequest, code::PARSE)]
#[case::words("hello", Reason::InvalidRequest, code::PARSE)]
#[case::number("7", Reason::InvalidRequest, code::INVALID_REQUEST)]
#[case::cut("{\"jsonrpc\":\"2.0\"", Reason::InvalidRequest, code::PARSE)]
#[case::trailing("{\"jsonrpc\":\"2.0\",\"method\":\"a\"} x", Reason::InvalidRequest, code::PARSE)]
#[case::two("{\"jsonrpc\":\"2.0\",\"method\":\"a\"}{}", Reason::InvalidRequest, code::PARSE)]
#[case::version_missing(
    "{\"id\":1,\"method\":\"a\"}",
    Reason::InvalidRequest,
    code::INVALID_REQUEST
)]
#[case::version_other(
    "{\"jsonrpc\":2.0,\"id\":1,\"method\":\"a\"}",
    Reason::InvalidRequest,
    code::INVALID_REQUEST
)]
#[case::method_number(
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}",
    Reason::InvalidRequest,
    code::INVALID_REQUEST
)]
#[case::both(
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\",\"result\":{}}",
    Reason::InvalidRequest,
    code::INVALID_REQUEST
)]
#[case::neither("{\"jsonrpc\":\"2.0\",\"id\":1}", Reason::InvalidRequest, code::INVALID_REQUEST)]
#[case::result_without_id(
    "{\"jsonrpc\":\"2.0\",\"result\":{}}",
    Reason::InvalidRequest,
    code::INVALID_REQUEST
)]
#[case::error_text(
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":\"x\"}",
    Reason::InvalidRequest,
    code::INVALID_REQUEST
)]
fn refused(#[case] text: &str, #[case] reason: Reason, #[case] code: i64) {
    let error = read(text).unwrap_err();
    assert_eq!((error.reason(), error.to_error().code()), (reason, code), "{error}");
}

#[test]
fn bytes_that_are_not_utf8_are_refused_wherever_they_stand() {
    for place in
        [&b"{\"jsonrpc\":\"2.0\",\"method\":\"\xC3\x28\"}"[..], b"{\"x\":\"\xFF\"}", b"\xFF"]
    {
        let error = parse(&Bytes::copy_from_slice(place)).unwrap_err();
        assert_eq!(error.to_error().code(), code::PARSE);
    }
}

#[test]
fn deep_nesting_is_no_trouble() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let text = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"m","params":{deep}}}"#);
    let Ok(Message::Request { params: Some(params), .. }) = read(&text) else { panic!() };
    assert_eq!(params.as_str(), deep);
}

#[test]
fn an_id_is_what_it_means() {
    let id = |t: &'static str| Id::from_json(&RawJson::from_static(t)).unwrap();
    assert_eq!(id(r#""a""#), id(r#""\u0061""#));
    assert_ne!(id("1"), id(r#""1""#));
    assert_ne!(id("1"), id("2"));
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        ".{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(n in any::<u64>(), params in json(), result in json()) {
        let (params, result) = (RawJson::of(&params).unwrap(), RawJson::of(&result).unwrap());
        let id = Id::number(n);
        prop_assert_eq!(
            parse(&crate::mcp::wire::request(&id, "tools/call", Some(&params))),
            Ok(Message::Request { id: id.clone(), method: "tools/call".into(), params: Some(params) })
        );
        let answer = Answer::Result(result);
        prop_assert_eq!(
            parse(&crate::mcp::wire::response(Some(&id), &answer)),
            Ok(Message::Response { id: Some(id), answer })
        );
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes.into());
    }

    #[test]
    fn no_text_near_json_makes_it_panic(text in "[\\[\\]{}\":,a1\\\\ ]{0,60}") {
        let _ = parse(&text.into_bytes().into());
    }
}
