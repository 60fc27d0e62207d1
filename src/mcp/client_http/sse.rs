//! Server-sent events from pieces of bytes: lines that end in LF, CRLF or CR wherever the pieces
//! are cut, events of bounded size. An event that came in one piece and one line is not copied.

use crate::mcp::wire::{Id, IdScan};
use bytes::{Bytes, BytesMut};

/// The field that carries messages.
const DATA: &[u8] = b"data:";

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
    TooLarge(Over),
}

/// What is known of a message over the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Over {
    /// It is a request or a notification.
    pub asks: bool,
    /// Its id, once it was seen.
    pub id: Option<Id>,
}

impl Over {
    fn of(scan: &IdScan) -> Self {
        Self { asks: scan.asks(), id: scan.id() }
    }

    /// Whether it is the answer to the request of this id, as far as can be told.
    pub(super) fn answers(&self, id: &Id) -> bool {
        !self.asks && self.id.as_ref().is_none_or(|theirs| theirs == id)
    }
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
    /// This event is over the limit: it is skipped to its end, and only looked at.
    skipping: Option<IdScan>,
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
            skipping: None,
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

    /// What is known of the event that is being skipped, if one is.
    pub(super) fn over(&self) -> Option<Over> {
        self.skipping.as_ref().map(Over::of)
    }

    fn keep(&mut self, part: &[u8]) {
        if self.skipping.is_none() && self.line.len() + part.len() > self.limit.saturating_add(64) {
            self.begin_skipping();
            let line = self.line.split();
            self.skip(&line);
        }
        match self.skipping {
            None => self.line.extend_from_slice(part),
            Some(_) => self.skip(part),
        }
    }

    fn begin_skipping(&mut self) {
        let mut scan = IdScan::default();
        match self.data.take() {
            None => {}
            Some(Data::One(bytes)) => scan.push(&bytes),
            Some(Data::Many(bytes)) => scan.push(&bytes),
        }
        self.skipping = Some(scan);
    }

    /// Looks at a part of a line; of the line no more stays than tells which field it is.
    fn skip(&mut self, part: &[u8]) {
        let known = (DATA.len() - self.line.len().min(DATA.len())).min(part.len());
        let (field, rest) = part.split_at(known);
        self.line.extend_from_slice(field);
        if let Some(scan) = &mut self.skipping
            && self.line == DATA
        {
            scan.push(rest);
        }
    }

    fn line(&mut self, mut line: Bytes, events: &mut Vec<Event>) {
        if std::mem::take(&mut self.fresh) && line.starts_with(b"\xEF\xBB\xBF") {
            let _ = line.split_to(3);
        }
        if line.is_empty() {
            return self.dispatch(events);
        }
        if let Some(scan) = &mut self.skipping {
            scan.push(line.strip_prefix(DATA).unwrap_or_default());
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
            self.data = before;
            self.begin_skipping();
            if let Some(scan) = &mut self.skipping {
                scan.push(&value);
            }
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
        if let Some(scan) = self.skipping.take() {
            events.push(Event::TooLarge(Over::of(&scan)));
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
                let over = Event::TooLarge(Over { asks: false, id: None });
                assert_eq!(events, [over, data("next")], "in pieces of {cut}");
            }
        }
        let fits = format!("data: {}\n\n", "x".repeat(100));
        assert_eq!(read(fits.as_bytes(), 13, 100), [data(&"x".repeat(100))]);
    }

    #[test]
    fn what_is_skipped_is_told_by_its_id_and_its_kind() {
        let long = "x".repeat(300);
        let (ours, asks) = (Some(Id::number(7)), true);
        for (text, over) in [
            (format!(r#"{{"id":7,"result":"{long}"}}"#), Over { asks: false, id: ours.clone() }),
            (format!(r#"{{"result":"{long}","id":7}}"#), Over { asks: false, id: ours.clone() }),
            (format!(r#"{{"method":"m","params":"{long}"}}"#), Over { asks, id: None }),
            (format!(r#"{{"id":7,"method":"m","params":"{long}"}}"#), Over { asks, id: ours }),
        ] {
            let lines = text.replace(',', ",\ndata: ");
            for event in [format!("data: {text}\n\n"), format!("event: message\ndata:{lines}\n\n")]
            {
                for cut in [1, 2, 3, 7, 64, 150, 10_000] {
                    let events = read(event.as_bytes(), cut, 100);
                    assert_eq!(
                        events,
                        [Event::TooLarge(over.clone())],
                        "{event} in pieces of {cut}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_does_not_end_is_known_as_soon_as_it_is_over_the_limit() {
        let (mut parser, mut events) = (Parser::new(100), vec![]);
        let begin = format!(r#"data: {{"id":7,"result":"{}"#, "x".repeat(200));
        parser.push(Bytes::from(begin), &mut events);
        let over = parser.over().unwrap();
        assert!(over.answers(&Id::number(7)) && !over.answers(&Id::number(8)));
        assert!(events.is_empty());
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
