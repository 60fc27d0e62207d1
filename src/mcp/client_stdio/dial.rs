//! Opens a link: TCP, WebSocket, challenge.

use std::time::Duration;

use awaken_shim::challenge;
use awaken_shim::frame::{Attached, Control, PATH, PROTOCOL, SLACK};
use ed25519_dalek::SigningKey;
use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};

use super::StdioTarget;
use crate::mcp::{ConnectionFailure, Exit, PeerError, Sent};

/// Time for the connection, and again for the challenge.
const STEP: Duration = Duration::from_secs(5);

/// The link's socket.
pub type Socket = WebSocketStream<TcpStream>;

fn failed(kind: ConnectionFailure, message: impl Into<String>) -> PeerError {
    PeerError::Connection { sent: Sent::No, kind, message: message.into() }
}

/// The pod does not answer.
pub fn unreachable(message: impl std::fmt::Display) -> PeerError {
    failed(ConnectionFailure::Unreachable, format!("the Session pod cannot be reached: {message}"))
}

/// Attaches, or says why not.
pub async fn attach(
    target: &StdioTarget,
    key: &SigningKey,
) -> Result<(Socket, Attached), PeerError> {
    let stream = timeout(STEP, TcpStream::connect(target.address))
        .await
        .map_err(|_| unreachable("no answer within 5 s"))?
        .map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let largest = target.max_message_bytes + SLACK;
    let config = WebSocketConfig::default()
        .max_message_size(Some(largest))
        .max_frame_size(Some(largest))
        .read_buffer_size(64 << 10)
        .write_buffer_size(64 << 10);
    let opening = async {
        let url = format!("ws://{}{PATH}", target.address);
        let (mut socket, _) =
            tokio_tungstenite::client_async_with_config(url, stream, Some(config))
                .await
                .map_err(no_link)?;
        let attached = answer_challenge(&mut socket, target, key).await?;
        Ok((socket, attached))
    };
    timeout(STEP, opening).await.map_err(|_| unreachable("no link within 5 s"))?
}

/// An answer that is no link is a refusal; a connection that ends is not.
fn no_link(error: tungstenite::Error) -> PeerError {
    use tungstenite::error::ProtocolError::HandshakeIncomplete;
    match error {
        tungstenite::Error::Io(_)
        | tungstenite::Error::ConnectionClosed
        | tungstenite::Error::Protocol(HandshakeIncomplete) => unreachable(error),
        other => refused(format!("no link: {other}")),
    }
}

fn refused(message: String) -> PeerError {
    failed(ConnectionFailure::LinkRefused, message)
}

async fn answer_challenge(
    socket: &mut Socket,
    target: &StdioTarget,
    key: &SigningKey,
) -> Result<Attached, PeerError> {
    let Control::Challenge { protocol, nonce } = hear(socket).await? else {
        return Err(refused("the shim did not begin with a challenge".into()));
    };
    if protocol != PROTOCOL {
        let message = format!("the shim speaks version {protocol} of the link, not {PROTOCOL}");
        return Err(refused(message));
    }
    let nonce = challenge::parse_nonce(&nonce).map_err(|error| refused(error.to_string()))?;
    let claim = target.claim.clone();
    let signature = challenge::sign(key, &nonce, &claim);
    let attach = Control::Attach { claim, signature }.to_text();
    socket.send(Message::text(attach)).await.map_err(unreachable)?;
    match hear(socket).await? {
        Control::Attached(attached) => Ok(attached),
        Control::Error { reason, message } => Err(refused(format!("{reason:?}: {message}"))),
        other => Err(refused(format!("unexpected frame: {other:?}"))),
    }
}

async fn hear(socket: &mut Socket) -> Result<Control, PeerError> {
    loop {
        return match socket.next().await {
            Some(Ok(Message::Text(text))) => match Control::from_text(&text) {
                Ok(Control::Exited(exited)) => {
                    Err(PeerError::Exited { sent: Sent::No, exit: exit(exited) })
                }
                Ok(control) => Ok(control),
                Err(error) => Err(refused(error.to_string())),
            },
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            Some(Ok(_)) | None => Err(unreachable("the link closed")),
            Some(Err(error)) => Err(unreachable(error)),
        };
    }
}

/// How the shim tells an end, as the rest of the house knows it.
pub fn exit(exited: awaken_shim::frame::Exited) -> Exit {
    Exit { code: exited.code, signal: exited.signal, stderr_tail: exited.stderr_tail }
}
