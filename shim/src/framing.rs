//! Turns the child's stdout into messages: splits at 0x0A, then judges each line for itself.
//!
//! A message is one JSON object with `jsonrpc`, in valid UTF-8. Everything else is noise and ends
//! with its line. Memory stays below the limit for one message, whatever the child writes.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::scan::{IdScanner, Scanned};

/// Bytes of a line that are looked at before it is taken for noise and skipped.
pub const PROBE: usize = 512;
/// Bytes by which a line may exceed the limit before it is trimmed: BOM, blanks, CR.
const TRIM: usize = 16;

/// What one line was.
pub enum Line<'a> {
    /// A JSON-RPC message, trimmed of BOM and blanks.
    Message {
        /// Its bytes as the child wrote them.
        text: &'a str,
        /// Its id when it is an answer.
        answers: Option<&'a RawValue>,
    },
    /// Anything else; its first bytes.
    Noise(&'a [u8]),
    /// A message over the limit, skipped.
    TooLarge(Scanned),
}

enum Mode {
    Collect,
    SkipNoise,
    SkipMessage(IdScanner),
}

/// The splitter; feed it what was read.
pub struct Framer {
    limit: usize,
    pending: Vec<u8>,
    mode: Mode,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[allow(dead_code, reason = "its presence is the check")]
    jsonrpc: IgnoredAny,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    method: Option<IgnoredAny>,
}

