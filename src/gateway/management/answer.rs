//! From what a tool found to the result that the client gets: text for the model, the same as
//! structured content, and the failure where there is one. Bounded in length.

use super::problem::Problem;
use crate::mcp::RawJson;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

/// The longest result, in bytes.
pub const LONGEST: usize = 256 * 1024;

/// Says it in words.
pub trait Spoken {
    /// For a model: everything that matters, one thing a line.
    fn text(&self) -> String;
}

/// A failure as it stands in structured content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ErrorBody {
    /// Why, one word of the documented list of reasons.
    pub reason: &'static str,
    /// The cause and the next step.
    pub message: String,
    /// The argument, or the field of the object, that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl ErrorBody {
    /// What is wrong.
    pub fn of(problem: &Problem) -> Self {
        Self {
            reason: problem.reason.as_str(),
            message: problem.message.clone(),
            field: problem.field.clone(),
        }
    }
}

/// The result of a tool that came to an end.
pub fn result<T: Serialize + Spoken>(output: &T) -> RawJson {
    let structured = serde_json::to_value(output).expect("outputs are JSON objects");
    let written = write(&output.text(), &structured, false);
    if written.bytes().len() <= LONGEST {
        return written;
    }
    failure(
        &Problem::new(
            crate::domain::reason::Reason::MessageTooLarge,
            format!("The answer has {} bytes, over {LONGEST}.", written.bytes().len()),
        )
        .next("Ask for less: a smaller limit, or one object."),
    )
}

/// The result of a tool that did not do what was asked.
pub fn failure(problem: &Problem) -> RawJson {
    let text = format!("{}: {}", problem.reason, problem.message);
    write(&text, &json!({"error": ErrorBody::of(problem)}), true)
}

fn write(text: &str, structured: &Value, is_error: bool) -> RawJson {
    let mut result =
        json!({"content": [{"type": "text", "text": text}], "structuredContent": structured});
    if is_error {
        result["isError"] = Value::Bool(true);
    }
    RawJson::of(&result).expect("values are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Big(Vec<String>);

    impl Spoken for Big {
        fn text(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn what_is_too_long_says_so() {
        let big = Big(vec!["x".repeat(1000); 300]);
        let result: Value = serde_json::from_str(result(&big).as_str()).unwrap();
        assert_eq!(result["structuredContent"]["error"]["reason"], "MessageTooLarge");
        assert_eq!(result["isError"], true);
    }
}
