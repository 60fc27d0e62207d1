//! The hand-over of calls: callers, two gateways, the journal, one shim and its child. What each
//! decides is the code that runs in production: the shim's fence, buffers and entry, the gateway's
//! window and ids, the journal's rules, the order of [`Intended`]. Around it stand links that break
//! on both sides or on one, gateways that die, are moved from and do not know it, answers that come
//! late, callers that do not wait.

use crate::explore::{Check, Model};
use awaken_operator::{
    domain::{
        handover::Intended,
        record::{Entry, Kind as RecordKind, Outcome},
    },
    journal::{
        AppendError, Chain,
        rules::{Past, State as Rules},
    },
    mcp::{
        RawJson,
        client_stdio::{message, window, window::Window},
    },
};
use awaken_shim::{
    Claim, Header, Kind,
    buffer::{Inbox, Outbox},
    entry,
    fence::{Fence, Identity},
    frame,
};
use bytes::Bytes;
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
};

/// How often each thing may happen on one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub calls: u8,
    pub breaks: u8,
    pub crashes: u8,
    pub moves: u8,
    pub renewals: u8,
    pub impatience: u8,
}

impl Budget {
    pub const NONE: Self =
        Self { calls: 0, breaks: 0, crashes: 0, moves: 0, renewals: 0, impatience: 0 };
}

/// The model.
pub struct Handover {
    pub budget: Budget,
}

/// How a call ended, as its gateway knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Said {
    /// The answer to the call of that number.
    Answer(usize),
    /// It may have run.
    Unknown,
    /// It was not sent and will not be.
    NotSent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Heard {
    Said(Said),
    /// Our refusal: the journal did not take it.
    Refused,
    /// The gateway died with the caller's connection.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stand {
    New,
    Intended,
    Sent { number: u64, sequence: u64 },
    Came(Said),
    Done(Heard),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    gateway: usize,
    epoch: i64,
    stand: Stand,
}

/// The journal: the rules, and what a store adds to them.
#[derive(Clone, Debug, Default)]
struct Journal {
    rules: Rules,
    intents: BTreeSet<usize>,
    ended: BTreeMap<usize, Said>,
}

impl Hash for Journal {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let open: BTreeSet<_> = self.rules.open.keys().collect();
        (self.rules.epoch, open, &self.intents, &self.ended).hash(to);
    }
}

impl Journal {
    fn append(&mut self, epoch: i64, call: usize, end: Option<Said>) -> Result<(), AppendError> {
        let kind = if end.is_some() { RecordKind::Outcome } else { RecordKind::Intent };
        let entry = Entry {
            call: Some(call.to_string()),
            outcome: end.map(|_| Outcome::Succeeded),
            ..Entry::new(Timestamp::UNIX_EPOCH, kind)
        };
        let past = |_: &str| {
            let ended = self.ended.contains_key(&call);
            Ok::<_, AppendError>(if ended { Past::Ended } else { Past::NotEnded })
        };
        self.rules.check(&Chain::Session("session-uid".into()), epoch, &entry, past)?;
        let head = self.rules.head;
        self.rules.take(&entry, head);
        match end {
            None => drop(self.intents.insert(call)),
            Some(said) => drop(self.ended.entry(call).or_insert(said)),
        }
        Ok(())
    }

    fn open(&self) -> Vec<usize> {
        let mut open: Vec<_> = self.rules.open.keys().filter_map(|c| c.parse().ok()).collect();
        open.sort_unstable();
        open
    }
}

#[derive(Clone, Debug)]
struct Shim {
    fence: Fence,
    inbox: Inbox,
    outbox: Outbox,
    link: Option<u8>,
    /// Popped and not yet reported as written.
    writing: Option<(u64, u64, usize)>,
}

impl Hash for Shim {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let Self { fence, inbox, outbox, link, writing } = self;
        (fence.highest(), inbox, outbox, link, writing).hash(to);
    }
}

#[derive(Clone, Debug, Hash)]
struct Link {
    gateway: usize,
    epoch: u64,
    sent: u64,
    to_shim: VecDeque<Bytes>,
    to_gateway: VecDeque<Bytes>,
}

/// The gateway's end: `mcp::client_stdio::Core`.
#[derive(Clone, Debug, Hash)]
struct Peer {
    epoch: i64,
    link: Option<u8>,
    window: Window,
    sequence: u64,
    fed: u64,
    delivered: u64,
    told: u64,
    waiting: BTreeMap<u64, usize>,
}

