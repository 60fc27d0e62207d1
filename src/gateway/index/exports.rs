//! Which name leads to which Agent's tool: a function of what the Agents of allowed namespaces
//! claim. Who keeps a name is the domain's decision; here it becomes a table.

use super::AgentView;
use crate::domain::{
    export::{Claim, Namespaces, owners},
    identity::SessionKey,
};
use std::collections::{BTreeMap, HashMap};

/// A tool that an Agent exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRule {
    /// The name that clients see.
    pub name: String,
    /// metadata.name of the attachment.
    pub attachment: String,
    /// The server's own name of the tool.
    pub tool: String,
}

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The Agent's Standing Session, which has the Agent's name.
    pub session: SessionKey,
    /// metadata.name of the attachment.
    pub attachment: String,
    /// The server's own name of the tool.
    pub tool: String,
}

/// Every exported name with its one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportTable {
    names: BTreeMap<String, Exported>,
}

impl ExportTable {
    /// The table of these Agents.
    pub(super) fn of(
        agents: &HashMap<(String, String), std::sync::Arc<AgentView>>,
        allowed: &Namespaces,
    ) -> Self {
        let exporting =
            || agents.iter().filter(|(id, a)| !a.exports.is_empty() && allowed.allows(&id.0));
        let claims: Vec<_> = exporting()
            .map(|((namespace, agent), view)| Claim {
                namespace: namespace.clone(),
                agent: agent.clone(),
                uid: view.uid.clone(),
                created: view.created,
                names: view.exports.iter().map(|e| e.name.clone()).collect(),
            })
            .collect();
        let names = owners(&claims).into_iter().filter_map(|(name, owner)| {
            let rule = agents.get(&owner)?.exports.iter().find(|e| e.name == name)?;
            let session = SessionKey { namespace: owner.0, name: owner.1 };
            let (attachment, tool) = (rule.attachment.clone(), rule.tool.clone());
            Some((name, Exported { session, attachment, tool }))
        });
        Self { names: names.collect() }
    }

    /// What a name leads to.
    pub fn get(&self, name: &str) -> Option<&Exported> {
        self.names.get(name)
    }

    /// Every name, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Exported)> {
        self.names.iter().map(|(name, exported)| (name.as_str(), exported))
    }

    /// Whether nothing is exported.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}
