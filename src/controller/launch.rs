//! What a step asks for outside the API objects of our own kinds: Session pods, made behind their
//! NetworkPolicy, and deleted.

use super::{
    Context, Error,
    apply::Created,
    build::{self, pod::Launch},
    egress,
    plan::Plan,
    refs::{self, named},
    seen::{Problem, Seen},
};
use crate::{
    api::Session,
    domain::{
        lifecycle::{Effect, Generation, PodFact, Step, Target},
        reason::Reason,
    },
};
use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use kube::ResourceExt;
use std::{collections::BTreeMap, sync::Arc};

/// Makes and deletes pods as the step says; gives back what was refused.
///
/// # Errors
/// What could not be read or written.
pub async fn perform(
    ctx: &Context,
    seen: &Seen,
    plan: &Plan,
    session: &Session,
    next: &Step,
    pods: &BTreeMap<i64, Arc<Pod>>,
) -> Result<BTreeMap<i64, PodFact>, Error> {
    let mut refused = BTreeMap::new();
    // as long as one of its pods is there, whoever took the policy away
    if !pods.is_empty()
        && let Some(problem) = guard(ctx, seen, plan, session).await?
    {
        let Problem { reason, message } = problem;
        tracing::warn!(session = %seen.key, %reason, message, "pods stand without their policy");
    }
    for effect in &next.effects {
        match effect {
            Effect::DeletePod(number) => {
                if let Some(pod) = pods.get(number) {
                    ctx.apply.delete_pod(pod).await?;
                    ctx.resolve.latest.pods.forget(&named(&**pod));
                }
            }
            Effect::CreatePod(number) => {
                let entry = next.entries.iter().find(|e| e.generation == *number);
                if let Some(entry) = entry
                    && let Some(problem) = launch(ctx, seen, plan, session, entry).await?
                {
                    refused.insert(*number, PodFact::Refused(problem.reason, problem.message));
                }
            }
        }
    }
    Ok(refused)
}

/// Makes one generation's pod, after the policy that guards it.
async fn launch(
    ctx: &Context,
    seen: &Seen,
    plan: &Plan,
    session: &Session,
    entry: &Generation,
) -> Result<Option<Problem>, Error> {
    let judged = plan.judged.iter().find(|j| j.source() == Some(entry.source.as_str()));
    let stdio = judged.and_then(|j| j.attachment.spec.sandbox_stdio.as_ref());
    let (Some(stdio), Some(environment), Target::SandboxStdio(target)) =
        (stdio, &plan.environment, &entry.target)
    else {
        // What it was made from is not asked for at the moment; it is decided on the next change.
        return Ok(None);
    };
    if let Some(problem) = guard(ctx, seen, plan, session).await? {
        return Ok(Some(problem));
    }
    let keys = ctx.resolve.link_keys().await?;
    let launch = Launch {
        session,
        generation: entry,
        stdio,
        environment: &environment.spec,
        revision: environment.revision,
        shim: &ctx.config.shim,
        gateway_keys: &keys,
    };
    let pod = build::pod::pod(&launch, &target.name);
    match ctx.apply.create_pod(&pod).await? {
        Created::Made(pod) | Created::Exists(pod) => {
            ctx.resolve.latest.pods.put(&named(&pod), pod);
            Ok(None)
        }
        Created::Refused(problem) => Ok(Some(problem)),
    }
}

/// The NetworkPolicy stands before any pod does, as it should be.
async fn guard(
    ctx: &Context,
    seen: &Seen,
    plan: &Plan,
    session: &Session,
) -> Result<Option<Problem>, Error> {
    // what cannot be allowed is not: the attachments say why
    let egress = plan.environment.as_ref().map(|e| egress::ways(&e.spec.egress, &seen.rules));
    let ways = egress.and_then(Result::ok).unwrap_or_default();
    let wanted = build::policy::policy(session, &ctx.config.gateways, &ways, &ctx.config.dns);
    let latest = &ctx.resolve.latest.policies;
    match &seen.policy {
        Some(present) if present.spec == wanted.spec => {}
        Some(present) => {
            let restored = ctx.apply.restore_policy(present, &wanted).await?;
            latest.put(&named(&restored), restored);
        }
        None => match ctx.apply.create_policy(&wanted).await? {
            Created::Exists(policy) if !guards(&policy, session) => {
                let cause = format!(
                    "A NetworkPolicy named {} exists that is not this Session's.",
                    policy.name_any()
                );
                return Ok(Some(Problem { reason: Reason::ObjectRefused, message: cause }));
            }
            Created::Made(policy) | Created::Exists(policy) => {
                latest.put(&named(&policy), policy);
            }
            Created::Refused(problem) => return Ok(Some(problem)),
        },
    }
    Ok(None)
}

/// Whether the policy is the one of this Session's pods.
fn guards(policy: &NetworkPolicy, session: &Session) -> bool {
    session.metadata.uid.as_ref().is_some_and(|uid| refs::is_owned_by(&policy.metadata, uid))
}
