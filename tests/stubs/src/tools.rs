//! The built-in tools as they are listed, and the pages of the list. What they do is in `calls`.

use crate::{
    message::quoted,
    script::{Script, Tool},
};

/// Name and description of each built-in tool.
pub const BUILTIN: &[(&str, &str)] = &[
    ("echo", "Answers with its arguments, digit for digit"),
    ("big", "Answers with a message of about {bytes} bytes"),
    ("sleep", "Answers after {ms}"),
    ("count", "Raises the counter, then waits {ms}; with {then:cut} ends the stream unanswered"),
    ("count_read", "Answers with the counter"),
    ("fail", "Answers with isError and {message}"),
    ("rpc_error", "Answers with the JSON-RPC error {code}, {message}"),
    ("exit", "Writes {stderr}, then exits with {code} unanswered"),
    ("hang", "Never answers"),
    ("progress", "Sends {steps} progress notifications, one each {every_ms}, then answers"),
    ("noise", "Writes {lines} lines of {kind} (text, blank, utf8), then answers; stdio only"),
    ("stderr", "Writes {bytes} to stderr, then answers"),
    ("raw", "Writes {text} as it is, then answers; stdio only"),
    ("env", "Answers with its environment"),
    ("about", "Answers with pid, uid, gid, arguments and working folder"),
    ("read_file", "Answers with the text of {path}"),
    ("write_file", "Writes {text} to {path}"),
    ("list_dir", "Answers with the names in {path}"),
    ("connect", "Opens a TCP connection to {address} within {ms} and says how that went"),
    ("allocate", "Allocates and touches {mib}, then answers; without it, until the end"),
    ("spawn", "Starts a grandchild that idles, with {own_group} in a group of its own"),
    ("cut", "Sends half of its answer, then ends the stream"),
    ("ask", "Sends the request {method} to the client and answers with its answer"),
    ("notify", "Sends the notification {method}, then answers"),
    ("twice", "Answers twice"),
    ("stray", "Sends an answer that nobody asked for, then its own"),
    ("full", "Has every optional field, unknown ones, a 20-digit integer and emoji"),
    ("change_tools", "Replaces the list by {tools} and tells the client"),
    ("seen", "Answers with how often each method was seen, and what was cancelled"),
];

/// The descriptor of `full`: every optional field of every revision, an unknown one, big numbers.
pub const FULL: &str = r#"{"name":"full","title":"Every field 🧰","description":"Has every optional field, unknown ones, a 20-digit integer and emoji 🦀","icons":[{"src":"https://example.invalid/i.png","mimeType":"image/png","sizes":["48x48"]}],"inputSchema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"n":{"type":"integer","maximum":98765432109876543210}},"$defs":{"a":{"$anchor":"a"}},"additionalProperties":true},"outputSchema":{"type":"object","properties":{"n":{"type":"integer"}}},"annotations":{"title":"Full","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false,"x-unknown":1.50},"execution":{"taskSupport":"forbidden"},"_meta":{"example.invalid/n":98765432109876543210},"x-unknown":{"z":1,"a":[1.0E2,0.10]}}"#;

/// The result of `full`.
pub const FULL_RESULT: &str = r#"{"x-unknown":{"z":1,"a":2},"content":[{"type":"text","text":"🦀 é \u00e9","annotations":{"audience":["user"],"priority":0.50,"lastModified":"2026-01-01T00:00:00Z"},"_meta":{"n":98765432109876543210}},{"type":"image","data":"AA==","mimeType":"image/png"},{"type":"audio","data":"AA==","mimeType":"audio/wav"},{"type":"resource_link","uri":"file:///a","name":"a","x-unknown":true},{"type":"resource","resource":{"uri":"file:///b","text":"b","mimeType":"text/plain"}}],"structuredContent":{"n":98765432109876543210,"tiny":1e-400},"isError":false,"_meta":{"example.invalid/k":"v"}}"#;

/// The behaviour of a tool: its built-in name.
pub fn behaviour(script: &Script, name: &str) -> Option<String> {
    let generated = |n: &str| {
        n.strip_prefix("tool_")
            .and_then(|d| d.parse::<usize>().ok())
            .is_some_and(|i| i < script.more_tools)
    };
    let builtin = |n: &str| BUILTIN.iter().any(|(b, _)| *b == n).then(|| n.to_owned());
    if generated(name) {
        return Some("echo".to_owned());
    }
    match &script.tools {
        None => builtin(name),
        Some(tools) => tools.iter().find_map(|t| match t {
            Tool::Builtin(b) if b == name => builtin(b),
            Tool::Custom(c) if c.name == name => Some(c.does.clone()),
            _ => None,
        }),
    }
}

