//! The gateway's half of the lifecycle: what it does about the stages that stand in a Session, what
//! it knows of each generation, and who still gets in.
//!
//! ```text
//!  entries ──plan──► Deed ──► Charge::{realize, publish, drain}
//!                             Charge::{adopt, failed, died, drained} ◄── what became of it
//!  call ──► Door::enter ──► … ──► Door::leave      Door::close, by a drain, for good
//! ```
//!
//! The gateway carries out what is decided here; connections and failures are its own types. What
//! the operator makes of the answers is in [`super::step`].

use super::{Generation, Owner, Receipt, Stage, StageKind, State, Verdict, fingerprint};
use std::collections::BTreeMap;

/// One thing to do, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Connect, initialize, list.
    Realize(i64),
    /// Put it into the catalog.
    Publish(i64),
    /// Take it out of the catalog, let calls finish.
    Drain(i64),
    /// Nothing is asked of it any more, and it is not drained: stop what goes on for it.
    Stop(i64),
    /// It is gone from the Session: forget it and its receipt.
    Forget(i64),
}

/// What to do, and how many stages were not for us to act on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order.
    pub deeds: Vec<Deed>,
    /// Stages that do not match themselves, their Session or their host.
    pub ignored: u32,
}

/// Compares what is asked with what was acted on already: `acted` has the fingerprint of the last
/// stage of each generation that is known here. Only stages of this Session for `owner` count.
pub fn plan(
    session_uid: &str,
    owner: Owner<'_>,
    entries: &[Generation],
    acted: &BTreeMap<i64, String>,
) -> Plan {
    let mut plan = Plan::default();
    for generation in entries {
        let number = generation.generation;
        let known = acted.get(&number);
        match asked(session_uid, owner, generation) {
            Asked::Ignored => plan.ignored += 1,
            Asked::Nothing if known.is_some_and(|f| !f.is_empty()) => {
                plan.deeds.push(Deed::Stop(number));
            }
            Asked::Nothing => {}
            Asked::This(kind, print) if known.is_none_or(|f| f != print) => {
                plan.deeds.push(match kind {
                    StageKind::Realize => Deed::Realize(number),
                    StageKind::Publish => Deed::Publish(number),
                    StageKind::Drain => Deed::Drain(number),
                });
            }
            Asked::This(..) => {}
        }
    }
    let gone = acted.keys().filter(|n| entries.iter().all(|g| g.generation != **n));
    plan.deeds.extend(gone.map(|n| Deed::Forget(*n)));
    plan
}

enum Asked<'a> {
    Nothing,
    Ignored,
    This(StageKind, &'a str),
}

fn asked<'a>(session_uid: &str, owner: Owner<'_>, generation: &'a Generation) -> Asked<'a> {
    let Some(stage) = &generation.stage else { return Asked::Nothing };
    let fits = matches!(
        (generation.state, stage.kind),
        (State::Realizing, StageKind::Realize)
            | (State::Active, StageKind::Publish)
            | (State::Draining, StageKind::Drain)
    );
    if !fits {
        return Asked::Nothing;
    }
    let whole = &stage.generation_ref;
    let ours = whole.session_uid == session_uid
        && whole.attachment_uid == generation.attachment_uid
        && whole.generation == generation.generation
        && whole.incarnation == owner.incarnation
        && whole.epoch == owner.epoch;
    let print = fingerprint(whole, stage.kind, &generation.target, &generation.limits);
    if ours && print == stage.fingerprint {
        Asked::This(stage.kind, &stage.fingerprint)
    } else {
        Asked::Ignored
    }
}

/// What a gateway knows of one generation that it was asked for. `S` is the live server, `F` why
/// it failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Charge<S, F> {
    /// The stage that was acted on last; none if it was stopped.
    pub stage: Option<Stage>,
    /// The live server.
    pub server: Option<S>,
    /// Whether it is in the catalog.
    pub published: bool,
    /// Why the server is gone.
    pub lost: Option<F>,
}

/// What Publish comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publish<S, F> {
    /// Put it into the catalog.
    Put(S),
    /// Bring it up first: this gateway never did.
    BringUp,
    /// It cannot be published.
    Refuse(F),
}

/// What the death of a server comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Nothing: it was known, or the generation leaves anyway.
    Known,
    /// It is remembered until somebody asks.
    Unpublished,
    /// Out of the catalog, and tell.
    Published,
}

impl<S, F> Default for Charge<S, F> {
    fn default() -> Self {
        Self { stage: None, server: None, published: false, lost: None }
    }
}

impl<S: Clone, F: Clone> Charge<S, F> {
    /// The kind of its stage.
    pub fn kind(&self) -> Option<StageKind> {
        self.stage.as_ref().map(|s| s.kind)
    }

