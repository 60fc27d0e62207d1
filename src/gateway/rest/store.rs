//! Reading and writing Sessions for the REST routes, under the gateway's own account, whole objects
//! as they are stored: what this version does not know of stays.

use super::set::Set;
use crate::{
    api::{Agent, Session},
    domain::{identity::SessionKey, reason::Reason},
    gateway::answer::HttpRefusal,
};
use kube::{
    Client, Resource,
    api::PostParams,
    core::{Request, Status},
};
use serde_json::Value;
use std::time::Duration;

/// How long one request to the API server may take.
const LIMIT: Duration = Duration::from_secs(10);
/// So often a write is tried that somebody else was faster than.
const TRIES: usize = 8;
/// Who sets the fields that these routes set.
const FIELD_MANAGER: &str = "awaken-gateway";
/// The longest message of the API server that is passed on, in bytes.
const LONGEST: usize = 2048;

/// Whether an object may have this name: it becomes part of a path.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let (first, last) = (name.bytes().next(), name.bytes().last());
    name.len() <= 253 && name.bytes().all(plain) && ends(first) && ends(last)
}

/// The Session as it is stored.
pub(super) async fn session(client: &Client, key: &SessionKey) -> Result<Value, HttpRefusal> {
    let path = Session::url_path(&(), Some(&key.namespace));
    let request = Request::new(path).get(&key.name, &kube::api::GetParams::default());
    match send(client, request).await {
        Ok(session) => Ok(session),
        Err(Failed::Said(status)) if status.code == 404 => Err(HttpRefusal::not_found()),
        Err(other) => Err(other.read()),
    }
}

/// The Agent, if it is there and can be read.
pub(super) async fn agent(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Agent>, HttpRefusal> {
    let path = Agent::url_path(&(), Some(namespace));
    let request = Request::new(path).get(name, &kube::api::GetParams::default());
    match send(client, request).await {
        Ok(agent) => serde_json::from_value(agent).map(Some).map_err(|problem| {
            let message = format!("the Agent {name:?} cannot be read: {problem}");
            HttpRefusal::invalid(Reason::UnreadableObject, message)
        }),
        Err(Failed::Said(status)) if status.code == 404 => Ok(None),
        Err(other) => Err(other.read()),
    }
}

/// Creates a Session.
pub(super) async fn create(
    client: &Client,
    namespace: &str,
    session: &Value,
) -> Result<Value, HttpRefusal> {
    let path = Session::url_path(&(), Some(namespace));
    let request = Request::new(path).create(&params(), session.to_string().into_bytes());
    send(client, request).await.map_err(Failed::written)
}

/// Gives a Session another set, in one write. What others write meanwhile is kept.
pub(super) async fn replace(
    client: &Client,
    key: &SessionKey,
    mut present: Value,
    set: &Set,
) -> Result<Value, HttpRefusal> {
    let uid = present["metadata"]["uid"].clone();
    for _ in 0..TRIES {
        set.put_into(&mut present["spec"]);
        let path = Session::url_path(&(), Some(&key.namespace));
        let body = present.to_string().into_bytes();
        match send(client, Request::new(path).replace(&key.name, &params(), body)).await {
            Ok(written) => return Ok(written),
            Err(Failed::Said(status)) if status.code == 404 => return Err(HttpRefusal::not_found()),
            Err(Failed::Said(status)) if status.code == 409 => {
                present = session(client, key).await?;
                if present["metadata"]["uid"] != uid {
                    return Err(HttpRefusal::not_found());
                }
            }
            Err(other) => return Err(other.written()),
        }
    }
    let message = format!("{key} is being written by others all the time; nothing was changed");
    Err(HttpRefusal::unavailable(Reason::FieldConflict, message))
}

fn params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// Why there is no object.
enum Failed {
    /// The API server said so.
    Said(Box<Status>),
    /// It was not asked.
    Unsent(String),
    /// It did not answer.
    Silent(String),
}

impl Failed {
    /// As the answer to a request that changed nothing.
    fn read(self) -> HttpRefusal {
        let why = match self {
            Self::Said(status) => format!("{} {}", status.code, shown(&status.message)),
            Self::Unsent(why) | Self::Silent(why) => why,
        };
        tracing::warn!(why, "the API server does not answer a REST route");
        let message = "the API server does not answer; nothing was changed";
        HttpRefusal::internal(Reason::ApiServerUnavailable, message)
    }

    /// As the answer to a request that was to change something.
    fn written(self) -> HttpRefusal {
        let status = match self {
            Self::Silent(why) => {
                tracing::warn!(why, "a write without an answer");
                let message = "the API server did not answer the write; read the Session before \
                               you repeat it";
                return HttpRefusal::internal(Reason::OutcomeUnknown, message);
            }
            Self::Unsent(_) => return self.read(),
            Self::Said(status) => status,
        };
        let said = shown(&status.message);
        // an account that lacks a right "cannot" do what it asked; admission and quota say otherwise
        let lacks_right = status.code == 403 && said.contains(" cannot ");
        match status.code {
            // of a create: what is there already
            409 => HttpRefusal::invalid(Reason::AlreadyExists, said),
            403 if !lacks_right => HttpRefusal::invalid(Reason::ObjectRefused, said),
            400 | 404 | 413 | 422 => HttpRefusal::invalid(Reason::InvalidRequest, said),
            _ => Self::Said(status).read(),
        }
    }
}

async fn send(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<Value, Failed> {
    let request = request.map_err(|error| Failed::Unsent(error.to_string()))?;
    match tokio::time::timeout(LIMIT, client.request::<Value>(request)).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(kube::Error::Api(status))) => Err(Failed::Said(status)),
        Ok(Err(error)) => Err(Failed::Silent(error.to_string())),
        Err(_) => Err(Failed::Silent(format!("no answer within {} s", LIMIT.as_secs()))),
    }
}

/// The message of the API server in one line, cut.
fn shown(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().find(|(at, _)| *at >= LONGEST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
