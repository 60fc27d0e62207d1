//! The canonical form of JSON, and digests.
//!
//! Two texts have the same canonical form when they hold the same data, written in whatever order
//! and with whatever spaces and escapes:
//!
//! - members of an object in the order of their unescaped keys, compared byte by byte as UTF-8
//!   (a lone surrogate, which UTF-8 lacks, as its generalised three bytes);
//! - number tokens as they are written: `1.0`, `1` and `1e0` are three different things here,
//!   since a server may tell them apart and nothing is to be rounded;
//! - no white space outside strings;
//! - in strings the short escapes `\" \\ \b \f \n \r \t`, `\u00xx` in lower case for the other
//!   control characters, `\udxxx` for a lone surrogate, and everything else as itself.
//!
//! A repeated key is refused, since two readers may disagree on which one counts; so is what nests
//! deeper than [`MAX_DEPTH`].

use super::scan::{Escapes, Scanner, Str, Unescape};
pub use super::scan::{JsonProblem, MAX_DEPTH};
use sha2::{Digest as _, Sha256};

/// A canonical JSON text and the digest over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// The text.
    pub text: String,
    /// `sha256:` and 64 hex digits, over the text.
    pub digest: String,
}

/// `sha256:` and 64 lower-case hex digits over the bytes.
pub fn digest(bytes: impl AsRef<[u8]>) -> String {
    let mut out = String::with_capacity(71);
    out.push_str("sha256:");
    push_hex(&mut out, &Sha256::digest(bytes.as_ref()));
    out
}

/// Appends the bytes as lower-case hex digits.
pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            out.push(char::from_digit(u32::from(digit), 16).expect("a nibble is below 16"));
        }
    }
}

/// Whether one JSON text may be read in one way only: valid, no key twice in any object at any
/// depth, not too deep. The whole of a message is looked at, so envelope, params and arguments are
/// one check.
///
/// # Errors
/// What is wrong, the first such thing.
pub fn find_repeated_key(raw: &[u8]) -> Result<(), JsonProblem> {
    Reader::new(raw, false).document().map(|_| ())
}

/// The canonical form of one JSON text.
///
/// # Errors
/// What is wrong with the text, the first such thing.
pub fn canonical_json(raw: &str) -> Result<Canonical, JsonProblem> {
    let mut reader = Reader::new(raw.as_bytes(), true);
    let whole = reader.document()?;
    let text = if reader.canonical {
        raw.to_owned()
    } else {
        let mut out = Vec::with_capacity(raw.len());
        reader.write(whole, &mut out);
        String::from_utf8(out).expect("pieces of UTF-8, cut at quotes, are UTF-8")
    };
    let digest = digest(&text);
    Ok(Canonical { text, digest })
}

/// Part of the text, in bytes. Offsets are `u32`: a member takes 20 bytes instead of 40.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(start: usize, end: usize) -> Self {
        let short = |x: usize| u32::try_from(x).expect("longer texts were refused");
        Self { start: short(start), end: short(end) }
    }

    fn of(self, text: &[u8]) -> &[u8] {
        &text[self.start as usize..self.end as usize]
    }
}

/// A member of an object.
#[derive(Clone, Copy)]
struct Member {
    /// The key, without quotes.
    key: Span,
    value: Span,
    /// Number of the first object inside of the value, counted in the order of the text.
    object: u32,
}

/// An object whose members are in `Reader::members`, sorted.
#[derive(Clone, Copy, Default)]
struct Object {
    first: usize,
    last: usize,
    /// Offset behind its closing brace.
    end: usize,
    /// Number of the next object behind it.
    next: usize,
}

/// Reads a text once, compares keys, and, when asked, keeps what writing it sorted needs.
struct Reader<'a> {
    scan: Scanner<'a>,
    keep: bool,
    /// Members of the objects that are still open.
    open: Vec<Member>,
    members: Vec<Member>,
    objects: Vec<Object>,
    /// Whether the text is its own canonical form, as far as it was read.
    canonical: bool,
}

impl<'a> Reader<'a> {
    fn new(text: &'a [u8], keep: bool) -> Self {
        let (open, members, objects) = (Vec::with_capacity(16), vec![], vec![]);
        Self { scan: Scanner::new(text), keep, open, members, objects, canonical: true }
    }

    fn document(&mut self) -> Result<Span, JsonProblem> {
        if u32::try_from(self.scan.text.len()).is_err() {
            return Err(JsonProblem::TooLong);
        }
        self.space();
        let start = self.scan.at;
        self.value(0)?;
        let end = self.scan.at;
        self.space();
        if self.scan.peek().is_some() { self.scan.bad() } else { Ok(Span::new(start, end)) }
    }

