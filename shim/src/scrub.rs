//! Makes what a server wrote fit for a message that people read: no control characters, no escape
//! sequences, no secret that this process knows, not longer than allowed.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

const HIDDEN: &str = "[redacted]";
/// Shorter values are too common to be hidden by replacement.
const SHORTEST: usize = 4;
const TELLING: [&str; 8] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY", "AUTH", "DSN"];

/// Knows the secret values of the child's environment.
pub struct Scrubber {
    values: Vec<String>,
}

impl Scrubber {
    /// `declared`: names of variables that hold secrets; names that sound like it count as well.
    pub fn new(env: impl IntoIterator<Item = (String, String)>, declared: &[String]) -> Self {
        let mut values: Vec<String> = env
            .into_iter()
            .filter(|(name, _)| {
                let upper = name.to_ascii_uppercase();
                declared.contains(name) || TELLING.iter().any(|word| upper.contains(word))
            })
            .flat_map(|(_, value)| {
                let lines = value.lines().map(readable);
                lines.chain(encoded(value.trim().as_bytes())).collect::<Vec<_>>()
            })
            .filter(|value| value.len() >= SHORTEST)
            .collect();
        values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        values.dedup();
        Self { values }
    }

    /// At most `limit` bytes of readable text. `cut`: more bytes followed that are not here; then
    /// what may be the beginning of a secret goes from the end.
    pub fn clean(&self, bytes: &[u8], cut: bool, limit: usize) -> String {
        let mut text = readable(&String::from_utf8_lossy(bytes));
        for value in &self.values {
            if text.contains(value) {
                text = text.replace(value, HIDDEN);
            }
        }
        if cut {
            // Half a character at the end.
            text.truncate(text.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
            let begun = self.values.iter().map(|value| begun(&text, value)).max();
            text.truncate(text.len() - begun.unwrap_or_default());
        }
        text.truncate(text.floor_char_boundary(limit));
        text
    }

    /// Hides what goes on from one cleaned line to the next.
    pub fn hide_across(&self, lines: &[String]) -> Vec<String> {
        let whole = lines.concat();
        let of = |value: &String| {
            let found = whole.match_indices(value.as_str());
            found.map(|(at, found)| (at, at + found.len())).collect::<Vec<_>>()
        };
        let mut hidden: Vec<_> = self.values.iter().flat_map(of).collect();
        hidden.sort_unstable();
        let mut start = 0;
        let shown = |line: &String| {
            let (mut at, end) = (start, start + line.len());
            start = end;
            let mut out = String::new();
            for (from, to) in hidden.iter().filter(|(from, _)| *from < end) {
                if *to > at && at < end {
                    out.push_str(&whole[at..(*from).max(at)]);
                    out.push_str(HIDDEN);
                    at = (*to).min(end);
                }
            }
            out + &whole[at..end]
        };
        lines.iter().map(shown).collect()
    }
}

/// How a value is written where it is not written plainly: escaped in JSON, as base64, also inside
/// of a longer text in base64, as hex, and as in a URL. The gateway's redaction knows the same.
fn encoded(value: &[u8]) -> Vec<String> {
    if value.len() < SHORTEST {
        return vec![];
    }
    let mut forms = vec![];
    forms.extend(std::str::from_utf8(value).ok().map(json_escaped));
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        // It begins at any of three places of a group; what it shares with neighbours is not known.
        for before in 0..3 {
            let padded = [&[0; 2][..before], value].concat();
            let (first, last) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
            forms.push(engine.encode(&padded)[first..last].to_owned());
        }
    }
    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    forms.extend([hex.to_ascii_uppercase(), hex]);
    // As of RFC 3986, and as of JavaScript, which keeps some more.
    for kept in ["-._~", "-._~!*'()"] {
        for lower in [false, true] {
            let percent = |byte: &u8| match (*byte, lower) {
                (b, _) if b.is_ascii_alphanumeric() || kept.as_bytes().contains(&b) => {
                    char::from(b).to_string()
                }
                (b, true) => format!("%{b:02x}"),
                (b, false) => format!("%{b:02X}"),
            };
            forms.push(value.iter().map(percent).collect());
        }
    }
    forms
}

/// As it stands between the quotes of a JSON string.
fn json_escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// How many bytes at the end of the text are the beginning of the value.
fn begun(text: &str, value: &str) -> usize {
    let ends = value.char_indices().map(|(end, _)| end).rev();
    ends.into_iter().find(|end| text.ends_with(&value[..*end])).unwrap_or_default()
}

fn readable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' if chars.peek() == Some(&'[') => {
                chars.next();
                while chars.next_if(|c| !('@'..='~').contains(c)).is_some() {}
                chars.next();
            }
            '\t' => out.push(' '),
            c if c.is_control() || is_invisible(c) => {}
            c => out.push(c),
        }
    }
    out.trim().to_owned()
}

