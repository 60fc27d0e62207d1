//! `session_create` and `session_close`.

use super::{SessionView, is_standing, status};
use crate::{
    api::{Session, SessionSpec, agent::SessionMode, attachment::AgentRef},
    domain::reason::Reason,
    gateway::{
        export::ManagementContext,
        management::{
            Desk, FIELD_MANAGER, Hints, Tool,
            answer::{Done, Spoken},
            args::Arguments,
            cluster::{follow, write},
            names::{Name, Namespace, WaitSeconds},
            problem::Problem,
            view::known,
            wait::{Seen, State, Waited, until},
        },
    },
};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The API server adds five characters to a generateName.
const GENERATED: usize = 253 - 5;

/// What to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateArguments {
    /// The namespace of the Agent and of the Session.
    namespace: Namespace,
    /// The Agent; its spec.session.mode must be OnDemand.
    agent: Name,
    /// The Session's name. Default: the Agent's name and a few characters that make it unique.
    name: Option<Name>,
    /// Waits up to so many seconds until everything in it is in service or cannot be without
    /// somebody acting. Default 0: does not wait.
    wait_seconds: Option<WaitSeconds>,
}

impl Arguments for CreateArguments {}

/// What `session_create` gives.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Created {
    /// The Session.
    pub session: SessionView,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
}

impl Spoken for Created {
    fn text(&self) -> String {
        let waited = self.waited.as_ref().map(Waited::text).unwrap_or_default();
        let SessionView { namespace, name, .. } = &self.session;
        format!(
            "Created the Session {namespace}/{name}; end it with session_close.\n{waited}{}",
            self.session.text()
        )
    }
}

/// `session_create`.
pub struct SessionCreate;

impl Tool for SessionCreate {
    const NAME: &'static str = "session_create";
    const TITLE: &'static str = "Create a Session";
    const DESCRIPTION: &'static str = "Creates a Session of an Agent whose spec.session.mode is \
        OnDemand: the Agent's servers start in it, and an agent calls their tools at its endpoint. \
        It lives until session_close. Each call without a name makes another one.";
    const HINTS: Hints = Hints::ADDITIVE_WRITE;
    type Arguments = CreateArguments;
    type Output = Created;

    async fn run(
        desk: &Desk,
        CreateArguments { namespace, agent, name, wait_seconds }: CreateArguments,
        context: &ManagementContext,
    ) -> Result<Done<Created>, Problem> {
        let api: Api<Session> = Api::namespaced(desk.client.clone(), desk.open(&namespace)?);
        let owner = desk.agent(&namespace, &agent).await?;
        if owner.spec.session.mode != SessionMode::OnDemand {
            let cause =
                format!("The Agent {agent} has one Standing Session of its own, named {agent}.");
            return Err(Problem::new(Reason::SessionNotOnDemand, cause).about("agent"));
        }
        let spec = SessionSpec { agent_ref: AgentRef { name: agent.to_string() } };
        let mut session = Session::new("", spec);
        session.metadata.name = name.as_ref().map(ToString::to_string);
        if name.is_none() {
            let cut = &agent[..agent.len().min(GENERATED - 1)];
            let prefix = format!("{}-", cut.trim_end_matches(['-', '.']));
            session.metadata.generate_name = Some(prefix);
        }
        let params =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let doing = format!("Creating a Session of {agent} in {namespace}");
        let mut latest = write(&doing, api.create(&params, &session)).await?;
        let Some(WaitSeconds(seconds)) = wait_seconds.filter(|w| w.0 > 0) else {
            return Ok(Created { session: SessionView::of(&latest), waited: None }.into());
        };
        let (uid, made) = (latest.metadata.uid.clone(), latest.metadata.name.clone());
        let made = made.unwrap_or_default();
        let watch = follow(desk.sessions_of(&namespace)?, &made);
        let limit = Duration::from_secs(seconds.into());
        let what = format!("the Session {made}");
        let waited = until(&what, limit, context, watch, |found| match found {
            Some(Ok(found)) if found.metadata.uid == uid => {
                let seen = status(&found).seen();
                latest = found;
                Some(seen)
            }
            Some(Err(problem)) => Some(Seen::going(problem.message)),
            _ => Some(Seen::ended(State::Gone, "It was deleted meanwhile.")),
        })
        .await?;
        let session = SessionView::of(&latest);
        let problem = match waited.state {
            State::Failed => {
                let reason = session.health.reason.as_deref().and_then(known);
                let problem =
                    Problem::new(reason.unwrap_or(Reason::NotServing), &session.health.message);
                Some(problem.next(session.health.next_step.as_deref().unwrap_or_default()))
            }
            State::Gone => Some(Problem::missing("Session", &namespace, &made)),
            State::Ready | State::Settled | State::TimedOut => None,
        };
        Ok(Done { output: Created { session, waited: Some(waited) }, problem })
    }
}

