//! What is asked for in a Session: each attachment judged against its Agent, its Secrets and the
//! others. Pure; what follows for the generations is decided by `domain::lifecycle`.

use super::{
    seen::{Problem, SecretState, Seen, few},
    target,
};
use crate::{
    api::{
        Agent, McpAttachment, RECONCILE_REQUESTED_AT,
        agent::Environment,
        attachment::{AttachmentLimits, Http, SandboxStdio, SecretKeyRef},
        session::FrozenEnvironment,
    },
    domain::{
        identity::{Fingerprint, server_name_problem},
        lifecycle::{Blueprint, CredentialRef, Desired, Limits, Place, SecretKey, Wish},
        reason::Reason,
    },
};
use jiff::Timestamp;
use kube::ResourceExt;
use std::{collections::BTreeSet, sync::Arc};

/// What is asked for in a Session.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Each attachment, in the order of their age.
    pub judged: Vec<Judged>,
    /// What the lifecycle is asked for.
    pub desired: Vec<Desired>,
    /// The environment as the Session freezes it now.
    pub environment: Option<FrozenEnvironment>,
    /// Attachments that a ToolSet names and that do not exist.
    pub dangling: Vec<String>,
}

/// One attachment, judged.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The attachment.
    pub attachment: Arc<McpAttachment>,
    /// Whether its spec is valid and its partner there.
    pub accepted: Result<(), Problem>,
    /// What keeps it though it is accepted: a Secret, or suspension.
    pub held: Option<Problem>,
    /// What the lifecycle is asked for.
    pub wish: Wish,
    /// Its target in one line.
    pub target: String,
}

impl Judged {
    /// The fingerprint of what shall serve, when something shall.
    pub fn source(&self) -> Option<&str> {
        match &self.wish {
            Wish::Serve(blueprint) => Some(&blueprint.source),
            Wish::Hold | Wish::Withdraw(_) => None,
        }
    }

    /// Whether it is out of service because its owner wants that.
    pub fn is_suspended(&self) -> bool {
        self.wish == Wish::Withdraw(Reason::Suspended)
    }
}

/// Judges everything that was seen.
pub fn plan(seen: &Seen) -> Plan {
    let frozen = seen.session.as_ref().and_then(|s| s.status.as_ref()?.environment.as_ref());
    let wanted = seen.agent.as_ref().and_then(|a| a.spec.environment.as_ref());
    let environment = freeze(frozen, wanted, seen.now);
    let mut attachments = seen.attachments.clone();
    attachments.sort_by_key(|a| (a.metadata.creation_timestamp.clone(), a.metadata.uid.clone()));
    let mut taken = Taken::default();
    let judged: Vec<_> = attachments
        .into_iter()
        .map(|a| judge(seen, wanted.and(environment.as_ref()), &mut taken, a))
        .collect();
    let mut desired: Vec<_> = judged.iter().map(desire).collect();
    desired.extend(seen.unreadable.iter().map(|uid| Desired {
        attachment: String::new(),
        attachment_uid: uid.clone(),
        wish: Wish::Hold,
        retry: false,
    }));
    Plan { desired, environment, dangling: dangling(seen), judged }
}

/// The next revision when the Agent's environment differs from what is frozen.
fn freeze(
    frozen: Option<&FrozenEnvironment>,
    wanted: Option<&Environment>,
    now: Timestamp,
) -> Option<FrozenEnvironment> {
    match (frozen, wanted) {
        (Some(frozen), Some(wanted)) if frozen.spec == *wanted => Some(frozen.clone()),
        (frozen, Some(wanted)) => Some(FrozenEnvironment {
            revision: frozen.map_or(0, |f| f.revision) + 1,
            spec: wanted.clone(),
            image_digest: None,
            since: now,
        }),
        (frozen, None) => frozen.cloned(),
    }
}

fn dangling(seen: &Seen) -> Vec<String> {
    let there: BTreeSet<_> = seen.attachments.iter().map(|a| a.name_any()).collect();
    let sets = seen.agent.iter().flat_map(|a| &a.spec.tool_sets);
    sets.map(|t| t.attachment.clone()).filter(|name| !there.contains(name)).collect()
}

