//! What a step of the state machine depends on, and what comes out of it. Types only.

use super::{CredentialRef, Generation, Limits, Origin, Receipt, Rollout, SecretKey};
use crate::domain::reason::Reason;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Everything that a step depends on.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The present time.
    pub now: Timestamp,
    /// Name of the Session.
    pub session: &'a str,
    /// UID of the Session.
    pub session_uid: &'a str,
    /// `status.attachments`.
    pub entries: &'a [Generation],
    /// `status.lastGeneration`.
    pub last_generation: i64,
    /// `status.receipts`.
    pub receipts: &'a [Receipt],
    /// The live host; none when it is gone or there never was one.
    pub owner: Option<Owner<'a>>,
    /// What is asked for. An attachment that is not named here is gone.
    pub desired: &'a [Desired],
    /// The Session's pods, by generation. No entry: there is no such pod.
    pub pods: &'a BTreeMap<i64, PodFact>,
    /// The Session is being deleted.
    pub terminating: bool,
}

/// The live host of a Session: `status.host` without the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    /// Which start of the gateway.
    pub incarnation: &'a str,
    /// The lease epoch.
    pub epoch: i64,
}

/// What is asked for in the name of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Name of the attachment.
    pub attachment: String,
    /// UID of the attachment.
    pub attachment_uid: String,
    /// Who brought it.
    pub origin: Origin,
    /// What to do.
    pub wish: Wish,
    /// Somebody asks for another try now.
    pub retry: bool,
}

/// What to do with an attachment.
#[expect(clippy::large_enum_variant, reason = "one for each attachment, and most are Serve")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Serve this.
    Serve(Blueprint),
    /// Keep what serves, start nothing: something is missing.
    Hold,
    /// Take it out of service: why, of [`Reason::Suspended`] and [`Reason::Draining`].
    Withdraw(Reason),
    /// Make room: take it out of service once what was asked for beside it serves or failed.
    Yield,
}

/// What a generation is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blueprint {
    /// The server's name in tool ids.
    pub server: String,
    /// Fingerprint of everything that makes a new generation when it changes.
    pub source: String,
    /// Where the server is or shall be.
    pub place: Place,
    /// The limits.
    pub limits: Limits,
    /// How it takes the place of the generation before.
    pub rollout: Rollout,
}

/// Where a server is or shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Over HTTP.
    Http {
        /// The canonical URL.
        url: String,
        /// The credential, by reference.
        credential: Option<CredentialRef>,
    },
    /// In a pod that is made for the generation.
    Pod {
        /// The Secret keys that its environment reads.
        secrets: Vec<SecretKey>,
    },
}

/// What is seen of a generation's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodFact {
    /// It was not made: the API server said no.
    Refused(Reason, String),
    /// It is on its way; with what keeps it, if anything.
    Pending(Option<(Reason, String)>),
    /// Its server runs.
    Running {
        /// UID of the pod.
        uid: String,
        /// Address of the pod.
        address: String,
    },
    /// Its server ended.
    Ended(Reason, String),
    /// It is being deleted.
    Deleting,
}

/// What to do after the entries are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make the pod of this generation.
    CreatePod(i64),
    /// Delete the pod of this generation.
    DeletePod(i64),
}

/// Why an entry went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedBy {
    /// It was never started, or the gateway said that it is drained.
    Drained,
    /// The gateway did not say so in time.
    Deadline,
    /// The gateway that owned it is gone.
    HostLost,
    /// It had failed and is not asked for any more.
    Superseded,
}

/// An entry that went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The generation.
    pub generation: i64,
    /// metadata.name of the attachment.
    pub attachment: String,
    /// Why.
    pub by: RemovedBy,
}

/// A receipt that does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ignored {
    /// The generation that it speaks of.
    pub generation: i64,
    /// What does not match.
    pub mismatch: Mismatch,
}

/// What of a receipt does not match the present stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// Another Session or attachment, or a generation that is not named in its own ref.
    Identity,
    /// Another start of a gateway.
    Incarnation,
    /// Another lease epoch.
    Epoch,
    /// The stage asked for something else.
    Fingerprint,
}

/// What comes out of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// `status.attachments`, by generation.
    pub entries: Vec<Generation>,
    /// `status.lastGeneration`.
    pub last_generation: i64,
    /// What to do once the entries are written.
    pub effects: Vec<Effect>,
    /// When to come back if nothing happens before.
    pub wake: Option<Timestamp>,
    /// Entries that went.
    pub removed: Vec<Removal>,
    /// Receipts that do not count. One that answers an earlier stage of its generation is not
    /// among them: the gateway has not replaced it yet.
    pub ignored: Vec<Ignored>,
}

impl Step {
    /// Come back by then at the latest.
    pub(super) fn wake_by(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }
}
