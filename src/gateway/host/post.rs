//! One Session at this gateway, under one epoch: its generations, and its receipts on the way.

use super::{outbox::Outbox, realize::Failure};
use crate::{
    api::condition::bounded,
    domain::{
        identity::SessionKey,
        lifecycle::{
            Evidence, Generation, Owner, Receipt, Stage, State, Verdict,
            hosting::{Charge, Publish},
            retry::{is_lost, next_try},
        },
        reason::Reason,
    },
    gateway::{
        catalog::Coming,
        handle::{Handle, Surface},
        hosted::Hosted,
        index::{Seat, SessionView},
    },
};
use jiff::Timestamp;
use std::{collections::BTreeMap, sync::Arc};
use tokio_util::sync::CancellationToken;

/// Which post news is about. A Session of the same name that came later is another, and its epochs
/// begin anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostId {
    /// Namespace and name.
    pub key: SessionKey,
    /// UID of the Session.
    pub uid: String,
    /// Under which epoch it was taken over.
    pub epoch: i64,
}

/// A Session that the operator placed here.
pub struct Post {
    /// What requests see of it.
    pub hosted: Arc<Hosted>,
    /// As it was stored last.
    pub view: Arc<SessionView>,
    /// The seat under which it was taken over.
    pub seat: Seat,
    /// Whether the epoch is raised and open calls are ended.
    pub taken: bool,
    /// Of each attachment, by uid, the tools that its server had when it was last in service here.
    held: BTreeMap<String, Arc<Surface>>,
    /// The generations.
    pub units: BTreeMap<i64, Unit>,
    /// The receipts.
    pub outbox: Arc<Outbox>,
    /// Ends everything that goes on for it.
    pub stop: CancellationToken,
}

/// One generation.
pub struct Unit {
    /// As it was stored when its stage was acted on.
    pub generation: Generation,
    /// What was asked for, and what became of it.
    pub charge: Charge<Arc<Handle>, Failure>,
    /// What the handshake proved.
    pub evidence: Evidence,
    /// Ends what goes on for it.
    pub stop: CancellationToken,
}

impl Post {
    /// A Session that was just placed here.
    pub fn new(hosted: Arc<Hosted>, view: Arc<SessionView>, seat: Seat) -> Self {
        Self {
            held: BTreeMap::new(),
            hosted,
            seat,
            taken: false,
            units: BTreeMap::new(),
            outbox: Arc::new(Outbox::default()),
            stop: CancellationToken::new(),
            view,
        }
    }

    /// Which post this is.
    pub fn id(&self) -> PostId {
        let (key, uid) = (self.view.key.clone(), self.view.uid.clone());
        PostId { key, uid, epoch: self.seat.epoch }
    }

