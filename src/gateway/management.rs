//! The management tools of `/v1/mcp`: Agents, attachments, Sessions and traces, as a model reads
//! and changes them.
//!
//! ```text
//!  arguments → args (checked while read) → tool → cluster (API server, as the account) → answer
//! ```
//!
//! A tool decides nothing about who may: the API server does, since every request is made as the
//! account that the installer named, and only in the namespaces that the installation lists. What
//! the caller can mend is a result with `isError`. No tool reads a Secret. Gate, journal and
//! metrics are around this and not in it.

mod account;
mod agents;
mod answer;
mod args;
mod attachments;
mod cluster;
mod names;
mod page;
mod problem;
mod schema;
mod sessions;
mod text;
mod trace;
mod view;
mod wait;
mod written;

pub use account::{Account, AccountError};
pub use answer::LONGEST;

use super::{
    config::McpConfig,
    export::{Management, ManagementContext, ManagementError},
    hosted::Sessions,
};
use crate::{
    domain::{Clock, reason::Reason},
    journal::Read,
    mcp::RawJson,
};
use answer::Spoken;
use args::Arguments;
use futures::future::BoxFuture;
use kube::Client;
use names::Namespace;
use problem::Problem;
use schemars::JsonSchema;
use serde::Serialize;
use std::{collections::BTreeSet, sync::Arc};

/// Who sets the fields that these tools set.
pub const FIELD_MANAGER: &str = "awaken-mcp";

/// What the installer says of the management tools.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The account that they act under.
    pub account: Account,
    /// The namespaces that they see and act in.
    pub namespaces: BTreeSet<String>,
    /// The tools that are exported, by name.
    pub exports: BTreeSet<String>,
}

impl Settings {
    /// From the route's settings; none when no management tool is exported.
    ///
    /// # Errors
    /// Tools without an account to act under, or with one that is no service account.
    pub fn of(config: &McpConfig) -> Result<Option<Self>, String> {
        if config.exports.is_empty() {
            return Ok(None);
        }
        let missing = || "--mcp-export needs --mcp-management-account".to_owned();
        let account = config.management_account.as_ref().ok_or_else(missing)?;
        Ok(Some(Self {
            account: account.parse().map_err(|error: AccountError| error.to_string())?,
            namespaces: config.management_namespaces.iter().cloned().collect(),
            exports: config.exports.iter().cloned().collect(),
        }))
    }
}

/// What the tools work with.
#[derive(Clone)]
pub struct Parts {
    /// The gateway's own way to the API server.
    pub client: Client,
    /// The journal, to read.
    pub journal: Arc<dyn Read>,
    /// The Sessions that are served here.
    pub sessions: Sessions,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// What a client may think of a tool before it calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hints {
    /// It changes nothing.
    read_only: bool,
    /// It may take away what was there.
    destructive: bool,
    /// The same call once more has no further effect.
    idempotent: bool,
    /// It makes the platform reach servers of others.
    open_world: bool,
}

impl Hints {
    const READ: Self =
        Self { read_only: true, destructive: false, idempotent: true, open_world: false };
    const IDEMPOTENT_WRITE: Self = Self { read_only: false, ..Self::READ };
    const ADDITIVE_WRITE: Self =
        Self { idempotent: false, open_world: true, ..Self::IDEMPOTENT_WRITE };
}

/// A management tool.
trait Tool {
    const NAME: &'static str;
    const TITLE: &'static str;
    const DESCRIPTION: &'static str;
    const HINTS: Hints;
    type Arguments: Arguments + JsonSchema + Send;
    type Output: Serialize + JsonSchema + Spoken + Send;

    /// Does it. A tool that changes something checks `context.cancel` in its waits alone, and gives
    /// an output whenever its write happened.
    fn run(
        desk: &Desk,
        arguments: Self::Arguments,
        context: &ManagementContext,
    ) -> impl Future<Output = Result<Self::Output, Problem>> + Send;
}

/// Where the tools work.
struct Desk {
    /// To the API server, as the account.
    client: Client,
    /// To the API server, as the gateway itself.
    own: Client,
    account: Account,
    namespaces: BTreeSet<String>,
    journal: Arc<dyn Read>,
    sessions: Sessions,
    clock: Arc<dyn Clock>,
}

impl Desk {
    /// The namespace, if it is open to these tools.
    fn open<'a>(&self, namespace: &'a Namespace) -> Result<&'a str, Problem> {
        if self.namespaces.contains(&**namespace) {
            return Ok(namespace);
        }
        let open: Vec<_> = self.namespaces.iter().take(20).map(String::as_str).collect();
        let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
        let cause =
            format!("The namespace {namespace} is not open to these tools; open are: {open}.");
        let next = "Name one of those, or have it added to gateway.mcp.management.namespaces.";
        Err(Problem::new(Reason::Forbidden, cause).next(next).about("namespace"))
    }

    /// Every namespace that is open to these tools.
    fn all_open(&self) -> Result<Vec<String>, Problem> {
        if self.namespaces.is_empty() {
            let cause = "No namespace is open to these tools.";
            let next = "Have one added to gateway.mcp.management.namespaces.";
            return Err(Problem::new(Reason::Forbidden, cause).next(next));
        }
        Ok(self.namespaces.iter().cloned().collect())
    }
}

