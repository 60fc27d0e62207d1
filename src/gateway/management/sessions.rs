//! `sessions_list` and `session_get`, and what the tools that make and close Sessions show.

mod change;

pub use change::{SessionClose, SessionCreate};

use super::{
    Desk, Hints, Tool,
    answer::Spoken,
    args::Arguments,
    cluster::{read, readable},
    names::{Limit, Name, Namespace},
    page::{self, More, page},
    problem::Problem,
    text::{is_zero, line},
    view::{ConditionView, Health, Status, name_of},
};
use crate::{
    api::{
        Session, SessionStatus,
        session::{Host, Phase},
    },
    domain::{
        lifecycle::{Generation, Origin, State},
        reason::Reason,
    },
    gateway::export::ManagementContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, core::DeserializeGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Generations of a Session that are shown.
const GENERATIONS: usize = 96;

/// What to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListArguments {
    /// Only Sessions of this namespace. Default: of every namespace that these tools see.
    namespace: Option<Namespace>,
    /// Only Sessions of this Agent. Default: all.
    agent: Option<Name>,
    /// Rows on the page. Default 50.
    limit: Option<Limit>,
    /// The `continue` of the page before. Default: the first page.
    #[serde(rename = "continue")]
    #[schemars(length(max = 4096))]
    from: Option<String>,
}

impl Arguments for ListArguments {}

/// A Session in a list.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its Agent. Absent where the Session cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Whether the operator made it and keeps it; otherwise a user did.
    pub standing: bool,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Attachments in service of all, for example `2/3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachments: Option<String>,
    /// How it does.
    pub health: Health,
}

/// A page of Sessions.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct List {
    /// The Sessions, by namespace and name.
    pub sessions: Vec<Row>,
    /// Whether there is more.
    pub page: More,
}

impl Spoken for List {
    fn text(&self) -> String {
        let mut out = match self.sessions.len() {
            0 => "No Sessions.\n".to_owned(),
            count => format!("{count} Sessions:\n"),
        };
        for Row { namespace, name, agent, standing, phase, attachments, health } in &self.sessions {
            let _ = write!(out, "- {namespace}/{name}");
            if let Some(agent) = agent {
                let _ = write!(out, " of {agent}");
            }
            if *standing {
                out += " (standing)";
            }
            if let Some(phase) = phase {
                let _ = write!(out, ", {phase:?}");
            }
            if let Some(attachments) = attachments {
                let _ = write!(out, ", attachments {attachments}");
            }
            let _ = writeln!(out, ": {}", health.row());
        }
        out + &self.page.text()
    }
}

/// `sessions_list`.
pub struct SessionsList;

impl Tool for SessionsList {
    const NAME: &'static str = "sessions_list";
    const TITLE: &'static str = "List Sessions";
    const DESCRIPTION: &'static str = "Lists the Sessions (where an Agent's servers are attached \
        and called) with their health, a page at a time. Use session_get for one of them in full.";
    const HINTS: Hints = Hints::READ;
    type Arguments = ListArguments;
    type Output = List;

    async fn run(
        desk: &Desk,
        arguments: ListArguments,
        _: &ManagementContext,
    ) -> Result<List, Problem> {
        let ListArguments { namespace, agent, limit, from } = &arguments;
        let ask = page::Ask { namespace: namespace.as_ref(), limit: *limit, from: from.as_deref() };
        let (sessions, page) = page(desk, ask, |guarded| row(&guarded, agent.as_deref())).await?;
        Ok(List { sessions, page })
    }
}

fn row(guarded: &DeserializeGuard<Session>, agent: Option<&str>) -> Option<Row> {
    let (name, broken) = name_of(guarded);
    match (&guarded.0, broken) {
        (Ok(of), _) if agent.is_some_and(|a| of.spec.agent_ref.name != a) => None,
        (Ok(session), _) => {
            let health = health(session);
            let status = session.status.as_ref();
            Some(Row {
                namespace: session.metadata.namespace.clone().unwrap_or_default(),
                name,
                agent: Some(session.spec.agent_ref.name.clone()),
                standing: is_standing(session),
                phase: status.and_then(|s| s.phase),
                attachments: status.and_then(|s| s.summary.clone()),
                health: Health { message: line(&health.message, 200), ..health },
            })
        }
        // whose it is cannot be read
        (Err(_), _) if agent.is_some() => None,
        (Err(invalid), broken) => Some(Row {
            namespace: invalid.metadata.namespace.clone().unwrap_or_default(),
            name,
            agent: None,
            standing: standing_of(&invalid.metadata).is_some(),
            phase: None,
            attachments: None,
            health: Health::unreadable(&line(&broken.unwrap_or_default(), 200)),
        }),
    }
}

/// Whether the operator keeps it.
fn is_standing(session: &Session) -> bool {
    standing_of(&session.metadata).is_some()
}

/// The Agent whose Standing Session it is: its controller.
fn standing_of(meta: &ObjectMeta) -> Option<&str> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    let agent = owners.iter().find(|o| o.kind == "Agent" && o.controller == Some(true));
    agent.map(|owner| owner.name.as_str())
}

fn status(session: &Session) -> Status<'_> {
    let generation = session.metadata.generation;
    match session.status.as_ref() {
        Some(SessionStatus { observed_generation, conditions, .. }) => {
            Status { generation, observed: *observed_generation, conditions }
        }
        None => Status { generation, observed: None, conditions: &[] },
    }
}

fn health(session: &Session) -> Health {
    status(session).health()
}

/// Which Session.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetArguments {
    /// The Session's namespace.
    namespace: Namespace,
    /// The Session's name. A Standing Session is named like its Agent.
    name: Name,
}

impl Arguments for GetArguments {}

/// One generation of one attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct GenerationView {
    /// The attachment.
    pub attachment: String,
    /// Who brought it: the Agent, or the Session itself.
    pub origin: Origin,
    /// The generation, a number that the Session never uses twice.
    pub generation: i64,
    /// Requested, Realizing, Active, Draining or Failed.
    pub state: State,
    /// Why, one word of the documented list of reasons.
    #[schemars(with = "String")]
    pub reason: Reason,
    /// The cause.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when it is in that state.
    pub since: String,
}

/// A Session in full.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct SessionView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its Agent.
    pub agent: String,
    /// Whether the operator made it and keeps it; otherwise a user did.
    pub standing: bool,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Attachments in service of all, for example `2/3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachments: Option<String>,
    /// How it does.
    pub health: Health,
    /// Every condition.
    pub conditions: Vec<ConditionView>,
    /// The gateway that serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Where an agent calls its tools, below the gateway's address.
    pub endpoint: String,
    /// The revision of the Agent's environment that it froze.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_revision: Option<i64>,
    /// The image of that revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What runs in it, by attachment, the newest generation first.
    pub generations: Vec<GenerationView>,
    /// How many generations are not shown here.
    #[serde(skip_serializing_if = "is_zero")]
    pub generations_omitted: usize,
}

