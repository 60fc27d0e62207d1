//! What is exported at this moment: the management tools that the installation names, in the
//! domain's order, then Agents' tools by name, as far as they are in service and their ToolSets
//! show them.
//!
//! The list is made anew when what it was made of is another; between changes it is shared.

use super::{Management, ManagementContext, ManagementError};
use crate::{
    domain::{
        canonical,
        gate::{self, Permit},
        identity::SessionKey,
        lifecycle::Origin,
    },
    gateway::{
        catalog::Catalog,
        handle,
        hosted::{Hosted, Sessions},
        index::{self, ExportTable, Exported},
    },
    mcp::{RawJson, server::ToolList},
};
use arc_swap::ArcSwapOption;
use futures::future::{BoxFuture, FutureExt as _, select_all};
use jiff::Timestamp;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// Calls of management tools in flight, at most.
const PLACES: usize = 64;
/// How long changes are gathered before clients are told.
const GATHER: Duration = Duration::from_millis(50);

/// The export set.
pub struct ExportSet {
    management: Option<Arc<dyn Management>>,
    definitions: Vec<Definition>,
    index: index::Shared,
    sessions: Sessions,
    places: Arc<Semaphore>,
    shown: ArcSwapOption<Shown>,
    version: watch::Sender<u64>,
}

struct Definition {
    name: &'static str,
    text: RawJson,
    digest: String,
}

/// A list with what it was made of.
struct Shown {
    table: Arc<ExportTable>,
    catalogs: BTreeMap<SessionKey, Arc<Catalog>>,
    list: Arc<ToolList>,
}

/// What a name leads to.
#[derive(Debug)]
pub enum Found {
    /// A management tool.
    Management {
        /// Digest of its definition.
        digest: String,
    },
    /// A tool of an Agent.
    Agent {
        /// The Session.
        hosted: Arc<Hosted>,
        /// The server's name in it.
        server: Arc<str>,
        /// The server's own name of the tool.
        tool: String,
    },
    /// A tool of an Agent whose server comes; after a failure not before that time.
    Coming(Option<Timestamp>),
    /// A tool of an Agent whose server is not in service and does not come by itself.
    Away,
    /// Nothing.
    Nothing,
}

impl std::fmt::Debug for ExportSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExportSet({:?})", self.management_names().collect::<Vec<_>>())
    }
}

impl ExportSet {
    /// The set over these parts; without management tools, Agents' tools alone.
    pub fn new(
        management: Option<Arc<dyn Management>>,
        index: index::Shared,
        sessions: Sessions,
    ) -> Self {
        let definitions = management
            .iter()
            .flat_map(|m| m.definitions())
            .map(|(name, text)| Definition { name, digest: canonical::digest(text.bytes()), text });
        Self {
            definitions: definitions.collect(),
            management,
            index,
            sessions,
            places: Arc::new(Semaphore::new(PLACES)),
            shown: ArcSwapOption::empty(),
            version: watch::Sender::new(0),
        }
    }

