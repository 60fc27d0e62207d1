//! Servers that the Session has and that serve nothing here at the moment: not yet published after
//! a move, or restarting. A call of one of their tools is told to come again, and is not unknown.
//!
//! Which names are theirs is read from what they listed when they were last here. Where that is not
//! known, it is the names that the ToolSet has, and every id that begins as theirs do. Pure.

use super::{Policies, Surface};
use crate::domain::{
    gate::ToolSet,
    identity::{tool_id, tool_id_start},
    lifecycle::Origin,
};
use jiff::Timestamp;
use std::sync::Arc;

/// A server that comes, or comes again.
#[derive(Clone, Debug)]
pub struct Coming {
    /// Name of the attachment.
    pub attachment: String,
    /// Who brought it.
    pub origin: Origin,
    /// The server's name in tool ids.
    pub server: String,
    /// Its newest generation.
    pub generation: i64,
    /// When its successor may be asked for, if it failed or was lost.
    pub next_try: Option<Timestamp>,
    /// What it listed when it was last here.
    pub surface: Option<Arc<Surface>>,
}

impl Coming {
    /// Whether both say the same.
    pub(super) fn same(&self, other: &Self) -> bool {
        let surface = match (&self.surface, &other.surface) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (one, two) => one.is_none() && two.is_none(),
        };
        surface
            && (&self.attachment, self.origin, &self.server, self.generation, self.next_try)
                == (
                    &other.attachment,
                    other.origin,
                    &other.server,
                    other.generation,
                    other.next_try,
                )
    }
}

/// A name that is one of a coming server's, as far as can be told.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The server.
    pub coming: &'a Coming,
    /// The server's own name of the tool, or what stands for one that nobody named.
    pub tool: &'a str,
    /// What the policy says of it.
    pub policy: Option<&'a ToolSet>,
}

/// Whose a name is on an endpoint.
pub(super) fn expected<'a>(
    coming: &'a [Coming],
    policies: &'a Policies,
    endpoint: Option<&str>,
    name: &'a str,
) -> Option<Expected<'a>> {
    coming.iter().find_map(|coming| {
        let policy = policies.get(coming.origin, &coming.attachment).map(|p| &**p);
        let tool = match endpoint {
            Some(server) if server != coming.server => return None,
            Some(_) => own(coming, name)?,
            None => aggregated(coming, policy, name)?,
        };
        Some(Expected { coming, tool, policy })
    })
}

fn own<'a>(coming: &'a Coming, name: &'a str) -> Option<&'a str> {
    match &coming.surface {
        Some(surface) => surface.tools.iter().find(|t| t.name == name).map(|t| &*t.name),
        None => Some(name),
    }
}

fn aggregated<'a>(coming: &'a Coming, policy: Option<&'a ToolSet>, id: &'a str) -> Option<&'a str> {
    if let Some(surface) = &coming.surface {
        return surface.tools.iter().find(|t| t.id == id).map(|t| &*t.name);
    }
    let mut named = policy.into_iter().flat_map(|p| p.tools.keys());
    match named.find(|tool| tool_id(&coming.server, tool) == id) {
        Some(tool) => Some(tool),
        // no ToolSet names an id of such a start: what holds for unnamed tools holds for it
        None => id.starts_with(&tool_id_start(&coming.server)).then_some(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::gate::{Permission, pass};
    use rstest::rstest;
    use std::collections::BTreeMap;

    fn policies(default: Permission) -> Policies {
        let long = "t".repeat(80);
        let tools = [
            ("read".to_owned(), Permission::Allow),
            ("write".to_owned(), Permission::Deny),
            (long, Permission::Deny),
        ];
        let set = Arc::new(ToolSet { default, tools: tools.into() });
        BTreeMap::from([("files".to_owned(), set)]).into()
    }

    fn coming() -> [Coming; 1] {
        let (attachment, server) = ("files".to_owned(), "fs".to_owned());
        let origin = Origin::Agent;
        [Coming { attachment, origin, server, generation: 4, next_try: None, surface: None }]
    }

    #[rstest]
    #[case::named(None, "mcp__fs__read", Permission::Deny, true)]
    #[case::denied(None, "mcp__fs__write", Permission::Allow, false)]
    #[case::denied_under_a_short_id(None, &tool_id("fs", &"t".repeat(80)), Permission::Allow, false)]
    #[case::unnamed(None, "mcp__fs__other", Permission::Allow, true)]
    #[case::unnamed_and_denied(None, "mcp__fs__other", Permission::Deny, false)]
    #[case::another_server(None, "mcp__fsx__read", Permission::Allow, false)]
    #[case::no_id(None, "read", Permission::Allow, false)]
    #[case::own_name(Some("fs"), "read", Permission::Deny, true)]
    #[case::own_denied(Some("fs"), "write", Permission::Allow, false)]
    #[case::own_unnamed(Some("fs"), "other", Permission::Allow, true)]
    #[case::other_endpoint(Some("files"), "read", Permission::Allow, false)]
    fn without_a_list_the_toolset_and_the_start_of_an_id_tell(
        #[case] endpoint: Option<&str>,
        #[case] name: &str,
        #[case] default: Permission,
        #[case] comes: bool,
    ) {
        let (coming, policies) = (coming(), policies(default));
        let found = expected(&coming, &policies, endpoint, name);
        assert_eq!(found.is_some_and(|f| pass(f.policy, f.tool).is_ok()), comes);
    }
}
