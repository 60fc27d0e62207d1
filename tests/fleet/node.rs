//! What happens to processes and to the network of the bundled cluster's node, done from the host.
//! Reaches nothing outside the namespaces of the cluster that the kubeconfig belongs to.

use crate::support::cluster::kubeconfig;
use serde_json::Value;
use std::{path::PathBuf, process::Command};

/// The node, by the state folder of its cluster.
#[derive(Clone)]
pub struct Node(PathBuf);

impl Node {
    /// The node of the cluster under test.
    pub fn new() -> Self {
        let folder = PathBuf::from(kubeconfig()).parent().expect("a folder").to_owned();
        let this = Self(folder);
        assert!(this.0.join("bin/enter").exists(), "this needs the bundled cluster, as root");
        this
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let out = Command::new(self.0.join("bin").join(program)).args(arguments).output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    }

    /// `kill -9` of the first process of a pod's first container.
    pub fn kill(&self, pod: &Value) {
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().expect("it runs");
        let id = id.strip_prefix("containerd://").expect("containerd's");
        let tasks = self.run("ctr", &["tasks", "ls"]);
        let task = tasks.lines().find(|line| line.starts_with(id)).expect("a task");
        let pid = task.split_whitespace().nth(1).expect("a process");
        self.run("enter", &["kill", "-9", pid]);
    }

    /// Lets no packet of this pod through to the API server until the value is dropped.
    pub fn cut(&self, pod: &str, api: &[(String, u16)]) -> Cut {
        let mut cut = Cut { node: self.clone(), rules: vec![] };
        for (address, port) in api {
            let rule = [
                "PREROUTING",
                "-t",
                "raw",
                "-s",
                pod,
                "-d",
                address,
                "-p",
                "tcp",
                "--dport",
                &port.to_string(),
                "-j",
                "DROP",
            ]
            .map(str::to_owned);
            self.iptables("-I", &rule);
            cut.rules.push(rule.to_vec());
        }
        cut
    }

    fn iptables(&self, action: &str, rule: &[String]) {
        let mut all = vec!["iptables", action];
        all.extend(rule.iter().map(String::as_str));
        self.run("enter", &all);
    }
}

/// A pod that is cut off.
pub struct Cut {
    node: Node,
    rules: Vec<Vec<String>>,
}

impl Drop for Cut {
    fn drop(&mut self) {
        for rule in self.rules.drain(..) {
            self.node.iptables("-D", &rule);
        }
    }
}
