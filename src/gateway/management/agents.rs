//! `agents_list` and `agent_get`.

use super::{
    Desk, Hints, Tool,
    answer::Spoken,
    args::Arguments,
    cluster::{read, readable},
    names::{Limit, Name, Namespace},
    page::{self, More, Whole, page},
    problem::Problem,
    text::{is_zero, line},
    view::{ConditionView, Health, Status, name_of},
};
use crate::{
    api::{
        Agent, AgentStatus, McpAttachment,
        agent::{Environment, SessionMode, ToolSetSpec},
    },
    domain::gate::Permission,
    gateway::export::ManagementContext,
};
use kube::{Api, core::DeserializeGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Named tools of all ToolSets that are shown.
const TOOLS: usize = 256;
/// Attachments of an Agent that are shown.
const ATTACHMENTS: usize = 64;

/// What to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListArguments {
    /// Only Agents of this namespace. Default: of every namespace that these tools see.
    namespace: Option<Namespace>,
    /// Rows on the page. Default 50.
    limit: Option<Limit>,
    /// The `continue` of the page before. Default: the first page.
    #[serde(rename = "continue")]
    #[schemars(length(max = 4096))]
    from: Option<String>,
}

impl Arguments for ListArguments {}

/// An Agent in a list.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Standing: one Session, named like the Agent. OnDemand: Sessions are made with
    /// session_create. Absent where the Agent cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_mode: Option<SessionMode>,
    /// Attachments in service of all that name it, for example `2/3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachments: Option<String>,
    /// How it does.
    pub health: Health,
}

/// A page of Agents.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct List {
    /// The Agents, by namespace and name.
    pub agents: Vec<Row>,
    /// Whether there is more.
    pub page: More,
}

impl Spoken for List {
    fn text(&self) -> String {
        let mut out = match self.agents.len() {
            0 => "No Agents.\n".to_owned(),
            count => format!("{count} Agents:\n"),
        };
        for Row { namespace, name, session_mode, attachments, health } in &self.agents {
            let _ = write!(out, "- {namespace}/{name}");
            if let Some(mode) = session_mode {
                let _ = write!(out, " ({mode:?})");
            }
            if let Some(attachments) = attachments {
                let _ = write!(out, ", attachments {attachments}");
            }
            let _ = writeln!(out, ": {}", health.row());
        }
        out + &self.page.text()
    }
}

/// `agents_list`.
pub struct AgentsList;

impl Tool for AgentsList {
    const NAME: &'static str = "agents_list";
    const TITLE: &'static str = "List Agents";
    const DESCRIPTION: &'static str = "Lists the Agents (which MCP servers' tools an agent may use, \
        and how) with their health, a page at a time. Use agent_get for one of them in full.";
    const HINTS: Hints = Hints::READ;
    type Arguments = ListArguments;
    type Output = List;

    async fn run(
        desk: &Desk,
        arguments: ListArguments,
        _: &ManagementContext,
    ) -> Result<List, Problem> {
        let ListArguments { namespace, limit, from } = &arguments;
        let ask = page::Ask { namespace: namespace.as_ref(), limit: *limit, from: from.as_deref() };
        let (agents, page) = page(desk, ask, |agent| Some(row(&agent))).await?;
        Ok(List { agents, page })
    }
}

fn row(guarded: &DeserializeGuard<Agent>) -> Row {
    let (name, broken) = name_of(guarded);
    match (&guarded.0, broken) {
        (Ok(agent), _) => Row {
            namespace: agent.metadata.namespace.clone().unwrap_or_default(),
            name,
            session_mode: Some(agent.spec.session.mode),
            attachments: agent.status.as_ref().and_then(|s| s.attachments.clone()),
            health: Health { message: line(&health(agent).message, 200), ..health(agent) },
        },
        (Err(invalid), broken) => Row {
            namespace: invalid.metadata.namespace.clone().unwrap_or_default(),
            name,
            session_mode: None,
            attachments: None,
            health: Health::unreadable(&line(&broken.unwrap_or_default(), 200)),
        },
    }
}

fn status(agent: &Agent) -> Option<Status<'_>> {
    let AgentStatus { observed_generation, conditions, .. } = agent.status.as_ref()?;
    Some(Status {
        generation: agent.metadata.generation,
        observed: *observed_generation,
        conditions,
    })
}

fn health(agent: &Agent) -> Health {
    let none = Status { generation: None, observed: None, conditions: &[] };
    status(agent).unwrap_or(none).health()
}

/// Which Agent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetArguments {
    /// The Agent's namespace.
    namespace: Namespace,
    /// The Agent's name.
    name: Name,
}

impl Arguments for GetArguments {}

/// One tool's rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Rule {
    /// The server's own name of the tool.
    pub name: String,
    /// Allow or Deny.
    pub permission: Permission,
}

/// The policy over one attachment's tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ToolSetView {
    /// The attachment's name.
    pub attachment: String,
    /// For tools that are not named.
    pub default_permission: Permission,
    /// The named tools.
    pub tools: Vec<Rule>,
    /// How many named tools are not shown here.
    #[serde(skip_serializing_if = "is_zero")]
    pub tools_omitted: usize,
}

/// One tool that /v1/mcp shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ExportView {
    /// The name that clients see.
    pub name: String,
    /// The attachment.
    pub attachment: String,
    /// The server's own name of the tool.
    pub tool: String,
}

/// An attachment that names the Agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct AttachmentHealth {
    /// Its name.
    pub name: String,
    /// Whether it is in service.
    pub ready: bool,
    /// Why, and the cause.
    pub message: String,
}

