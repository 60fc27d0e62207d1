//! Finds the id of a message that is too big to keep, and whether it is an answer: reads it piece by
//! piece, keeps nothing else.

use super::{Id, RawJson};
use bytes::Bytes;

/// Longer ids than this are not kept.
const MAX_ID: usize = 256;

/// A scanner over the pieces of one message. What is not JSON confuses it without harm: then
/// there is no id.
#[derive(Debug, Default)]
pub struct IdScan {
    depth: u32,
    /// Inside a string; the flag is an escape that began.
    string: Option<bool>,
    /// What the string at depth 1 is, when it is a key.
    key: Vec<u8>,
    expect: Expect,
    value: Vec<u8>,
    found: bool,
    asks: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expect {
    #[default]
    Key,
    Colon,
    Value,
    IdValue,
}

impl IdScan {
    /// Reads the next piece.
    pub fn push(&mut self, piece: &[u8]) {
        if self.found && self.asks {
            return;
        }
        for byte in piece {
            self.step(*byte);
        }
    }

    /// Whether it has what only requests and notifications have: a method, or params.
    pub fn asks(&self) -> bool {
        self.asks
    }

    /// The id, if it was seen.
    pub fn id(&self) -> Option<Id> {
        if !self.found {
            return None;
        }
        let raw = RawJson::parse(Bytes::copy_from_slice(&self.value)).ok()?;
        Id::from_json(&raw).ok()
    }

    fn step(&mut self, byte: u8) {
        if let Some(escaped) = self.string {
            return self.in_string(byte, escaped);
        }
        let top = self.depth == 1;
        match byte {
            b'"' => {
                self.string = Some(false);
                if top && self.expect == Expect::Key {
                    self.key.clear();
                }
                self.keep(byte);
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' | b',' if top => {
                self.found |= self.expect == Expect::IdValue && !self.value.is_empty();
                self.expect = Expect::Key;
                self.depth -= u32::from(byte != b',');
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if top && self.expect == Expect::Colon => {
                self.asks |= self.key == b"method" || self.key == b"params";
                let id = self.key == b"id" && !self.found;
                self.expect = if id { Expect::IdValue } else { Expect::Value };
                if id {
                    self.value.clear();
                }
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.keep(byte),
        }
    }

    fn in_string(&mut self, byte: u8, escaped: bool) {
        let ends = byte == b'"' && !escaped;
        self.string = (!ends).then_some(byte == b'\\' && !escaped);
        if self.depth == 1 && self.expect == Expect::Key {
            if ends {
                self.expect = Expect::Colon;
            } else if self.key.len() < MAX_ID {
                self.key.push(byte);
            }
        } else {
            self.keep(byte);
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.depth == 1 && self.expect == Expect::IdValue && self.value.len() <= MAX_ID {
            self.value.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn scan(text: &str, piece: usize) -> Option<String> {
        let mut scan = IdScan::default();
        text.as_bytes().chunks(piece).for_each(|p| scan.push(p));
        scan.id().map(|id| id.as_json().to_owned())
    }

    #[rstest]
    #[case::method_last(r#"{"id":12,"params":{},"method":"x"}"#, true)]
    #[case::notification(r#"{"method":"x"}"#, true)]
    #[case::params_first(r#"{"jsonrpc":"2.0","params":{"a"#, true)]
    #[case::answer(r#"{"result":{"method":"x","params":[]},"id":12}"#, false)]
    #[case::text("method: 7", false)]
    fn tells_what_asks_from_what_answers(#[case] text: &str, #[case] asks: bool) {
        for piece in [1, 2, 7, 1000] {
            let mut scan = IdScan::default();
            text.as_bytes().chunks(piece).for_each(|p| scan.push(p));
            assert_eq!(scan.asks(), asks, "in pieces of {piece}");
        }
    }

    #[rstest]
    #[case::first(r#"{"id":12,"method":"x"}"#, Some("12"))]
    #[case::last(
        r#"{"a":{"id":1},"b":[{"id":2}],"c":"\"id\":3","id" : "x\"y" }"#,
        Some(r#""x\"y""#)
    )]
    #[case::nested_only(r#"{"params":{"id":4}}"#, None)]
    #[case::value_named_id(r#"{"method":"id","x":5}"#, None)]
    #[case::null(r#"{"id":null}"#, None)]
    #[case::object(r#"{"id":{"a":1}}"#, None)]
    #[case::cut(r#"{"id":12"#, None)]
    #[case::array(r#"[{"id":1}]"#, None)]
    #[case::text("id: 7, }", None)]
    fn finds_the_top_level_id(#[case] text: &str, #[case] id: Option<&str>) {
        for piece in [1, 2, 7, 1000] {
            assert_eq!(scan(text, piece).as_deref(), id, "in pieces of {piece}");
        }
    }
}
