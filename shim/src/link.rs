//! One attached link, from its first frame to its last: the hub's output out, the gateway's input in.
//!
//! Its writing may stop its reading, never the other way round on the gateway's side, so the two
//! cannot wait for each other. Whatever happens to it, the child goes on.

use std::rc::Rc;
use std::time::Duration;

use awaken_shim::entry::{self, Entry};
use awaken_shim::frame::{self, Attached, Control};
use awaken_shim::{Header, Kind, Refusal};
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::attach::Admitted;
use crate::hub::Hub;

/// Time between two reports of noise.
const NOISE_EVERY: Duration = Duration::from_secs(10);
/// Bytes that are written to the socket before it is flushed.
const BURST: usize = 1 << 20;

/// The link's socket.
pub type Socket = WebSocketStream<TcpStream>;

/// Why a link ended; none of it concerns the child.
pub enum End {
    /// The peer closed it, or it broke or fell silent.
    Gone,
    /// We end it, and say why.
    Refused(Refusal, String),
    /// The child is gone and everything is told.
    Finished,
}

impl<E: std::error::Error> From<E> for End {
    fn from(_: E) -> Self {
        Self::Gone
    }
}

/// Runs the link and forgets it.
pub async fn serve(hub: Rc<Hub>, mut socket: Socket, Admitted { epoch, id, cut }: Admitted) {
    let mut link = Running {
        hub: &hub,
        epoch,
        sent: hub.state.borrow().outbox.acknowledged(),
        noise_told: 0,
        noise_at: None,
        heard: Instant::now(),
        pinged: false,
    };
    let end = tokio::select! {
        biased;
        () = cut.notified() => {
            End::Refused(Refusal::Superseded, "another gateway link took over".into())
        }
        end = link.run(&mut socket) => end,
    };
    say_end(&mut socket, end).await;
    let mut state = hub.state.borrow_mut();
    if state.link.as_ref().is_some_and(|link| link.id == id) {
        state.link = None;
    }
    drop(state);
    hub.link_gone.notify_one();
}

/// Tells the peer why, closes, and waits a little for its close so that nothing is lost in flight.
pub async fn say_end(socket: &mut Socket, end: End) {
    let farewell = async {
        match end {
            End::Gone => return,
            End::Refused(reason, message) => {
                let text = Control::Error { reason, message }.to_text();
                if socket.send(Message::text(text)).await.is_err() {
                    return;
                }
            }
            End::Finished => {}
        }
        if socket.close(None).await.is_ok() {
            while let Some(Ok(_)) = socket.next().await {}
        }
    };
    let _ = timeout(Duration::from_secs(2), farewell).await;
}

/// One attached link.
struct Running<'a> {
    hub: &'a Hub,
    epoch: u64,
    sent: u64,
    noise_told: u64,
    noise_at: Option<Instant>,
    heard: Instant,
    pinged: bool,
}