    fn space(&mut self) {
        if self.scan.space() {
            self.canonical = false;
        }
    }

    fn string(&mut self) -> Result<Str, JsonProblem> {
        let string = self.scan.string()?;
        self.canonical &= string.escapes != Escapes::Other;
        Ok(string)
    }

    fn value(&mut self, depth: usize) -> Result<(), JsonProblem> {
        match self.scan.peek() {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'{' | b'[') if depth == MAX_DEPTH => Err(JsonProblem::TooDeep),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            _ => self.scan.scalar(),
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonProblem> {
        self.scan.at += 1;
        self.space();
        if self.scan.peek() == Some(b']') {
            self.scan.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth)?;
            self.space();
            match self.scan.peek() {
                Some(b',') => self.scan.at += 1,
                Some(b']') => break self.scan.at += 1,
                _ => return self.scan.bad(),
            }
            self.space();
        }
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonProblem> {
        let (number, base) = (self.objects.len(), self.open.len());
        if self.keep {
            self.objects.push(Object::default());
        }
        let (mut plain, mut ascending) = (true, true);
        self.scan.at += 1;
        self.space();
        let mut more = self.scan.peek() != Some(b'}');
        while more {
            let key = self.string()?;
            plain &= key.escapes == Escapes::None;
            let key = Span::new(key.start, key.end);
            self.space();
            self.scan.expect(b':')?;
            self.space();
            if let (true, Some(before)) = (self.open.len() > base, self.open.last()) {
                ascending &= before.key.of(self.scan.text) < key.of(self.scan.text);
            }
            let (object, start) = (self.objects.len() as u32, self.scan.at);
            self.open.push(Member { key, value: Span::new(start, start), object });
            let place = self.open.len() - 1;
            self.value(depth)?;
            self.open[place].value = Span::new(start, self.scan.at);
            self.space();
            more = self.scan.peek() == Some(b',');
            if more {
                self.scan.at += 1;
                self.space();
            }
        }
        self.scan.expect(b'}')?;
        if !(plain && ascending) {
            self.sort(base, plain)?;
        }
        if self.keep {
            let first = self.members.len();
            self.members.extend_from_slice(&self.open[base..]);
            let (last, next) = (self.members.len(), self.objects.len());
            self.objects[number] = Object { first, last, end: self.scan.at, next };
        }
        self.open.truncate(base);
        Ok(())
    }

    /// Sorts the members of the object that was just read, and finds equal ones.
    fn sort(&mut self, base: usize, plain: bool) -> Result<(), JsonProblem> {
        let text = self.scan.text;
        let members = &mut self.open[base..];
        let unescaped = |m: &Member| Unescape::new(m.key.of(text));
        let repeated = if plain {
            members.sort_unstable_by(|a, b| a.key.of(text).cmp(b.key.of(text)));
            members.windows(2).find(|m| m[0].key.of(text) == m[1].key.of(text))
        } else {
            members.sort_unstable_by(|a, b| unescaped(a).cmp(unescaped(b)));
            members.windows(2).find(|m| unescaped(&m[0]).eq(unescaped(&m[1])))
        };
        if let Some([member, _]) = repeated {
            let key: Vec<u8> = unescaped(member).take(256).collect();
            let key = String::from_utf8_lossy(&key).chars().take(64).collect();
            return Err(JsonProblem::RepeatedKey { key });
        }
        self.canonical = false;
        Ok(())
    }

    /// Writes a document that was read with `keep`.
    fn write(&self, whole: Span, out: &mut Vec<u8>) {
        self.write_value(whole, 0, out);
    }

    fn write_value(&self, value: Span, mut object: usize, out: &mut Vec<u8>) {
        let mut scan = Scanner { text: self.scan.text, at: value.start as usize };
        while scan.at < value.end as usize {
            match scan.text[scan.at] {
                b' ' | b'\n' | b'\r' | b'\t' => scan.at += 1,
                b'"' => {
                    let string = scan.string().expect("it was read before");
                    write_string(scan.text, string, out);
                }
                b'{' => {
                    let found = self.objects[object];
                    self.write_object(found, out);
                    (scan.at, object) = (found.end, found.next);
                }
                other => {
                    out.push(other);
                    scan.at += 1;
                }
            }
        }
    }

    fn write_object(&self, object: Object, out: &mut Vec<u8>) {
        out.push(b'{');
        for (i, member) in self.members[object.first..object.last].iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            let (start, end) = (member.key.start as usize, member.key.end as usize);
            write_string(self.scan.text, Str { start, end, escapes: Escapes::Other }, out);
            out.push(b':');
            self.write_value(member.value, member.object as usize, out);
        }
        out.push(b'}');
    }
}

