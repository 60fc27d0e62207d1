//! The set of attachments that a Session brings itself: shown, replaced in one write, or brought by
//! a new Session.
//!
//! ```text
//!  token ─► right on the Session ─► body ─► set (what can be told here) ─► one write ─► its answer
//! ```
//!
//! The right of the caller is reviewed for exactly the object and the verb that the gateway then
//! writes with, under its own account. All or nothing: what is refused leaves everything as it was.

use super::{
    set::{Opening, Set},
    store,
};
use crate::{
    api::{Session, agent::SessionMode},
    domain::{
        identity::SessionKey,
        lifecycle::{Generation, Origin, State},
        reason::Reason,
    },
    gateway::{
        answer::HttpRefusal,
        auth::{Right, bearer},
        state::Gateway,
    },
};
use axum::{
    Json,
    body::{Body, Bytes, to_bytes},
    extract::Request,
    http::{HeaderMap, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
};
use kube::Resource as _;
use serde::{Deserialize as _, Serialize};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// The longest body: more than any set that the schema takes.
const LONGEST: usize = 1 << 20;
/// How long a body may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The API server adds five characters to a generateName.
const GENERATED: usize = 253 - 5;

/// A Session's own set, and how it does.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    /// As they are written.
    attachments: Value,
    tool_sets: Value,
    /// What became of them, where something has.
    generations: Vec<Fares>,
}

/// How a generation of an own attachment does.
#[derive(Debug, Serialize)]
struct Fares {
    attachment: String,
    generation: i64,
    state: State,
    reason: Reason,
    message: String,
}

impl Shown {
    fn of(session: &Value) -> Self {
        let list = |name: &str| session["spec"].get(name).cloned().unwrap_or_else(|| json!([]));
        let text = |name: &str| session["metadata"][name].as_str().unwrap_or_default().to_owned();
        let entries = session["status"]["attachments"].as_array().into_iter().flatten();
        let entries = entries.filter_map(|e| Generation::deserialize(e).ok());
        let own = entries.filter(|e| e.origin == Origin::Session);
        Self {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            attachments: list("attachments"),
            tool_sets: list("toolSets"),
            generations: own.map(Fares::of).collect(),
        }
    }
}

impl Fares {
    fn of(entry: Generation) -> Self {
        let Generation { attachment, generation, state, reason, message, .. } = entry;
        Self { attachment, generation, state, reason, message }
    }
}

/// `GET …/{session}/attachments`.
pub(in crate::gateway) async fn show(
    gateway: &Gateway,
    key: SessionKey,
    request: Request,
) -> Result<Response, HttpRefusal> {
    permit(gateway, request.headers(), Right::Know, &key).await?;
    let session = store::session(&gateway.client, &key).await?;
    Ok(Json(Shown::of(&session)).into_response())
}

/// `PUT …/{session}/attachments`.
pub(in crate::gateway) async fn replace(
    gateway: &Gateway,
    key: SessionKey,
    request: Request,
) -> Result<Response, HttpRefusal> {
    let (head, body) = request.into_parts();
    let caller = permit(gateway, &head.headers, Right::Replace, &key).await?;
    let set = Set::read(&whole(body).await?)?;
    let present = store::session(&gateway.client, &key).await?;
    let agent = present["spec"]["agentRef"]["name"].as_str().unwrap_or_default();
    if let Some(agent) = store::agent(&gateway.client, &key.namespace, agent).await? {
        set.fits(&agent)?;
    }
    let written = store::replace(&gateway.client, &key, present, &set).await?;
    tracing::info!(session = %key, caller = &*caller, attachments = set.len(), "the set was replaced");
    Ok(Json(Shown::of(&written)).into_response())
}

/// `POST /v1/sessions/{namespace}`.
pub(in crate::gateway) async fn open(
    gateway: &Gateway,
    namespace: String,
    request: Request,
) -> Result<Response, HttpRefusal> {
    let (head, body) = request.into_parts();
    let anywhere = SessionKey { namespace, name: String::new() };
    let caller = permit(gateway, &head.headers, Right::Open, &anywhere).await?;
    let SessionKey { namespace, .. } = anywhere;
    let opening = Opening::read(&whole(body).await?)?;
    let found = store::agent(&gateway.client, &namespace, &opening.agent).await?;
    let agent = found.ok_or_else(|| {
        let message = format!("the Agent {:?} does not exist in {namespace}", opening.agent);
        HttpRefusal::invalid(Reason::AgentNotFound, message)
    })?;
    if agent.spec.session.mode != SessionMode::OnDemand {
        let message = format!("the Agent {:?} has one Standing Session of its own", opening.agent);
        return Err(HttpRefusal::invalid(Reason::SessionNotOnDemand, message));
    }
    opening.set.fits(&agent)?;
    let made = store::create(&gateway.client, &namespace, &session(&opening)).await?;
    let shown = Shown::of(&made);
    let place = format!("/v1/sessions/{namespace}/{}", shown.name);
    tracing::info!(session = %shown.name, namespace, caller = &*caller, "a Session was opened");
    Ok((StatusCode::CREATED, [(LOCATION, place)], Json(shown)).into_response())
}

fn session(opening: &Opening) -> Value {
    let Opening { name, agent, set } = opening;
    let metadata = match name {
        Some(name) => json!({"name": name}),
        None => {
            let cut = &agent[..agent.len().min(GENERATED - 1)];
            json!({"generateName": format!("{}-", cut.trim_end_matches(['-', '.']))})
        }
    };
    let mut session = json!({
        "apiVersion": Session::api_version(&()), "kind": Session::kind(&()),
        "metadata": metadata, "spec": {"agentRef": {"name": agent}},
    });
    set.put_into(&mut session["spec"]);
    session
}

/// The user name of a caller who has the right.
async fn permit(
    gateway: &Gateway,
    headers: &HeaderMap,
    right: Right,
    key: &SessionKey,
) -> Result<Arc<str>, HttpRefusal> {
    let caller = gateway.auth.caller(bearer(headers)?).await?;
    gateway.auth.allow(&caller, right, key).await?;
    let named = right == Right::Open || store::is_name(&key.name);
    if !named || !store::is_name(&key.namespace) {
        return Err(HttpRefusal::not_found());
    }
    Ok(caller.user.clone())
}

async fn whole(body: Body) -> Result<Bytes, HttpRefusal> {
    let refused = |reason, message: String| HttpRefusal::invalid(reason, message);
    match tokio::time::timeout(PATIENCE, to_bytes(body, LONGEST)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => {
            let message = format!("the body broke off, or is over {LONGEST} bytes");
            Err(refused(Reason::MessageTooLarge, message))
        }
        Err(_) => {
            let message = format!("the body did not come within {} s", PATIENCE.as_secs());
            Err(refused(Reason::InvalidRequest, message))
        }
    }
}