/// What to close.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CloseArguments {
    /// The Session's namespace.
    namespace: Namespace,
    /// The Session's name.
    name: Name,
    /// Waits up to so many seconds until nothing of it runs. Default 0: does not wait.
    wait_seconds: Option<WaitSeconds>,
}

impl Arguments for CloseArguments {}

/// What `session_close` gives.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Closed {
    /// The Session's namespace.
    pub namespace: String,
    /// The Session's name.
    pub name: String,
    /// Its Agent.
    pub agent: String,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
}

impl Spoken for Closed {
    fn text(&self) -> String {
        let Self { namespace, name, agent, waited } = self;
        let waited = waited.as_ref().map(Waited::text).unwrap_or_default();
        format!(
            "Session {namespace}/{name} of {agent} is being closed; calls in flight finish, then \
             its servers end.\n{waited}"
        )
    }
}

/// `session_close`.
pub struct SessionClose;

impl Tool for SessionClose {
    const NAME: &'static str = "session_close";
    const TITLE: &'static str = "Close a Session";
    const DESCRIPTION: &'static str = "Closes a Session that was made on demand: calls in flight \
        finish within their drainTimeout, then its servers end, and nothing of it remains. A \
        Standing Session is not closed: it goes with its Agent.";
    const HINTS: Hints = Hints { destructive: true, ..Hints::IDEMPOTENT_WRITE };
    type Arguments = CloseArguments;
    type Output = Closed;

    async fn run(
        desk: &Desk,
        CloseArguments { namespace, name, wait_seconds }: CloseArguments,
        context: &ManagementContext,
    ) -> Result<Done<Closed>, Problem> {
        let session = desk.session(&namespace, &name).await?;
        let agent = session.spec.agent_ref.name.clone();
        if is_standing(&session) {
            let cause = format!("{name} is the Standing Session of the Agent {agent}.");
            let next =
                "It stays as long as its Agent: suspend its attachments, or delete the Agent.";
            return Err(Problem::new(Reason::SessionNotOnDemand, cause).next(next).about("name"));
        }
        let uid = session.metadata.uid.clone();
        let params = DeleteParams {
            preconditions: uid
                .clone()
                .map(|uid| Preconditions { uid: Some(uid), ..Preconditions::default() }),
            ..DeleteParams::default()
        };
        let doing = format!("Closing the Session {name} in {namespace}");
        let api = desk.sessions_of(&namespace)?;
        write(&doing, api.delete(&name, &params)).await?;
        let waited = match wait_seconds.filter(|w| w.0 > 0) {
            None => None,
            Some(WaitSeconds(seconds)) => {
                let watch = follow(api, &name);
                let limit = Duration::from_secs(seconds.into());
                let what = format!("the Session {name}");
                let gone = || Seen::ended(State::Gone, "Nothing of it runs any more.");
                let judge = |found: Option<Result<Session, Problem>>| match found {
                    Some(Ok(found)) if found.metadata.uid == uid => {
                        let left = found.status.unwrap_or_default().attachments.len();
                        Some(Seen::going(format!("Draining: {left} generations are not gone yet.")))
                    }
                    Some(Err(_)) => None,
                    _ => Some(gone()),
                };
                Some(until(&what, limit, context, watch, judge).await?)
            }
        };
        let (namespace, name) = (namespace.to_string(), name.to_string());
        Ok(Closed { namespace, name, agent, waited }.into())
    }
}
