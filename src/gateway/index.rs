//! What the API server says, as the gateway needs it: Sessions for their stages, Agents for their
//! ToolSets and exports.
//!
//! ```text
//!  watch ──Event──► Index::{apply_*, delete_*, reset_*} ──► Snapshot (immutable, shared)
//!                              └──► Change (what moved) ──► catalogs, host
//! ```
//!
//! Changes come in synchronously, so a test needs no cluster. Objects that cannot be read are
//! skipped by name and counted; the others go on. It decides nothing.

mod exports;
pub mod watch;

pub use exports::{ExportRule, ExportTable, Exported};

use super::catalog::{Policies, ToolSets};
use crate::{
    api::{
        Agent, Session,
        agent::{Export, SessionMode, ToolSetSpec},
    },
    domain::{
        export::Namespaces,
        gate::{Permission, ToolSet},
        identity::SessionKey,
        lifecycle::{Generation, Origin, Receipt, Target},
        usage::Activity,
    },
};
use arc_swap::ArcSwap;
use jiff::Timestamp;
use kube::ResourceExt;
use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch::{Receiver, Sender};

/// Which gateway serves a Session, as the operator decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Name of the gateway's pod.
    pub gateway: String,
    /// Which start of it.
    pub incarnation: String,
    /// The lease epoch.
    pub epoch: i64,
}

/// A Session, without what the gateway has no use for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Namespace and name.
    pub key: SessionKey,
    /// metadata.uid.
    pub uid: String,
    /// metadata.resourceVersion, for the next write.
    pub resource_version: String,
    /// Name of the Agent.
    pub agent: String,
    /// The ToolSets of its own attachments, as written: see [`SessionView::remembers`].
    pub own: ToolSets,
    /// Where it is served.
    pub seat: Option<Seat>,
    /// Every generation that is not gone.
    pub generations: Vec<Generation>,
    /// What gateways answered so far.
    pub receipts: Vec<Receipt>,
    /// What gateways said of its use.
    pub activity: Option<Activity>,
    /// Whether it is being deleted.
    pub leaving: bool,
}

impl SessionView {
    /// Reads a stored Session.
    pub fn of(session: &Session) -> Self {
        let status = session.status.clone().unwrap_or_default();
        Self {
            key: SessionKey {
                namespace: session.namespace().unwrap_or_default(),
                name: session.name_any(),
            },
            uid: session.uid().unwrap_or_default(),
            resource_version: session.resource_version().unwrap_or_default(),
            agent: session.spec.agent_ref.name.clone(),
            own: tool_sets(&session.spec.tool_sets),
            seat: status.host.map(|h| Seat {
                gateway: h.gateway,
                incarnation: h.incarnation,
                epoch: h.epoch,
            }),
            generations: status.attachments,
            receipts: status.receipts,
            activity: status.activity,
            leaving: session.metadata.deletion_timestamp.is_some(),
        }
    }
}

impl SessionView {
    /// Keeps the ToolSets of own attachments that were taken out of the set and are not gone: what
    /// holds for them until they left the catalog, which is after this, is what held before.
    fn remembers(mut self, before: Option<&Arc<Self>>) -> Self {
        let Some(before) = before.filter(|before| before.uid == self.uid) else { return self };
        let still = |name: &str| {
            let mut all = self.generations.iter();
            all.any(|g| g.origin == Origin::Session && g.attachment == name)
        };
        let left: Vec<_> = before
            .own
            .iter()
            .filter(|(name, _)| !self.own.contains_key(*name) && still(name))
            .map(|(name, set)| (name.clone(), set.clone()))
            .collect();
        self.own.extend(left);
        self
    }
}

/// An Agent, without what the gateway has no use for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    uid: String,
    created: Option<Timestamp>,
    policies: Arc<Policies>,
    /// What its Sessions' own ToolSets give at most.
    max: Permission,
    exports: Vec<ExportRule>,
    idle_timeout: Option<Duration>,
}

impl AgentView {
    /// Reads a stored Agent. Only a Standing one exports: of others no Session is sure to be there.
    fn of(agent: &Agent) -> Self {
        let rule = |e: &Export| ExportRule {
            name: e.name.clone(),
            attachment: e.attachment.clone(),
            tool: e.tool.clone(),
        };
        let standing = agent.spec.session.mode == SessionMode::Standing;
        let exports = agent.spec.exports.iter().filter(|_| standing);
        Self {
            uid: agent.uid().unwrap_or_default(),
            created: agent.creation_timestamp().map(|t| t.0),
            policies: Arc::new(tool_sets(&agent.spec.tool_sets).into()),
            max: agent.spec.session_attachments.max,
            exports: exports.map(rule).collect(),
            idle_timeout: agent.spec.session.idle_timeout.filter(|_| !standing).map(Into::into),
        }
    }

