//! An API server in memory: lists, watches, creates, merge patches, replaces and deletes as the
//! real one does, with resourceVersions, finalizers, status subresources and garbage collection.
//! What it cannot do, it refuses loudly.

use axum::body::{Body, Bytes};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

/// Plural, namespace, name.
pub type Key = (String, String, String);
type Refuse = Box<dyn Fn(&Write, &Value) -> Option<(u16, String)> + Send>;

/// A write that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub actor: &'static str,
    pub verb: &'static str,
    pub plural: String,
    pub name: String,
}

#[derive(Clone)]
pub struct ApiServer(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    version: watch::Sender<u64>,
    start: Instant,
}

struct State {
    version: u64,
    objects: BTreeMap<Key, Value>,
    history: Vec<(u64, &'static str, Key, Value)>,
    watchers: Vec<(String, mpsc::UnboundedSender<Bytes>, Selector)>,
    writes: Vec<Write>,
    reads: Vec<String>,
    refuse: Option<Refuse>,
    slow_pods: bool,
}

#[derive(Clone, Debug)]
struct Selector {
    namespace: Option<String>,
    labels: Vec<(String, String)>,
    name: Option<String>,
    metadata_only: bool,
}

struct Asked {
    plural: String,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    query: BTreeMap<String, String>,
    metadata_only: bool,
}

struct Refusal(StatusCode, String);

impl ApiServer {
    pub fn new() -> Self {
        let state = State {
            version: 1,
            objects: BTreeMap::new(),
            history: vec![],
            watchers: vec![],
            writes: vec![],
            reads: vec![],
            refuse: None,
            slow_pods: false,
        };
        let (version, _) = watch::channel(1);
        Self(Arc::new(Inner { state: Mutex::new(state), version, start: Instant::now() }))
    }