impl Framer {
    /// `limit`: the largest message, in bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, pending: Vec::new(), mode: Mode::Collect }
    }

    /// Bytes of an unfinished line that are held.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.pending.capacity()
    }

    /// Takes what was read and hands each finished line to `sink`.
    pub fn feed(&mut self, mut chunk: &[u8], mut sink: impl FnMut(Line<'_>)) {
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&chunk[..end], &chunk[end + 1..]);
            chunk = rest;
            if matches!(self.mode, Mode::Collect) && self.pending.is_empty() {
                sink(judge(line, self.limit));
            } else {
                self.take(line);
                self.end_line(&mut sink);
            }
        }
        self.take(chunk);
    }

    /// The stream ended; a last line without 0x0A counts.
    pub fn finish(&mut self, mut sink: impl FnMut(Line<'_>)) {
        if !self.pending.is_empty() || !matches!(self.mode, Mode::Collect) {
            self.end_line(&mut sink);
        }
    }

    fn take(&mut self, part: &[u8]) {
        match &mut self.mode {
            Mode::SkipNoise => {}
            Mode::SkipMessage(scanner) => scanner.feed(part),
            Mode::Collect => {
                self.pending.extend_from_slice(part);
                if self.pending.len() < PROBE {
                    return;
                }
                if trim(&self.pending).first() != Some(&b'{') {
                    self.pending.truncate(PROBE);
                    self.pending.shrink_to_fit();
                    self.mode = Mode::SkipNoise;
                } else if self.pending.len() > self.limit.saturating_add(TRIM) {
                    let mut scanner = IdScanner::new();
                    scanner.feed(trim(&self.pending));
                    self.pending = Vec::new();
                    self.mode = Mode::SkipMessage(scanner);
                }
            }
        }
    }

    fn end_line(&mut self, sink: &mut impl FnMut(Line<'_>)) {
        match std::mem::replace(&mut self.mode, Mode::Collect) {
            Mode::Collect => sink(judge(&self.pending, self.limit)),
            Mode::SkipNoise => sink(Line::Noise(&self.pending)),
            Mode::SkipMessage(scanner) => sink(Line::TooLarge(scanner.finish())),
        }
        self.pending.clear();
        if self.pending.capacity() > 256 << 10 {
            self.pending = Vec::new();
        }
    }
}

fn trim(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii();
    line.strip_prefix(b"\xEF\xBB\xBF").map_or(line, <[u8]>::trim_ascii_start)
}

fn judge(line: &[u8], limit: usize) -> Line<'_> {
    let noise = || Line::Noise(&line[..line.len().min(PROBE)]);
    let trimmed = trim(line);
    if trimmed.first() != Some(&b'{') {
        return noise();
    }
    if trimmed.len() > limit {
        let mut scanner = IdScanner::new();
        scanner.feed(trimmed);
        return Line::TooLarge(scanner.finish());
    }
    let Ok(text) = std::str::from_utf8(trimmed) else { return noise() };
    match serde_json::from_str::<Envelope<'_>>(text) {
        Ok(envelope) => {
            Line::Message { text, answers: envelope.id.filter(|_| envelope.method.is_none()) }
        }
        Err(_) => noise(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const A: &str = r#"{"jsonrpc":"2.0","id":"3-1","result":{}}"#;
    const B: &str = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;

    /// Lines as text: `M:` message, `N` noise, `L:` too large.
    fn collect(limit: usize, chunks: &[&[u8]]) -> Vec<String> {
        let mut out = Vec::new();
        let mut framer = Framer::new(limit);
        let mut sink = |line: Line<'_>| {
            out.push(match line {
                Line::Message { text, .. } => format!("M:{text}"),
                Line::Noise(_) => "N".into(),
                Line::TooLarge(found) => format!("L:{}", found.id.unwrap_or_default()),
            });
        };
        for chunk in chunks {
            framer.feed(chunk, &mut sink);
        }
        framer.finish(&mut sink);
        out
    }

    #[rstest]
    #[case::plain(format!("{A}\n").into_bytes(), &["M:A"])]
    #[case::no_last_newline(A.into(), &["M:A"])]
    #[case::half_a_message_at_the_end(A.as_bytes()[..20].to_vec(), &["N"])]
    #[case::crlf(format!("{A}\r\n{B}\r\n").into_bytes(), &["M:A", "M:B"])]
    #[case::cr_before(format!("\r{A}\r\r\n").into_bytes(), &["M:A"])]
    #[case::bom(format!("\u{feff}{A}\n").into_bytes(), &["M:A"])]
    #[case::bom_crlf(format!("\u{feff}{A}\r\n\u{feff}{B}\r\n").into_bytes(), &["M:A", "M:B"])]
    #[case::blank(format!("\n\n \t\n{A}\n\r\n").into_bytes(), &["N", "N", "N", "M:A", "N"])]
    #[case::banner(format!("Server running on stdio\n{A}\n").into_bytes(), &["N", "M:A"])]
    #[case::invalid_utf8([b"\xC3\x28\n", A.as_bytes(), b"\n"].concat(), &["N", "M:A"])]
    #[case::invalid_utf8_inside(
        [br#"{"jsonrpc":"2.0","id":1,"result":""#, &b"\xC3\x28"[..], b"\"}\n", A.as_bytes()].concat(),
        &["N", "M:A"]
    )]
    #[case::json_but_no_rpc(format!("{{\"level\":\"info\"}}\n{A}\n").into_bytes(), &["N", "M:A"])]
    #[case::a_number(format!("42\n{A}\n").into_bytes(), &["N", "M:A"])]
    #[case::a_batch(format!("[{A}]\n{A}\n").into_bytes(), &["N", "M:A"])]
    #[case::two_on_one_line(format!("{A}{A}\n{B}\n").into_bytes(), &["N", "M:B"])]
    #[case::message_after_text(format!("log: {A}\n{B}\n").into_bytes(), &["N", "M:B"])]
    #[case::text_after_message(format!("{A} done\n{B}\n").into_bytes(), &["N", "M:B"])]
    #[case::repeated_key(
        format!("{}\n{B}\n", r#"{"jsonrpc":"2.0","id":1,"id":2,"result":0}"#).into_bytes(),
        &["N", "M:B"]
    )]
    #[case::nul([b"\0\0\0\n", A.as_bytes()].concat(), &["N", "M:A"])]
    #[case::long_noise([&[b'x'; 100_000][..], b"\n", A.as_bytes()].concat(), &["N", "M:A"])]
    #[case::line_separators_in_strings(
        "{\"jsonrpc\":\"2.0\",\"x\":\"a\u{2028}\u{85}b\"}\n".into(),
        &["M:{\"jsonrpc\":\"2.0\",\"x\":\"a\u{2028}\u{85}b\"}"]
    )]
    fn lines(#[case] input: Vec<u8>, #[case] expected: &[&str]) {
        let expected: Vec<String> = expected
            .iter()
            .map(|line| match *line {
                "M:A" => format!("M:{A}"),
                "M:B" => format!("M:{B}"),
                other => other.into(),
            })
            .collect();
        assert_eq!(collect(4096, &[&input]), expected, "in one piece");
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(collect(4096, &bytes), expected, "byte by byte");
    }

    #[test]
    fn only_answers_have_an_id_to_answer() {
        let mut seen = Vec::new();
        let text = format!(
            "{A}\n{B}\n{}\n{}\n",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, r#"{"jsonrpc":"2.0","id":7,"error":{}}"#
        );
        Framer::new(4096).feed(text.as_bytes(), |line| {
            if let Line::Message { answers, .. } = line {
                seen.push(answers.map(|id| id.get().to_owned()));
            }
        });
        assert_eq!(seen, [Some("\"3-1\"".to_owned()), None, None, Some("7".to_owned())]);
    }

    #[test]
    fn a_message_over_the_limit_names_its_id_and_the_next_one_passes() {
        let big =
            format!("{{\"jsonrpc\":\"2.0\",\"result\":\"{}\",\"id\":\"3-9\"}}", "x".repeat(5000));
        let input = format!("{big}\n{A}\n");
        let expected = ["L:\"3-9\"".to_owned(), format!("M:{A}")];
        assert_eq!(collect(1000, &[input.as_bytes()]), expected);
        let pieces: Vec<&[u8]> = input.as_bytes().chunks(7).collect();
        assert_eq!(collect(1000, &pieces), expected);
    }

    #[test]
    fn exactly_the_limit_passes_and_one_more_does_not() {
        let line = format!("{A}\r\n");
        assert_eq!(collect(A.len(), &[line.as_bytes()]), [format!("M:{A}")]);
        assert_eq!(collect(A.len() - 1, &[line.as_bytes()]), ["L:\"3-1\""]);
    }

    #[test]
    fn endless_lines_hold_no_more_than_the_limit() {
        for first in [b'{', b'x', b' '] {
            let mut framer = Framer::new(10_000);
            framer.feed(&[first], |_| {});
            for _ in 0..1000 {
                framer.feed(&[b'y'; 4096], |_| {});
                assert!(framer.held() <= 2 * 20_000, "held {} bytes", framer.held());
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_never_break_what_follows(
            junk: Vec<u8>, cut in 1usize..50
        ) {
            let mut input = junk;
            input.extend_from_slice(b"\n");
            input.extend_from_slice(A.as_bytes());
            input.push(b'\n');
            let pieces: Vec<&[u8]> = input.chunks(cut).collect();
            let lines = collect(2000, &pieces);
            let expected = format!("M:{A}");
            prop_assert_eq!(lines.last().map(String::as_str), Some(&*expected));
            prop_assert_eq!(lines, collect(2000, &[&input]));
        }
    }
}