    /// What its Sessions follow.
    fn terms(&self) -> (&Policies, Permission, Option<Duration>) {
        (&self.policies, self.max, self.idle_timeout)
    }
}

/// Everything that is known at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    sessions: HashMap<SessionKey, Arc<SessionView>>,
    agents: HashMap<(String, String), Arc<AgentView>>,
    exports: Arc<ExportTable>,
}

impl Snapshot {
    /// A Session by name.
    pub fn session(&self, key: &SessionKey) -> Option<&Arc<SessionView>> {
        self.sessions.get(key)
    }

    /// Every Session.
    pub fn sessions(&self) -> impl Iterator<Item = &Arc<SessionView>> {
        self.sessions.values()
    }

    /// The ToolSets that hold for a Session; none where its Agent is not known. Those of its own
    /// attachments are as narrow as the Agent wants them.
    pub fn policies(&self, session: &SessionView) -> Arc<Policies> {
        let agent = (session.key.namespace.clone(), session.agent.clone());
        let Some(agent) = self.agents.get(&agent) else { return Arc::default() };
        if session.own.is_empty() {
            return agent.policies.clone();
        }
        let within = |(name, set): (&String, &Arc<ToolSet>)| {
            (name.clone(), Arc::new(ToolSet::clone(set).within(agent.max)))
        };
        let own = session.own.iter().map(within).collect();
        Arc::new(Policies { agent: agent.policies.agent.clone(), own })
    }

    /// The ToolSets of an Agent; none where it is not known.
    pub fn policies_of(&self, namespace: &str, agent: &str) -> Arc<Policies> {
        let agent = (namespace.to_owned(), agent.to_owned());
        self.agents.get(&agent).map(|a| a.policies.clone()).unwrap_or_default()
    }

    /// How long a Session may be idle, if there is a limit.
    pub fn idle_timeout(&self, session: &SessionView) -> Option<Duration> {
        self.agents.get(&(session.key.namespace.clone(), session.agent.clone()))?.idle_timeout
    }

    /// What the Agents of the allowed namespaces export.
    pub fn exports(&self) -> &Arc<ExportTable> {
        &self.exports
    }

    /// The addresses of every Session pod that a Session names.
    pub fn pod_addresses(&self) -> BTreeSet<IpAddr> {
        let targets = self.sessions.values().flat_map(|s| &s.generations).map(|g| &g.target);
        targets
            .filter_map(|target| match target {
                Target::SandboxStdio(pod) => pod.address.as_deref()?.parse().ok(),
                Target::Http(_) => None,
            })
            .collect()
    }
}

/// What a change touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A Session was written or deleted.
    Session(SessionKey),
    /// The ToolSets of these Sessions, or how long they may be idle, may be others now.
    Policies(Vec<SessionKey>),
}

/// The shared, current snapshot.
pub type Shared = Arc<ArcSwap<Snapshot>>;

/// The one writer of the snapshot.
#[derive(Debug, Default)]
pub struct Index {
    now: Snapshot,
    shared: Shared,
    unreadable: BTreeSet<String>,
    exporting: Namespaces,
    exports: Sender<u64>,
}

impl Index {
    /// An index that takes exports of these namespaces. The default takes none.
    pub fn new(exporting: Namespaces) -> Self {
        Self { exporting, ..Self::default() }
    }

    /// Wakes when names lead to other tools than before.
    pub fn export_changes(&self) -> Receiver<u64> {
        self.exports.subscribe()
    }

    /// The snapshot that readers load.
    pub fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Takes a Session as it is now.
    pub fn apply_session(&mut self, session: &Session) -> Option<Change> {
        let view = SessionView::of(session);
        self.unreadable.remove(&format!("Session {}", view.key));
        let before = self.now.sessions.get(&view.key).cloned();
        let view = view.remembers(before.as_ref());
        if self.now.sessions.get(&view.key).is_some_and(|old| **old == view) {
            return None;
        }
        let key = view.key.clone();
        self.now.sessions.insert(key.clone(), Arc::new(view));
        self.publish();
        Some(Change::Session(key))
    }

    /// Forgets a Session.
    pub fn delete_session(&mut self, key: &SessionKey) -> Option<Change> {
        self.unreadable.remove(&format!("Session {key}"));
        self.now.sessions.remove(key)?;
        self.publish();
        Some(Change::Session(key.clone()))
    }