/// The raw result of `tools/list` for a cursor; `Err` is the message of a refused cursor.
pub fn list(script: &Script, cursor: Option<&str>) -> Result<String, String> {
    if let Some(raw) = &script.list_result {
        return Ok(raw.clone());
    }
    let all = descriptors(script);
    let from = match cursor {
        None => 0,
        Some(c) if script.stuck_cursor.as_deref() == Some(c) => 0,
        Some(c) => c.parse::<usize>().map_err(|_| format!("unknown cursor {c}"))?,
    };
    let size = if script.page_size == 0 { all.len().max(1) } else { script.page_size };
    let page = all.get(from..).unwrap_or_default();
    let page = &page[..page.len().min(size)];
    let next = match &script.stuck_cursor {
        Some(stuck) => Some(stuck.clone()),
        None => (from + size < all.len()).then(|| (from + size).to_string()),
    };
    let next = next.map(|n| format!(r#","nextCursor":{}"#, quoted(&n))).unwrap_or_default();
    Ok(format!(r#"{{"tools":[{}]{next}}}"#, page.join(",")))
}

fn descriptors(script: &Script) -> Vec<String> {
    let plain = |name: &str, description: &str| {
        format!(
            r#"{{"name":{},"description":{},"inputSchema":{{"type":"object"}}}}"#,
            quoted(name),
            quoted(description)
        )
    };
    let builtin = |name: &str| match BUILTIN.iter().find(|(n, _)| *n == name) {
        Some(("full", _)) => FULL.to_owned(),
        Some((n, d)) => plain(n, d),
        None => plain(name, "Not a built-in tool: calls of it fail"),
    };
    let mut out: Vec<String> = match &script.tools {
        None => BUILTIN.iter().map(|(n, _)| builtin(n)).collect(),
        Some(tools) => tools
            .iter()
            .map(|t| match t {
                Tool::Builtin(name) => builtin(name),
                Tool::Custom(c) => c.descriptor.clone().unwrap_or_else(|| {
                    plain(&c.name, c.description.as_deref().unwrap_or("A tool of the stub"))
                }),
            })
            .collect(),
    };
    out.extend((0..script.more_tools).map(|i| plain(&format!("tool_{i:04}"), "One of many")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(raw: &str) -> Vec<String> {
        let v: serde_json::Value = serde_json::from_str(raw).unwrap();
        v["tools"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap().into()).collect()
    }

    #[test]
    fn pages_follow_each_other_and_a_stuck_cursor_never_moves() {
        let script = Script::read(r#"{"tools":["echo"],"more_tools":4,"page_size":2}"#).unwrap();
        assert_eq!(names(&list(&script, None).unwrap()), ["echo", "tool_0000"]);
        assert_eq!(names(&list(&script, Some("4")).unwrap()), ["tool_0003"]);
        assert!(!list(&script, Some("4")).unwrap().contains("nextCursor"));
        assert!(list(&script, Some("bogus")).is_err());
        let stuck = Script::read(r#"{"tools":["echo"],"stuck_cursor":"8"}"#).unwrap();
        assert_eq!(list(&stuck, None), list(&stuck, Some("8")));
        assert!(list(&stuck, None).unwrap().contains(r#""nextCursor":"8""#));
    }

    #[test]
    fn names_twice_and_descriptors_of_ones_own_are_listed_as_given() {
        let script = Script::read(
            r#"{"tools":["echo","echo",{"name":"bad","does":"fail","descriptor":"{\"name\":\"bad\",\"inputSchema\":{\"type\":\"string\"}}"}]}"#,
        )
        .unwrap();
        let raw = list(&script, None).unwrap();
        assert_eq!(names(&raw), ["echo", "echo", "bad"]);
        assert!(raw.contains(r#"{"name":"bad","inputSchema":{"type":"string"}}"#));
        assert_eq!(behaviour(&script, "bad").as_deref(), Some("fail"));
        assert_eq!(behaviour(&script, "sleep"), None);
    }

    #[test]
    fn every_builtin_and_the_full_one_are_valid_json() {
        assert_eq!(names(&list(&Script::default(), None).unwrap()).len(), BUILTIN.len());
        serde_json::from_str::<&serde_json::value::RawValue>(FULL_RESULT).unwrap();
    }
}