type Called = BoxFuture<'static, Result<RawJson, ManagementError>>;

/// A tool in the table.
struct Entry {
    name: &'static str,
    definition: fn() -> RawJson,
    call: fn(Arc<Desk>, Option<RawJson>, ManagementContext) -> Called,
}

impl Entry {
    fn of<T: Tool>() -> Self {
        Self {
            name: T::NAME,
            definition: schema::definition::<T>,
            call: |desk, arguments, context| {
                Box::pin(async move { called::<T>(&desk, arguments, &context).await })
            },
        }
    }
}

/// Every tool, in the order of the domain's list.
fn table() -> [Entry; 12] {
    [
        Entry::of::<agents::AgentsList>(),
        Entry::of::<agents::AgentGet>(),
        Entry::of::<attachments::AttachmentsList>(),
        Entry::of::<attachments::AttachmentGet>(),
        Entry::of::<attachments::AttachmentApply>(),
        Entry::of::<attachments::AttachmentDelete>(),
        Entry::of::<attachments::AttachmentRetry>(),
        Entry::of::<sessions::SessionsList>(),
        Entry::of::<sessions::SessionGet>(),
        Entry::of::<sessions::SessionCreate>(),
        Entry::of::<sessions::SessionClose>(),
        Entry::of::<trace::TraceList>(),
    ]
}

/// Name and definition of every tool, exported or not, in the order of the domain's list.
pub fn definitions() -> Vec<(&'static str, RawJson)> {
    table().iter().map(|entry| (entry.name, (entry.definition)())).collect()
}

async fn called<T: Tool>(
    desk: &Desk,
    arguments: Option<RawJson>,
    context: &ManagementContext,
) -> Result<RawJson, ManagementError> {
    let arguments = match args::object(arguments.as_ref()).and_then(args::read) {
        Ok(arguments) => arguments,
        Err(problem) => return Ok(answer::failure(&problem)),
    };
    if context.cancel.is_cancelled() {
        return Err(ManagementError::Cancelled);
    }
    let running = T::run(desk, arguments, context);
    let done = if T::HINTS.read_only {
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(ManagementError::Cancelled),
            done = running => done,
        }
    } else {
        // a write that was begun is brought to its end; only waits look at the cancellation
        running.await
    };
    match done {
        Ok(output) => Ok(answer::result(&output)),
        Err(problem) => match problem.reason {
            Reason::Cancelled => Err(ManagementError::Cancelled),
            Reason::OutcomeUnknown => Err(ManagementError::OutcomeUnknown(problem.message)),
            _ => Ok(answer::failure(&problem)),
        },
    }
}

/// The management tools of this installation.
pub struct ManagementTools {
    desk: Arc<Desk>,
    tools: Vec<(Entry, RawJson)>,
}

impl ManagementTools {
    /// The tools that are exported. Definitions are made here, once.
    pub fn new(settings: Settings, parts: Parts) -> Self {
        let Settings { account, namespaces, exports } = settings;
        let Parts { client, journal, sessions, clock } = parts;
        let desk = Desk {
            client: account.client(&client),
            own: client,
            account,
            namespaces,
            journal,
            sessions,
            clock,
        };
        let exported = table().into_iter().filter(|entry| exports.contains(entry.name));
        let tools = exported.map(|entry| {
            let definition = (entry.definition)();
            (entry, definition)
        });
        Self { desk: Arc::new(desk), tools: tools.collect() }
    }
}

impl Management for ManagementTools {
    fn definitions(&self) -> Vec<(&'static str, RawJson)> {
        self.tools.iter().map(|(entry, definition)| (entry.name, definition.clone())).collect()
    }

    fn call(
        &self,
        tool: &str,
        arguments: Option<RawJson>,
        context: ManagementContext,
    ) -> BoxFuture<'static, Result<RawJson, ManagementError>> {
        match self.tools.iter().find(|(entry, _)| entry.name == tool) {
            Some((entry, _)) => (entry.call)(self.desk.clone(), arguments, context),
            None => Box::pin(async { Err(ManagementError::Unknown) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::export::MANAGEMENT_TOOLS;

    #[test]
    fn tools_need_an_account_and_no_tools_need_none() {
        let mut config = McpConfig::default();
        assert!(Settings::of(&config).unwrap().is_none());
        config.exports = vec!["agents_list".to_owned()];
        assert!(Settings::of(&config).unwrap_err().contains("--mcp-management-account"));
        config.management_account = Some("admin".to_owned());
        assert!(Settings::of(&config).unwrap_err().contains("no service account"));
        config.management_account = Some("system:serviceaccount:a:b".to_owned());
        config.management_namespaces = vec!["team-a".to_owned()];
        let settings = Settings::of(&config).unwrap().unwrap();
        assert!(settings.namespaces.contains("team-a") && settings.exports.contains("agents_list"));
    }

    #[test]
    fn the_table_is_the_domains_list() {
        assert_eq!(table().map(|entry| entry.name), MANAGEMENT_TOOLS);
    }
}