/// Characters that turn or hide text on a terminal.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn scrubber() -> Scrubber {
        let env =
            [("API_TOKEN", "hunter2hunter2"), ("PIN", "98765"), ("LANG", "C.UTF-8"), ("KEY", "ab")];
        Scrubber::new(env.map(|(n, v)| (n.to_owned(), v.to_owned())), &["PIN".to_owned()])
    }

    #[rstest]
    #[case::plain(b"Server running", "Server running")]
    #[case::colours(b"\x1b[31mred\x1b[0m", "red")]
    #[case::control(b"a\x07b\x00c\rd", "abcd")]
    #[case::tab(b"a\tb", "a b")]
    #[case::invalid(b"a\xC3\x28", "a\u{fffd}(")]
    #[case::by_name(b"bad token hunter2hunter2!", "bad token [redacted]!")]
    #[case::declared(b"pin 98765", "pin [redacted]")]
    #[case::not_secret(b"C.UTF-8 ab", "C.UTF-8 ab")]
    #[case::bidi("a\u{202e}b".as_bytes(), "ab")]
    fn cleans(#[case] input: &[u8], #[case] expected: &str) {
        assert_eq!(scrubber().clean(input, false, 200), expected);
    }

    #[test]
    fn base64_is_hidden_wherever_the_value_stands_in_it() {
        let value = "hunter2 hunter/2>?\u{e4}";
        let scrubber = Scrubber::new([("TOKEN".to_owned(), value.to_owned())], &[]);
        for (before, after) in [("", ""), ("a", "b"), ("ab", "cd"), ("user:", "\n")] {
            for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
                let text = format!("basic {}=", engine.encode(format!("{before}{value}{after}")));
                let clean = scrubber.clean(text.as_bytes(), false, 200);
                assert!(clean.contains(HIDDEN) && clean.len() < 32, "{text}: {clean}");
            }
        }
    }

    #[rstest]
    #[case::hex("a68756e746572322fb", "a[redacted]b")]
    #[case::hex_upper("0x68756E746572322F", "0x[redacted]")]
    #[case::percent("?k=hunter2%2F&x", "?k=[redacted]&x")]
    #[case::percent_lower("?k=hunter2%2f&x", "?k=[redacted]&x")]
    fn hex_and_url_encoding_are_hidden(#[case] text: &str, #[case] expected: &str) {
        let scrubber = Scrubber::new([("TOKEN".to_owned(), "hunter2/".to_owned())], &[]);
        assert_eq!(scrubber.clean(text.as_bytes(), false, 200), expected);
    }

    #[rstest]
    #[case("pass\"wo\\rd", r#"{"m":"it is pass\"wo\\rd."}"#)]
    #[case("two\nlines", r#"{"m":"it is two\nlines."}"#)]
    #[case("bell\u{7}rings", r#"{"m":"it is bell\u0007rings."}"#)]
    fn what_is_escaped_in_json_is_hidden(#[case] value: &str, #[case] line: &str) {
        let scrubber = Scrubber::new([("TOKEN".to_owned(), value.to_owned())], &[]);
        let clean = scrubber.clean(line.as_bytes(), false, 200);
        assert_eq!(clean, r#"{"m":"it is [redacted]."}"#);
    }

    #[rstest]
    #[case(&["a hunter2h", "unter2 b"], &["a [redacted]", "[redacted] b"])]
    #[case(&["hun", "ter2hun", "ter2"], &["[redacted]", "[redacted]", "[redacted]"])]
    #[case(&["98765", "9876", "5"], &["[redacted]", "[redacted]", "[redacted]"])]
    #[case(&["hunter2", "and more"], &["hunter2", "and more"])]
    #[case(&["aHVudGVyMm", "h1bnRlcjI="], &["[redacted]", "[redacted]I="])]
    fn what_is_broken_over_lines_is_hidden(#[case] lines: &[&str], #[case] expected: &[&str]) {
        let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(scrubber().hide_across(&lines), expected);
    }

    #[test]
    fn the_limit_counts_bytes_and_keeps_characters_whole() {
        assert_eq!(scrubber().clean("äää".as_bytes(), false, 3), "ä");
    }

    #[rstest]
    #[case::half(b"token hunter2hun", "token ")]
    #[case::one_byte(b"token h", "token ")]
    #[case::after_a_whole_one(b"hunter2hunter2 hunter2hunter", "[redacted] ")]
    #[case::half_a_character(b"hunter2\xC3", "")]
    #[case::half_an_escape(b"hunter2\x1b[3", "")]
    #[case::nothing_begun(b"token", "token")]
    fn a_cut_text_does_not_end_in_a_part_of_a_secret(#[case] input: &[u8], #[case] expected: &str) {
        assert_eq!(scrubber().clean(input, true, 200), expected);
    }

    #[test]
    fn a_secret_with_what_is_never_shown_is_found() {
        let env = [("TOKEN".to_owned(), "open\tses\u{200b}ame".to_owned())];
        let found =
            Scrubber::new(env, &[]).clean("it is open\tses\u{200b}ame".as_bytes(), false, 99);
        assert_eq!(found, "it is [redacted]");
    }
}
