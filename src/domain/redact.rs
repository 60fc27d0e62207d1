//! What is taken out before anything is stored: values of known credentials, in any writing, and
//! whatever stands under a key that sounds like a secret.
//!
//! Redacted JSON is valid JSON. Where nothing is found, nothing is copied. The digest over
//! arguments is made before, over what was really said.

use super::{
    canonical::write_code_point,
    scan::{Escapes, JsonProblem, MAX_DEPTH, Scanner, Str, Unescape},
    secret_key::{Sounds, secret_key},
};
use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use std::{borrow::Cow, sync::Arc};

/// What stands where something was taken out.
pub const REDACTED: &str = "[redacted]";

/// The shortest credential value that is looked for: shorter ones stand in every other text.
pub const MIN_VALUE: usize = 4;

/// How much of a longer value is looked for, in bytes: the default limit of what is stored, so the
/// rest of such a value never stands there whole.
pub const MAX_VALUE: usize = 16 * 1024;

/// Takes secrets out of texts. Making one costs some microseconds a value: make it when
/// credentials change, not for a call.
#[derive(Clone, Default)]
pub struct Redactor {
    sets: Vec<Set>,
}

/// Values that are looked for in one pass.
#[derive(Clone)]
struct Set {
    values: AhoCorasick,
    forms: Arc<[Vec<u8>]>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} forms)", self.forms().count())
    }
}

impl Redactor {
    /// Looks for these values (white space around them left out, at least [`MIN_VALUE`] bytes, of
    /// those with more than [`MAX_VALUE`] their beginning), as they are and as base64 (also inside of a longer base64 text), hex, percent-encoded and
    /// escaped for JSON.
    pub fn new<V: AsRef<[u8]>>(values: impl IntoIterator<Item = V>) -> Self {
        Self::of(values.into_iter().flat_map(|v| forms_of(v.as_ref().trim_ascii())).collect())
    }

    /// Knows also what the other knows.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        if other.forms().all(|form| self.forms().any(|own| own == form)) {
            return self;
        }
        Self::of(self.forms().chain(other.forms()).cloned().collect())
    }

    /// Knows also what the other knows, at no cost in making it: texts are searched once for each.
    #[must_use]
    pub fn beside(&self, other: &Self) -> Self {
        Self { sets: [&*self.sets, &*other.sets].concat() }
    }

    fn forms(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.sets.iter().flat_map(|set| &*set.forms)
    }

    fn of(mut forms: Vec<Vec<u8>>) -> Self {
        forms.retain(|form| form.len() >= MIN_VALUE);
        forms.sort_unstable();
        forms.dedup();
        if forms.is_empty() {
            return Self::default();
        }
        // The fastest kind takes a quarter KiB for each byte of a form.
        let small = forms.iter().map(Vec::len).sum::<usize>() <= 8 * 1024;
        let kind = if small { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        let built = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(kind))
            .build(&forms);
        let values = built.expect("Secrets have at most 1 MiB, far from the bound of states");
        Self { sets: vec![Set { values, forms: forms.into() }] }
    }

    /// A text for people, without the known values.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.replaced(text.as_bytes()) {
            None => Cow::Borrowed(text),
            Some(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// One JSON text without the known values and without what stands under secret keys, also in
    /// strings that hold JSON. What nests deeper than [`MAX_DEPTH`] is taken out whole.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn json<'a>(&self, raw: &'a str) -> Result<Cow<'a, str>, JsonProblem> {
        let bytes = self.json_at(raw.as_bytes(), 0)?;
        Ok(bytes.map_or(Cow::Borrowed(raw), |bytes| {
            Cow::Owned(
                String::from_utf8(bytes).expect("values and JSON strings are cut at characters"),
            )
        }))
    }

    fn json_at(&self, text: &[u8], depth: usize) -> Result<Option<Vec<u8>>, JsonProblem> {
        let mut walk = Walk { scan: Scanner::new(text), redactor: self, out: vec![], copied: 0 };
        walk.scan.space();
        walk.value(depth)?;
        walk.scan.space();
        if walk.scan.peek().is_some() {
            return walk.scan.bad();
        }
        if walk.copied == 0 {
            return Ok(None);
        }
        walk.out.extend_from_slice(&text[walk.copied..]);
        Ok(Some(walk.out))
    }

    fn finds(&self, text: &[u8]) -> bool {
        self.sets.iter().any(|set| set.values.is_match(text))
    }

    fn replaced(&self, text: &[u8]) -> Option<Vec<u8>> {
        self.sets.iter().fold(None, |now, set| {
            let changed = set.replaced(now.as_deref().unwrap_or(text));
            changed.or(now)
        })
    }
}

