//! Whether a value fits a schema, for the plain part of JSON Schema that the tools' definitions use.
//! Any other keyword is a failure, so that nothing goes unchecked; patterns are left to the real
//! clients of the cluster tests.

use serde_json::{Map, Value};

const SAID_ONLY: &[&str] =
    &["$schema", "title", "description", "default", "examples", "format", "pattern"];

/// Every way in which the value does not fit, by path.
pub fn problems(schema: &Value, value: &Value) -> Vec<String> {
    let mut out = vec![];
    look("", schema, value, &mut out);
    out
}

fn look(path: &str, schema: &Value, value: &Value, out: &mut Vec<String>) {
    let Value::Object(keywords) = schema else {
        assert_eq!(*schema, Value::Bool(true), "{path}: a schema is an object");
        return;
    };
    for (keyword, wanted) in keywords {
        if SAID_ONLY.contains(&keyword.as_str()) {
            continue;
        }
        let fine = match keyword.as_str() {
            "type" => is_type(wanted, value),
            "enum" => wanted.as_array().unwrap().contains(value),
            "const" => wanted == value,
            "minLength" | "maxLength" => {
                value.as_str().is_none_or(|s| bound(keyword, wanted, s.chars().count() as f64))
            }
            "minItems" | "maxItems" => {
                value.as_array().is_none_or(|a| bound(keyword, wanted, a.len() as f64))
            }
            "minProperties" | "maxProperties" => {
                value.as_object().is_none_or(|o| bound(keyword, wanted, o.len() as f64))
            }
            "minimum" | "maximum" => value.as_f64().is_none_or(|n| bound(keyword, wanted, n)),
            "required" => {
                let names = wanted.as_array().unwrap().iter().map(|n| n.as_str().unwrap());
                value.as_object().is_none_or(|o| names.into_iter().all(|n| o.contains_key(n)))
            }
            "properties" | "additionalProperties" => {
                if let (Some(object), "properties") = (value.as_object(), keyword.as_str()) {
                    members(path, keywords, object, out);
                }
                keyword == "properties" || additional(path, keywords, value, out)
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    look(&format!("{path}/{i}"), wanted, item, out);
                }
                true
            }
            "anyOf" | "oneOf" => {
                let each = wanted.as_array().unwrap().iter();
                let fitting = each.filter(|s| problems(s, value).is_empty()).count();
                if keyword == "oneOf" { fitting == 1 } else { fitting > 0 }
            }
            other => panic!("{path}: the keyword {other} is not known here"),
        };
        if !fine {
            out.push(format!("{path}: {keyword} {wanted}: {value}"));
        }
    }
}

fn members(
    path: &str,
    keywords: &Map<String, Value>,
    object: &Map<String, Value>,
    out: &mut Vec<String>,
) {
    for (name, schema) in keywords["properties"].as_object().unwrap() {
        if let Some(value) = object.get(name) {
            look(&format!("{path}/{name}"), schema, value, out);
        }
    }
}

fn additional(
    path: &str,
    keywords: &Map<String, Value>,
    value: &Value,
    out: &mut Vec<String>,
) -> bool {
    let known = |name: &str| keywords.get("properties").is_some_and(|p| p.get(name).is_some());
    let rest = value.as_object().into_iter().flatten().filter(|(name, _)| !known(name));
    let schema = &keywords["additionalProperties"];
    if *schema == Value::Bool(false) {
        return rest.count() == 0;
    }
    for (name, value) in rest {
        look(&format!("{path}/{name}"), schema, value, out);
    }
    true
}

fn is_type(wanted: &Value, value: &Value) -> bool {
    let one = |name: &Value| match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("the type {other} is not known"),
    };
    wanted.as_array().map_or_else(|| one(wanted), |any| any.iter().any(one))
}

fn bound(keyword: &str, wanted: &Value, is: f64) -> bool {
    let wanted = wanted.as_f64().unwrap();
    if keyword.starts_with("min") { is >= wanted } else { is <= wanted }
}

#[test]
fn what_does_not_fit_is_found() {
    use serde_json::json;
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {
            "a": {"type": "string", "minLength": 2, "maxLength": 3},
            "b": {"type": "array", "maxItems": 1, "items": {"type": "integer", "minimum": 1}},
            "c": {"type": "object", "additionalProperties": {"type": "string"}},
            "d": {"enum": ["x"]}, "e": {"anyOf": [{"type": "null"}, {"type": "number"}]},
        },
    });
    let fitting = json!({"a": "éé", "b": [1], "c": {"k": "v"}, "d": "x", "e": 1.5});
    assert_eq!(problems(&schema, &fitting), Vec::<String>::new());
    for wrong in [
        json!([]),
        json!({}),
        json!({"a": "x"}),
        json!({"a": "xxxx"}),
        json!({"a": 1}),
        json!({"a": "xx", "b": [0]}),
        json!({"a": "xx", "b": [1, 2]}),
        json!({"a": "xx", "c": {"k": 1}}),
        json!({"a": "xx", "d": "y"}),
        json!({"a": "xx", "e": "1"}),
        json!({"a": "xx", "other": 1}),
    ] {
        assert_eq!(problems(&schema, &wrong).len(), 1, "{wrong}");
    }
}