#[derive(Clone, Debug, Hash)]
struct Gateway {
    incarnation: u8,
    /// The epoch under which it believes to be the host; 0: it does not.
    epoch: i64,
    /// Open calls of earlier hosts that are to be ended; none before the epoch is raised.
    ending: Option<Vec<usize>>,
    taken: bool,
    /// The shim refused it.
    refused: bool,
    peer: Option<Peer>,
    /// The next number of a request, one sequence for the process.
    next: u64,
}

/// A state.
#[derive(Clone, Debug, Hash)]
pub struct World {
    journal: Journal,
    shim: Shim,
    links: BTreeMap<u8, Link>,
    made: u8,
    /// The highest epoch that the shim admitted.
    admitted: u64,
    gateways: [Gateway; 2],
    host: usize,
    epoch: i64,
    calls: Vec<Call>,
    /// What the child has read and not answered: id and call.
    child: Vec<(String, usize)>,
    ran: BTreeMap<usize, u8>,
    left: Budget,
    broken: BTreeSet<&'static str>,
    /// Nothing happened after which an answer may be missed.
    smooth: bool,
}

/// What can happen.
#[derive(Clone, Debug)]
pub enum Action {
    Begin { call: usize, gateway: usize },
    Dispatch(usize),
    Attach(usize),
    ShimHears(u8),
    ChildReads,
    Written,
    ChildAnswers(usize),
    ShimSends,
    GatewayHears(u8),
    Acknowledge(usize),
    Record(usize),
    Raise(usize),
    EndOpen(usize),
    Break(u8),
    Hang(usize),
    Crash(usize),
    Move(usize),
    Leave(usize),
    Renew(usize),
    GiveUp(usize),
}

const ON_RECORD: &str = "an answered call is in the journal with its outcome";
const ONCE: &str = "no intent is dispatched twice, and nothing without an intent";
const OWN: &str = "no answer reaches another caller";
const OLD: &str = "nothing of an older epoch reaches the child or the journal";
const NOT_SENT: &str = "what is on record as not sent did not run";
const FIRST: &str = "the first outcome stays";

fn claim(gateway: &Gateway, g: usize) -> Claim {
    Claim {
        pod_uid: "pod".into(),
        session_uid: "session-uid".into(),
        attachment_uid: "attachment-uid".into(),
        generation: 4,
        epoch: u64::try_from(gateway.epoch).expect("epochs are positive"),
        incarnation: format!("{g}-{}", gateway.incarnation),
    }
}

/// The id and the number of the call in a message.
fn read(payload: &[u8], part: &str) -> (String, usize) {
    let message: serde_json::Value = serde_json::from_slice(payload).expect("JSON");
    let call = message[part]["call"].as_u64().expect("a number");
    (message["id"].to_string(), usize::try_from(call).expect("a small number"))
}

impl World {
    fn said(&mut self, call: usize, said: Said) {
        self.calls[call].stand = Stand::Came(said);
    }

    fn append(&mut self, epoch: i64, call: usize, end: Option<Said>) -> Result<(), AppendError> {
        let before = self.journal.ended.get(&call).copied();
        let recorded = self.journal.append(epoch, call, end);
        if recorded.is_ok() && self.gateways.iter().any(|g| g.ending.is_some() && g.epoch > epoch) {
            self.broken.insert(OLD);
        }
        if recorded.is_ok() && before.is_some() {
            self.broken.insert(FIRST);
        }
        recorded
    }

    /// The peer ends: `Core::close`, and what its callers hear from `Core::failure`.
    fn close_peer(&mut self, g: usize) {
        let Some(peer) = self.gateways[g].peer.take() else { return };
        for call in peer.waiting.into_values() {
            if let Stand::Sent { sequence, .. } = self.calls[call].stand {
                let never = sequence > peer.fed;
                self.said(call, if never { Said::NotSent } else { Said::Unknown });
            }
        }
        if let Some(link) = peer.link {
            self.cut(link);
        }
    }

    /// A link ends for both sides; what is on its way is lost.
    fn cut(&mut self, id: u8) {
        let Some(link) = self.links.remove(&id) else { return };
        if self.shim.link == Some(id) {
            self.shim.link = None;
        }
        if let Some(peer) = &mut self.gateways[link.gateway].peer
            && peer.link == Some(id)
        {
            peer.link = None;
        }
    }

