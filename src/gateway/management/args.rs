//! From the arguments as the caller sent them to what a tool takes, or to the problem that names
//! the argument. Pure.

use super::{problem::Problem, text::line};
use crate::mcp::RawJson;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// What a tool takes.
pub trait Arguments: DeserializeOwned {
    /// Keeps parts as they were sent, for what is passed on unchanged.
    fn keep(&mut self, _sent: &Map<String, Value>) {}
}

/// The arguments as an object. Null is the same as absent, and 5.0 the same as 5.
///
/// # Errors
/// What is no object.
pub fn object(sent: Option<&RawJson>) -> Result<Map<String, Value>, Problem> {
    let Some(sent) = sent else { return Ok(Map::new()) };
    match serde_json::from_str(sent.as_str()) {
        Ok(Value::Object(mut map)) => {
            plain_object(&mut map);
            Ok(map)
        }
        _ => Err(Problem::argument("arguments", "must be an object")),
    }
}

fn plain_object(map: &mut Map<String, Value>) {
    map.retain(|_, value| !value.is_null());
    map.values_mut().for_each(plain);
}

fn plain(value: &mut Value) {
    match value {
        Value::Object(map) => plain_object(map),
        Value::Array(items) => items.iter_mut().for_each(plain),
        Value::Number(number) => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15);
            if let (Some(whole), true) = (whole, number.is_f64()) {
                *value = Value::from(whole as i64);
            }
        }
        _ => {}
    }
}

/// Reads the arguments of a tool.
///
/// # Errors
/// The first argument that is missing, unknown, or of another form.
pub fn read<A: Arguments>(sent: Map<String, Value>) -> Result<A, Problem> {
    let value = Value::Object(sent);
    let mut arguments: A = serde_path_to_error::deserialize(&value).map_err(|error| {
        let message = error.inner().to_string();
        let path = error.path().to_string();
        let named = message.split_once(" field `").and_then(|(_, rest)| rest.split_once('`'));
        let field = match (path.as_str(), named) {
            (".", Some((name, _))) => name.to_owned(),
            (path, Some((name, _))) if !last_is(path, name) => format!("{path}.{name}"),
            (path, _) => path.to_owned(),
        };
        Problem::argument(&field, &line(&message, 400))
    })?;
    if let Value::Object(sent) = &value {
        arguments.keep(sent);
    }
    Ok(arguments)
}

fn last_is(path: &str, name: &str) -> bool {
    path == name || path.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::McpAttachmentSpec,
        gateway::management::names::{Limit, Name},
    };
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Some2 {
        name: Name,
        limit: Option<Limit>,
        spec: Option<McpAttachmentSpec>,
    }

    impl Arguments for Some2 {}

    fn ask(sent: Value) -> Result<Some2, Problem> {
        let raw = RawJson::of(&sent).unwrap();
        read(object(Some(&raw))?)
    }

    #[test]
    fn a_wrong_argument_is_named() {
        for (sent, field, says) in [
            (json!({}), "name", "missing field `name`"),
            (json!({"name": "a", "nmae": 1}), "nmae", "unknown field `nmae`"),
            (json!({"name": 5}), "name", "expected a string"),
            (json!({"name": "A/B"}), "name", "must be a metadata.name"),
            (json!({"name": "a", "limit": 500}), "limit", "between 1 and 200"),
            (json!({"name": "a", "limit": "5"}), "limit", "invalid type: string"),
            (json!({"name": "a", "spec": []}), "spec", "invalid"),
            (json!({"name": "a", "spec": {}}), "spec.agentRef", "missing field `agentRef`"),
            (
                json!({"name": "a", "spec": {"agentRef": {"name": "x"}, "http": {"url": 7}}}),
                "spec.http.url",
                "invalid type: integer `7`",
            ),
            (
                json!({"name": "a", "spec": {"agentRef": {"name": "x", "uid": "y"}}}),
                "spec.agentRef.uid",
                "unknown field `uid`",
            ),
            (
                json!({"name": "a", "spec": {"agentRef": {"name": "x"},
                    "sandboxStdio": {"command": "c", "env": [{"name": "A", "value": "1"}, {"name": 3}]}}}),
                "spec.sandboxStdio.env[1].name",
                "invalid type",
            ),
        ] {
            let problem = ask(sent.clone()).unwrap_err();
            assert_eq!(problem.field.as_deref(), Some(field), "{sent}: {}", problem.message);
            assert!(problem.message.contains(says), "{sent}: {}", problem.message);
            assert!(problem.message.contains(field), "{sent}: {}", problem.message);
        }
        for raw in ["[]", "\"x\"", "5", "null"] {
            let raw = RawJson::parse(raw.as_bytes().to_vec().into()).unwrap();
            assert_eq!(object(Some(&raw)).unwrap_err().field.as_deref(), Some("arguments"));
        }
    }

    #[test]
    fn null_is_absent_and_a_whole_number_is_an_integer() {
        let read = ask(json!({"name": "a", "limit": 7.0, "spec": null})).unwrap();
        assert_eq!((read.limit, read.spec), (Some(Limit(7)), None));
        assert_eq!(ask(json!({"name": null})).unwrap_err().field.as_deref(), Some("name"));
        assert!(object(None).unwrap().is_empty());
    }

    #[test]
    fn a_long_key_makes_no_long_message() {
        let problem = ask(json!({"name": "a", "x".repeat(1_000_000): 1})).unwrap_err();
        assert!(problem.message.len() < 2048 && problem.field.unwrap().len() <= 256);
    }
}
