//! `attachment_apply`, `attachment_delete` and `attachment_retry`.

use super::{AttachmentView, readable, status};
use crate::{
    api::{McpAttachment, McpAttachmentSpec, RECONCILE_REQUESTED_AT, Session},
    domain::reason::Reason,
    gateway::{
        export::ManagementContext,
        management::{
            Desk, FIELD_MANAGER, Hints, Tool,
            answer::{Done, Spoken},
            args::Arguments,
            cluster::{follow, read, write},
            names::{Name, Namespace, WaitSeconds},
            problem::Problem,
            view::known,
            wait::{Seen, State, Waited, until},
        },
    },
};
use futures::StreamExt as _;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions, ValidationDirective},
    core::DeserializeGuard,
    runtime::watcher,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{borrow::Cow, collections::BTreeMap, time::Duration};

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
    /// Only says whether it would be taken, by every check there is; nothing is written. Default
    /// false.
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
    /// The attachment as it is; with dryRun: as it would be.
    pub attachment: AttachmentView,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
}

impl Spoken for Applied {
    fn text(&self) -> String {
        let dry = if self.dry_run { " (dry run: nothing was written)" } else { "" };
        let waited = self.waited.as_ref().map(Waited::text).unwrap_or_default();
        format!("{:?}{dry}.\n{waited}{}", self.change, self.attachment.text())
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
    ) -> Result<Done<Applied>, Problem> {
        let ApplyArguments { namespace, name, labels, dry_run, force, wait_seconds, sent, .. } =
            arguments;
        let api = desk.attachments(&namespace)?;
        let before = read(&format!("Reading the McpAttachment {name}"), api.get_opt(&name)).await?;
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
        let patch = Patch::Apply(&object);
        let applied = readable(write(&doing, api.patch(&name, &params, &patch)).await?)?;
        let change = match before {
            None => Change::Created,
            Some(before) if same(&before, &applied) => Change::Unchanged,
            Some(_) => Change::Changed,
        };
        let wait = wait_seconds.filter(|w| w.0 > 0 && !dry_run);
        let (applied, waited, problem) =
            desk.followed(&namespace, &name, applied, wait, context, |a| status(a).seen()).await?;
        let attachment = desk.view(&applied).await?;
        Ok(Done { output: Applied { change, dry_run, attachment, waited }, problem })
    }
}

fn same(before: &DeserializeGuard<McpAttachment>, after: &McpAttachment) -> bool {
    before.0.as_ref().is_ok_and(|before| {
        before.spec == after.spec
            && before.metadata.labels == after.metadata.labels
            && before.metadata.uid == after.metadata.uid
    })
}

/// The attachment as it was seen last, how the wait ended, and what that means.
type Followed = (McpAttachment, Option<Waited>, Option<Problem>);