    /// The gateway's side of a link is gone; what it sent may still arrive.
    fn hang(&mut self, g: usize) {
        let Some(peer) = &mut self.gateways[g].peer else { return };
        if let Some(link) = peer.link.take().and_then(|id| self.links.get_mut(&id)) {
            link.to_gateway.clear();
        }
    }

    /// Numbers a message, keeps it and gives it to the link if there is one: `Core::feed`.
    fn feed(&mut self, g: usize, draft: frame::Draft) -> u64 {
        let peer = self.gateways[g].peer.as_mut().expect("who sends has a peer");
        peer.sequence += 1;
        let sequence = peer.sequence;
        let header = header(peer, Kind::Message, sequence);
        let frame = draft.finish(header);
        peer.window.push(sequence, Kind::Message, frame.slice(frame::HEADER..));
        if let Some(link) = peer.link.and_then(|id| self.links.get_mut(&id)) {
            peer.fed = peer.fed.max(sequence);
            link.to_shim.push_back(frame);
        }
        sequence
    }

    fn attach(&mut self, g: usize) {
        let claim = claim(&self.gateways[g], g);
        if self.shim.fence.take(&claim).is_err() {
            self.gateways[g].refused = true;
            self.close_peer(g);
            return;
        }
        if claim.epoch < self.admitted {
            self.broken.insert(OLD);
        }
        self.admitted = self.admitted.max(claim.epoch);
        // Admission and cut are one: no frame of the older link is taken any more.
        self.shim.inbox.begin(claim.epoch);
        self.made += 1;
        let id = self.made;
        self.shim.link = Some(id);
        let (received, acknowledged) = (self.shim.inbox.taken(), self.shim.outbox.acknowledged());
        let mut link = Link {
            gateway: g,
            epoch: claim.epoch,
            sent: acknowledged,
            to_shim: VecDeque::new(),
            to_gateway: VecDeque::new(),
        };
        let epoch = self.gateways[g].epoch;
        let peer = self.gateways[g].peer.get_or_insert_with(|| Peer {
            epoch,
            link: None,
            window: Window::default(),
            sequence: received,
            fed: received,
            delivered: acknowledged,
            told: acknowledged,
            waiting: BTreeMap::new(),
        });
        peer.link = Some(id);
        for (sequence, kind, payload) in peer.window.after(received) {
            peer.fed = peer.fed.max(sequence);
            let header = header(peer, kind, sequence);
            link.to_shim.push_back(frame::encode(header, &payload));
        }
        self.links.insert(id, link);
        // A link says what is kept before it reads: what an earlier link handed over may be
        // acknowledged on this one.
        while self.shim_sends() {}
    }

    /// Hands over the next message that is kept; false when there is none.
    fn shim_sends(&mut self) -> bool {
        let acknowledged = self.shim.inbox.written();
        let Some(link) = self.shim.link.and_then(|id| self.links.get_mut(&id)) else {
            return false;
        };
        let Some((sequence, kind, payload)) = self.shim.outbox.after(link.sent) else {
            return false;
        };
        link.sent = sequence;
        let header = Header { kind, epoch: link.epoch, sequence, acknowledged };
        link.to_gateway.push_back(frame::encode(header, &payload));
        true
    }

    fn shim_hears(&mut self, id: u8) {
        let current = self.shim.link == Some(id);
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(frame) = link.to_shim.pop_front() else { return };
        if !current {
            return;
        }
        let parts = frame::decode(frame).expect("our own frame");
        let buffers = (&mut self.shim.inbox, &mut self.shim.outbox);
        if entry::take((link.epoch, link.sent), buffers, parts).is_err() {
            self.cut(id);
        }
    }

    fn child_reads(&mut self) {
        let Some((epoch, sequence, _, payload)) = self.shim.inbox.pop() else { return };
        self.shim.writing = Some((epoch, sequence, payload.len()));
        let (id, call) = read(&payload, "params");
        if message::number_of(self.admitted, &id).is_none() {
            self.broken.insert(OLD);
        }
        *self.ran.entry(call).or_default() += 1;
        self.child.push((id, call));
    }

