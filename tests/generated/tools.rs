//! The table of management tools in `docs/mcp-endpoint.md`, from their definitions, and what the
//! page says by hand of tools.

use awaken_operator::{domain::export::MANAGEMENT_TOOLS, gateway::management};
use serde_json::Value;

const BEGIN: &str = "<!-- begin tools -->\n";
const END: &str = "<!-- end tools -->";

/// The page with its table as the definitions say.
pub fn into_page(page: &str) -> String {
    let (before, rest) = page.split_once(BEGIN).expect("a table begins");
    let (_, after) = rest.split_once(END).expect("a table that begins also ends");
    let mut rows =
        "| tool | arguments (**required**) | hints | what it does |\n|---|---|---|---|\n"
            .to_owned();
    for (name, definition) in management::definitions() {
        let tool: Value = serde_json::from_str(definition.as_str()).unwrap();
        let description = tool["description"].as_str().unwrap().replace('|', "\\|");
        rows +=
            &format!("| `{name}` | {} | {} | {description} |\n", arguments(&tool), hints(&tool));
    }
    format!("{before}{BEGIN}{rows}{END}{after}")
}

fn arguments(tool: &Value) -> String {
    let schema = &tool["inputSchema"];
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name))
    };
    let mut names: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
    names.sort_by_key(|name| !required(name));
    let shown = names.iter().map(|name| match required(name) {
        true => format!("**{name}**"),
        false => (*name).clone(),
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn hints(tool: &Value) -> String {
    let holds = |hint: &str| tool["annotations"][hint] == true;
    let words = [
        ("readOnlyHint", "reads"),
        ("destructiveHint", "destroys"),
        ("idempotentHint", "repeatable"),
        ("openWorldHint", "open world"),
    ];
    let words = words.iter().filter(|(hint, _)| holds(hint)).map(|(_, word)| *word);
    // reading twice is no more than reading once
    let words: Vec<_> = words.filter(|w| !(holds("readOnlyHint") && *w == "repeatable")).collect();
    words.join(", ")
}

#[test]
fn tools_and_arguments_that_the_page_names_exist() {
    let page = crate::committed("docs/mcp-endpoint.md");
    let mut named = 0;
    for word in page.split('`').skip(1).step_by(2) {
        let ends = ["_list", "_get", "_apply", "_delete", "_retry", "_create", "_close"];
        let plain = word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if plain && ends.iter().any(|end| word.ends_with(end)) && word != "approvals_list" {
            assert!(MANAGEMENT_TOOLS.contains(&word), "{word} is no tool");
            named += 1;
        }
    }
    assert!(named > MANAGEMENT_TOOLS.len(), "{named}");
}
