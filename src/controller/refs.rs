//! From an object that changed to the Session that must be looked at.

use super::build::{MANAGED_BY, MANAGER};
use crate::{
    api::{Agent, McpAttachment, RECONCILE_REQUESTED_AT, Session, attachment::McpAttachmentSpec},
    domain::identity::SessionKey,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use std::collections::BTreeSet;

/// Namespace and name of an object.
pub fn named(object: &impl ResourceExt) -> SessionKey {
    SessionKey { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}

/// What asks for another try, if it fits into the status that answers it: at most 128 characters.
pub fn asked(object: &impl ResourceExt) -> Option<&String> {
    let all = object.annotations();
    all.get(RECONCILE_REQUESTED_AT).filter(|asked| asked.chars().count() <= 128)
}

/// The Agent's Standing Session has its name.
pub fn of_agent(agent: &Agent) -> SessionKey {
    SessionKey { namespace: agent.namespace().unwrap_or_default(), name: agent.name_any() }
}

/// The Session of the Agent that the attachment names.
pub fn of_attachment(attachment: &McpAttachment) -> SessionKey {
    SessionKey {
        namespace: attachment.namespace().unwrap_or_default(),
        name: attachment.spec.agent_ref.name.clone(),
    }
}

/// The Session itself.
pub fn of_session(session: &Session) -> SessionKey {
    SessionKey { namespace: session.namespace().unwrap_or_default(), name: session.name_any() }
}

/// The Agent that a Session names.
pub fn agent_of(session: &Session) -> SessionKey {
    SessionKey {
        namespace: session.namespace().unwrap_or_default(),
        name: session.spec.agent_ref.name.clone(),
    }
}

/// The Session that owns an object of the operator's making.
pub fn of_owned(meta: &ObjectMeta) -> Option<SessionKey> {
    let ours =
        meta.labels.as_ref().is_some_and(|l| l.get(MANAGED_BY).is_some_and(|m| m == MANAGER));
    let kind = Session::kind(&());
    let mut owners = meta.owner_references.iter().flatten();
    let owner = owners.find(|o| ours && o.kind == kind)?;
    Some(SessionKey {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: owner.name.clone(),
    })
}

/// Whether an object says that the Session of this UID owns it. Its labels are not asked: whoever
/// may change them could hide it.
pub fn is_owned_by(meta: &ObjectMeta, session_uid: &str) -> bool {
    meta.owner_references.iter().flatten().any(|owner| owner.uid == session_uid)
}

/// The Secrets that an attachment names, all in its own namespace.
pub fn secrets_of(spec: &McpAttachmentSpec) -> BTreeSet<&str> {
    let credential = spec.http.iter().filter_map(|h| h.credential.as_ref());
    let env = spec.sandbox_stdio.iter().flat_map(|s| &s.secret_env);
    credential
        .map(|c| c.secret_key_ref.name.as_str())
        .chain(env.map(|e| e.secret_key_ref.name.as_str()))
        .collect()
}
