//! Event streams as the script wants them: line ends, pieces, indentation.

use crate::script::{Http, Newline};

/// The first event of a primed stream.
pub fn prime(http: &Http) -> Vec<Vec<u8>> {
    let end = http.newline.as_str();
    pieces(http, format!("id: 0{end}retry: 50{end}data:{end}{end}").into_bytes())
}

/// One message as an event, in the pieces that are flushed one by one.
pub fn event(http: &Http, number: u64, text: &str) -> Vec<Vec<u8>> {
    let end = http.newline.as_str();
    let colon = if http.tight { "data:" } else { "data: " };
    let body = if http.pretty { indented(text) } else { text.to_owned() };
    let mut out = format!("id: {number}{end}event: message{end}");
    for line in body.split('\n') {
        out.push_str(colon);
        out.push_str(line);
        out.push_str(end);
    }
    out.push_str(end);
    pieces(http, out.into_bytes())
}

fn pieces(http: &Http, bytes: Vec<u8>) -> Vec<Vec<u8>> {
    if http.piece_bytes > 0 {
        return bytes.chunks(http.piece_bytes).map(<[u8]>::to_vec).collect();
    }
    if http.split_newline && http.newline == Newline::Crlf {
        return bytes.split_inclusive(|b| *b == b'\r').map(<[u8]>::to_vec).collect();
    }
    vec![bytes]
}

/// The same JSON over several lines; tokens stay as they are.
fn indented(json: &str) -> String {
    let (mut out, mut quoted, mut escaped) = (String::new(), false, false);
    for c in json.chars() {
        out.push(c);
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            '{' | '[' | ',' if !quoted => out.push('\n'),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_indentation() {
        let text = r#"{"a":"x,{\"y","n":98765432109876543210,"l":[1.50]}"#;
        let lines = indented(text);
        assert!(lines.contains(r#""x,{\"y""#) && lines.contains("98765432109876543210"));
        assert_eq!(lines.replace('\n', ""), text);
    }

    #[test]
    fn pieces_are_cut_between_cr_and_lf_and_together_are_the_event() {
        let http = Http { newline: Newline::Crlf, split_newline: true, ..Http::default() };
        let cut = event(&http, 1, "{}");
        assert!(cut.len() > 3 && cut[0].ends_with(b"\r") && cut[1].starts_with(b"\n"));
        let whole = event(&Http { newline: Newline::Crlf, ..Http::default() }, 1, "{}");
        assert_eq!(cut.concat(), whole.concat());
    }

    #[test]
    fn small_pieces_cut_inside_a_character() {
        let http = Http { piece_bytes: 1, tight: true, ..Http::default() };
        let cut = event(&http, 1, "\"🦀\"");
        assert!(cut.iter().all(|p| p.len() == 1));
        assert!(String::from_utf8(cut.concat()).unwrap().contains("data:\"🦀\""));
    }
}
