//! Definitions: which, in which order, valid, honest, and without anything that only Kubernetes
//! reads.

use crate::{desk::Desk, fits::problems};
use awaken_operator::{
    domain::export::MANAGEMENT_TOOLS,
    gateway::{
        export::{Management as _, ManagementContext, ManagementError},
        management::ManagementTools,
    },
};
use serde_json::{Value, json};

pub fn definition(tools: &ManagementTools, name: &str) -> Value {
    let all = tools.definitions();
    let (_, raw) = all.iter().find(|(n, _)| *n == name).expect("the tool is exported");
    serde_json::from_str(raw.as_str()).unwrap()
}

pub fn fits(schema: &Value, value: &Value) {
    let problems = problems(schema, value);
    assert!(problems.is_empty(), "{problems:#?}\n{value:#}");
}

fn all() -> Vec<Value> {
    let desk = Desk::new();
    MANAGEMENT_TOOLS.iter().map(|name| definition(&desk.tools, name)).collect()
}

#[tokio::test]
async fn every_schema_is_valid_and_closed() {
    for tool in all() {
        for which in ["inputSchema", "outputSchema"] {
            let schema = &tool[which];
            // fails on any keyword that it does not know
            problems(schema, &json!({}));
            assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
            assert_eq!(schema["type"], "object", "{} {which}", tool["name"]);
            closed(&format!("{}.{which}", tool["name"]), schema);
            let text = schema.to_string();
            for foreign in
                ["x-kubernetes", "$ref", "$defs", "\"null\"", "nullable", "int64", "uint"]
            {
                assert!(!text.contains(foreign), "{} {which}: {foreign}", tool["name"]);
            }
        }
    }
}

/// Objects with properties take no others, and every property of an input says what it is.
fn closed(path: &str, schema: &Value) {
    if let Some(properties) = schema["properties"].as_object() {
        // resource requests and limits are the API server's own, with room for claims
        if !path.ends_with("resources") {
            assert_eq!(schema["additionalProperties"], false, "{path}");
        }
        for (name, child) in properties {
            let described = child["description"].is_string();
            assert!(described, "{path}.{name} is not described: {child}");
            closed(&format!("{path}.{name}"), child);
        }
    }
    if schema["items"].is_object() {
        closed(&format!("{path}[]"), &schema["items"]);
    }
}

#[tokio::test]
async fn the_input_of_apply_holds_the_spec_of_the_definition() {
    let desk = Desk::new();
    let schema = definition(&desk.tools, "attachment_apply")["inputSchema"].clone();
    let spec = &schema["properties"]["spec"];
    let crd = awaken_operator::crds::all();
    let crd = crd.iter().find(|c| c.spec.names.kind == "McpAttachment").unwrap();
    let of_crd = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
    let of_crd = &of_crd["openAPIV3Schema"]["properties"]["spec"];
    same_fields("spec", of_crd, spec);
    let rule = "exactly one of sandboxStdio and http must be set";
    assert!(spec["description"].as_str().unwrap().contains(rule), "{}", spec["description"]);
}

fn same_fields(path: &str, a: &Value, b: &Value) {
    for key in ["maxLength", "minLength", "maxItems", "minimum", "maximum", "pattern", "type"] {
        let number = |v: &Value| v.as_f64().map(Value::from).unwrap_or_else(|| v.clone());
        assert_eq!(number(&a[key]), number(&b[key]), "{path} {key}");
    }
    let names = |v: &Value| -> Vec<String> {
        v["properties"].as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect()
    };
    assert_eq!(names(a), names(b), "{path}");
    for name in names(a) {
        same_fields(&format!("{path}.{name}"), &a["properties"][&name], &b["properties"][&name]);
    }
    if a["items"].is_object() {
        same_fields(&format!("{path}[]"), &a["items"], &b["items"]);
    }
}

#[tokio::test]
async fn annotations_are_honest() {
    let found: Vec<_> = all()
        .iter()
        .map(|tool| {
            let hint = |name: &str| tool["annotations"][name].as_bool().unwrap();
            let name = tool["name"].as_str().unwrap().to_owned();
            let hints = [
                hint("readOnlyHint"),
                hint("destructiveHint"),
                hint("idempotentHint"),
                hint("openWorldHint"),
            ];
            assert!(tool["title"].is_string() && tool["title"] == tool["annotations"]["title"]);
            assert!(tool["description"].as_str().unwrap().len() > 60, "{name}");
            (name, hints)
        })
        .collect();
    let read = [true, false, true, false];
    let expected = [
        ("agents_list", read),
        ("agent_get", read),
        ("attachments_list", read),
        ("attachment_get", read),
        ("attachment_apply", [false, true, true, true]),
        ("attachment_delete", [false, true, true, false]),
        ("attachment_retry", [false, false, false, true]),
        ("sessions_list", read),
        ("session_get", read),
        ("session_create", [false, false, false, true]),
        ("session_close", [false, true, true, false]),
        ("trace_list", read),
    ];
    assert_eq!(found, expected.map(|(name, hints)| (name.to_owned(), hints)));
}

#[tokio::test]
async fn only_what_is_exported_is_there_in_the_domains_order() {
    let desk = Desk::with(&["team-a"], &["trace_list", "agents_list"]);
    let names: Vec<_> = desk.tools.definitions().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["agents_list", "trace_list"]);
    for unknown in ["attachment_apply", "agents_list ", "", "approvals_list"] {
        let called = desk.tools.call(unknown, None, ManagementContext::default()).await;
        assert_eq!(called, Err(ManagementError::Unknown), "{unknown}");
    }
    assert!(Desk::with(&["team-a"], &[]).tools.definitions().is_empty());
}

#[tokio::test]
async fn definitions_are_the_same_each_time() {
    let texts = || -> Vec<_> {
        let all = Desk::new().tools.definitions();
        all.into_iter().map(|(_, raw)| raw.as_str().to_owned()).collect()
    };
    assert_eq!(texts(), texts());
    let sizes: Vec<_> = texts().iter().map(String::len).collect();
    assert!(sizes.iter().sum::<usize>() < 80 * 1024, "bytes of definitions: {sizes:?}");
}

#[tokio::test]
async fn an_example_of_each_input_fits() {
    let desk = Desk::new();
    for (tool, arguments) in crate::refusals::examples() {
        fits(&definition(&desk.tools, tool)["inputSchema"], &arguments);
    }
    let apply = &definition(&desk.tools, "attachment_apply")["inputSchema"];
    for wrong in
        [json!({}), json!({"namespace": 7, "name": "a", "spec": {"agentRef": {"name": "x"}}})]
    {
        assert!(!problems(apply, &wrong).is_empty(), "{wrong}");
    }
}
