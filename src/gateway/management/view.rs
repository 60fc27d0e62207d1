//! What conditions say, digested: whether it is well, why not, and what to do. Pure.

use super::{
    cluster::Kind,
    text::line,
    wait::{Seen, State},
};
use crate::{
    api::condition::{READY, RECONCILING, STALLED},
    domain::reason::{Class, Reason},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::DeserializeGuard;
use schemars::JsonSchema;
use serde::{Deserialize as _, Serialize};

/// The longest message of a condition that is shown, in bytes.
pub const MESSAGE: usize = 512;

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ConditionView {
    /// Which: Ready, Reconciling, Stalled, Accepted, Serving.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// One word of the documented list of reasons.
    pub reason: String,
    /// The cause.
    pub message: String,
    /// Since when.
    pub since: String,
}

/// How something does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Health {
    /// Whether everything that was asked for is in service.
    pub ready: bool,
    /// Why, one word of the documented list; absent while the operator has not looked at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The cause.
    pub message: String,
    /// What to do about it, where there is something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
    /// Whether nothing goes on until somebody acts.
    pub stalled: bool,
    /// Whether the status speaks of the object as it is now; otherwise of an older one.
    pub up_to_date: bool,
}

/// The conditions of an object, with what is needed to judge them.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    /// metadata.generation.
    pub generation: Option<i64>,
    /// status.observedGeneration.
    pub observed: Option<i64>,
    /// status.conditions.
    pub conditions: &'a [Condition],
}

impl Status<'_> {
    fn find(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == type_)
    }

    fn holds(&self, type_: &str) -> bool {
        self.find(type_).is_some_and(|c| c.status == "True")
    }

    /// Digested.
    pub fn health(&self) -> Health {
        let Some(ready) = self.find(READY) else {
            return Health {
                ready: false,
                reason: None,
                message: "The operator has not looked at it yet.".to_owned(),
                next_step: None,
                stalled: false,
                up_to_date: false,
            };
        };
        let known = known(&ready.reason);
        let next = known.map_or("", Reason::next_step);
        let message = line(&ready.message, MESSAGE);
        let is_ready = ready.status == "True";
        Health {
            ready: is_ready,
            reason: Some(line(&ready.reason, 64)),
            next_step: (!next.is_empty() && !is_ready).then(|| next.to_owned()),
            stalled: self.holds(STALLED) || known.is_some_and(|r| r.class() == Class::Permanent),
            up_to_date: self.observed >= self.generation,
            message,
        }
    }

    /// Every condition.
    pub fn all(&self) -> Vec<ConditionView> {
        let view = |c: &Condition| ConditionView {
            type_: line(&c.type_, 64),
            status: line(&c.status, 16),
            reason: line(&c.reason, 64),
            message: line(&c.message, MESSAGE),
            since: c.last_transition_time.0.to_string(),
        };
        self.conditions.iter().take(16).map(view).collect()
    }

    /// What it means for somebody who waits for it to be ready.
    pub fn seen(&self) -> Seen {
        let health = self.health();
        let said = health.said();
        if !health.up_to_date {
            return Seen::going("The operator has not looked at the change yet.");
        }
        if health.ready {
            Seen::ended(State::Ready, said)
        } else if health.stalled {
            Seen::ended(State::Failed, said)
        } else if self.find(RECONCILING).is_some_and(|c| c.status == "False") {
            Seen::ended(State::Settled, said)
        } else {
            Seen::going(said)
        }
    }
}

