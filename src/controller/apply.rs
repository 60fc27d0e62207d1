//! Every write to the API server. Compares first: without a difference nothing is written. Status
//! and finalizers are merge patches that carry the resourceVersion they were decided on.

use super::{
    build::{ATTACHMENT_UID, GENERATION, MANAGER, SESSION_UID},
    metrics::ControllerMetrics,
    seen::Problem,
};
use crate::{
    api::{Session, SessionStatus},
    domain::reason::Reason,
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{Pod, Secret},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Status,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use std::{fmt::Debug, future::Future, time::Duration};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(15);

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Somebody else wrote the object meanwhile: read it again and decide again.
    #[error("the {kind} {name} changed meanwhile")]
    Conflict {
        /// The kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The object is gone.
    #[error("the {kind} {name} is gone")]
    Gone {
        /// The kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The API server refused or could not be asked.
    #[error("writing the {kind} {name}: {source}")]
    Api {
        /// The kind.
        kind: String,
        /// Its name.
        name: String,
        /// What it said.
        #[source]
        source: Box<kube::Error>,
    },
    /// There was no answer in time.
    #[error("writing the {kind} {name}: no answer within {REQUEST:?}")]
    Timeout {
        /// The kind.
        kind: String,
        /// Its name.
        name: String,
    },
}

/// What became of a create.
#[derive(Clone, Debug)]
pub enum Created<K> {
    /// It was made.
    Made(K),
    /// There was one of that name already.
    Exists(K),
    /// The API server does not take it; for the conditions.
    Refused(Problem),
}

/// The writing side.
#[derive(Clone)]
pub struct Apply {
    client: Client,
    metrics: ControllerMetrics,
}

type Namespaced = NamespaceResourceScope;

impl Apply {
    /// Writes through this client.
    pub fn new(client: Client, metrics: ControllerMetrics) -> Self {
        Self { client, metrics }
    }

    /// Makes a Session.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn create_session(&self, session: &Session) -> Result<Created<Session>, ApplyError> {
        self.create(session).await
    }

    /// Makes a NetworkPolicy.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn create_policy(
        &self,
        policy: &NetworkPolicy,
    ) -> Result<Created<NetworkPolicy>, ApplyError> {
        self.create(policy).await
    }

    /// Makes a Secret, or gives back the one that is there.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn create_secret(&self, secret: &Secret) -> Result<Created<Secret>, ApplyError> {
        self.create(secret).await
    }

    /// Puts back what somebody changed in our NetworkPolicy.
    ///
    /// # Errors
    /// When the API server refuses or cannot be asked.
    pub async fn restore_policy(
        &self,
        present: &NetworkPolicy,
        wanted: &NetworkPolicy,
    ) -> Result<NetworkPolicy, ApplyError> {
        let mut next = present.clone();
        next.spec.clone_from(&wanted.spec);
        let api = self.api::<NetworkPolicy>(present);
        let name = present.name_any();
        self.count("NetworkPolicy", "update");
        within(present, api.replace(&name, &post_params(), &next)).await
    }

    /// Makes a generation's pod. A pod of that name that is another's counts as a refusal.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn create_pod(&self, pod: &Pod) -> Result<Created<Pod>, ApplyError> {
        let created = self.create(pod).await?;
        match &created {
            Created::Exists(found) if !same_generation(found, pod) => {
                let cause = format!(
                    "A pod named {} exists that does not belong to this generation.",
                    pod.name_any()
                );
                Ok(Created::Refused(Problem { reason: Reason::PodRefused, message: cause }))
            }
            _ => Ok(created),
        }
    }

    /// Deletes exactly this pod; one that is gone already is fine.
    ///
    /// # Errors
    /// When the API server refuses or cannot be asked.
    pub async fn delete_pod(&self, pod: &Pod) -> Result<(), ApplyError> {
        let exactly = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams::default().preconditions(exactly);
        let api = self.api::<Pod>(pod);
        self.count("Pod", "delete");
        match within(pod, api.delete(&pod.name_any(), &params)).await {
            Ok(_) | Err(ApplyError::Gone { .. } | ApplyError::Conflict { .. }) => Ok(()),
            Err(problem) => Err(problem),
        }
    }

    /// Writes a Session's status but for the receipts and the activity, which are the gateway's. Gives back the
    /// Session as it is now, or none when there was nothing to write.
    ///
    /// # Errors
    /// [`ApplyError::Conflict`] when it changed meanwhile; others as they are.
    pub async fn session_status(
        &self,
        session: &Session,
        status: &SessionStatus,
    ) -> Result<Option<Session>, ApplyError> {
        let mut status = status.clone();
        let old = session.status.clone().unwrap_or_default();
        status.receipts.clone_from(&old.receipts);
        status.activity.clone_from(&old.activity);
        self.status(session, &old, &status).await
    }

    /// Writes a status. Gives back the object as it is now, or none when there was nothing to
    /// write.
    ///
    /// # Errors
    /// [`ApplyError::Conflict`] when it changed meanwhile; others as they are.
    pub async fn status<K, S>(&self, object: &K, old: &S, new: &S) -> Result<Option<K>, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = Namespaced> + Clone + DeserializeOwned + Debug,
        S: Serialize + PartialEq,
    {
        if old == new {
            return Ok(None);
        }
        let Some(difference) = difference(&to_value(old), &to_value(new)) else { return Ok(None) };
        let patch = json!({
            "metadata": {"resourceVersion": object.resource_version()},
            "status": difference,
        });
        let api = self.api::<K>(object);
        let params = patch_params();
        self.count(&K::kind(&()), "status");
        let name = object.name_any();
        let patch = Patch::Merge(&patch);
        within(object, api.patch_status(&name, &params, &patch)).await.map(Some)
    }

    /// As [`Self::status`]; an object that is gone needs none.
    ///
    /// # Errors
    /// As there, but for [`ApplyError::Gone`].
    pub async fn status_if_there<K, S>(
        &self,
        object: &K,
        old: &S,
        new: &S,
    ) -> Result<Option<K>, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = Namespaced> + Clone + DeserializeOwned + Debug,
        S: Serialize + PartialEq,
    {
        match self.status(object, old, new).await {
            Err(ApplyError::Gone { .. }) => Ok(None),
            other => other,
        }
    }

    /// Holds a Session: puts our finalizer on, and those owners that it lacks. Gives back the
    /// Session as it is now, or none when there was nothing to write.
    ///
    /// # Errors
    /// [`ApplyError::Conflict`] when it changed meanwhile; others as they are.
    pub async fn hold(
        &self,
        session: &Session,
        finalizer: &str,
        owners: &[OwnerReference],
    ) -> Result<Option<Session>, ApplyError> {
        let present = session.finalizers();
        let owned = session.owner_references();
        let is_held = present.iter().any(|f| f == finalizer);
        let lacking: Vec<_> =
            owners.iter().filter(|o| owned.iter().all(|there| there.uid != o.uid)).collect();
        if is_held && lacking.is_empty() {
            return Ok(None);
        }
        let mut metadata = json!({"resourceVersion": session.resource_version()});
        if !is_held {
            let all: Vec<_> = present.iter().map(String::as_str).chain([finalizer]).collect();
            metadata["finalizers"] = json!(all);
        }
        if !lacking.is_empty() {
            metadata["ownerReferences"] = json!(owned.iter().chain(lacking).collect::<Vec<_>>());
        }
        let patch = json!({"metadata": metadata});
        let api = self.api::<Session>(session);
        let params = patch_params();
        self.count("Session", "hold");
        let name = session.name_any();
        within(session, api.patch(&name, &params, &Patch::Merge(&patch))).await.map(Some)
    }

    /// Lets a Session go: takes our finalizer off.
    ///
    /// # Errors
    /// [`ApplyError::Conflict`] when it changed meanwhile; others as they are.
    pub async fn release(&self, session: &Session, finalizer: &str) -> Result<(), ApplyError> {
        let present = session.finalizers();
        if !present.iter().any(|f| f == finalizer) {
            return Ok(());
        }
        let rest: Vec<_> = present.iter().filter(|f| *f != finalizer).collect();
        let patch = json!({
            "metadata": {"resourceVersion": session.resource_version(), "finalizers": rest},
        });
        let api = self.api::<Session>(session);
        let params = patch_params();
        self.count("Session", "release");
        let name = session.name_any();
        match within(session, api.patch(&name, &params, &Patch::Merge(&patch))).await {
            Ok(_) | Err(ApplyError::Gone { .. }) => Ok(()),
            Err(problem) => Err(problem),
        }
    }

    /// Deletes a Session as it was seen: one that changed meanwhile stays.
    ///
    /// # Errors
    /// [`ApplyError::Conflict`] when it changed meanwhile; others as they are.
    pub async fn delete_session(&self, session: &Session) -> Result<(), ApplyError> {
        let exactly = Preconditions {
            uid: session.metadata.uid.clone(),
            resource_version: session.resource_version(),
        };
        let params = DeleteParams::default().preconditions(exactly);
        let api = self.api::<Session>(session);
        self.count("Session", "delete");
        within(session, api.delete(&session.name_any(), &params)).await.map(drop)
    }

    async fn create<K>(&self, object: &K) -> Result<Created<K>, ApplyError>
    where
        K: Resource<DynamicType = (), Scope = Namespaced>
            + Clone
            + DeserializeOwned
            + Serialize
            + Debug,
    {
        let api = self.api::<K>(object);
        let params = post_params();
        self.count(&K::kind(&()), "create");
        match within(object, api.create(&params, object)).await {
            Ok(made) => Ok(Created::Made(made)),
            Err(ApplyError::Conflict { .. }) => {
                within(object, api.get(&object.name_any())).await.map(Created::Exists)
            }
            Err(ApplyError::Api { kind, name, source }) => match refusal(&kind, &source) {
                Some(problem) => Ok(Created::Refused(problem)),
                None => Err(ApplyError::Api { kind, name, source }),
            },
            Err(problem) => Err(problem),
        }
    }

    fn api<K>(&self, object: &K) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = Namespaced>,
    {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }

    fn count(&self, kind: &str, verb: &'static str) {
        self.metrics.wrote(kind, verb);
    }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

