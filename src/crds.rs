//! The CustomResourceDefinitions as they are installed, from the types in `api`.
//!
//! Rests on the schemas that the types derive. It writes nothing: `awaken crds` prints what is
//! here, and a test compares it with the files that are committed.

use crate::api::{Agent, McpAttachment, Session};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::Value;

/// Why the CustomResourceDefinitions cannot be printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A definition that is no YAML.
    #[error("a CustomResourceDefinition cannot be written as YAML: {0}")]
    Yaml(#[from] serde_yaml::Error),
}

/// Every definition, in the order of the docs.
pub fn all() -> Vec<CustomResourceDefinition> {
    [Agent::crd(), McpAttachment::crd(), Session::crd()].into_iter().map(finished).collect()
}

/// Every definition as one YAML text of several documents.
///
/// # Errors
/// When a definition cannot be written as YAML.
pub fn yaml() -> Result<String, Error> {
    let documents = all().iter().map(document).collect::<Result<Vec<_>, _>>()?;
    Ok(documents.iter().map(|text| format!("---\n{text}")).collect())
}

/// One definition as a YAML document.
///
/// # Errors
/// When it cannot be written as YAML.
pub fn document(crd: &CustomResourceDefinition) -> Result<String, Error> {
    let mut value = serde_json::to_value(crd).expect("a definition is JSON");
    whole_numbers(&mut value);
    Ok(serde_yaml::to_string(&value)?)
}

/// Takes out `nullable`: a null is the same as an absent field, which is what the API server makes
/// of it where a field is not nullable. And the defaults in status: the API server would fill them
/// in under the hand of whoever writes next.
fn finished(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(crd).expect("a definition is JSON");
    without(&mut value, "nullable", &|schema| schema["nullable"] == true);
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
    let status = value.pointer_mut(status).expect("every kind has a status");
    // A field that is called `default` would be an object, a schema.
    without(status, "default", &|schema| !schema["type"].is_null());
    serde_json::from_value(value).expect("it stays a definition")
}

fn without(value: &mut Value, key: &str, where_: &dyn Fn(&Value) -> bool) {
    let found = where_(value);
    match value {
        Value::Object(map) => {
            if found {
                map.remove(key);
            }
            map.values_mut().for_each(|value| without(value, key, where_));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| without(value, key, where_)),
        _ => {}
    }
}

/// Writes 5.0 as 5, as the API server does.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15);
            if let (Some(whole), true) = (whole, number.is_f64()) {
                *value = Value::from(whole as i64);
            }
        }
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `see` with the path and the schema of every node.
    fn walk(path: &str, node: &Value, see: &mut dyn FnMut(&str, &Value)) {
        see(path, node);
        for (name, child) in node["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), child, see);
        }
        if node["items"].is_object() {
            walk(&format!("{path}[]"), &node["items"], see);
        }
        if node["additionalProperties"].is_object() {
            walk(&format!("{path}{{}}"), &node["additionalProperties"], see);
        }
    }

    fn every_node(mut see: impl FnMut(&str, &Value)) {
        for crd in all() {
            let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
            walk(&crd.spec.names.kind, &serde_json::to_value(schema).unwrap(), &mut see);
        }
    }

    fn faults(fault: impl Fn(&Value) -> Option<&'static str>) -> Vec<String> {
        let mut found = vec![];
        every_node(|path, node| found.extend(fault(node).map(|f| format!("{path}: {f}"))));
        found
    }

    #[test]
    fn every_list_map_string_and_number_has_a_bound() {
        let found = faults(|node| {
            let lacks = |key: &str| node[key].is_null();
            let free = lacks("enum") && node["format"] != "date-time";
            match node["type"].as_str() {
                Some("array") if lacks("maxItems") => Some("no maxItems"),
                Some("string") if free && lacks("maxLength") => Some("no maxLength"),
                Some("object") if !lacks("additionalProperties") && lacks("maxProperties") => {
                    Some("no maxProperties")
                }
                _ => None,
            }
        });
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn every_field_is_described() {
        let undocumented = |node: &Value| {
            let fields = node["properties"].as_object()?;
            let bare = |(name, f): (&String, &Value)| {
                f["description"].is_null() && name != "spec" && name != "status"
            };
            fields.iter().any(bare).then_some("a field without description")
        };
        assert_eq!(faults(undocumented), Vec::<String>::new());
    }

    #[test]
    fn lists_of_objects_are_maps_by_key() {
        let atomic = |node: &Value| {
            let objects = node["items"]["type"] == "object";
            (objects && node["x-kubernetes-list-map-keys"].is_null()).then_some("no key")
        };
        // rules of a network have no key: written as a whole, as those of a NetworkPolicy are
        assert_eq!(
            faults(atomic),
            [
                "Agent.spec.environment.egress.rules: no key",
                "Agent.spec.environment.egress.rules[].ports: no key",
                "Session.status.attachments[].target.sandboxStdio.secrets: no key",
                "Session.status.environment.spec.egress.rules: no key",
                "Session.status.environment.spec.egress.rules[].ports: no key",
            ]
        );
    }

    #[test]
    fn a_status_is_filled_by_its_writers_alone() {
        let mut found = vec![];
        every_node(|path, node| {
            if path.contains(".status") && !node["default"].is_null() {
                found.push(path.to_owned());
            }
        });
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn numbers_are_written_as_the_api_server_stores_them() {
        let text = yaml().unwrap();
        assert!(text.contains("maximum: 2147483647\n") && !text.contains(".0\n"));
    }

    #[test]
    fn null_is_never_a_value() {
        assert_eq!(faults(|n| n["nullable"].as_bool().map(|_| "nullable")), Vec::<String>::new());
    }
}
