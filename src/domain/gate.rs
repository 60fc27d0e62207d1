//! The gate: whether a subject's call of a tool passes, decided from the ToolSet as it is now.
//! The only place that decides, and the only place that makes a [`Permit`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a ToolSet says of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Permission {
    /// The call passes.
    Allow,
    /// The tool is neither listed nor callable.
    Deny,
}

impl Permission {
    /// The narrower of the two.
    #[must_use]
    pub fn at_most(self, most: Self) -> Self {
        match (self, most) {
            (Self::Allow, Self::Allow) => Self::Allow,
            (Self::Deny, _) | (_, Self::Deny) => Self::Deny,
        }
    }
}

/// One ToolSet: the policy over one server's tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSet {
    /// For tools that nobody named.
    pub default: Permission,
    /// For the named ones, by the server's own, exact name.
    pub tools: BTreeMap<String, Permission>,
}

impl ToolSet {
    /// The ToolSet with nothing in it wider than this.
    #[must_use]
    pub fn within(mut self, most: Permission) -> Self {
        self.default = self.default.at_most(most);
        self.tools.values_mut().for_each(|permission| *permission = permission.at_most(most));
        self
    }

    /// What the ToolSet says of a tool, and the rule that said it, for the record.
    pub fn decide(&self, tool: &str) -> Decision {
        match self.tools.get(tool) {
            Some(permission) => {
                Decision { permission: *permission, rule: format!("tools[{tool}]={permission:?}") }
            }
            None => Decision {
                permission: self.default,
                rule: format!("defaultPermission={:?}", self.default),
            },
        }
    }

    /// Whether a list shows the tool.
    pub fn shows(&self, tool: &str) -> bool {
        self.tools.get(tool).copied().unwrap_or(self.default) != Permission::Deny
    }
}

/// A decision with the rule behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What was decided.
    pub permission: Permission,
    /// Which rule decided, as it stands in the record.
    pub rule: String,
}

/// The proof that the gate let a call of this tool pass. What commits an intent takes one.
#[derive(Debug)]
pub struct Permit {
    tool: String,
    rule: String,
}

impl Permit {
    /// The server's own name of the tool.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// The rule that let it pass.
    pub fn rule(&self) -> &str {
        &self.rule
    }
}

/// Lets a call pass, or names the rule that denies it.
///
/// # Errors
/// The denying rule, for the record; the caller is told no more than of an unknown tool.
pub fn pass(toolset: Option<&ToolSet>, tool: &str) -> Result<Permit, String> {
    let Some(toolset) = toolset else { return Err("no ToolSet".to_owned()) };
    let Decision { permission, rule } = toolset.decide(tool);
    match permission {
        Permission::Allow => Ok(Permit { tool: tool.to_owned(), rule }),
        Permission::Deny => Err(rule),
    }
}

/// Lets a call of a management tool pass if the installation exports it. Its policy is the export
/// set, and no ToolSet.
///
/// # Errors
/// The denying rule, as in [`pass`].
pub fn exported<'a>(
    exports: impl IntoIterator<Item = &'a str>,
    tool: &str,
) -> Result<Permit, String> {
    match exports.into_iter().any(|name| name == tool) {
        true => Ok(Permit { tool: tool.to_owned(), rule: format!("exports: {tool}") }),
        false => Err("exports".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn toolset(default: Permission) -> ToolSet {
        let tools =
            [("read".to_owned(), Permission::Allow), ("write".to_owned(), Permission::Deny)];
        ToolSet { default, tools: tools.into() }
    }

    #[rstest]
    #[case::named_allow(Permission::Deny, "read", true)]
    #[case::named_deny(Permission::Allow, "write", false)]
    #[case::default_allow(Permission::Allow, "other", true)]
    #[case::default_deny(Permission::Deny, "other", false)]
    #[case::other_case(Permission::Deny, "Read", false)]
    #[case::padded(Permission::Deny, " read", false)]
    #[case::prefix(Permission::Deny, "rea", false)]
    #[case::qualified(Permission::Deny, "mcp__files__read", false)]
    #[case::empty(Permission::Deny, "", false)]
    fn table(#[case] default: Permission, #[case] tool: &str, #[case] passes: bool) {
        let set = toolset(default);
        assert_eq!(pass(Some(&set), tool).is_ok(), passes);
        assert_eq!(set.shows(tool), passes, "lists and calls agree");
    }

    #[rstest]
    #[case::all(Permission::Allow, Permission::Allow)]
    #[case::none(Permission::Allow, Permission::Deny)]
    #[case::narrow(Permission::Deny, Permission::Allow)]
    #[case::both(Permission::Deny, Permission::Deny)]
    fn within_a_bound_nothing_is_wider(#[case] default: Permission, #[case] most: Permission) {
        let set = toolset(default).within(most);
        for tool in ["read", "write", "other"] {
            let passes = toolset(default).shows(tool) && most == Permission::Allow;
            assert_eq!(pass(Some(&set), tool).is_ok(), passes, "{tool}");
        }
    }

    #[test]
    fn without_a_toolset_nothing_passes() {
        assert_eq!(pass(None, "read").unwrap_err(), "no ToolSet");
    }

    #[test]
    fn a_management_tool_passes_by_its_exact_name_in_the_export_set() {
        let exports = ["agents_list", "agent_get"];
        let permit = exported(exports, "agent_get").unwrap();
        assert_eq!((permit.tool(), permit.rule()), ("agent_get", "exports: agent_get"));
        for other in ["agent", "Agent_get", "agent_get ", "attachment_apply", ""] {
            assert_eq!(exported(exports, other).unwrap_err(), "exports");
        }
        assert!(exported([], "agent_get").is_err());
    }

    #[test]
    fn the_rule_is_named() {
        let set = toolset(Permission::Deny);
        assert_eq!(pass(Some(&set), "read").unwrap().rule(), "tools[read]=Allow");
        assert_eq!(pass(Some(&set), "x").unwrap_err(), "defaultPermission=Deny");
    }
}
