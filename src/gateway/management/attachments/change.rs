//! `attachment_apply`, `attachment_delete` and `attachment_retry`.

use super::{AttachmentView, health, status};
use crate::{
    api::{McpAttachment, McpAttachmentSpec, RECONCILE_REQUESTED_AT, Session},
    domain::reason::Reason,
    gateway::{
        export::ManagementContext,
        management::{
            Desk, FIELD_MANAGER, Hints, Tool,
            answer::{ErrorBody, Spoken},
            args::Arguments,
            cluster::{apply, follow, read, write},
            names::{Name, Namespace, WaitSeconds},
            problem::Problem,
            wait::{Seen, State, Waited, until},
            written::{self, After, Written, limit, settled},
        },
    },
};
use futures::StreamExt as _;
use kube::{
    Api, Resource as _,
    api::{Patch, PatchParams, ValidationDirective},
    core::DeserializeGuard,
    runtime::watcher,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Labels of one attachment.
const LABELS: usize = 32;

/// Labels.
#[derive(Debug, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
struct Labels(BTreeMap<String, String>);

impl TryFrom<BTreeMap<String, String>> for Labels {
    type Error = String;

    fn try_from(labels: BTreeMap<String, String>) -> Result<Self, Self::Error> {
        if labels.len() > LABELS {
            return Err(format!("has {} labels, at most {LABELS}", labels.len()));
        }
        if labels.iter().any(|(key, value)| key.len() > 317 || value.len() > 63) {
            return Err("has a key over 317 or a value over 63 characters".to_owned());
        }
        Ok(Self(labels))
    }
}

impl JsonSchema for Labels {
    fn schema_name() -> Cow<'static, str> {
        "Labels".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object", "maxProperties": LABELS,
            "additionalProperties": {"type": "string", "maxLength": 63},
        })
    }
}

/// What to apply.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApplyArguments {
    /// The attachment's namespace.
    namespace: Namespace,
    /// The attachment's name.
    name: Name,
    /// The whole spec that is wanted. A field that was applied here before and is left out now is
    /// removed. Secrets are named in it, by secretKeyRef; no secret is written into it.
    #[expect(dead_code, reason = "read for its form alone; what is applied is what was sent")]
    spec: McpAttachmentSpec,
    /// The whole labels that are wanted; at most 32. Default none.
    labels: Option<Labels>,
    /// Only says whether the API server would take it (schema, rules, admission policies); nothing
    /// is written. What depends on other objects (the Agent and its ToolSet, Secrets, another
    /// attachment of that name or target) is told after the write, in its health. Default false.
    dry_run: Option<bool>,
    /// Takes over fields that another field manager (kubectl, a GitOps controller) has set.
    /// Default false: such a conflict is told and nothing is written.
    force: Option<bool>,
    /// Waits up to so many seconds until the server is in service or cannot be without somebody
    /// acting. Default 0: does not wait.
    wait_seconds: Option<WaitSeconds>,
    #[serde(skip)]
    #[schemars(skip)]
    sent: Value,
}

impl Arguments for ApplyArguments {
    /// The spec goes on as it was sent, so that no default becomes a field of ours.
    fn keep(&mut self, sent: &Map<String, Value>) {
        self.sent = sent.get("spec").cloned().unwrap_or_default();
    }
}

/// What became of an apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Change {
    /// It is new.
    Created,
    /// It is another one than before.
    Changed,
    /// It was so before.
    Unchanged,
}

/// What `attachment_apply` gives.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Applied {
    /// What became of it; with dryRun: what would.
    pub change: Change,
    /// Whether nothing was written.
    pub dry_run: bool,
    /// What the API server warns of, though it takes it: an admission policy of this product, of
    /// a value that looks like a secret, or another's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What was written; absent with dryRun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
    /// The attachment as it is; with dryRun: as it would be. Absent where it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachment: Option<AttachmentView>,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
    /// What went wrong after the write, which stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<ErrorBody>,
}

impl Spoken for Applied {
    fn text(&self) -> String {
        let dry = if self.dry_run { " (dry run: nothing was written)" } else { "" };
        let Self { change, warnings, written, attachment, waited, problem, .. } = self;
        let warned: String = warnings.iter().map(|w| format!("Warning: {w}\n")).collect();
        let after = written::text(written.as_ref(), waited.as_ref(), problem.as_ref());
        let shown = attachment.as_ref().map(AttachmentView::text).unwrap_or_default();
        format!("{change:?}{dry}.\n{warned}{after}{shown}")
    }
}

