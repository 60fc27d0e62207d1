//! The tables of fields in `docs/kinds/`, from the schemas. The rest of a page is written by hand.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// The page with its tables of `spec` and `status` as the schema says.
pub fn into_page(page: &str, crd: &CustomResourceDefinition) -> String {
    let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
    let schema = serde_json::to_value(schema).unwrap();
    ["spec", "status"].into_iter().fold(page.to_owned(), |page, part| {
        let (begin, end) = (format!("<!-- begin {part} -->\n"), format!("<!-- end {part} -->"));
        let (before, rest) = page.split_once(&begin).unwrap_or_else(|| {
            panic!("{}: no `{}` in its page", crd.spec.names.kind, begin.trim())
        });
        let (_, after) = rest.split_once(&end).expect("a table that begins also ends");
        let mut rows = "| field | type | what it is |\n|---|---|---|\n".to_owned();
        table(part, &schema["properties"][part], &mut rows);
        format!("{before}{begin}{rows}{end}{after}")
    })
}

fn table(path: &str, node: &Value, rows: &mut String) {
    let required = |name: &str| {
        node["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name))
    };
    for (name, field) in node["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let list = field["type"] == "array";
        let path = if list { format!("{path}[]") } else { path };
        let text = field["description"].as_str().unwrap_or_default().replace('\n', " ");
        let needed = if required(name) { " **Required.**" } else { "" };
        *rows += &format!("| `{path}` | {} | {text}{needed} |\n", type_of(field));
        // A type that has a page or a place of its own is described once.
        if path != "status.environment.spec" && path != "status.conditions[]" {
            table(&path, if list { &field["items"] } else { field }, rows);
        }
    }
}

fn type_of(field: &Value) -> String {
    if let Some(words) = field["enum"].as_array() {
        let words: Vec<_> = words.iter().map(|w| w.as_str().unwrap_or_default()).collect();
        return match words.len() {
            0..=6 => words.join(", "),
            _ => "a [reason](../reasons.md)".to_owned(),
        };
    }
    match (field["type"].as_str(), field["format"].as_str()) {
        (_, Some("date-time")) => "time".to_owned(),
        (Some("string"), _)
            if field["pattern"].as_str().is_some_and(|p| p.contains("(ms|s|m|h)")) =>
        {
            "duration".to_owned()
        }
        (Some("array"), _) => format!("list, at most {}", field["maxItems"]),
        (Some("object"), _) if field["additionalProperties"].is_object() => "map".to_owned(),
        (Some(plain), _) => plain.to_owned(),
        (None, _) => "number or string".to_owned(),
    }
}
