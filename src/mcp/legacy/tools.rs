//! A server's list of tools: each as raw JSON, judged one by one.

use crate::{
    domain::reason::Reason,
    mcp::wire::{self, RawJson},
};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, HashSet};

/// Tools of one server, at most; the list is cut there.
pub const MAX_TOOLS: usize = 4096;
/// The longest name that a tool may have, in bytes.
const MAX_NAME: usize = 256;
/// The longest name that is shown of a tool that cannot be used, in characters.
const SHOWN: usize = 64;

/// Names of repeated tools that are kept.
const REPEATED: usize = 64;

/// A tool that can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The server's own name.
    pub name: String,
    /// The definition, as the server wrote it.
    pub definition: RawJson,
}

/// A tool that is withheld because its definition cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// The name, cut; empty if there is none.
    pub name: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// The whole list of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolListing {
    /// What can be called, in the server's order.
    pub tools: Vec<Tool>,
    /// What is withheld ([`Reason::ToolQuarantined`]).
    pub quarantined: Vec<Quarantined>,
    /// Names that are listed more than once, word for word ([`Reason::ToolRepeated`]), cut.
    pub repeated: Vec<String>,
    /// The list was cut ([`Reason::ListTruncated`]); says where.
    pub truncated: Option<String>,
}

impl ToolListing {
    /// `sha256:…` over the names and definitions of what can be called, in order of names: the
    /// same for the same surface, however the server orders it.
    pub fn digest(&self) -> String {
        let mut tools: Vec<_> = self.tools.iter().collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let mut sha = Sha256::new();
        for tool in tools {
            for part in [tool.name.as_bytes(), tool.definition.bytes()] {
                sha.update((part.len() as u64).to_be_bytes());
                sha.update(part);
            }
        }
        let hex: String = sha.finalize().iter().map(|b| format!("{b:02x}")).collect();
        format!("sha256:{hex}")
    }
}

/// Collects the pages of a list.
#[derive(Debug, Default)]
pub(super) struct Collector {
    listing: ToolListing,
    names: HashMap<String, RawJson>,
    /// Names that stand for more than one tool.
    torn: HashSet<String>,
    cursors: HashSet<String>,
}

impl Collector {
    /// Takes the result of one `tools/list`; gives the cursor of the next page, if there is one
    /// to ask for.
    ///
    /// # Errors
    /// What makes the result unusable ([`Reason::InvalidToolList`]).
    pub(super) fn page(&mut self, result: &RawJson) -> Result<Option<String>, &'static str> {
        let (mut tools, mut next) = (None, None);
        for (key, value) in wire::members(result).map_err(|_| "the result is no plain object")? {
            match key.as_ref() {
                "tools" => tools = Some(value),
                "nextCursor" => {
                    next = serde_json::from_str::<Option<String>>(value.get())
                        .map_err(|_| "nextCursor is no string")?;
                }
                _ => {}
            }
        }
        let tools: Vec<&RawValue> =
            serde_json::from_str(tools.ok_or("the result has no tools")?.get())
                .map_err(|_| "tools is no array")?;
        for tool in tools {
            if self.names.len() + self.listing.quarantined.len() >= MAX_TOOLS {
                self.listing.truncated = Some(format!("after {MAX_TOOLS} tools"));
                return Ok(None);
            }
            self.tool(result.part(tool));
        }
        let Some(cursor) = next else { return Ok(None) };
        if !self.cursors.insert(cursor.clone()) {
            let shown: String = cursor.chars().take(SHOWN).collect();
            self.listing.truncated = Some(format!("at the cursor {shown:?}, which repeats"));
            return Ok(None);
        }
        Ok(Some(cursor))
    }

    /// Notes that the list has more pages than are asked for.
    pub(super) fn cut(&mut self, pages: usize) {
        self.listing.truncated = Some(format!("after {pages} pages"));
    }

    pub(super) fn finish(mut self) -> ToolListing {
        self.listing.tools.retain(|t| !self.torn.contains(&t.name));
        if self.listing.truncated.is_some() {
            self.listing.repeated.clear();
        }
        self.listing
    }

    fn tool(&mut self, definition: RawJson) {
        match judge(&definition) {
            Ok(name) => match self.names.get(&name) {
                None => {
                    self.names.insert(name.clone(), definition.clone());
                    self.listing.tools.push(Tool { name, definition });
                }
                // a list that is cut at a repeated cursor repeats its tools: no fault of theirs
                Some(known) if *known == definition => {
                    let shown: String = name.chars().take(SHOWN).collect();
                    if !self.listing.repeated.contains(&shown)
                        && self.listing.repeated.len() < REPEATED
                    {
                        self.listing.repeated.push(shown);
                    }
                }
                Some(_) => {
                    if self.torn.insert(name.clone()) {
                        self.quarantine(&name, "its name is used by another tool of the list");
                    }
                }
            },
            Err((name, why)) => self.quarantine(&name, why),
        }
    }

    fn quarantine(&mut self, name: &str, why: &'static str) {
        let entry = Quarantined { name: name.chars().take(SHOWN).collect(), why };
        if !self.listing.quarantined.contains(&entry) {
            self.listing.quarantined.push(entry);
        }
    }
}