fn desire(judged: &Judged) -> Desired {
    let attachment = &judged.attachment;
    let asked = attachment.annotations().get(RECONCILE_REQUESTED_AT);
    let answered = attachment.status.as_ref().and_then(|s| s.last_handled_reconcile_at.as_ref());
    Desired {
        attachment: attachment.name_any(),
        attachment_uid: attachment.metadata.uid.clone().unwrap_or_default(),
        wish: judged.wish.clone(),
        retry: asked.is_some() && asked != answered,
    }
}

/// What older attachments of the same Agent have taken.
#[derive(Default)]
struct Taken {
    servers: Vec<(String, String)>,
    targets: Vec<(String, String)>,
}

fn judge(
    seen: &Seen,
    environment: Option<&FrozenEnvironment>,
    taken: &mut Taken,
    attachment: Arc<McpAttachment>,
) -> Judged {
    let target = target::line(&attachment.spec);
    let build = |accepted, held, wish| Judged {
        attachment: attachment.clone(),
        accepted,
        held,
        wish,
        target: target.clone(),
    };
    let valid = match validate(seen, environment, taken, &attachment) {
        Ok(valid) => valid,
        Err(problem) => return build(Err(problem), None, Wish::Withdraw(Reason::Draining)),
    };
    if attachment.spec.suspend {
        let problem = Problem::new(Reason::Suspended, "spec.suspend is true.");
        return build(Ok(()), Some(problem), Wish::Withdraw(Reason::Suspended));
    }
    match blueprint(seen, &attachment, valid) {
        Ok(blueprint) => build(Ok(()), None, Wish::Serve(blueprint)),
        Err(problem) => build(Ok(()), Some(problem), Wish::Hold),
    }
}

/// A target that may be used.
enum Valid<'a> {
    Http { url: String, http: &'a Http, server: String },
    Stdio { stdio: &'a SandboxStdio, environment: &'a FrozenEnvironment, server: String },
}

fn validate<'a>(
    seen: &Seen,
    environment: Option<&'a FrozenEnvironment>,
    taken: &mut Taken,
    attachment: &'a McpAttachment,
) -> Result<Valid<'a>, Problem> {
    let (name, spec) = (attachment.name_any(), &attachment.spec);
    let Some(agent) = &seen.agent else {
        let cause = format!("The Agent {:?} does not exist.", spec.agent_ref.name);
        return Err(Problem::new(Reason::AgentNotFound, cause));
    };
    let server = spec.server_name.clone().unwrap_or_else(|| name.clone());
    if let Some(problem) = server_name_problem(&server) {
        let from = if spec.server_name.is_some() { "spec.serverName" } else { "metadata.name" };
        let cause = format!("The server name {server:?} (from {from}) {problem}.");
        return Err(Problem::new(Reason::InvalidServerName, cause));
    }
    if !has_tool_set(agent, &name) {
        let cause = format!("The Agent {:?} has no ToolSet for {name:?}.", agent.name_any());
        return Err(Problem::new(Reason::ToolSetMissing, cause));
    }
    let (valid, identity) = match (&spec.http, &spec.sandbox_stdio) {
        (Some(http), _) => {
            let url = target::http_url(http)?;
            let identity = target::http_identity(&url, http);
            (Valid::Http { url: url.as_str().to_owned(), http, server: server.clone() }, identity)
        }
        (None, Some(stdio)) => {
            let Some(environment) = environment else {
                let cause = format!("The Agent {:?} has no environment.", agent.name_any());
                return Err(Problem::new(Reason::EnvironmentMissing, cause));
            };
            let identity = target::stdio_identity(Some(&environment.spec.image), stdio);
            (Valid::Stdio { stdio, environment, server: server.clone() }, identity)
        }
        (None, None) => {
            let cause = "Neither spec.http nor spec.sandboxStdio is set.";
            return Err(Problem::new(Reason::UnreadableObject, cause));
        }
    };
    if let Some((_, older)) = taken.servers.iter().find(|(s, _)| *s == server) {
        let cause = format!("The older attachment {older:?} has the server name {server:?}.");
        return Err(Problem::new(Reason::DuplicateServerName, cause));
    }
    if let Some((_, older)) = taken.targets.iter().find(|(t, _)| *t == identity) {
        let cause = format!("The older attachment {older:?} has exactly this target.");
        return Err(Problem::new(Reason::DuplicateTarget, cause));
    }
    taken.servers.push((server, name.clone()));
    taken.targets.push((identity, name));
    Ok(valid)
}

fn has_tool_set(agent: &Agent, attachment: &str) -> bool {
    agent.spec.tool_sets.iter().any(|t| t.attachment == attachment)
}

