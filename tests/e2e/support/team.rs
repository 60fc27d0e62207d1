//! A namespace of one test: its Agent, attachments, caller, clients and trace.

use super::{
    cluster::{Cluster, restricted},
    objects::{condition, object, shown, stub_image},
    wait::{LIMIT, until},
};
use anyhow::Result;
use awaken_stub::mcp_client::Client;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use std::{process, time::Duration};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static PRODUCT: RwLock<()> = RwLock::const_new(());

/// How long a test holds the product.
enum Hold {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

/// A namespace and what a test does in it.
pub struct Team {
    /// The cluster.
    pub cluster: Cluster,
    /// The namespace.
    pub name: String,
    _hold: Hold,
}

/// The Agent, and so the Session, of most tests.
pub const AGENT: &str = "coder";
/// The account that calls.
pub const CALLER: &str = "caller";

impl Team {
    /// A namespace; other tests run beside this one.
    pub async fn new(class: &str) -> Self {
        let hold = Hold::Shared { _guard: PRODUCT.read().await };
        Self::made(class, hold).await
    }

    /// A namespace of a test that disturbs the product: no other runs meanwhile.
    pub async fn alone(class: &str) -> Self {
        let hold = Hold::Alone { _guard: PRODUCT.write().await };
        Self::made(class, hold).await
    }

    /// A namespace that the installation opens to the management tools, one of
    /// [`super::cluster::MANAGED`]. One test uses it.
    pub async fn managed(name: &str) -> Self {
        let hold = Hold::Shared { _guard: PRODUCT.read().await };
        let team = Self::in_namespace(name.to_owned(), hold).await;
        team.emptied().await; // of what a failed run left
        team
    }

    async fn made(class: &str, hold: Hold) -> Self {
        Self::in_namespace(format!("e2e-{class}-{}", process::id()), hold).await
    }

