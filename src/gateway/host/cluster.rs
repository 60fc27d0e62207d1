//! What the host asks of the API server: read a Session or a Secret, write receipts, tell events.
//! The only place of the gateway that writes to it, but for its Lease.

use super::realize::Note;
use crate::{
    api::Session,
    domain::{
        allowed_targets::ALLOWED_TARGETS, identity::SessionKey, lifecycle::Receipt, usage::Activity,
    },
    gateway::index::SessionView,
};
use futures::future::BoxFuture;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ObjectReference, Secret},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use serde_json::json;
use std::collections::BTreeMap;

/// The name under which the gateway writes.
pub const FIELD_MANAGER: &str = "awaken-gateway";

/// Why the API server did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The object was written in between: read it again.
    #[error("the object was written in between")]
    Conflict,
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// A Secret.
#[derive(Clone, Default)]
pub struct SecretView {
    /// Its values, by key.
    pub values: BTreeMap<String, Vec<u8>>,
    /// Its annotation `awaken.dev/allowed-targets`.
    pub allowed_targets: Option<String>,
}

/// The API server, as the host needs it.
pub trait Cluster: Send + Sync + 'static {
    /// Reads a Session as it is now.
    fn session<'a>(
        &'a self,
        key: &'a SessionKey,
    ) -> BoxFuture<'a, Result<SessionView, ClusterError>>;

    /// Replaces the receipts of a Session that is still at this resourceVersion, and what is said of
    /// its use.
    fn write_receipts<'a>(
        &'a self,
        view: &'a SessionView,
        receipts: &'a [Receipt],
        activity: Option<&'a Activity>,
    ) -> BoxFuture<'a, Result<SessionView, ClusterError>>;

    /// A Secret.
    fn secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<SecretView, ClusterError>>;

    /// Tells people about a Session and one of its attachments.
    fn event<'a>(
        &'a self,
        view: &'a SessionView,
        attachment: (&'a str, &'a str),
        note: Note,
    ) -> BoxFuture<'a, ()>;
}

/// The real one.
#[derive(Clone)]
pub struct ApiCluster {
    client: Client,
    recorder: Recorder,
}

impl ApiCluster {
    /// Through this client, in the name of this pod.
    pub fn new(client: Client, pod: &str) -> Self {
        let reporter =
            Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(pod.to_owned()) };
        Self { recorder: Recorder::new(client.clone(), reporter), client }
    }

    fn sessions(&self, key: &SessionKey) -> Api<Session> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }
}

impl From<kube::Error> for ClusterError {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if status.code == 404 => Self::NotFound,
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl Cluster for ApiCluster {
    fn session<'a>(
        &'a self,
        key: &'a SessionKey,
    ) -> BoxFuture<'a, Result<SessionView, ClusterError>> {
        Box::pin(async move { Ok(SessionView::of(&self.sessions(key).get(&key.name).await?)) })
    }

    fn write_receipts<'a>(
        &'a self,
        view: &'a SessionView,
        receipts: &'a [Receipt],
        activity: Option<&'a Activity>,
    ) -> BoxFuture<'a, Result<SessionView, ClusterError>> {
        Box::pin(async move {
            let mut patch = json!({
                "metadata": {"resourceVersion": view.resource_version, "uid": view.uid},
                "status": {"receipts": receipts},
            });
            if let Some(Activity { incarnation, epoch, idle_since, at }) = activity {
                // a merge keeps what is not named
                patch["status"]["activity"] = json!({
                    "incarnation": incarnation, "epoch": epoch, "idleSince": idle_since, "at": at,
                });
            }
            let params = PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let api = self.sessions(&view.key);
            let written = api.patch_status(&view.key.name, &params, &Patch::Merge(&patch)).await?;
            Ok(SessionView::of(&written))
        })
    }

    fn secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<SecretView, ClusterError>> {
        Box::pin(async move {
            let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
            let secret = api.get(name).await?;
            let allowed_targets = secret.annotations().get(ALLOWED_TARGETS).cloned();
            let data = secret.data.unwrap_or_default().into_iter();
            let values = data.map(|(key, ByteString(value))| (key, value)).collect();
            Ok(SecretView { values, allowed_targets })
        })
    }

    fn event<'a>(
        &'a self,
        view: &'a SessionView,
        (attachment, uid): (&'a str, &'a str),
        note: Note,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let reference = ObjectReference {
                api_version: Some("awaken.dev/v1alpha1".to_owned()),
                kind: Some("McpAttachment".to_owned()),
                namespace: Some(view.key.namespace.clone()),
                name: Some(attachment.to_owned()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            };
            let event = Event {
                type_: EventType::Warning,
                reason: note.reason.as_str().to_owned(),
                note: Some(note.message),
                action: "Serve".to_owned(),
                secondary: Some(ObjectReference {
                    api_version: Some("awaken.dev/v1alpha1".to_owned()),
                    kind: Some("Session".to_owned()),
                    namespace: Some(view.key.namespace.clone()),
                    name: Some(view.key.name.clone()),
                    uid: Some(view.uid.clone()),
                    ..ObjectReference::default()
                }),
            };
            if let Err(error) = self.recorder.publish(&event, &reference).await {
                tracing::warn!(%error, reason = event.reason, "an event was not written");
            }
        })
    }
}