    /// Takes the whole list of Sessions; what is not in it is gone, except what cannot be read:
    /// it stays as it was.
    pub fn reset_sessions(&mut self, sessions: &[Session]) -> Vec<Change> {
        let listed: HashMap<_, _> = sessions
            .iter()
            .map(SessionView::of)
            .map(|view| {
                let before = self.now.sessions.get(&view.key);
                (view.key.clone(), Arc::new(view.remembers(before)))
            })
            .collect();
        let mut changed: BTreeSet<SessionKey> = BTreeSet::new();
        let unreadable = &self.unreadable;
        self.now.sessions.retain(|key, _| {
            let keep = listed.contains_key(key) || unreadable.contains(&format!("Session {key}"));
            if !keep {
                changed.insert(key.clone());
            }
            keep
        });
        for (key, view) in listed {
            if self.now.sessions.get(&key) != Some(&view) {
                changed.insert(key.clone());
                self.now.sessions.insert(key, view);
            }
        }
        self.publish();
        changed.into_iter().map(Change::Session).collect()
    }

    /// Takes an Agent as it is now.
    pub fn apply_agent(&mut self, agent: &Agent) -> Option<Change> {
        let id = (agent.namespace().unwrap_or_default(), agent.name_any());
        self.unreadable.remove(&format!("Agent {}/{}", id.0, id.1));
        let view = AgentView::of(agent);
        let old = self.now.agents.get(&id);
        if old.is_some_and(|old| **old == view) {
            return None;
        }
        let changed = old.is_none_or(|old| old.terms() != view.terms());
        self.now.agents.insert(id.clone(), Arc::new(view));
        self.publish_agents();
        changed.then(|| self.policies_changed(&id))
    }

    /// Forgets an Agent: nothing of it is allowed from here on.
    pub fn delete_agent(&mut self, namespace: &str, name: &str) -> Option<Change> {
        self.unreadable.remove(&format!("Agent {namespace}/{name}"));
        let id = (namespace.to_owned(), name.to_owned());
        self.now.agents.remove(&id)?;
        self.publish_agents();
        Some(self.policies_changed(&id))
    }

    /// Takes the whole list of Agents. One that cannot be read has no policy: nothing is allowed.
    pub fn reset_agents(&mut self, agents: &[Agent]) -> Vec<Change> {
        let listed: HashMap<_, _> = agents
            .iter()
            .map(|a| {
                let id = (a.namespace().unwrap_or_default(), a.name_any());
                (id, Arc::new(AgentView::of(a)))
            })
            .collect();
        let old = std::mem::replace(&mut self.now.agents, listed);
        let ids: BTreeSet<_> = old.keys().chain(self.now.agents.keys()).cloned().collect();
        self.publish_agents();
        ids.iter()
            .filter(|id| {
                let (old, new) = (old.get(*id), self.now.agents.get(*id));
                old.map(|a| a.terms()) != new.map(|a| a.terms())
            })
            .map(|id| self.policies_changed(id))
            .collect()
    }

    /// Notes an object that does not fit its schema. An Agent loses its policy, so that a policy
    /// that cannot be read allows nothing; a Session stays as it was last read.
    pub fn unreadable(&mut self, kind: &str, namespace: &str, name: &str) -> Option<Change> {
        let change = if kind == "Agent" { self.delete_agent(namespace, name) } else { None };
        self.unreadable.insert(format!("{kind} {namespace}/{name}"));
        change
    }

    /// A list of a kind begins: what cannot be read is told again, or is gone.
    pub fn begin_list(&mut self, kind: &str) {
        self.unreadable.retain(|object| !object.starts_with(&format!("{kind} ")));
    }

    /// How many objects cannot be read at present.
    pub fn unreadable_count(&self) -> usize {
        self.unreadable.len()
    }

    fn policies_changed(&self, (namespace, agent): &(String, String)) -> Change {
        let mut keys: Vec<_> = self
            .now
            .sessions
            .values()
            .filter(|s| s.key.namespace == *namespace && s.agent == *agent)
            .map(|s| s.key.clone())
            .collect();
        keys.sort();
        Change::Policies(keys)
    }

    fn publish_agents(&mut self) {
        let exports = ExportTable::of(&self.now.agents, &self.exporting);
        let changed = exports != *self.now.exports;
        if changed {
            self.now.exports = Arc::new(exports);
        }
        self.publish();
        if changed {
            self.exports.send_modify(|version| *version += 1);
        }
    }

