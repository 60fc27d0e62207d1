//! The script: everything that can be asked of the stub, one JSON object, every field optional.
//! The table of its fields for people is `README.md`; a test compares the two.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What the stub does. `{}` is a well-behaved server with every built-in tool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// `serverInfo.name`; default `awaken-stub`.
    pub name: Option<String>,
    /// Folder that keeps the counters over a restart; default: in memory.
    pub state: Option<String>,
    /// The tools, in the order of the list; default: every built-in one. A name twice is listed twice.
    pub tools: Option<Vec<Tool>>,
    /// That many more tools `tool_0000`, `tool_0001`, … that do `echo`.
    pub more_tools: usize,
    /// Tools on one page of `tools/list`; 0 for all on one.
    pub page_size: usize,
    /// A cursor that each page of `tools/list` names anew.
    pub stuck_cursor: Option<String>,
    /// Raw JSON text of the whole `tools/list` result, instead of the tools.
    pub list_result: Option<String>,
    /// How the handshake goes.
    pub handshake: Handshake,
    /// Does not answer `ping`.
    pub ignore_ping: bool,
    /// Handles one message at a time: a call blocks everything behind it.
    pub single_threaded: bool,
    /// Exits with this code when it is told of a cancellation.
    pub exit_on_cancel: Option<i32>,
    /// Exits with this code, that long after its start.
    pub exit_after_ms: Option<u64>,
    /// The code for `exit_after_ms`.
    pub exit_code: i32,
    /// Exits with code 2, a word on stderr, unless this environment variable is set.
    pub need_env: Option<String>,
    /// Panics at the start.
    pub panic: bool,
    /// stdio only: what else goes to stdout.
    pub noise: Noise,
    /// HTTP only.
    pub http: Http,
}

/// A tool: a built-in by name, or one of another name and description.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Tool {
    /// A built-in tool.
    Builtin(String),
    /// Another name for a behaviour.
    Custom(Custom),
}

/// A tool with a name of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Custom {
    /// Its name.
    pub name: String,
    /// The built-in whose behaviour it has.
    pub does: String,
    /// Raw JSON text of the whole descriptor, passed as it is; default: made up.
    #[serde(default)]
    pub descriptor: Option<String>,
    /// Its description, if no descriptor is given.
    #[serde(default)]
    pub description: Option<String>,
}

/// How the handshake goes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Handshake {
    /// What `initialize` gets.
    pub mode: HandshakeMode,
    /// Waits before answering, by number of the `initialize` (the last value counts on).
    pub delays_ms: Vec<u64>,
    /// The version that is answered, whatever was asked; default: the asked one if known.
    pub version: Option<String>,
    /// Raw JSON text of the capabilities; default `{"tools":{"listChanged":true}}`.
    pub capabilities: Option<String>,
    /// The second and each later `initialize` is an error.
    pub once: bool,
    /// The code for the mode `exit`.
    pub exit_code: i32,
    /// Goes to stderr at the start.
    pub stderr: Option<String>,
    /// The value of this environment variable goes to stderr at the start.
    pub stderr_env: Option<String>,
}

/// What `initialize` gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandshakeMode {
    /// A right answer.
    #[default]
    Answer,
    /// No answer, ever.
    Silent,
    /// A JSON-RPC error.
    Error,
    /// The process exits.
    Exit,
    /// Text that is no MCP.
    Garbage,
}

/// What else goes to stdout of a stdio server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Noise {
    /// Text lines before anything else.
    pub banner_lines: usize,
    /// Bytes of log notifications before stdin is read.
    pub flood_bytes: usize,
    /// A byte order mark before each message.
    pub bom: bool,
    /// CRLF ends each message.
    pub crlf: bool,
    /// A blank line before each message.
    pub blank: bool,
    /// A line that is no UTF-8 before each message.
    pub invalid_utf8: bool,
    /// A line of text before each message.
    pub text: bool,
}

