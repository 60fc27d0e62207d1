//! What is asked for in a Session: each attachment, of the Agent and of the Session's own, judged
//! against its Agent, its Secrets and the others. Pure; what follows for the generations is decided
//! by `domain::lifecycle`.

use super::{
    egress, own, refs, secrets,
    seen::{Problem, Seen},
    target,
};
use crate::{
    api::{
        Agent, McpAttachment,
        agent::{Environment, SessionMode},
        attachment::{AttachmentLimits, Http, SandboxStdio, SecretKeyRef},
        session::FrozenEnvironment,
    },
    domain::{
        allowed_targets::Destination,
        identity::{Fingerprint, server_name_problem},
        lifecycle::{Blueprint, CredentialRef, Desired, Limits, Origin, Place, SecretKey, Wish},
        reason::Reason,
    },
};
use jiff::Timestamp;
use kube::ResourceExt;
use std::{collections::BTreeSet, sync::Arc};

/// What is asked for in a Session.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Each attachment: the Agent's in the order of their age, then the Session's own.
    pub judged: Vec<Judged>,
    /// What the lifecycle is asked for.
    pub desired: Vec<Desired>,
    /// The environment as the Session freezes it now.
    pub environment: Option<FrozenEnvironment>,
    /// Attachments that a ToolSet names and that do not exist.
    pub dangling: Vec<String>,
}

/// Attachments in one Session, at most.
const MOST: usize = 64;

/// One attachment, judged.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The attachment; one of the Session's own is stored in the Session alone.
    pub attachment: Arc<McpAttachment>,
    /// Who brought it.
    pub origin: Origin,
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
            Wish::Hold | Wish::Withdraw(_) | Wish::Yield => None,
        }
    }

    /// Whether the Session has one of its own in its place.
    pub fn is_outranked(&self) -> bool {
        self.wish == Wish::Yield
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
    let environment = freeze(frozen, wanted, mode(seen), seen.now);
    let mut attachments = seen.attachments.clone();
    attachments.sort_by_key(|a| (a.metadata.creation_timestamp.clone(), a.metadata.uid.clone()));
    let mut taken = Taken::default();
    let usable = usable(seen, environment.as_ref());
    let outranking = own::outranking(seen);
    let mut judged = vec![];
    for attachment in attachments {
        judged.push(match outranking.contains(&*attachment.name_any()) {
            true => outranked(attachment),
            false => judge(seen, usable, &mut taken, Origin::Agent, attachment),
        });
    }
    // These count as the newer ones: what a Session brings keeps nothing of the Agent's away.
    for attachment in seen.session.iter().flat_map(|s| own::attachments(s)) {
        judged.push(judge(seen, usable, &mut taken, Origin::Session, attachment));
    }
    let mut desired: Vec<_> = judged.iter().map(desire).collect();
    desired.extend(own::taken_out(seen, &judged));
    desired.extend(seen.unreadable.iter().map(|uid| Desired {
        attachment: String::new(),
        attachment_uid: uid.clone(),
        origin: Origin::Agent,
        wish: Wish::Hold,
        retry: false,
    }));
    Plan { desired, environment, dangling: dangling(seen), judged }
}

fn mode(seen: &Seen) -> SessionMode {
    seen.agent.as_ref().map_or(SessionMode::Standing, |a| a.spec.session.mode)
}

/// The frozen environment, as far as servers may run in it: a Standing Session follows its Agent
/// when that has none any more, one on demand keeps its own for life.
fn usable<'a>(seen: &Seen, frozen: Option<&'a FrozenEnvironment>) -> Option<&'a FrozenEnvironment> {
    let agent = seen.agent.as_ref()?;
    let follows = agent.spec.session.mode == SessionMode::Standing;
    frozen.filter(|_| !follows || agent.spec.environment.is_some())
}

