//! A live generation: its connection, its tools, its limits, and what is in flight on it.
//!
//! A handle outlives its place in the catalog: calls that began keep theirs until they end or
//! `cut` ends them. It decides nothing and writes nothing.

use crate::{
    domain::{
        canonical,
        identity::tool_id,
        lifecycle::{
            Generation, Limits, Origin, Target,
            hosting::{Door, NoPlace},
        },
        redact::Redactor,
    },
    mcp::{Peer, RawJson, legacy::ToolListing},
};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    sync::{self, Arc, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

/// How long calls that were cut may take to put their outcome on record.
pub const CUT_LIMIT: Duration = Duration::from_secs(5);

/// One tool of one generation.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The server's own name.
    pub name: String,
    /// The name on the aggregated endpoint.
    pub id: String,
    /// Digest of the definition as the server gave it.
    pub digest: String,
    /// The definition as the server gave it.
    pub own: RawJson,
    /// The same under the aggregated name.
    pub aggregated: RawJson,
}

/// The tools of one generation, in the server's order.
#[derive(Clone, Debug, Default)]
pub struct Surface {
    /// The tools.
    pub tools: Vec<Arc<Tool>>,
    /// Digest over all of them.
    pub digest: String,
}

impl Surface {
    /// The tools of a server as it listed them. The list was judged before: each definition is an
    /// object with one `name`, and no two share one.
    pub fn new(server: &str, listing: ToolListing) -> Self {
        let digest = listing.digest();
        let tools = listing.tools.into_iter().filter_map(|tool| {
            let id = tool_id(server, &tool.name);
            let aggregated = renamed(&tool.definition, &id)?;
            let digest = canonical::digest(tool.definition.bytes());
            Some(Arc::new(Tool { name: tool.name, id, digest, own: tool.definition, aggregated }))
        });
        Self { tools: tools.collect(), digest }
    }
}

/// The definition with another `name`; every other byte stays.
pub fn renamed(own: &RawJson, id: &str) -> Option<RawJson> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        name: &'a RawValue,
    }
    let text = own.as_str();
    let named: Named<'_> = serde_json::from_str(text).ok()?;
    let start = named.name.get().as_ptr() as usize - text.as_ptr() as usize;
    let end = start + named.name.get().len();
    let quoted = serde_json::to_string(id).ok()?;
    let out = [&text[..start], &quoted, &text[end..]].concat();
    Some(RawJson::parse(Bytes::from(out)).expect("a spliced string keeps the text valid"))
}

/// Makes a connection anew when the server forgot its MCP session.
pub trait Renew: Send + Sync + 'static {
    /// One fresh handshake with the same server.
    fn renew(&self) -> BoxFuture<'_, Option<Fresh>>;
}

/// A connection made anew.
pub struct Fresh {
    /// The connection.
    pub peer: Arc<dyn Peer>,
    /// Its tools.
    pub surface: Surface,
    /// Knows what is secret to it now.
    pub redactor: Redactor,
    /// Told when it is in place, with the connection that it replaces and that is to be closed.
    pub placed: Box<dyn FnOnce(Arc<dyn Peer>) + Send>,
}

/// A live generation.
pub struct Handle {
    /// The generation's number.
    pub generation: i64,
    /// Name of the attachment.
    pub attachment: String,
    /// Who brought it.
    pub origin: Origin,
    /// UID of the attachment.
    pub attachment_uid: String,
    /// The server's name in tool ids.
    pub server: String,
    /// The exact target, as records name it.
    pub target: String,
    /// The credential by reference, `secret/key`.
    pub credential: Option<String>,
    /// The generation's limits.
    pub limits: Limits,
    redactor: ArcSwap<Redactor>,
    peer: ArcSwap<Link>,
    surface: ArcSwap<Surface>,
    renew: Arc<dyn Renew>,
    renewing: Mutex<()>,
    entrance: Arc<Entrance>,
    cut: CancellationToken,
}

struct Link(Arc<dyn Peer>);

/// The door, and who waits until nobody is in any more.
#[derive(Debug)]
struct Entrance {
    door: sync::Mutex<Door>,
    idle: Notify,
}

impl Entrance {
    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place of one call, given back when it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Entrance>);

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.door().leave() {
            self.0.idle.notify_waiters();
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({}#{})", self.attachment, self.generation)
    }
}

impl Handle {
    /// A handle over a connection that was proven by a handshake.
    pub fn new(
        generation: &Generation,
        peer: Arc<dyn Peer>,
        surface: Surface,
        redactor: Redactor,
        renew: Arc<dyn Renew>,
    ) -> Self {
        let capacity = u32::try_from(generation.limits.max_concurrent_calls.max(1)).unwrap_or(1024);
        Self {
            generation: generation.generation,
            attachment: generation.attachment.clone(),
            origin: generation.origin,
            attachment_uid: generation.attachment_uid.clone(),
            server: generation.server.clone(),
            target: target_text(&generation.target),
            credential: match &generation.target {
                Target::Http(http) => {
                    http.credential.as_ref().map(|c| format!("{}/{}", c.secret, c.key))
                }
                Target::SandboxStdio(_) => None,
            },
            limits: generation.limits.clone(),
            redactor: ArcSwap::from_pointee(redactor),
            peer: ArcSwap::from_pointee(Link(peer)),
            surface: ArcSwap::from_pointee(surface),
            renew,
            renewing: Mutex::new(()),
            entrance: Arc::new(Entrance {
                door: sync::Mutex::new(Door::new(capacity)),
                idle: Notify::new(),
            }),
            cut: CancellationToken::new(),
        }
    }