    async fn in_namespace(name: String, hold: Hold) -> Self {
        let cluster = Cluster::connect().await;
        cluster.apply(None, &restricted(&name)).await.expect("a namespace");
        let team = Self { cluster, name, _hold: hold };
        team.apply(object("ServiceAccount", CALLER, json!({}))).await;
        team.apply(object("Role", CALLER, json!({"rules": [
            {"apiGroups": ["awaken.dev"], "resources": ["sessions/mcp"], "verbs": ["create"]},
            {"apiGroups": ["awaken.dev"], "resources": ["sessions", "sessions/trace"], "verbs": ["get"]},
        ]})))
        .await;
        team.apply(object("RoleBinding", CALLER, json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": CALLER},
            "subjects": [{"kind": "ServiceAccount", "name": CALLER, "namespace": team.name}],
        })))
        .await;
        team
    }

    /// Removes the namespace and waits until it is gone.
    pub async fn end(self) {
        self.cluster.delete("Namespace", None, &self.name).await;
        until("the namespace is gone", LIMIT, || async {
            match self.cluster.get("Namespace", None, &self.name).await {
                None => Ok(()),
                Some(still) => Err(shown(&still)),
            }
        })
        .await;
    }

    /// Deletes what tests make, and waits until all of it and what the product made is gone. The
    /// namespace stays.
    pub async fn emptied(&self) {
        for kind in ["McpAttachment", "Session", "Agent", "Pod", "Service"] {
            for found in self.cluster.list(kind, Some(&self.name), "").await {
                self.delete(kind, found["metadata"]["name"].as_str().expect("a name")).await;
            }
        }
        until("nothing is left in the namespace", LIMIT, || async {
            for kind in ["McpAttachment", "Session", "Agent", "Pod", "NetworkPolicy"] {
                if let Some(still) = self.cluster.list(kind, Some(&self.name), "").await.first() {
                    return Err(format!("{kind} {}", shown(still)));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Applies an object.
    pub async fn apply(&self, object: Value) -> Value {
        let made = self.cluster.apply(Some(&self.name), &object).await;
        made.unwrap_or_else(|why| panic!("{why}\n{object}"))
    }

    /// One object of the namespace.
    pub async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.cluster.get(kind, Some(&self.name), name).await
    }

    /// Deletes an object of the namespace.
    pub async fn delete(&self, kind: &str, name: &str) {
        self.cluster.delete(kind, Some(&self.name), name).await;
    }

    /// The usual Agent, which allows every tool of these attachments.
    pub async fn agent(&self, attachments: &[&str]) {
        self.agent_named(AGENT, attachments).await;
    }

    /// An Agent of another name.
    pub async fn agent_named(&self, name: &str, attachments: &[&str]) {
        let sets: Vec<_> = attachments
            .iter()
            .map(|a| json!({"attachment": a, "defaultPermission": "Allow"}))
            .collect();
        self.apply(agent(name, &stub_image(), sets)).await;
    }

    /// A stdio attachment that runs the stub with a script.
    pub async fn stdio(&self, name: &str, script: Value) -> Value {
        self.apply(stdio(name, AGENT, script)).await
    }

    /// An HTTP attachment.
    pub async fn http(&self, name: &str, url: &str) -> Value {
        self.apply(http(name, AGENT, json!({"url": url}))).await
    }

    /// Waits until the attachment is Ready.
    pub async fn ready(&self, name: &str) -> Value {
        self.ready_within(name, LIMIT).await
    }

    /// Waits until the attachment is Ready.
    pub async fn ready_within(&self, name: &str, limit: Duration) -> Value {
        until(&format!("attachment {name} is Ready"), limit, || async {
            let found = self.get("McpAttachment", name).await.ok_or("there is none")?;
            let current = found["status"]["observedGeneration"] == found["metadata"]["generation"];
            let ok = current && condition(&found, "Ready")["status"] == "True";
            if ok { Ok(found) } else { Err(shown(&found)) }
        })
        .await
    }

    /// Waits until the attachment is not Ready for this reason; the Ready condition.
    pub async fn refused(&self, name: &str, reason: &str, limit: Duration) -> Value {
        until(&format!("attachment {name} is not Ready, {reason}"), limit, || async {
            let found = self.get("McpAttachment", name).await.ok_or("there is none")?;
            let ready = condition(&found, "Ready");
            let ok = ready["status"] == "False" && ready["reason"] == reason;
            if ok { Ok(ready.clone()) } else { Err(shown(&found)) }
        })
        .await
    }

    /// The pods of an attachment's generations that are not on their way out.
    pub async fn session_pods(&self) -> Vec<Value> {
        let labels = "app.kubernetes.io/managed-by=awaken-operator";
        let mut all = self.cluster.list("Pod", Some(&self.name), labels).await;
        all.retain(|p| p["metadata"]["deletionTimestamp"].is_null());
        all
    }

    /// A token of an account for the gateway.
    pub async fn token(&self, account: &str, audience: &str) -> String {
        let accounts: Api<ServiceAccount> =
            Api::namespaced(self.cluster.client.clone(), &self.name);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![audience.to_owned()]),
                ..Default::default()
            }),
            ..Default::default()
        };
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
        made.expect("a token").status.and_then(|s| s.token).expect("a token")
    }

    /// The URL of a path below a Session.
    pub async fn url(&self, session: &str, rest: &str) -> String {
        format!("{}/v1/sessions/{}/{session}/{rest}", self.cluster.gateway().await, self.name)
    }

    /// A client of the usual Session with the caller's token, initialized.
    pub async fn client(&self) -> Client {
        self.client_of("mcp").await
    }

    /// The same at `mcp` or `mcp/{server}`.
    pub async fn client_of(&self, rest: &str) -> Client {
        let token = self.token(CALLER, "awaken-gateway").await;
        let url = self.url(AGENT, rest).await;
        until("a client can initialize", LIMIT, || async {
            let mut client = Client::new(&url, Some(&token)).expect("a URL");
            match client.initialize().await {
                Ok(_) => Ok(client),
                Err(why) => Err(format!("{why:#}")),
            }
        })
        .await
    }

    /// Every record of the usual Session's trace.
    pub async fn trace(&self) -> Vec<Value> {
        let token = self.token(CALLER, "awaken-gateway").await;
        let mut all = vec![];
        let mut after = String::new();
        loop {
            let url = self.url(AGENT, &format!("trace?limit=1000{after}")).await;
            let mut client = Client::new(&url, Some(&token)).expect("a URL");
            let reply = client.send(http::Method::GET, "").await.expect("the trace answers");
            assert_eq!(reply.status, 200, "{}", reply.text());
            let page: Value = serde_json::from_slice(&reply.body).expect("a page");
            all.extend(page["records"].as_array().expect("records").iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return all,
            }
        }
    }

    /// Waits for a record that fits.
    pub async fn record(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until(&format!("a record: {what}"), LIMIT, || async {
            let all = self.trace().await;
            all.iter().find(|r| fits(r)).cloned().ok_or_else(|| format!("{all:#?}"))
        })
        .await
    }

    /// The events about an object.
    pub async fn events(&self, name: &str) -> Vec<Value> {
        let mut all = self.cluster.list("Event", Some(&self.name), "").await;
        all.retain(|e| e["involvedObject"]["name"] == name);
        all
    }
}

/// A call that must succeed; its text.
pub async fn called(client: &mut Client, tool: &str, arguments: Value) -> Result<String> {
    let answer = client.call(tool, &arguments).await?;
    anyhow::ensure!(
        answer.get("result").is_some() && answer["result"]["isError"] != true,
        "{tool}: {answer}"
    );
    Ok(awaken_stub::mcp_client::text_of(&answer).to_owned())
}

/// An Agent.
pub fn agent(name: &str, image: &str, tool_sets: Vec<Value>) -> Value {
    object("Agent", name, json!({"spec": {"environment": {"image": image}, "toolSets": tool_sets}}))
}

/// A stdio attachment that runs the stub.
pub fn stdio(name: &str, agent: &str, script: Value) -> Value {
    object(
        "McpAttachment",
        name,
        json!({"spec": {
            "agentRef": {"name": agent},
            "sandboxStdio": {"command": "/usr/local/bin/awaken-stub", "args": ["stdio", script.to_string()]},
        }}),
    )
}

/// An HTTP attachment.
pub fn http(name: &str, agent: &str, http: Value) -> Value {
    object("McpAttachment", name, json!({"spec": {"agentRef": {"name": agent}, "http": http}}))
}
