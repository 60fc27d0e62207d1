//! From a Session as it is stored to what this gateway does about it. Pure.

use crate::{
    domain::lifecycle::{Generation, StageKind, State, fingerprint},
    gateway::index::{Seat, SessionView},
};
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
/// stage of each generation that is known here.
pub fn plan(view: &SessionView, seat: &Seat, acted: &BTreeMap<i64, String>) -> Plan {
    let mut plan = Plan::default();
    for generation in &view.generations {
        let number = generation.generation;
        let known = acted.get(&number);
        match asked(view, seat, generation) {
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
    let gone = acted.keys().filter(|n| view.generations.iter().all(|g| g.generation != **n));
    plan.deeds.extend(gone.map(|n| Deed::Forget(*n)));
    plan
}

enum Asked<'a> {
    Nothing,
    Ignored,
    This(StageKind, &'a str),
}

fn asked<'a>(view: &SessionView, seat: &Seat, generation: &'a Generation) -> Asked<'a> {
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
    let ours = whole.session_uid == view.uid
        && whole.attachment_uid == generation.attachment_uid
        && whole.generation == generation.generation
        && whole.incarnation == seat.incarnation
        && whole.epoch == seat.epoch;
    let print = fingerprint(whole, stage.kind, &generation.target, &generation.limits);
    if ours && print == stage.fingerprint {
        Asked::This(stage.kind, &stage.fingerprint)
    } else {
        Asked::Ignored
    }
}