    /// Whether it still does what the fingerprint asked for; what is told of anything else is old.
    pub fn is_doing(&self, fingerprint: &str) -> bool {
        self.stage.as_ref().is_some_and(|s| s.fingerprint == fingerprint)
    }

    /// Begins anew; gives the server of before, which is to be closed.
    pub fn realize(&mut self, stage: Option<Stage>) -> Option<S> {
        (self.stage, self.lost) = (stage, None);
        self.server.take()
    }

    /// Takes the stage; says what becomes of it.
    pub fn publish(&mut self, stage: Option<Stage>) -> Publish<S, F> {
        self.stage = stage;
        match (&self.lost, &self.server) {
            (Some(failure), _) => Publish::Refuse(failure.clone()),
            (None, Some(server)) => Publish::Put(server.clone()),
            (None, None) => Publish::BringUp,
        }
    }

    /// Takes the stage; gives the server that is to be drained, if there is one.
    pub fn drain(&mut self, stage: Option<Stage>) -> Option<S> {
        (self.stage, self.published) = (stage, false);
        self.server.clone()
    }

    /// A server was proven for its present stage. True when it goes into the catalog now.
    pub fn adopt(&mut self, server: S) -> bool {
        (self.server, self.lost) = (Some(server), None);
        self.kind() == Some(StageKind::Publish)
    }

    /// A try for its present stage failed, the last one if `last`. True when that is told: a
    /// generation that serves again after a take-over fails once, not at each try.
    pub fn failed(&mut self, failure: F, last: bool) -> bool {
        if last {
            self.lost = Some(failure);
        }
        last || self.kind() == Some(StageKind::Realize)
    }

    /// Its server died.
    pub fn died(&mut self, failure: F) -> Death {
        if self.lost.is_some() || self.kind() == Some(StageKind::Drain) {
            return Death::Known;
        }
        self.lost = Some(failure);
        if std::mem::take(&mut self.published) { Death::Published } else { Death::Unpublished }
    }

    /// Nothing is in flight any more and its server is closed.
    pub fn drained(&mut self) {
        self.server = None;
    }
}

/// Puts a receipt in place of an older one of the same generation. False, and nothing is changed,
/// for a failure that says the same as the one before.
pub fn remember(receipts: &mut BTreeMap<i64, Receipt>, receipt: Receipt) -> bool {
    let same = receipts.get(&receipt.generation).is_some_and(|old| {
        old.verdict == Verdict::Failed
            && receipt.verdict == Verdict::Failed
            && old.fingerprint == receipt.fingerprint
            && old.reason == receipt.reason
    });
    if !same {
        receipts.insert(receipt.generation, receipt);
    }
    !same
}

/// The receipts that should stand in a Session: ours, and those that stand there of generations
/// that we have not answered for; none of a generation that is gone.
pub fn receipts(
    entries: &[Generation],
    standing: &[Receipt],
    ours: &BTreeMap<i64, Receipt>,
) -> Vec<Receipt> {
    let standing = standing.iter().map(|r| (r.generation, r));
    let all: BTreeMap<i64, &Receipt> = standing.chain(ours.iter().map(|(n, r)| (*n, r))).collect();
    let exists = |n: i64| entries.iter().any(|g| g.generation == n);
    all.into_iter().filter(|(n, _)| exists(*n)).map(|(_, r)| r.clone()).collect()
}

/// Why a call has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// As many as allowed are in flight.
    Full,
    /// The generation takes no call any more; a newer catalog names its successor.
    Draining,
}

/// The way into one generation: counts who is in, and once closed lets nobody in again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Door {
    capacity: u32,
    in_flight: u32,
    closed: bool,
}

impl Door {
    /// An open one, for so many calls at one time.
    pub fn new(capacity: u32) -> Self {
        Self { capacity, in_flight: 0, closed: false }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// When as many as allowed are in flight, or once it is closed.
    pub fn enter(&mut self) -> Result<(), NoPlace> {
        if self.closed {
            return Err(NoPlace::Draining);
        }
        if self.in_flight >= self.capacity {
            return Err(NoPlace::Full);
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Gives a place back; tells whether nobody is in any more.
    pub fn leave(&mut self) -> bool {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.is_idle()
    }

    /// Lets nobody in from here on.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether nobody is in.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// How many are in.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_enters_a_closed_door_even_when_everybody_left() {
        let mut door = Door::new(2);
        assert_eq!((door.enter(), door.enter()), (Ok(()), Ok(())));
        assert_eq!(door.enter(), Err(NoPlace::Full));
        door.close();
        assert_eq!(door.enter(), Err(NoPlace::Draining));
        assert_eq!((door.leave(), door.leave()), (false, true));
        assert_eq!((door.enter(), door.in_flight()), (Err(NoPlace::Draining), 0));
    }
}