impl Desk {
    /// Follows an attachment until it is settled, where a wait was asked for.
    async fn followed(
        &self,
        namespace: &Namespace,
        name: &Name,
        mut latest: McpAttachment,
        wait: Option<WaitSeconds>,
        context: &ManagementContext,
        judge: impl Fn(&McpAttachment) -> Seen,
    ) -> Result<Followed, Problem> {
        let Some(WaitSeconds(seconds)) = wait else { return Ok((latest, None, None)) };
        let limit = Duration::from_secs(seconds.into());
        let uid = latest.metadata.uid.clone();
        let watch = follow(self.attachments(namespace)?, name);
        let what = format!("the McpAttachment {name}");
        let waited = until(&what, limit, context, watch, |found| match found {
            Some(Ok(found)) if found.metadata.uid == uid => {
                let seen = judge(&found);
                latest = found;
                Some(seen)
            }
            Some(Err(problem)) => Some(Seen::going(problem.message)),
            _ => Some(Seen::ended(State::Gone, "It was deleted meanwhile.")),
        })
        .await?;
        let problem = match waited.state {
            State::Failed => {
                let health = super::health(&latest);
                let reason = health.reason.as_deref().and_then(known);
                let problem = Problem::new(reason.unwrap_or(Reason::NotServing), &health.message);
                Some(problem.next(health.next_step.as_deref().unwrap_or_default()))
            }
            State::Gone => Some(Problem::missing("McpAttachment", namespace, name)),
            State::Ready | State::Settled | State::TimedOut => None,
        };
        Ok((latest, Some(waited), problem))
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
    /// The Agent that it named.
    pub agent: String,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
}

impl Spoken for Deleted {
    fn text(&self) -> String {
        let Self { namespace, name, agent, waited } = self;
        let waited = waited.as_ref().map(Waited::text).unwrap_or_default();
        format!(
            "McpAttachment {namespace}/{name} of {agent} is deleted; its calls in flight finish, \
             then its server ends.\n{waited}"
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
    ) -> Result<Done<Deleted>, Problem> {
        let api = desk.attachments(&namespace)?;
        let doing = format!("Deleting the McpAttachment {name} in {namespace}");
        let found = read(&doing, api.get_opt(&name)).await?;
        let found = found.ok_or_else(|| Problem::missing("McpAttachment", &namespace, &name))?;
        let (uid, agent) = match found.0 {
            Ok(found) => (found.metadata.uid, found.spec.agent_ref.name),
            // what cannot be read can still go
            Err(invalid) => (invalid.metadata.uid, String::new()),
        };
        let params = DeleteParams {
            preconditions: uid
                .clone()
                .map(|uid| Preconditions { uid: Some(uid), ..Preconditions::default() }),
            ..DeleteParams::default()
        };
        write(&doing, api.delete(&name, &params)).await?;
        let waited = match wait_seconds.filter(|w| w.0 > 0) {
            Some(wait) => {
                Some(desk.drained(&namespace, &name, uid.unwrap_or_default(), wait, context).await?)
            }
            None => None,
        };
        let (namespace, name) = (namespace.to_string(), name.to_string());
        Ok(Deleted { namespace, name, agent, waited }.into())
    }
}

impl Desk {
    /// Waits until no Session of the namespace has a generation of the attachment any more.
    async fn drained(
        &self,
        namespace: &Namespace,
        name: &Name,
        uid: String,
        WaitSeconds(seconds): WaitSeconds,
        context: &ManagementContext,
    ) -> Result<Waited, Problem> {
        let sessions: Api<DeserializeGuard<Session>> =
            Api::namespaced(self.client.clone(), self.open(namespace)?);
        let watch = watcher(sessions, watcher::Config::default()).boxed();
        let (mut left, mut listed) = (BTreeMap::<String, usize>::new(), false);
        let limit = Duration::from_secs(seconds.into());
        let what = format!("the servers of the McpAttachment {name}");
        until(&what, limit, context, watch, |event| {
            let gone = matches!(event, watcher::Event::Delete(_));
            match event {
                watcher::Event::Init => left.clear(),
                watcher::Event::InitDone => listed = true,
                watcher::Event::Apply(DeserializeGuard(Ok(session)))
                | watcher::Event::InitApply(DeserializeGuard(Ok(session)))
                | watcher::Event::Delete(DeserializeGuard(Ok(session))) => {
                    let of = session.metadata.name.unwrap_or_default();
                    let entries = session.status.unwrap_or_default().attachments;
                    match entries.iter().filter(|e| e.attachment_uid == uid).count() {
                        count if count > 0 && !gone => left.insert(of, count),
                        _ => left.remove(&of),
                    };
                }
                _ => {}
            }
            let count: usize = left.values().sum();
            listed.then(|| match count {
                0 => Seen::ended(State::Gone, "Nothing of it runs any more."),
                _ => Seen::going(format!("Draining: {count} generations of it are not gone yet.")),
            })
        })
        .await
    }
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
    /// The attachment as it is.
    pub attachment: AttachmentView,
    /// How the wait ended, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waited>,
}

impl Spoken for Retried {
    fn text(&self) -> String {
        let waited = self.waited.as_ref().map(Waited::text).unwrap_or_default();
        let at = &self.requested_at;
        format!("Another try is asked for, at {at}.\n{waited}{}", self.attachment.text())
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
    ) -> Result<Done<Retried>, Problem> {
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
        let wait = wait_seconds.filter(|w| w.0 > 0);
        let judge = |attachment: &McpAttachment| {
            let handled = attachment.status.as_ref();
            let handled = handled.and_then(|s| s.last_handled_reconcile_at.as_deref());
            if handled != Some(&*requested_at) {
                return Seen::going("The operator has not begun the try yet.");
            }
            status(attachment).seen()
        };
        let (latest, waited, problem) =
            desk.followed(&namespace, &name, readable(asked)?, wait, context, judge).await?;
        let attachment = desk.view(&latest).await?;
        Ok(Done { output: Retried { requested_at, attachment, waited }, problem })
    }
}