async fn within<K, T>(
    object: &K,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApplyError>
where
    K: Resource<DynamicType = ()>,
{
    let (kind, name) = (K::kind(&()).into_owned(), object.meta().name.clone().unwrap_or_default());
    match tokio::time::timeout(REQUEST, request).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
            Err(ApplyError::Conflict { kind, name })
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
            Err(ApplyError::Gone { kind, name })
        }
        Ok(Err(source)) => Err(ApplyError::Api { kind, name, source: Box::new(source) }),
        Err(_) => Err(ApplyError::Timeout { kind, name }),
    }
}

/// What a refusal means for whoever asked for the object; none when it says nothing about it.
fn refusal(kind: &str, error: &kube::Error) -> Option<Problem> {
    let kube::Error::Api(status) = error else { return None };
    let Status { code, message, .. } = status.as_ref();
    let reason = match code {
        403 if message.contains("exceeded quota") => Reason::QuotaExceeded,
        400 | 403 | 422 if kind == "Pod" => Reason::PodRefused,
        400 | 403 | 422 => Reason::ObjectRefused,
        _ => return None,
    };
    Some(Problem { reason, message: format!("The API server refuses the {kind}: {message}") })
}

fn same_generation(one: &Pod, two: &Pod) -> bool {
    let uid =
        |pod: &Pod| pod.metadata.owner_references.iter().flatten().map(|o| o.uid.clone()).next();
    let same = |key| one.labels().get(key) == two.labels().get(key);
    [SESSION_UID, ATTACHMENT_UID, GENERATION].into_iter().all(same) && uid(one) == uid(two)
}