    fn gateway_hears(&mut self, id: u8) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(frame) = link.to_gateway.pop_front() else { return };
        let g = link.gateway;
        let Some(peer) = self.gateways[g].peer.as_mut().filter(|p| p.link == Some(id)) else {
            return;
        };
        let (header, payload) = frame::decode(frame).expect("the shim's own frame");
        peer.window.acknowledge(header.acknowledged);
        if window::is_old(header.sequence, peer.delivered) {
            return;
        }
        peer.delivered = header.sequence;
        let (id, answered) = read(&payload, "result");
        let number = message::number_of(u64::try_from(peer.epoch).expect("positive"), &id);
        if let Some(call) = number.and_then(|n| peer.waiting.remove(&n)) {
            self.said(call, Said::Answer(answered));
        }
    }

    /// Another gateway, or another start of the same, becomes the host.
    fn place(&mut self, g: usize) {
        self.host = g;
        self.epoch += 1;
        // It leaves what it held under an older epoch before it takes over.
        self.leave(g);
        self.gateways[g].epoch = self.epoch;
        self.gateways[g].refused = false;
    }

    /// `Host::leave`: calls in flight are cut, the connection is closed.
    fn leave(&mut self, g: usize) {
        self.close_peer(g);
        for i in 0..self.calls.len() {
            if self.calls[i].gateway == g && self.calls[i].stand == Stand::Intended {
                self.said(i, Said::NotSent);
            }
        }
        let gateway = &mut self.gateways[g];
        (gateway.epoch, gateway.taken, gateway.ending) = (0, false, None);
    }

    fn calm_actions(&self) -> Vec<Action> {
        let mut out = vec![];
        for (g, gateway) in self.gateways.iter().enumerate() {
            if gateway.epoch > 0 && gateway.ending.is_none() {
                // The journal refuses an older epoch, again and again.
                if gateway.epoch >= self.journal.rules.epoch {
                    out.push(Action::Raise(g));
                }
            } else if gateway.epoch > 0 && !gateway.taken {
                out.push(Action::EndOpen(g));
            }
            if gateway.epoch > 0 && g != self.host {
                out.push(Action::Leave(g));
            }
            let linked = gateway.peer.as_ref().is_some_and(|p| p.link.is_some());
            if gateway.taken && !gateway.refused && !linked {
                out.push(Action::Attach(g));
            }
            if let Some(peer) = &gateway.peer
                && peer.link.is_some()
                && peer.delivered > peer.told
            {
                out.push(Action::Acknowledge(g));
            }
        }
        for (id, link) in &self.links {
            if !link.to_shim.is_empty() {
                out.push(Action::ShimHears(*id));
            }
            if !link.to_gateway.is_empty() {
                out.push(Action::GatewayHears(*id));
            }
        }
        if self.shim.writing.is_some() {
            out.push(Action::Written);
        } else if self.shim.inbox.clone().pop().is_some() {
            out.push(Action::ChildReads);
        }
        if let Some(link) = self.shim.link.and_then(|id| self.links.get(&id))
            && self.shim.outbox.after(link.sent).is_some()
        {
            out.push(Action::ShimSends);
        }
        out.extend((0..self.child.len()).map(Action::ChildAnswers));
        for (i, call) in self.calls.iter().enumerate() {
            match call.stand {
                Stand::Intended => out.push(Action::Dispatch(i)),
                Stand::Came(_) => out.push(Action::Record(i)),
                Stand::New | Stand::Sent { .. } | Stand::Done(_) => {}
            }
        }
        out
    }

    fn answered_are_on_record(&self) -> bool {
        self.calls.iter().enumerate().all(|(i, call)| match call.stand {
            Stand::Done(Heard::Said(said)) => self.journal.ended.get(&i) == Some(&said),
            _ => true,
        })
    }

    fn once(&self) -> bool {
        self.ran.iter().all(|(call, times)| *times <= 1 && self.journal.intents.contains(call))
    }

    fn own(&self) -> bool {
        self.calls.iter().enumerate().all(|(i, call)| match call.stand {
            Stand::Came(Said::Answer(k)) | Stand::Done(Heard::Said(Said::Answer(k))) => k == i,
            _ => true,
        })
    }

    fn not_sent(&self) -> bool {
        self.journal
            .ended
            .iter()
            .all(|(call, said)| *said != Said::NotSent || !self.ran.contains_key(call))
    }
}

fn header(peer: &mut Peer, kind: Kind, sequence: u64) -> Header {
    peer.told = peer.delivered;
    let epoch = u64::try_from(peer.epoch).expect("epochs are positive");
    Header { kind, epoch, sequence, acknowledged: peer.delivered }
}

impl Model for Handover {
    type State = World;
    type Action = Action;

