//! The installation with two gateways, and the Sessions that are called.

use crate::{
    load::{Caller, Got},
    node::Node,
    support::{
        LIMIT, Server, Team,
        cluster::SYSTEM,
        objects::{object, shown, stub_image},
        team::{CALLER, agent, http, stdio},
        until,
    },
};
use awaken_stub::{
    http::Seen,
    mcp_client::{Client, text_of},
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::process::Command;

/// Sessions of each kind.
const EACH: usize = 5;

/// All of it.
pub struct Fleet {
    /// The namespace of the Sessions.
    pub team: Team,
    /// What the gateways run on.
    pub node: Node,
    /// The servers of the HTTP Sessions: each its own, since ids of requests are those of a Session.
    servers: Vec<Server>,
    /// Each Session's name, which is that of its Agent and its attachment, and its MCP endpoint.
    pub sessions: Vec<(String, String)>,
    /// The caller's token.
    pub token: String,
}

/// A stdio attachment with a script of that name, so that another name is another generation.
pub fn stdio_of(name: &str, script: &str) -> Value {
    stdio(name, name, json!({"name": script}))
}

/// The Secret that the HTTP attachments show.
pub fn credential(value: &str) -> Value {
    object("Secret", "key", json!({"stringData": {"token": value}}))
}

impl Fleet {
    /// Makes the Sessions and waits until all are served.
    pub async fn up() -> Self {
        let team = Team::alone("fleet").await;
        let gateways = team.cluster.get("Deployment", Some(SYSTEM), "awaken-gateway").await;
        let replicas = &gateways.expect("a Deployment")["spec"]["replicas"];
        assert_eq!(*replicas, 2, "install the chart with tests/fleet/values.yaml first");
        whole(&team).await;
        team.apply(credential("first")).await;
        let (mut sessions, mut servers) = (vec![], vec![]);
        for name in (0..EACH).flat_map(|i| [format!("stdio-{i}"), format!("http-{i}")]) {
            let sets = vec![json!({"attachment": name, "defaultPermission": "Allow"})];
            team.apply(agent(&name, &stub_image(), sets)).await;
            if name.starts_with("stdio") {
                team.apply(stdio_of(&name, "first")).await;
            } else {
                let script = json!({"name": "remote", "http": {"record": true}});
                let server = Server::start(&team, &name, script).await;
                let target = json!({
                    "url": server.url(), "insecureCredential": true,
                    "credential": {"secretKeyRef": {"name": "key", "key": "token"}},
                });
                team.apply(http(&name, &name, target)).await;
                servers.push(server);
            }
            let url = team.url(&name, "mcp").await;
            sessions.push((name, url));
        }
        for (name, _) in &sessions {
            team.ready_within(name, LIMIT * 2).await;
        }
        let token = team.token(CALLER, "awaken-gateway").await;
        Self { team, node: Node::new(), servers, sessions, token }
    }

    /// The Sessions with a stdio server.
    pub fn stdio(&self) -> Vec<String> {
        let names = self.sessions.iter().map(|s| s.0.clone());
        names.filter(|name| name.starts_with("stdio")).collect()
    }

    /// The Sessions with an HTTP server.
    pub fn http(&self) -> Vec<String> {
        let names = self.sessions.iter().map(|s| s.0.clone());
        names.filter(|name| name.starts_with("http")).collect()
    }

    /// Every request that the HTTP servers saw.
    pub async fn seen(&self) -> Vec<Seen> {
        let mut all = vec![];
        for server in &self.servers {
            all.extend(server.seen().await);
        }
        all
    }

    /// The name of the gateway that serves a Session, and the epoch.
    pub async fn host(&self, session: &str) -> (String, i64) {
        let found = self.team.get("Session", session).await.expect("a Session");
        let host = &found["status"]["host"];
        let name = host["gateway"].as_str().unwrap_or_default().to_owned();
        (name, host["epoch"].as_i64().unwrap_or(0))
    }

    /// The gateways that run and are not on their way out.
    pub async fn gateways(&self) -> Vec<Value> {
        let mut all = self.team.cluster.component("gateway").await;
        all.retain(|p| p["metadata"]["deletionTimestamp"].is_null());
        all
    }

    /// The MCP endpoint of a Session at one gateway.
    pub fn endpoint(&self, gateway: &Value, session: &str, rest: &str) -> String {
        let address = gateway["status"]["podIP"].as_str().expect("an address");
        format!("http://{address}:8080/v1/sessions/{}/{session}/{rest}", self.team.name)
    }

    /// A tool's text, asked until it is answered.
    async fn ask(&self, session: &str, tool: &str) -> String {
        let url = self.team.url(session, "mcp").await;
        let tool = format!("mcp__{session}__{tool}");
        until(&format!("{tool} is answered"), LIMIT, || async {
            let mut client = Client::new(&url, Some(&self.token)).expect("a URL");
            client.initialize().await.map_err(|why| format!("{why:#}"))?;
            let answer = client.call(&tool, &json!({})).await.map_err(|why| format!("{why:#}"))?;
            if answer.get("result").is_none() {
                return Err(answer.to_string());
            }
            Ok(text_of(&answer).to_owned())
        })
        .await
    }

    /// How often the server of a Session ran `count`.
    pub async fn counter(&self, session: &str) -> u64 {
        self.ask(session, "count_read").await.parse().expect("a number")
    }

    /// How often the server of a Session was initialized.
    pub async fn handshakes(&self, session: &str) -> Value {
        let seen: Value = serde_json::from_str(&self.ask(session, "seen").await).expect("JSON");
        seen["methods"]["initialize"].clone()
    }

    /// Every record of a Session, read at this gateway's endpoint or at the Service.
    pub async fn trace_at(&self, base: &str) -> Result<Vec<Value>, String> {
        let (mut all, mut after) = (vec![], String::new());
        loop {
            let url = format!("{base}?limit=1000{after}");
            let mut client = Client::new(&url, Some(&self.token)).expect("a URL");
            let reply = client.send(::http::Method::GET, "").await.map_err(|e| format!("{e:#}"))?;
            if reply.status != 200 {
                return Err(format!("HTTP {}: {}", reply.status, reply.text()));
            }
            let page: Value = serde_json::from_slice(&reply.body).map_err(|e| e.to_string())?;
            all.extend(page["records"].as_array().expect("records").iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return Ok(all),
            }
        }
    }

    /// Every record of a Session.
    pub async fn trace(&self, session: &str) -> Vec<Value> {
        let url = self.team.url(session, "trace").await;
        until(&format!("the trace of {session} is read"), LIMIT, || self.trace_at(&url)).await
    }

    /// The uids of the Session pods, by name of pod.
    pub async fn pods(&self) -> Vec<(String, String)> {
        let text = |v: &Value| v.as_str().expect("text").to_owned();
        let all = self.team.session_pods().await;
        let metadata = all.iter().map(|p| &p["metadata"]);
        let mut all: Vec<_> = metadata.map(|m| (text(&m["name"]), text(&m["uid"]))).collect();
        all.sort();
        all
    }

    /// Waits until both gateways are Ready, and none is on its way out.
    pub async fn whole(&self) {
        whole(&self.team).await;
    }

    /// Waits until an attachment serves a generation beyond this one.
    pub async fn beyond(&self, attachment: &str, generation: i64, limit: Duration) {
        until(&format!("{attachment} is beyond generation {generation}"), limit, || async {
            let found = self.team.get("McpAttachment", attachment).await.ok_or("none")?;
            let now = found["status"]["activeGeneration"].as_i64().unwrap_or(0);
            if now > generation { Ok(()) } else { Err(shown(&found)) }
        })
        .await;
    }

    /// The generation of an attachment that serves.
    pub async fn generation(&self, attachment: &str) -> i64 {
        let found = self.team.get("McpAttachment", attachment).await.expect("an attachment");
        found["status"]["activeGeneration"].as_i64().expect("a generation")
    }

    /// One call at a gateway must be answered.
    pub async fn answered_at(&self, gateway: &Value, session: &str) {
        let url = self.endpoint(gateway, session, "mcp");
        until(
            &format!("{session} is served at {}", gateway["metadata"]["name"]),
            LIMIT,
            || async {
                let mut caller = Caller::new(url.clone(), &self.token);
                let call = caller.call(session, &format!("mcp__{session}__echo"), &json!({})).await;
                if call.got == Got::Answer { Ok(()) } else { Err(call.said) }
            },
        )
        .await;
    }
}

async fn whole(team: &Team) {
    team.cluster.available("awaken-gateway").await;
    until("two gateways and no other", LIMIT, || async {
        let pods = team.cluster.component("gateway").await.len();
        if pods == 2 { Ok(()) } else { Err(format!("{pods} pods")) }
    })
    .await;
}

/// Runs kubectl on the installation's namespace; what it prints.
pub async fn kubectl(arguments: &[&str]) -> String {
    let mut command = Command::new("kubectl");
    command.args(["--namespace", SYSTEM]).args(arguments);
    command.env("KUBECONFIG", crate::support::cluster::kubeconfig());
    let out = command.output().await.expect("kubectl runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}
