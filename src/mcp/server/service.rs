//! What the HTTP server asks of the one behind it: the only seam between protocol and policy.

use super::{ProgressSink, ToolList};
use crate::{
    domain::reason::Reason,
    mcp::{
        Answer,
        legacy::Revision,
        wire::{Id, RawJson},
    },
};
use futures::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Who speaks, and to what: an MCP session belongs to exactly one of these.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Key of the authenticated subject: the same for every token of one subject, different for
    /// any two subjects.
    pub subject: Arc<str>,
    /// Key of the endpoint, for example the path of the route and the Session's UID.
    pub endpoint: Arc<str>,
}

/// What `initialize` tells of the server.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// `serverInfo.name`.
    pub name: String,
    /// `serverInfo.version`.
    pub version: String,
    /// `serverInfo.title`.
    pub title: Option<String>,
    /// `instructions`.
    pub instructions: Option<String>,
}

/// A `tools/call` as the client made it.
#[derive(Clone, Debug)]
pub struct ToolCall {
    /// `params.name`, unescaped.
    pub name: String,
    /// `params.arguments`, an object; none if absent or null. May still repeat keys inside.
    pub arguments: Option<RawJson>,
    /// The whole of `params`. Its own keys, one level deep, are not repeated.
    pub params: RawJson,
    /// The request around it.
    pub context: RequestContext,
}

/// The request that a call came in.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// The MCP session.
    pub session: Arc<str>,
    /// The JSON-RPC id, as the client chose it.
    pub id: Id,
    /// The revision that the session speaks.
    pub revision: Revision,
    /// Cancelled when the client sends `notifications/cancelled` for exactly this request. End the
    /// call then; whatever is answered is not sent.
    pub cancel: CancellationToken,
    /// Cancelled when the connection that waits for the answer is gone. That is no cancellation:
    /// the call goes on to its end, but nobody will hear of it.
    pub gone: CancellationToken,
    /// Takes progress, if the client asked for it and can hear of it.
    pub progress: Option<ProgressSink>,
}

/// A request that was refused before the service saw it.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// For people.
    pub message: String,
    /// The method, where it could be read.
    pub method: Option<String>,
}

/// The one behind the HTTP server, for one subject on one endpoint.
pub trait Service: Send + Sync + 'static {
    /// What `initialize` tells.
    fn info(&self) -> ServerInfo;

    /// The list as the subject sees it at this moment.
    fn tools(&self) -> Arc<ToolList>;

    /// Wakes when [`Self::tools`] may have changed. Clients are told only if its digest did.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Calls a tool. Polled by the request's own task; when its connection goes away it is
    /// continued elsewhere, so it is always run to its end.
    fn call(&self, call: ToolCall) -> BoxFuture<'static, Answer>;

    /// Told of each refused request that belongs on record, before the client is answered.
    fn refused(&self, refused: Refused) -> BoxFuture<'static, ()>;

    /// Cancelled when the subject's open streams and requests must end: a right withdrawn, the
    /// endpoint gone.
    fn ended(&self) -> CancellationToken;
}
