//! `attachments_list` and `attachment_get`, and what the tools that change attachments show.

mod change;

pub use change::{AttachmentApply, AttachmentDelete, AttachmentRetry};

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
    api::{McpAttachment, McpAttachmentSpec, McpAttachmentStatus, Session},
    domain::{
        gate::Permission,
        identity::SessionKey,
        lifecycle::{Generation, State},
        reason::Reason,
    },
    gateway::{catalog::Server, export::ManagementContext},
};
use kube::{Api, core::DeserializeGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write as _;

/// Tools of a server that are shown.
const TOOLS: usize = 256;
/// Generations, over all Sessions, that are shown.
const GENERATIONS: usize = 24;
/// The longest spec that is shown, in bytes of JSON.
const SPEC: usize = 48 * 1024;

/// What to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListArguments {
    /// Only attachments of this namespace. Default: of every namespace that these tools see.
    namespace: Option<Namespace>,
    /// Only attachments that name this Agent. Default: all.
    agent: Option<Name>,
    /// Rows on the page. Default 50.
    limit: Option<Limit>,
    /// The `continue` of the page before. Default: the first page.
    #[serde(rename = "continue")]
    #[schemars(length(max = 4096))]
    from: Option<String>,
}

impl Arguments for ListArguments {}

/// An attachment in a list.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The Agent that it names. Absent where the attachment cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The target in one line: the URL, or the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How many tools the server lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_count: Option<i64>,
    /// How it does.
    pub health: Health,
}

/// A page of attachments.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct List {
    /// The attachments, by namespace and name.
    pub attachments: Vec<Row>,
    /// Whether there is more.
    pub page: More,
}

impl Spoken for List {
    fn text(&self) -> String {
        let mut out = match self.attachments.len() {
            0 => "No attachments.\n".to_owned(),
            count => format!("{count} attachments:\n"),
        };
        for Row { namespace, name, agent, target, tool_count, health } in &self.attachments {
            let _ = write!(out, "- {namespace}/{name}");
            if let Some(agent) = agent {
                let _ = write!(out, " of {agent}");
            }
            if let Some(target) = target {
                let _ = write!(out, " ({})", line(target, 100));
            }
            if let Some(count) = tool_count {
                let _ = write!(out, ", {count} tools");
            }
            let _ = writeln!(out, ": {}", health.row());
        }
        out + &self.page.text()
    }
}

/// `attachments_list`.
pub struct AttachmentsList;

impl Tool for AttachmentsList {
    const NAME: &'static str = "attachments_list";
    const TITLE: &'static str = "List attachments";
    const DESCRIPTION: &'static str = "Lists the McpAttachments (each attaches one MCP server to \
        one Agent) with their health, a page at a time. Use attachment_get for one of them in full.";
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
        let (attachments, page) =
            page(desk, ask, |guarded| row(&guarded, agent.as_deref())).await?;
        Ok(List { attachments, page })
    }
}

fn row(guarded: &DeserializeGuard<McpAttachment>, agent: Option<&str>) -> Option<Row> {
    let (name, broken) = name_of(guarded);
    match (&guarded.0, broken) {
        (Ok(of), _) if agent.is_some_and(|a| of.spec.agent_ref.name != a) => None,
        (Ok(attachment), _) => {
            let health = health(attachment);
            let status = attachment.status.as_ref();
            Some(Row {
                namespace: attachment.metadata.namespace.clone().unwrap_or_default(),
                name,
                agent: Some(attachment.spec.agent_ref.name.clone()),
                target: Some(line(&target(attachment), 200)),
                tool_count: status.and_then(|s| s.tool_count),
                health: Health { message: line(&health.message, 200), ..health },
            })
        }
        // whose it is cannot be read
        (Err(_), _) if agent.is_some() => None,
        (Err(invalid), broken) => Some(Row {
            namespace: invalid.metadata.namespace.clone().unwrap_or_default(),
            name,
            agent: None,
            target: None,
            tool_count: None,
            health: Health::unreadable(&line(&broken.unwrap_or_default(), 200)),
        }),
    }
}

/// The attachment's status.
pub(super) fn status(attachment: &McpAttachment) -> Status<'_> {
    let generation = attachment.metadata.generation;
    match attachment.status.as_ref() {
        Some(McpAttachmentStatus { observed_generation, conditions, .. }) => {
            Status { generation, observed: *observed_generation, conditions }
        }
        None => Status { generation, observed: None, conditions: &[] },
    }
}

/// How the attachment does.
pub(super) fn health(attachment: &McpAttachment) -> Health {
    status(attachment).health()
}

