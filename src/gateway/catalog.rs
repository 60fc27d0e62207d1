//! Which tools a Session offers: an immutable snapshot of its published generations under the
//! policy as it is now, and the table that leads from a name to a tool.
//!
//! A [`Catalog`] is a function of (generations, policies) and never changes; [`Catalogs`] swaps
//! one for the next. Lists and calls read the same snapshot, so they cannot disagree. A name is
//! looked up and never split.

mod coming;

pub use coming::{Coming, Expected};

use super::handle::{Handle, Surface, Tool};
use crate::{
    domain::{gate::ToolSet, lifecycle::Origin, redact::Redactor},
    mcp::{RawJson, server::ToolList},
};
use arc_swap::ArcSwap;
use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::watch;

/// ToolSets by the name of the attachment.
pub type ToolSets = BTreeMap<String, Arc<ToolSet>>;

/// The ToolSets that hold in a Session. One of the Agent's says nothing of the Session's own
/// attachments, though they have the same name, and none of the Session's anything of the Agent's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// The Agent's.
    pub agent: Arc<ToolSets>,
    /// The Session's own.
    pub own: ToolSets,
}

impl Policies {
    /// What holds for an attachment.
    pub fn get(&self, origin: Origin, attachment: &str) -> Option<&Arc<ToolSet>> {
        match origin {
            Origin::Agent => self.agent.get(attachment),
            Origin::Session => self.own.get(attachment),
        }
    }
}

impl From<ToolSets> for Policies {
    fn from(agent: ToolSets) -> Self {
        Self { agent: Arc::new(agent), own: ToolSets::new() }
    }
}

/// One published generation as the catalog sees it.
#[derive(Clone, Debug)]
pub struct Server {
    /// The generation.
    pub handle: Arc<Handle>,
    /// Its tools at the time of the snapshot.
    pub surface: Arc<Surface>,
    /// What the policy says of them; none denies all.
    pub policy: Option<Arc<ToolSet>>,
}

/// What a name leads to.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The generation and its policy.
    pub server: &'a Server,
    /// The tool.
    pub tool: &'a Arc<Tool>,
}

/// The tools of one endpoint.
#[derive(Debug)]
struct View {
    /// Every name, shown or not: (server, tool).
    names: HashMap<String, (usize, usize)>,
    /// The shown ones, ready to send.
    list: Arc<ToolList>,
}

/// An immutable snapshot.
#[derive(Debug)]
pub struct Catalog {
    servers: Vec<Server>,
    all: View,
    single: BTreeMap<String, View>,
    coming: Vec<Coming>,
    policies: Arc<Policies>,
    nothing: Arc<ToolList>,
}

impl Catalog {
    /// The catalog of these generations under these policies. At most one generation of each
    /// server counts: the newest.
    fn build(Inputs { published, policies, coming }: &Inputs) -> Self {
        let mut newest: BTreeMap<&str, &Arc<Handle>> = BTreeMap::new();
        for handle in published {
            let place = newest.entry(&handle.server).or_insert(handle);
            if place.generation < handle.generation {
                *place = handle;
            }
        }
        let servers: Vec<Server> = newest
            .into_values()
            .map(|handle| Server {
                surface: handle.surface(),
                policy: policies.get(handle.origin, &handle.attachment).cloned(),
                handle: handle.clone(),
            })
            .collect();
        let single = servers
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let view = View::build(&servers, i..i + 1, |tool| (&tool.name, &tool.own));
                (s.handle.server.clone(), view)
            })
            .collect();
        let all = View::build(&servers, 0..servers.len(), |tool| (&tool.id, &tool.aggregated));
        let is_of = |s: &Server, c: &Coming| {
            (s.handle.origin, &s.handle.attachment) == (c.origin, &c.attachment)
        };
        let absent = |c: &&Coming| !servers.iter().any(|s| is_of(s, c));
        let coming = coming.iter().filter(absent).cloned().collect();
        let (policies, nothing) = (policies.clone(), Arc::new(ToolList::new([])));
        Self { servers, all, single, coming, policies, nothing }
    }

    fn view(&self, server: Option<&str>) -> Option<&View> {
        match server {
            None => Some(&self.all),
            Some(name) => self.single.get(name),
        }
    }

    /// What a name leads to on an endpoint, whether or not the policy shows it.
    pub fn find(&self, server: Option<&str>, name: &str) -> Option<Found<'_>> {
        let (server, tool) = *self.view(server)?.names.get(name)?;
        let server = &self.servers[server];
        Some(Found { server, tool: &server.surface.tools[tool] })
    }

    /// Of what server, that is not in service yet or again, a name is that leads to nothing.
    pub fn expected<'a>(&'a self, server: Option<&str>, name: &'a str) -> Option<Expected<'a>> {
        coming::expected(&self.coming, &self.policies, server, name)
    }

    /// The server of an attachment of the Agent's, if it is not in service yet or again, and comes.
    pub fn awaited(&self, attachment: &str) -> Option<&Coming> {
        let mut agents = self.coming.iter().filter(|coming| coming.origin == Origin::Agent);
        agents.find(|coming| coming.attachment == attachment)
    }

    /// The server of an attachment of the Agent's, if it is in service.
    pub fn server_of(&self, attachment: &str) -> Option<&Server> {
        let mut agents = self.servers.iter().filter(|s| s.handle.origin == Origin::Agent);
        agents.find(|server| server.handle.attachment == attachment)
    }

    /// The tools that the policy of a generation names and its server does not list, in order.
    pub fn missing(&self, generation: i64) -> impl Iterator<Item = &String> {
        let server = self.servers.iter().find(move |s| s.handle.generation == generation);
        server.into_iter().flat_map(|server| {
            let names = self.single.get(&server.handle.server).map(|view| &view.names);
            let named = server.policy.iter().flat_map(|policy| policy.tools.keys());
            named.filter(move |name| names.is_some_and(|all| !all.contains_key(*name)))
        })
    }

    /// Of each server, what knows its secrets.
    pub fn redactors(&self) -> impl Iterator<Item = Arc<Redactor>> {
        self.servers.iter().map(|server| server.handle.redactor())
    }

    /// Every published generation, one of each server.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// What the policy shows on an endpoint; nothing for a server that is not there.
    pub fn list(&self, server: Option<&str>) -> &Arc<ToolList> {
        self.view(server).map_or(&self.nothing, |view| &view.list)
    }
}

