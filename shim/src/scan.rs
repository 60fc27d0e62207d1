//! Finds the JSON-RPC id of a message that is too large to keep, while its bytes pass by.
//!
//! Bounded memory whatever comes; it does not validate. A message that hides its id (escaped key,
//! nested in another value, an id of more than 256 bytes) is reported without one.

const KEY_LIMIT: usize = 16;
const ID_LIMIT: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Key,
    Colon,
    Value,
}

/// A scanner of one message, fed from its first byte on.
pub struct IdScanner {
    depth: u32,
    in_string: bool,
    escaped: bool,
    at: At,
    key: Vec<u8>,
    id: Vec<u8>,
    id_overflow: bool,
    has_method: bool,
    bytes: u64,
}

/// What is known of a message after its last byte.
pub struct Scanned {
    /// The id as JSON, of an answer only: a request's id is not one of ours.
    pub id: Option<String>,
    /// All bytes of the message.
    pub bytes: u64,
}

impl IdScanner {
    /// A scanner that has seen nothing.
    pub fn new() -> Self {
        Self {
            depth: 0,
            in_string: false,
            escaped: false,
            at: At::Key,
            key: Vec::new(),
            id: Vec::new(),
            id_overflow: false,
            has_method: false,
            bytes: 0,
        }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for &byte in bytes {
            self.step(byte);
        }
    }

    /// Whether the value being passed is the one of a top-level `id`.
    fn in_id(&self) -> bool {
        self.at == At::Value && self.depth == 1 && self.key == b"id"
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            let ends = !self.escaped && byte == b'"';
            self.escaped = !self.escaped && byte == b'\\';
            if self.depth == 1 && self.at == At::Key && !ends && self.key.len() < KEY_LIMIT {
                self.key.push(byte);
            }
            self.keep(byte);
            if ends {
                self.in_string = false;
                if self.depth == 1 && self.at == At::Key {
                    self.at = At::Colon;
                }
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.escaped = false;
                if self.depth == 1 && self.at == At::Key {
                    self.key.clear();
                }
                self.keep(byte);
            }
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if self.depth == 1 && self.at == At::Colon => {
                self.at = At::Value;
                self.has_method |= self.key == b"method";
            }
            b',' if self.depth == 1 => {
                self.at = At::Key;
                self.key.clear();
            }
            _ => self.keep(byte),
        }
    }

    fn keep(&mut self, byte: u8) {
        if !self.in_id() || (!self.in_string && byte.is_ascii_whitespace()) {
            return;
        }
        if self.id.len() < ID_LIMIT {
            self.id.push(byte);
        } else {
            self.id_overflow = true;
        }
    }

    /// What was found.
    pub fn finish(self) -> Scanned {
        let id = (!self.has_method && !self.id_overflow)
            .then(|| serde_json::from_slice::<serde_json::Value>(&self.id).ok())
            .flatten()
            .filter(|id| id.is_string() || id.is_number())
            .and_then(|_| String::from_utf8(self.id).ok());
        Scanned { id, bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn scan(text: &str) -> Option<String> {
        let mut scanner = IdScanner::new();
        scanner.feed(text.as_bytes());
        scanner.finish().id
    }

    #[rstest]
    #[case::first(r#"{"id":"7-1","result":{}}"#, Some(r#""7-1""#))]
    #[case::last(r#"{"result":{"x":[1,{"y":2}]}, "id" : 42 }"#, Some("42"))]
    #[case::nested_is_not_it(r#"{"result":{"id":"9-9"}}"#, None)]
    #[case::nested_then_ours(r#"{"result":{"id":"9-9"},"id":"7-2"}"#, Some(r#""7-2""#))]
    #[case::in_a_string(r#"{"result":"\"id\":\"9-9\",","id":"7-3"}"#, Some(r#""7-3""#))]
    #[case::value_named_id(r#"{"result":"id","id":"7-4"}"#, Some(r#""7-4""#))]
    #[case::escaped_quote_in_id(r#"{"id":"a\"b","result":1}"#, Some(r#""a\"b""#))]
    #[case::comma_in_id(r#"{"id":"a,b","result":1}"#, Some(r#""a,b""#))]
    #[case::request_of_the_server(r#"{"id":"7-5","method":"ping"}"#, None)]
    #[case::method_first(r#"{"method":"ping","id":"7-5"}"#, None)]
    #[case::notification(r#"{"method":"x","params":{}}"#, None)]
    #[case::null(r#"{"id":null,"error":{}}"#, None)]
    #[case::object(r#"{"id":{"id":1},"result":1}"#, None)]
    #[case::nothing("", None)]
    #[case::garbage("{{{{]]]]\"id\":1", None)]
    fn finds(#[case] text: &str, #[case] id: Option<&str>) {
        assert_eq!(scan(text).as_deref(), id);
    }

    #[test]
    fn an_endless_id_is_bounded() {
        assert_eq!(scan(&format!(r#"{{"id":"{}","result":1}}"#, "x".repeat(100_000))), None);
    }

    proptest! {
        #[test]
        fn any_split_finds_the_same(at in 0usize..60) {
            let text = r#"{"result":{"a":["id",{"id":1}],"b":"\\"},"id":"12-345678","z":{}}"#;
            let mut scanner = IdScanner::new();
            scanner.feed(&text.as_bytes()[..at]);
            scanner.feed(&text.as_bytes()[at..]);
            let found = scanner.finish();
            prop_assert_eq!(found.id.as_deref(), Some(r#""12-345678""#));
            prop_assert_eq!(found.bytes, text.len() as u64);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let mut scanner = IdScanner::new();
            scanner.feed(&bytes);
            let _ = scanner.finish();
        }
    }
}