/// `attachment_apply`.
pub struct AttachmentApply;

impl Tool for AttachmentApply {
    const NAME: &'static str = "attachment_apply";
    const TITLE: &'static str = "Apply an attachment";
    const DESCRIPTION: &'static str = "Creates an McpAttachment, or changes it to the given spec \
        (server-side apply). Its tools may be used once the Agent's spec.toolSets has an entry of \
        the attachment's name. Use dryRun to check a spec, waitSeconds to wait until the server is \
        in service. agentRef and the kind of target cannot change: delete it and apply it anew.";
    const HINTS: Hints = Hints { destructive: true, open_world: true, ..Hints::IDEMPOTENT_WRITE };
    type Arguments = ApplyArguments;
    type Output = Applied;

    async fn run(
        desk: &Desk,
        arguments: ApplyArguments,
        context: &ManagementContext,
    ) -> Result<Applied, Problem> {
        let ApplyArguments { namespace, name, labels, dry_run, force, wait_seconds, sent, .. } =
            arguments;
        let api = desk.attachments(&namespace)?;
        let before = read(&format!("Reading the McpAttachment {name}"), api.get_opt(&name)).await?;
        if before.as_ref().is_some_and(|before| before.meta().deletion_timestamp.is_some()) {
            return Err(Problem::leaving("McpAttachment", &namespace, &name));
        }
        let mut metadata = json!({"name": &*name, "namespace": &*namespace});
        if let Some(Labels(labels)) = labels {
            metadata["labels"] = json!(labels);
        }
        let object = json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "McpAttachment",
            "metadata": metadata, "spec": sent,
        });
        let dry_run = dry_run.unwrap_or(false);
        let params = PatchParams {
            dry_run,
            force: force.unwrap_or(false),
            field_manager: Some(FIELD_MANAGER.to_owned()),
            field_validation: Some(ValidationDirective::Strict),
        };
        let doing = format!("Applying the McpAttachment {name} in {namespace}");
        let applying = apply(&desk.client, &namespace, &name, &params, &object);
        let (applied, warnings) = write(&doing, applying).await?;
        let change = match before {
            None => Change::Created,
            Some(before) if same(&before, &applied) => Change::Unchanged,
            Some(_) => Change::Changed,
        };
        let written = (!dry_run).then(|| Written::of(applied.meta()));
        let limit = limit(wait_seconds).filter(|_| !dry_run);
        let watch = follow(api, &name);
        let generation = applied.meta().generation;
        let judge = |attachment: &McpAttachment| applied_then(attachment, generation);
        let (latest, after) = settled(applied, limit, context, watch, judge, health).await?;
        let attachment = desk.shown(latest).await;
        let (waited, problem) = after.told();
        Ok(Applied { change, dry_run, warnings, written, attachment, waited, problem })
    }
}

/// What is seen by the one whose apply left this metadata.generation.
fn applied_then(attachment: &McpAttachment, generation: Option<i64>) -> Seen {
    let metadata = &attachment.metadata;
    if metadata.deletion_timestamp.is_none() && metadata.generation > generation {
        let message = "A later change of the spec took the place of this one; look with \
                       attachment_get.";
        return Seen::ended(State::Superseded, message);
    }
    status(attachment).seen()
}

/// Whether nothing is another. What cannot be read is the same if it was not written.
fn same(before: &DeserializeGuard<McpAttachment>, after: &DeserializeGuard<McpAttachment>) -> bool {
    let (was, is) = (before.meta(), after.meta());
    was.uid == is.uid
        && match (&before.0, &after.0) {
            (Ok(before), Ok(after)) => before.spec == after.spec && was.labels == is.labels,
            _ => was.resource_version == is.resource_version,
        }
}

impl Desk {
    async fn shown(&self, latest: Option<McpAttachment>) -> Option<AttachmentView> {
        match latest {
            Some(latest) => Some(self.view(&latest).await),
            None => None,
        }
    }
}

/// What to delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteArguments {
    /// The attachment's namespace.
    namespace: Namespace,
    /// The attachment's name.
    name: Name,
    /// Waits up to so many seconds until no Session runs anything of it. Default 0: does not wait.
    wait_seconds: Option<WaitSeconds>,
}

