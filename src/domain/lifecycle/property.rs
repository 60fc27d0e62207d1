//! The promises of the state machine, held against random orders of events: a gateway that answers
//! late, twice or for another epoch, pods that come and go, owners that change their minds.

#[cfg(test)]
mod tests {
    use crate::domain::{
        lifecycle::{
            Blueprint, Desired, Effect, Evidence, Generation, Limits, MAX_LIVE, Origin, Owner,
            Place, PodFact, Receipt, Rollout, Situation, StageKind, State, Step, Target, Verdict,
            Wish, step,
        },
        reason::Reason,
    };
    use jiff::{SignedDuration, Timestamp};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const ATTACHMENTS: usize = 3;

    /// Something that happens.
    #[derive(Clone, Debug)]
    enum Event {
        Change(usize, u8),
        Hold(usize),
        Suspend(usize),
        Yield(usize),
        Remove(usize),
        Retry(usize),
        Pass(u16),
        Answer { nth: usize, verdict: Verdict, reason: Reason },
        Replay(usize),
        Forge { nth: usize, epoch: i64, incarnation: u8 },
        Prune,
        HostDies,
        HostMoves(u8),
        PodRuns(usize),
        PodEnds(usize),
        PodGone(usize),
        PodKept(usize),
        Terminate,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let index = 0..ATTACHMENTS;
        let reasons = prop_oneof![
            Just(Reason::ConnectFailed),
            Just(Reason::Unauthorized),
            Just(Reason::ServerLost),
        ];
        let verdicts = prop_oneof![
            4 => Just(Verdict::Done),
            1 => Just(Verdict::Failed),
            1 => Just(Verdict::Lost),
        ];
        let event = prop_oneof![
            4 => (index.clone(), 0u8..3).prop_map(|(i, s)| Event::Change(i, s)),
            1 => index.clone().prop_map(Event::Hold),
            1 => index.clone().prop_map(Event::Suspend),
            2 => index.clone().prop_map(Event::Yield),
            1 => index.clone().prop_map(Event::Remove),
            1 => index.prop_map(Event::Retry),
            4 => (1u16..2000).prop_map(Event::Pass),
            8 => (0usize..8, verdicts, reasons)
                .prop_map(|(nth, verdict, reason)| Event::Answer { nth, verdict, reason }),
            2 => (0usize..64).prop_map(Event::Replay),
            2 => (0usize..8, 0i64..4, 0u8..3)
                .prop_map(|(nth, epoch, incarnation)| Event::Forge { nth, epoch, incarnation }),
            1 => Just(Event::Prune),
            1 => Just(Event::HostDies),
            2 => (0u8..3).prop_map(Event::HostMoves),
            4 => (0usize..8).prop_map(Event::PodRuns),
            1 => (0usize..8).prop_map(Event::PodEnds),
            3 => (0usize..8).prop_map(Event::PodGone),
            1 => (0usize..8).prop_map(Event::PodKept),
            1 => Just(Event::Terminate),
        ];
        prop::collection::vec(event, 1..60)
    }

    struct World {
        now: Timestamp,
        entries: Vec<Generation>,
        last: i64,
        receipts: BTreeMap<i64, Receipt>,
        history: Vec<Receipt>,
        host: Option<(String, i64)>,
        alive: bool,
        desired: Vec<Option<Desired>>,
        pods: BTreeMap<i64, PodFact>,
        terminating: bool,
        seen: Vec<i64>,
        pod_uids: u64,
    }

    fn limits() -> Limits {
        Limits {
            startup_timeout_ms: 60_000,
            call_timeout_ms: 61_000,
            drain_timeout_ms: 30_000,
            max_concurrent_calls: 16,
            max_message_bytes: 4096,
        }
    }

    fn serve(i: usize, source: u8) -> Wish {
        let place = if i == 0 {
            Place::Pod { secrets: vec![] }
        } else {
            Place::Http { url: format!("http://server-{i}/"), credential: None }
        };
        let source = format!("source-{source}");
        // One of the three is recreated.
        let rollout = if i == 0 { Rollout::Recreate } else { Rollout::Surge };
        let (server, limits) = (format!("s{i}"), limits());
        Wish::Serve(Blueprint { server, source, place, limits, rollout })
    }

    impl World {
        fn new() -> Self {
            let desired = |i| Desired {
                attachment: format!("a{i}"),
                attachment_uid: format!("uid-{i}"),
                // One of the three is the Agent's.
                origin: if i == 0 { Origin::Agent } else { Origin::Session },
                wish: serve(i, 0),
                retry: false,
            };
            Self {
                now: Timestamp::from_second(1_000_000).unwrap(),
                entries: vec![],
                last: 0,
                receipts: BTreeMap::new(),
                history: vec![],
                host: Some(("i-0".to_owned(), 1)),
                alive: true,
                desired: (0..ATTACHMENTS).map(|i| Some(desired(i))).collect(),
                pods: BTreeMap::new(),
                terminating: false,
                seen: vec![],
                pod_uids: 0,
            }
        }