    /// The management tools that are exported.
    pub fn management_names(&self) -> impl Iterator<Item = &'static str> {
        self.definitions.iter().map(|d| d.name)
    }

    /// What a name leads to.
    pub fn find(&self, name: &str) -> Found {
        if let Some(definition) = self.definitions.iter().find(|d| d.name == name) {
            return Found::Management { digest: definition.digest.clone() };
        }
        let snapshot = self.index.load();
        let Some(exported) = snapshot.exports().get(name) else { return Found::Nothing };
        // what the ToolSet denies looks unknown, whether its server is there or not; where it is,
        // the Session's own gate says so
        let unless_denied = |found| {
            let SessionKey { namespace, name: agent } = &exported.session;
            let policies = snapshot.policies_of(namespace, agent);
            let policy = policies.get(Origin::Agent, &exported.attachment).map(|p| &**p);
            match gate::pass(policy, &exported.tool) {
                Ok(_) => found,
                Err(_) => Found::Nothing,
            }
        };
        let Some(hosted) = self.hosted(exported).filter(|h| h.is_open()) else {
            return unless_denied(Found::Coming(None));
        };
        let catalog = hosted.catalogs.load();
        let Some(server) = catalog.server_of(&exported.attachment) else {
            return unless_denied(match catalog.awaited(&exported.attachment) {
                Some(coming) => Found::Coming(coming.next_try),
                None => Found::Away,
            });
        };
        let server = server.handle.server.as_str().into();
        Found::Agent { hosted, server, tool: exported.tool.clone() }
    }

    /// A place for one call of a management tool.
    ///
    /// # Errors
    /// How many are in flight, if these are as many as allowed.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, usize> {
        self.places.clone().try_acquire_owned().map_err(|_| PLACES)
    }

    /// Calls a management tool that the gate let pass.
    pub fn call(
        &self,
        permit: &Permit,
        arguments: Option<RawJson>,
        context: ManagementContext,
    ) -> BoxFuture<'static, Result<RawJson, ManagementError>> {
        match &self.management {
            Some(management) => management.call(permit.tool(), arguments, context),
            None => Box::pin(async { Err(ManagementError::Unknown) }),
        }
    }

    /// The list as it is now.
    pub fn tools(&self) -> Arc<ToolList> {
        let table = self.index.load().exports().clone();
        let catalogs: BTreeMap<_, _> = table
            .iter()
            .filter_map(|(_, exported)| {
                let hosted = self.hosted(exported)?;
                Some((exported.session.clone(), hosted.catalogs.load()))
            })
            .collect();
        if let Some(shown) = &*self.shown.load()
            && shown.is_of(&table, &catalogs)
        {
            return shown.list.clone();
        }
        let own: Vec<_> = table
            .iter()
            .filter_map(|(name, exported)| {
                Some((name, definition(catalogs.get(&exported.session)?, name, exported)?))
            })
            .collect();
        let management = self.definitions.iter().map(|d| (d.name, &d.text));
        let list = Arc::new(ToolList::new(management.chain(own.iter().map(|(n, t)| (*n, t)))));
        let shown = Shown { table: table.clone(), catalogs, list: list.clone() };
        self.shown.store(Some(Arc::new(shown)));
        list
    }

    /// Wakes when the list may be another.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Tells of changes until `stop`: of what Agents export, of the Sessions that serve it, and of
    /// their catalogs. While nothing is exported it waits for that alone.
    pub async fn watch(&self, mut exports: watch::Receiver<u64>, stop: CancellationToken) {
        let mut sessions = self.sessions.changes();
        loop {
            exports.mark_unchanged();
            sessions.mark_unchanged();
            let table = self.index.load().exports().clone();
            let mut hosted: Vec<_> = table.iter().filter_map(|(_, e)| self.hosted(e)).collect();
            hosted.sort_by(|a, b| a.key.cmp(&b.key));
            hosted.dedup_by(|a, b| a.key == b.key);
            let mut catalogs: Vec<_> = hosted.iter().map(|h| h.catalogs.changes()).collect();
            // a change since the last look, whose receiver did not live yet, is told too
            self.version.send_modify(|version| *version += 1);
            let catalog = async {
                match catalogs.is_empty() {
                    true => std::future::pending().await,
                    false => {
                        drop(select_all(catalogs.iter_mut().map(|c| c.changed().boxed())).await)
                    }
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = exports.changed() => {}
                Ok(()) = sessions.changed(), if !table.is_empty() => {}
                () = catalog => {}
                else => return,
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(GATHER) => {}
            }
        }
    }

    /// The Session of an export, if it is the Agent's own and is served here.
    fn hosted(&self, exported: &Exported) -> Option<Arc<Hosted>> {
        let snapshot = self.index.load();
        let view = snapshot.session(&exported.session)?;
        // a Session of the Agent's name may belong to another
        if view.agent != exported.session.name {
            return None;
        }
        self.sessions.get(&exported.session).filter(|hosted| hosted.uid == view.uid)
    }
}

impl Shown {
    fn is_of(
        &self,
        table: &Arc<ExportTable>,
        catalogs: &BTreeMap<SessionKey, Arc<Catalog>>,
    ) -> bool {
        let same = |((a, x), (b, y)): ((_, &Arc<Catalog>), (_, &Arc<Catalog>))| {
            a == b && Arc::ptr_eq(x, y)
        };
        Arc::ptr_eq(&self.table, table)
            && self.catalogs.len() == catalogs.len()
            && self.catalogs.iter().zip(catalogs).all(same)
    }
}

/// The definition of an exported tool under its name here; none if it is not in service or its
/// ToolSet does not show it.
fn definition(catalog: &Catalog, name: &str, exported: &Exported) -> Option<RawJson> {
    let server = catalog.server_of(&exported.attachment)?;
    let found = catalog.find(Some(&server.handle.server), &exported.tool)?;
    let policy = found.server.policy.as_ref()?;
    policy.shows(&found.tool.name).then(|| handle::renamed(&found.tool.own, name))?
}