impl Arguments for DeleteArguments {}

/// What `attachment_delete` gives.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Deleted {
    /// The attachment's namespace.
    pub namespace: String,
    /// The attachment's name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion before.
    pub resource_version: String,
    /// The Agent that it named. Absent where it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
    /// What went wrong after the write, which stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<ErrorBody>,
}

impl Spoken for Deleted {
    fn text(&self) -> String {
        let Self { namespace, name, uid, agent, waited, problem, .. } = self;
        let of = agent.as_ref().map(|agent| format!(" of {agent}")).unwrap_or_default();
        let after = written::text(None, waited.as_ref(), problem.as_ref());
        format!(
            "McpAttachment {namespace}/{name}{of} (uid {uid}) is deleted; its calls in flight \
             finish, then its server ends.\n{after}"
        )
    }
}

/// `attachment_delete`.
pub struct AttachmentDelete;

impl Tool for AttachmentDelete {
    const NAME: &'static str = "attachment_delete";
    const TITLE: &'static str = "Delete an attachment";
    const DESCRIPTION: &'static str = "Deletes an McpAttachment: its tools go at once, calls in \
        flight finish within its drainTimeout, then its server ends. The Agent's ToolSet of that \
        name stays.";
    const HINTS: Hints = Hints { destructive: true, ..Hints::IDEMPOTENT_WRITE };
    type Arguments = DeleteArguments;
    type Output = Deleted;

    async fn run(
        desk: &Desk,
        DeleteArguments { namespace, name, wait_seconds }: DeleteArguments,
        context: &ManagementContext,
    ) -> Result<Deleted, Problem> {
        let api = desk.attachments(&namespace)?;
        let doing = format!("Deleting the McpAttachment {name} in {namespace}");
        let found = read(&doing, api.get_opt(&name)).await?;
        let found = found.ok_or_else(|| Problem::missing("McpAttachment", &namespace, &name))?;
        // what cannot be read can still go
        let deleted = Written::of(found.meta());
        let agent = found.0.ok().map(|found| found.spec.agent_ref.name);
        write(&doing, api.delete(&name, &deleted.deletion())).await?;
        let after = match limit(wait_seconds) {
            Some(limit) => After::of(desk.drained(&deleted, limit, context).await)?,
            None => After::default(),
        };
        let (waited, problem) = after.told();
        let Written { namespace, name, uid, resource_version } = deleted;
        Ok(Deleted { namespace, name, uid, resource_version, agent, waited, problem })
    }
}

impl Desk {
    /// Waits until no Session of the namespace has a generation of the attachment any more.
    async fn drained(
        &self,
        Written { namespace, name, uid, .. }: &Written,
        limit: Duration,
        context: &ManagementContext,
    ) -> Result<Waited, Problem> {
        let sessions: Api<DeserializeGuard<Session>> =
            Api::namespaced(self.client.clone(), namespace);
        let watch = watcher(sessions, watcher::Config::default()).boxed();
        let (mut left, mut dark) = (BTreeMap::<String, usize>::new(), BTreeSet::<String>::new());
        let mut listed = false;
        let what = format!("the servers of the McpAttachment {name}");
        until(&what, limit, context, watch, |event| {
            let gone = matches!(event, watcher::Event::Delete(_));
            match event {
                watcher::Event::Init => {
                    left.clear();
                    dark.clear();
                }
                watcher::Event::InitDone => listed = true,
                watcher::Event::Apply(guarded)
                | watcher::Event::InitApply(guarded)
                | watcher::Event::Delete(guarded) => {
                    let of = guarded.meta().name.clone().unwrap_or_default();
                    dark.remove(&of);
                    match guarded.0.map(|session| running(session, uid)) {
                        Ok(count) if count > 0 && !gone => drop(left.insert(of, count)),
                        Ok(_) => drop(left.remove(&of)),
                        Err(_) if gone => drop(left.remove(&of)),
                        // what was seen of it before stays so
                        Err(_) => drop(dark.insert(of)),
                    }
                }
            }
            let count: usize = left.values().sum();
            listed.then(|| match (count, dark.len()) {
                (0, 0) => Seen::ended(State::Gone, "Nothing of it runs any more."),
                (0, dark) => Seen::ended(
                    State::Gone,
                    format!(
                        "Nothing of it runs any more in a Session that can be read; {dark} cannot."
                    ),
                ),
                _ => Seen::going(format!("Draining: {count} generations of it are not gone yet.")),
            })
        })
        .await
    }
}

