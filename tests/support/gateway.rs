//! A gateway that does what a script says: it holds its Lease and answers stages with receipts.

use super::{
    apiserver::{ApiServer, text},
    world::NS,
};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinHandle;

/// What to answer to a stage.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Done, with this many tools.
    Done(i64),
    /// Done, with this many tools, and without these that the ToolSet names.
    Lacking(i64, &'static [&'static str]),
    /// Failed with reason and message.
    Failed(&'static str, &'static str),
    /// Lost with reason.
    Lost(&'static str),
    /// Nothing, ever.
    Silence,
}

type Script = Arc<Mutex<Box<dyn Fn(&Value) -> Answer + Send>>>;

/// A scripted gateway; dropping it is a crash.
pub struct Gateway {
    api: ApiServer,
    name: String,
    incarnation: String,
    script: Script,
    tasks: Vec<JoinHandle<()>>,
}

impl Gateway {
    /// Comes up under this name and incarnation. The script is asked with the entry
    /// (`status.attachments[]`) whose stage is to be answered.
    pub fn start(
        api: &ApiServer,
        name: &str,
        incarnation: &str,
        script: impl Fn(&Value) -> Answer + Send + 'static,
    ) -> Self {
        let script: Script = Arc::new(Mutex::new(Box::new(script)));
        let mut gateway = Self {
            api: api.clone(),
            name: name.to_owned(),
            incarnation: incarnation.to_owned(),
            script,
            tasks: vec![],
        };
        gateway.renew();
        gateway.tasks.push(tokio::spawn(gateway.renewing()));
        gateway.tasks.push(tokio::spawn(gateway.answering()));
        gateway
    }

    /// Another script from now on; stages that were answered are answered anew if that differs.
    pub fn script(&self, script: impl Fn(&Value) -> Answer + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
        serve(&self.api, &self.name, &self.incarnation, &self.script);
    }

    /// Says of a Session that nobody uses it since then, or that it is used again.
    pub fn say_idle(&self, session: &str, since: Option<jiff::Timestamp>) {
        let of = self.api.get("sessions", NS, session).unwrap();
        let mut status = of["status"].clone();
        status["activity"] = json!({
            "incarnation": self.incarnation, "epoch": status["host"]["epoch"], "at": self.api.now(),
        });
        if let Some(since) = since {
            status["activity"]["idleSince"] = json!(since);
        }
        self.api.set_status("sessions", NS, session, status);
    }

    /// A clean stop: the Lease is given back.
    pub fn stop(self) {
        self.api.remove("leases", "awaken-system", &self.name);
    }

    fn renew(&self) {
        renew(&self.api, &self.name, &self.incarnation);
    }

    fn renewing(&self) -> impl Future<Output = ()> + Send + use<> {
        let (api, name, incarnation) =
            (self.api.clone(), self.name.clone(), self.incarnation.clone());
        async move {
            loop {
                tokio::time::sleep(Duration::from_secs(5)).await;
                renew(&api, &name, &incarnation);
            }
        }
    }

    fn answering(&self) -> impl Future<Output = ()> + Send + use<> {
        let (api, name, incarnation, script) =
            (self.api.clone(), self.name.clone(), self.incarnation.clone(), self.script.clone());
        let mut version = api.subscribe();
        async move {
            loop {
                version.borrow_and_update();
                serve(&api, &name, &incarnation, &script);
                if version.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn renew(api: &ApiServer, name: &str, incarnation: &str) {
    api.apply(
        "leases",
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": name, "namespace": "awaken-system",
                "labels": {"awaken.dev/lease": "gateway"},
            },
            "spec": {
                "holderIdentity": incarnation, "leaseDurationSeconds": 15,
                "renewTime": api.now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
            },
        }),
    );
}

/// Answers every stage of every Session of ours, as the script says; writes only differences.
fn serve(api: &ApiServer, name: &str, incarnation: &str, script: &Script) {
    for session in api.all("sessions") {
        let status = &session["status"];
        if status["host"]["gateway"] != json!(name)
            || status["host"]["incarnation"] != json!(incarnation)
        {
            continue;
        }
        let none = vec![];
        let entries = status["attachments"].as_array().unwrap_or(&none);
        let old = status["receipts"].as_array().unwrap_or(&none);
        let mut receipts = vec![];
        for entry in entries {
            let before = old.iter().find(|r| r["generation"] == entry["generation"]);
            let stage = &entry["stage"];
            if stage["ref"]["incarnation"] != json!(incarnation) {
                receipts.extend(before.cloned());
                continue;
            }
            let answer = (script.lock().unwrap())(entry);
            let (verdict, reason, message, tools) = match answer.clone() {
                Answer::Done(tools) | Answer::Lacking(tools, _) => ("Done", None, "", Some(tools)),
                Answer::Failed(reason, message) => ("Failed", Some(reason), message, None),
                Answer::Lost(reason) => ("Lost", Some(reason), "gone", None),
                Answer::Silence => {
                    receipts.extend(before.cloned());
                    continue;
                }
            };
            let mut receipt = json!({
                "generation": entry["generation"], "stage": stage["kind"], "ref": stage["ref"],
                "fingerprint": stage["fingerprint"], "verdict": verdict, "message": message,
                "evidence": {"toolCount": tools, "protocolVersion": tools.map(|_| "2025-11-25")},
                "reason": reason, "at": "2026-01-01T00:00:00Z",
            });
            let parts = receipt.as_object_mut().unwrap();
            parts.retain(|_, v| !v.is_null());
            receipt["evidence"].as_object_mut().unwrap().retain(|_, v| !v.is_null());
            if let (Answer::Lacking(_, names), true) = (answer, stage["kind"] == "Publish") {
                receipt["evidence"]["missingTools"] = json!(names);
            }
            receipts.push(receipt);
        }
        if receipts != *old {
            let mut status = status.clone();
            status["receipts"] = json!(receipts);
            let (namespace, of) =
                (text(&session, "/metadata/namespace"), text(&session, "/metadata/name"));
            api.set_status("sessions", &namespace, &of, status);
        }
    }
}