impl SessionView {
    fn of(session: &Session) -> Self {
        let meta = &session.metadata;
        let (namespace, name) =
            (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        let told = session.status.clone().unwrap_or_default();
        let mut entries = told.attachments;
        entries
            .sort_by(|a, b| a.attachment.cmp(&b.attachment).then(b.generation.cmp(&a.generation)));
        let generations_omitted = entries.len().saturating_sub(GENERATIONS);
        Self {
            endpoint: format!("/v1/sessions/{namespace}/{name}/mcp"),
            agent: session.spec.agent_ref.name.clone(),
            standing: is_standing(session),
            phase: told.phase,
            attachments: told.summary,
            health: health(session),
            conditions: status(session).all(),
            gateway: told.host.map(|Host { gateway, .. }| gateway),
            environment_revision: told.environment.as_ref().map(|e| e.revision),
            image: told.environment.map(|e| line(&e.spec.image, 512)),
            generations: entries.into_iter().take(GENERATIONS).map(generation).collect(),
            generations_omitted,
            namespace,
            name,
        }
    }

    fn text(&self) -> String {
        let Self { namespace, name, agent, standing, health, endpoint, .. } = self;
        let kind = if *standing { "standing" } else { "on demand" };
        let mut out =
            format!("Session {namespace}/{name} of Agent {agent} ({kind}): {}", health.text());
        if let Some(phase) = self.phase {
            let gateway = self.gateway.as_deref().unwrap_or("none");
            let _ = writeln!(out, "Phase: {phase:?}; gateway: {gateway}");
        }
        let _ = writeln!(out, "Endpoint: {endpoint}");
        if let (Some(revision), Some(image)) = (self.environment_revision, &self.image) {
            let _ = writeln!(out, "Environment: revision {revision}, image {image}");
        }
        if let Some(attachments) = &self.attachments {
            let _ = writeln!(out, "Attachments in service: {attachments}");
        }
        for GenerationView { attachment, generation, state, reason, message, .. } in
            &self.generations
        {
            let message = line(message, 200);
            let _ = writeln!(
                out,
                "- {attachment}, generation {generation}: {state:?}, {reason}. {message}"
            );
        }
        if self.generations_omitted > 0 {
            let _ = writeln!(out, "And {} more generations.", self.generations_omitted);
        }
        out
    }
}

fn generation(entry: Generation) -> GenerationView {
    GenerationView {
        attachment: entry.attachment,
        origin: entry.origin,
        generation: entry.generation,
        state: entry.state,
        reason: entry.reason,
        message: line(&entry.message, 300),
        since: entry.since.to_string(),
    }
}

/// What `session_get` gives.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Get {
    /// The Session.
    pub session: SessionView,
}

impl Spoken for Get {
    fn text(&self) -> String {
        self.session.text()
    }
}

/// `session_get`.
pub struct SessionGet;

impl Tool for SessionGet {
    const NAME: &'static str = "session_get";
    const TITLE: &'static str = "Get a Session";
    const DESCRIPTION: &'static str = "Shows one Session: its health with cause and next step, the \
        gateway that serves it, its endpoint, and what runs in it.";
    const HINTS: Hints = Hints::READ;
    type Arguments = GetArguments;
    type Output = Get;

    async fn run(
        desk: &Desk,
        GetArguments { namespace, name }: GetArguments,
        _: &ManagementContext,
    ) -> Result<Get, Problem> {
        let session = desk.session(&namespace, &name).await?;
        Ok(Get { session: SessionView::of(&session) })
    }
}

impl Desk {
    fn sessions_of(
        &self,
        namespace: &Namespace,
    ) -> Result<Api<DeserializeGuard<Session>>, Problem> {
        Ok(Api::namespaced(self.client.clone(), self.open(namespace)?))
    }

    /// The Session.
    pub(super) async fn session(
        &self,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<Session, Problem> {
        let api = self.sessions_of(namespace)?;
        let found = read(&format!("Reading the Session {name}"), api.get_opt(name)).await?;
        readable(found.ok_or_else(|| Problem::missing("Session", namespace, name))?)
    }
}