        fn step_with(&self, receipts: &[Receipt], entries: &[Generation], last: i64) -> Step {
            let desired: Vec<_> = self.desired.iter().flatten().cloned().collect();
            let owner = self
                .host
                .as_ref()
                .filter(|_| self.alive)
                .map(|(incarnation, epoch)| Owner { incarnation, epoch: *epoch });
            step(&Situation {
                now: self.now,
                session: "coder",
                session_uid: "session-uid",
                entries,
                last_generation: last,
                receipts,
                owner,
                desired: &desired,
                pods: &self.pods,
                terminating: self.terminating,
            })
        }

        fn set_wish(&mut self, i: usize, wish: Wish) {
            if let Some(d) = &mut self.desired[i] {
                d.wish = wish;
            }
        }

        fn nth_pod(&self, nth: usize) -> Option<i64> {
            let keys: Vec<_> = self.pods.keys().copied().collect();
            (!keys.is_empty()).then(|| keys[nth % keys.len()])
        }

        fn happen(&mut self, event: Event) {
            match event {
                Event::Change(i, source) => self.set_wish(i, serve(i, source)),
                Event::Hold(i) => self.set_wish(i, Wish::Hold),
                Event::Suspend(i) => self.set_wish(i, Wish::Withdraw(Reason::Suspended)),
                Event::Yield(i) => self.set_wish(i, Wish::Yield),
                Event::Remove(i) => self.desired[i] = None,
                Event::Retry(i) => {
                    if let Some(d) = &mut self.desired[i] {
                        d.retry = true;
                    }
                }
                Event::Pass(seconds) => self.now += SignedDuration::from_secs(seconds.into()),
                Event::Answer { nth, verdict, reason } => self.answer(nth, verdict, reason),
                Event::Replay(nth) if !self.history.is_empty() => {
                    let old = self.history[nth % self.history.len()].clone();
                    self.receipts.insert(old.generation, old);
                }
                Event::Replay(_) => {}
                Event::Forge { nth, epoch, incarnation } => {
                    self.answer(nth, Verdict::Done, Reason::Active);
                    let n = self.receipts.len().max(1);
                    if let Some(receipt) = self.receipts.values_mut().nth(nth % n) {
                        receipt.generation_ref.epoch = epoch;
                        receipt.generation_ref.incarnation = format!("i-{incarnation}");
                    }
                }
                Event::Prune => {
                    let there: Vec<_> = self.entries.iter().map(|e| e.generation).collect();
                    self.receipts.retain(|g, _| there.contains(g));
                }
                Event::HostDies => self.alive = false,
                Event::HostMoves(n) => {
                    let epoch = self.host.as_ref().map_or(0, |h| h.1) + 1;
                    self.host = Some((format!("i-{n}"), epoch));
                    self.alive = true;
                }
                Event::PodRuns(nth) => {
                    let runs = |n| matches!(self.pods.get(&n), Some(PodFact::Running { .. }));
                    if let Some(n) = self.nth_pod(nth).filter(|n| !runs(*n)) {
                        self.pod_uids += 1;
                        let uid = format!("pod-{}", self.pod_uids);
                        self.pods
                            .insert(n, PodFact::Running { uid, address: format!("10.0.0.{n}") });
                    }
                }
                Event::PodEnds(nth) => {
                    if let Some(n) = self.nth_pod(nth) {
                        let ended = PodFact::Ended(Reason::ServerExited, "code 3".to_owned());
                        self.pods.insert(n, ended);
                    }
                }
                Event::PodGone(nth) => {
                    if let Some(n) = self.nth_pod(nth) {
                        self.pods.remove(&n);
                    }
                }
                Event::PodKept(nth) => {
                    if let Some(n) = self.nth_pod(nth) {
                        let why = (Reason::Unschedulable, "0/3 nodes".to_owned());
                        self.pods.insert(n, PodFact::Pending(Some(why)));
                    }
                }
                Event::Terminate => self.terminating = true,
            }
        }

        fn answer(&mut self, nth: usize, verdict: Verdict, reason: Reason) {
            let staged: Vec<_> = self.entries.iter().filter_map(|e| e.stage.clone()).collect();
            if staged.is_empty() {
                return;
            }
            let stage = staged[nth % staged.len()].clone();
            let receipt = Receipt {
                generation: stage.generation_ref.generation,
                stage: stage.kind,
                generation_ref: stage.generation_ref,
                fingerprint: stage.fingerprint,
                verdict,
                evidence: Evidence { tool_count: Some(3), ..Evidence::default() },
                reason: (verdict != Verdict::Done).then_some(reason),
                message: "as it is".to_owned(),
                at: self.now,
            };
            self.history.push(receipt.clone());
            self.receipts.insert(receipt.generation, receipt);
        }