impl Set {
    fn replaced(&self, text: &[u8]) -> Option<Vec<u8>> {
        let (mut out, mut copied) = (vec![], 0);
        for found in self.values.find_iter(text) {
            out.extend_from_slice(&text[copied..found.start()]);
            out.extend_from_slice(REDACTED.as_bytes());
            copied = found.end();
        }
        if copied == 0 {
            return None;
        }
        out.extend_from_slice(&text[copied..]);
        Some(out)
    }
}

/// How a value may be written.
fn forms_of(value: &[u8]) -> Vec<Vec<u8>> {
    if value.len() < MIN_VALUE {
        return vec![];
    }
    let whole = std::str::from_utf8(value);
    let value = match whole {
        Ok(text) => &value[..text.floor_char_boundary(MAX_VALUE)],
        Err(_) => &value[..value.len().min(MAX_VALUE)],
    };
    let mut forms = vec![];
    if let Ok(text) = std::str::from_utf8(value) {
        let mut escaped = vec![];
        text.chars().for_each(|c| write_code_point(u32::from(c), &mut escaped));
        forms.extend([value.to_vec(), escaped]);
    }
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        // In a longer text the value begins at any of three places of a group, and characters that
        // it shares with its neighbours are not known.
        for before in 0..3 {
            let padded = [&[0; 2][..before], value].concat();
            let encoded = engine.encode(&padded).into_bytes();
            let (first, last) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
            forms.push(encoded[first..last].to_vec());
        }
    }
    let unreserved = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let percent = |lower: bool, keep: &dyn Fn(u8) -> bool| -> Vec<u8> {
        let encode = |b: &u8| match (keep(*b), lower) {
            (true, _) => (*b as char).to_string(),
            (false, true) => format!("%{b:02x}"),
            (false, false) => format!("%{b:02X}"),
        };
        value.iter().map(encode).collect::<String>().into_bytes()
    };
    // As of RFC 3986 and as of JavaScript, which keeps some more.
    let javascript = |b: u8| unreserved(b) || b"!*'()".contains(&b);
    for lower in [false, true] {
        forms.extend([percent(lower, &unreserved), percent(lower, &javascript)]);
    }
    let mut hex = String::new();
    super::canonical::push_hex(&mut hex, value);
    forms.push(hex.to_ascii_uppercase().into_bytes());
    forms.push(hex.into_bytes());
    forms
}

/// One way through a text; what is replaced goes to `out` together with what stood before it.
struct Walk<'a> {
    scan: Scanner<'a>,
    redactor: &'a Redactor,
    out: Vec<u8>,
    /// How much of the text is in `out`; 0: nothing was replaced yet.
    copied: usize,
}

