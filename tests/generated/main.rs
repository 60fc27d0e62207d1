//! Generated files that are committed: the CustomResourceDefinitions in `crds/`, in the chart and
//! in `manifests/`, the chart's README, `docs/reasons.md`, and the tables of fields in
//! `docs/kinds/`. The test compares them with what the sources say now.
//!
//! With `GENERATE_INTO=FOLDER` it writes them below that folder instead: `make generate` does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod chart;
mod fields;
mod tools;

use awaken_operator::{crds, domain::reason::Reason};
use std::{collections::BTreeMap, fs, path::Path};

const KINDS: [&str; 3] = ["agent", "mcpattachment", "session"];

fn committed(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_default()
}

/// Every generated file by its path from the root of the project.
fn generated() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let head = "# Generated from src/api by `make generate`.\n";
    for (crd, kind) in crds::all().iter().zip(KINDS) {
        let (name, text) = (&crd.spec.names.plural, crds::document(crd).unwrap());
        files.insert(format!("crds/{name}.yaml"), format!("{head}{text}"));
        let template = format!("charts/awaken-operator/templates/crds/{name}.yaml");
        files.insert(template, chart::crd_template(head, &text));
        let page = format!("docs/kinds/{kind}.md");
        let text = fields::into_page(&committed(&page), crd);
        files.insert(page, text);
    }
    files.insert("manifests/crds.yaml".into(), format!("{head}{}", crds::yaml().unwrap()));
    let values = committed("charts/awaken-operator/values.yaml");
    files.insert("charts/awaken-operator/README.md".into(), chart::readme(&values));
    files.insert("docs/reasons.md".into(), reasons());
    let page = "docs/mcp-endpoint.md";
    files.insert(page.into(), tools::into_page(&committed(page)));
    files
}

fn reasons() -> String {
    let mut out = "# Reasons\n\nGenerated from `src/domain/reason.rs` by `make generate`. The list is closed: these words, and no others, stand in\n\
        conditions, events, metric labels, `error.data.reason` of JSON-RPC errors, logs and the trace.\n\n\
        What follows for a generation: *Waiting* goes on as soon as the other object comes; *Retryable* is tried again with backoff until `limits.startupTimeout` ends; *Permanent* ends the\n\
        generation, and the next one comes slowly, or at once when its source changes; a *Refusal* concerns one request only.\n\n\
        | reason | what follows | meaning | next step |\n|---|---|---|---|\n"
        .to_owned();
    for reason in Reason::ALL {
        let (class, meaning, next) = (reason.class(), reason.meaning(), reason.next_step());
        out += &format!("| `{reason}` | {class:?} | {meaning} | {next} |\n");
    }
    out
}

#[test]
fn generated_files_are_up_to_date() {
    let into = std::env::var_os("GENERATE_INTO");
    let mut stale = vec![];
    for (path, text) in generated() {
        if let Some(folder) = &into {
            let path = Path::new(folder).join(&path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        } else if committed(&path) != text {
            stale.push(path);
        }
    }
    assert!(stale.is_empty(), "out of date, run `make generate` and commit: {stale:#?}");
}

/// The pages name reasons by hand; a word that is none would send a reader looking in vain.
#[test]
fn the_pages_name_reasons_that_exist() {
    // Words of the same shape that are something else.
    const OTHERS: [&str; 9] = [
        "McpAttachment",
        "ToolSet",
        "IfNotPresent",
        "Stalled",
        "Reconciling",
        "Serving",
        "ServerSideApply",
        "Standing",
        "OnDemand",
    ];
    let known =
        |word: &str| Reason::ALL.iter().any(|r| r.as_str() == word) || OTHERS.contains(&word);
    for page in KINDS
        .map(|kind| format!("docs/kinds/{kind}.md"))
        .iter()
        .chain(&["docs/install.md".to_owned(), "docs/mcp-endpoint.md".to_owned()])
    {
        let text = committed(page);
        let words = text.split('`').skip(1).step_by(2).filter(|word| {
            let capital = word.starts_with(|c: char| c.is_ascii_uppercase());
            let plain = word.chars().all(|c| c.is_ascii_alphabetic());
            let shouted = word.chars().all(|c| c.is_ascii_uppercase());
            capital && plain && !shouted
        });
        for word in words {
            assert!(known(word), "{page}: `{word}` is no reason");
        }
    }
}