/// Writes a string with its quotes in the one normal escaping.
fn write_string(text: &[u8], string: Str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut raw = &text[string.start..string.end];
    if string.escapes == Escapes::Other {
        while let Some(at) = raw.iter().position(|b| *b == b'\\') {
            out.extend_from_slice(&raw[..at]);
            raw = &raw[at..];
            let length = match Unescape::code_point(raw) {
                Some((code, length)) => {
                    write_code_point(code, out);
                    length
                }
                None if raw[1] == b'/' => {
                    out.push(b'/');
                    2
                }
                None => {
                    out.extend_from_slice(&raw[..2]);
                    2
                }
            };
            raw = &raw[length..];
        }
    }
    out.extend_from_slice(raw);
    out.push(b'"');
}

/// Writes one code point, or a lone surrogate, inside of a string.
pub(super) fn write_code_point(code: u32, out: &mut Vec<u8>) {
    let short = match code {
        0x22 => b'"',
        0x5c => b'\\',
        8 => b'b',
        12 => b'f',
        10 => b'n',
        13 => b'r',
        9 => b't',
        _ => 0,
    };
    match char::from_u32(code) {
        Some(_) if short != 0 => out.extend_from_slice(&[b'\\', short]),
        Some(c) if code >= 0x20 => {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        _ => out.extend_from_slice(format!("\\u{code:04x}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value;

    fn form(text: &str) -> String {
        canonical_json(text).unwrap().text
    }

    #[rstest]
    #[case::spaces(" { \"a\" : [ 1 , 2 ] } \n", r#"{"a":[1,2]}"#)]
    #[case::order(
        r#"{"b":1,"a":{"d":[{"z":1,"y":2},{"x":0}],"c":{}}}"#,
        r#"{"a":{"c":{},"d":[{"y":2,"z":1},{"x":0}]},"b":1}"#
    )]
    #[case::order_of_bytes(
        r#"{"é":1,"z":2,"Z":3,"":4,"😀":5,"﷐":6}"#,
        r#"{"":4,"Z":3,"z":2,"é":1,"﷐":6,"😀":5}"#
    )]
    #[case::keys_unescaped(r#"{"\u0062":1,"a":2}"#, r#"{"a":2,"b":1}"#)]
    #[case::numbers(
        "[1.0,1,1e0,-0,10000000000000000000000001,1E+2]",
        "[1.0,1,1e0,-0,10000000000000000000000001,1E+2]"
    )]
    #[case::escapes(
        r#""\/\u002f\u0041\u000A\u001F\u007f\u00e9\"\\\b""#,
        "\"//A\\n\\u001f\u{7f}é\\\"\\\\\\b\""
    )]
    #[case::pair(r#""\uD83D\uDE00""#, "\"😀\"")]
    #[case::lone(r#"["\uD83D","\uDE00x"]"#, r#"["\ud83d","\ude00x"]"#)]
    #[case::literals("[true,false,null,\"\"]", "[true,false,null,\"\"]")]
    #[case::objects_between(
        r#"[{"b":{"k":1},"a":{"m":2}},{"q":[{"s":1,"r":2}],"p":3}]"#,
        r#"[{"a":{"m":2},"b":{"k":1}},{"p":3,"q":[{"r":2,"s":1}]}]"#
    )]
    fn one_form(#[case] text: &str, #[case] wanted: &str) {
        assert_eq!(form(text), wanted);
        assert_eq!(form(wanted), wanted);
        assert_eq!(canonical_json(text).unwrap().digest, digest(wanted));
    }

    #[rstest]
    #[case::plain(r#"{"a":1,"b":2,"a":3}"#, "a")]
    #[case::neighbours(r#"{"a":1,"a":3}"#, "a")]
    #[case::escaped(r#"{"a":1,"\u0061":3}"#, "a")]
    #[case::both_escaped(r#"{"\u00e9":1,"é":3}"#, "é")]
    #[case::pair(r#"{"😀":1,"b":2,"\ud83d\ude00":3}"#, "😀")]
    #[case::empty(r#"{"":1,"":3}"#, "")]
    #[case::inside(r#"{"x":[{"y":{"k":0,"j":1,"k":2}}]}"#, "k")]
    #[case::after_children(r#"{"x":{"a":1},"b":{"x":1},"x":2}"#, "x")]
    fn a_repeated_key_is_refused(#[case] text: &str, #[case] key: &str) {
        let wanted = JsonProblem::RepeatedKey { key: key.into() };
        assert_eq!(find_repeated_key(text.as_bytes()).unwrap_err(), wanted);
        assert_eq!(canonical_json(text).unwrap_err(), wanted);
    }

    #[test]
    fn keys_that_differ_are_no_repetition() {
        for text in
            [r#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]}"#, r#"{"\ud83d":1,"\ude00":2,"😀":3}"#]
        {
            find_repeated_key(text.as_bytes()).unwrap();
        }
        let long = format!(r#"{{"{0}":1,"{0}":2}}"#, "é".repeat(1000));
        let problem = find_repeated_key(long.as_bytes()).unwrap_err();
        assert_eq!(problem, JsonProblem::RepeatedKey { key: "é".repeat(64) });
    }

    #[test]
    fn depth_has_a_bound() {
        let nested = |n: usize| format!("{}1{}", "[{\"a\":".repeat(n), "}]".repeat(n));
        assert!(canonical_json(&nested(MAX_DEPTH / 2)).is_ok());
        assert_eq!(
            canonical_json(&format!("[{}]", nested(MAX_DEPTH / 2))),
            Err(JsonProblem::TooDeep)
        );
        assert_eq!(find_repeated_key("[".repeat(1 << 20).as_bytes()), Err(JsonProblem::TooDeep));
    }

    #[test]
    fn grammar_is_that_of_serde_json() {
        let texts = [
            "",
            " ",
            "{",
            "}",
            "[1,]",
            "{\"a\":1,}",
            "{,}",
            "[,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{1:1}",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "1e",
            "1e+",
            "--1",
            "tru",
            "truex",
            "nul",
            "NaN",
            "\"\t\"",
            "'a'",
            "1 2",
            "[1 2]",
            "[1]]",
            "\u{feff}1",
            "\u{a0}1",
            "-0.0e-0",
            "1E5",
            "[[]]",
            "{}",
            "[{}]",
            "0",
            "-1",
            "\u{c}1",
        ];
        for text in texts {
            let wanted = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            assert_eq!(find_repeated_key(text.as_bytes()).is_ok(), wanted, "{text:?}");
            assert_eq!(canonical_json(text).is_ok(), wanted, "{text:?}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
            "(?s).{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::vec(("(?s).{0,4}", inner), 0..8)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    /// The value as text: members backwards, spaces, every character of a string escaped.
    fn wild(value: &Value, out: &mut String) {
        let string = |s: &str, out: &mut String| {
            out.push('"');
            out.extend(s.encode_utf16().map(|u| format!("\\u{u:04X}")));
            out.push('"');
        };
        match value {
            Value::Object(map) => {
                out.push_str("{ ");
                for (i, (key, value)) in map.iter().rev().enumerate() {
                    out.push_str(if i > 0 { ",\n" } else { "" });
                    string(key, out);
                    out.push_str(" : ");
                    wild(value, out);
                }
                out.push_str(" }");
            }
            Value::Array(list) => {
                out.push('[');
                for (i, value) in list.iter().enumerate() {
                    out.push_str(if i > 0 { " ,\t" } else { "" });
                    wild(value, out);
                }
                out.push_str("\r]");
            }
            Value::String(s) => string(s, out),
            other => out.push_str(&other.to_string()),
        }
    }

    proptest! {
        #[test]
        fn the_form_keeps_the_data_and_forgets_the_writing(value in json()) {
            let (plain, mut other) = (serde_json::to_string(&value).unwrap(), String::new());
            wild(&value, &mut other);
            let canonical = form(&plain);
            prop_assert_eq!(&form(&other), &canonical);
            prop_assert_eq!(&form(&canonical), &canonical);
            prop_assert_eq!(&form(&serde_json::to_string_pretty(&value).unwrap()), &canonical);
            prop_assert_eq!(serde_json::from_str::<Value>(&canonical).unwrap(), serde_json::from_str::<Value>(&plain).unwrap());
            // serde_json's own map is sorted by the bytes of its keys and writes the same escapes.
            prop_assert_eq!(canonical, plain);
            prop_assert!(find_repeated_key(other.as_bytes()).is_ok());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), text in "[\\[\\]{}:,\"\\\\a0-9ue. \\-]{0,40}") {
            let _ = find_repeated_key(&bytes);
            prop_assert_eq!(
                matches!(canonical_json(&text), Err(JsonProblem::NotJson { .. })),
                serde_json::from_str::<serde::de::IgnoredAny>(&text).is_err()
            );
        }
    }
}
