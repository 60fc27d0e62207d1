//! What a Session brings itself: its own attachments in the form that the plan judges, which of the
//! Agent's they outrank, and what its status says of them. Pure.
//!
//! No object stands for one of them. Here each is an McpAttachment of its name that is stored
//! nowhere, with a UID made from the Session's; what happens to it is told in the Session's status.

use super::{
    plan::{Judged, Plan},
    refs,
    seen::{Problem, Seen, few, sentences},
    target,
};
use crate::{
    api::{
        McpAttachment, McpAttachmentSpec, McpAttachmentStatus, RECONCILE_REQUESTED_AT, Session,
        condition::ACCEPTED, session::OwnAttachment,
    },
    domain::{
        gate::Permission,
        lifecycle::{Desired, Origin, Wish, own_attachment_uid},
        reason::Reason,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::ResourceExt;
use std::{collections::BTreeSet, sync::Arc};

/// The Session's own attachments, in the order of its spec. A request for another try of the Session
/// is one for each of them.
pub fn attachments(session: &Session) -> Vec<Arc<McpAttachment>> {
    let uid = session.metadata.uid.as_deref().unwrap_or_default();
    let asked = refs::asked(session);
    let answered = session.status.as_ref().and_then(|s| s.last_handled_reconcile_at.clone());
    let one = |own: &OwnAttachment| {
        let metadata = ObjectMeta {
            name: Some(own.name.clone()),
            namespace: session.namespace(),
            uid: Some(own_attachment_uid(uid, &own.name)),
            annotations: asked
                .map(|asked| [(RECONCILE_REQUESTED_AT.to_owned(), asked.clone())].into()),
            ..ObjectMeta::default()
        };
        let status = McpAttachmentStatus {
            last_handled_reconcile_at: answered.clone(),
            ..McpAttachmentStatus::default()
        };
        let OwnAttachment { name: _, server_name, sandbox_stdio, http, limits, rollout, suspend } =
            own.clone();
        let spec = McpAttachmentSpec {
            agent_ref: session.spec.agent_ref.clone(),
            server_name,
            sandbox_stdio,
            http,
            limits,
            rollout,
            suspend,
        };
        Arc::new(McpAttachment { metadata, spec, status: Some(status) })
    };
    session.spec.attachments.iter().map(one).collect()
}

/// Whether the Agent lets its Sessions bring any.
pub fn allowed(seen: &Seen) -> bool {
    seen.agent.as_ref().is_some_and(|a| a.spec.session_attachments.max != Permission::Deny)
}

/// The names under which the Session's own take the place of the Agent's.
pub fn outranking(seen: &Seen) -> BTreeSet<&str> {
    let own = seen.session.iter().flat_map(|s| &s.spec.attachments);
    own.filter(|_| allowed(seen)).map(|own| own.name.as_str()).collect()
}

/// Whether the Session has a ToolSet for an attachment of its own.
///
/// # Errors
/// When it has none.
pub fn tool_set(seen: &Seen, attachment: &str) -> Result<(), Problem> {
    let mut sets = seen.session.iter().flat_map(|s| &s.spec.tool_sets);
    if sets.any(|t| t.attachment == attachment) {
        return Ok(());
    }
    let message = format!(
        "The Session has no ToolSet for its attachment {attachment:?}. Add an entry with this \
         attachment's name to spec.toolSets of the Session."
    );
    Err(Problem { reason: Reason::ToolSetMissing, message })
}

/// What was taken out of the set and still has generations: it makes room for what came in.
pub fn taken_out(seen: &Seen, judged: &[Judged]) -> Vec<Desired> {
    let status = seen.session.as_ref().and_then(|s| s.status.as_ref());
    let entries = status.iter().flat_map(|s| &s.attachments);
    let mut known: BTreeSet<_> = judged.iter().filter_map(|j| j.attachment.uid()).collect();
    let gone =
        entries.filter(|e| e.origin == Origin::Session && known.insert(e.attachment_uid.clone()));
    gone.map(|e| Desired {
        attachment: e.attachment.clone(),
        attachment_uid: e.attachment_uid.clone(),
        origin: Origin::Session,
        wish: Wish::Yield,
        retry: false,
    })
    .collect()
}

/// The problem as it is told of an attachment of the Session's own, whose fields stand elsewhere.
pub fn told(attachment: &str, message: &str) -> String {
    const FIELDS: [&str; 5] = ["http", "sandboxStdio", "serverName", "suspend", "limits"];
    FIELDS.iter().fold(message.to_owned(), |message, field| {
        let here = format!("spec.attachments[{attachment}].{field}");
        message.replace(&format!("spec.{field}"), &here)
    })
}

/// What is worth an event on the Session: own attachments that cannot be taken any more, and, once
/// for each version of the spec, values in them that look like secrets.
pub fn news(session: &Session, plan: &Plan) -> Vec<Problem> {
    let status = session.status.as_ref();
    let mut news = vec![];
    if let Err(problem) = accepted(plan) {
        let conditions = status.map(|s| s.conditions.as_slice()).unwrap_or_default();
        let said = |c: &Condition| c.type_ == ACCEPTED && c.reason == problem.reason.as_str();
        if !conditions.iter().any(said) {
            news.push(problem);
        }
    }
    let observed = status.and_then(|s| s.observed_generation);
    if observed.is_none() || observed != session.metadata.generation {
        for OwnAttachment { name, sandbox_stdio, .. } in &session.spec.attachments {
            let problem = sandbox_stdio.as_ref().and_then(target::suspicion);
            news.extend(
                problem.map(|p| Problem { message: format!("{name}: {}", p.message), ..p }),
            );
        }
    }
    news
}

/// What is wrong with the Session's own attachments, whatever runs; the first of them in full.
///
/// # Errors
/// When one cannot be taken.
pub fn accepted(plan: &Plan) -> Result<(), Problem> {
    let own = plan.judged.iter().filter(|j| j.origin == Origin::Session);
    let refused: Vec<_> =
        own.filter_map(|j| Some((j.attachment.name_any(), j.accepted.as_ref().err()?))).collect();
    let Some((name, problem)) = refused.first() else { return Ok(()) };
    let others: Vec<_> =
        refused.iter().skip(1).map(|(name, p)| format!("{name} ({})", p.reason)).collect();
    let others = match others.is_empty() {
        true => String::new(),
        false => format!("Also not accepted: {}.", few(&others)),
    };
    let message = sentences(&format!("{name}: {}", problem.message), &others);
    Err(Problem { reason: problem.reason, message })
}