impl Running<'_> {
    async fn run(&mut self, socket: &mut Socket) -> End {
        match self.exchange(socket).await {
            Ok(()) => End::Finished,
            Err(end) => end,
        }
    }

    async fn exchange(&mut self, socket: &mut Socket) -> Result<(), End> {
        socket.send(Message::text(self.attached())).await?;
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            // Before anything is read: a gateway acknowledges here what an older link handed over,
            // and what this one has not handed over counts as never sent.
            let finished = self.send_pending(socket).await?;
            if finished {
                return Ok(());
            }
            tokio::select! {
                message = socket.next() => {
                    self.heard = Instant::now();
                    self.pinged = false;
                    self.take(message.ok_or(End::Gone)??)?;
                }
                () = self.hub.output.notified() => {}
                _ = tick.tick() => self.look_alive(socket).await?,
            }
        }
    }

    fn attached(&self) -> String {
        let state = self.hub.state.borrow();
        Control::Attached(Attached {
            highest_sequence: state.outbox.highest(),
            acknowledged: state.outbox.acknowledged(),
            received: state.inbox.taken(),
            max_message_bytes: self.hub.limit as u64,
            child: state.child,
            initialize: state.initialize.clone(),
            initialized: state.initialized,
        })
        .to_text()
    }

    /// Sends what is new; true when the child is gone and that is told.
    async fn send_pending(&mut self, socket: &mut Socket) -> Result<bool, End> {
        let mut dirty = 0;
        loop {
            let next = self.hub.state.borrow().outbox.after(self.sent);
            let Some((sequence, kind, payload)) = next else { break };
            let frame = frame::encode(self.header(kind, sequence), &payload);
            self.sent = sequence;
            dirty += frame.len();
            if dirty > BURST {
                dirty = 0;
                socket.send(Message::Binary(frame)).await?;
            } else {
                socket.feed(Message::Binary(frame)).await?;
            }
        }
        let unreported = self.hub.state.borrow().unreported;
        if unreported >= frame::ACKNOWLEDGE_EVERY {
            let header = self.header(Kind::Acknowledge, 0);
            socket.feed(Message::Binary(frame::encode(header, b""))).await?;
            dirty += 1;
        }
        if let Some(text) = self.noise() {
            socket.feed(Message::text(text)).await?;
            dirty += 1;
        }
        let exit = self.hub.state.borrow().exit.clone();
        let finished = exit.is_some();
        if let Some(exit) = exit {
            socket.feed(Message::text(Control::Exited(exit).to_text())).await?;
            dirty += 1;
        }
        if dirty > 0 {
            socket.flush().await?;
        }
        Ok(finished)
    }

    fn header(&self, kind: Kind, sequence: u64) -> Header {
        let mut state = self.hub.state.borrow_mut();
        state.unreported = 0;
        Header { kind, epoch: self.epoch, sequence, acknowledged: state.inbox.written() }
    }

    fn noise(&mut self) -> Option<String> {
        let state = self.hub.state.borrow();
        let due = self.noise_at.is_none_or(|at| at.elapsed() >= NOISE_EVERY);
        if state.dropped == self.noise_told || !(due || state.exit.is_some()) {
            return None;
        }
        self.noise_told = state.dropped;
        self.noise_at = Some(Instant::now());
        let noise = Control::Noise { dropped: state.dropped, sample: state.sample.clone() };
        Some(noise.to_text())
    }

    fn take(&self, message: Message) -> Result<(), End> {
        let refuse = |text: &str| Err(End::Refused(Refusal::Protocol, text.into()));
        let frame = match message {
            Message::Binary(frame) => frame,
            Message::Close(_) => return Err(End::Gone),
            Message::Text(_) => return refuse("no text frame has a place after attach"),
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => return Ok(()),
        };
        let parts = match frame::decode(frame) {
            Ok(parts) => parts,
            Err(error) => return refuse(&error.to_string()),
        };
        let state = &mut *self.hub.state.borrow_mut();
        let buffers = (&mut state.inbox, &mut state.outbox);
        let entry = entry::take((self.epoch, self.sent), buffers, parts);
        if state.outbox.has_room() {
            self.hub.room.notify_one();
        }
        match entry {
            Ok(Entry::Taken) => self.hub.input.notify_one(),
            Ok(Entry::Acknowledged | Entry::Duplicate) => {}
            Err((refusal, message)) => return Err(End::Refused(refusal, message.into())),
        }
        Ok(())
    }

    async fn look_alive(&mut self, socket: &mut Socket) -> Result<(), End> {
        let silent = self.heard.elapsed().as_secs();
        if silent >= frame::DEAD_AFTER_SECONDS {
            return Err(End::Gone);
        }
        if silent >= frame::PING_AFTER_SECONDS && !self.pinged {
            self.pinged = true;
            socket.send(Message::Ping(Default::default())).await?;
        }
        Ok(())
    }
}