/// What a new generation is made from; fails when a Secret is missing.
fn blueprint(
    seen: &Seen,
    attachment: &McpAttachment,
    valid: Valid<'_>,
) -> Result<Blueprint, Problem> {
    let limits = limits(attachment.spec.limits.as_ref());
    let to = limits.digest(Fingerprint::new("source"));
    match valid {
        Valid::Http { url, http, server } => {
            let to = to.field(&server).field("http").field(&url);
            let credential = http.credential.as_ref();
            let value = credential
                .map(|c| secret_hash(seen, &c.secret_key_ref, "spec.http.credential"))
                .transpose()?;
            let credential = credential.map(|c| CredentialRef {
                secret: c.secret_key_ref.name.clone(),
                key: c.secret_key_ref.key.clone(),
                header: c.header.clone(),
                scheme: c.scheme.clone(),
            });
            let to = match &credential {
                None => to.field("open"),
                Some(CredentialRef { secret, key, header, scheme }) => {
                    let to = to.field("credential").field(secret).field(key);
                    to.field(header).field(scheme).optional(value)
                }
            };
            let source = to.finish();
            Ok(Blueprint { server, source, place: Place::Http { url, credential }, limits })
        }
        Valid::Stdio { stdio, environment, server } => {
            let SandboxStdio { command, args, env, secret_env } = stdio;
            let to = to.field(&server).field("stdio").field(environment.revision.to_be_bytes());
            let to = to.field(command).field(args.len().to_be_bytes());
            let to = args.iter().fold(to, Fingerprint::field).field(env.len().to_be_bytes());
            let mut env: Vec<_> = env.iter().map(|e| (&e.name, &e.value)).collect();
            env.sort();
            let mut to = env.iter().fold(to, |to, (name, value)| to.field(name).field(value));
            let mut secret_env: Vec<_> = secret_env.iter().collect();
            secret_env.sort_by_key(|e| &e.name);
            let mut secrets = vec![];
            for e in secret_env {
                let SecretKeyRef { name, key } = &e.secret_key_ref;
                let field = format!("spec.sandboxStdio.secretEnv {}", e.name);
                let value = secret_hash(seen, &e.secret_key_ref, &field)?;
                to = to.field(&e.name).field(name).field(key).field(value);
                let secret = SecretKey { secret: name.clone(), key: key.clone() };
                if !secrets.contains(&secret) {
                    secrets.push(secret);
                }
            }
            let source = to.finish();
            Ok(Blueprint { server, source, place: Place::Pod { secrets }, limits })
        }
    }
}

fn secret_hash<'a>(
    seen: &'a Seen,
    reference: &SecretKeyRef,
    field: &str,
) -> Result<&'a str, Problem> {
    let SecretKeyRef { name, key } = reference;
    match seen.secrets.get(name) {
        None | Some(SecretState::Missing) => {
            let cause = format!("{field} names the Secret {name:?}, which does not exist.");
            Err(Problem::new(Reason::SecretNotFound, cause))
        }
        Some(SecretState::Present(keys)) => keys.get(key).map(String::as_str).ok_or_else(|| {
            let there: Vec<_> = keys.keys().collect();
            let cause = format!(
                "{field} names the key {key:?} of the Secret {name:?}, which has {}.",
                if there.is_empty() { "no key".to_owned() } else { few(&there) }
            );
            Problem::new(Reason::SecretKeyNotFound, cause)
        }),
    }
}

/// The limits with their defaults.
pub fn limits(limits: Option<&AttachmentLimits>) -> Limits {
    let AttachmentLimits {
        startup_timeout,
        call_timeout,
        drain_timeout,
        max_concurrent_calls,
        max_message_bytes,
    } = limits.cloned().unwrap_or_default();
    let millis = |d: Option<kube::core::Duration>, default: i64| {
        d.map_or(default, |d| {
            i64::try_from(std::time::Duration::from(d).as_millis()).unwrap_or(i64::MAX)
        })
    };
    Limits {
        startup_timeout_ms: millis(startup_timeout, 60_000),
        call_timeout_ms: millis(call_timeout, 60_000),
        drain_timeout_ms: millis(drain_timeout, 30_000),
        max_concurrent_calls: max_concurrent_calls.unwrap_or(16),
        max_message_bytes: max_message_bytes.unwrap_or(16 * 1024 * 1024),
    }
}
