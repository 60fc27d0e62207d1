//! The export direction's names: what may be exported under which name, by whom, from where.
//!
//! Operator and gateway decide by the same functions here, so the condition that a user reads and
//! the list that a client sees cannot differ.

use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// The management tools that are built, in the order of every list.
pub const MANAGEMENT_TOOLS: [&str; 12] = [
    "agents_list",
    "agent_get",
    "attachments_list",
    "attachment_get",
    "attachment_apply",
    "attachment_delete",
    "attachment_retry",
    "sessions_list",
    "session_get",
    "session_create",
    "session_close",
    "trace_list",
];

/// Names that are kept for management tools to come, with approvals.
pub const RESERVED_TOOLS: [&str; 2] = ["approvals_list", "approval_decide"];

/// The longest name of an export, in characters.
pub const MAX_EXPORT_NAME: usize = 64;

/// Whether the name is a management tool's, built or to come.
pub fn is_reserved(name: &str) -> bool {
    MANAGEMENT_TOOLS.contains(&name) || RESERVED_TOOLS.contains(&name)
}

/// What keeps a name from being an agent tool's export, as the end of a sentence.
pub fn name_problem(name: &str) -> Option<&'static str> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if name.is_empty() || name.len() > MAX_EXPORT_NAME {
        Some("must have 1 to 64 characters")
    } else if !name.bytes().all(plain) {
        Some("may hold letters, digits, '_' and '-' only")
    } else if is_reserved(name) {
        Some("is the name of a management tool")
    } else {
        None
    }
}

/// The namespaces whose Agents' exports are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    all: bool,
    names: BTreeSet<String>,
}

impl Namespaces {
    /// From a list of names, in which `*` stands for every namespace. An empty list is none.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        let names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
        Self { all: names.contains("*"), names }
    }

    /// Whether the namespace is among them.
    pub fn allows(&self, namespace: &str) -> bool {
        self.all || self.names.contains(namespace)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// What one Agent wants to export, in a namespace that is allowed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The Agent's namespace.
    pub namespace: String,
    /// The Agent's name.
    pub agent: String,
    /// The Agent's UID.
    pub uid: String,
    /// When the Agent was created; without it, it is younger than any other.
    pub created: Option<Timestamp>,
    /// The names of its exports.
    pub names: Vec<String>,
}

/// Whose each name is, by namespace and name of the Agent: the older Agent keeps a name (by
/// creation, then by UID). A name that cannot be an export is nobody's.
///
/// Claims of namespaces that may not export must be left out by the caller: they hold no name.
pub fn owners<'a>(
    claims: impl IntoIterator<Item = &'a Claim>,
) -> BTreeMap<String, (String, String)> {
    let mut claims: Vec<_> = claims.into_iter().collect();
    claims.sort_by_key(|c| (c.created.is_none(), c.created, &c.uid, &c.namespace, &c.agent));
    let mut owners = BTreeMap::new();
    for claim in claims {
        for name in claim.names.iter().filter(|n| name_problem(n).is_none()) {
            let owner = || (claim.namespace.clone(), claim.agent.clone());
            owners.entry(name.clone()).or_insert_with(owner);
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn claim(agent: &str, uid: &str, created: i64, names: &[&str]) -> Claim {
        Claim {
            namespace: format!("ns-{agent}"),
            agent: agent.into(),
            uid: uid.into(),
            created: Timestamp::from_second(created).ok(),
            names: names.iter().map(|n| (*n).to_owned()).collect(),
        }
    }

    fn owner(owners: &BTreeMap<String, (String, String)>, name: &str) -> Option<String> {
        owners.get(name).map(|(namespace, agent)| format!("{namespace}/{agent}"))
    }

    #[test]
    fn the_older_agent_keeps_a_name_and_the_younger_its_others() {
        let claims = [
            claim("young", "a", 20, &["read", "young_only"]),
            claim("old", "z", 10, &["read", "old_only"]),
        ];
        let owners = owners(&claims);
        assert_eq!(owner(&owners, "read").as_deref(), Some("ns-old/old"));
        assert_eq!(owner(&owners, "young_only").as_deref(), Some("ns-young/young"));
        assert_eq!(owner(&owners, "old_only").as_deref(), Some("ns-old/old"));
        assert_eq!(owners.len(), 3);
    }

    #[test]
    fn within_one_second_the_uid_decides_and_an_unknown_age_is_the_youngest() {
        let mut claims = [claim("b", "uid-b", 10, &["x"]), claim("a", "uid-a", 10, &["x"])];
        assert_eq!(owner(&owners(&claims), "x").as_deref(), Some("ns-a/a"));
        claims[1].created = None;
        assert_eq!(owner(&owners(&claims), "x").as_deref(), Some("ns-b/b"));
    }

    #[test]
    fn nobody_owns_a_reserved_or_malformed_name() {
        let long = "x".repeat(65);
        let claims = [claim("a", "a", 1, &["agents_list", "approval_decide", "", "a b", &long])];
        assert_eq!(owners(&claims), BTreeMap::new());
    }

    #[rstest]
    #[case("coder_read", None)]
    #[case("A-z_09", None)]
    #[case("agents_lists", None)]
    #[case("", Some("must have 1 to 64 characters"))]
    #[case("a.b", Some("may hold letters, digits, '_' and '-' only"))]
    #[case("é", Some("may hold letters, digits, '_' and '-' only"))]
    #[case("trace_list", Some("is the name of a management tool"))]
    #[case("approvals_list", Some("is the name of a management tool"))]
    fn names_of_exports(#[case] name: &str, #[case] problem: Option<&str>) {
        assert_eq!(name_problem(name), problem);
    }

    #[test]
    fn the_longest_name_has_64_characters() {
        assert_eq!(name_problem(&"x".repeat(64)), None);
        assert_eq!(name_problem(&"x".repeat(65)), Some("must have 1 to 64 characters"));
    }

    #[test]
    fn management_names_are_distinct_and_fit_the_rule() {
        let all: Vec<_> = MANAGEMENT_TOOLS.iter().chain(&RESERVED_TOOLS).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for name in all {
            assert_eq!(name_problem(name), Some("is the name of a management tool"));
        }
    }

    #[test]
    fn namespaces_are_none_some_or_all() {
        let none = Namespaces::new(Vec::<String>::new());
        assert!(none.is_empty() && !none.allows("team-a") && !none.allows("*"));
        let some = Namespaces::new(["team-a"]);
        assert!(!some.is_empty() && some.allows("team-a") && !some.allows("team-b"));
        assert!(!some.allows(""));
        let all = Namespaces::new(["team-a", "*"]);
        assert!(all.allows("team-b") && all.allows("anything"));
    }

    proptest! {
        #[test]
        fn the_order_of_the_claims_does_not_matter(
            seeds in proptest::collection::vec((0..4_i64, "[a-c]{1,2}"), 1..6),
            turn in 0..6_usize,
        ) {
            let mut claims: Vec<_> = seeds
                .iter()
                .enumerate()
                .map(|(i, (age, name))| claim(&format!("a{i}"), &format!("u{i}"), *age, &[name]))
                .collect();
            let before = owners(&claims);
            let turn = turn % claims.len();
            claims.rotate_left(turn);
            claims.reverse();
            prop_assert_eq!(owners(&claims), before);
        }
    }
}
