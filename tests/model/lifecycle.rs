//! The lifecycle: an operator, one Session in the API server, two gateways, one attachment; what
//! each decides is the code that runs in production ([`step`], [`place`], [`hosting`]). Around it
//! stand a watch that lags, receipts that come late, again and out of order, gateways that die or
//! are cut off, an operator that dies between a write and what follows from it, servers that fail.

use crate::explore::{Check, Model};
use awaken_operator::{
    api::session::Host,
    controller::hosts::{Gateway, place},
    domain::{
        lifecycle::{
            Blueprint, Desired, Effect, Evidence, Generation, Limits, Origin, Owner, Place,
            PodFact, Receipt, RemovedBy, Rollout, Situation, Stage, StageKind, State, Target,
            Verdict, Wish, fingerprint,
            hosting::{self, Charge, Death, Deed, Door, Publish},
            step,
        },
        reason::Reason,
    },
};
use jiff::{SignedDuration, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    rc::Rc,
};

const SESSION: &str = "session-uid";
const ATTACHMENT: &str = "attachment-uid";
const GATEWAYS: [&str; 2] = ["gw-a", "gw-b"];
/// Longer than every deadline that an entry has.
const PASS: SignedDuration = SignedDuration::from_secs(200);

/// Where the server of the model's attachment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Http,
    Pod,
}

/// How often each thing may go wrong or change on one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub edits: u8,
    pub removals: u8,
    pub crashes: u8,
    pub expiries: u8,
    pub restarts: u8,
    pub deaths: u8,
    pub refusals: u8,
    pub replays: u8,
    pub ticks: u8,
    pub calls: u8,
}

impl Budget {
    pub const NONE: Self = Self {
        edits: 0,
        removals: 0,
        crashes: 0,
        expiries: 0,
        restarts: 0,
        deaths: 0,
        refusals: 0,
        replays: 0,
        ticks: 0,
        calls: 0,
    };
}

/// The model.
pub struct Lifecycle {
    pub kind: Kind,
    pub budget: Budget,
    pub rollout: Rollout,
    /// It begins with a generation that serves, not with nothing.
    pub served: bool,
}

/// What of a Session is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Object {
    host: Option<Host>,
    entries: Vec<Generation>,
    last: i64,
    receipts: Vec<Receipt>,
}

impl Hash for Object {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let host = self.host.as_ref().map(|h| (&h.gateway, &h.incarnation, h.epoch));
        (host, &self.entries, self.last, &self.receipts).hash(to);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Serve(u8),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Pod {
    Pending,
    Running(u8),
    Ended,
    Deleting,
}

/// What goes on at a gateway beside its loop, and what it will tell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Task {
    Realize { n: i64, print: String },
    Drain { n: i64, print: String, server: Option<u8>, begun: bool },
}