/// The name of a tool that can be called; else the name as far as there is one, and what is wrong.
fn judge(definition: &RawJson) -> Result<String, (String, &'static str)> {
    let members = match wire::members(definition) {
        Ok(members) => members,
        Err(wire::MembersError::NotAnObject) => {
            return Err((String::new(), "its definition is no object"));
        }
        Err(wire::MembersError::RepeatedKey(_)) => {
            return Err((String::new(), "its definition names a key twice"));
        }
    };
    let find = |wanted: &str| members.iter().find(|(k, _)| k == wanted).map(|(_, v)| *v);
    let name: Option<String> = find("name").and_then(|v| serde_json::from_str(v.get()).ok());
    let Some(name) = name.filter(|n| !n.is_empty()) else {
        return Err((String::new(), "it has no name"));
    };
    if name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err((name, "its name is too long or holds control characters"));
    }
    let inside = |outer: &str, key: &str| -> Option<String> {
        let outer = definition.part(find(outer)?);
        let members = wire::members(&outer).ok()?;
        members.into_iter().find(|(k, _)| k == key).map(|(_, v)| v.get().to_owned())
    };
    if inside("inputSchema", "type").as_deref() != Some("\"object\"") {
        return Err((name, "its inputSchema is not of type object"));
    }
    if inside("execution", "taskSupport").as_deref() == Some("\"required\"") {
        return Err((name, "it can only be called as a task, which is not offered"));
    }
    Ok(name)
}

impl Quarantined {
    /// The reason under which it is shown.
    pub const REASON: Reason = Reason::ToolQuarantined;
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn page(text: String) -> RawJson {
        RawJson::parse(text.into()).unwrap()
    }

    fn tool(name: &str) -> String {
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#)
    }

