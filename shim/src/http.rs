//! The little HTTP that the shim speaks before a link: one bounded request head, two answers.

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// Bytes of a request head.
const HEAD: usize = 8 << 10;

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// `GET /healthz`.
    Health,
    /// `GET /link` as a WebSocket; the accept key.
    Link(String),
    /// Anything else; the status line's end.
    Wrong(&'static str),
}

/// Reads one request head and what came after it; none when the peer sent no whole head.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<(Request, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Some((parse(&String::from_utf8_lossy(&bytes)), rest));
        }
        if bytes.len() > HEAD {
            return Some((Request::Wrong("431 Request Header Fields Too Large"), Vec::new()));
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn parse(head: &str) -> Request {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" {
        return Request::Wrong("405 Method Not Allowed");
    }
    let header = |name: &str| {
        lines.clone().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    match path.split('?').next().unwrap_or_default() {
        "/healthz" => Request::Health,
        awaken_shim::frame::PATH => {
            let upgrade = header("upgrade").is_some_and(|v| v.eq_ignore_ascii_case("websocket"));
            match header("sec-websocket-key") {
                Some(key) if upgrade && header("sec-websocket-version") == Some("13") => {
                    Request::Link(derive_accept_key(key.as_bytes()))
                }
                _ => Request::Wrong("426 Upgrade Required"),
            }
        }
        _ => Request::Wrong("404 Not Found"),
    }
}

/// A whole answer without a connection after it.
pub fn answer(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The answer that opens a WebSocket.
pub fn switch(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const LINK: &str = "GET /link HTTP/1.1\r\nhost: x\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n\
                        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nrest";

    #[rstest]
    #[case("GET /healthz HTTP/1.1\r\n\r\n", Request::Health)]
    #[case(LINK, Request::Link("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".into()))]
    #[case("GET /link HTTP/1.1\r\n\r\n", Request::Wrong("426 Upgrade Required"))]
    #[case("POST /healthz HTTP/1.1\r\n\r\n", Request::Wrong("405 Method Not Allowed"))]
    #[case("GET / HTTP/1.1\r\n\r\n", Request::Wrong("404 Not Found"))]
    #[case("\r\n\r\n", Request::Wrong("405 Method Not Allowed"))]
    #[tokio::test]
    async fn requests(#[case] bytes: &str, #[case] expected: Request) {
        let (request, rest) = read(&mut bytes.as_bytes()).await.unwrap();
        assert_eq!(request, expected);
        assert_eq!(rest, if bytes == LINK { &b"rest"[..] } else { b"" });
    }

    #[tokio::test]
    async fn endless_and_short_heads_end() {
        let endless = vec![b'x'; 100_000];
        let request = read(&mut &endless[..]).await.unwrap().0;
        assert_eq!(request, Request::Wrong("431 Request Header Fields Too Large"));
        assert_eq!(read(&mut &b"GET /he"[..]).await, None);
    }
}
