//! What `initialize` asks and what it is answered.

use super::ServerInfo;
use crate::mcp::{
    legacy::Revision,
    wire::{self, RawJson},
};

/// The revision that the client asks for; none if it names none.
pub(super) fn asked_version(params: Option<&RawJson>) -> Option<String> {
    let members = wire::members(params?).ok()?;
    let (_, version) = members.into_iter().find(|(key, _)| key == "protocolVersion")?;
    serde_json::from_str(version.get()).ok()
}

/// The result: tools, whose list may change, and nothing else.
pub(super) fn result(revision: Revision, info: &ServerInfo) -> RawJson {
    let mut server = serde_json::json!({"name": info.name, "version": info.version});
    if let Some(title) = &info.title {
        server["title"] = title.as_str().into();
    }
    let mut result = serde_json::json!({
        "protocolVersion": revision.as_str(),
        "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": server,
    });
    if let Some(instructions) = &info.instructions {
        result["instructions"] = instructions.as_str().into();
    }
    RawJson::of(&result).expect("a value is JSON")
}
