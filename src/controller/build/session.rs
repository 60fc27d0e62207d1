//! The Standing Session of an Agent.

use super::{COMPONENT, MANAGED_BY, MANAGER, SESSION_COMPONENT};
use crate::api::{Agent, Session, SessionSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

/// Held until the Session's generations are drained and its pods are on their way out.
pub const FINALIZER: &str = "awaken.dev/drain";

/// The Standing Session: named like the Agent, owned by it.
pub fn standing(agent: &Agent) -> Session {
    let labels = [(MANAGED_BY, MANAGER), (COMPONENT, SESSION_COMPONENT)];
    Session {
        metadata: ObjectMeta {
            name: Some(agent.name_any()),
            namespace: agent.namespace(),
            labels: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            owner_references: agent.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: SessionSpec::of(agent.name_any()),
        status: None,
    }
}

/// Whose a Session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// This Agent's.
    Ours,
    /// It belonged to an Agent of this name that is gone; it will go too.
    Former,
    /// Somebody else's.
    Foreign,
}

/// Whether somebody took the Agent out of the owners of a Session that the operator made for it:
/// it has our marks, and generations, which only the operator writes.
fn is_bereft(session: &Session, agent: &Agent) -> bool {
    let kind = Agent::kind(&());
    let mut owners = session.metadata.owner_references.iter().flatten();
    session.name_any() == agent.name_any()
        && session.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGER)
        && session.finalizers().iter().any(|f| f == FINALIZER)
        && session.status.as_ref().is_some_and(|s| s.last_generation > 0)
        && !owners.any(|o| o.kind == kind || o.controller == Some(true))
}

/// Whether a Session is this Agent's.
pub fn ownership(session: &Session, agent: &Agent) -> Ownership {
    let kind = Agent::kind(&());
    let owners = session.metadata.owner_references.iter().flatten();
    let is_own = session.spec.agent_ref.name == agent.name_any();
    let mut controllers = owners.filter(|o| {
        is_own && o.controller == Some(true) && o.kind == kind && o.name == agent.name_any()
    });
    match controllers.next() {
        Some(owner) if Some(&owner.uid) == agent.metadata.uid.as_ref() => Ownership::Ours,
        Some(_) => Ownership::Former,
        None if is_own && is_bereft(session, agent) => Ownership::Ours,
        None => Ownership::Foreign,
    }
}
