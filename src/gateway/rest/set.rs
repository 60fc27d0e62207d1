//! A set as a caller sends it: read with the schema's own types, and checked for what can be told
//! without the cluster, so that the mistakes that a Session would only report are refused before it
//! is written. Pure; the API server's own rules come on top.

use super::store::is_name;
use crate::{
    api::{
        Agent,
        agent::ToolSetSpec,
        attachment::{AgentRef, Http, SandboxStdio},
        session::OwnAttachment,
    },
    domain::{
        address::{canonical_url, forbidden_host},
        gate::Permission,
        identity::server_name_problem,
        reason::Reason,
    },
    gateway::answer::HttpRefusal,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::collections::BTreeSet;

/// Attachments and their ToolSets.
#[derive(Debug)]
pub(super) struct Set {
    attachments: Vec<OwnAttachment>,
    sent: Value,
}

/// A Session that is to be.
#[derive(Debug)]
pub(super) struct Opening {
    /// Its name; none for a free one.
    pub name: Option<String>,
    /// Its Agent.
    pub agent: String,
    /// What it brings.
    pub set: Set,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetBody {
    attachments: Vec<OwnAttachment>,
    #[serde(default)]
    tool_sets: Vec<ToolSetSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OpeningBody {
    #[serde(default)]
    name: Option<String>,
    agent_ref: AgentRef,
    #[serde(default)]
    attachments: Vec<OwnAttachment>,
    #[serde(default)]
    tool_sets: Vec<ToolSetSpec>,
}

impl Opening {
    /// Reads the body of a POST.
    pub fn read(body: &[u8]) -> Result<Self, HttpRefusal> {
        let (OpeningBody { name, agent_ref, attachments, tool_sets }, sent) = read(body)?;
        if !is_name(&agent_ref.name) {
            let message = "agentRef.name: it must be the metadata.name of an Agent";
            return Err(HttpRefusal::invalid(Reason::InvalidRequest, message));
        }
        let set = Set::checked(SetBody { attachments, tool_sets }, sent)?;
        Ok(Self { name, agent: agent_ref.name, set })
    }
}

impl Set {
    /// Reads the body of a PUT.
    pub fn read(body: &[u8]) -> Result<Self, HttpRefusal> {
        let (set, sent) = read(body)?;
        Self::checked(set, sent)
    }

    /// How many attachments.
    pub fn len(&self) -> usize {
        self.attachments.len()
    }

    /// Makes it the set of a Session's spec, as it was sent.
    pub fn put_into(&self, spec: &mut Value) {
        for field in ["attachments", "toolSets"] {
            spec[field] = self.sent.get(field).cloned().unwrap_or_else(|| Value::Array(vec![]));
        }
    }

    fn checked(set: SetBody, sent: Value) -> Result<Self, HttpRefusal> {
        let SetBody { attachments, tool_sets } = set;
        let (mut servers, mut targets) = (BTreeSet::new(), vec![]);
        for own in &attachments {
            let OwnAttachment { name, server_name, sandbox_stdio, http, .. } = own;
            let refused = |reason, problem: String| {
                HttpRefusal::invalid(reason, format!("attachments[{name}]: {problem}"))
            };
            let server = server_name.as_ref().unwrap_or(name);
            if let Some(problem) = server_name_problem(server) {
                let problem = format!("the server name {server:?} {problem}");
                return Err(refused(Reason::InvalidServerName, problem));
            }
            if !servers.insert(server.clone()) {
                let problem = format!("another one of the set has the server name {server:?}");
                return Err(refused(Reason::DuplicateServerName, problem));
            }
            let target = match (sandbox_stdio, http) {
                (Some(stdio), None) => Target::of_stdio(stdio),
                (None, Some(http)) => {
                    Target::of_http(http).map_err(|(reason, problem)| refused(reason, problem))?
                }
                _ => {
                    let problem = "exactly one of sandboxStdio and http must be set".to_owned();
                    return Err(refused(Reason::InvalidRequest, problem));
                }
            };
            if targets.contains(&target) {
                let problem = "another one of the set has exactly this target".to_owned();
                return Err(refused(Reason::DuplicateTarget, problem));
            }
            targets.push(target);
            if !tool_sets.iter().any(|set| set.attachment == *name) {
                let problem =
                    "it has no entry in toolSets, so nothing of it may be used".to_owned();
                return Err(refused(Reason::ToolSetMissing, problem));
            }
        }
        Ok(Self { attachments, sent })
    }

    /// Whether the Agent lets its Sessions bring this.
    pub fn fits(&self, agent: &Agent) -> Result<(), HttpRefusal> {
        if self.attachments.is_empty() {
            return Ok(());
        }
        if agent.spec.session_attachments.max == Permission::Deny {
            let reason = Reason::SessionAttachmentsDenied;
            let message = format!("{} {}", reason.meaning(), reason.next_step());
            return Err(HttpRefusal::invalid(reason, message));
        }
        let stdio = self.attachments.iter().find(|own| own.sandbox_stdio.is_some());
        if let (Some(own), None) = (stdio, &agent.spec.environment) {
            let message =
                format!("attachments[{}]: the Agent has no environment to run it in", own.name);
            return Err(HttpRefusal::invalid(Reason::EnvironmentMissing, message));
        }
        Ok(())
    }
}

/// What makes two targets the same, as the operator compares them.
#[derive(Debug, PartialEq)]
enum Target {
    Http { url: String, secret: Option<(String, String)> },
    Stdio(SandboxStdio),
}

impl Target {
    fn of_stdio(stdio: &SandboxStdio) -> Self {
        let mut stdio = stdio.clone();
        stdio.env.sort_by(|a, b| a.name.cmp(&b.name));
        stdio.secret_env.sort_by(|a, b| a.name.cmp(&b.name));
        Self::Stdio(stdio)
    }

    fn of_http(http: &Http) -> Result<Self, (Reason, String)> {
        let invalid = |problem| (Reason::InvalidUrl, format!("http.url: {problem}"));
        let url = canonical_url(&http.url).map_err(invalid)?;
        if let Some(what) = forbidden_host(url.host()) {
            let problem = format!("http.url names {what}, where the gateway never connects to");
            return Err((Reason::TargetForbidden, problem));
        }
        if http.credential.is_some() && !url.is_https() && !http.insecure_credential {
            let problem = "http.credential would travel over plain http".to_owned();
            return Err((Reason::InsecureCredential, problem));
        }
        let key = http.credential.as_ref().map(|c| &c.secret_key_ref);
        let secret = key.map(|key| (key.name.clone(), key.key.clone()));
        Ok(Self::Http { url: url.as_str().to_owned(), secret })
    }
}

/// A body as its type and as it was sent. What is wrong is told with the path to it.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<(T, Value), HttpRefusal> {
    let refused = |problem: String| HttpRefusal::invalid(Reason::InvalidRequest, problem);
    let typed = &mut serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(typed).map_err(|error| {
        let (path, problem) = (error.path().to_string(), error.into_inner());
        refused(format!("the body, at {path}: {problem}"))
    })?;
    let sent = serde_json::from_slice(body)
        .map_err(|problem| refused(format!("the body is no JSON object: {problem}")))?;
    Ok((read, sent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn http(name: &str, url: &str) -> Value {
        json!({"name": name, "http": {"url": url}})
    }

    fn set(attachments: &[Value]) -> Value {
        let names = attachments.iter().map(|a| json!({"attachment": a["name"]}));
        json!({"attachments": attachments, "toolSets": names.collect::<Vec<_>>()})
    }

    #[rstest]
    #[case::fine(set(&[http("a", "https://a.example.com/"), http("b", "https://b.example.com/")]), None)]
    #[case::nothing(json!({"attachments": []}), None)]
    #[case::no_object(json!([]), Some(Reason::InvalidRequest))]
    #[case::no_attachments(json!({"toolSets": []}), Some(Reason::InvalidRequest))]
    #[case::unknown_field(json!({"attachments": [], "agentRef": {"name": "x"}}), Some(Reason::InvalidRequest))]
    #[case::unknown_field_inside(
        set(&[json!({"name": "a", "http": {"url": "https://h/", "token": "t"}})]),
        Some(Reason::InvalidRequest)
    )]
    #[case::no_target(set(&[json!({"name": "a"})]), Some(Reason::InvalidRequest))]
    #[case::no_tool_set(
        json!({"attachments": [http("a", "https://h/")]}),
        Some(Reason::ToolSetMissing)
    )]
    #[case::server_name(set(&[http("a__b", "https://h/")]), Some(Reason::InvalidServerName))]
    #[case::same_server(
        set(&[http("a", "https://h/"), json!({"name": "b", "serverName": "a", "http": {"url": "https://g/"}})]),
        Some(Reason::DuplicateServerName)
    )]
    #[case::same_target(
        set(&[http("a", "https://h.example.com/"), http("b", "HTTPS://h.example.com:443/")]),
        Some(Reason::DuplicateTarget)
    )]
    #[case::same_program(
        set(&[json!({"name": "a", "sandboxStdio": {"command": "c"}}), json!({"name": "b", "sandboxStdio": {"command": "c"}})]),
        Some(Reason::DuplicateTarget)
    )]
    #[case::loopback(set(&[http("a", "http://127.0.0.1/")]), Some(Reason::TargetForbidden))]
    #[case::url(set(&[http("a", "http://u@h/")]), Some(Reason::InvalidUrl))]
    fn what_can_be_told_of_a_set_is_told(#[case] body: Value, #[case] reason: Option<Reason>) {
        let read = Set::read(body.to_string().as_bytes());
        assert_eq!(read.err().map(|refused| refused.reason), reason);
    }

    #[test]
    fn a_set_is_written_as_it_was_sent() {
        let sent = set(&[http("a", "https://h/")]);
        let read = Set::read(sent.to_string().as_bytes()).unwrap();
        let mut spec = json!({"agentRef": {"name": "x"}, "attachments": [{"name": "old"}]});
        read.put_into(&mut spec);
        assert_eq!(spec["attachments"], sent["attachments"]);
        assert_eq!(spec["toolSets"], sent["toolSets"]);
        assert_eq!(spec["agentRef"]["name"], "x");
    }

    #[rstest]
    #[case::allowed(json!({"sessionAttachments": {"max": "Allow"}, "environment": {"image": "i"}}), None)]
    #[case::denied(json!({"environment": {"image": "i"}}), Some(Reason::SessionAttachmentsDenied))]
    #[case::nowhere(json!({"sessionAttachments": {"max": "Allow"}}), Some(Reason::EnvironmentMissing))]
    fn the_agent_bounds_it(#[case] spec: Value, #[case] reason: Option<Reason>) {
        let agent: Agent = serde_json::from_value(json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": "x"}, "spec": spec,
        }))
        .unwrap();
        let body = set(&[json!({"name": "a", "sandboxStdio": {"command": "c"}})]);
        let read = Set::read(body.to_string().as_bytes()).unwrap();
        assert_eq!(read.fits(&agent).err().map(|refused| refused.reason), reason);
        let empty = Set::read(br#"{"attachments": []}"#).unwrap();
        assert!(empty.fits(&agent).is_ok(), "to bring nothing is always allowed");
    }
}