fn to_value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).expect("a status is plain data")
}

/// The merge patch that turns `old` into `new`; none when they are the same.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for (key, value) in after {
        let changed = match before.get(key) {
            Some(present) => difference(present, value),
            None => Some(value.clone()),
        };
        patch.extend(changed.map(|v| (key.clone(), v)));
    }
    for key in before.keys().filter(|k| !after.contains_key(*k)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_only_what_changed() {
        let old = json!({"a": 1, "b": {"c": 2, "gone": 3}, "list": [1, 2], "same": {"x": 1}});
        let new = json!({"a": 1, "b": {"c": 4}, "list": [2], "same": {"x": 1}, "new": {"y": 5}});
        let expected = json!({"b": {"c": 4, "gone": null}, "list": [2], "new": {"y": 5}});
        assert_eq!(difference(&old, &new), Some(expected));
        assert_eq!(difference(&old, &old), None);
    }

    fn api_error(code: u16, message: &str) -> kube::Error {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn refusals_are_told_apart() {
        let of = |code, message| refusal("Pod", &api_error(code, message)).map(|p| p.reason);
        let quota = "pods \"x\" is forbidden: exceeded quota: small, requested: pods=1";
        assert_eq!(of(403, quota), Some(Reason::QuotaExceeded));
        let security = "violates PodSecurity \"restricted:latest\"";
        assert_eq!(of(403, security), Some(Reason::PodRefused));
        assert_eq!(of(422, "invalid"), Some(Reason::PodRefused));
        assert_eq!(of(500, "etcd"), None);
        assert_eq!(of(429, "slow down"), None);
    }
}
