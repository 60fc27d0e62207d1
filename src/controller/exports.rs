//! Whether an Agent's exports can be shown by `/v1/mcp`. Pure; the gateway decides by the same
//! functions of `domain::export` what it does show.

use super::seen::{Problem, few};
use crate::{
    api::{Agent, agent::Export},
    domain::{export::Claim, gate::ToolSet, reason::Reason},
};
use kube::ResourceExt;
use std::collections::BTreeMap;

/// What is known of the exports of the installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportsSeen {
    /// Whether Agents of this namespace may export.
    pub allowed: bool,
    /// Whose each name is, by namespace and name of the Agent.
    pub owners: BTreeMap<String, (String, String)>,
}

/// What an Agent wants to export.
pub fn claim(agent: &Agent) -> Claim {
    Claim {
        namespace: agent.namespace().unwrap_or_default(),
        agent: agent.name_any(),
        uid: agent.uid().unwrap_or_default(),
        created: agent.metadata.creation_timestamp.as_ref().map(|t| t.0),
        names: agent.spec.exports.iter().map(|e| e.name.clone()).collect(),
    }
}

/// What keeps an Agent's exports from being shown: of the first cause that there is, the exports
/// that it keeps.
pub fn problem(agent: &Agent, seen: &ExportsSeen) -> Option<Problem> {
    let exports = &agent.spec.exports;
    if exports.is_empty() {
        return None;
    }
    let namespace = agent.namespace().unwrap_or_default();
    if !seen.allowed {
        let cause = format!(
            "Nothing is shown of the exports {}: Agents of the namespace {namespace:?} may not export.",
            few(&names(exports))
        );
        return Some(Problem::new(Reason::ExportNotAllowed, cause));
    }
    let own = (namespace, agent.name_any());
    let lost = |e: &&Export| seen.owners.get(&e.name).is_some_and(|owner| *owner != own);
    if let Some(export) = exports.iter().find(lost) {
        let owner = match seen.owners.get(&export.name) {
            Some((namespace, name)) if *namespace == own.0 => format!("the older Agent {name:?}"),
            // What another namespace has is not told by its name.
            _ => "an older Agent of another namespace".to_owned(),
        };
        let cause = format!("The name of the export {:?} belongs to {owner}.", export.name);
        return Some(Problem::new(Reason::DuplicateExport, cause));
    }
    let (export, why) = exports.iter().find_map(|e| Some((e, closed(agent, e)?)))?;
    let cause = format!("The export {:?} cannot be called: {why}.", export.name);
    Some(Problem::new(Reason::ExportNotCallable, cause))
}

fn names(exports: &[Export]) -> Vec<&str> {
    exports.iter().map(|e| &*e.name).collect()
}

/// Why the Agent's own ToolSets let nobody call what it exports.
fn closed(agent: &Agent, export: &Export) -> Option<String> {
    let Export { attachment, tool, .. } = export;
    let Some(set) = agent.spec.tool_sets.iter().find(|t| t.attachment == *attachment) else {
        return Some(format!("the attachment {attachment:?} has no ToolSet"));
    };
    let tools = set.tools.iter().map(|t| (t.name.clone(), t.permission)).collect();
    let policy = ToolSet { default: set.default_permission, tools };
    (!policy.shows(tool)).then(|| format!("the ToolSet of {attachment:?} denies the tool {tool:?}"))
}
