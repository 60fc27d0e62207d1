//! The state machine of a Session's generations: one pure step from what is seen to what is next.
//!
//! The operator runs [`step`] on every reconcile: it writes the entries, then performs the effects,
//! in this order, and comes back at the wake-up time or when something changes. A step with nothing
//! new gives back the same entries, so nothing is written. The invariants, held by the property
//! test below: at most one Active generation of an attachment, no Active without the matching
//! Realize receipt, numbers never reused, no answer from another epoch counts.

use super::{
    Effect, Generation, PodFact, Removal, RemovedBy, Situation, StageKind, State, Step, Target,
    Verdict, Wish,
    change::{
        answer, deadline, drain, drain_end, drained, enter, fail, ignored, late_message, lose,
        observe_pod, owned, requested, setback, stage, wish,
    },
    retry::{is_lost, next_try},
};
use crate::domain::reason::Reason;

/// Live generations of one attachment, at most; Failed ones do not count.
pub const MAX_LIVE: usize = 3;

/// One step.
pub fn step(s: &Situation<'_>) -> Step {
    let mut run = Run { s, entries: s.entries.to_vec(), out: Step::default() };
    run.out.last_generation = s.last_generation;
    run.entries.sort_by_key(|e| e.generation);
    run.out.ignored = ignored(s);
    run.rehost();
    run.withdraw();
    let proven = run.observe();
    run.promote(&proven);
    run.request();
    run.start();
    run.retire();
    run.pods();
    run.out.entries = run.entries;
    run.out
}

/// A step on its way.
struct Run<'a> {
    s: &'a Situation<'a>,
    entries: Vec<Generation>,
    out: Step,
}