impl Health {
    /// `Reason: message`.
    pub fn said(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{reason}: {}", self.message),
            None => self.message.clone(),
        }
    }

    /// Of an object that this version cannot read.
    pub fn unreadable(error: &str) -> Self {
        let reason = Reason::UnreadableObject;
        Self {
            ready: false,
            reason: Some(reason.as_str().to_owned()),
            message: line(error, MESSAGE),
            next_step: Some(reason.next_step().to_owned()),
            stalled: true,
            up_to_date: true,
        }
    }

    /// `Ready` or `not Ready`, and why, in the one line of a list.
    pub fn row(&self) -> String {
        let ready = if self.ready { "Ready" } else { "not Ready" };
        format!("{ready}, {}", line(&self.said(), 160))
    }

    /// `Ready` or `not Ready`, why, and what to do; lines.
    pub fn text(&self) -> String {
        let ready = if self.ready { "Ready" } else { "not Ready" };
        let mut out = format!("{ready}. {}\n", self.said());
        if let Some(next) = &self.next_step {
            out += &format!("Next step: {next}\n");
        }
        if !self.up_to_date {
            out += "The status speaks of an older version of the object; look again in a moment.\n";
        }
        out
    }
}

/// The reason of this name.
pub fn known(reason: &str) -> Option<Reason> {
    let reader = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(reason);
    Reason::deserialize(reader).ok()
}

/// Name and problem of an object, readable or not.
pub fn name_of<K: Kind>(guarded: &DeserializeGuard<K>) -> (String, Option<String>) {
    match &guarded.0 {
        Ok(object) => (object.meta().name.clone().unwrap_or_default(), None),
        Err(invalid) => {
            (invalid.metadata.name.clone().unwrap_or_default(), Some(invalid.error.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::condition::set;
    use jiff::Timestamp;

    fn conditions(ready: bool, reason: Reason, others: &[(&str, bool)]) -> Vec<Condition> {
        let mut all = vec![];
        let now = Timestamp::UNIX_EPOCH;
        set(&mut all, READY, ready, reason, "because", Some(2), now);
        for (type_, status) in others {
            set(&mut all, type_, *status, reason, "", Some(2), now);
        }
        all
    }

    fn seen(conditions: &[Condition], observed: i64) -> Option<State> {
        let status = Status { generation: Some(2), observed: Some(observed), conditions };
        status.seen().end
    }

    #[test]
    fn a_wait_ends_when_the_matter_is_settled_for_this_generation() {
        let going = [(RECONCILING, true), (STALLED, false)];
        let stuck = [(RECONCILING, false), (STALLED, true)];
        let still = [(RECONCILING, false), (STALLED, false)];
        assert_eq!(seen(&conditions(true, Reason::Active, &still), 2), Some(State::Ready));
        assert_eq!(seen(&conditions(true, Reason::Active, &still), 1), None);
        assert_eq!(seen(&conditions(false, Reason::Realizing, &going), 2), None);
        assert_eq!(seen(&conditions(false, Reason::ToolSetMissing, &going), 2), None);
        let failed = conditions(false, Reason::CommandNotFound, &stuck);
        assert_eq!(seen(&failed, 2), Some(State::Failed));
        assert_eq!(seen(&failed, 1), None);
        let suspended = conditions(false, Reason::Suspended, &still);
        assert_eq!(seen(&suspended, 2), Some(State::Settled));
        assert_eq!(seen(&[], 2), None);
    }

    #[test]
    fn the_next_step_is_the_reasons_own() {
        let all = conditions(false, Reason::SecretNotFound, &[]);
        let health = Status { generation: Some(2), observed: Some(2), conditions: &all }.health();
        assert_eq!(health.next_step.as_deref(), Some(Reason::SecretNotFound.next_step()));
        assert!(health.text().contains("Next step: Create the Secret"));
        let mut foreign = all;
        foreign[0].reason = "NeverHeardOf".to_owned();
        let health =
            Status { generation: Some(2), observed: Some(2), conditions: &foreign }.health();
        assert_eq!((health.next_step, health.reason.as_deref()), (None, Some("NeverHeardOf")));
    }

    #[test]
    fn every_reason_is_known_by_its_word() {
        assert!(Reason::ALL.iter().all(|r| known(r.as_str()) == Some(*r)));
        assert_eq!(known("ready"), None);
    }
}