    /// The connection as it is now.
    pub fn peer(&self) -> Arc<dyn Peer> {
        self.peer.load().0.clone()
    }

    /// The tools as they are now.
    pub fn surface(&self) -> Arc<Surface> {
        self.surface.load_full()
    }

    /// Takes what is secret out of records and messages: what was secret to any connection of this
    /// generation, since an answer may still come from an earlier one.
    pub fn redactor(&self) -> Arc<Redactor> {
        self.redactor.load_full()
    }

    /// A connection in place of one whose MCP session the server forgot. Many callers cause one
    /// handshake. None if it does not work. Takes up to the startup timeout; whoever has less time
    /// drops it.
    pub async fn renewed(&self, forgotten: &Arc<dyn Peer>) -> Option<Arc<dyn Peer>> {
        let _one = self.renewing.lock().await;
        let present = self.peer();
        if !Arc::ptr_eq(&present, forgotten) {
            return Some(present);
        }
        let Fresh { peer, surface, redactor, placed } = self.renew.renew().await?;
        // first what hides, then what may show
        self.redactor.store(Arc::new(redactor.and(&self.redactor())));
        self.peer.store(Arc::new(Link(peer.clone())));
        self.surface.store(Arc::new(surface));
        placed(forgotten.clone());
        Some(peer)
    }

    /// The server listed other tools.
    pub fn relisted(&self, surface: Surface) {
        self.surface.store(Arc::new(surface));
    }

    /// A place for one call.
    ///
    /// # Errors
    /// When as many as allowed are in flight, or when the generation takes no call any more.
    pub fn admit(&self) -> Result<Place, NoPlace> {
        self.entrance.door().enter()?;
        Ok(Place(self.entrance.clone()))
    }

    /// Calls in flight.
    pub fn in_flight(&self) -> u32 {
        self.entrance.door().in_flight()
    }

    /// Cancelled when calls in flight end as `OutcomeUnknown`.
    pub fn cut(&self) -> &CancellationToken {
        &self.cut
    }

    /// Waits until nothing is in flight, at most for `limit`, then cuts what still is and waits
    /// until that is on record, at most for [`CUT_LIMIT`]. Gives how many calls were cut. Takes no
    /// new call from the start.
    pub async fn drain(&self, limit: Duration) -> u32 {
        self.entrance.door().close();
        if self.idle(limit).await {
            return 0;
        }
        let cut = self.in_flight();
        self.cut.cancel();
        self.idle(CUT_LIMIT).await;
        cut
    }

    async fn idle(&self, limit: Duration) -> bool {
        let left = async {
            loop {
                let left = self.entrance.idle.notified();
                tokio::pin!(left);
                left.as_mut().enable();
                if self.entrance.door().is_idle() {
                    return;
                }
                left.await;
            }
        };
        tokio::time::timeout(limit, left).await.is_ok()
    }

    /// How long one call may take.
    pub fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.limits.call_timeout_ms.max(1).unsigned_abs())
    }

    /// How long calls in flight may still run when the generation drains.
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.limits.drain_timeout_ms.max(0).unsigned_abs())
    }
}

/// The exact target, as records name it: the URL, or `stdio:pod/uid`.
pub fn target_text(target: &Target) -> String {
    match target {
        Target::Http(http) => http.url.clone(),
        Target::SandboxStdio(pod) => {
            format!("stdio:{}/{}", pod.name, pod.uid.as_deref().unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::legacy;

    fn listing(tools: &[(&str, &str)]) -> ToolListing {
        let tool = |(name, text): &(&str, &str)| {
            let definition = RawJson::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap();
            legacy::Tool { name: (*name).to_owned(), definition }
        };
        ToolListing { tools: tools.iter().map(tool).collect(), ..ToolListing::default() }
    }

    #[test]
    fn a_renamed_definition_keeps_every_other_byte() {
        let own =
            r#"{ "x":12345678901234567890123, "name" : "re\u0061d","z":{"name":"in"},"é":1e2}"#;
        let surface = Surface::new("files", listing(&[("read", own)]));
        assert_eq!(
            surface.tools[0].aggregated.as_str(),
            r#"{ "x":12345678901234567890123, "name" : "mcp__files__read","z":{"name":"in"},"é":1e2}"#
        );
        assert_eq!(surface.tools[0].own.as_str(), own);
    }

    #[test]
    fn a_definition_that_names_itself_twice_is_not_offered() {
        let two = r#"{"name":"a","name":"b"}"#;
        let surface = Surface::new("s", listing(&[("a", two), ("c", r#"{"name":"c"}"#)]));
        let names: Vec<_> = surface.tools.iter().map(|t| &*t.name).collect();
        assert_eq!(names, ["c"]);
    }

    #[test]
    fn the_digest_follows_every_definition() {
        let of = |text: &str| Surface::new("s", listing(&[("t", text)]));
        let (one, two) = (of(r#"{"name":"t"}"#), of(r#"{"name":"t","description":"another"}"#));
        assert_ne!(one.digest, two.digest);
        assert_ne!(one.tools[0].digest, two.tools[0].digest);
    }
}