        fn advance(&mut self) -> Result<(), TestCaseError> {
            let receipts: Vec<_> = self.receipts.values().cloned().collect();
            let out = self.step_with(&receipts, &self.entries, self.last);
            self.check(&receipts, &out)?;
            for effect in &out.effects {
                match effect {
                    Effect::CreatePod(n) => {
                        self.pods.insert(*n, PodFact::Pending(None));
                    }
                    Effect::DeletePod(n) => {
                        self.pods.insert(*n, PodFact::Deleting);
                    }
                }
            }
            for d in self.desired.iter_mut().flatten() {
                d.retry = false;
            }
            (self.entries, self.last) = (out.entries, out.last_generation);
            Ok(())
        }

        fn check(&mut self, receipts: &[Receipt], out: &Step) -> Result<(), TestCaseError> {
            let before = |g: i64| self.entries.iter().find(|e| e.generation == g);
            for i in 0..ATTACHMENTS {
                let uid = format!("uid-{i}");
                let of = || out.entries.iter().filter(|e| e.attachment_uid == uid);
                let active = of().filter(|e| e.state == State::Active).count();
                prop_assert!(active <= 1, "two Active of {uid}");
                let live = of().filter(|e| e.state != State::Failed).count();
                prop_assert!(live <= MAX_LIVE, "{live} live of {uid}");
            }
            let (incarnation, epoch) = self.host.clone().unwrap();
            for e in out.entries.iter().filter(|e| e.state == State::Active) {
                let old = before(e.generation);
                if old.is_some_and(|o| o.state == State::Active) {
                    continue;
                }
                let old = old.expect("Active out of nothing");
                prop_assert_eq!(old.state, State::Realizing);
                // The stage that was proven is the one that stood, under the host that lives.
                let stage = old.stage.clone().expect("Active without a stage");
                prop_assert_eq!(stage.kind, StageKind::Realize);
                prop_assert!(self.alive);
                prop_assert_eq!(&stage.generation_ref.incarnation, &incarnation);
                prop_assert_eq!(stage.generation_ref.epoch, epoch);
                let proof =
                    receipts.iter().any(|r| stage.answered_by(r) && r.verdict == Verdict::Done);
                prop_assert!(proof, "Active without its receipt");
            }
            // What makes room does so in time, and nothing else is bounded while it serves.
            for e in out.entries.iter().filter(|e| e.state == State::Active) {
                let mut desired = self.desired.iter().flatten();
                let wish = desired.find(|d| d.attachment_uid == e.attachment_uid).map(|d| &d.wish);
                let end = self.now + SignedDuration::from_millis(limits().startup_timeout_ms);
                match (wish, e.deadline) {
                    (Some(Wish::Yield), Some(at)) => prop_assert!(self.now < at && at <= end),
                    (_, deadline) => prop_assert_eq!(deadline, None),
                }
            }
            for e in out.entries.iter().filter(|e| e.published) {
                prop_assert_eq!(e.state, State::Active);
            }
            prop_assert!(out.last_generation >= self.last);
            for e in &out.entries {
                if before(e.generation).is_none() {
                    prop_assert!(e.generation > self.last, "a number came back");
                    prop_assert!(!self.seen.contains(&e.generation), "a number came back");
                    self.seen.push(e.generation);
                }
                if matches!(e.target, Target::SandboxStdio(_)) && e.state == State::Realizing {
                    let Target::SandboxStdio(pod) = &e.target else { unreachable!() };
                    prop_assert!(e.stage.is_none() || pod.uid.is_some(), "staged without a pod");
                }
            }
            // Receipts of another epoch or incarnation might as well not be there.
            let owned: Vec<_> = receipts
                .iter()
                .filter(|r| {
                    r.generation_ref.epoch == epoch && r.generation_ref.incarnation == incarnation
                })
                .cloned()
                .collect();
            let without = self.step_with(&owned, &self.entries, self.last);
            prop_assert_eq!(&without.entries, &out.entries);
            prop_assert_eq!(&without.effects, &out.effects);
            // Once is enough: the same facts again change nothing.
            let mut asked = self.desired.clone();
            asked.iter_mut().flatten().for_each(|d| d.retry = false);
            std::mem::swap(&mut asked, &mut self.desired);
            let again = self.step_with(receipts, &out.entries, out.last_generation);
            std::mem::swap(&mut asked, &mut self.desired);
            prop_assert_eq!(&again.entries, &out.entries);
            prop_assert_eq!(again.last_generation, out.last_generation);
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 500 } else { 20_000 }))]

        #[test]
        fn no_order_of_events_breaks_a_promise(events in events()) {
            let mut world = World::new();
            world.advance()?;
            for event in events {
                world.happen(event);
                world.advance()?;
            }
            // Whatever happened, a deleted Session comes to its end.
            world.terminating = true;
            for _ in 0..3 {
                world.now += SignedDuration::from_secs(120);
                world.advance()?;
            }
            prop_assert!(world.entries.is_empty(), "left: {:?}", world.entries);
        }
    }
}
