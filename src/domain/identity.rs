//! Who and what: the names that travel between the parts, and the digests over them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The longest tool id that is handed to a client.
pub const MAX_TOOL_ID: usize = 64;
/// Hex digits at the end of a tool id that is not plain.
const HASH: usize = 10;

/// One generation of one attachment under one owner. Whoever acts on it checks it whole; its
/// expiry is read from the host's Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct McpGenerationRef {
    /// UID of the Session.
    #[schemars(length(max = 64))]
    pub session_uid: String,
    /// UID of the McpAttachment.
    #[schemars(length(max = 64))]
    pub attachment_uid: String,
    /// The generation, a number that its Session never uses twice.
    #[schemars(range(min = 1))]
    pub generation: i64,
    /// The start of the gateway process that owns it.
    #[schemars(length(max = 64))]
    pub incarnation: String,
    /// The lease epoch of the Session; each move raises it.
    #[schemars(range(min = 1))]
    pub epoch: i64,
}

/// A Session by name, as routes and events speak of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl std::fmt::Display for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An authenticated caller, as the API server named it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The user name, for example `system:serviceaccount:team-a:runtime`.
    pub user: String,
    /// The UID, where the authenticator gave one.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// A digest over fields, each with its length, so that no two lists of fields look alike.
///
/// Written as `sha256:` and 64 hex digits.
#[derive(Clone)]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// A digest of the given kind; kinds never meet.
    pub fn new(domain: &str) -> Self {
        Self(Sha256::new()).field(domain)
    }

    /// Adds a field.
    #[must_use]
    pub fn field(mut self, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.0.update((value.len() as u64).to_be_bytes());
        self.0.update(value);
        self
    }

    /// Adds a field that may be absent; absent and empty differ.
    #[must_use]
    pub fn optional(self, value: Option<impl AsRef<[u8]>>) -> Self {
        match value {
            Some(value) => self.field("1").field(value),
            None => self.field("0"),
        }
    }

    /// The digest.
    pub fn finish(self) -> String {
        format!("sha256:{}", hex(&self.0.finalize()))
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        use std::fmt::Write as _;
        write!(out, "{byte:02x}").expect("writing to a String cannot fail");
        out
    })
}

/// The id of a tool on an aggregated endpoint: `mcp__server__tool`, a pure function of both names.
///
/// At most [`MAX_TOOL_ID`] characters of `[A-Za-z0-9_-]`. A name that does not fit, or that could
/// be read in two ways, is shortened and ends in a hash over both names. Ids are looked up in a
/// table and never split.
pub fn tool_id(server: &str, tool: &str) -> String {
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let simple = !tool.is_empty()
        && !tool.contains("__")
        && !tool.starts_with('_')
        && !server.contains("__")
        && !server.ends_with('_');
    let id = format!("mcp__{server}__{tool}");
    if simple && plain(&id) && id.len() <= MAX_TOOL_ID {
        return id;
    }
    let digest = Fingerprint::new("tool-id").field(server).field(tool).finish();
    let hash = &digest["sha256:".len()..][..HASH];
    format!("{}-{hash}", shortened(&id))
}

/// How every tool id of a server begins. Not every id that begins so is one of that server.
pub fn tool_id_start(server: &str) -> String {
    shortened(&format!("mcp__{server}__"))
}

fn shortened(id: &str) -> String {
    id.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' })
        .take(MAX_TOOL_ID - HASH - 1)
        .collect()
}

/// Whether the name can be a server's: it stands in tool ids, so `__` would be ambiguous.
///
/// 1 to 63 characters of `[a-z0-9._-]`; returns what is wrong, as the end of a sentence.
pub fn server_name_problem(name: &str) -> Option<&'static str> {
    let ok =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 63 {
        Some("must have 1 to 63 characters")
    } else if !name.bytes().all(ok) {
        Some("may hold lower-case letters, digits, '-', '_' and '.' only")
    } else if name.contains("__") {
        Some("must not contain '__', which separates the parts of a tool id")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_names_stay_readable() {
        assert_eq!(tool_id("files", "read_text_file"), "mcp__files__read_text_file");
    }

    #[test]
    fn names_that_could_be_split_in_two_ways_differ() {
        assert_ne!(tool_id("a", "b__c"), tool_id("a__b", "c"));
        assert_ne!(tool_id("a_", "b"), tool_id("a", "_b"));
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let ab_c = Fingerprint::new("t").field("ab").field("c").finish();
        let a_bc = Fingerprint::new("t").field("a").field("bc").finish();
        assert_ne!(ab_c, a_bc);
        let absent = Fingerprint::new("t").optional(None::<&str>).finish();
        let empty = Fingerprint::new("t").optional(Some("")).finish();
        assert_ne!(absent, empty);
    }

    proptest! {
        #[test]
        fn ids_fit_and_are_injective(a in "[a-z._-]{1,63}", x in ".{1,128}", b in "[a-z._-]{1,63}", y in ".{1,128}") {
            let (one, two) = (tool_id(&a, &x), tool_id(&b, &y));
            prop_assert!(one.len() <= MAX_TOOL_ID);
            prop_assert!(one.starts_with(&tool_id_start(&a)));
            prop_assert!(one.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-'));
            prop_assert_eq!((a, x) == (b, y), one == two);
        }
    }
}
