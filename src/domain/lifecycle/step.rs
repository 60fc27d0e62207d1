//! The state machine of a Session's generations: one pure step from what is seen to what is next.
//!
//! The operator runs [`step`] on every reconcile: it writes the entries, then performs the effects,
//! in this order, and comes back at the wake-up time or when something changes. A step with nothing
//! new gives back the same entries, so nothing is written. The invariants, held by the property
//! test below: at most one Active generation of an attachment, no Active without the matching
//! Realize receipt, numbers never reused, no answer from another epoch counts.

use super::{
    Effect, Generation, Origin, PodFact, Removal, RemovedBy, Rollout, Situation, StageKind, State,
    Step, Target, Verdict, Wish,
    change::{
        answer, deadline, drain, drain_end, drained, enter, fail, ignored, last_words,
        late_message, lose, observe_pod, owned, requested, setback, stage, wish,
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
    run.rehost();
    run.out.ignored = ignored(&run.entries, s.receipts);
    run.withdraw();
    let proven = run.observe();
    run.promote(&proven);
    run.forgive();
    // Before, to make room for what is asked for; after, for what that takes the place of.
    run.retire();
    run.request();
    run.start();
    run.give_way();
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
                    (e.reason, e.message) = (Reason::Rescheduling, String::new());
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
                Some(Wish::Yield) if e.state != State::Active => Reason::Removed,
                Some(Wish::Serve(b))
                    if e.source != b.source
                        && (e.state != State::Active || b.rollout == Rollout::Recreate) =>
                {
                    Reason::Replaced
                }
                Some(Wish::Serve(_) | Wish::Hold | Wish::Yield) => continue,
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
                let message = late_message(s, e);
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

    /// While something is missing, failures do not count: once all is there again, the next try is
    /// at once.
    fn forgive(&mut self) {
        for e in &mut self.entries {
            let is_held = matches!(wish(self.s, &e.attachment_uid), Some(Wish::Hold));
            if is_held && next_try(e).is_some() {
                e.failures = 0;
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
            let before = group().next_back().filter(|e| e.source == blueprint.source && !d.retry);
            if let Some(due) = before.and_then(next_try).filter(|due| *due > s.now) {
                self.out.wake_by(due);
                continue;
            }
            if group().filter(|e| e.state != State::Failed).count() >= MAX_LIVE {
                continue;
            }
            if blueprint.rollout == Rollout::Recreate && group().any(|e| occupies(s, e)) {
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

    /// What makes room drains once its place is taken, or nothing that was asked for beside it is
    /// on its way any more; at most one startup deadline later.
    fn give_way(&mut self) {
        let s = self.s;
        let asked = |e: &Generation| matches!(wish(s, &e.attachment_uid), Some(Wish::Serve(_)));
        let (mut taken, mut coming) = (vec![], vec![]);
        for e in self.entries.iter().filter(|e| asked(e)) {
            match e.state {
                State::Active => taken.push(e.server.clone()),
                State::Requested | State::Realizing => {
                    let end = e.deadline.unwrap_or_else(|| deadline(s.now, &e.limits));
                    coming.push((e.origin, e.attachment.clone(), e.server.clone(), end));
                }
                State::Draining | State::Failed => {}
            }
        }
        for e in self.entries.iter_mut().filter(|e| e.state == State::Active) {
            if !matches!(wish(s, &e.attachment_uid), Some(Wish::Yield)) {
                e.deadline = None;
                continue;
            }
            let beside = coming.iter().filter(|(origin, attachment, server, _)| {
                *origin == Origin::Session || *attachment == e.attachment || *server == e.server
            });
            let last = beside.map(|(.., end)| *end).max().filter(|_| !taken.contains(&e.server));
            match last.map(|last| *e.deadline.get_or_insert(last)).filter(|end| *end > s.now) {
                Some(end) => self.out.wake_by(end),
                None => drain(s, e, Reason::Removed, String::new()),
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
                Some(Wish::Withdraw(_) | Wish::Yield) | None => true,
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
                State::Draining if there => match (fact, last_words(e)) {
                    // The kubelet is about to tell how the server ended.
                    (Some(PodFact::Running { .. }), Some(until)) if s.now < until => {
                        self.out.wake_by(until);
                    }
                    _ => self.out.effects.push(Effect::DeletePod(e.generation)),
                },
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

/// Whether the generation still has what a successor must not have beside it.
fn occupies(s: &Situation<'_>, e: &Generation) -> bool {
    let drains = e.state == State::Draining && drained(s, e).is_none();
    drains || !matches!(s.pods.get(&e.generation), None | Some(PodFact::Refused(..)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lifecycle::{
        Blueprint, Desired, Evidence, Limits, Owner, Place, Receipt, fingerprint,
    };
    use jiff::{SignedDuration, Timestamp};
    use rstest::rstest;
    use std::collections::BTreeMap;

    /// One attachment, its Session and its host, moved by hand.
    struct Bench {
        now: Timestamp,
        wish: Option<Wish>,
        retry: bool,
        host: Option<(&'static str, i64)>,
        receipts: Vec<Receipt>,
        pods: BTreeMap<i64, PodFact>,
        terminating: bool,
        /// What else is asked for.
        beside: Vec<Desired>,
        last: Step,
    }

    /// An attachment of the Session's own, whose server is named like it.
    fn own(attachment: &str, mut wish: Wish) -> Desired {
        if let Wish::Serve(blueprint) = &mut wish {
            blueprint.server = attachment.into();
        }
        let attachment_uid = format!("uid-{attachment}");
        let (attachment, origin) = (attachment.into(), Origin::Session);
        Desired { attachment, attachment_uid, origin, wish, retry: false }
    }

    fn blueprint(source: &str, place: Place) -> Wish {
        let limits = Limits {
            startup_timeout_ms: 45_000,
            call_timeout_ms: 46_000,
            drain_timeout_ms: 20_000,
            max_concurrent_calls: 7,
            max_message_bytes: 4096,
        };
        let (server, source, rollout) = ("srv".into(), source.into(), Rollout::Surge);
        Wish::Serve(Blueprint { server, source, place, limits, rollout })
    }

    fn http(source: &str) -> Wish {
        blueprint(source, Place::Http { url: format!("https://h/{source}"), credential: None })
    }

    fn pod(source: &str) -> Wish {
        blueprint(source, Place::Pod { secrets: vec![] })
    }

    impl Bench {
        fn new(wish: Wish) -> Self {
            let mut bench = Self {
                now: Timestamp::from_second(5_000).unwrap(),
                wish: Some(wish),
                retry: false,
                host: Some(("inc-1", 4)),
                receipts: vec![],
                pods: BTreeMap::new(),
                terminating: false,
                beside: vec![],
                last: Step { last_generation: 10, ..Step::default() },
            };
            bench.go();
            bench
        }

        fn go(&mut self) -> &Step {
            let desired: Vec<_> = self
                .wish
                .iter()
                .map(|wish| Desired {
                    attachment: "files".into(),
                    attachment_uid: "a-uid".into(),
                    origin: Origin::Agent,
                    wish: wish.clone(),
                    retry: self.retry,
                })
                .chain(self.beside.iter().cloned())
                .collect();
            self.last = step(&Situation {
                now: self.now,
                session: "coder",
                session_uid: "s-uid",
                entries: &self.last.entries,
                last_generation: self.last.last_generation,
                receipts: &self.receipts,
                owner: self.host.map(|(incarnation, epoch)| Owner { incarnation, epoch }),
                desired: &desired,
                pods: &self.pods,
                terminating: self.terminating,
            });
            self.retry = false;
            &self.last
        }

        fn pass(&mut self, seconds: i64) -> &mut Self {
            self.now += SignedDuration::from_secs(seconds);
            self
        }

        fn entry(&self, generation: i64) -> &Generation {
            self.last.entries.iter().find(|e| e.generation == generation).expect("the entry")
        }

        /// The gateway answers the present stage of a generation.
        fn answer(&mut self, generation: i64, verdict: Verdict, reason: Option<Reason>) -> &Step {
            let stage = self.entry(generation).stage.clone().expect("a stage");
            self.receipts.retain(|r| r.generation != generation);
            self.receipts.push(Receipt {
                generation,
                stage: stage.kind,
                generation_ref: stage.generation_ref,
                fingerprint: stage.fingerprint,
                verdict,
                evidence: Evidence { tool_count: Some(9), ..Evidence::default() },
                reason,
                message: "what it saw".into(),
                at: self.now,
            });
            self.go()
        }

        fn states(&self) -> Vec<(i64, State, Reason)> {
            self.last.entries.iter().map(|e| (e.generation, e.state, e.reason)).collect()
        }

        fn active(mut self) -> Self {
            let n = self.last.last_generation;
            self.answer(n, Verdict::Done, None);
            self.answer(n, Verdict::Done, None);
            assert_eq!(self.states(), [(n, State::Active, Reason::Active)]);
            self
        }
    }

    use Reason as R;
    use State::{Active, Draining, Failed, Realizing, Requested};

    #[test]
    fn a_request_is_staged_at_once_for_http_and_once_it_has_an_address_for_a_pod() {
        let bench = Bench::new(http("a"));
        assert_eq!(bench.states(), [(11, Realizing, R::Realizing)]);
        let entry = bench.entry(11);
        let stage = entry.stage.as_ref().unwrap();
        assert_eq!(stage.kind, StageKind::Realize);
        let expected = fingerprint(&stage.generation_ref, stage.kind, &entry.target, &entry.limits);
        assert_eq!(stage.fingerprint, expected);

        let mut bench = Bench::new(pod("a"));
        assert_eq!(bench.last.effects, [Effect::CreatePod(11)]);
        assert!(bench.entry(11).stage.is_none());
        bench.pods.insert(11, PodFact::Pending(None));
        assert!(bench.go().effects.is_empty());
        let running = PodFact::Running { uid: "p-uid".into(), address: "10.9.8.7".into() };
        bench.pods.insert(11, running);
        bench.go();
        let Target::SandboxStdio(target) = &bench.entry(11).target else { panic!() };
        assert_eq!(target.address.as_deref(), Some("10.9.8.7"));
        assert!(bench.entry(11).stage.is_some());
    }

    #[test]
    fn proven_then_published() {
        let mut bench = Bench::new(http("a"));
        bench.answer(11, Verdict::Done, None);
        assert_eq!(bench.states(), [(11, Active, R::Publishing)]);
        assert_eq!(bench.entry(11).stage.as_ref().unwrap().kind, StageKind::Publish);
        assert!(!bench.entry(11).published, "the Realize receipt is no Publish receipt");
        bench.answer(11, Verdict::Done, None);
        assert!(bench.entry(11).published);
        assert_eq!(bench.last.wake, None, "nothing to come back for");
    }

    #[test]
    fn one_step_makes_the_new_one_active_and_drains_the_old() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(http("b"));
        bench.go();
        assert_eq!(bench.states(), [(11, Active, R::Active), (12, Realizing, R::Realizing)]);
        bench.answer(12, Verdict::Done, None);
        assert_eq!(bench.states(), [(11, Draining, R::Replaced), (12, Active, R::Publishing)]);
        assert_eq!(bench.entry(11).stage.as_ref().unwrap().kind, StageKind::Drain);
        bench.answer(11, Verdict::Done, None);
        assert_eq!(bench.states(), [(12, Active, R::Publishing)]);
    }

    fn recreate(wish: Wish) -> Wish {
        let Wish::Serve(blueprint) = wish else { panic!("nothing serves") };
        Wish::Serve(Blueprint { rollout: Rollout::Recreate, ..blueprint })
    }

    #[test]
    fn recreated_the_old_one_is_drained_before_the_new_one_begins() {
        let mut bench = Bench::new(recreate(http("a"))).active();
        bench.wish = Some(recreate(http("b")));
        bench.go();
        assert_eq!(bench.states(), [(11, Draining, R::Replaced)]);
        assert_eq!(bench.entry(11).stage.as_ref().unwrap().kind, StageKind::Drain);
        bench.pass(5).go();
        assert_eq!(bench.states(), [(11, Draining, R::Replaced)], "calls in flight finish first");
        bench.answer(11, Verdict::Done, None);
        assert_eq!(bench.states(), [(12, Realizing, R::Realizing)]);
    }

    #[test]
    fn recreated_the_old_pod_is_gone_before_the_new_one_begins() {
        let mut bench = Bench::new(recreate(pod("a")));
        let running = PodFact::Running { uid: "p-uid".into(), address: "10.9.8.7".into() };
        bench.pods.insert(11, running);
        bench.go();
        let mut bench = bench.active();
        bench.wish = Some(recreate(pod("b")));
        bench.go();
        bench.answer(11, Verdict::Done, None);
        assert_eq!(bench.last.effects, [Effect::DeletePod(11)]);
        bench.pods.insert(11, PodFact::Deleting);
        bench.go();
        assert_eq!(bench.states(), [(11, Draining, R::Replaced)], "the pod ends in its own time");
        bench.pods.remove(&11);
        bench.go();
        assert_eq!(bench.states(), [(12, Realizing, R::Realizing)]);
        assert_eq!(bench.last.effects, [Effect::CreatePod(12)]);
    }

    #[test]
    fn recreated_one_whose_pod_ended_comes_again_once_the_pod_is_gone() {
        let mut bench = Bench::new(recreate(pod("a")));
        let running = PodFact::Running { uid: "p-uid".into(), address: "10.9.8.7".into() };
        bench.pods.insert(11, running);
        bench.go();
        let mut bench = bench.active();
        bench.pods.insert(11, PodFact::Ended(R::ServerExited, "code 3".into()));
        bench.go();
        bench.answer(11, Verdict::Done, None);
        bench.pods.insert(11, PodFact::Deleting);
        bench.pass(60).go();
        assert_eq!(bench.states(), [(11, Draining, R::ServerExited)]);
        bench.pods.remove(&11);
        bench.go();
        assert_eq!(bench.states(), [(12, Realizing, R::Realizing)]);
    }

    #[test]
    fn what_fails_leaves_what_serves() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(http("b"));
        bench.go();
        bench.answer(12, Verdict::Failed, Some(R::Unauthorized));
        assert_eq!(bench.states(), [(11, Active, R::Active), (12, Failed, R::Unauthorized)]);
        bench.wish = Some(http("a"));
        bench.go();
        assert_eq!(bench.states(), [(11, Active, R::Active)], "asked back, nothing is needed");
    }

    #[rstest]
    #[case(R::ConnectFailed, Realizing)]
    #[case(R::ServerUnavailable, Realizing)]
    #[case(R::HandshakeTimeout, Realizing)]
    #[case(R::Unauthorized, Failed)]
    #[case(R::NotAnMcpServer, Failed)]
    #[case(R::TargetForbidden, Failed)]
    fn the_class_of_a_reason_decides(#[case] reason: Reason, #[case] state: State) {
        let mut bench = Bench::new(http("a"));
        bench.answer(11, Verdict::Failed, Some(reason));
        assert_eq!(bench.states(), [(11, state, reason)]);
    }

    #[test]
    fn the_deadline_ends_what_is_retried_and_keeps_the_last_cause() {
        let mut bench = Bench::new(http("a"));
        bench.answer(11, Verdict::Failed, Some(R::ConnectFailed));
        bench.pass(44).go();
        assert_eq!(bench.states(), [(11, Realizing, R::ConnectFailed)]);
        bench.pass(1).go();
        assert_eq!(bench.states(), [(11, Failed, R::StartupTimeout)]);
        let said = &bench.entry(11).message;
        assert!(said.contains("ConnectFailed: what it saw"), "{said}");
    }

    #[test]
    fn a_deadline_without_a_word_tells_how_far_it_came() {
        let late = |wish, fact: Option<PodFact>| {
            let mut bench = Bench::new(wish);
            bench.pods.extend(fact.map(|fact| (11, fact)));
            bench.go();
            bench.pass(45).go();
            assert_eq!(bench.states(), [(11, Failed, R::StartupTimeout)]);
            bench.entry(11).message.clone()
        };
        let running = PodFact::Running { uid: "p-uid".into(), address: "10.9.8.7".into() };
        for (said, words) in [
            (late(http("a"), None), "the server did not answer the handshake"),
            (late(pod("a"), None), "did not start"),
            (late(pod("a"), Some(PodFact::Pending(None))), "did not start"),
            (late(pod("a"), Some(running)), "ran, but the server did not answer the handshake"),
        ] {
            assert!(said.starts_with("Not proven within 45s: ") && said.contains(words), "{said}");
        }
    }

    #[test]
    fn what_was_missing_and_is_back_is_tried_at_once() {
        let mut bench = Bench::new(http("a"));
        bench.answer(11, Verdict::Failed, Some(R::Unauthorized));
        bench.pass(1).go();
        assert_eq!(bench.states(), [(11, Failed, R::Unauthorized)], "not yet");
        bench.wish = Some(Wish::Hold);
        bench.pass(1).go();
        assert_eq!(bench.states(), [(11, Failed, R::Unauthorized)]);
        let held = bench.last.entries.clone();
        bench.go();
        assert_eq!(bench.last.entries, held, "written once");
        bench.wish = Some(http("a"));
        bench.pass(1).go();
        assert_eq!(bench.states(), [(12, Realizing, R::Realizing)], "the same value is back");
    }

    #[test]
    fn without_a_host_the_deadline_waits() {
        let mut bench = Bench::new(http("a"));
        bench.host = None;
        bench.pass(3_600).go();
        assert_eq!(bench.states(), [(11, Realizing, R::Realizing)]);
        bench.host = Some(("inc-2", 5));
        bench.go();
        assert_eq!(bench.states(), [(11, Realizing, R::Realizing)]);
        bench.pass(45).go();
        assert_eq!(bench.states(), [(11, Failed, R::StartupTimeout)]);
    }

    #[test]
    fn after_a_failure_the_next_comes_slowly_each_time_later() {
        let mut bench = Bench::new(http("a"));
        for (round, gap) in [60, 120, 240, 480, 900, 900].into_iter().enumerate() {
            let n = 11 + i64::try_from(round).unwrap();
            bench.answer(n, Verdict::Failed, Some(R::Unauthorized));
            assert_eq!(bench.entry(n).failures, i64::try_from(round).unwrap() + 1);
            bench.pass(gap - 1).go();
            assert_eq!(bench.states(), [(n, Failed, R::Unauthorized)], "{gap}");
            assert_eq!(bench.last.wake, Some(bench.now + SignedDuration::from_secs(1)));
            bench.pass(1).go();
            assert_eq!(bench.states(), [(n + 1, Realizing, R::Realizing)], "{gap}");
        }
    }

    #[test]
    fn a_change_or_a_request_does_not_wait() {
        let mut bench = Bench::new(http("a"));
        bench.answer(11, Verdict::Failed, Some(R::Unauthorized));
        bench.retry = true;
        bench.go();
        assert_eq!(bench.states(), [(12, Realizing, R::Realizing)]);
        bench.answer(12, Verdict::Failed, Some(R::Unauthorized));
        assert_eq!(bench.entry(12).failures, 1, "somebody acted, so it counts anew");
        bench.wish = Some(http("b"));
        bench.go();
        assert_eq!(bench.states(), [(13, Realizing, R::Realizing)]);
    }

    #[test]
    fn a_loss_is_replaced_soon_later_each_time_and_forgotten_after_ten_minutes() {
        let mut bench = Bench::new(http("a"));
        for gap in [1, 2, 4, 8] {
            bench = bench.active();
            let n = bench.last.last_generation;
            bench.answer(n, Verdict::Lost, Some(R::ServerLost));
            assert_eq!(bench.states(), [(n, Draining, R::ServerLost)]);
            bench.answer(n, Verdict::Done, None);
            assert_eq!(bench.states(), [(n, Draining, R::ServerLost)], "it holds the count");
            if gap > 1 {
                bench.pass(gap - 1).go();
                assert_eq!(bench.last.last_generation, n, "{gap}");
            }
            bench.pass(1).go();
            assert_eq!(bench.states(), [(n + 1, Realizing, R::Realizing)], "{gap}");
        }
        bench = bench.active();
        let n = bench.last.last_generation;
        bench.pass(600);
        bench.answer(n, Verdict::Lost, Some(R::ServerLost));
        assert_eq!(bench.entry(n).failures, 1);
    }

    #[test]
    fn a_move_keeps_what_serves_and_asks_the_new_host() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(http("b"));
        bench.go();
        bench.host = Some(("inc-2", 5));
        bench.go();
        assert_eq!(bench.states(), [(11, Active, R::Rescheduling), (12, Realizing, R::Realizing)]);
        assert!(!bench.entry(11).published);
        for (n, kind) in [(11, StageKind::Publish), (12, StageKind::Realize)] {
            let stage = bench.entry(n).stage.as_ref().unwrap();
            assert_eq!((stage.kind, stage.generation_ref.epoch), (kind, 5));
        }
        // What the old host said does not count.
        assert_eq!(bench.last.ignored.len(), 1);
        bench.answer(11, Verdict::Done, None);
        assert!(bench.entry(11).published);
    }

    #[test]
    fn draining_ends_by_receipt_deadline_or_loss_of_the_host() {
        for (how, by) in [
            ("receipt", RemovedBy::Drained),
            ("deadline", RemovedBy::Deadline),
            ("host", RemovedBy::HostLost),
        ] {
            let mut bench = Bench::new(http("a")).active();
            bench.wish = None;
            bench.go();
            assert_eq!(bench.states(), [(11, Draining, R::Removed)]);
            match how {
                "receipt" => drop(bench.answer(11, Verdict::Done, None).clone()),
                "deadline" => {
                    bench.pass(29).go();
                    assert_eq!(bench.last.entries.len(), 1, "20 s and 10 s of slack");
                    bench.pass(1).go();
                }
                _ => {
                    bench.host = None;
                    bench.go();
                }
            }
            assert!(bench.last.entries.is_empty());
            assert_eq!(bench.last.removed[0].by, by);
        }
    }

    #[test]
    fn withdrawn_on_the_way_drains_and_what_never_started_just_goes() {
        let mut bench = Bench::new(http("a"));
        bench.wish = Some(Wish::Withdraw(R::Suspended));
        bench.go();
        assert_eq!(bench.states(), [(11, Draining, R::Suspended)]);

        let mut bench = Bench::new(http("a"));
        bench.host = None;
        bench.last = Step { last_generation: 20, ..Step::default() };
        bench.go();
        assert_eq!(bench.states(), [(21, Requested, R::Requested)]);
        bench.wish = None;
        bench.go();
        assert!(bench.last.entries.is_empty());
    }

    #[test]
    fn at_most_three_live_generations() {
        let mut bench = Bench::new(http("a")).active();
        for source in ["b", "c", "d", "e"] {
            bench.wish = Some(http(source));
            bench.go();
        }
        let states: Vec<_> = bench.last.entries.iter().map(|e| e.state).collect();
        assert_eq!(states, [Active, Draining, Draining]);
        bench.answer(12, Verdict::Done, None);
        let states: Vec<_> = bench.last.entries.iter().map(|e| e.state).collect();
        assert_eq!(states, [Active, Draining, Realizing]);
        assert_eq!(bench.entry(14).source, "e");
    }

    #[test]
    fn what_makes_room_serves_until_its_place_is_taken() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(Wish::Yield);
        bench.beside = vec![own("files", http("b")), own("other", http("c"))];
        bench.go();
        let both = [(12, Realizing, R::Realizing), (13, Realizing, R::Realizing)];
        assert_eq!(bench.states(), [&[(11, Active, R::Active)], &both[..]].concat());
        bench.answer(13, Verdict::Done, None);
        assert_eq!(bench.states()[0], (11, Active, R::Active), "files is not there yet");
        bench.answer(12, Verdict::Done, None);
        assert_eq!(bench.states()[..2], [(11, Draining, R::Removed), (12, Active, R::Publishing)]);
    }

    #[test]
    fn what_makes_room_goes_with_a_name_or_server_that_serves_whatever_else_comes() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(Wish::Yield);
        bench.beside = vec![own("srv", http("b")), own("other", http("c"))];
        bench.go();
        bench.answer(12, Verdict::Done, None);
        let states: Vec<_> = bench.last.entries.iter().map(|e| e.state).collect();
        assert_eq!(states, [Draining, Active, Realizing], "the server's name is taken");
    }

    #[test]
    fn what_makes_room_goes_at_once_when_nothing_comes_in_its_place() {
        let mut bench = Bench::new(http("a")).active();
        bench.beside = vec![own("files", Wish::Hold)];
        bench.wish = Some(Wish::Yield);
        bench.go();
        assert_eq!(bench.states(), [(11, Draining, R::Removed)]);

        let mut bench = Bench::new(http("a"));
        bench.wish = Some(Wish::Yield);
        bench.beside = vec![own("files", http("b"))];
        bench.go();
        assert_eq!(bench.states()[0], (11, Draining, R::Removed), "it never served");
    }

    #[test]
    fn what_makes_room_waits_one_startup_deadline_at_most() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(Wish::Yield);
        bench.beside = vec![own("files", http("b"))];
        bench.go();
        assert_eq!(bench.last.wake, Some(bench.now + SignedDuration::from_secs(45)));
        bench.pass(40);
        // Another one comes later: the deadline stays.
        bench.beside.push(own("other", http("c")));
        bench.go();
        bench.answer(12, Verdict::Failed, Some(R::Unauthorized));
        assert_eq!(bench.states()[0], (11, Active, R::Active), "the other one is on its way");
        bench.pass(4).go();
        assert_eq!(bench.states()[0], (11, Active, R::Active));
        bench.pass(1).go();
        assert_eq!(bench.states()[0], (11, Draining, R::Removed));
    }

    #[test]
    fn what_made_room_and_is_asked_for_again_just_serves_on() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(Wish::Yield);
        bench.beside = vec![own("files", http("b"))];
        bench.go();
        assert!(bench.entry(11).deadline.is_some());
        bench.wish = Some(http("a"));
        bench.beside = vec![];
        bench.go();
        assert_eq!(bench.states()[0], (11, Active, R::Active));
        assert_eq!(bench.entry(11).deadline, None);
        bench.pass(60).go();
        assert_eq!(bench.states()[0], (11, Active, R::Active));
    }

    #[test]
    fn another_agents_attachment_on_its_way_holds_nothing_up() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(Wish::Yield);
        bench.beside = vec![Desired { origin: Origin::Agent, ..own("other", http("c")) }];
        bench.go();
        assert_eq!(bench.states()[0], (11, Draining, R::Removed));
    }

    #[test]
    fn what_is_held_keeps_serving_and_starts_nothing() {
        let mut bench = Bench::new(http("a")).active();
        bench.wish = Some(Wish::Hold);
        bench.go();
        assert_eq!(bench.states(), [(11, Active, R::Active)]);
        bench.answer(11, Verdict::Lost, Some(R::ServerLost));
        bench.pass(600).go();
        assert_eq!(bench.last.last_generation, 11);
    }

    #[test]
    fn a_failed_one_loses_its_pod_and_keeps_its_word() {
        let mut bench = Bench::new(pod("a"));
        bench.pods.insert(11, PodFact::Ended(R::CommandNotFound, "no such file".into()));
        bench.go();
        assert_eq!(bench.states(), [(11, Failed, R::CommandNotFound)]);
        assert_eq!(bench.last.effects, [Effect::DeletePod(11)]);
        bench.pods.clear();
        assert!(bench.go().effects.is_empty());
        assert_eq!(bench.entry(11).message, "no such file");
    }

    #[test]
    fn the_pod_goes_after_the_drain_and_the_entry_after_the_pod() {
        let mut bench = Bench::new(pod("a"));
        let running = PodFact::Running { uid: "p".into(), address: "10.0.0.9".into() };
        bench.pods.insert(11, running);
        bench.go();
        bench = bench.active();
        bench.wish = None;
        assert!(bench.go().effects.is_empty());
        bench.answer(11, Verdict::Done, None);
        assert_eq!(bench.last.effects, [Effect::DeletePod(11)]);
        bench.pods.insert(11, PodFact::Deleting);
        assert!(bench.go().effects.is_empty());
        assert_eq!(bench.last.entries.len(), 1);
        bench.pods.clear();
        bench.go();
        assert!(bench.last.entries.is_empty());
    }

    #[test]
    fn a_pod_whose_server_died_may_tell_why_before_it_goes() {
        let lost = || {
            let mut bench = Bench::new(pod("a"));
            let running = PodFact::Running { uid: "p".into(), address: "10.0.0.9".into() };
            bench.pods.insert(11, running);
            bench.go();
            bench = bench.active();
            bench.answer(11, Verdict::Lost, Some(R::ServerLost));
            bench.answer(11, Verdict::Done, None);
            assert_eq!(bench.states(), [(11, Draining, R::ServerLost)]);
            assert!(bench.last.effects.is_empty());
            bench
        };
        let mut told = lost();
        told.pods.insert(11, PodFact::Ended(R::OutOfMemory, "too big".into()));
        assert_eq!(told.go().effects, [Effect::DeletePod(11)]);
        assert_eq!(told.states(), [(11, Draining, R::OutOfMemory)]);
        let mut silent = lost();
        assert!(silent.pass(3).go().effects.contains(&Effect::DeletePod(11)));
    }

    #[test]
    fn a_pod_of_no_generation_is_deleted() {
        let mut bench = Bench::new(http("a"));
        bench.pods.insert(3, PodFact::Pending(None));
        assert_eq!(bench.go().effects, [Effect::DeletePod(3)]);
    }

    #[test]
    fn a_receipt_must_match_completely() {
        type Spoil = fn(&mut Receipt);
        let spoils: [Spoil; 7] = [
            |r| r.generation_ref.epoch = 3,
            |r| r.generation_ref.incarnation = "inc-0".into(),
            |r| r.generation_ref.session_uid = "other".into(),
            |r| r.generation_ref.attachment_uid = "other".into(),
            |r| r.generation_ref.generation = 12,
            |r| r.stage = StageKind::Publish,
            |r| r.fingerprint = "sha256:other".into(),
        ];
        for (i, spoil) in spoils.into_iter().enumerate() {
            let mut bench = Bench::new(http("a"));
            bench.answer(11, Verdict::Done, None);
            bench = Bench { receipts: bench.receipts, ..Bench::new(http("a")) };
            spoil(&mut bench.receipts[0]);
            bench.go();
            assert_eq!(bench.states(), [(11, Realizing, R::Realizing)], "case {i}");
        }
    }
}
