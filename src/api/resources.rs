//! Requests and limits, as users write them: a quantity may be a number or a text, as in a pod.
//! The schema bounds them and refuses what is no quantity; the type in memory is Kubernetes' own.

use k8s_openapi::api::core::v1::ResourceRequirements;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize as _, Deserializer, de::Error as _};
use serde_json::Value;

/// A quantity that is not negative.
const QUANTITY: &str =
    r"^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$";

/// The schema of requests and limits.
pub fn schema(_: &mut SchemaGenerator) -> Schema {
    let quantities = |description: &str| {
        serde_json::json!({
            "type": "object",
            "description": description,
            "maxProperties": 16,
            "additionalProperties": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "maxLength": 32,
                "pattern": QUANTITY,
                "x-kubernetes-int-or-string": true
            }
        })
    };
    json_schema!({
        "type": "object",
        "properties": {
            "requests": quantities("What the scheduler sets aside, by resource name."),
            "limits": quantities("What the container may use at most, by resource name.")
        }
    })
}

/// Reads requests and limits; a number becomes its text.
///
/// # Errors
/// What is no map of quantities.
pub fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<ResourceRequirements>, D::Error> {
    let Some(mut value) = Option::<Value>::deserialize(from)? else { return Ok(None) };
    for field in ["requests", "limits"] {
        let quantities = value.get_mut(field).and_then(Value::as_object_mut);
        for quantity in quantities.into_iter().flat_map(|map| map.values_mut()) {
            if let Value::Number(number) = quantity {
                *quantity = Value::String(number.to_string());
            }
        }
    }
    serde_json::from_value(value).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use crate::api::agent::Environment;

    #[test]
    fn a_number_is_a_quantity_too() {
        let text = r#"{"image": "a", "resources": {"limits": {"cpu": 2, "memory": "512Mi"}}}"#;
        let read: Environment = serde_json::from_str(text).unwrap();
        let limits = read.resources.unwrap().limits.unwrap();
        assert_eq!((&*limits["cpu"].0, &*limits["memory"].0), ("2", "512Mi"));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        let text = r#"{"image": "a", "resources": {"limits": {"cpu": ["2"]}}}"#;
        assert!(serde_json::from_str::<Environment>(text).is_err());
    }
}
