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
            .flat_map(|(_, value)| {
                value.lines().map(str::trim).map(str::to_owned).collect::<Vec<_>>()
            })
            .filter(|value| value.len() >= SHORTEST)
            .collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values }
    }

    /// At most `limit` bytes of readable text.
    pub fn clean(&self, bytes: &[u8], limit: usize) -> String {
        let mut text = readable(&String::from_utf8_lossy(bytes));
        for value in &self.values {
            if text.contains(value) {
                text = text.replace(value, HIDDEN);
            }
        }
        text.truncate(text.floor_char_boundary(limit));
        text
    }
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
        assert_eq!(scrubber().clean(input, 200), expected);
    }

    #[test]
    fn the_limit_counts_bytes_and_keeps_characters_whole() {
        assert_eq!(scrubber().clean("äää".as_bytes(), 3), "ä");
    }
}