/// A call on its way in: what it found in the catalog.
type Look = (i64, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Post {
    incarnation: String,
    epoch: i64,
    taken: bool,
    charges: BTreeMap<i64, Charge<u8, Reason>>,
    catalog: BTreeMap<i64, u8>,
    doors: BTreeMap<u8, Door>,
    outbox: BTreeMap<i64, Receipt>,
    tasks: BTreeSet<Task>,
    look: Option<Look>,
    inside: BTreeMap<u8, i64>,
    /// Generations whose drain was told.
    told: BTreeSet<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seat {
    incarnation: u8,
    /// It renews its Lease.
    serving: bool,
    view: Rc<Object>,
    post: Option<Post>,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    now: Timestamp,
    object: Rc<Object>,
    asked: Asked,
    live: [Option<u8>; 2],
    seats: [Seat; 2],
    pods: BTreeMap<i64, Pod>,
    effects: Vec<(bool, i64)>,
    written: Vec<Receipt>,
    left: Budget,
    /// Checks that a transition saw broken.
    broken: BTreeSet<&'static str>,
}

/// What can happen.
#[derive(Clone, Debug)]
pub enum Action {
    Edit(u8),
    Remove,
    Reconcile,
    Perform,
    OperatorDies,
    PodRuns(i64),
    PodEnds(i64),
    PodGone(i64),
    Watch(usize),
    Taken(usize),
    Proven(usize, usize),
    Refused(usize, usize, Reason),
    DrainBegins(usize, usize),
    Drained(usize, usize),
    Died(usize, i64),
    Write(usize),
    Replay(usize),
    Crash(usize),
    Expire(usize),
    Seen(usize),
    Look(usize),
    Enter(usize),
    Leave(usize, u8),
    Tick,
}

const ONE_ACTIVE: &str = "one Active generation for each attachment";
const NO_CALL: &str = "no call is let in once the drain was taken";
const OLD: &str = "no receipt of an old epoch or incarnation advances anything";
const OLD_STAGE: &str = "no gateway acts on a stage of another epoch or incarnation";
const ONE_GATEWAY: &str = "one gateway serves a Session";
const ALONE: &str = "one that is recreated has nobody beside it";
const NUMBERS: &str = "no number is used twice";

fn limits() -> Limits {
    Limits {
        startup_timeout_ms: 60_000,
        call_timeout_ms: 61_000,
        drain_timeout_ms: 30_000,
        max_concurrent_calls: 1,
        max_message_bytes: 4096,
    }
}

fn incarnation(gateway: usize, n: u8) -> String {
    format!("{}-{n}", GATEWAYS[gateway])
}

fn source(k: u8) -> String {
    format!("source-{k}")
}

impl Lifecycle {
    fn desired(&self, asked: Asked) -> Vec<Desired> {
        let Asked::Serve(k) = asked else { return vec![] };
        let place = match self.kind {
            Kind::Http => Place::Http { url: format!("http://server-{k}/"), credential: None },
            Kind::Pod => Place::Pod { secrets: vec![] },
        };
        let blueprint = Blueprint {
            server: "files".into(),
            source: source(k),
            place,
            limits: limits(),
            rollout: self.rollout,
        };
        vec![Desired {
            attachment: "files".into(),
            attachment_uid: ATTACHMENT.into(),
            origin: Origin::Agent,
            wish: Wish::Serve(blueprint),
            retry: false,
        }]
    }

    fn reconcile(&self, w: &mut World) {
        let gateway = |(i, n): (usize, &Option<u8>)| {
            n.map(|n| Gateway { name: GATEWAYS[i].into(), incarnation: incarnation(i, n) })
        };
        let live: Vec<_> = w.live.iter().enumerate().filter_map(gateway).collect();
        let placed = place(SESSION, w.object.host.as_ref(), &live);
        let host = placed.host.clone();
        let owner = host.as_ref().filter(|_| placed.alive);
        let owner = owner.map(|h| Owner { incarnation: &h.incarnation, epoch: h.epoch });
        let desired = self.desired(w.asked);
        let pods = w.pods.iter().map(|(n, pod)| (*n, fact(*n, *pod))).collect();
        let before = w.object.clone();
        let run = |receipts: &[Receipt]| {
            step(&Situation {
                now: w.now,
                session: "coder",
                session_uid: SESSION,
                entries: &before.entries,
                last_generation: before.last,
                receipts,
                owner,
                desired: &desired,
                pods: &pods,
                terminating: false,
            })
        };
        let out = run(&before.receipts);
        let of_owner = |r: &&Receipt| {
            owner.is_some_and(|o| {
                r.generation_ref.incarnation == o.incarnation && r.generation_ref.epoch == o.epoch
            })
        };
        let own: Vec<_> = before.receipts.iter().filter(of_owner).cloned().collect();
        if own.len() < before.receipts.len() {
            let without = run(&own);
            if (&without.entries, &without.effects) != (&out.entries, &out.effects) {
                w.broken.insert(OLD);
            }
        }
        for e in out.entries.iter().filter(|e| e.state == State::Active) {
            let old = before.entries.iter().find(|o| o.generation == e.generation);
            let proof = |r: &&Receipt| {
                old.is_some_and(|o| answers(r, o, StageKind::Realize)) && r.verdict == Verdict::Done
            };
            let was = old.is_some_and(|o| o.state == State::Active);
            if !was && !own.iter().any(|r| proof(&r)) {
                w.broken.insert(OLD);
            }
        }
        for e in &out.entries {
            let new = before.entries.iter().all(|o| o.generation != e.generation);
            if new && e.generation <= before.last {
                w.broken.insert(NUMBERS);
            }
        }
        let begins = |e: &&Generation| {
            matches!(e.state, State::Requested | State::Realizing | State::Active)
        };
        let live = out.entries.iter().filter(begins).count();
        let pods_beside = |n: i64| w.pods.keys().any(|m| *m < n);
        let beside =
            out.effects.iter().any(|e| matches!(e, Effect::CreatePod(n) if pods_beside(*n)));
        if self.rollout == Rollout::Recreate && (live > 1 || beside) {
            w.broken.insert(ALONE);
        }
        let inside = |n: i64| w.seats.iter().any(|s| s.serves() && s.inside(n));
        if out.removed.iter().any(|r| r.by == RemovedBy::Drained && inside(r.generation)) {
            w.broken.insert(NO_CALL);
        }
        w.effects = out
            .effects
            .iter()
            .map(|e| match e {
                Effect::CreatePod(n) => (true, *n),
                Effect::DeletePod(n) => (false, *n),
            })
            .collect();
        w.object = Rc::new(Object {
            host,
            entries: out.entries,
            last: out.last_generation,
            receipts: before.receipts.clone(),
        });
    }

    /// The state in which all comes to rest, once nothing goes wrong any more.
    fn calmed(
        &self,
        state: &World,
        see: &mut dyn FnMut(&World) -> Result<(), String>,
    ) -> Result<World, String> {
        let mut w = state.clone();
        w.left = Budget::NONE;
        for _ in 0..400 {
            see(&w)?;
            // The operator first: it is the one who waits for the others.
            let reconciled = w.effects.is_empty().then(|| self.reconciled(&w)).flatten();
            if let Some(next) = reconciled {
                w = next;
            } else if let Some(action) = w.calm_actions().first() {
                w = self.next(&w, action);
            } else if settled(&w) {
                return Ok(w);
            } else {
                w = self.next(&w, &Action::Tick);
            }
        }
        Err(format!("it does not come to rest as asked: {:?} {:#?}", w.asked, w.object))
    }

    fn reconciled(&self, state: &World) -> Option<World> {
        let mut next = state.clone();
        self.reconcile(&mut next);
        (next != *state).then_some(next)
    }
}

fn fact(n: i64, pod: Pod) -> PodFact {
    match pod {
        Pod::Pending => PodFact::Pending(None),
        Pod::Running(k) => {
            PodFact::Running { uid: format!("pod-{n}-{k}"), address: format!("10.0.{k}.{n}") }
        }
        Pod::Ended => PodFact::Ended(Reason::ServerExited, "code 3".into()),
        Pod::Deleting => PodFact::Deleting,
    }
}

/// Whether the receipt answers this stage of the entry, looked at from first principles.
fn answers(r: &Receipt, e: &Generation, kind: StageKind) -> bool {
    let whole = &r.generation_ref;
    r.stage == kind
        && r.generation == e.generation
        && whole.generation == e.generation
        && whole.session_uid == SESSION
        && whole.attachment_uid == e.attachment_uid
        && r.fingerprint == fingerprint(whole, kind, &e.target, &e.limits)
}

impl Seat {
    fn serves(&self) -> bool {
        self.serving && self.post.as_ref().is_some_and(|p| p.taken)
    }

    fn inside(&self, n: i64) -> bool {
        self.post.as_ref().is_some_and(|p| p.inside.values().any(|m| *m == n))
    }

    /// A Session was written: `Host::session`.
    fn session(&mut self, gateway: usize, now: Timestamp, broken: &mut BTreeSet<&'static str>) {
        let mine = incarnation(gateway, self.incarnation);
        let ours = |h: &&Host| h.gateway == GATEWAYS[gateway] && h.incarnation == mine;
        let view = self.view.clone();
        let Some(host) = view.host.as_ref().filter(ours) else {
            self.post = None;
            return;
        };
        if self.post.as_ref().is_none_or(|p| p.epoch != host.epoch) {
            self.post = Some(Post::new(mine, host.epoch));
            return;
        }
        self.act(now, broken);
    }

    /// `Host::act`.
    fn act(&mut self, now: Timestamp, broken: &mut BTreeSet<&'static str>) {
        let Some(post) = self.post.as_mut().filter(|p| p.taken) else { return };
        let view = &self.view;
        let exists = |n: i64| view.entries.iter().any(|g| g.generation == n);
        post.outbox.retain(|n, _| exists(*n));
        let owner = Owner { incarnation: &post.incarnation, epoch: post.epoch };
        let acted = |c: &Charge<u8, Reason>| {
            c.stage.as_ref().map(|s| s.fingerprint.clone()).unwrap_or_default()
        };
        let acted = post.charges.iter().map(|(n, c)| (*n, acted(c))).collect();
        let plan = hosting::plan(SESSION, owner, &view.entries, &acted);
        let stage_of =
            |n: i64| view.entries.iter().find(|g| g.generation == n).and_then(|g| g.stage.clone());
        let (mut put, mut take) = (vec![], vec![]);
        for deed in plan.deeds {
            if let Deed::Realize(n) | Deed::Publish(n) | Deed::Drain(n) = deed {
                let stage = stage_of(n).expect("a deed has its stage");
                let whole = &stage.generation_ref;
                if whole.epoch != post.epoch || whole.incarnation != post.incarnation {
                    broken.insert(OLD_STAGE);
                }
            }
            match deed {
                Deed::Forget(n) | Deed::Stop(n) => {
                    take.push(n);
                    if let Some(server) = post.charges.remove(&n).and_then(|c| c.server) {
                        post.cut(server);
                    }
                }
                Deed::Realize(n) => {
                    let stage = stage_of(n);
                    if let Some(before) = post.charge(n).realize(stage.clone()) {
                        post.cut(before);
                    }
                    post.realize(n, stage);
                }
                Deed::Publish(n) => {
                    let stage = stage_of(n);
                    match post.charge(n).publish(stage.clone()) {
                        Publish::Put(server) => put.push((n, server)),
                        Publish::BringUp => post.realize(n, stage),
                        Publish::Refuse(why) => post.answer(n, Verdict::Failed, Some(why), now),
                    }
                }
                Deed::Drain(n) => {
                    take.push(n);
                    let stage = stage_of(n);
                    let server = post.charge(n).drain(stage.clone());
                    let print = stage.expect("a deed has its stage").fingerprint;
                    post.tasks.retain(|t| !matches!(t, Task::Realize { n: m, .. } if *m == n));
                    post.tasks.insert(Task::Drain { n, print, server, begun: false });
                }
            }
        }
        post.swap(&put, &take, now);
    }
}

impl Post {
    fn new(incarnation: String, epoch: i64) -> Self {
        Self {
            incarnation,
            epoch,
            taken: false,
            charges: BTreeMap::new(),
            catalog: BTreeMap::new(),
            doors: BTreeMap::new(),
            outbox: BTreeMap::new(),
            tasks: BTreeSet::new(),
            look: None,
            inside: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    fn charge(&mut self, n: i64) -> &mut Charge<u8, Reason> {
        self.charges.entry(n).or_default()
    }

    fn realize(&mut self, n: i64, stage: Option<Stage>) {
        if let Some(Stage { fingerprint: print, .. }) = stage {
            self.tasks.insert(Task::Realize { n, print });
        }
    }

    /// A server that nobody asks for any more: its calls are cut, nobody comes in again.
    fn cut(&mut self, server: u8) {
        if let Some(door) = self.doors.get_mut(&server) {
            door.close();
            if self.inside.remove(&server).is_some() {
                door.leave();
            }
        }
    }

    fn answer(&mut self, n: i64, verdict: Verdict, reason: Option<Reason>, at: Timestamp) {
        let Some(stage) = self.charges.get(&n).and_then(|c| c.stage.clone()) else { return };
        let receipt = Receipt {
            generation: stage.generation_ref.generation,
            stage: stage.kind,
            generation_ref: stage.generation_ref,
            fingerprint: stage.fingerprint,
            verdict,
            evidence: Evidence::default(),
            reason,
            message: String::new(),
            at,
        };
        hosting::remember(&mut self.outbox, receipt);
    }

    /// `Host::swap`.
    fn swap(&mut self, put: &[(i64, u8)], take: &[i64], now: Timestamp) {
        self.catalog.retain(|n, _| !take.contains(n));
        for (n, server) in put {
            self.catalog.insert(*n, *server);
            self.charge(*n).published = true;
            self.answer(*n, Verdict::Done, None, now);
        }
    }

    fn newest(&self) -> Option<Look> {
        self.catalog.iter().next_back().map(|(n, server)| (*n, *server))
    }
}

impl World {
    fn task(&self, g: usize, i: usize) -> Option<Task> {
        self.seats[g].post.as_ref()?.tasks.iter().nth(i).cloned()
    }

    /// Takes a task out and gives its post.
    fn end(&mut self, g: usize, task: &Task) -> &mut Post {
        let post = self.seats[g].post.as_mut().expect("a task has a post");
        post.tasks.remove(task);
        post
    }

    /// What happens by itself when nothing goes wrong, in an order that is fair.
    fn calm_actions(&self) -> Vec<Action> {
        let mut out = vec![];
        if !self.effects.is_empty() {
            out.push(Action::Perform);
        }
        for (n, pod) in &self.pods {
            match pod {
                Pod::Pending => out.push(Action::PodRuns(*n)),
                Pod::Deleting => out.push(Action::PodGone(*n)),
                Pod::Running(_) | Pod::Ended => {}
            }
        }
        for (g, seat) in self.seats.iter().enumerate() {
            if seat.serving && self.live[g] != Some(seat.incarnation) {
                out.push(Action::Seen(g));
            }
            if !seat.serving {
                out.push(Action::Crash(g));
            }
            if seat.view != self.object {
                out.push(Action::Watch(g));
            }
            let Some(post) = &seat.post else { continue };
            if !post.taken {
                out.push(Action::Taken(g));
            }
            if post.look.is_some() {
                out.push(Action::Enter(g));
            }
            out.extend(post.inside.keys().map(|s| Action::Leave(g, *s)));
            for (i, task) in post.tasks.iter().enumerate() {
                match task {
                    Task::Realize { .. } => out.push(Action::Proven(g, i)),
                    Task::Drain { begun: false, .. } => out.push(Action::DrainBegins(g, i)),
                    Task::Drain { server, .. } => {
                        let idle = |s: &u8| post.doors.get(s).is_none_or(Door::is_idle);
                        if server.as_ref().is_none_or(idle) {
                            out.push(Action::Drained(g, i));
                        }
                    }
                }
            }
            let seated = self
                .object
                .host
                .as_ref()
                .is_some_and(|h| h.incarnation == post.incarnation && h.epoch == post.epoch);
            if seated && self.wanted(post) != self.object.receipts {
                out.push(Action::Write(g));
            }
        }
        out
    }

    fn wanted(&self, post: &Post) -> Vec<Receipt> {
        hosting::receipts(&self.object.entries, &self.object.receipts, &post.outbox)
    }

    fn one_active(&self) -> bool {
        self.object.entries.iter().filter(|e| e.state == State::Active).count() <= 1
    }

    fn one_gateway(&self) -> bool {
        let offers =
            |s: &&Seat| s.serves() && s.post.as_ref().is_some_and(|p| !p.catalog.is_empty());
        self.seats.iter().filter(offers).count() <= 1
    }
}

impl Model for Lifecycle {
    type State = World;
    type Action = Action;

    fn start(&self) -> World {
        let object = Rc::new(Object { last: 10, ..Object::default() });
        let seat = || Seat { incarnation: 0, serving: true, view: object.clone(), post: None };
        let mut world = World {
            now: Timestamp::from_second(1_000_000).expect("a time"),
            asked: Asked::Serve(0),
            live: [Some(0), Some(0)],
            seats: [seat(), seat()],
            object: object.clone(),
            pods: BTreeMap::new(),
            effects: vec![],
            written: vec![],
            left: self.budget,
            broken: BTreeSet::new(),
        };
        if self.served {
            world = self.calmed(&world, &mut |_| Ok(())).expect("nothing is in its way");
            world.left = self.budget;
        }
        world
    }

    fn actions(&self, w: &World) -> Vec<Action> {
        let mut out = w.calm_actions();
        // A gateway that was cut off comes back as another start, in its own time.
        if w.effects.is_empty() {
            if self.reconciled(w).is_some() {
                out.push(Action::Reconcile);
            }
        } else if w.left.restarts > 0 {
            out.push(Action::OperatorDies);
        }
        if w.left.edits > 0 {
            let next = match w.asked {
                Asked::Serve(k) => 1 - k,
                Asked::Gone => 0,
            };
            out.push(Action::Edit(next));
        }
        if w.left.removals > 0 && w.asked != Asked::Gone {
            out.push(Action::Remove);
        }
        if w.left.deaths > 0 {
            let running = w.pods.iter().filter(|(_, p)| matches!(p, Pod::Running(_)));
            out.extend(running.map(|(n, _)| Action::PodEnds(*n)));
        }
        if w.left.replays > 0 {
            let there = |r: &Receipt| w.object.receipts.contains(r);
            let old = w.written.iter().enumerate().filter(|(_, r)| !there(r));
            out.extend(old.map(|(i, _)| Action::Replay(i)));
        }
        if w.left.ticks > 0 {
            out.push(Action::Tick);
        }
        for (g, seat) in w.seats.iter().enumerate() {
            if w.left.crashes > 0 && seat.serving {
                out.push(Action::Crash(g));
            }
            if w.left.expiries > 0 && w.live[g].is_some() {
                out.push(Action::Expire(g));
            }
            let Some(post) = &seat.post else { continue };
            if w.left.refusals > 0 {
                for (i, task) in post.tasks.iter().enumerate() {
                    if matches!(task, Task::Realize { .. }) {
                        out.push(Action::Refused(g, i, Reason::ConnectFailed));
                        out.push(Action::Refused(g, i, Reason::Unauthorized));
                    }
                }
            }
            if w.left.deaths > 0 {
                let live = post.charges.iter().filter(|(_, c)| c.server.is_some());
                out.extend(live.map(|(n, _)| Action::Died(g, *n)));
            }
            if w.left.calls > 0 && seat.serves() && post.look.is_none() && post.newest().is_some() {
                out.push(Action::Look(g));
            }
        }
        out
    }

    fn next(&self, state: &World, action: &Action) -> World {
        let mut w = state.clone();
        let now = w.now;
        match action {
            Action::Edit(k) => {
                w.left.edits -= 1;
                w.asked = Asked::Serve(*k);
            }
            Action::Remove => {
                w.left.removals -= 1;
                w.asked = Asked::Gone;
            }
            Action::Reconcile => self.reconcile(&mut w),
            Action::Perform => match w.effects.remove(0) {
                (true, n) => drop(w.pods.entry(n).or_insert(Pod::Pending)),
                (false, n) => {
                    if let Some(pod) = w.pods.get_mut(&n) {
                        *pod = Pod::Deleting;
                    }
                }
            },
            Action::OperatorDies => {
                w.left.restarts -= 1;
                w.effects.clear();
            }
            Action::PodRuns(n) => drop(w.pods.insert(*n, Pod::Running(0))),
            Action::PodEnds(n) => {
                w.left.deaths -= 1;
                w.pods.insert(*n, Pod::Ended);
            }
            Action::PodGone(n) => drop(w.pods.remove(n)),
            Action::Watch(g) => {
                w.seats[*g].view = w.object.clone();
                w.seats[*g].session(*g, now, &mut w.broken);
            }
            Action::Taken(g) => {
                w.seats[*g].post.as_mut().expect("a post").taken = true;
                w.seats[*g].act(now, &mut w.broken);
            }
            Action::Proven(g, i) => {
                let Some(task @ Task::Realize { .. }) = w.task(*g, *i) else { return w };
                let post = w.end(*g, &task);
                let Task::Realize { n, print } = task else { return w };
                if !post.charges.get(&n).is_some_and(|c| c.is_doing(&print)) {
                    return w;
                }
                let server = u8::try_from(post.doors.len()).expect("few servers");
                post.doors.insert(server, Door::new(1));
                if post.charge(n).adopt(server) {
                    post.swap(&[(n, server)], &[], now);
                } else {
                    post.answer(n, Verdict::Done, None, now);
                }
            }
            Action::Refused(g, i, reason) => {
                w.left.refusals -= 1;
                let last = *reason == Reason::Unauthorized;
                let Some(task) = w.task(*g, *i) else { return w };
                let post = w.seats[*g].post.as_mut().expect("a task has a post");
                if last {
                    post.tasks.remove(&task);
                }
                let Task::Realize { n, print } = task else { return w };
                let doing = post.charges.get(&n).is_some_and(|c| c.is_doing(&print));
                if doing && post.charge(n).failed(*reason, last) {
                    post.answer(n, Verdict::Failed, Some(*reason), now);
                }
            }
            Action::DrainBegins(g, i) => {
                let Some(task) = w.task(*g, *i) else { return w };
                let post = w.end(*g, &task);
                let Task::Drain { n, print, server, .. } = task else { return w };
                if let Some(door) = server.and_then(|s| post.doors.get_mut(&s)) {
                    door.close();
                }
                post.tasks.insert(Task::Drain { n, print, server, begun: true });
            }
            Action::Drained(g, i) => {
                let Some(task) = w.task(*g, *i) else { return w };
                let post = w.end(*g, &task);
                let Task::Drain { n, print, .. } = task else { return w };
                if post.charges.get(&n).is_some_and(|c| c.is_doing(&print)) {
                    post.charge(n).drained();
                    post.told.insert(n);
                    post.answer(n, Verdict::Done, None, now);
                }
            }
            Action::Died(g, n) => {
                w.left.deaths -= 1;
                let post = w.seats[*g].post.as_mut().expect("a server has a post");
                if post.charge(*n).died(Reason::ServerLost) == Death::Published {
                    post.catalog.remove(n);
                    post.answer(*n, Verdict::Lost, Some(Reason::ServerLost), now);
                }
            }
            Action::Write(g) => {
                let post = w.seats[*g].post.as_ref().expect("a post");
                let receipts = w.wanted(post);
                for r in &receipts {
                    if !w.written.contains(r) {
                        w.written.push(r.clone());
                    }
                }
                w.object = Rc::new(Object { receipts, ..Object::clone(&w.object) });
            }
            Action::Replay(i) => {
                w.left.replays -= 1;
                let old = w.written[*i].clone();
                let mut receipts = w.object.receipts.clone();
                receipts.retain(|r| r.generation != old.generation);
                receipts.push(old);
                w.object = Rc::new(Object { receipts, ..Object::clone(&w.object) });
            }
            Action::Crash(g) => {
                let seat = &mut w.seats[*g];
                if seat.serving {
                    w.left.crashes -= 1;
                }
                let view = w.object.clone();
                *seat = Seat { incarnation: seat.incarnation + 1, serving: true, view, post: None };
            }
            Action::Expire(g) => {
                w.left.expiries -= 1;
                // Who cannot renew stops before it is seen to be gone.
                if w.live[*g] == Some(w.seats[*g].incarnation) {
                    w.seats[*g].serving = false;
                }
                w.live[*g] = None;
            }
            Action::Seen(g) => w.live[*g] = Some(w.seats[*g].incarnation),
            Action::Look(g) => {
                w.left.calls -= 1;
                let post = w.seats[*g].post.as_mut().expect("a catalog has a post");
                post.look = post.newest();
                let found = post.look.and_then(|(n, _)| post.charges.get(&n));
                if found.is_none_or(|c| c.kind() == Some(StageKind::Drain)) {
                    w.broken.insert(NO_CALL);
                }
            }
            Action::Enter(g) => {
                let post = w.seats[*g].post.as_mut().expect("a look has a post");
                let Some((n, server)) = post.look.take() else { return w };
                let door = post.doors.get_mut(&server).expect("a server has a door");
                if door.enter().is_ok() {
                    post.inside.insert(server, n);
                    if post.told.contains(&n) {
                        w.broken.insert(NO_CALL);
                    }
                }
            }
            Action::Leave(g, server) => {
                let post = w.seats[*g].post.as_mut().expect("a call has a post");
                post.inside.remove(server);
                post.doors.get_mut(server).expect("a server has a door").leave();
            }
            Action::Tick => {
                w.left.ticks = w.left.ticks.saturating_sub(1);
                w.now += PASS;
            }
        }
        w
    }

    fn checks(&self) -> Vec<Check<World>> {
        vec![
            (ONE_ACTIVE, World::one_active),
            (ONE_GATEWAY, World::one_gateway),
            (NO_CALL, |w| !w.broken.contains(NO_CALL)),
            (OLD, |w| !w.broken.contains(OLD)),
            (OLD_STAGE, |w| !w.broken.contains(OLD_STAGE)),
            (NUMBERS, |w| !w.broken.contains(NUMBERS)),
            (ALONE, |w| !w.broken.contains(ALONE)),
        ]
    }

    fn calm(
        &self,
        state: &World,
        see: &mut dyn FnMut(&World) -> Result<(), String>,
    ) -> Result<(), String> {
        self.calmed(state, see).map(drop)
    }
}

/// What is asked for serves at its host and nothing else is left; or nothing is left at all.
fn settled(w: &World) -> bool {
    let Asked::Serve(k) = w.asked else {
        return w.object.entries.is_empty() && w.pods.is_empty();
    };
    let [entry] = &w.object.entries[..] else { return false };
    let serves = |s: &Seat| {
        s.serves()
            && s.post.as_ref().is_some_and(|p| p.newest().map(|l| l.0) == Some(entry.generation))
    };
    let pods = match entry.target {
        Target::Http(_) => 0,
        Target::SandboxStdio(_) => 1,
    };
    entry.state == State::Active
        && entry.published
        && entry.source == source(k)
        && w.pods.len() == pods
        && w.seats.iter().any(serves)
}