    fn publish(&self) {
        self.shared.store(Arc::new(self.now.clone()));
    }
}

/// ToolSets as they are written. Two for one attachment cannot be stored (a map-list); should they
/// be, the first counts.
fn tool_sets(sets: &[ToolSetSpec]) -> ToolSets {
    let mut out = ToolSets::new();
    for set in sets {
        let tools = set.tools.iter().map(|t| (t.name.clone(), t.permission)).collect();
        out.entry(set.attachment.clone())
            .or_insert_with(|| Arc::new(ToolSet { default: set.default_permission, tools }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::gate::Permission;
    use serde_json::json;

    fn session(name: &str, agent: &str, version: &str) -> Session {
        serde_json::from_value(json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Session",
            "metadata": {"name": name, "namespace": "team-a", "uid": format!("uid-{name}"), "resourceVersion": version},
            "spec": {"agentRef": {"name": agent}},
            "status": {"host": {"gateway": "gw-0", "incarnation": "inc-1", "epoch": 3}}
        }))
        .unwrap()
    }

    fn agent(name: &str, permission: &str) -> Agent {
        serde_json::from_value(json!({
            "apiVersion": "awaken.dev/v1alpha1", "kind": "Agent",
            "metadata": {"name": name, "namespace": "team-a"},
            "spec": {"toolSets": [{"attachment": "files", "tools": [{"name": "read", "permission": permission}]}]}
        }))
        .unwrap()
    }

    fn key(name: &str) -> SessionKey {
        SessionKey { namespace: "team-a".into(), name: name.into() }
    }

    #[test]
    fn readers_see_what_was_applied_at_once() {
        let mut index = Index::default();
        let shared = index.shared();
        assert_eq!(
            index.apply_session(&session("s", "coder", "1")),
            Some(Change::Session(key("s")))
        );
        let seen = shared.load().session(&key("s")).cloned().unwrap();
        assert_eq!((&*seen.uid, seen.seat.as_ref().unwrap().epoch), ("uid-s", 3));
        assert_eq!(index.apply_session(&session("s", "coder", "1")), None, "the same again");
        assert!(index.delete_session(&key("s")).is_some());
        assert!(shared.load().session(&key("s")).is_none());
        assert_eq!(index.delete_session(&key("s")), None);
    }

    #[test]
    fn a_policy_change_names_the_sessions_of_that_agent_only() {
        let mut index = Index::default();
        index.apply_session(&session("mine", "coder", "1"));
        index.apply_session(&session("other", "writer", "2"));
        let change = index.apply_agent(&agent("coder", "Allow"));
        assert_eq!(change, Some(Change::Policies(vec![key("mine")])));
        assert_eq!(
            index.apply_agent(&agent("coder", "Allow")),
            None,
            "status changes touch nothing"
        );
        assert!(index.apply_agent(&agent("coder", "Deny")).is_some());
        let snapshot = index.shared().load_full();
        let view = snapshot.session(&key("mine")).unwrap();
        let policy = snapshot.policies(view).get(Origin::Agent, "files").cloned().unwrap();
        assert_eq!(policy.tools["read"], Permission::Deny);
        let other = snapshot.session(&key("other")).unwrap();
        assert_eq!(*snapshot.policies(other), Policies::default(), "without Agent no policy");
    }

    /// A Session that brings these, with one generation of `mine` in that state.
    fn bringing(version: &str, sets: serde_json::Value, state: &str) -> Session {
        let mut object = serde_json::to_value(session("s", "coder", version)).unwrap();
        object["spec"]["toolSets"] = sets;
        object["status"]["attachments"] = json!([{
            "generation": 1, "attachment": "mine", "attachmentUid": "own-1", "origin": "Session",
            "server": "mine", "source": "sha256:s", "state": state,
            "target": {"http": {"url": "https://h/"}},
            "limits": {"startupTimeoutMs": 1, "callTimeoutMs": 2, "drainTimeoutMs": 3,
                "maxConcurrentCalls": 4, "maxMessageBytes": 5555},
            "reason": "Active", "since": "2026-01-01T00:00:00Z",
        }]);
        serde_json::from_value(object).unwrap()
    }

    fn letting(max: &str) -> Agent {
        let mut object = serde_json::to_value(agent("coder", "Allow")).unwrap();
        object["spec"]["sessionAttachments"] = json!({"max": max});
        serde_json::from_value(object).unwrap()
    }

    fn policies(index: &Index) -> Arc<Policies> {
        let snapshot = index.shared().load_full();
        snapshot.policies(snapshot.session(&key("s")).unwrap())
    }

    #[test]
    fn own_tool_sets_are_the_sessions_and_no_wider_than_the_agent_lets_them() {
        let mut index = Index::default();
        let all = json!([{"attachment": "mine", "defaultPermission": "Allow"}]);
        index.apply_agent(&letting("Allow"));
        index.apply_session(&bringing("1", all, "Active"));
        let mine = policies(&index).get(Origin::Session, "mine").cloned().unwrap();
        assert!(mine.shows("anything"));
        assert_eq!(policies(&index).get(Origin::Agent, "mine"), None);
        assert_eq!(policies(&index).get(Origin::Session, "files"), None, "nothing is inherited");
        let change = index.apply_agent(&letting("Deny"));
        assert_eq!(change, Some(Change::Policies(vec![key("s")])));
        let mine = policies(&index).get(Origin::Session, "mine").cloned().unwrap();
        assert!(!mine.shows("anything"));
    }

    #[test]
    fn the_tool_set_of_what_makes_room_holds_until_it_has() {
        let all = json!([{"attachment": "mine", "defaultPermission": "Allow"}]);
        let begin = || {
            let mut index = Index::default();
            index.apply_agent(&letting("Allow"));
            index.apply_session(&bringing("1", all.clone(), "Active"));
            index
        };
        let shows = |index: &Index| policies(index).get(Origin::Session, "mine").is_some();
        let mut index = begin();
        index.apply_session(&bringing("2", json!([]), "Active"));
        assert!(shows(&index), "it still serves");
        index.reset_sessions(&[bringing("3", json!([]), "Active")]);
        assert!(shows(&index), "a new list forgets nothing");
        index.apply_session(&bringing("4", json!([]), "Draining"));
        assert!(shows(&index), "it leaves the catalog after this");
        let mut gone = bringing("5", json!([]), "Draining");
        gone.status.as_mut().unwrap().attachments = vec![];
        index.apply_session(&gone);
        assert!(!shows(&index));
        index.apply_session(&bringing("6", json!([]), "Active"));
        assert!(!shows(&index), "what was forgotten does not come back");
        let mut index = begin();
        let mut anew = bringing("2", json!([]), "Active");
        anew.metadata.uid = Some("another".to_owned());
        index.apply_session(&anew);
        assert!(!shows(&index), "another Session of that name");
    }

    #[test]
    fn a_reset_forgets_what_is_not_listed_and_keeps_what_cannot_be_read() {
        let mut index = Index::default();
        for name in ["a", "b", "c"] {
            index.apply_session(&session(name, "coder", "1"));
        }
        index.unreadable("Session", "team-a", "c");
        let changes =
            index.reset_sessions(&[session("a", "coder", "1"), session("d", "coder", "9")]);
        assert_eq!(changes, [Change::Session(key("b")), Change::Session(key("d"))]);
        assert!(index.shared().load().session(&key("c")).is_some());
        assert_eq!(index.unreadable_count(), 1);
        index.apply_session(&session("c", "coder", "2"));
        assert_eq!(index.unreadable_count(), 0);
    }

    #[test]
    fn an_unreadable_object_that_is_gone_is_forgotten() {
        let mut index = Index::default();
        for name in ["listed", "deleted", "missing"] {
            index.apply_session(&session(name, "coder", "1"));
            index.unreadable("Session", "team-a", name);
        }
        index.unreadable("Agent", "team-a", "coder");
        index.unreadable("Agent", "team-a", "writer");
        index.delete_agent("team-a", "writer");
        assert_eq!(index.delete_session(&key("deleted")), Some(Change::Session(key("deleted"))));
        assert_eq!(index.unreadable_count(), 3);
        index.begin_list("Session");
        index.unreadable("Session", "team-a", "listed");
        assert_eq!(index.reset_sessions(&[]), [Change::Session(key("missing"))]);
        assert!(index.shared().load().session(&key("listed")).is_some());
        assert_eq!(index.unreadable_count(), 2, "the listed Session and the Agent");
    }

    #[test]
    fn an_agent_that_cannot_be_read_allows_nothing() {
        let mut index = Index::default();
        index.apply_session(&session("s", "coder", "1"));
        index.apply_agent(&agent("coder", "Allow"));
        assert_eq!(
            index.unreadable("Agent", "team-a", "coder"),
            Some(Change::Policies(vec![key("s")]))
        );
        let snapshot = index.shared().load_full();
        let policies = snapshot.policies(snapshot.session(&key("s")).unwrap());
        assert_eq!(*policies, Policies::default());
    }
}
