//! Makes what a server wrote fit for a message that people read: no control characters, no escape
//! sequences, no secret that this process knows, not longer than allowed.

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
            .flat_map(|(_, value)| value.lines().map(readable).collect::<Vec<_>>())
            .filter(|value| value.len() >= SHORTEST)
            .collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
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
