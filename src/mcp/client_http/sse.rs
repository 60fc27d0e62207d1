//! Server-sent events from pieces of bytes: lines that end in LF, CRLF or CR wherever the pieces
//! are cut, events of bounded size. An event that came in one piece and one line is not copied.

use bytes::{Bytes, BytesMut};

/// What the stream said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// An event with its data; the lines are joined by LF.
    Data {
        /// The type; empty stands for `message`.
        kind: String,
        /// The data.
        data: Bytes,
    },
    /// An event over the limit, skipped.
    TooLarge,
}

impl Event {
    /// The data, if it is a message that is not empty.
    pub(super) fn message(&self) -> Option<&Bytes> {
        match self {
            Self::Data { kind, data } if kind.is_empty() || kind == "message" => {
                (!data.is_empty()).then_some(data)
            }
            _ => None,
        }
    }
}

/// The reader of one stream.
#[derive(Debug)]
pub(super) struct Parser {
    limit: usize,
    /// The beginning of a line that is not complete.
    line: BytesMut,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    /// Nothing was read yet, so a byte order mark may come.
    fresh: bool,
    kind: String,
    data: Option<Data>,
    /// This event is over the limit: skip to its end.
    skipping: bool,
}

#[derive(Debug)]
enum Data {
    One(Bytes),
    Many(BytesMut),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::One(bytes) => bytes.len(),
            Self::Many(bytes) => bytes.len(),
        }
    }
}

