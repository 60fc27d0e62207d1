//! Definitions of tools from the types of their arguments and outputs, as JSON Schema 2020-12:
//! nothing by reference, nothing of Kubernetes' own. Pure.

use super::{Hints, Tool, answer::ErrorBody};
use crate::mcp::RawJson;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// The definition of a tool, as `tools/list` shows it.
pub fn definition<T: Tool>() -> RawJson {
    let Hints { read_only, destructive, idempotent, open_world } = T::HINTS;
    let whole = json!({
        "name": T::NAME,
        "title": T::TITLE,
        "description": T::DESCRIPTION,
        "inputSchema": input::<T::Arguments>(),
        "outputSchema": output::<T::Output>(),
        "annotations": {
            "title": T::TITLE,
            "readOnlyHint": read_only,
            "destructiveHint": destructive,
            "idempotentHint": idempotent,
            "openWorldHint": open_world,
        },
    });
    RawJson::of(&whole).expect("values are JSON")
}

fn input<T: JsonSchema>() -> Value {
    schema::<T>(SchemaSettings::draft2020_12().for_deserialize())
}

/// A result is what the tool gives, or an error.
fn output<T: JsonSchema>() -> Value {
    let mut schema = schema::<T>(SchemaSettings::draft2020_12().for_serialize());
    let mut error = self::schema::<ErrorBody>(SchemaSettings::draft2020_12().for_serialize());
    error["description"] = json!("What is wrong; stands in results with isError alone.");
    if let Some(error) = error.as_object_mut() {
        error.remove("$schema");
    }
    schema["properties"]["error"] = error;
    let required = schema["required"].take();
    schema["anyOf"] = json!([{"required": required}, {"required": ["error"]}]);
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("required");
    }
    schema
}

fn schema<T: JsonSchema>(mut settings: SchemaSettings) -> Value {
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    for own in ["title", "description"] {
        schema.as_object_mut().and_then(|root| root.remove(own));
    }
    schema
}

/// Takes out what only Kubernetes reads, puts its rules into the description, and takes null out:
/// null is the same as absent. Takes out the formats of numbers: they are Rust's own, and clients
/// warn of words that they do not know.
fn tidy(schema: &mut Value) {
    if let Value::Array(all) = schema {
        all.iter_mut().for_each(tidy);
    }
    let Some(node) = schema.as_object_mut() else { return };
    told_rules(node);
    told_words(node);
    let numeric = |t: &Value| t == "integer" || t == "number";
    let number = match node.get("type") {
        Some(Value::Array(types)) => types.iter().any(numeric),
        Some(one) => numeric(one),
        None => false,
    };
    node.retain(|key, value| {
        let foreign = key.starts_with("x-kubernetes-") || number && key == "format";
        !(foreign || key == "default" && value.is_null())
    });
    if let Some(Value::Array(types)) = node.get_mut("type") {
        types.retain(|t| t != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            node.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = node.get_mut("enum") {
        values.retain(|v| !v.is_null());
    }
    for (key, child) in node.iter_mut() {
        match (key.as_str(), child) {
            ("properties" | "$defs", Value::Object(named)) => named.values_mut().for_each(tidy),
            ("default" | "const" | "enum" | "required" | "examples", _) => {}
            (_, child) => tidy(child),
        }
    }
    let Some(Value::Array(either)) = node.get_mut("anyOf") else { return };
    either.retain(|one| one["type"] != "null");
    if let [Value::Object(only)] = either.as_slice() {
        let only = only.clone();
        node.remove("anyOf");
        for (key, value) in only {
            node.entry(key).or_insert(value);
        }
    }
}

/// An enumeration whose words are described one by one becomes a plain one, as the definitions of
/// Kubernetes have it; what is said of each word moves into the description.
fn told_words(node: &mut Map<String, Value>) {
    let Some(Value::Array(each)) = node.get("oneOf") else { return };
    let word = |one: &Value| one["const"].as_str().map(str::to_owned);
    let Some(words) = each.iter().map(word).collect::<Option<Vec<_>>>() else { return };
    let said = |(word, one): (&String, &Value)| {
        let what = one["description"].as_str()?.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(format!("{word}: {what}"))
    };
    let mut all = vec![];
    all.extend(node.get("description").and_then(Value::as_str).map(str::to_owned));
    all.extend(words.iter().zip(each).filter_map(said));
    node.remove("oneOf");
    node.insert("type".to_owned(), json!("string"));
    node.insert("enum".to_owned(), json!(words));
    node.insert("description".to_owned(), json!(all.join(" ")));
}

fn told_rules(node: &mut Map<String, Value>) {
    let Some(Value::Array(rules)) = node.get("x-kubernetes-validations") else { return };
    let told: Vec<_> = rules.iter().filter_map(|rule| rule["message"].as_str()).collect();
    if told.is_empty() {
        return;
    }
    let description = node.get("description").and_then(Value::as_str).unwrap_or_default();
    let all = format!("{description} Rules: {}.", told.join("; "));
    node.insert("description".to_owned(), json!(all.trim()));
}
