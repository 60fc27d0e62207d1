//! The child's stderr: always drained, copied to the pod's log, its last lines kept.
//!
//! The log is written by a thread of its own, because writing it may block; when nobody reads the
//! log the copy is cut and counted, and the child goes on.

use std::collections::VecDeque;
use std::io::Write;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;

use crate::hub::Hub;
use crate::scrub::Scrubber;

const CHUNK: usize = 8 << 10;
/// Chunks that wait for a slow log: up to 2 MiB.
const WAITING: usize = 256;
/// Lines of the tail.
const LINES: usize = 20;
/// Lines before them that are kept too: a secret that is broken over lines may begin there.
const BEFORE: usize = 40;
/// Bytes of the tail.
pub const TAIL: usize = 2 << 10;
/// Bytes of one line that count.
const LINE: usize = 1 << 10;

/// The way to the pod's log.
pub struct Log {
    sender: SyncSender<Vec<u8>>,
    done: Receiver<()>,
    cut: std::cell::Cell<u64>,
}

impl Log {
    /// Starts the writing thread.
    pub fn start() -> std::io::Result<Self> {
        let (sender, chunks) = sync_channel::<Vec<u8>>(WAITING);
        let (finished, done) = sync_channel(1);
        std::thread::Builder::new().name("log".into()).stack_size(64 << 10).spawn(move || {
            let mut log = std::io::stderr();
            for chunk in chunks.iter().take_while(|chunk| !chunk.is_empty()) {
                // A log that is gone must not stop the server.
                let _ = log.write_all(&chunk);
            }
            let _ = finished.send(());
        })?;
        Ok(Self { sender, done, cut: std::cell::Cell::new(0) })
    }

    /// Copies bytes of the child; never blocks.
    pub fn copy(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let cut = self.cut.get();
        if cut > 0 {
            let note =
                format!("\nawaken-shim: {cut} bytes of stderr not logged, the log is slow\n");
            if self.sender.try_send(note.into_bytes()).is_ok() {
                self.cut.set(0);
            }
        }
        if self.sender.try_send(bytes.to_vec()).is_err() {
            self.cut.set(self.cut.get() + bytes.len() as u64);
        }
    }

    /// A line of the shim itself.
    pub fn say(&self, line: &str) {
        self.copy(format!("awaken-shim: {line}\n").as_bytes());
    }

    /// Ends the log (an empty chunk is the end) and waits up to one second for it to be written.
    pub fn finish(&self) {
        let _ = self.sender.try_send(Vec::new());
        let _ = self.done.recv_timeout(Duration::from_secs(1));
    }
}

/// The last lines of stderr, cleaned.
#[derive(Default)]
pub struct Tail {
    lines: VecDeque<String>,
    partial: Vec<u8>,
    cut: bool,
}

impl Tail {
    /// Takes what was read.
    pub fn feed(&mut self, bytes: &[u8], scrubber: &Scrubber) {
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let room = LINE.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&part[..part.len().min(room)]);
            self.cut |= part.len() > room;
            if parts.peek().is_some() {
                self.end_line(scrubber);
            }
        }
    }

    /// Ends an unfinished line.
    pub fn end_line(&mut self, scrubber: &Scrubber) {
        let line = scrubber.clean(&self.partial, std::mem::take(&mut self.cut), LINE);
        self.partial.clear();
        if line.is_empty() {
            return;
        }
        if self.lines.len() == BEFORE + LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The newest whole lines that fit.
    pub fn text(&self, scrubber: &Scrubber) -> String {
        let kept: Vec<String> = self.lines.iter().cloned().collect();
        let clean = scrubber.hide_across(&kept);
        let mut size = 0;
        let fits = |line: &&String| {
            size += line.len() + 1;
            size <= TAIL
        };
        let mut lines: Vec<&str> =
            clean.iter().rev().take(LINES).take_while(fits).map(String::as_str).collect();
        lines.reverse();
        lines.join("\n")
    }
}

/// Drains stderr until it ends.
pub async fn drain(hub: Rc<Hub>, mut stderr: ChildStderr) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        hub.log.copy(&buffer[..read]);
        hub.state.borrow_mut().tail.feed(&buffer[..read], &hub.scrubber);
    }
    hub.state.borrow_mut().tail.end_line(&hub.scrubber);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(chunks: &[&[u8]]) -> String {
        let scrubber = Scrubber::new([("TOKEN".to_owned(), "sesame-open".to_owned())], &[]);
        let mut tail = Tail::default();
        for chunk in chunks {
            tail.feed(chunk, &scrubber);
        }
        tail.end_line(&scrubber);
        tail.text(&scrubber)
    }

    #[test]
    fn a_secret_that_is_broken_over_lines_does_not_show() {
        assert_eq!(tail(&[b"one ses", b"ame-\nope", b"n two"]), "one [redacted]\n[redacted] two");
        // its beginning was too long ago to show
        let rest = "x\n".repeat(LINES - 1);
        let text = tail(&[format!("sesame-\nopen two\n{rest}").as_bytes()]);
        assert!(text.starts_with("[redacted] two\nx"), "{text}");
    }

    #[test]
    fn lines_are_joined_over_chunks_and_cleaned() {
        assert_eq!(
            tail(&[b"one\ntw", b"o\r\n\n\x1b[1mthree ses", b"ame-open"]),
            "one\ntwo\nthree [redacted]"
        );
    }

    #[test]
    fn a_secret_across_the_end_of_a_long_line_does_not_show() {
        for before in LINE - 10..LINE {
            let line = format!("{}sesame-open and more\nnext sesame", "x".repeat(before));
            let text = tail(&[line.as_bytes()]);
            assert!(text.ends_with("x\nnext sesame"), "{before}: {text}");
        }
    }

    #[test]
    fn only_the_last_lines_and_bytes_stay() {
        let many: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let text = tail(&[many.as_bytes()]);
        assert_eq!((text.lines().count(), text.lines().next()), (20, Some("line 80")));
        let long = format!("{}\n", "x".repeat(900)).repeat(5);
        assert_eq!(tail(&[long.as_bytes()]).lines().count(), 2);
    }

    #[test]
    fn an_endless_line_is_bounded() {
        let mut tail = Tail::default();
        let scrubber = Scrubber::new([], &[]);
        for _ in 0..1000 {
            tail.feed(&[b'x'; 4096], &scrubber);
        }
        assert!(tail.partial.capacity() <= 2 * LINE);
    }
}
