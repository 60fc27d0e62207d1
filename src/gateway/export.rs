//! The route `/v1/mcp`: management tools that the installation names, and tools that Agents export.
//!
//! ```text
//!  secret (watch) ─► bearer ─► route ─► endpoint ─► set (list, find) ─► call, the one way
//! ```
//!
//! Here is the seam toward the management tools: what one is to the route. Everything around a
//! call (gate, journal, metrics) is done for it; a tool does its work and nothing else.

mod bearer;
mod endpoint;
pub(super) mod route;
pub mod secret;
mod set;

pub use bearer::{Bearer, Pass, Secrets, Tokens};
pub use set::{ExportSet, Found};

use crate::mcp::RawJson;
use futures::future::BoxFuture;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

pub use crate::mcp::server::ProgressSink as Progress;

/// The subject of every call through the route.
pub const SUBJECT: &str = "mcp-bearer";
/// The path of the route, and the key of its MCP sessions.
pub const PATH: &str = "/v1/mcp";

/// What the route works with.
#[derive(Clone, Debug)]
pub struct Export {
    /// Who gets in; while it holds nothing, there is no route.
    pub bearer: Bearer,
    /// What is shown.
    pub set: Arc<ExportSet>,
}

/// The management tools of this installation.
pub trait Management: Send + Sync + 'static {
    /// Name and definition of each exported tool, in the order of the domain's list. The same at
    /// each call.
    fn definitions(&self) -> Vec<(&'static str, RawJson)>;

    /// Calls an exported tool with the arguments as the caller sent them: an object without
    /// repeated keys, or none. Polled to its end whatever becomes of the caller; ends soon after
    /// `context.cancel`.
    fn call(
        &self,
        tool: &str,
        arguments: Option<RawJson>,
        context: ManagementContext,
    ) -> BoxFuture<'static, Result<RawJson, ManagementError>>;
}

/// The call around a management tool.
#[derive(Clone, Debug, Default)]
pub struct ManagementContext {
    /// Cancelled when the caller cancels.
    pub cancel: CancellationToken,
    /// Takes progress, where the caller asked for it.
    pub progress: Option<Progress>,
}

/// Why a management tool gave no result. What the caller can mend (a wrong argument, a missing
/// right, a conflict) is none of these: it is a result with `isError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagementError {
    /// No exported tool has this name.
    #[error("there is no such tool")]
    Unknown,
    /// It ended since the caller cancelled. What was written before stays written.
    #[error("cancelled")]
    Cancelled,
    /// It may have done its work; nobody knows. For people, scrubbed.
    #[error("{0}")]
    OutcomeUnknown(String),
}