    fn start(&self) -> World {
        let gateway = || Gateway {
            incarnation: 0,
            epoch: 0,
            ending: None,
            taken: false,
            refused: false,
            peer: None,
            next: 1,
        };
        let identity = Identity {
            pod_uid: "pod".into(),
            session_uid: "session-uid".into(),
            attachment_uid: "attachment-uid".into(),
            generation: 4,
        };
        let call = Call { gateway: 0, epoch: 0, stand: Stand::New };
        let mut world = World {
            journal: Journal::default(),
            shim: Shim {
                fence: Fence::new(identity, vec![]),
                inbox: Inbox::new(4096),
                outbox: Outbox::default(),
                link: None,
                writing: None,
            },
            links: BTreeMap::new(),
            made: 0,
            admitted: 0,
            gateways: [gateway(), gateway()],
            host: 0,
            epoch: 0,
            calls: vec![call; usize::from(self.budget.calls)],
            child: vec![],
            ran: BTreeMap::new(),
            left: self.budget,
            broken: BTreeSet::new(),
            smooth: true,
        };
        world.place(0);
        for action in [Action::Raise(0), Action::EndOpen(0), Action::Attach(0)] {
            world = self.next(&world, &action);
        }
        world
    }

    fn actions(&self, w: &World) -> Vec<Action> {
        let mut out = w.calm_actions();
        if let Some(call) = w.calls.iter().position(|c| c.stand == Stand::New) {
            let taken = (0..2).filter(|g| w.gateways[*g].taken);
            out.extend(taken.map(|gateway| Action::Begin { call, gateway }));
        }
        if w.left.breaks > 0 {
            out.extend(w.links.keys().map(|id| Action::Break(*id)));
        }
        for (g, gateway) in w.gateways.iter().enumerate() {
            let linked = gateway.peer.as_ref().is_some_and(|p| p.link.is_some());
            if w.left.breaks > 0 && linked {
                out.push(Action::Hang(g));
            }
            if w.left.crashes > 0 && gateway.epoch > 0 {
                out.push(Action::Crash(g));
            }
            if w.left.moves > 0 && (g != w.host || gateway.epoch == 0) {
                out.push(Action::Move(g));
            }
            if w.left.renewals > 0 && linked {
                out.push(Action::Renew(g));
            }
        }
        if w.left.impatience > 0 {
            let sent = |(_, c): &(usize, &Call)| matches!(c.stand, Stand::Sent { .. });
            let sent = w.calls.iter().enumerate().filter(sent);
            out.extend(sent.map(|(i, _)| Action::GiveUp(i)));
        }
        out
    }

