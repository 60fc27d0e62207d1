//! The two pumps between the child's pipes and the hub. They run independently: a child that
//! writes before it reads, or reads nothing at all, stops neither the other pump nor the link.

use std::rc::Rc;

use awaken_shim::frame::ACKNOWLEDGE_EVERY;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStdin, ChildStdout};

use crate::framing::Framer;
use crate::hub::Hub;

const READ: usize = 64 << 10;
/// Small messages are written together up to this many bytes.
const BATCH: usize = 64 << 10;

/// Reads stdout into the outbox until it ends; stops while the outbox is full.
pub async fn read_stdout(hub: Rc<Hub>, mut stdout: ChildStdout) {
    let mut framer = Framer::new(hub.limit);
    let mut buffer = vec![0; READ];
    loop {
        while !hub.state.borrow().outbox.has_room() {
            hub.room.notified().await;
        }
        match stdout.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => framer.feed(&buffer[..read], |line| hub.take_line(line)),
        }
        hub.output.notify_one();
    }
    framer.finish(|line| hub.take_line(line));
    hub.output.notify_one();
    hub.broken.notify_one();
}

/// Writes the inbox to stdin, one line a message, until the child closes it.
pub async fn write_stdin(hub: Rc<Hub>, mut stdin: ChildStdin) {
    let mut batch = Vec::new();
    loop {
        batch.clear();
        let mut done = Vec::new();
        while batch.len() < BATCH {
            let Some((epoch, sequence, kind, payload)) = hub.state.borrow_mut().inbox.pop() else {
                break;
            };
            if hub.before_write(kind, &payload) {
                push_line(&mut batch, &payload);
            } else {
                hub.log.say("a second initialize was not passed on");
            }
            done.push((epoch, sequence, payload.len()));
        }
        if done.is_empty() {
            hub.input.notified().await;
            continue;
        }
        if stdin.write_all(&batch).await.is_err() {
            hub.broken.notify_one();
            return;
        }
        let mut state = hub.state.borrow_mut();
        for (epoch, sequence, len) in done {
            state.inbox.wrote(epoch, sequence, len);
            state.unreported += len;
        }
        if state.unreported >= ACKNOWLEDGE_EVERY {
            hub.output.notify_one();
        }
        drop(state);
        if batch.capacity() > 4 * BATCH {
            batch = Vec::new();
        }
    }
}

/// Appends a message as exactly one line: a line break between tokens becomes a blank, so that
/// nobody smuggles a second message to the child.
fn push_line(batch: &mut Vec<u8>, payload: &[u8]) {
    let start = batch.len();
    batch.extend_from_slice(payload);
    for byte in &mut batch[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    batch.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_it_holds() {
        let mut batch = Vec::new();
        push_line(&mut batch, b"{\"a\":\r\n1}\n{\"method\":\"x\"}");
        push_line(&mut batch, b"{}");
        assert_eq!(batch, b"{\"a\":  1} {\"method\":\"x\"}\n{}\n");
    }
}