impl Parser {
    /// A reader for events of up to `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            line: BytesMut::new(),
            after_cr: false,
            fresh: true,
            kind: String::new(),
            data: None,
            skipping: false,
        }
    }

    /// Reads the next piece; appends the events that it completes.
    pub(super) fn push(&mut self, mut piece: Bytes, events: &mut Vec<Event>) {
        while !piece.is_empty() {
            if std::mem::take(&mut self.after_cr) && piece[0] == b'\n' {
                let _ = piece.split_to(1);
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', &piece) else {
                self.keep(&piece);
                return;
            };
            let rest = piece.split_off(end + 1);
            self.after_cr = piece[end] == b'\r';
            piece.truncate(end);
            let line = if self.line.is_empty() {
                piece
            } else {
                self.keep(&piece);
                self.line.split().freeze()
            };
            self.line(line, events);
            piece = rest;
        }
    }

    fn keep(&mut self, part: &[u8]) {
        // a line that is skipped is kept in a few bytes, so that it is not taken for an empty one
        if self.line.len() + part.len() > self.limit.saturating_add(64) {
            self.skipping = true;
        }
        if !self.skipping {
            self.line.extend_from_slice(part);
        } else if self.line.is_empty() {
            self.line.extend_from_slice(b":");
        } else {
            self.line.truncate(1);
        }
    }

    fn line(&mut self, mut line: Bytes, events: &mut Vec<Event>) {
        if std::mem::take(&mut self.fresh) && line.starts_with(b"\xEF\xBB\xBF") {
            let _ = line.split_to(3);
        }
        if line.is_empty() {
            return self.dispatch(events);
        }
        if self.skipping {
            return;
        }
        let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
        let mut value = line.slice((colon + 1).min(line.len())..);
        if value.first() == Some(&b' ') {
            let _ = value.split_to(1);
        }
        match &line[..colon] {
            b"data" => self.data(value),
            b"event" => self.kind = String::from_utf8_lossy(&value).into_owned(),
            _ => {}
        }
    }

    fn data(&mut self, value: Bytes) {
        let before = self.data.take();
        if before.as_ref().map_or(0, |d| d.len() + 1) + value.len() > self.limit {
            self.skipping = true;
            return;
        }
        self.data = Some(match before {
            None => Data::One(value),
            Some(Data::One(first)) => {
                let mut all = BytesMut::with_capacity(first.len() + 1 + value.len());
                all.extend_from_slice(&first);
                all.extend_from_slice(b"\n");
                all.extend_from_slice(&value);
                Data::Many(all)
            }
            Some(Data::Many(mut all)) => {
                all.extend_from_slice(b"\n");
                all.extend_from_slice(&value);
                Data::Many(all)
            }
        });
    }

    fn dispatch(&mut self, events: &mut Vec<Event>) {
        let kind = std::mem::take(&mut self.kind);
        let data = self.data.take();
        if std::mem::take(&mut self.skipping) {
            events.push(Event::TooLarge);
        } else if let Some(data) = data {
            let data = match data {
                Data::One(bytes) => bytes,
                Data::Many(bytes) => bytes.freeze(),
            };
            events.push(Event::Data { kind, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn read(text: &[u8], cut: usize, limit: usize) -> Vec<Event> {
        let (mut parser, mut events) = (Parser::new(limit), vec![]);
        for piece in text.chunks(cut) {
            parser.push(Bytes::copy_from_slice(piece), &mut events);
        }
        events
    }

    fn data(text: &str) -> Event {
        Event::Data { kind: String::new(), data: Bytes::copy_from_slice(text.as_bytes()) }
    }

    #[rstest]
    #[case::lf("data: {\"a\":1}\n\ndata: 2\n\n", &["{\"a\":1}", "2"])]
    #[case::crlf("data: 3\r\n\r\ndata: 4\r\n\r\n", &["3", "4"])]
    #[case::cr("data: 5\r\rdata: 6\r\r", &["5", "6"])]
    #[case::mixed("data: 7\r\n\rdata: 8\n\r\n", &["7", "8"])]
    #[case::no_space("data:x\n\n", &["x"])]
    #[case::two_spaces("data:  x\n\n", &[" x"])]
    #[case::lines("data:{\ndata: \"a\":\ndata:1\ndata\ndata:}\n\n", &["{\n\"a\":\n1\n\n}"])]
    #[case::emoji("data: \"😀é\"\n\n", &["\"😀é\""])]
    #[case::comments(": hi\n\n:\ndata: y\n: in between\n\n", &["y"])]
    #[case::other_fields("id: 4\nretry: 10\ndata: z\nfoo: bar\ndatax: no\n\n", &["z"])]
    #[case::bom("\u{feff}data: b\n\n", &["b"])]
    #[case::empty_lines("\n\n\r\n\ndata: e\n\n\n\n", &["e"])]
    #[case::unfinished("data: done\n\ndata: lost\n", &["done"])]
    fn streams(#[case] text: &str, #[case] expected: &[&str]) {
        let expected: Vec<_> = expected.iter().map(|e| data(e)).collect();
        for cut in [1, 2, 3, 5, 8, 1000] {
            assert_eq!(read(text.as_bytes(), cut, 100), expected, "in pieces of {cut}");
        }
    }

    #[test]
    fn types_are_told_apart_and_empty_data_is_no_message() {
        let events = read(
            b"event: endpoint\ndata: /x\n\nevent: message\ndata: m\n\nid: 1\ndata:\n\n",
            7,
            99,
        );
        let messages: Vec<_> = events.iter().map(|e| e.message().map(|m| &m[..])).collect();
        assert_eq!(messages, [None, Some(&b"m"[..]), None]);
    }

    #[test]
    fn an_event_over_the_limit_is_skipped_and_the_stream_lives_on() {
        for text in [
            format!("data: {}\n\ndata: next\n\n", "x".repeat(500)),
            format!("{}\ndata: next\n\n", "data: 0123456789\n".repeat(30)),
            format!("data: a\ndata: {}\n\ndata: next\n\n", "x".repeat(100)),
        ] {
            for cut in [1, 9, 64, 10_000] {
                let events = read(text.as_bytes(), cut, 100);
                assert_eq!(events, [Event::TooLarge, data("next")], "in pieces of {cut}");
            }
        }
        let fits = format!("data: {}\n\n", "x".repeat(100));
        assert_eq!(read(fits.as_bytes(), 13, 100), [data(&"x".repeat(100))]);
    }

    #[test]
    fn an_event_in_one_piece_is_not_copied() {
        let whole = Bytes::from_static(b"event: message\ndata: {\"jsonrpc\":\"2.0\"}\n\n");
        let (mut parser, mut events) = (Parser::new(100), vec![]);
        parser.push(whole.clone(), &mut events);
        let [Event::Data { data, .. }] = &events[..] else { panic!() };
        assert!(whole.as_ptr_range().contains(&data.as_ptr()));
    }

    proptest! {
        #[test]
        fn where_the_pieces_are_cut_makes_no_difference(
            bytes in prop::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b' '), Just(b'd'), any::<u8>()],
                0..120,
            ),
            cut in 1usize..20,
        ) {
            prop_assert_eq!(read(&bytes, cut, 40), read(&bytes, 1000, 40));
        }

        #[test]
        fn what_is_written_is_read_again(lines in prop::collection::vec("[^\r\n]{0,20}", 1..5), end in 0usize..3) {
            let end = ["\n", "\r\n", "\r"][end];
            let text: String = lines.iter().map(|l| format!("data: {l}{end}")).collect();
            let events = read(format!("{text}{end}").as_bytes(), 3, 1000);
            prop_assert_eq!(events, vec![data(&lines.join("\n"))]);
        }
    }
}
