//! The objects that the operator makes, as typed values. Pure and deterministic: the same input is
//! the same object, to the byte.

pub mod pod;
pub mod policy;
pub mod session;
mod snapshots;

use crate::api::Session;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

/// Who manages what the operator makes.
pub const MANAGER: &str = "awaken-operator";
/// Label: the UID of the Session that an object belongs to.
pub const SESSION_UID: &str = "awaken.dev/session-uid";
/// Label: the UID of the attachment that a pod runs.
pub const ATTACHMENT_UID: &str = "awaken.dev/attachment-uid";
/// Label: the generation that a pod runs.
pub const GENERATION: &str = "awaken.dev/generation";
/// Label: whose hand an object is from.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label: what part an object is.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// The component of Session pods and their NetworkPolicy.
pub const SESSION_COMPONENT: &str = "session";
/// The port of the shim.
pub const SHIM_PORT: i32 = 7411;

fn owned_by_session(session: &Session) -> Option<Vec<OwnerReference>> {
    session.controller_owner_ref(&()).map(|owner| vec![owner])
}
