//! The port: health, and a link up to its admission.
//!
//! Strangers cost a bounded number of connections for a bounded time, and reach nothing else.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use awaken_shim::frame::{self, Control, SLACK};
use awaken_shim::{Claim, Refusal, challenge};
use futures_util::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::http;
use crate::hub::{Hub, Link};
use crate::link::{End, Socket, say_end, serve};

/// Time for a request head, and again for the answer to the challenge.
const OPENING: Duration = Duration::from_secs(5);
/// Connections that are not attached yet.
const OPENINGS: usize = 16;
/// Bytes of a frame before a claim is admitted; a claim has some hundred.
const OPENING_FRAME: usize = 8 << 10;

/// A link whose claim was admitted; it is the current one.
pub struct Admitted {
    /// Epoch of the claim.
    pub epoch: u64,
    /// Number of the link.
    pub id: u64,
    /// Cuts the link.
    pub cut: Rc<Notify>,
}

/// Accepts connections for ever.
pub async fn listen(hub: Rc<Hub>, listener: TcpListener) {
    let openings = Arc::new(Semaphore::new(OPENINGS));
    loop {
        let permit = openings.clone().acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let hub = hub.clone();
                tokio::task::spawn_local(async move {
                    let _ = stream.set_nodelay(true);
                    let opened = timeout(3 * OPENING, open(&hub, stream)).await;
                    drop(permit);
                    if let Ok(Some((socket, admitted))) = opened {
                        serve(hub, socket, admitted).await;
                    }
                });
            }
            // Out of file descriptors: wait for some to be given back.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// From the first byte to an admitted claim.
async fn open(hub: &Hub, mut stream: TcpStream) -> Option<(Socket, Admitted)> {
    let (request, rest) = timeout(OPENING, http::read(&mut stream)).await.ok()??;
    let reply = match &request {
        http::Request::Health if hub.state.borrow().running => http::answer("200 OK", "ok\n"),
        http::Request::Health => http::answer("503 Service Unavailable", "the child is gone\n"),
        http::Request::Wrong(status) => http::answer(status, ""),
        http::Request::Link(accept) => http::switch(accept),
    };
    stream.write_all(reply.as_bytes()).await.ok()?;
    if !matches!(request, http::Request::Link(_)) {
        let _ = stream.shutdown().await;
        return None;
    }
    let small = config(OPENING_FRAME, OPENING_FRAME);
    let mut socket =
        WebSocketStream::from_partially_read(stream, rest, Role::Server, Some(small)).await;
    match timeout(OPENING, admit(hub, &mut socket)).await.ok()? {
        // A gateway says nothing between its claim and our answer, so the buffers are empty here.
        Ok(admitted) => {
            let large = config(hub.limit + SLACK, 64 << 10);
            let stream = socket.into_inner();
            let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(large)).await;
            Some((socket, admitted))
        }
        Err(end) => {
            say_end(&mut socket, end).await;
            None
        }
    }
}

fn config(largest: usize, buffers: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(largest))
        .max_frame_size(Some(largest))
        .read_buffer_size(buffers)
        .write_buffer_size(buffers)
}

async fn admit(hub: &Hub, socket: &mut Socket) -> Result<Admitted, End> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|_| End::Gone)?;
    let hello =
        Control::Challenge { protocol: frame::PROTOCOL, nonce: challenge::format_nonce(&nonce) };
    socket.send(Message::text(hello.to_text())).await?;
    let Some(Ok(Message::Text(text))) = socket.next().await else {
        return Err(End::Refused(Refusal::Protocol, "attach must be the first frame".into()));
    };
    let Ok(Control::Attach { claim, signature }) = Control::from_text(&text) else {
        return Err(End::Refused(Refusal::Protocol, "attach must be the first frame".into()));
    };
    let admitted = hub.state.borrow_mut().fence.admit(&nonce, &claim, &signature);
    match admitted {
        Ok(()) => {
            hub.log.say(&format!("gateway {} attached, epoch {}", claim.incarnation, claim.epoch));
            Ok(take_over(hub, &claim))
        }
        Err((refusal, message)) => {
            hub.log.say(&format!("link refused: {refusal:?}: {message}"));
            Err(End::Refused(refusal, message))
        }
    }
}

/// Makes this link the current one and cuts the older: from here on the old link is out, even if
/// its task has not noticed. No await stands between a claim's admission and this.
fn take_over(hub: &Hub, claim: &Claim) -> Admitted {
    let mut state = hub.state.borrow_mut();
    if state.inbox.begin(claim.epoch) > 0 {
        hub.log.say("messages of an older epoch were not passed on");
    }
    state.unreported = 0;
    state.links += 1;
    let (id, cut) = (state.links, Rc::new(Notify::new()));
    if let Some(older) = state.link.replace(Link { id, cut: cut.clone() }) {
        older.cut.notify_one();
    }
    Admitted { epoch: claim.epoch, id, cut }
}