/// The next revision when the Agent's environment differs from what is frozen; a Session on demand
/// freezes the first one that there is.
fn freeze(
    frozen: Option<&FrozenEnvironment>,
    wanted: Option<&Environment>,
    mode: SessionMode,
    now: Timestamp,
) -> Option<FrozenEnvironment> {
    match (frozen, wanted) {
        (Some(frozen), _) if mode == SessionMode::OnDemand => Some(frozen.clone()),
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
    let asked = refs::asked(&**attachment);
    let answered = attachment.status.as_ref().and_then(|s| s.last_handled_reconcile_at.as_ref());
    Desired {
        attachment: attachment.name_any(),
        attachment_uid: attachment.metadata.uid.clone().unwrap_or_default(),
        origin: judged.origin,
        wish: judged.wish.clone(),
        retry: asked.is_some() && asked != answered,
    }
}

/// One of the Agent's in whose place the Session has one of its own.
fn outranked(attachment: Arc<McpAttachment>) -> Judged {
    let cause =
        format!("The Session has an attachment of its own named {:?}.", attachment.name_any());
    Judged {
        target: target::line(&attachment.spec),
        attachment,
        origin: Origin::Agent,
        accepted: Ok(()),
        held: Some(Problem::new(Reason::Outranked, cause)),
        wish: Wish::Yield,
    }
}

/// What older attachments of the same Session have taken.
#[derive(Default)]
struct Taken {
    servers: Vec<(String, String)>,
    targets: Vec<(String, String)>,
}

fn judge(
    seen: &Seen,
    environment: Option<&FrozenEnvironment>,
    taken: &mut Taken,
    origin: Origin,
    attachment: Arc<McpAttachment>,
) -> Judged {
    let target = target::line(&attachment.spec);
    let told = |problem: Problem| match origin {
        Origin::Agent => problem,
        Origin::Session => {
            let message = own::told(&attachment.name_any(), &problem.message);
            Problem { message, ..problem }
        }
    };
    let build = |accepted: Result<(), Problem>, held: Option<Problem>, wish| Judged {
        attachment: attachment.clone(),
        origin,
        accepted: accepted.map_err(told),
        held: held.map(told),
        wish,
        target: target.clone(),
    };
    let valid = match validate(seen, environment, taken, origin, &attachment) {
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
    origin: Origin,
    attachment: &'a McpAttachment,
) -> Result<Valid<'a>, Problem> {
    let (name, spec) = (attachment.name_any(), &attachment.spec);
    let Some(agent) = &seen.agent else {
        let cause = format!("The Agent {:?} does not exist.", spec.agent_ref.name);
        return Err(Problem::new(Reason::AgentNotFound, cause));
    };
    if origin == Origin::Session && !own::allowed(seen) {
        let cause =
            format!("The Agent {:?} has no sessionAttachments.max of Allow.", agent.name_any());
        return Err(Problem::new(Reason::SessionAttachmentsDenied, cause));
    }
    let server = spec.server_name.clone().unwrap_or_else(|| name.clone());
    if let Some(problem) = server_name_problem(&server) {
        let from = if spec.server_name.is_some() { "spec.serverName" } else { "metadata.name" };
        let cause = format!("The server name {server:?} (from {from}) {problem}.");
        return Err(Problem::new(Reason::InvalidServerName, cause));
    }
    if origin == Origin::Session {
        own::tool_set(seen, &name)?;
    } else if !has_tool_set(agent, &name) {
        let cause = format!("The Agent {:?} has no ToolSet for {name:?}.", agent.name_any());
        return Err(Problem::new(Reason::ToolSetMissing, cause));
    }
    let (valid, identity) = match (&spec.http, &spec.sandbox_stdio) {
        (Some(http), _) => {
            let url = target::http_url(http, &seen.rules.api_server)?;
            if let Some(credential) = &http.credential {
                let to = Destination::Origin(url.origin());
                secrets::may_go(seen, &credential.secret_key_ref, "spec.http.credential", to)?;
            }
            let identity = target::http_identity(&url, http);
            (Valid::Http { url: url.as_str().to_owned(), http, server: server.clone() }, identity)
        }
        (None, Some(stdio)) => {
            let Some(environment) = environment else {
                let cause = format!("The Agent {:?} has no environment.", agent.name_any());
                return Err(Problem::new(Reason::EnvironmentMissing, cause));
            };
            egress::ways(&environment.spec.egress, &seen.rules)?;
            for e in &stdio.secret_env {
                let field = format!("spec.sandboxStdio.secretEnv {}", e.name);
                secrets::may_go(seen, &e.secret_key_ref, &field, Destination::Stdio)?;
            }
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
    if taken.servers.len() >= MOST {
        let cause = format!("The Session has {MOST} older attachments.");
        return Err(Problem::new(Reason::TooManyAttachments, cause));
    }
    taken.servers.push((server, name.clone()));
    taken.targets.push((identity, name));
    Ok(valid)
}

fn has_tool_set(agent: &Agent, attachment: &str) -> bool {
    agent.spec.tool_sets.iter().any(|t| t.attachment == attachment)
}

/// What a new generation is made from; fails when a Secret's value is missing or of no use.
fn blueprint(
    seen: &Seen,
    attachment: &McpAttachment,
    valid: Valid<'_>,
) -> Result<Blueprint, Problem> {
    let limits = limits(attachment.spec.limits.as_ref());
    let to = limits.digest(Fingerprint::new("source"));
    let rollout = attachment.spec.rollout;
    match valid {
        Valid::Http { url, http, server } => {
            let to = to.field(&server).field("http").field(&url);
            let credential = http.credential.as_ref();
            let value = credential.map(|c| secrets::header(seen, &c.secret_key_ref)).transpose()?;
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
            let place = Place::Http { url, credential };
            Ok(Blueprint { server, source, place, limits, rollout })
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
            secrets::fit(seen, secret_env.iter().map(|e| &e.secret_key_ref))?;
            let mut keys = vec![];
            for e in secret_env {
                let SecretKeyRef { name, key } = &e.secret_key_ref;
                let value = secrets::variable(seen, &e.name, &e.secret_key_ref)?;
                to = to.field(&e.name).field(name).field(key).field(value);
                let secret = SecretKey { secret: name.clone(), key: key.clone() };
                if !keys.contains(&secret) {
                    keys.push(secret);
                }
            }
            let source = to.finish();
            let place = Place::Pod { secrets: keys };
            Ok(Blueprint { server, source, place, limits, rollout })
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::RECONCILE_REQUESTED_AT,
        controller::{
            exports::ExportsSeen,
            hosts::Gateway,
            secrets::{Known, SecretState, Values},
            seen::{Leaving, Rules},
        },
        domain::identity::SessionKey,
    };
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn attachment(name: &str, age: u8, spec: Value) -> Arc<McpAttachment> {
        let mut spec = spec;
        spec["agentRef"] = json!({"name": "coder"});
        let object = json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "McpAttachment",
            "metadata": {
                "name": name, "namespace": "team-a", "uid": format!("uid-{name}"),
                "creationTimestamp": format!("2026-01-01T00:00:{age:02}Z"),
            },
            "spec": spec,
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn http(url: &str) -> Value {
        json!({"http": {"url": url}})
    }

    fn agent(spec: Value) -> Arc<Agent> {
        let object = json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": "coder", "namespace": "team-a", "uid": "uid-agent"},
            "spec": spec,
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn seen(attachments: Vec<Arc<McpAttachment>>) -> Seen {
        let sets: Vec<_> =
            attachments.iter().map(|a| json!({"attachment": a.name_any()})).collect();
        let environment = json!({"image": "tools:1"});
        Seen {
            key: SessionKey { namespace: "team-a".into(), name: "coder".into() },
            now: Timestamp::from_second(1_000).unwrap(),
            agent: Some(agent(json!({"environment": environment, "toolSets": sets}))),
            session: None,
            attachments,
            leaving: Leaving::default(),
            unreadable: vec![],
            secrets: BTreeMap::new(),
            pods: vec![],
            policy: None,
            exports: ExportsSeen::default(),
            gateways: vec![Gateway { name: "gw".into(), incarnation: "i".into() }],
            rules: Rules::default(),
        }
    }

    fn values(known: Known) -> Values {
        Values { keys: BTreeMap::from([("k".to_owned(), known)]), allowed_targets: None }
    }

    fn refused(plan: &Plan, name: &str) -> Option<Reason> {
        let judged = plan.judged.iter().find(|j| j.attachment.name_any() == name).unwrap();
        judged.accepted.as_ref().err().map(|p| p.reason)
    }

    fn source(seen: &Seen) -> String {
        plan(seen).judged[0].source().expect("it is served").to_owned()
    }

    #[rstest]
    #[case::fine(http("https://a.example.com/"), None)]
    #[case::loopback(http("http://127.0.0.1/"), Some(Reason::TargetForbidden))]
    #[case::metadata(http("http://169.254.169.254/"), Some(Reason::TargetForbidden))]
    #[case::user(http("http://u@h/"), Some(Reason::InvalidUrl))]
    #[case::name(json!({"serverName": "a__b", "http": {"url": "https://h/"}}), Some(Reason::InvalidServerName))]
    #[case::stdio(json!({"sandboxStdio": {"command": "c"}}), None)]
    fn one(#[case] spec: Value, #[case] reason: Option<Reason>) {
        let seen = seen(vec![attachment("files", 1, spec)]);
        assert_eq!(refused(&plan(&seen), "files"), reason);
    }

    #[test]
    fn a_refusal_of_one_is_no_claim_against_others() {
        let mut all = seen(vec![
            attachment(
                "older",
                1,
                json!({"serverName": "x", "http": {"url": "http://127.0.0.1/"}}),
            ),
            attachment("newer", 2, json!({"serverName": "x", "http": {"url": "https://h/"}})),
        ]);
        let judged = plan(&all);
        assert_eq!(refused(&judged, "older"), Some(Reason::TargetForbidden));
        assert_eq!(refused(&judged, "newer"), None);
        // Age decides, not the order of reading.
        all.attachments = vec![
            attachment("newer", 2, json!({"serverName": "x", "http": {"url": "https://h/"}})),
            attachment("older", 1, json!({"serverName": "x", "http": {"url": "https://g/"}})),
        ];
        assert_eq!(refused(&plan(&all), "newer"), Some(Reason::DuplicateServerName));
        assert_eq!(refused(&plan(&all), "older"), None);
    }

    #[test]
    fn of_the_same_age_the_smaller_uid_stays() {
        let seen = seen(vec![
            attachment("b", 1, http("https://h/")),
            attachment("a", 1, http("https://h/")),
        ]);
        assert_eq!(refused(&plan(&seen), "a"), None);
        assert_eq!(refused(&plan(&seen), "b"), Some(Reason::DuplicateTarget));
    }

    /// With a Session that brings these, each with its ToolSet, and an Agent that lets it.
    fn bringing(mut seen: Seen, attachments: Value) -> Seen {
        let mut agent = Agent::clone(seen.agent.as_ref().unwrap());
        agent.spec.session_attachments.max = crate::domain::gate::Permission::Allow;
        let mut session = crate::controller::build::session::standing(&agent);
        session.metadata.uid = Some("uid-session".to_owned());
        session.spec.attachments = serde_json::from_value(attachments).unwrap();
        let set = |own: &crate::api::session::OwnAttachment| {
            serde_json::from_value(json!({"attachment": own.name})).unwrap()
        };
        session.spec.tool_sets = session.spec.attachments.iter().map(set).collect();
        (seen.agent, seen.session) = (Some(Arc::new(agent)), Some(Arc::new(session)));
        seen
    }

    fn own<'a>(plan: &'a Plan, name: &str) -> &'a Judged {
        let all = plan.judged.iter().filter(|j| j.origin == Origin::Session);
        all.into_iter().find(|j| j.attachment.name_any() == name).unwrap()
    }

    fn wish<'a>(plan: &'a Plan, origin: Origin, name: &str) -> &'a Wish {
        let found = plan.desired.iter().find(|d| (d.origin, &*d.attachment) == (origin, name));
        &found.unwrap().wish
    }

    #[test]
    fn a_sessions_own_takes_the_place_of_the_agents_of_its_name_alone() {
        let agents = || {
            seen(vec![
                attachment("files", 1, http("https://a/")),
                attachment("issues", 2, http("https://b/")),
            ])
        };
        let brings = bringing(agents(), json!([{"name": "files", "http": {"url": "https://c/"}}]));
        let planned = plan(&brings);
        assert!(planned.judged[0].is_outranked() && planned.judged[0].accepted.is_ok());
        assert_eq!(*wish(&planned, Origin::Agent, "files"), Wish::Yield);
        for (origin, name) in [(Origin::Agent, "issues"), (Origin::Session, "files")] {
            assert!(matches!(wish(&planned, origin, name), Wish::Serve(_)), "{name}");
        }
        let uids: Vec<_> = planned.desired.iter().map(|d| d.attachment_uid.as_str()).collect();
        assert_eq!(uids[..2], ["uid-files", "uid-issues"]);
        assert!(uids[2].starts_with("own-"), "{uids:?}");
        // The same target as the one that it outranks is no duplicate.
        let same = bringing(agents(), json!([{"name": "files", "http": {"url": "https://a/"}}]));
        assert_eq!(own(&plan(&same), "files").accepted, Ok(()));
    }

    #[test]
    fn without_the_agents_leave_a_session_brings_nothing_and_outranks_nothing() {
        let agents = seen(vec![attachment("files", 1, http("https://a/"))]);
        let mut brings =
            bringing(agents, json!([{"name": "files", "http": {"url": "https://c/"}}]));
        let mut agent = Agent::clone(brings.agent.as_ref().unwrap());
        agent.spec.session_attachments = Default::default();
        brings.agent = Some(Arc::new(agent));
        let planned = plan(&brings);
        assert!(matches!(wish(&planned, Origin::Agent, "files"), Wish::Serve(_)));
        let refused = own(&planned, "files").accepted.as_ref().unwrap_err();
        assert_eq!(refused.reason, Reason::SessionAttachmentsDenied);
        assert_eq!(*wish(&planned, Origin::Session, "files"), Wish::Withdraw(Reason::Draining));
    }

    #[rstest]
    #[case::server_of_the_agents(
        json!([{"name": "mine", "serverName": "files", "http": {"url": "https://c/"}}]),
        Reason::DuplicateServerName
    )]
    #[case::target_of_the_agents(json!([{"name": "mine", "http": {"url": "https://a/"}}]), Reason::DuplicateTarget)]
    #[case::server_of_the_first(
        json!([{"name": "first", "serverName": "mine", "http": {"url": "https://c/"}}, {"name": "mine", "http": {"url": "https://d/"}}]),
        Reason::DuplicateServerName
    )]
    #[case::target_of_the_first(
        json!([{"name": "first", "http": {"url": "https://c/"}}, {"name": "mine", "http": {"url": "https://c/"}}]),
        Reason::DuplicateTarget
    )]
    #[case::forbidden(json!([{"name": "mine", "http": {"url": "http://127.0.0.1/"}}]), Reason::TargetForbidden)]
    #[case::secret(
        json!([{"name": "mine", "http": {"url": "https://c/", "credential": {"secretKeyRef": {"name": "reserved", "key": "k"}}}}]),
        Reason::SecretReserved
    )]
    fn of_two_the_sessions_own_gives_way(#[case] set: Value, #[case] reason: Reason) {
        let mut agents = seen(vec![attachment("files", 9, http("https://a/"))]);
        agents.rules.reserved_secrets = vec!["reserved".to_owned()];
        let planned = plan(&bringing(agents, set));
        let refused = own(&planned, "mine").accepted.as_ref().unwrap_err();
        assert_eq!(refused.reason, reason);
        assert!(!refused.message.contains(" spec.http"), "{}", refused.message);
        assert_eq!(refused_of_agent(&planned), None);
        let told = crate::controller::own::accepted(&planned).unwrap_err();
        assert!(told.message.starts_with("mine: ") && told.reason == reason, "{}", told.message);
    }

    fn refused_of_agent(plan: &Plan) -> Option<&Problem> {
        let mut agents = plan.judged.iter().filter(|j| j.origin == Origin::Agent);
        agents.find_map(|j| j.accepted.as_ref().err())
    }

    #[test]
    fn a_sessions_own_inherits_no_tool_set_of_the_agents() {
        let agents = seen(vec![attachment("files", 1, http("https://a/"))]);
        let mut brings =
            bringing(agents, json!([{"name": "files", "http": {"url": "https://c/"}}]));
        let mut session = crate::api::Session::clone(brings.session.as_ref().unwrap());
        session.spec.tool_sets = vec![];
        brings.session = Some(Arc::new(session));
        let planned = plan(&brings);
        let refused = own(&planned, "files").accepted.as_ref().unwrap_err();
        assert_eq!(refused.reason, Reason::ToolSetMissing);
        assert!(refused.message.contains("spec.toolSets of the Session"), "{}", refused.message);
    }

    #[test]
    fn what_was_taken_out_of_the_set_makes_room() {
        let agents = seen(vec![attachment("issues", 2, http("https://b/"))]);
        let mut brings = bringing(agents, json!([{"name": "new", "http": {"url": "https://c/"}}]));
        let mut session = crate::api::Session::clone(brings.session.as_ref().unwrap());
        let entry = |name: &str, origin: &str| {
            json!({
                "generation": 1, "attachment": name, "attachmentUid": format!("uid of {name}"),
                "origin": origin, "server": name, "source": "sha256:s", "state": "Active",
                "target": {"http": {"url": "https://h/"}},
                "limits": {"startupTimeoutMs": 1, "callTimeoutMs": 2, "drainTimeoutMs": 3,
                    "maxConcurrentCalls": 4, "maxMessageBytes": 5555},
                "reason": "Active", "since": "2026-01-01T00:00:00Z",
            })
        };
        let entries = json!([entry("old", "Session"), entry("deleted", "Agent")]);
        session.status = Some(crate::api::SessionStatus {
            attachments: serde_json::from_value(entries).unwrap(),
            ..crate::api::SessionStatus::default()
        });
        brings.session = Some(Arc::new(session));
        let planned = plan(&brings);
        assert_eq!(*wish(&planned, Origin::Session, "old"), Wish::Yield);
        assert!(planned.desired.iter().all(|d| d.attachment != "deleted"), "that drains at once");
    }

    #[test]
    fn a_session_holds_no_more_than_it_can() {
        let all =
            (0..64).map(|i| attachment(&format!("a{i}"), i % 60, http(&format!("https://h{i}/"))));
        let brings = bringing(
            seen(all.collect()),
            json!([{"name": "mine", "http": {"url": "https://mine/"}}, {"name": "a7", "http": {"url": "https://x/"}}]),
        );
        let planned = plan(&brings);
        // One takes the place of an Agent's, so there is room for the other.
        assert_eq!(own(&planned, "mine").accepted, Ok(()));
        let refused = own(&planned, "a7").accepted.as_ref().unwrap_err();
        assert_eq!(refused.reason, Reason::TooManyAttachments);
    }

    #[test]
    fn two_servers_that_differ_in_env_alone_stand_side_by_side() {
        let of = |tenant: &str| {
            let env = json!([{"name": "TENANT", "value": tenant}]);
            json!({"sandboxStdio": {"command": "c", "args": ["x"], "env": env}})
        };
        let two = |one: &str, other: &str| {
            seen(vec![attachment("a", 1, of(one)), attachment("b", 2, of(other))])
        };
        assert_eq!(refused(&plan(&two("blue", "red")), "b"), None);
        assert_eq!(refused(&plan(&two("blue", "blue")), "b"), Some(Reason::DuplicateTarget));
    }

    #[test]
    fn a_value_of_no_use_holds_before_anything_is_made() {
        let known = |value: &[u8]| Known::of(value, "hash".to_owned());
        let stdio = json!({"sandboxStdio": {"command": "c", "secretEnv": [
            {"name": "KEY", "secretKeyRef": {"name": "s", "key": "k"}},
        ]}});
        let http = json!({"http": {
            "url": "https://h/", "credential": {"secretKeyRef": {"name": "s", "key": "k"}},
        }});
        for (spec, value) in [(stdio, b"a\0b".as_slice()), (http, b"")] {
            let mut seen = seen(vec![attachment("files", 1, spec)]);
            let values = values(known(value));
            seen.secrets = [("s".to_owned(), SecretState::Present(Arc::new(values)))].into();
            let judged = plan(&seen);
            assert_eq!(judged.desired[0].wish, Wish::Hold);
            let held = judged.judged[0].held.as_ref().unwrap();
            assert_eq!(held.reason, Reason::SecretValueInvalid);
        }
    }

    #[test]
    fn without_an_environment_only_stdio_waits() {
        let mut seen = seen(vec![
            attachment("files", 1, json!({"sandboxStdio": {"command": "c"}})),
            attachment("issues", 2, http("https://h/")),
        ]);
        seen.agent =
            Some(agent(json!({"toolSets": [{"attachment": "files"}, {"attachment": "issues"}]})));
        assert_eq!(refused(&plan(&seen), "files"), Some(Reason::EnvironmentMissing));
        assert_eq!(refused(&plan(&seen), "issues"), None);
    }

    #[test]
    fn every_field_of_a_spec_is_a_new_source_and_metadata_is_none() {
        let secret = |value: &str| {
            let known = Known::of(value.as_bytes(), value.to_owned());
            BTreeMap::from([("s".to_owned(), SecretState::Present(Arc::new(values(known))))])
        };
        let of = |spec: Value, secrets| {
            let mut seen = seen(vec![attachment("files", 1, spec)]);
            seen.secrets = secrets;
            source(&seen)
        };
        let stdio = json!({"sandboxStdio": {
            "command": "c", "args": ["x", "y"], "env": [{"name": "A", "value": "1"}],
            "secretEnv": [{"name": "B", "secretKeyRef": {"name": "s", "key": "k"}}],
        }});
        let http = json!({"http": {
            "url": "https://h/", "credential": {"secretKeyRef": {"name": "s", "key": "k"}},
        }});
        let mut all = std::collections::BTreeSet::new();
        for base in [&stdio, &http] {
            assert!(all.insert(of(base.clone(), secret("v1"))));
            assert!(all.insert(of(base.clone(), secret("v2"))), "the value of the Secret");
            for (field, value) in [
                ("serverName", json!("other")),
                ("limits", json!({"callTimeout": "7s"})),
                ("limits", json!({"maxMessageBytes": 4096})),
            ] {
                let mut spec = base.clone();
                spec[field] = value;
                assert!(all.insert(of(spec, secret("v1"))), "{field}");
            }
        }
        for (pointer, value) in [
            ("/sandboxStdio/command", json!("d")),
            ("/sandboxStdio/args", json!(["x y"])),
            ("/sandboxStdio/env/0/name", json!("AA")),
            ("/sandboxStdio/env/0/value", json!("2")),
            ("/sandboxStdio/secretEnv/0/name", json!("BB")),
        ] {
            let mut spec = stdio.clone();
            *spec.pointer_mut(pointer).unwrap() = value;
            assert!(all.insert(of(spec, secret("v1"))), "{pointer}");
        }
        for (pointer, value) in [
            ("/http/url", json!("https://h/x")),
            ("/http/credential/header", json!("X-Key")),
            ("/http/credential/scheme", json!("Token")),
        ] {
            let mut spec = http.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap()[key] = value;
            assert!(all.insert(of(spec, secret("v1"))), "{pointer}");
        }
        let mut swapped = stdio.clone();
        swapped["sandboxStdio"]["args"] = json!(["y", "x"]);
        assert!(all.insert(of(swapped, secret("v1"))), "the order of arguments counts");
        let mut seen = seen(vec![attachment("files", 9, http)]);
        seen.secrets = secret("v1");
        assert!(!all.insert(source(&seen)), "age is no source");
    }

    #[test]
    fn egress_is_part_of_the_environment_and_a_forbidden_one_is_refused() {
        let of = |egress: Value| {
            let mut seen =
                seen(vec![attachment("files", 1, json!({"sandboxStdio": {"command": "c"}}))]);
            let environment = json!({"image": "tools:1", "egress": egress});
            seen.agent = Some(agent(
                json!({"environment": environment, "toolSets": [{"attachment": "files"}]}),
            ));
            seen
        };
        let to = |cidr: &str| json!({"mode": "Allow", "rules": [{"cidr": cidr, "ports": [{"port": 443}]}]});
        let first = plan(&of(to("192.0.2.0/24")));
        let frozen = first.environment.clone().unwrap();
        let mut session = crate::controller::build::session::standing(&agent(json!({})));
        session.status = Some(crate::api::SessionStatus {
            environment: Some(frozen),
            ..crate::api::SessionStatus::default()
        });
        let mut later = of(to("192.0.2.0/25"));
        later.session = Some(Arc::new(session));
        let second = plan(&later);
        assert_eq!(second.environment.as_ref().map(|e| e.revision), Some(2));
        assert_ne!(first.judged[0].source(), second.judged[0].source());
        let forbidden = plan(&of(to("169.254.169.254/32")));
        assert_eq!(refused(&forbidden, "files"), Some(Reason::EgressForbidden));
    }

    const STANDING: SessionMode = SessionMode::Standing;

    #[test]
    fn the_next_environment_is_the_next_revision() {
        let wanted: Environment = serde_json::from_value(json!({"image": "tools:1"})).unwrap();
        let now = Timestamp::from_second(7).unwrap();
        let first = freeze(None, Some(&wanted), STANDING, now).unwrap();
        assert_eq!((first.revision, first.since), (1, now));
        let later = Timestamp::from_second(9).unwrap();
        assert_eq!(freeze(Some(&first), Some(&wanted), STANDING, later), Some(first.clone()));
        let other: Environment = serde_json::from_value(json!({"image": "tools:2"})).unwrap();
        assert_eq!(freeze(Some(&first), Some(&other), STANDING, later).unwrap().revision, 2);
        assert_eq!(freeze(Some(&first), None, STANDING, later), Some(first));
    }

    #[test]
    fn a_session_on_demand_keeps_its_first_environment_for_life() {
        let on_demand = |environment: Value| {
            let mut spec = json!({
                "session": {"mode": "OnDemand"}, "toolSets": [{"attachment": "files"}],
            });
            if !environment.is_null() {
                spec["environment"] = environment;
            }
            Some(agent(spec))
        };
        let mut seen =
            seen(vec![attachment("files", 1, json!({"sandboxStdio": {"command": "c"}}))]);
        seen.agent = on_demand(Value::Null);
        assert_eq!(refused(&plan(&seen), "files"), Some(Reason::EnvironmentMissing));
        seen.agent = on_demand(json!({"image": "tools:1"}));
        let first = plan(&seen);
        let frozen = first.environment.clone().unwrap();
        assert_eq!((frozen.revision, frozen.spec.image.as_str()), (1, "tools:1"));
        let mut session = crate::controller::build::session::standing(seen.agent.as_ref().unwrap());
        session.status = Some(crate::api::SessionStatus {
            environment: Some(frozen.clone()),
            ..crate::api::SessionStatus::default()
        });
        seen.session = Some(Arc::new(session));
        for later in [json!({"image": "tools:2"}), Value::Null] {
            seen.agent = on_demand(later);
            let again = plan(&seen);
            assert_eq!(again.environment.as_ref(), Some(&frozen));
            assert_eq!(again.judged[0].source(), first.judged[0].source());
        }
        seen.agent = None;
        let without = plan(&seen);
        assert_eq!(without.environment.as_ref(), Some(&frozen));
        assert_eq!(refused(&without, "files"), Some(Reason::AgentNotFound));
    }

    #[test]
    fn a_request_for_another_try_counts_until_it_is_answered() {
        let mut one = (*attachment("files", 1, http("https://h/"))).clone();
        let asked = [(RECONCILE_REQUESTED_AT.to_owned(), "t1".to_owned())];
        one.metadata.annotations = Some(asked.into());
        assert!(plan(&seen(vec![Arc::new(one.clone())])).desired[0].retry);
        let status = crate::api::McpAttachmentStatus {
            last_handled_reconcile_at: Some("t1".to_owned()),
            ..crate::api::McpAttachmentStatus::default()
        };
        one.status = Some(status);
        assert!(!plan(&seen(vec![Arc::new(one)])).desired[0].retry);
    }

    #[test]
    fn a_missing_secret_holds_and_a_tool_set_without_attachment_is_told() {
        let spec = json!({"http": {
            "url": "https://h/", "credential": {"secretKeyRef": {"name": "s", "key": "k"}},
        }});
        let mut seen = seen(vec![attachment("files", 1, spec)]);
        let judged = plan(&seen);
        assert_eq!(judged.desired[0].wish, Wish::Hold);
        assert_eq!(judged.judged[0].held.as_ref().unwrap().reason, Reason::SecretNotFound);
        seen.agent =
            Some(agent(json!({"toolSets": [{"attachment": "files"}, {"attachment": "gone"}]})));
        assert_eq!(plan(&seen).dangling, ["gone"]);
    }
}
