//! Agents and attachments that are being deleted and are still there, since finalizers of others
//! hold them: their statuses no longer say that they are in service.

use super::{
    Context, Error,
    refs::named,
    seen::{Leaving, few},
};
use crate::{
    api::{
        Agent, AgentStatus, McpAttachment, McpAttachmentStatus,
        condition::{READY, RECONCILING, SERVING, STALLED, set},
    },
    domain::{lifecycle::Generation, reason::Reason},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

/// Writes how they end.
///
/// # Errors
/// What could not be written.
pub async fn tell(
    ctx: &Context,
    leaving: &Leaving,
    entries: &[&Generation],
    now: Timestamp,
) -> Result<(), Error> {
    for attachment in &leaving.attachments {
        let old = attachment.status.clone().unwrap_or_default();
        let new = of_attachment(attachment, entries, now);
        if let Some(written) = ctx.apply.status_if_there(&**attachment, &old, &new).await? {
            ctx.resolve.latest.attachments.put(&named(&**attachment), written);
        }
    }
    let Some(agent) = &leaving.agent else { return Ok(()) };
    let old = agent.status.clone().unwrap_or_default();
    let new = of_agent(agent, entries, now);
    if let Some(written) = ctx.apply.status_if_there(&**agent, &old, &new).await? {
        ctx.resolve.latest.agents.put(&named(&**agent), written);
    }
    Ok(())
}

fn of_attachment(
    attachment: &McpAttachment,
    entries: &[&Generation],
    now: Timestamp,
) -> McpAttachmentStatus {
    let uid = attachment.metadata.uid.as_deref().unwrap_or_default();
    let runs = entries.iter().any(|e| e.attachment_uid == uid);
    let old = attachment.status.clone().unwrap_or_default();
    let mut conditions = old.conditions.clone();
    say(attachment, &mut conditions, runs, now);
    let reason = if runs { Reason::Draining } else { Reason::Removed };
    set(&mut conditions, SERVING, false, reason, "", attachment.metadata.generation, now);
    McpAttachmentStatus {
        observed_generation: attachment.metadata.generation,
        conditions,
        desired_generation: None,
        active_generation: None,
        tool_count: None,
        surface_digest: None,
        protocol_version: None,
        ..old
    }
}

fn of_agent(agent: &Agent, entries: &[&Generation], now: Timestamp) -> AgentStatus {
    let old = agent.status.clone().unwrap_or_default();
    let mut conditions = old.conditions.clone();
    say(agent, &mut conditions, !entries.is_empty(), now);
    AgentStatus {
        observed_generation: agent.metadata.generation,
        conditions,
        session: None,
        attachments: None,
    }
}

fn say(
    object: &impl ResourceExt,
    conditions: &mut Vec<Condition>,
    something_runs: bool,
    now: Timestamp,
) {
    let (reason, message) = if something_runs {
        (Reason::Draining, Reason::Draining.meaning().to_owned())
    } else {
        let holders = few(object.finalizers());
        (Reason::Removed, format!("It is being deleted; what holds it: finalizers {holders}."))
    };
    let observed = object.meta().generation;
    set(conditions, READY, false, reason, &message, observed, now);
    set(conditions, RECONCILING, true, reason, "", observed, now);
    set(conditions, STALLED, false, reason, "", observed, now);
}