fn target(attachment: &McpAttachment) -> String {
    let McpAttachmentSpec { http, sandbox_stdio, .. } = &attachment.spec;
    let told = attachment.status.as_ref().and_then(|s| s.target.clone());
    told.or_else(|| http.as_ref().map(|h| h.url.clone()))
        .or_else(|| sandbox_stdio.as_ref().map(|s| s.command.clone()))
        .unwrap_or_default()
}

/// Which attachment.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetArguments {
    /// The attachment's namespace.
    namespace: Namespace,
    /// The attachment's name.
    name: Name,
}

impl Arguments for GetArguments {}

/// A tool of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct ToolView {
    /// The server's own name of the tool.
    pub name: String,
    /// What the Agent's ToolSet says of it as it is now.
    pub permission: Permission,
}

/// One generation of the attachment in one Session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct GenerationView {
    /// The Session.
    pub session: String,
    /// The generation, a number of that Session.
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

/// An attachment in full.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct AttachmentView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The Agent that it names.
    pub agent: String,
    /// The server's name in tool ids.
    pub server_name: String,
    /// The target in one line: the URL, or the command.
    pub target: String,
    /// Whether it is taken out of service by spec.suspend.
    pub suspended: bool,
    /// How it does, with cause and next step.
    pub health: Health,
    /// Every condition.
    pub conditions: Vec<ConditionView>,
    /// The generation that was asked for last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_generation: Option<i64>,
    /// The generation that serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_generation: Option<i64>,
    /// How many tools the server lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_count: Option<i64>,
    /// The server's tools and what the policy says of them; absent where no Session serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<ToolView>>,
    /// How many tools are not shown here.
    #[serde(skip_serializing_if = "is_zero")]
    pub tools_omitted: usize,
    /// The MCP revision that was negotiated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// Its generations in the Agent's Sessions, the newest first.
    pub generations: Vec<GenerationView>,
    /// How many generations are not shown here.
    #[serde(skip_serializing_if = "is_zero")]
    pub generations_omitted: usize,
    /// Why there may be generations, or tools, that are not known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// The spec as it stands; Secrets are named in it, never shown. Absent where it is over 48 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Map<String, Value>>")]
    pub spec: Option<Value>,
}

impl AttachmentView {
    fn text(&self) -> String {
        let Self { namespace, name, agent, server_name, target, health, .. } = self;
        let mut out = format!("McpAttachment {namespace}/{name}: {}", health.text());
        let target = line(target, 512);
        let _ = writeln!(out, "Agent: {agent}; server name: {server_name}; target: {target}");
        let number = |n: Option<i64>| n.map_or("none".to_owned(), |n| n.to_string());
        let (desired, active) = (number(self.desired_generation), number(self.active_generation));
        let _ = writeln!(out, "Generation asked for: {desired}; serving: {active}");
        match (&self.tools, self.tool_count) {
            (Some(tools), _) => {
                let named: Vec<_> =
                    tools.iter().map(|t| format!("{} {:?}", t.name, t.permission)).collect();
                let count = tools.len() + self.tools_omitted;
                let _ = writeln!(out, "Tools ({count}): {}", line(&named.join(", "), 16 * 1024));
            }
            (None, Some(count)) => {
                let _ = writeln!(out, "Tools: {count}");
            }
            (None, None) => {}
        }
        for GenerationView { session, generation, state, reason, message, .. } in &self.generations
        {
            let message = line(message, 200);
            let _ = writeln!(
                out,
                "Session {session}, generation {generation}: {state:?}, {reason}. {message}"
            );
        }
        if self.generations_omitted > 0 {
            let _ = writeln!(out, "And {} more generations.", self.generations_omitted);
        }
        if let Some(why) = &self.incomplete {
            let _ = writeln!(out, "There may be more generations: {why}");
        }
        if let Some(spec) = &self.spec {
            let _ = writeln!(out, "Spec: {}", line(&spec.to_string(), 16 * 1024));
        }
        out
    }
}

/// What `attachment_get` gives.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Get {
    /// The attachment.
    pub attachment: AttachmentView,
}

impl Spoken for Get {
    fn text(&self) -> String {
        self.attachment.text()
    }
}

/// `attachment_get`.
pub struct AttachmentGet;

impl Tool for AttachmentGet {
    const NAME: &'static str = "attachment_get";
    const TITLE: &'static str = "Get an attachment";
    const DESCRIPTION: &'static str = "Shows one McpAttachment: whether its MCP server is in \
        service, otherwise the cause and the next step; its generations, its tools with what the \
        Agent's policy says of each, and its spec. Secrets are named, never shown.";
    const HINTS: Hints = Hints::READ;
    type Arguments = GetArguments;
    type Output = Get;