/// An Agent in full.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct AgentView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How its Sessions come to be.
    pub session_mode: SessionMode,
    /// Its Standing Session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How it does.
    pub health: Health,
    /// Every condition.
    pub conditions: Vec<ConditionView>,
    /// The image that its sandboxed servers run in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What may be used of which attachment.
    pub tool_sets: Vec<ToolSetView>,
    /// What /v1/mcp shows of it.
    pub exports: Vec<ExportView>,
    /// The attachments that name it.
    pub attachments: Vec<AttachmentHealth>,
    /// How many attachments are not shown here: ask attachments_list.
    #[serde(skip_serializing_if = "is_zero")]
    pub attachments_omitted: usize,
    /// Why there may be attachments that are not known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// What `agent_get` gives.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Get {
    /// The Agent.
    pub agent: AgentView,
}

impl Spoken for Get {
    fn text(&self) -> String {
        let AgentView { namespace, name, session_mode, session, health, .. } = &self.agent;
        let mut out = format!("Agent {namespace}/{name} ({session_mode:?}): {}", health.text());
        if let Some(session) = session {
            let _ = writeln!(out, "Session: {session}");
        }
        if let Some(image) = &self.agent.image {
            let _ = writeln!(out, "Image: {}", line(image, 512));
        }
        for set in &self.agent.tool_sets {
            let named: Vec<_> =
                set.tools.iter().map(|t| format!("{} {:?}", t.name, t.permission)).collect();
            let named = if named.is_empty() { "none named".to_owned() } else { named.join(", ") };
            let (of, rest) = (&set.attachment, set.default_permission);
            let _ = writeln!(out, "ToolSet {of}: {}; other tools {rest:?}", line(&named, 400));
        }
        for ExportView { name, attachment, tool } in &self.agent.exports {
            let _ = writeln!(out, "Export {name}: {attachment}'s {}", line(tool, 128));
        }
        for AttachmentHealth { name, ready, message } in &self.agent.attachments {
            let ready = if *ready { "Ready" } else { "not Ready" };
            let _ = writeln!(out, "Attachment {name}: {ready}, {}", line(message, 200));
        }
        if self.agent.attachments_omitted > 0 {
            let _ = writeln!(out, "And {} more attachments.", self.agent.attachments_omitted);
        }
        if let Some(why) = &self.agent.incomplete {
            let _ = writeln!(out, "There may be more attachments: {why}");
        }
        out
    }
}

/// `agent_get`.
pub struct AgentGet;

impl Tool for AgentGet {
    const NAME: &'static str = "agent_get";
    const TITLE: &'static str = "Get an Agent";
    const DESCRIPTION: &'static str = "Shows one Agent: its health with cause and next step, which \
        tools of which attachment its policy allows, what it exports, and its attachments.";
    const HINTS: Hints = Hints::READ;
    type Arguments = GetArguments;
    type Output = Get;

    async fn run(
        desk: &Desk,
        GetArguments { namespace, name }: GetArguments,
        _: &ManagementContext,
    ) -> Result<Get, Problem> {
        let agent = desk.agent(&namespace, &name).await?;
        let of = |guarded: DeserializeGuard<McpAttachment>| {
            let attachment = guarded.0.ok().filter(|a| a.spec.agent_ref.name == *name)?;
            let health = super::attachments::health(&attachment);
            let message = line(&health.said(), 300);
            let name = attachment.metadata.name.unwrap_or_default();
            Some(AttachmentHealth { name, ready: health.ready, message })
        };
        let Whole { rows: mut attachments, incomplete } = page::whole(desk, &namespace, of).await?;
        let attachments_omitted = attachments.len().saturating_sub(ATTACHMENTS);
        attachments.truncate(ATTACHMENTS);
        let agent = AgentView {
            namespace: namespace.to_string(),
            name: name.to_string(),
            session_mode: agent.spec.session.mode,
            session: agent.status.as_ref().and_then(|s| s.session.clone()),
            health: health(&agent),
            conditions: status(&agent).map(|s| s.all()).unwrap_or_default(),
            image: agent.spec.environment.map(|Environment { image, .. }| image),
            tool_sets: tool_sets(agent.spec.tool_sets),
            exports: agent
                .spec
                .exports
                .into_iter()
                .map(|e| ExportView { name: e.name, attachment: e.attachment, tool: e.tool })
                .collect(),
            attachments,
            attachments_omitted,
            incomplete,
        };
        Ok(Get { agent })
    }
}

fn tool_sets(all: Vec<ToolSetSpec>) -> Vec<ToolSetView> {
    let mut left = TOOLS;
    let view = |ToolSetSpec { attachment, default_permission, tools }: ToolSetSpec| {
        let (count, take) = (tools.len(), tools.len().min(left));
        left -= take;
        let rule = |t: crate::api::agent::ToolRule| Rule { name: t.name, permission: t.permission };
        let tools = tools.into_iter().take(take).map(rule).collect();
        ToolSetView { attachment, default_permission, tools, tools_omitted: count - take }
    };
    all.into_iter().map(view).collect()
}

impl Desk {
    /// The Agent.
    pub(super) async fn agent(&self, namespace: &Namespace, name: &Name) -> Result<Agent, Problem> {
        let api: Api<DeserializeGuard<Agent>> =
            Api::namespaced(self.client.clone(), self.open(namespace)?);
        let found = read(&format!("Reading the Agent {name}"), api.get_opt(name)).await?;
        readable(found.ok_or_else(|| Problem::missing("Agent", namespace, name))?)
    }
}