impl View {
    fn build(
        servers: &[Server],
        range: std::ops::Range<usize>,
        face: fn(&Tool) -> (&String, &RawJson),
    ) -> Self {
        let (mut names, mut shown) = (HashMap::new(), vec![]);
        for s in range {
            let server = &servers[s];
            for (t, tool) in server.surface.tools.iter().enumerate() {
                let (name, text) = face(tool);
                // the first of two equal names counts, on the list and for calls
                let Entry::Vacant(free) = names.entry(name.clone()) else { continue };
                free.insert((s, t));
                if server.policy.as_ref().is_some_and(|p| p.shows(&tool.name)) {
                    shown.push((name.as_str(), text));
                }
            }
        }
        let list = Arc::new(ToolList::new(shown));
        Self { names, list }
    }
}

/// The current catalog of one Session. Every change is one swap.
#[derive(Debug)]
pub struct Catalogs {
    inputs: Mutex<Inputs>,
    current: ArcSwap<Catalog>,
    version: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inputs {
    published: Vec<Arc<Handle>>,
    policies: Arc<Policies>,
    coming: Vec<Coming>,
}

impl Catalogs {
    /// An empty catalog under the policies.
    pub fn new(policies: Arc<Policies>) -> Self {
        let inputs = Inputs { published: vec![], policies, coming: vec![] };
        let current = ArcSwap::from_pointee(Catalog::build(&inputs));
        Self { inputs: Mutex::new(inputs), current, version: watch::Sender::new(0) }
    }

    /// The catalog as it is now.
    pub fn load(&self) -> Arc<Catalog> {
        self.current.load_full()
    }

    /// Puts generations in, takes others out, and says what else comes, in one step.
    pub fn swap(&self, put: &[Arc<Handle>], take: &[i64], coming: Vec<Coming>) {
        self.change(|inputs| {
            inputs.coming = coming;
            inputs.published.retain(|h| {
                !take.contains(&h.generation) && put.iter().all(|p| p.generation != h.generation)
            });
            inputs.published.extend(put.iter().cloned());
        });
    }

    /// The policy is this one from here on.
    pub fn set_policies(&self, policies: Arc<Policies>) {
        if self.load().policies != policies {
            self.change(|inputs| inputs.policies = policies);
        }
    }

    /// A server lists other tools.
    pub fn refresh(&self) {
        self.change(|_| ());
    }

    /// What is not in service yet or again, and comes. No list is another by that.
    pub fn set_coming(&self, coming: Vec<Coming>) {
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &inputs.coming;
        if known.len() == coming.len() && known.iter().zip(&coming).all(|(a, b)| a.same(b)) {
            return;
        }
        inputs.coming = coming;
        self.current.store(Arc::new(Catalog::build(&inputs)));
    }

    /// Counts up after each change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut Inputs)) {
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut inputs);
        self.current.store(Arc::new(Catalog::build(&inputs)));
        self.version.send_modify(|version| *version += 1);
    }
}