    /// A client whose writes are logged under this name.
    pub fn client(&self, actor: &'static str) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(actor, request).await) }
        });
        Client::new(service, "default")
    }

    /// The time here: moves with tokio's clock.
    pub fn now(&self) -> Timestamp {
        let passed = jiff::SignedDuration::try_from(self.0.start.elapsed()).unwrap();
        Timestamp::from_second(1_767_000_000).unwrap() + passed
    }

    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.lock().objects.get(&key(plural, namespace, name)).cloned()
    }

    pub fn all(&self, plural: &str) -> Vec<Value> {
        let state = self.lock();
        state.objects.iter().filter(|(k, _)| k.0 == plural).map(|(_, v)| v.clone()).collect()
    }

    pub fn writes(&self) -> Vec<Write> {
        self.lock().writes.clone()
    }

    /// Single objects that were read, as `plural/namespace/name`.
    pub fn reads(&self) -> Vec<String> {
        self.lock().reads.clone()
    }

    /// Refuses what the closure says.
    pub fn refuse(
        &self,
        refuse: impl Fn(&Write, &Value) -> Option<(u16, String)> + Send + 'static,
    ) {
        self.lock().refuse = Some(Box::new(refuse));
    }

    pub fn refuse_nothing(&self) {
        self.lock().refuse = None;
    }

    /// Deleted pods stay, marked, until [`ApiServer::remove`].
    pub fn slow_pods(&self) {
        self.lock().slow_pods = true;
    }

    /// What a user does with `kubectl apply`: creates, or replaces spec, data and annotations.
    pub fn apply(&self, plural: &str, object: Value) {
        let namespace = text(&object, "/metadata/namespace");
        let key = key(plural, &namespace, &text(&object, "/metadata/name"));
        let mut state = self.lock();
        match state.objects.get(&key).cloned() {
            None => {
                let created = self.fresh(&mut state, object);
                self.store(&mut state, key, created, "ADDED");
            }
            Some(old) => {
                let mut new = old.clone();
                for part in ["spec", "data"] {
                    if let Some(value) = object.get(part) {
                        new[part] = value.clone();
                    }
                }
                if let Some(annotations) = object.pointer("/metadata/annotations") {
                    new["metadata"]["annotations"] = annotations.clone();
                }
                self.change(&mut state, key, old, new);
            }
        }
    }

    /// What a component does with a status.
    pub fn set_status(&self, plural: &str, namespace: &str, name: &str, status: Value) {
        let key = key(plural, namespace, name);
        let mut state = self.lock();
        let Some(old) = state.objects.get(&key).cloned() else { return };
        let mut new = old.clone();
        new["status"] = status;
        self.change(&mut state, key, old, new);
    }

    /// Takes the owners off, as a deletion of theirs with `--cascade=orphan` does.
    pub fn orphan(&self, plural: &str, namespace: &str, name: &str) {
        self.edit(plural, namespace, name, |object| {
            object["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        });
    }

    /// What an administrator does with `kubectl edit`.
    pub fn edit(&self, plural: &str, namespace: &str, name: &str, how: impl FnOnce(&mut Value)) {
        let key = key(plural, namespace, name);
        let mut state = self.lock();
        let Some(old) = state.objects.get(&key).cloned() else { return };
        let mut new = old.clone();
        how(&mut new);
        self.change(&mut state, key, old, new);
    }

    pub fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.lock();
        self.begin_delete(&mut state, &key(plural, namespace, name));
    }

    /// The object is gone, whatever holds it.
    pub fn remove(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.lock();
        self.finish_delete(&mut state, &key(plural, namespace, name));
    }

    /// Waits until the condition holds, or panics after a while of virtual time.
    pub async fn wait<T>(&self, what: &str, condition: impl Fn(&Self) -> Option<T>) -> T {
        let mut version = self.0.version.subscribe();
        let wait = async {
            loop {
                version.borrow_and_update();
                if let Some(found) = condition(self) {
                    return found;
                }
                version.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(Duration::from_secs(3600), wait).await {
            Ok(found) => found,
            Err(_) => panic!("never happened: {what}\n{}", self.dump()),
        }
    }

    /// Everything there is, for a failure's message.
    pub fn dump(&self) -> String {
        let state = self.lock();
        let objects = state.objects.iter().filter(|(k, _)| k.0 != "leases" && k.0 != "secrets");
        objects.map(|(k, v)| format!("{k:?}: {}\n", serde_json::to_string(v).unwrap())).collect()
    }

    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }

    async fn answer(
        &self,
        actor: &'static str,
        request: Request<kube::client::Body>,
    ) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let accept = parts.headers.get("accept").and_then(|v| v.to_str().ok()).unwrap_or("");
        let asked = asked(&parts.uri, accept);
        match self.handle(actor, &parts.method, &asked, body) {
            Ok(response) => response,
            Err(Refusal(code, message)) => json_response(
                code,
                &json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
                    "code": code.as_u16(), "message": message,
                    "reason": code.canonical_reason().unwrap_or("").replace(' ', ""),
                }),
            ),
        }
    }

    fn handle(
        &self,
        actor: &'static str,
        method: &Method,
        asked: &Asked,
        body: Value,
    ) -> Result<Response<Body>, Refusal> {
        let mut state = self.lock();
        let Asked { plural, namespace, name, subresource, .. } = asked;
        if *method == Method::GET && name.is_none() {
            return Ok(self.list_or_watch(&mut state, asked));
        }
        let ns = namespace.clone().unwrap_or_default();
        let generated = || match text(&body, "/metadata/name") {
            named if !named.is_empty() => named,
            _ => format!("{}{:05}", text(&body, "/metadata/generateName"), state.version),
        };
        let of = name.clone().unwrap_or_else(generated);
        let key = key(plural, &ns, &of);
        let found = state.objects.get(&key).cloned();
        let missing = || Refusal(StatusCode::NOT_FOUND, format!("{plural} {of:?} not found"));
        if *method == Method::GET {
            state.reads.push(format!("{plural}/{ns}/{of}"));
            return Ok(json_response(StatusCode::OK, &found.ok_or_else(missing)?));
        }
        let verb = match (method.as_str(), subresource.as_deref()) {
            ("POST", None) => "create",
            ("PATCH", Some("status")) => "patch-status",
            ("PATCH", None) => "patch",
            ("PUT", None) => "replace",
            ("DELETE", None) => "delete",
            other => panic!("the fake API server knows no {other:?} on {plural}"),
        };
        let write = Write { actor, verb, plural: plural.clone(), name: of.clone() };
        if let Some((code, message)) = state.refuse.as_ref().and_then(|r| r(&write, &body)) {
            return Err(Refusal(StatusCode::from_u16(code).unwrap(), message));
        }
        state.writes.push(write);
        if verb == "create" {
            if found.is_some() {
                return Err(Refusal(StatusCode::CONFLICT, format!("{of:?} already exists")));
            }
            let mut body = body;
            body["metadata"]["namespace"] = json!(ns);
            body["metadata"]["name"] = json!(of);
            body.as_object_mut().unwrap().remove("status");
            let created = self.fresh(&mut state, body);
            self.store(&mut state, key, created.clone(), "ADDED");
            let stored =
                state.objects.get(&self::key(plural, &ns, &of)).cloned().unwrap_or(created);
            return Ok(json_response(StatusCode::CREATED, &stored));
        }
        let old = found.ok_or_else(missing)?;
        if let Some(uid) = body.pointer("/preconditions/uid").and_then(Value::as_str)
            && uid != text(&old, "/metadata/uid")
        {
            return Err(Refusal(StatusCode::CONFLICT, "another uid".to_owned()));
        }
        let expected = body.pointer("/metadata/resourceVersion");
        let expected = expected.or(body.pointer("/preconditions/resourceVersion"));
        let expected = expected.and_then(Value::as_str);
        if expected.is_some_and(|v| v != text(&old, "/metadata/resourceVersion")) {
            return Err(Refusal(StatusCode::CONFLICT, "the object has been modified".to_owned()));
        }
        let new = match verb {
            "delete" => {
                self.begin_delete(&mut state, &key);
                return Ok(json_response(StatusCode::OK, &old));
            }
            "replace" => body,
            _ => {
                let mut new = old.clone();
                let mut patch = body;
                if let Some(meta) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
                    meta.remove("resourceVersion");
                }
                if verb == "patch-status" {
                    merge(&mut new["status"], &patch["status"]);
                } else {
                    patch.as_object_mut().unwrap().remove("status");
                    merge(&mut new, &patch);
                }
                new
            }
        };
        self.change(&mut state, key.clone(), old, new.clone());
        let now = state.objects.get(&key).cloned().unwrap_or(new);
        Ok(json_response(StatusCode::OK, &now))
    }

    fn list_or_watch(&self, state: &mut State, asked: &Asked) -> Response<Body> {
        let labels = asked.query.get("labelSelector").map(String::as_str).unwrap_or("");
        let labels = labels.split(',').filter_map(|l| l.split_once('='));
        let fields = asked.query.get("fieldSelector").map(String::as_str).unwrap_or("");
        let selector = Selector {
            namespace: asked.namespace.clone(),
            name: fields.strip_prefix("metadata.name=").map(str::to_owned),
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            metadata_only: asked.metadata_only,
        };
        let plural = &asked.plural;
        if asked.query.get("watch").is_some_and(|w| w == "true" || w == "1") {
            let from: u64 =
                asked.query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
            let (sender, receiver) = mpsc::unbounded_channel();
            for (version, kind, key, object) in &state.history {
                if *version > from && key.0 == *plural && selector.matches(object) {
                    let _ = sender.send(line(kind, &selector.view(object)));
                }
            }
            state.watchers.push((plural.clone(), sender, selector));
            let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
            let stream = futures::StreamExt::map(stream, Ok::<_, Infallible>);
            return Response::new(Body::from_stream(stream));
        }
        let items: Vec<_> = state
            .objects
            .iter()
            .filter(|(k, v)| k.0 == *plural && selector.matches(v))
            .map(|(_, v)| selector.view(v))
            .collect();
        let list = json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": {"resourceVersion": state.version.to_string()},
            "items": items,
        });
        json_response(StatusCode::OK, &list)
    }

    /// An object as it is right after it was made.
    fn fresh(&self, state: &mut State, mut object: Value) -> Value {
        state.version += 1;
        let meta = &mut object["metadata"];
        meta["uid"] = json!(format!("uid-{}", state.version));
        // A moment apart from each other, so that age is an order.
        let created = self.now() + jiff::SignedDuration::from_secs(state.version as i64);
        meta["creationTimestamp"] = json!(created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        meta["generation"] = json!(1);
        object
    }

    fn change(&self, state: &mut State, key: Key, old: Value, mut new: Value) {
        if old == new {
            return;
        }
        if old.get("spec") != new.get("spec") {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            new["metadata"]["generation"] = json!(generation);
        }
        let going = new["metadata"].get("deletionTimestamp").is_some();
        let held = new["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        let was_held = old["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if going && was_held && !held {
            self.finish_delete(state, &key);
        } else {
            self.store(state, key, new, "MODIFIED");
        }
    }

    fn begin_delete(&self, state: &mut State, key: &Key) {
        let Some(mut object) = state.objects.get(key).cloned() else { return };
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if held || (key.0 == "pods" && state.slow_pods) {
            if object["metadata"].get("deletionTimestamp").is_none() {
                let now = self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                object["metadata"]["deletionTimestamp"] = json!(now);
                self.store(state, key.clone(), object, "MODIFIED");
            }
        } else {
            self.finish_delete(state, key);
        }
    }

    fn finish_delete(&self, state: &mut State, key: &Key) {
        let Some(mut object) = state.objects.remove(key) else { return };
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let uid = text(&object, "/metadata/uid");
        self.tell(state, key, object, "DELETED");
        let owned: Vec<_> = state
            .objects
            .iter()
            .filter(|(_, o)| {
                let owners = o["metadata"]["ownerReferences"].as_array();
                owners.is_some_and(|all| all.iter().any(|owner| owner["uid"] == json!(uid)))
            })
            .map(|(k, _)| k.clone())
            .collect();
        for key in owned {
            self.begin_delete(state, &key);
        }
    }

    fn store(&self, state: &mut State, key: Key, mut object: Value, kind: &'static str) {
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.objects.insert(key.clone(), object.clone());
        self.tell(state, &key, object, kind);
    }

    fn tell(&self, state: &mut State, key: &Key, object: Value, kind: &'static str) {
        state.watchers.retain(|(plural, sender, selector)| {
            if *plural == key.0 && selector.matches(&object) {
                return sender.send(line(kind, &selector.view(&object))).is_ok();
            }
            !sender.is_closed()
        });
        state.history.push((state.version, kind, key.clone(), object));
        self.0.version.send_replace(state.version);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }
}

impl Selector {
    fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.namespace.as_ref().is_none_or(|ns| *ns == text(object, "/metadata/namespace"))
            && self.name.as_ref().is_none_or(|name| *name == text(object, "/metadata/name"))
            && self.labels.iter().all(|(k, v)| labels[k] == json!(v))
    }

    fn view(&self, object: &Value) -> Value {
        if self.metadata_only {
            return json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": object["metadata"],
            });
        }
        object.clone()
    }
}