impl Walk<'_> {
    fn replace(&mut self, start: usize, with: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend_from_slice(&self.scan.text[self.copied..start]);
        with(&mut self.out);
        self.copied = self.scan.at;
    }

    fn redact(&mut self, start: usize) {
        self.replace(start, |out| write_text(REDACTED.as_bytes(), out));
    }

    fn value(&mut self, depth: usize) -> Result<(), JsonProblem> {
        let start = self.scan.at;
        match self.scan.peek() {
            Some(b'"') => {
                let string = self.scan.string()?;
                self.check_string(start, string, depth);
            }
            Some(b'{' | b'[') if depth >= MAX_DEPTH => {
                self.skip()?;
                self.redact(start);
            }
            Some(b'{') => self.items(b'}', depth + 1)?,
            Some(b'[') => self.items(b']', depth + 1)?,
            _ => {
                self.scan.scalar()?;
                if self.redactor.finds(&self.scan.text[start..self.scan.at]) {
                    self.redact(start);
                }
            }
        }
        Ok(())
    }

    /// Members of an object or elements of an array.
    fn items(&mut self, close: u8, depth: usize) -> Result<(), JsonProblem> {
        self.scan.at += 1;
        self.scan.space();
        let mut more = self.scan.peek() != Some(close);
        while more {
            if close == b'}' {
                self.member(depth)?;
            } else {
                self.value(depth)?;
            }
            self.scan.space();
            more = self.scan.peek() == Some(b',');
            if more {
                self.scan.at += 1;
                self.scan.space();
            }
        }
        self.scan.expect(close)
    }

    fn member(&mut self, depth: usize) -> Result<(), JsonProblem> {
        let start = self.scan.at;
        let key = self.scan.string()?;
        let raw = &self.scan.text[key.start..key.end];
        let sounds = match key.escapes {
            Escapes::None => secret_key(raw),
            _ => secret_key(&unescaped(raw)),
        };
        self.check_string(start, key, MAX_DEPTH);
        self.scan.space();
        self.scan.expect(b':')?;
        self.scan.space();
        let (value, first) = (self.scan.at, self.scan.peek());
        let secret = match sounds {
            Sounds::Harmless => false,
            Sounds::SecretUnlessNumber => !first.is_some_and(|b| b == b'-' || b.is_ascii_digit()),
            Sounds::Secret => true,
        };
        if !secret || first == Some(b'n') {
            return self.value(depth);
        }
        self.skip()?;
        self.redact(value);
        Ok(())
    }

    fn check_string(&mut self, start: usize, string: Str, depth: usize) {
        let raw = &self.scan.text[string.start..string.end];
        let may_hold_json = depth < MAX_DEPTH
            && matches!(raw.trim_ascii_start().first(), Some(b'{' | b'[' | b'\\'));
        if self.redactor.sets.is_empty() && !may_hold_json {
            return;
        }
        let text = match string.escapes {
            Escapes::None => Cow::Borrowed(raw),
            _ => Cow::Owned(unescaped(raw)),
        };
        let mut changed = self.redactor.replaced(&text);
        let now = changed.as_deref().unwrap_or(&text);
        if may_hold_json
            && matches!(now.trim_ascii_start().first(), Some(b'{' | b'['))
            && let Ok(Some(inner)) = self.redactor.json_at(now, depth + 1)
        {
            changed = Some(inner);
        }
        if let Some(changed) = changed {
            self.replace(start, |out| write_text(&changed, out));
        }
    }

    /// Goes behind a value, however deep it nests, without looking at it.
    fn skip(&mut self) -> Result<(), JsonProblem> {
        let mut depth = 0usize;
        loop {
            match self.scan.peek() {
                Some(b'"') => self.scan.string().map(|_| ())?,
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.scan.at += 1;
                }
                Some(b'}' | b']') if depth > 0 => {
                    depth -= 1;
                    self.scan.at += 1;
                }
                Some(b',' | b':' | b' ' | b'\n' | b'\r' | b'\t') if depth > 0 => self.scan.at += 1,
                _ => self.scan.scalar()?,
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }
}

fn unescaped(mut raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    while let Some(at) = raw.iter().position(|b| *b == b'\\') {
        out.extend_from_slice(&raw[..at]);
        let length = Unescape::code_point(&raw[at..]).map_or(2, |(_, length)| length);
        let (escape, rest) = raw[at..].split_at(length);
        out.extend(Unescape::new(escape));
        raw = rest;
    }
    out.extend_from_slice(raw);
    out
}