impl Run<'_> {
    /// A new host is asked for everything that is not on its way out; it has proven nothing yet.
    fn rehost(&mut self) {
        let Some(owner) = self.s.owner else { return };
        for e in self.entries.iter_mut().filter(|e| !owned(e, owner)) {
            match e.state {
                State::Active => {
                    e.published = false;
                    (e.reason, e.message) = (Reason::Publishing, String::new());
                    e.stage = Some(stage(self.s, owner, e, StageKind::Publish));
                }
                State::Realizing => {
                    e.deadline = Some(deadline(self.s.now, &e.limits));
                    e.stage = Some(stage(self.s, owner, e, StageKind::Realize));
                }
                State::Requested | State::Draining | State::Failed => {}
            }
        }
    }

    /// What is not asked for any more begins to drain.
    fn withdraw(&mut self) {
        let s = self.s;
        for e in &mut self.entries {
            let why = match wish(s, &e.attachment_uid) {
                None => Reason::Removed,
                Some(Wish::Withdraw(why)) => *why,
                Some(Wish::Serve(b)) if e.state != State::Active && e.source != b.source => {
                    Reason::Replaced
                }
                Some(Wish::Serve(_) | Wish::Hold) => continue,
            };
            if matches!(e.state, State::Requested | State::Realizing | State::Active) {
                drain(s, e, why, String::new());
            }
        }
    }

    /// What pods, receipts and the clock say of each generation; gives back those proven.
    fn observe(&mut self) -> Vec<i64> {
        let s = self.s;
        let mut proven = vec![];
        for e in &mut self.entries {
            observe_pod(s, e);
            let answer = answer(s, e).cloned();
            match (e.state, answer) {
                (State::Realizing, Some(r)) => match r.verdict {
                    Verdict::Done => {
                        e.evidence = Some(r.evidence);
                        proven.push(e.generation);
                    }
                    Verdict::Failed | Verdict::Lost => {
                        let reason = r.reason.unwrap_or(Reason::ServerLost);
                        setback(s, e, reason, r.message);
                    }
                },
                (State::Active, Some(r)) => match r.verdict {
                    Verdict::Done => {
                        e.published = true;
                        (e.reason, e.message) = (Reason::Active, String::new());
                        if r.evidence.tool_count.is_some() {
                            e.evidence = Some(r.evidence);
                        }
                    }
                    Verdict::Failed | Verdict::Lost => {
                        lose(s, e, r.reason.unwrap_or(Reason::ServerLost), r.message);
                    }
                },
                _ => {}
            }
            let late = s.owner.is_some() && e.deadline.is_some_and(|d| d <= s.now);
            if e.state == State::Realizing && late && !proven.contains(&e.generation) {
                let message = late_message(e);
                fail(s, e, Reason::StartupTimeout, message);
            }
        }
        proven
    }

    /// The proven generation serves, the one before drains, in one write.
    fn promote(&mut self, proven: &[i64]) {
        let (s, Some(owner)) = (self.s, self.s.owner) else { return };
        for &generation in proven.iter().rev() {
            let Some(i) = self.entries.iter().position(|e| e.generation == generation) else {
                continue;
            };
            let uid = self.entries[i].attachment_uid.clone();
            let newer_active = self.entries.iter().any(|e| {
                e.attachment_uid == uid && e.state == State::Active && e.generation > generation
            });
            if newer_active {
                drain(s, &mut self.entries[i], Reason::Replaced, String::new());
                continue;
            }
            for e in self.entries.iter_mut().filter(|e| e.attachment_uid == uid) {
                if e.generation == generation {
                    enter(s, e, State::Active, Reason::Publishing, String::new());
                    e.published = false;
                    e.stage = Some(stage(s, owner, e, StageKind::Publish));
                } else if e.state == State::Active {
                    let message = format!("Generation {generation} took over.");
                    drain(s, e, Reason::Replaced, message);
                }
            }
        }
    }

    /// What is asked for and neither serves nor is on its way gets the next number, when it is due.
    fn request(&mut self) {
        let s = self.s;
        for d in s.desired.iter().filter(|_| !s.terminating) {
            let Wish::Serve(blueprint) = &d.wish else { continue };
            let group = || self.entries.iter().filter(|e| e.attachment_uid == d.attachment_uid);
            let on_its_way = |e: &Generation| {
                matches!(e.state, State::Requested | State::Realizing)
                    || (e.state == State::Active && e.source == blueprint.source)
            };
            if group().any(on_its_way) {
                continue;
            }
            let before = group().last().filter(|e| e.source == blueprint.source && !d.retry);
            if let Some(due) = before.and_then(next_try).filter(|due| *due > s.now) {
                self.out.wake_by(due);
                continue;
            }
            if group().filter(|e| e.state != State::Failed).count() >= MAX_LIVE {
                continue;
            }
            let failures = before.filter(|e| next_try(e).is_some()).map_or(0, |e| e.failures);
            self.out.last_generation += 1;
            let number = self.out.last_generation;
            self.entries.push(requested(s, d, blueprint, number, failures));
        }
    }

    /// What was asked for starts as soon as there is a host, and is staged once it has an address.
    fn start(&mut self) {
        let (s, Some(owner)) = (self.s, self.s.owner) else { return };
        for e in &mut self.entries {
            if e.state == State::Requested {
                enter(s, e, State::Realizing, Reason::Realizing, String::new());
                e.deadline = Some(deadline(s.now, &e.limits));
            }
            let reachable = match &e.target {
                Target::Http(_) => true,
                Target::SandboxStdio(pod) => pod.uid.is_some() && pod.address.is_some(),
            };
            if e.state == State::Realizing && e.stage.is_none() && reachable {
                e.stage = Some(stage(s, owner, e, StageKind::Realize));
            }
        }
    }

    /// What is over goes.
    fn retire(&mut self) {
        let s = self.s;
        let all = std::mem::take(&mut self.entries);
        for e in &all {
            let rival = |o: &&Generation| o.attachment_uid == e.attachment_uid;
            let newer = all.iter().filter(rival).any(|o| o.generation > e.generation);
            let satisfied = match wish(s, &e.attachment_uid) {
                Some(Wish::Serve(b)) => all
                    .iter()
                    .filter(rival)
                    .any(|o| o.state == State::Active && o.source == b.source),
                Some(Wish::Hold) => false,
                Some(Wish::Withdraw(_)) | None => true,
            };
            let remembered = !newer && !satisfied;
            let by = match e.state {
                State::Failed => (!remembered).then_some(RemovedBy::Superseded),
                State::Draining => drained(s, e).filter(|_| {
                    let pod_gone = match s.pods.get(&e.generation) {
                        None | Some(PodFact::Refused(..)) => true,
                        Some(PodFact::Deleting) => s.terminating,
                        Some(_) => false,
                    };
                    pod_gone && !(is_lost(e) && remembered)
                }),
                _ => None,
            };
            match by {
                None => self.entries.push(e.clone()),
                Some(by) => self.out.removed.push(Removal {
                    generation: e.generation,
                    attachment: e.attachment.clone(),
                    by,
                }),
            }
        }
    }

    /// Which pods are to be made and deleted, and when to look again.
    fn pods(&mut self) {
        let s = self.s;
        for e in &self.entries {
            let fact = s.pods.get(&e.generation);
            let there = !matches!(fact, None | Some(PodFact::Refused(..) | PodFact::Deleting));
            match e.state {
                State::Realizing => {
                    if matches!(e.target, Target::SandboxStdio(_)) && fact.is_none() {
                        self.out.effects.push(Effect::CreatePod(e.generation));
                    }
                    if let (Some(_), Some(at)) = (s.owner, e.deadline) {
                        self.out.wake_by(at);
                    }
                }
                State::Failed if there => self.out.effects.push(Effect::DeletePod(e.generation)),
                State::Draining if drained(s, e).is_none() => self.out.wake_by(drain_end(e)),
                State::Draining if there => {
                    self.out.effects.push(Effect::DeletePod(e.generation));
                }
                _ => {}
            }
        }
        for (generation, fact) in s.pods {
            let owned = self.entries.iter().any(|e| e.generation == *generation);
            if !owned && !matches!(fact, PodFact::Refused(..) | PodFact::Deleting) {
                self.out.effects.push(Effect::DeletePod(*generation));
            }
        }
    }
}