pub fn key(plural: &str, namespace: &str, name: &str) -> Key {
    (plural.to_owned(), namespace.to_owned(), name.to_owned())
}

/// The text at a JSON pointer, or nothing.
pub fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let into = into.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            into.remove(key);
        } else {
            merge(into.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    let mut line = serde_json::to_vec(&json!({"type": kind, "object": object})).unwrap();
    line.push(b'\n');
    line.into()
}

fn json_response(code: StatusCode, body: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_vec(body).unwrap()))
        .unwrap()
}

fn asked(uri: &http::Uri, accept: &str) -> Asked {
    let parts: Vec<_> = uri.path().trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        ["api", "v1", rest @ ..] => rest,
        ["apis", _, _, rest @ ..] => rest,
        other => panic!("the fake API server knows no {other:?}"),
    };
    let (namespace, rest) = match rest {
        ["namespaces", ns, rest @ ..] if !rest.is_empty() => (Some((*ns).to_owned()), rest),
        rest => (None, rest),
    };
    let at = |i: usize| rest.get(i).map(|s| (*s).to_owned());
    let query = url::form_urlencoded::parse(uri.query().unwrap_or("").as_bytes());
    Asked {
        plural: at(0).unwrap(),
        namespace,
        name: at(1),
        subresource: at(2),
        query: query.into_owned().collect(),
        metadata_only: accept.contains("PartialObjectMetadata"),
    }
}