/// How the HTTP server behaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// The value that `bearer_header` must carry, else 401.
    pub bearer: Option<String>,
    /// The header that is checked; default `authorization`. There the value follows `Bearer `.
    pub bearer_header: String,
    /// The status of a refused credential; default 401.
    pub refuse_with: u16,
    /// Answers each POST with this status and no MCP.
    pub status: Option<u16>,
    /// That for the first so many POSTs only; 0 for all.
    pub status_first: usize,
    /// A Retry-After header for `status`, in seconds.
    pub retry_after: Option<u64>,
    /// Answers with this Location; the status is `status`, default 302.
    pub redirect: Option<String>,
    /// Answers with an HTML page, status 200.
    pub html: bool,
    /// Answers 200 with this text as application/json.
    pub body: Option<String>,
    /// Whether it has MCP sessions; default true.
    pub sessions: bool,
    /// Forgets an MCP session after so many requests in it (404); 0 for never.
    pub session_requests: usize,
    /// Answers as `json` (default) or `sse`.
    pub answer: AnswerAs,
    /// The end of lines of an event stream: `lf` (default), `crlf`, `cr`.
    pub newline: Newline,
    /// Sends an event stream in pieces of so many bytes, each flushed; 0 for whole events.
    pub piece_bytes: usize,
    /// Flushes between CR and LF.
    pub split_newline: bool,
    /// Indents JSON in an event stream, one data line for each line.
    pub pretty: bool,
    /// No space behind `data:`.
    pub tight: bool,
    /// Begins an event stream with an event that has an id, no data and a retry time.
    pub prime: bool,
    /// What GET gets: 405 (default) or an event stream.
    pub get_stream: bool,
    /// Whether `/__seen` remembers requests; default true.
    pub record: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            bearer: None,
            bearer_header: "authorization".to_owned(),
            refuse_with: 401,
            status: None,
            status_first: 0,
            retry_after: None,
            redirect: None,
            html: false,
            body: None,
            sessions: true,
            session_requests: 0,
            answer: AnswerAs::Json,
            newline: Newline::Lf,
            piece_bytes: 0,
            split_newline: false,
            pretty: false,
            tight: false,
            prime: false,
            get_stream: false,
            record: true,
        }
    }
}

/// How a POST is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerAs {
    /// One JSON body.
    Json,
    /// An event stream.
    Sse,
}

/// The end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Newline {
    /// `\n`
    Lf,
    /// `\r\n`
    Crlf,
    /// `\r`
    Cr,
}

impl Newline {
    /// Its bytes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::Crlf => "\r\n",
            Self::Cr => "\r",
        }
    }
}

impl Script {
    /// Reads JSON text, or the file that `@path` names.
    ///
    /// # Errors
    /// When the file cannot be read, or the text is no script.
    pub fn read(text: &str) -> anyhow::Result<Self> {
        let text = match text.strip_prefix('@') {
            Some(path) => std::fs::read_to_string(path)?,
            None => text.to_owned(),
        };
        Ok(serde_json::from_str(&text)?)
    }

    /// The script with a JSON merge patch (RFC 7386) applied.
    ///
    /// # Errors
    /// When the result is no script.
    pub fn patched(&self, patch: &Value) -> anyhow::Result<Self> {
        let mut whole = serde_json::to_value(self)?;
        merge(&mut whole, patch);
        Ok(serde_json::from_value(whole)?)
    }
}

fn merge(into: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            if !into.is_object() {
                *into = Value::Object(serde_json::Map::new());
            }
            let map = into.as_object_mut().expect("made an object above");
            for (key, value) in fields {
                if value.is_null() {
                    map.remove(key);
                } else {
                    merge(map.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        other => *into = other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_empty_script_is_a_well_behaved_server() {
        let script = Script::read("{}").unwrap();
        assert!(script.http.sessions && script.http.record && script.tools.is_none());
        assert_eq!(script.handshake.mode, HandshakeMode::Answer);
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        assert!(Script::read(r#"{"tool":[]}"#).is_err());
        assert!(Script::read(r#"{"http":{"beerer":"x"}}"#).is_err());
    }

    #[test]
    fn a_patch_changes_what_it_names_and_null_takes_away() {
        let before = Script::read(r#"{"name":"a","http":{"bearer":"one","pretty":true}}"#).unwrap();
        let after = before.patched(&json!({"name": null, "http": {"bearer": "two"}})).unwrap();
        assert_eq!(after.name, None);
        assert_eq!(after.http.bearer.as_deref(), Some("two"));
        assert!(after.http.pretty);
    }

    #[test]
    fn the_readme_names_every_field() {
        let readme = include_str!("../README.md");
        let whole = serde_json::to_value(Script::default()).unwrap();
        for (outer, value) in whole.as_object().unwrap() {
            for key in value.as_object().map(|o| o.keys().collect()).unwrap_or(vec![outer]) {
                assert!(readme.contains(&format!("`{key}`")), "README lacks {key}");
            }
        }
        for (name, ..) in crate::tools::BUILTIN {
            assert!(readme.contains(&format!("`{name}`")), "README lacks the tool {name}");
        }
    }
}
