//! The custom resources, types only: group `awaken.dev`, version `v1alpha1`. Doc comments here are
//! the text that `kubectl explain` shows.

pub mod agent;
pub mod attachment;
pub mod condition;
pub mod resources;
pub mod session;

pub use agent::{Agent, AgentSpec, AgentStatus};
pub use attachment::{McpAttachment, McpAttachmentSpec, McpAttachmentStatus};
pub use session::{Session, SessionSpec, SessionStatus};

/// The API group.
pub const GROUP: &str = "awaken.dev";

/// Asks for another try; answered in `status.lastHandledReconcileAt`.
pub const RECONCILE_REQUESTED_AT: &str = "awaken.dev/reconcile-requested-at";
