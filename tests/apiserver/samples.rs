//! What a user applies, applied: the samples and the rendered chart, twice, with nothing changed
//! the second time.

use crate::server::{Server, documents};
use serde_json::Value;

/// What of a stored object a second apply must not change: all but the API server's own notes.
fn stable(mut object: Value) -> Value {
    object["status"] = Value::Null;
    for note in ["managedFields", "resourceVersion"] {
        object["metadata"][note] = Value::Null;
    }
    object
}

async fn apply_twice(server: &Server, path: &str) {
    for object in documents(path) {
        let first = server.apply(&object).await;
        assert_eq!(first.warnings, Vec::<String>::new(), "{path}: {}", object["metadata"]["name"]);
        let (first, second) = (first.ok(), server.apply(&object).await.ok());
        assert_eq!(stable(first), stable(second), "{path}: a second apply changes something");
    }
}

#[tokio::test]
async fn every_sample_applies_twice() {
    let server = Server::new().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/samples");
    let mut seen = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        apply_twice(&server, &format!("manifests/samples/{name}")).await;
        seen += 1;
    }
    assert!(seen > 0);
}

#[tokio::test]
async fn the_rendered_chart_applies_twice() {
    let server = Server::new().await;
    apply_twice(&server, "manifests/install.yaml").await;
}

/// What one field owner applies, the API server stores as it is: nothing is dropped or rewritten.
#[tokio::test]
async fn what_is_applied_is_what_is_stored() {
    let server = Server::new().await;
    for object in documents("manifests/install.yaml")
        .iter()
        .chain(&documents("manifests/samples/quickstart.yaml"))
    {
        let stored = server.apply(object).await.ok();
        for (key, value) in object.as_object().unwrap() {
            contains(&format!("{} {key}", object["kind"]), &stored[key], value);
        }
    }
}

fn contains(path: &str, stored: &Value, applied: &Value) {
    match (stored, applied) {
        (Value::Object(stored), Value::Object(applied)) => {
            for (key, value) in applied {
                let empty = value.as_object().is_some_and(serde_json::Map::is_empty);
                match stored.get(key) {
                    Some(kept) => contains(&format!("{path}.{key}"), kept, value),
                    None => assert!(empty, "{path}.{key} was dropped"),
                }
            }
        }
        (Value::Array(stored), Value::Array(applied)) => {
            assert_eq!(stored.len(), applied.len(), "{path}");
            stored.iter().zip(applied).for_each(|(s, a)| contains(&format!("{path}[]"), s, a));
        }
        _ => assert_eq!(stored, applied, "{path}"),
    }
}