    async fn run(
        desk: &Desk,
        GetArguments { namespace, name }: GetArguments,
        _: &ManagementContext,
    ) -> Result<Get, Problem> {
        let attachment = desk.attachment(&namespace, &name).await?;
        Ok(Get { attachment: desk.view(&attachment).await })
    }
}

impl Desk {
    fn attachments(
        &self,
        namespace: &Namespace,
    ) -> Result<Api<DeserializeGuard<McpAttachment>>, Problem> {
        Ok(Api::namespaced(self.client.clone(), self.open(namespace)?))
    }

    async fn attachment(
        &self,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<McpAttachment, Problem> {
        let api = self.attachments(namespace)?;
        let found = read(&format!("Reading the McpAttachment {name}"), api.get_opt(name)).await?;
        readable(found.ok_or_else(|| Problem::missing("McpAttachment", namespace, name))?)
    }

    /// The attachment with what its Sessions say of it. Where they cannot be listed, it says so.
    async fn view(&self, attachment: &McpAttachment) -> AttachmentView {
        let meta = &attachment.metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        let uid = meta.uid.clone().unwrap_or_default();
        let mut around = Around::default();
        let listed = page::whole(self, &namespace, |guarded: DeserializeGuard<Session>| {
            let session = guarded.0.ok()?;
            let ours = session.spec.agent_ref.name == attachment.spec.agent_ref.name;
            ours.then(|| {
                let entries = session.status.unwrap_or_default().attachments;
                let of = entries.into_iter().filter(|e| e.attachment_uid == uid);
                (session.metadata.name.unwrap_or_default(), of.collect::<Vec<_>>())
            })
        });
        let (sessions, incomplete) = match listed.await {
            Ok(Whole { rows, incomplete }) => (rows, incomplete),
            Err(problem) => (vec![], Some(problem.message)),
        };
        around.incomplete = incomplete;
        for (name, entries) in sessions {
            if around.serving.is_none() {
                let key = SessionKey { namespace: namespace.clone(), name: name.clone() };
                around.serving = self.sessions.get(&key).and_then(|hosted| {
                    let catalog = hosted.catalogs.load();
                    catalog.servers().iter().find(|s| s.handle.attachment_uid == uid).cloned()
                });
            }
            around.generations.extend(entries.into_iter().map(|entry| generation(&name, entry)));
        }
        let newest = |a: &GenerationView, b: &GenerationView| {
            b.generation.cmp(&a.generation).then(a.session.cmp(&b.session))
        };
        around.generations.sort_by(newest);
        view(attachment, around)
    }
}

/// What the Agent's Sessions say of an attachment.
#[derive(Default)]
struct Around {
    generations: Vec<GenerationView>,
    serving: Option<Server>,
    incomplete: Option<String>,
}

fn generation(session: &str, entry: Generation) -> GenerationView {
    GenerationView {
        session: session.to_owned(),
        generation: entry.generation,
        state: entry.state,
        reason: entry.reason,
        message: line(&entry.message, 300),
        since: entry.since.to_string(),
    }
}

fn view(attachment: &McpAttachment, around: Around) -> AttachmentView {
    let Around { mut generations, serving, incomplete } = around;
    let (serving, all) = (serving.as_ref(), generations.len());
    generations.truncate(GENERATIONS);
    let (meta, spec) = (&attachment.metadata, &attachment.spec);
    let name = meta.name.clone().unwrap_or_default();
    let told = attachment.status.clone().unwrap_or_default();
    let tools = serving.map(tools);
    let omitted = serving.map_or(0, |s| s.surface.tools.len().saturating_sub(TOOLS));
    let shown = serde_json::to_value(spec).ok().filter(|s| s.to_string().len() <= SPEC);
    AttachmentView {
        namespace: meta.namespace.clone().unwrap_or_default(),
        agent: spec.agent_ref.name.clone(),
        server_name: spec.server_name.clone().unwrap_or_else(|| name.clone()),
        target: line(&target(attachment), 512),
        suspended: spec.suspend,
        health: health(attachment),
        conditions: status(attachment).all(),
        desired_generation: told.desired_generation,
        active_generation: told.active_generation,
        tool_count: told.tool_count,
        tools,
        tools_omitted: omitted,
        protocol_version: told.protocol_version,
        generations_omitted: all - generations.len(),
        generations,
        incomplete: incomplete.map(|why| line(&why, 512)),
        spec: shown,
        name,
    }
}

fn tools(server: &Server) -> Vec<ToolView> {
    let said = |tool: &str| match &server.policy {
        Some(set) => set.decide(tool).permission,
        None => Permission::Deny,
    };
    let all = server.surface.tools.iter().take(TOOLS);
    all.map(|tool| ToolView { permission: said(&tool.name), name: line(&tool.name, 128) }).collect()
}
