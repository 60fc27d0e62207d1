//! What one reconcile works on: everything that was read for one Session, as plain data.

use super::{exports::ExportsSeen, hosts::Gateway, secrets::SecretState};
use crate::{
    api::{Agent, McpAttachment, Session},
    domain::{egress::Net, identity::SessionKey, reason::Reason},
    process::api_server::ApiServer,
};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use std::{collections::BTreeMap, sync::Arc};

/// Everything that was read for one Session.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Namespace and name of the Session. A Standing one has its Agent's.
    pub key: SessionKey,
    /// When it was read.
    pub now: Timestamp,
    /// The Agent; none when it is gone or going.
    pub agent: Option<Arc<Agent>>,
    /// The Session of that name, whoever made it.
    pub session: Option<Arc<Session>>,
    /// The attachments that name the Agent and are not being deleted.
    pub attachments: Vec<Arc<McpAttachment>>,
    /// What is being deleted and held by somebody's finalizer.
    pub leaving: Leaving,
    /// UIDs of attachments that are there but cannot be read.
    pub unreadable: Vec<String>,
    /// Every Secret that the attachments name.
    pub secrets: BTreeMap<String, SecretState>,
    /// The Session's pods.
    pub pods: Vec<Arc<Pod>>,
    /// The Session's NetworkPolicy.
    pub policy: Option<Arc<NetworkPolicy>>,
    /// What is known of the installation's exports, when the Agent has some.
    pub exports: ExportsSeen,
    /// The gateways that are alive.
    pub gateways: Vec<Gateway>,
    /// What the installation lets nobody do.
    pub rules: Rules,
}

/// What is being deleted and is still there, since finalizers of others hold it.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    /// The Agent of that name.
    pub agent: Option<Arc<Agent>>,
    /// Attachments that name it.
    pub attachments: Vec<Arc<McpAttachment>>,
}

/// What the installation lets nobody do.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Secrets of the Session's namespace that are the installation's own.
    pub reserved_secrets: Vec<String>,
    /// Whether a Secret goes nowhere without the annotation `awaken.dev/allowed-targets`.
    pub require_allowed_targets: bool,
    /// The addresses of the API server.
    pub api_server: ApiServer,
    /// Networks that no sandbox reaches.
    pub denied_egress: Vec<Net>,
}

/// Why something is not as asked, for a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The word.
    pub reason: Reason,
    /// Cause and next step.
    pub message: String,
}

impl Problem {
    /// The cause in the given words, and the next step that belongs to the reason.
    pub fn new(reason: Reason, cause: impl AsRef<str>) -> Self {
        Self { reason, message: sentences(cause.as_ref(), reason.next_step()) }
    }
}

/// Two sentences as one text. The first may come from elsewhere, with or without its full stop.
pub fn sentences(first: &str, second: &str) -> String {
    let first = first.trim_end();
    match (first.is_empty(), second.is_empty()) {
        (true, _) => second.to_owned(),
        (_, true) => first.to_owned(),
        _ if first.ends_with(['.', '!', '?', ':']) => format!("{first} {second}"),
        _ => format!("{first}. {second}"),
    }
}

/// The names of a few things and how many more there are.
pub fn few<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<_> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_joined_with_one_full_stop() {
        assert_eq!(sentences("refused (111)", "Look at it."), "refused (111). Look at it.");
        assert_eq!(sentences("It is gone.", "Look at it."), "It is gone. Look at it.");
        assert_eq!(sentences("", "Look at it."), "Look at it.");
        assert_eq!(sentences("It is gone.\n", ""), "It is gone.");
    }

    #[test]
    fn few_of_many() {
        assert_eq!(few(&["a", "b"]), "a, b");
        assert_eq!(few(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }
}
