//! The list of tools that a client sees: an immutable snapshot, its pages written once.

use crate::mcp::wire::RawJson;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;

/// Tools on one page, at most.
pub const PAGE_TOOLS: usize = 256;
/// Bytes of tools on one page, at most, unless one tool alone is bigger.
pub const PAGE_BYTES: usize = 1 << 20;

/// A snapshot of a list, with its pages ready to send.
#[derive(Debug)]
pub struct ToolList {
    pages: Vec<RawJson>,
    /// Which page follows a name.
    after: HashMap<String, usize>,
    digest: [u8; 32],
    len: usize,
}

impl ToolList {
    /// Makes the pages of `tools`: the name each has here, and its definition as the client
    /// sees it, in the order of the list.
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, &'a RawJson)>) -> Self {
        let (mut pages, mut after, mut sha) = (Vec::new(), HashMap::new(), Sha256::new());
        let (mut page, mut on_page, mut len, mut last) = (b"{\"tools\":[".to_vec(), 0, 0, "");
        for (name, tool) in tools {
            let bytes = tool.bytes();
            sha.update((bytes.len() as u64).to_be_bytes());
            sha.update(bytes);
            if on_page == PAGE_TOOLS || (on_page > 0 && page.len() + bytes.len() > PAGE_BYTES) {
                page.extend_from_slice(b"],\"nextCursor\":\"");
                page.extend_from_slice(URL_SAFE_NO_PAD.encode(last).as_bytes());
                page.extend_from_slice(b"\"}");
                pages
                    .push(RawJson::trusted(std::mem::replace(&mut page, b"{\"tools\":[".to_vec())));
                after.insert(last.to_owned(), pages.len());
                on_page = 0;
            }
            if on_page > 0 {
                page.push(b',');
            }
            page.extend_from_slice(bytes);
            (on_page, len, last) = (on_page + 1, len + 1, name);
        }
        page.extend_from_slice(b"]}");
        pages.push(RawJson::trusted(page));
        Self { pages, after, digest: sha.finalize().into(), len }
    }

    /// What two lists that show the same have in common.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// How many tools.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The result of `tools/list` at a cursor; none for a cursor that is not ours.
    pub(super) fn page(&self, cursor: Option<&str>) -> Option<RawJson> {
        let Some(cursor) = cursor else { return self.pages.first().cloned() };
        let name = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
        self.pages.get(*self.after.get(&name)?).cloned()
    }
}

impl RawJson {
    fn trusted(text: Vec<u8>) -> Self {
        Self::parse(Bytes::from(text)).expect("a list of JSON values between brackets is JSON")
    }
}