    /// Under which start of this gateway and which epoch.
    pub fn owner(&self) -> Owner<'_> {
        Owner { incarnation: &self.seat.incarnation, epoch: self.seat.epoch }
    }

    /// The fingerprint that each generation was acted on with.
    pub fn acted(&self) -> BTreeMap<i64, String> {
        let print =
            |u: &Unit| u.charge.stage.as_ref().map(|s| s.fingerprint.clone()).unwrap_or_default();
        self.units.iter().map(|(n, u)| (*n, print(u))).collect()
    }

    /// The stored entry of a generation.
    pub fn entry(&self, generation: i64) -> Option<&Generation> {
        self.view.generations.iter().find(|g| g.generation == generation)
    }

    /// Keeps a generation's unit, or makes one, with the entry that is stored now.
    pub fn unit(&mut self, entry: &Generation) -> &mut Unit {
        let stop = self.stop.child_token();
        let unit = self.units.entry(entry.generation).or_insert_with(|| Unit {
            generation: entry.clone(),
            charge: Charge::default(),
            evidence: Evidence::default(),
            stop,
        });
        unit.generation = entry.clone();
        unit
    }

    /// A unit begins anew with the stage that is stored now. Gives the server that it had.
    pub fn restart(&mut self, generation: i64) -> Option<Option<Arc<Handle>>> {
        let entry = self.entry(generation)?.clone();
        let stop = self.stop.child_token();
        let unit = self.unit(&entry);
        std::mem::replace(&mut unit.stop, stop).cancel();
        Some(unit.charge.realize(entry.stage))
    }

    /// Takes the Publish stage of a generation.
    pub fn publish(&mut self, generation: i64) -> Publish<Arc<Handle>, Failure> {
        let Some(entry) = self.entry(generation).cloned() else { return Publish::BringUp };
        self.unit(&entry).charge.publish(entry.stage)
    }

    /// The unit, if it still does what the fingerprint asked for.
    pub fn doing(&mut self, generation: i64, fingerprint: &str) -> Option<&mut Unit> {
        let unit = self.units.get_mut(&generation)?;
        unit.charge.is_doing(fingerprint).then_some(unit)
    }

    /// Puts the answer to a unit's stage into the outbox.
    pub fn answer(
        &self,
        generation: i64,
        verdict: Verdict,
        evidence: Evidence,
        why: Option<&Failure>,
        at: Timestamp,
    ) {
        let Some(unit) = self.units.get(&generation) else { return };
        let Some(stage) = &unit.charge.stage else { return };
        self.outbox.put(receipt(stage, verdict, evidence, why, at));
    }

    /// Notes which tools that the policy names the server of a generation lacks; says whether these
    /// are others than before.
    pub fn note_missing(&mut self, generation: i64) -> bool {
        let Some(unit) = self.units.get_mut(&generation) else { return false };
        let missing = Evidence::missing(self.hosted.catalogs.load().missing(generation));
        std::mem::replace(&mut unit.evidence.missing_tools, missing) != unit.evidence.missing_tools
    }

    /// The servers that are not in service here, and will be: what is Active, what was lost and
    /// comes again, and what comes in place of what was in service here.
    pub fn coming(&mut self) -> Vec<Coming> {
        for unit in self.units.values() {
            let charge = &unit.charge;
            if let (Some(handle), true) =
                (&charge.server, charge.published || charge.lost.is_some())
            {
                self.held.insert(unit.generation.attachment_uid.clone(), handle.surface());
            }
        }
        let all = &self.view.generations;
        self.held.retain(|uid, _| all.iter().any(|g| g.attachment_uid == *uid));
        let serves = |uid: &str| {
            self.units.values().any(|u| u.charge.published && u.generation.attachment_uid == uid)
        };
        let comes = |g: &Generation| match g.state {
            State::Active => true,
            State::Draining if g.reason == Reason::Replaced => {
                self.held.contains_key(&g.attachment_uid)
            }
            State::Draining => is_lost(g),
            State::Requested | State::Realizing | State::Failed => {
                self.held.contains_key(&g.attachment_uid)
            }
        };
        let mut coming: BTreeMap<&str, Coming> = BTreeMap::new();
        for g in all.iter().filter(|g| comes(g) && !serves(&g.attachment_uid)) {
            let newest = Coming {
                attachment: g.attachment.clone(),
                origin: g.origin,
                server: g.server.clone(),
                generation: g.generation,
                next_try: next_try(g),
                surface: self.held.get(&g.attachment_uid).cloned(),
            };
            let place = coming.entry(&g.attachment_uid).or_insert_with(|| newest.clone());
            if place.generation < g.generation {
                *place = newest;
            }
        }
        coming.into_values().collect()
    }
}

fn receipt(
    stage: &Stage,
    verdict: Verdict,
    evidence: Evidence,
    why: Option<&Failure>,
    at: Timestamp,
) -> Receipt {
    Receipt {
        generation: stage.generation_ref.generation,
        stage: stage.kind,
        generation_ref: stage.generation_ref.clone(),
        fingerprint: stage.fingerprint.clone(),
        verdict,
        evidence,
        reason: why.map(|f| f.reason),
        message: why.map(|f| bounded(&f.message)).unwrap_or_default(),
        at,
    }
}
