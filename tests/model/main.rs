//! Explores the states of the lifecycle and of the hand-over of calls, with everything that can go
//! wrong on the way, over the code that production runs: breadth first as far as the limit lets it,
//! and deep on ways chosen by chance. What it taught: `docs/decisions/0011-*`.
//!
//! `AWAKEN_MODEL_STATES` sets how many states each run may walk through, `AWAKEN_MODEL_WALKS` how
//! many ways it goes, `AWAKEN_MODEL_SEED` which.

mod explore;
mod handover;
mod lifecycle;

use awaken_operator::domain::lifecycle::Rollout;
use explore::{Model, explore, setting, wander};
use handover::Handover;
use lifecycle::{Kind, Lifecycle};

/// Longest way that is chosen by chance, in actions.
const LENGTH: usize = 150;

fn run(name: &str, model: &impl Model, (states, walks): (usize, usize)) {
    explore(name, model, setting("AWAKEN_MODEL_STATES", states), 20);
    let walks = setting("AWAKEN_MODEL_WALKS", walks);
    let seed = setting("AWAKEN_MODEL_SEED", 1);
    wander(name, model, (walks, LENGTH), seed as u64);
}

fn lifecycle(name: &str, (kind, served): (Kind, bool), budget: lifecycle::Budget) {
    let rollout = Rollout::Surge;
    run(name, &Lifecycle { kind, budget, served, rollout }, (6_000, 1_500));
}

fn handover(name: &str, budget: handover::Budget) {
    run(name, &Handover { budget }, (12_000, 3_000));
}

const NOTHING: lifecycle::Budget = lifecycle::Budget::NONE;
const SMOOTH: handover::Budget = handover::Budget::NONE;

#[test]
fn a_replacement_under_calls_with_old_receipts() {
    let budget = lifecycle::Budget { edits: 2, calls: 2, replays: 1, ..NOTHING };
    lifecycle("replacement", (Kind::Http, true), budget);
}

#[test]
fn what_begins_and_fails_and_is_taken_back() {
    let budget = lifecycle::Budget { edits: 1, removals: 1, refusals: 2, ticks: 1, ..NOTHING };
    lifecycle("beginning", (Kind::Http, false), budget);
}

#[test]
fn a_host_that_is_lost_and_one_that_dies() {
    let budget = lifecycle::Budget {
        edits: 1,
        expiries: 2,
        crashes: 2,
        replays: 2,
        calls: 1,
        refusals: 1,
        ..NOTHING
    };
    lifecycle("hosts", (Kind::Http, true), budget);
}

#[test]
fn a_pod_that_changes_its_host() {
    let budget = lifecycle::Budget { edits: 1, removals: 1, expiries: 2, replays: 1, ..NOTHING };
    lifecycle("pod and hosts", (Kind::Pod, true), budget);
}

#[test]
fn one_that_is_recreated_and_has_nobody_beside_it() {
    let (kind, served, rollout) = (Kind::Pod, true, Rollout::Recreate);
    let budget = lifecycle::Budget {
        edits: 2,
        expiries: 1,
        deaths: 1,
        restarts: 1,
        ticks: 1,
        calls: 1,
        ..NOTHING
    };
    run("recreated", &Lifecycle { kind, budget, served, rollout }, (6_000, 1_500));
}

#[test]
fn pods_that_end_while_the_operator_dies() {
    let budget = lifecycle::Budget {
        edits: 1,
        removals: 1,
        deaths: 2,
        restarts: 2,
        ticks: 1,
        calls: 1,
        ..NOTHING
    };
    lifecycle("pods", (Kind::Pod, true), budget);
}

#[test]
fn links_that_break_on_both_sides_and_on_one() {
    handover("links", handover::Budget { calls: 2, breaks: 2, impatience: 1, ..SMOOTH });
}

#[test]
fn answers_are_not_lost_with_their_link() {
    handover("answers", handover::Budget { calls: 3, breaks: 3, ..SMOOTH });
}

#[test]
fn hosts_that_move_and_do_not_know_it() {
    handover("moves", handover::Budget { calls: 3, moves: 2, breaks: 1, ..SMOOTH });
}

#[test]
fn hosts_that_die_with_calls_in_flight() {
    handover("deaths", handover::Budget { calls: 3, crashes: 1, moves: 2, ..SMOOTH });
}

#[test]
fn connections_made_anew_under_one_epoch() {
    handover("renewals", handover::Budget { calls: 3, renewals: 2, breaks: 1, ..SMOOTH });
}
