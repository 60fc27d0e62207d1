//! `session_create` and `session_close`.

use super::{SessionView, health, standing_of, status};
use crate::{
    api::{Session, SessionSpec, agent::SessionMode},
    domain::reason::Reason,
    gateway::{
        export::ManagementContext,
        management::{
            Desk, FIELD_MANAGER, Hints, Tool,
            answer::{ErrorBody, Spoken},
            args::Arguments,
            cluster::{create, follow, read, write},
            names::{Name, Namespace, WaitSeconds},
            problem::Problem,
            wait::{Seen, State, Waited, until},
            written::{self, After, Written, limit, settled},
        },
    },
};
use kube::{Resource as _, api::PostParams};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// What was written.
    pub written: Written,
    /// The Session. Absent where it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionView>,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
    /// What went wrong after the write, which stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<ErrorBody>,
}

impl Spoken for Created {
    fn text(&self) -> String {
        let Self { written, session, waited, problem } = self;
        let after = written::text(Some(written), waited.as_ref(), problem.as_ref());
        let shown = session.as_ref().map(SessionView::text).unwrap_or_default();
        let Written { namespace, name, .. } = written;
        format!(
            "Created the Session {namespace}/{name}; end it with session_close.\n{after}{shown}"
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
    ) -> Result<Created, Problem> {
        let owner = desk.agent(&namespace, &agent).await?;
        if owner.spec.session.mode != SessionMode::OnDemand {
            let cause =
                format!("The Agent {agent} has one Standing Session of its own, named {agent}.");
            return Err(Problem::new(Reason::SessionNotOnDemand, cause).about("agent"));
        }
        let spec = SessionSpec::of(agent.to_string());
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
        let request = create(&desk.client, &namespace, &params, &session);
        let made = write(&doing, request).await?;
        let written = Written::of(made.meta());
        let watch = follow(desk.sessions_of(&namespace)?, &written.name);
        let judge = |session: &Session| status(session).seen();
        let (latest, after) =
            settled(made, limit(wait_seconds), context, watch, judge, health).await?;
        let session = latest.as_ref().map(SessionView::of);
        let (waited, problem) = after.told();
        Ok(Created { written, session, waited, problem })
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
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion before.
    pub resource_version: String,
    /// Its Agent. Absent where it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
    /// What went wrong after the write, which stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<ErrorBody>,
}

impl Spoken for Closed {
    fn text(&self) -> String {
        let Self { namespace, name, uid, agent, waited, problem, .. } = self;
        let of = agent.as_ref().map(|agent| format!(" of {agent}")).unwrap_or_default();
        let after = written::text(None, waited.as_ref(), problem.as_ref());
        format!(
            "Session {namespace}/{name}{of} (uid {uid}) is being closed; calls in flight finish, \
             then its servers end.\n{after}"
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
    ) -> Result<Closed, Problem> {
        let api = desk.sessions_of(&namespace)?;
        let doing = format!("Closing the Session {name} in {namespace}");
        let found = read(&doing, api.get_opt(&name)).await?;
        let found = found.ok_or_else(|| Problem::missing("Session", &namespace, &name))?;
        // what cannot be read can still go, if it is nobody's Standing Session
        if let Some(owner) = standing_of(found.meta()) {
            let cause = format!("{name} is the Standing Session of the Agent {owner}.");
            let next =
                "It stays as long as its Agent: suspend its attachments, or delete the Agent.";
            return Err(Problem::new(Reason::SessionNotOnDemand, cause).next(next).about("name"));
        }
        let closed = Written::of(found.meta());
        let agent = found.0.ok().map(|session| session.spec.agent_ref.name);
        write(&doing, api.delete(&name, &closed.deletion())).await?;
        let after = match limit(wait_seconds) {
            None => After::default(),
            Some(limit) => {
                let (watch, what) = (follow(api, &name), format!("the Session {name}"));
                let judge = |found: Option<Result<Session, Problem>>| match found {
                    Some(Ok(found)) if found.metadata.uid.as_ref() == Some(&closed.uid) => {
                        let left = found.status.unwrap_or_default().attachments.len();
                        Some(Seen::going(format!("Draining: {left} generations are not gone yet.")))
                    }
                    Some(Err(problem)) => Some(Seen::going(problem.message)),
                    _ => Some(Seen::ended(State::Gone, "Nothing of it runs any more.")),
                };
                After::of(until(&what, limit, context, watch, judge).await)?
            }
        };
        let (waited, problem) = after.told();
        let Written { namespace, name, uid, resource_version } = closed;
        Ok(Closed { namespace, name, uid, resource_version, agent, waited, problem })
    }
}