/// How many generations of the attachment a Session has.
fn running(session: Session, uid: &str) -> usize {
    let entries = session.status.unwrap_or_default().attachments;
    entries.iter().filter(|e| e.attachment_uid == uid).count()
}

/// What to try again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryArguments {
    /// The attachment's namespace.
    namespace: Namespace,
    /// The attachment's name.
    name: Name,
    /// Waits up to so many seconds until the server is in service or cannot be without somebody
    /// acting. Default 0: does not wait.
    wait_seconds: Option<WaitSeconds>,
}

impl Arguments for RetryArguments {}

/// What `attachment_retry` gives.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Retried {
    /// The value of the annotation awaken.dev/reconcile-requested-at that asks for the try.
    pub requested_at: String,
    /// What was written.
    pub written: Written,
    /// The attachment as it is. Absent where it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachment: Option<AttachmentView>,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
    /// What went wrong after the write, which stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<ErrorBody>,
}

impl Spoken for Retried {
    fn text(&self) -> String {
        let Self { requested_at, written, attachment, waited, problem } = self;
        let after = written::text(Some(written), waited.as_ref(), problem.as_ref());
        let shown = attachment.as_ref().map(AttachmentView::text).unwrap_or_default();
        format!("Another try is asked for, at {requested_at}.\n{after}{shown}")
    }
}

/// `attachment_retry`.
pub struct AttachmentRetry;

impl Tool for AttachmentRetry {
    const NAME: &'static str = "attachment_retry";
    const TITLE: &'static str = "Try an attachment again";
    const DESCRIPTION: &'static str = "Asks for another try of an McpAttachment whose server \
        failed to start, without waiting for the next one by itself. Changes nothing in its spec; \
        one that is in service stays as it is.";
    const HINTS: Hints = Hints::ADDITIVE_WRITE;
    type Arguments = RetryArguments;
    type Output = Retried;

    async fn run(
        desk: &Desk,
        RetryArguments { namespace, name, wait_seconds }: RetryArguments,
        context: &ManagementContext,
    ) -> Result<Retried, Problem> {
        let api = desk.attachments(&namespace)?;
        let requested_at = desk.clock.now().to_string();
        let patch = json!({"metadata": {"annotations": {RECONCILE_REQUESTED_AT: requested_at}}});
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let doing = format!("Asking for another try of the McpAttachment {name} in {namespace}");
        let asked = write(&doing, api.patch(&name, &params, &Patch::Merge(&patch))).await;
        let asked = asked.map_err(|problem| match problem.reason {
            Reason::NotFound => Problem::missing("McpAttachment", &namespace, &name),
            _ => problem,
        })?;
        let written = Written::of(asked.meta());
        let judge = |attachment: &McpAttachment| tried(attachment, &requested_at);
        let (watch, limit) = (follow(api, &name), limit(wait_seconds));
        let (latest, after) = settled(asked, limit, context, watch, judge, health).await?;
        let attachment = desk.shown(latest).await;
        let (waited, problem) = after.told();
        Ok(Retried { requested_at, written, attachment, waited, problem })
    }
}

/// What is seen by the one who asked for a try at this time.
fn tried(attachment: &McpAttachment, requested_at: &str) -> Seen {
    let handled = attachment.status.as_ref().and_then(|s| s.last_handled_reconcile_at.as_deref());
    if handled == Some(requested_at) {
        return status(attachment).seen();
    }
    let asked = attachment.metadata.annotations.as_ref();
    match asked.and_then(|all| all.get(RECONCILE_REQUESTED_AT)) {
        Some(asked) if asked == requested_at => {
            Seen::going("The operator has not begun the try yet.")
        }
        Some(later) => Seen::ended(
            State::Superseded,
            format!(
                "Another request, at {later}, took the place of this one; look with attachment_get."
            ),
        ),
        None => Seen::ended(
            State::Superseded,
            format!("Somebody took the request away (the annotation {RECONCILE_REQUESTED_AT})."),
        ),
    }
}
