//! A scanner over JSON text: finds where values end and checks the grammar on the way, with no
//! copy and no allocation.
//!
//! Used on the path of every call. It works on bytes, so the text may be anything; what it accepts
//! is JSON but for the validity of UTF-8 inside strings, which whoever has a `str` knows already.

/// The deepest nesting of arrays and objects that is read.
pub const MAX_DEPTH: usize = 128;

/// Why a text is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonProblem {
    /// It breaks the grammar of JSON, or something stands after the value.
    #[error("not JSON at byte {at}")]
    NotJson {
        /// Offset of the first byte that does not fit.
        at: usize,
    },
    /// An object has the same key twice, `"a"` and `"\u0061"` being the same.
    #[error("the key {key:?} stands twice in one object")]
    RepeatedKey {
        /// The key, unescaped, at most 64 characters of it.
        key: String,
    },
    /// Arrays and objects nest deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// The text has 4 GiB or more.
    #[error("longer than 4 GiB")]
    TooLong,
}

/// What the escapes of a string need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Escapes {
    /// There are none: the raw bytes are the text.
    None,
    /// All of them are the short ones that the canonical form uses as well.
    Short,
    /// `\/` or `\u…`: the canonical form may write them otherwise.
    Other,
}

/// A string: its bytes between the quotes, still escaped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Str {
    pub start: usize,
    pub end: usize,
    pub escapes: Escapes,
}

/// A place in a text.
#[derive(Clone, Copy)]
pub(super) struct Scanner<'a> {
    pub text: &'a [u8],
    pub at: usize,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Marks, from the lowest byte on, the first byte of eight that ends a plain run of a string:
/// a quote, a backslash or a control character.
const fn special(x: u64) -> u64 {
    let (quote, back) = (x ^ (ONES * 0x22), x ^ (ONES * 0x5c));
    let zero = (quote.wrapping_sub(ONES) & !quote) | (back.wrapping_sub(ONES) & !back);
    (zero | (x.wrapping_sub(ONES * 0x20) & !x)) & HIGH
}

impl<'a> Scanner<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    pub fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    pub fn bad<T>(&self) -> Result<T, JsonProblem> {
        Err(JsonProblem::NotJson { at: self.at })
    }

    /// Skips white space; whether there was any.
    pub fn space(&mut self) -> bool {
        let start = self.at;
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        self.at != start
    }

    pub fn expect(&mut self, byte: u8) -> Result<(), JsonProblem> {
        if self.peek() != Some(byte) {
            return self.bad();
        }
        self.at += 1;
        Ok(())
    }

    /// Goes to the next byte that is not a plain part of a string.
    fn run(&mut self) {
        while let Some(chunk) = self.text.get(self.at..self.at + 8) {
            let word = u64::from_le_bytes(chunk.try_into().expect("the slice has eight bytes"));
            let marks = special(word);
            if marks != 0 {
                self.at += (marks.trailing_zeros() / 8) as usize;
                return;
            }
            self.at += 8;
        }
        while self.peek().is_some_and(|b| b >= 0x20 && b != b'"' && b != b'\\') {
            self.at += 1;
        }
    }

    /// Reads a string, from its opening quote to behind the closing one.
    pub fn string(&mut self) -> Result<Str, JsonProblem> {
        self.expect(b'"')?;
        let (start, mut escapes) = (self.at, Escapes::None);
        loop {
            self.run();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Str { start, end: self.at - 1, escapes });
                }
                Some(b'\\') => {
                    self.at += 1;
                    escapes = escapes.max(self.escape()?);
                }
                _ => return self.bad(),
            }
        }
    }

    fn escape(&mut self) -> Result<Escapes, JsonProblem> {
        let kind = match self.peek() {
            Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => Escapes::Short,
            Some(b'/') => Escapes::Other,
            Some(b'u') => {
                for _ in 0..4 {
                    self.at += 1;
                    if !self.peek().is_some_and(|b| b.is_ascii_hexdigit()) {
                        return self.bad();
                    }
                }
                Escapes::Other
            }
            _ => return self.bad(),
        };
        self.at += 1;
        Ok(kind)
    }

    /// Reads a number, `true`, `false` or `null`.
    pub fn scalar(&mut self) -> Result<(), JsonProblem> {
        match self.peek() {
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonProblem> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            self.bad()
        }
    }

    fn digits(&mut self) -> Result<(), JsonProblem> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { self.bad() } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), JsonProblem> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }
}

/// The bytes that an escaped string stands for, one by one. A lone surrogate comes as the three
/// bytes that generalised UTF-8 has for it, so that it equals nothing but itself.
#[derive(Clone)]
pub(super) struct Unescape<'a> {
    raw: &'a [u8],
    pending: [u8; 4],
    waiting: usize,
}

