//! Texts for a model: of one line, bounded, and never cut inside a character. Pure.

/// Without control characters, so that text from outside cannot look like lines of ours.
pub fn one_line(text: &str) -> String {
    let spaced = text.chars().map(|c| if c.is_control() || is_break(c) { ' ' } else { c });
    spaced.collect::<String>().split(' ').filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Line and paragraph separators, and marks that turn the direction of text.
fn is_break(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text up to `limit` bytes, with dots where it was cut.
pub fn shown(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(limit.saturating_sub('…'.len_utf8()))])
}

/// Both: one line of at most `limit` bytes.
pub fn line(text: &str, limit: usize) -> String {
    shown(&one_line(text), limit)
}

/// Whether nothing was left out, so that nothing is said of it.
pub fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_lines_and_cuts_stay_text() {
        assert_eq!(one_line("a\n\r\n b\u{2028}c\u{202e}\td"), "a b c d");
        for limit in 3..20 {
            let cut = line("€€€€€€€€€€", limit);
            assert!(cut.len() <= limit && cut.ends_with('…'), "{limit}: {cut}");
        }
        assert_eq!(line("short", 5), "short");
    }
}
