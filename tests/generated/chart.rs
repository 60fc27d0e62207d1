//! What the chart is given: the definitions as templates, and the table of values.

use awaken_operator::domain::export::MANAGEMENT_TOOLS;
use serde_json::Value;

/// A definition as a template: installed, kept and labelled as the values say.
pub fn crd_template(head: &str, document: &str) -> String {
    assert!(!document.contains("{{"), "a description would be read as a template");
    let (before, after) = document.split_once("metadata:\n").unwrap();
    format!(
        "{head}{{{{- if .Values.crds.install }}}}\n{before}metadata:\n  labels: {{{{- include \"awaken.labels\" (list . \"\") | nindent 4 }}}}\n  \
         {{{{- if .Values.crds.keep }}}}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{{{- end }}}}\n{after}{{{{- end }}}}\n"
    )
}

/// The README of the chart: every commented value with its default.
pub fn readme(values: &str) -> String {
    let parsed: Value = serde_yaml::from_str(values).unwrap();
    let rows = commented(values);
    for leaf in leaves("", &parsed) {
        let covered =
            rows.iter().any(|(path, _)| leaf == *path || leaf.starts_with(&format!("{path}.")));
        assert!(covered, "values.yaml: no comment above {leaf}");
    }
    let mut out = "# awaken-operator\n\nAttaches MCP servers to agents on Kubernetes. How to install, upgrade and remove it: docs/install.md.\n\n\
        Generated from `values.yaml` by `make generate`.\n\n| value | default | what it is |\n|---|---|---|\n"
        .to_owned();
    for (path, text) in rows {
        let default = path.split('.').fold(&parsed, |value, key| &value[key]);
        out += &format!("| `{path}` | `{default}` | {} |\n", text.replace('|', "\\|"));
    }
    out
}

/// Path and comment of every value that has a comment above it.
fn commented(values: &str) -> Vec<(String, String)> {
    let (mut rows, mut path, mut comment) = (vec![], Vec::<&str>::new(), vec![]);
    for line in values.lines() {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 2;
        if let Some(words) = text.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        if let Some((key, _)) = text.split_once(':') {
            path.truncate(depth);
            path.push(key);
            if !comment.is_empty() {
                rows.push((path.join("."), comment.join(" ")));
            }
        }
        comment.clear();
    }
    rows
}

fn leaves(path: &str, value: &Value) -> Vec<String> {
    let at = |key: &String| if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
    match value.as_object() {
        Some(map) if !map.is_empty() => map.iter().flat_map(|(k, v)| leaves(&at(k), v)).collect(),
        _ => vec![path.to_owned()],
    }
}

#[test]
fn a_comment_belongs_to_the_value_below_it() {
    let values = "# Head.\n\n# One\n# and more.\na: 1\nb:\n  # Two.\n  c:\n    d: 2\n";
    let one = ("a".to_owned(), "One and more.".to_owned());
    assert_eq!(commented(values), [one, ("b.c".to_owned(), "Two.".to_owned())]);
}

/// A tool that the chart does not know cannot be exported; one without rights would always fail.
#[test]
fn the_chart_knows_every_management_tool() {
    let schema = crate::committed("charts/awaken-operator/values.schema.json");
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let exports = "/properties/gateway/properties/mcp/properties/exports/items/enum";
    assert_eq!(schema.pointer(exports).unwrap(), &serde_json::json!(MANAGEMENT_TOOLS));
    let helpers = crate::committed("charts/awaken-operator/templates/_helpers.tpl");
    let (_, rights) = helpers.split_once("define \"awaken.mcpRights\" -}}\n").unwrap();
    let (rights, _) = rights.split_once("{{- end").unwrap();
    let named: Vec<_> = rights.lines().filter_map(|line| line.split_once(':')).collect();
    let named: Vec<_> = named.iter().map(|(tool, _)| *tool).collect();
    assert_eq!(named, MANAGEMENT_TOOLS);
    let all: Value =
        serde_yaml::from_str(&crate::committed("charts/awaken-operator/ci/mcp-endpoint.yaml"))
            .unwrap();
    assert_eq!(all["gateway"]["mcp"]["exports"], serde_json::json!(MANAGEMENT_TOOLS));
}