impl<'a> Unescape<'a> {
    /// `raw` is the inside of a string that [`Scanner::string`] accepted.
    pub fn new(raw: &'a [u8]) -> Self {
        Self { raw, pending: [0; 4], waiting: 0 }
    }

    fn unit(raw: &[u8]) -> Option<u32> {
        let hex = raw.strip_prefix(b"\\u")?.get(..4)?;
        hex.iter().try_fold(0, |unit, digit| Some(unit * 16 + (*digit as char).to_digit(16)?))
    }

    /// The code point of the `\u` escape that `raw` begins with, a surrogate when it stands alone,
    /// and the length of what was read.
    pub fn code_point(raw: &[u8]) -> Option<(u32, usize)> {
        let first = Self::unit(raw)?;
        if let (0xd800..=0xdbff, Some(second @ 0xdc00..=0xdfff)) = (first, Self::unit(&raw[6..])) {
            return Some((0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), 12));
        }
        Some((first, 6))
    }

    /// The byte that a short escape stands for.
    pub fn short(letter: u8) -> u8 {
        match letter {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            other => other,
        }
    }

    fn queue(&mut self, code: u32) -> u8 {
        let low = |shift: u32| 0x80 | ((code >> shift) & 0x3f) as u8;
        let bytes: &[u8] = match code {
            0..=0x7f => &[code as u8],
            0x80..=0x7ff => &[0xc0 | (code >> 6) as u8, low(0)],
            0x800..=0xffff => &[0xe0 | (code >> 12) as u8, low(6), low(0)],
            _ => &[0xf0 | (code >> 18) as u8, low(12), low(6), low(0)],
        };
        // Kept backwards, so that the next one is the last.
        self.waiting = bytes.len() - 1;
        for (slot, byte) in self.pending.iter_mut().zip(bytes[1..].iter().rev()) {
            *slot = *byte;
        }
        bytes[0]
    }
}

impl Iterator for Unescape<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if self.waiting > 0 {
            self.waiting -= 1;
            return Some(self.pending[self.waiting]);
        }
        let (&byte, rest) = self.raw.split_first()?;
        if byte != b'\\' {
            self.raw = rest;
            return Some(byte);
        }
        if let Some((code, length)) = Self::code_point(self.raw) {
            self.raw = &self.raw[length..];
            return Some(self.queue(code));
        }
        let (&letter, rest) = rest.split_first()?;
        self.raw = rest;
        Some(Self::short(letter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Str, JsonProblem> {
        Scanner::new(text.as_bytes()).string()
    }

    #[test]
    fn a_string_ends_at_its_quote_wherever_that_stands() {
        for length in 0..40 {
            let text = format!("\"{}\" \"", "é".repeat(length));
            assert_eq!(read(&text).unwrap().end, 1 + 2 * length);
            let escaped = format!("\"{}\\\"\"", "x".repeat(length));
            assert_eq!(read(&escaped).unwrap().end, length + 3);
            let control = format!("\"{}\u{1f}\"", "x".repeat(length));
            assert_eq!(read(&control).unwrap_err(), JsonProblem::NotJson { at: length + 1 });
        }
    }

    #[test]
    fn escapes_are_told_apart() {
        assert_eq!(read(r#""a""#).unwrap().escapes, Escapes::None);
        assert_eq!(read(r#""\n\"""#).unwrap().escapes, Escapes::Short);
        assert_eq!(read(r#""\n\/""#).unwrap().escapes, Escapes::Other);
        assert_eq!(read(r#""\u0061\n""#).unwrap().escapes, Escapes::Other);
        for wrong in [r#""\x""#, r#""\u12g4""#, r#""\u12"#, r#""\"#, r#"""#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lone_surrogates_stay_apart() {
        let bytes = |s: &str| Unescape::new(s.as_bytes()).collect::<Vec<_>>();
        assert_eq!(bytes(r"\ud83d\ude00"), "😀".as_bytes());
        assert_eq!(bytes(r"\uD83D"), [0xed, 0xa0, 0xbd]);
        assert_eq!(bytes(r"\ude00\ud83d"), [0xed, 0xb8, 0x80, 0xed, 0xa0, 0xbd]);
        assert_eq!(bytes(r"\ud83d\u0041"), [0xed, 0xa0, 0xbd, b'A']);
    }

    proptest! {
        #[test]
        fn unescaping_agrees_with_serde_json(text in "\\PC*|[\\x00-\\u{10ffff}]*") {
            let raw = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(Unescape::new(&raw.as_bytes()[1..raw.len() - 1]).collect::<Vec<_>>(), text.as_bytes());
            let wide: String = text.encode_utf16().map(|u| format!("\\u{u:04X}")).collect();
            prop_assert_eq!(Unescape::new(wide.as_bytes()).collect::<Vec<_>>(), text.as_bytes());
        }
    }
}
