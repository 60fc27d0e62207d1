//! Conditions, as kstatus reads them. Decides nothing: the caller says what holds.

use crate::domain::reason::Reason;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{Schema, SchemaGenerator, json_schema};

/// Everything that was asked for is in service; for attachments, of the newest generation.
pub const READY: &str = "Ready";
/// Work is going on.
pub const RECONCILING: &str = "Reconciling";
/// Nothing goes on until somebody acts.
pub const STALLED: &str = "Stalled";
/// The spec is valid and its partner is there.
pub const ACCEPTED: &str = "Accepted";
/// Some generation is callable.
pub const SERVING: &str = "Serving";

/// Longest message of a condition, in bytes.
pub const MAX_MESSAGE: usize = 512;

/// The schema of `status.conditions`: a map by type, every string bounded.
pub fn list_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {"type": "string", "maxLength": 64, "description": "Which condition."},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds."},
                "reason": {"type": "string", "minLength": 1, "maxLength": 64, "description": "Why, one of the documented reasons."},
                "message": {"type": "string", "maxLength": MAX_MESSAGE, "description": "The same for people: cause and next step."},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0, "description": "The metadata.generation that it speaks of."},
                "lastTransitionTime": {"type": "string", "format": "date-time", "description": "When its status last changed."}
            }
        }
    })
}

/// The text cut to [`MAX_MESSAGE`] bytes at a character's edge.
pub fn bounded(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let mut end = MAX_MESSAGE - '…'.len_utf8();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

/// Sets a condition; the transition time moves only when the status does.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: bool,
    reason: Reason,
    message: &str,
    observed_generation: Option<i64>,
    now: Timestamp,
) {
    let status = if status { "True" } else { "False" };
    let message = bounded(message);
    let old = conditions.iter().position(|c| c.type_ == type_);
    let last_transition_time = match old {
        Some(i) if conditions[i].status == status => conditions[i].last_transition_time.clone(),
        _ => Time(now),
    };
    let new = Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message,
        observed_generation,
        last_transition_time,
    };
    match old {
        Some(i) => conditions[i] = new,
        None => conditions.push(new),
    }
}

/// Whether the condition is there and True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions.iter().any(|c| c.type_ == type_ && c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let (t1, t2) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(60).unwrap());
        let mut all = vec![];
        set(&mut all, READY, false, Reason::Realizing, "a", Some(1), t1);
        set(&mut all, READY, false, Reason::Unschedulable, "b", Some(2), t2);
        assert_eq!((all[0].last_transition_time.0, &*all[0].reason), (t1, "Unschedulable"));
        set(&mut all, READY, true, Reason::Active, "", Some(2), t2);
        assert_eq!(all[0].last_transition_time.0, t2);
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn messages_are_cut_at_a_characters_edge() {
        for pad in 0..4 {
            let long = format!("{}{}", "x".repeat(pad), "€".repeat(400));
            let cut = bounded(&long);
            assert!(cut.len() <= MAX_MESSAGE && cut.ends_with('…'), "{}", cut.len());
        }
    }
}