    fn next(&self, state: &World, action: &Action) -> World {
        let mut w = state.clone();
        match action {
            Action::Begin { call, gateway } => {
                let epoch = w.gateways[*gateway].epoch;
                let recorded = w.append(epoch, *call, None);
                let stand = match Intended::once(recorded) {
                    Ok(_) => Stand::Intended,
                    Err(_) => Stand::Done(Heard::Refused),
                };
                w.calls[*call] = Call { gateway: *gateway, epoch, stand };
            }
            Action::Dispatch(call) => {
                let g = w.calls[*call].gateway;
                let gateway = &mut w.gateways[g];
                let Some(peer) = &mut gateway.peer else {
                    w.said(*call, Said::NotSent);
                    return w;
                };
                let number = gateway.next;
                gateway.next += 1;
                peer.waiting.insert(number, *call);
                let epoch = u64::try_from(peer.epoch).expect("positive");
                let params = Bytes::from(format!("{{\"call\":{call}}}"));
                let params = RawJson::parse(params).expect("JSON");
                let draft = message::request(epoch, number, "tools/call", Some(&params));
                let sequence = w.feed(g, draft);
                w.calls[*call].stand = Stand::Sent { number, sequence };
            }
            Action::Attach(g) => w.attach(*g),
            Action::ShimHears(id) => w.shim_hears(*id),
            Action::ChildReads => w.child_reads(),
            Action::Written => {
                if let Some((epoch, sequence, len)) = w.shim.writing.take() {
                    w.shim.inbox.wrote(epoch, sequence, len);
                }
            }
            Action::ChildAnswers(i) => {
                let (id, call) = w.child.remove(*i);
                let text =
                    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"call\":{call}}}}}");
                w.shim.outbox.push(Kind::Message, Bytes::from(text));
            }
            Action::ShimSends => drop(w.shim_sends()),
            Action::GatewayHears(id) => w.gateway_hears(*id),
            Action::Acknowledge(g) => {
                let peer = w.gateways[*g].peer.as_mut().expect("a peer");
                let header = header(peer, Kind::Acknowledge, 0);
                let link = peer.link.and_then(|id| w.links.get_mut(&id)).expect("a link");
                link.to_shim.push_back(frame::encode(header, b""));
            }
            Action::Record(call) => {
                let Call { epoch, stand: Stand::Came(said), .. } = w.calls[*call] else {
                    return w;
                };
                let recorded = w.append(epoch, *call, Some(said));
                let intended = Intended::once(Ok::<_, AppendError>(())).expect("it was recorded");
                let heard = intended.answer(recorded, Heard::Said(said));
                w.calls[*call].stand = Stand::Done(heard.unwrap_or(Heard::Refused));
            }
            Action::Raise(g) => {
                let epoch = w.gateways[*g].epoch;
                if w.journal.rules.raise(epoch).is_ok() {
                    w.gateways[*g].ending = Some(w.journal.open());
                }
            }
            Action::EndOpen(g) => {
                let epoch = w.gateways[*g].epoch;
                let Some(ending) = &mut w.gateways[*g].ending else { return w };
                let Some(call) = ending.pop() else {
                    w.gateways[*g].taken = true;
                    return w;
                };
                match w.append(epoch, call, Some(Said::Unknown)) {
                    Ok(()) | Err(AppendError::AlreadyEnded) => {}
                    // Another host came meanwhile.
                    Err(_) => w.gateways[*g].ending = None,
                }
            }
            Action::Break(id) => {
                w.left.breaks -= 1;
                w.cut(*id);
            }
            Action::Hang(g) => {
                w.left.breaks -= 1;
                w.hang(*g);
            }
            Action::Crash(g) => {
                w.left.crashes -= 1;
                w.smooth = false;
                w.hang(*g);
                for call in w.calls.iter_mut().filter(|c| c.gateway == *g) {
                    if !matches!(call.stand, Stand::New | Stand::Done(_)) {
                        call.stand = Stand::Done(Heard::Nothing);
                    }
                }
                let incarnation = w.gateways[*g].incarnation + 1;
                w.gateways[*g] = Gateway {
                    incarnation,
                    epoch: 0,
                    ending: None,
                    taken: false,
                    refused: false,
                    peer: None,
                    next: 1,
                };
            }
            Action::Move(g) => {
                w.left.moves = w.left.moves.saturating_sub(1);
                w.smooth = false;
                w.place(*g);
            }
            Action::Leave(g) => w.leave(*g),
            Action::Renew(g) => {
                w.left.renewals -= 1;
                w.smooth = false;
                w.close_peer(*g);
            }
            Action::GiveUp(call) => {
                w.left.impatience -= 1;
                w.smooth = false;
                let Call { gateway, stand: Stand::Sent { number, .. }, .. } = w.calls[*call] else {
                    return w;
                };
                if let Some(peer) = &mut w.gateways[gateway].peer {
                    peer.waiting.remove(&number);
                }
                w.said(*call, Said::Unknown);
            }
        }
        w
    }

    fn checks(&self) -> Vec<Check<World>> {
        vec![
            (ON_RECORD, World::answered_are_on_record),
            (ONCE, World::once),
            (OWN, World::own),
            (OLD, |w| !w.broken.contains(OLD)),
            (NOT_SENT, World::not_sent),
            (FIRST, |w| !w.broken.contains(FIRST)),
        ]
    }

    fn calm(
        &self,
        state: &World,
        see: &mut dyn FnMut(&World) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut w = state.clone();
        if w.gateways[w.host].epoch == 0 {
            w = self.next(&w, &Action::Move(w.host));
        }
        for _ in 0..300 {
            let Some(action) = w.calm_actions().into_iter().next() else { break };
            w = self.next(&w, &action);
            see(&w)?;
        }
        if let Some(action) = w.calm_actions().first() {
            return Err(format!("it does not come to rest: {action:?}"));
        }
        for (i, call) in w.calls.iter().enumerate() {
            match call.stand {
                Stand::New | Stand::Done(Heard::Said(Said::Answer(_))) => {}
                Stand::Done(_) if !w.smooth => {}
                other => return Err(format!("call {i} ends as {other:?}")),
            }
        }
        match w.journal.open()[..] {
            [] => Ok(()),
            _ => Err(format!("left open: {:?}", w.journal.open())),
        }
    }
}