/// Writes a JSON string; three bytes that stand for a lone surrogate become its escape again.
fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        match (byte, bytes.as_slice()) {
            (0xed, &[second @ 0xa0..=0xbf, third, ..]) => {
                let code = 0xd000 | (u32::from(second & 0x3f) << 6) | u32::from(third & 0x3f);
                write_code_point(code, out);
                bytes = bytes.as_slice()[2..].iter();
            }
            (b'"' | b'\\' | 0..=0x1f, _) => write_code_point(u32::from(byte), out),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value;

    const VALUE: &str = "tok-\u{e9}/+\"7\\x\n9";

    fn json(redactor: &Redactor, raw: &str) -> String {
        let out = redactor.json(raw).unwrap().into_owned();
        serde_json::from_str::<Value>(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
        out
    }

    #[rstest]
    #[case::password(r#"{"user":"a","password":"b"}"#, r#"{"user":"a","password":"[redacted]"}"#)]
    #[case::any_type(
        r#"{"apiKey":[1,{"a":2}],"secret":7,"token":true,"tokens":9}"#,
        r#"{"apiKey":"[redacted]","secret":"[redacted]","token":"[redacted]","tokens":9}"#
    )]
    #[case::tokens(r#"{"tokens":["a"]}"#, r#"{"tokens":"[redacted]"}"#)]
    #[case::null(r#"{"password":null}"#, r#"{"password":null}"#)]
    #[case::nested(
        r#"[{"a":[{"b":{"access_token" : "x" }}]}]"#,
        r#"[{"a":[{"b":{"access_token" : "[redacted]" }}]}]"#
    )]
    #[case::escaped_key(r#"{"pass\u0077ord":"x"}"#, r#"{"pass\u0077ord":"[redacted]"}"#)]
    #[case::json_in_a_string(
        r#"{"text":"{\"password\":\"x\",\"n\":1}"}"#,
        r#"{"text":"{\"password\":\"[redacted]\",\"n\":1}"}"#
    )]
    #[case::lone_surrogate(
        r#"{"text":"[{\"token\":1},\"\ud800\"]"}"#,
        r#"{"text":"[{\"token\":\"[redacted]\"},\"\ud800\"]"}"#
    )]
    #[case::nothing(r#" { "a" : [ 1.0 , "\/" ] } "#, r#" { "a" : [ 1.0 , "\/" ] } "#)]
    fn keys(#[case] raw: &str, #[case] wanted: &str) {
        assert_eq!(Redactor::default().json(raw).unwrap(), wanted);
    }

    #[test]
    fn known_values_in_every_writing() {
        let redactor = Redactor::new([VALUE, "12345678", "abc"]);
        let as_json = serde_json::to_string(VALUE).unwrap();
        let wide: String = VALUE.encode_utf16().map(|u| format!("\\u{u:04X}")).collect();
        let twice = serde_json::to_string(&format!("x {as_json} y")).unwrap();
        let percent: String = VALUE
            .bytes()
            .map(|b| {
                if b.is_ascii_alphanumeric() || b == b'-' {
                    (b as char).to_string()
                } else {
                    format!("%{b:02X}")
                }
            })
            .collect();
        let hex: String = VALUE.bytes().map(|b| format!("{b:02x}")).collect();
        let texts = [
            as_json.clone(),
            format!("\"{wide}\""),
            twice,
            format!("\"k={percent}&\""),
            format!("\"k={}&\"", percent.to_lowercase()),
            format!("\"{hex}\""),
            "12345678".into(),
            "-123456789".into(),
        ];
        for text in texts {
            for whole in [format!("[{text}]"), format!("{{\"a\":{{\"b\":[0,{text}]}}}}")] {
                let out = json(&redactor, &whole);
                assert!(out.contains(REDACTED), "{out}");
                assert!(
                    !out.contains("345") && !out.contains("tok-") && !out.contains(&hex),
                    "{out}"
                );
            }
        }
        let out = json(&redactor, &format!("{{{as_json}:1,\"abc\":\"abc\"}}"));
        assert_eq!(out, r#"{"[redacted]":1,"abc":"abc"}"#);
    }

    #[test]
    fn known_values_inside_of_longer_base64() {
        let redactor = Redactor::new(["correct horse battery"]);
        for before in ["", "a", "ab", "abc", "user:"] {
            for after in ["", "x", "xy", "xyz"] {
                let text = STANDARD_NO_PAD.encode(format!("{before}correct horse battery{after}"));
                let out = redactor.text(&text).into_owned();
                assert!(out.contains(REDACTED), "{before} {after}");
                let left = out.replace(REDACTED, "").len();
                assert!(left <= (before.len() + after.len()) * 2 + 4, "{out}");
            }
        }
    }

    #[test]
    fn two_beside_each_other_know_what_both_know() {
        let both = Redactor::new(["first-one"]).beside(&Redactor::new(["second-one"]));
        assert_eq!(both.text("a first-one b second-one c"), "a [redacted] b [redacted] c");
        let out = json(&both, r#"{"first-one":["x second-one"],"n":"second-onfirst-one"}"#);
        assert_eq!(out, r#"{"[redacted]":["x [redacted]"],"n":"second-on[redacted]"}"#);
        let three = Redactor::new(["third-one"]).and(&both);
        assert_eq!(three.text("first-one second-one third-one").matches(REDACTED).count(), 3);
        assert!(Redactor::default().beside(&Redactor::default()).sets.is_empty());
    }

    #[test]
    fn white_space_around_a_value_does_not_matter() {
        let redactor = Redactor::new([" s3cret-one\n"]);
        assert_eq!(redactor.text("Bearer s3cret-one."), "Bearer [redacted].");
        assert!(matches!(redactor.text("nothing"), Cow::Borrowed("nothing")));
    }

    #[test]
    fn values_that_are_not_text_are_found_encoded() {
        let value = [0xff, 0xfe, 1, 2, 3, 0xfd, 9];
        let redactor = Redactor::new([value]);
        assert_eq!(redactor.text(&STANDARD_NO_PAD.encode(value)).find(REDACTED), Some(0));
    }

    #[test]
    fn depth_redacts_rather_than_passes() {
        let nested =
            |n: usize| format!("{}{{\"password\":\"s3cret\"}}{}", "[".repeat(n), "]".repeat(n));
        for depth in [0, 1, 40, MAX_DEPTH - 2, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 5000] {
            let out = Redactor::default().json(&nested(depth)).unwrap().into_owned();
            assert!(out.contains(REDACTED) && !out.contains("s3cret"), "{depth}");
        }
        let broken = format!("{}1", "[".repeat(5000));
        assert!(Redactor::default().json(&broken).is_err());
    }

    #[test]
    fn a_very_long_value_is_found_by_its_beginning() {
        let value = "é".repeat(600_000);
        let out = Redactor::new([&value]).text(&value).into_owned();
        assert_eq!(out.find(REDACTED), Some(0));
        assert!(out.len() < value.len());
    }

    #[test]
    fn it_does_not_show_what_it_looks_for() {
        assert!(!format!("{:?}", Redactor::new(["s3cret-value"])).contains("s3cret"));
    }

    proptest! {
        #[test]
        fn values_never_pass_and_the_rest_stays(before in "[^t]{0,9}", after in "[^t]{0,9}", n in any::<i32>()) {
            let redactor = Redactor::new([VALUE]);
            let raw = serde_json::json!([{"a": format!("{before}{VALUE}{after}"), "n": n, before.clone(): [after]}]).to_string();
            let wanted = serde_json::json!([{"a": format!("{before}{REDACTED}{after}"), "n": n, before: [after]}]);
            prop_assert_eq!(serde_json::from_str::<Value>(&redactor.json(&raw).unwrap()).unwrap(), wanted);
        }

        #[test]
        fn what_comes_out_is_json(text in "[\\[\\]{}:,\"\\\\a0-9ue. \\-]{0,40}") {
            if let Ok(out) = Redactor::new(["a0ue", "000a"]).json(&text) {
                let inside = serde_json::from_str::<serde::de::IgnoredAny>(&out).is_ok();
                prop_assert!(inside);
            }
        }
    }
}