    fn collect(tools: &str) -> ToolListing {
        let mut collector = Collector::default();
        assert_eq!(collector.page(&page(format!(r#"{{"tools":[{tools}]}}"#))), Ok(None));
        collector.finish()
    }

    #[rstest]
    #[case::no_name(r#"{"inputSchema":{"type":"object"}}"#, "", "no name")]
    #[case::empty_name(r#"{"name":"","inputSchema":{"type":"object"}}"#, "", "no name")]
    #[case::number(r#"{"name":7,"inputSchema":{"type":"object"}}"#, "", "no name")]
    #[case::text("\"tool\"", "", "no object")]
    #[case::no_schema(r#"{"name":"bad1"}"#, "bad1", "inputSchema")]
    #[case::string_schema(
        r#"{"name":"bad2","inputSchema":{"type":"string"}}"#,
        "bad2",
        "inputSchema"
    )]
    #[case::list_of_types(
        r#"{"name":"bad3","inputSchema":{"type":["object"]}}"#,
        "bad3",
        "inputSchema"
    )]
    #[case::truth(r#"{"name":"bad4","inputSchema":true}"#, "bad4", "inputSchema")]
    #[case::control(r#"{"name":"a\nb","inputSchema":{"type":"object"}}"#, "a\nb", "control")]
    #[case::task(
        r#"{"name":"bad5","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}"#,
        "bad5",
        "task"
    )]
    #[case::twice(r#"{"name":"a","name":"b","inputSchema":{"type":"object"}}"#, "", "twice")]
    fn one_bad_tool_is_withheld_and_the_rest_kept(
        #[case] bad: &str,
        #[case] name: &str,
        #[case] why: &str,
    ) {
        let listing = collect(&[&tool("one"), bad, &tool("two")].join(","));
        assert_eq!(listing.tools.len(), 2);
        let [quarantined] = &listing.quarantined[..] else { panic!() };
        assert_eq!(quarantined.name, name);
        assert!(quarantined.why.contains(why), "{quarantined:?}");
    }

    #[test]
    fn a_name_used_twice_is_withheld_altogether_and_a_bad_output_schema_is_not() {
        let twin = r#"{"name":"twin","inputSchema":{"type":"object","x":1}}"#;
        let fine = r#"{"name":"fine","inputSchema":{"type":"object"},"outputSchema":"nonsense"}"#;
        let listing = collect(&[&tool("twin"), fine, twin].join(","));
        assert_eq!(listing.tools.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["fine"]);
        assert_eq!(listing.quarantined[0].name, "twin");
    }

    #[test]
    fn a_tool_that_is_listed_twice_word_for_word_is_offered_once_and_named() {
        let listing = collect(&[tool("a"), tool("twin"), tool("twin"), tool("twin")].join(","));
        assert_eq!(
            listing.tools.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
            ["a", "twin"]
        );
        assert_eq!((listing.repeated, listing.quarantined), (vec!["twin".to_owned()], vec![]));
    }

    #[test]
    fn definitions_pass_as_they_came() {
        let odd = r#"{ "z":1e2, "name":"\u0061", "inputSchema":{"type":"object","n":12345678901234567890}, "é":"😀" }"#;
        let listing = collect(odd);
        assert_eq!(listing.tools[0].name, "a");
        assert_eq!(listing.tools[0].definition.as_str(), odd);
    }

    #[test]
    fn a_cursor_that_repeats_ends_the_list_without_doubles() {
        let mut collector = Collector::default();
        let same = page(format!(r#"{{"tools":[{}],"nextCursor":"8"}}"#, tool("one")));
        assert_eq!(collector.page(&same), Ok(Some("8".into())));
        assert_eq!(collector.page(&same), Ok(None));
        let listing = collector.finish();
        assert_eq!((listing.tools.len(), listing.quarantined.len()), (1, 0));
        assert!(listing.repeated.is_empty(), "no fault of theirs");
        assert!(listing.truncated.unwrap().contains("\"8\""));
    }

    #[test]
    fn the_list_is_bounded() {
        let many: Vec<_> = (0..MAX_TOOLS + 5).map(|n| tool(&format!("t{n}"))).collect();
        let listing = collect(&many.join(","));
        assert_eq!(listing.tools.len(), MAX_TOOLS);
        assert!(listing.truncated.is_some());
    }

    #[test]
    fn the_digest_is_of_the_surface_not_of_its_order() {
        let one = collect(&[tool("a"), tool("b")].join(",")).digest();
        assert_eq!(one, collect(&[tool("b"), tool("a")].join(",")).digest());
        assert_ne!(one, collect(&tool("a")).digest());
        assert!(one.starts_with("sha256:") && one.len() == 71);
    }

    #[rstest]
    #[case("{}")]
    #[case("[]")]
    #[case(r#"{"tools":{}}"#)]
    #[case(r#"{"tools":[],"nextCursor":7}"#)]
    fn unusable_results(#[case] text: &str) {
        assert!(Collector::default().page(&page(text.to_owned())).is_err());
    }
}
