//! Every read: from the watched stores, and of Secret values by name, only when the metadata of a
//! Secret that somebody names has changed. Values are hashed at once and not kept.

use super::{
    exports::{self, ExportsSeen},
    hosts::Gateways,
    keys::{self, KeyError, SourceKey},
    latest::LatestAll,
    own,
    refs::{self, named},
    secrets::{Known, SecretState, Values},
    seen::{Leaving, Rules, Seen},
    stores::Stores,
    unreadable::Unreadable,
};
use crate::{
    api::{Agent, McpAttachment, Session},
    domain::{
        Clock,
        allowed_targets::ALLOWED_TARGETS,
        export::{self, Namespaces},
        identity::SessionKey,
    },
};
use jiff::{Timestamp, TimestampRound, Unit};
use k8s_openapi::api::{
    core::v1::{Pod, Secret},
    networking::v1::NetworkPolicy,
};
use kube::{
    Api, Client, ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout};

const REQUEST: Duration = Duration::from_secs(15);

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The stored object does not fit the schema of this version; nothing is decided without it.
    #[error("the {kind} {key} cannot be read")]
    Unreadable {
        /// The kind.
        kind: &'static str,
        /// Which one.
        key: SessionKey,
    },
    /// The API server could not be asked.
    #[error("reading {what}: {source}")]
    Api {
        /// What was to be read.
        what: String,
        /// What it said.
        #[source]
        source: Box<kube::Error>,
    },
    /// There was no answer in time.
    #[error("reading {what}: no answer within {REQUEST:?}")]
    Timeout {
        /// What was to be read.
        what: String,
    },
    /// The installation's keys are not usable.
    #[error(transparent)]
    Keys(#[from] KeyError),
}

/// The reading side.
pub struct Resolve {
    client: Client,
    namespace: String,
    clock: Arc<dyn Clock>,
    stores: Stores,
    unreadable: Unreadable,
    gateways: Arc<Gateways>,
    /// What we wrote, where the watches have not caught up.
    pub latest: Arc<LatestAll>,
    source_key: SourceKey,
    export_from: Namespaces,
    rules: Rules,
    hashes: Mutex<HashMap<SessionKey, Hashed>>,
    link: Mutex<Option<(String, Arc<str>)>>,
}

/// What may be known of the values of one version of a Secret.
struct Hashed {
    version: String,
    values: Arc<Values>,
}

impl Resolve {
    /// Reads from these stores, and Secrets through this client. The reserved Secrets of the rules
    /// are those of the installation's namespace.
    #[expect(clippy::too_many_arguments, reason = "built once, in one place")]
    pub fn new(
        client: Client,
        namespace: String,
        clock: Arc<dyn Clock>,
        stores: Stores,
        unreadable: Unreadable,
        gateways: Arc<Gateways>,
        latest: Arc<LatestAll>,
        source_key: SourceKey,
        export_from: Namespaces,
        rules: Rules,
    ) -> Self {
        Self {
            client,
            namespace,
            clock,
            stores,
            unreadable,
            gateways,
            latest,
            source_key,
            export_from,
            rules,
            hashes: Mutex::default(),
            link: Mutex::default(),
        }
    }

    /// The Session of this name, as it is now.
    pub fn session(&self, key: &SessionKey) -> Option<Arc<Session>> {
        self.latest.sessions.pick(key, get(&self.stores.sessions, key))
    }

    /// The Sessions that name this Agent.
    pub fn sessions_of(&self, agent: &SessionKey) -> Vec<Arc<Session>> {
        let names = |s: &Session| refs::agent_of(s) == *agent;
        self.latest.sessions.merge(self.stores.sessions.state_filter(names), names)
    }

    /// Everything that a reconcile of this Session under that Agent depends on.
    ///
    /// # Errors
    /// When the Agent or the Session cannot be read, or a Secret cannot be fetched.
    pub async fn gather(&self, key: &SessionKey, agent: &str) -> Result<Seen, ResolveError> {
        let agent_key = SessionKey { namespace: key.namespace.clone(), name: agent.to_owned() };
        for (kind, key) in [("Agent", &agent_key), ("Session", key)] {
            if self.unreadable.has(kind, key) {
                return Err(ResolveError::Unreadable { kind, key: key.clone() });
            }
        }
        let agent = self.latest.agents.pick(&agent_key, get(&self.stores.agents, &agent_key));
        let session = self.session(key);
        let unreadable = self.unreadable.uids("McpAttachment", &key.namespace);
        let readable = |a: &McpAttachment| {
            !a.metadata.uid.as_ref().is_some_and(|uid| unreadable.contains(uid))
        };
        let attachments = self
            .stores
            .attachments
            .state_filter(|a| refs::of_attachment(a) == agent_key)
            .into_iter()
            .filter(|a| readable(a))
            .filter_map(|a| self.latest.attachments.pick(&named(&*a), Some(a)));
        let (attachments, going): (Vec<_>, Vec<_>) = attachments.partition(|a| stays(&**a));
        let (pods, policy) = match session.as_deref().and_then(|s| s.metadata.uid.as_deref()) {
            Some(uid) => (self.pods(uid), self.policy(uid)),
            None => (vec![], None),
        };
        let own = session.as_deref().map(own::attachments).unwrap_or_default();
        let secrets = self.secrets(&key.namespace, attachments.iter().chain(&own)).await?;
        let (agent, ending) = match agent {
            Some(agent) if !stays(&*agent) => (None, Some(agent)),
            agent => (agent, None),
        };
        let exports = agent.as_deref().map(|a| self.exports(a)).unwrap_or_default();
        Ok(Seen {
            key: key.clone(),
            now: self.now(),
            agent,
            exports,
            session,
            attachments,
            leaving: Leaving { agent: ending, attachments: going },
            unreadable,
            secrets,
            pods,
            policy,
            gateways: self.gateways.live(Instant::now()),
            rules: self.rules_in(&key.namespace),
        })
    }

    fn rules_in(&self, namespace: &str) -> Rules {
        let mut rules = self.rules.clone();
        if namespace != self.namespace {
            rules.reserved_secrets.clear();
        }
        rules
    }

    /// What an Agent's exports depend on; nothing when it has none.
    fn exports(&self, agent: &Agent) -> ExportsSeen {
        let namespace = agent.namespace().unwrap_or_default();
        if agent.spec.exports.is_empty() || !self.export_from.allows(&namespace) {
            return ExportsSeen::default();
        }
        let names: BTreeSet<_> = agent.spec.exports.iter().map(|e| &*e.name).collect();
        let rivals = self.stores.agents.state_filter(|a| {
            a.spec.exports.iter().any(|e| names.contains(&*e.name))
                && stays(a)
                && self.export_from.allows(&a.namespace().unwrap_or_default())
                && !self.unreadable.has("Agent", &named(a))
        });
        let claims: Vec<_> = rivals.iter().map(|a| exports::claim(a)).collect();
        ExportsSeen { allowed: true, owners: export::owners(&claims) }
    }

    /// Reads a Session again that somebody else wrote meanwhile.
    ///
    /// # Errors
    /// When the API server cannot be asked.
    pub async fn refresh_session(&self, key: &SessionKey) -> Result<(), ResolveError> {
        let api = Api::<Session>::namespaced(self.client.clone(), &key.namespace);
        match within(format!("Session {key}"), api.get_opt(&key.name)).await? {
            Some(session) => drop(self.latest.sessions.put(key, session)),
            None => self.latest.sessions.forget(key),
        }
        Ok(())
    }

    /// The public keys that pods are given.
    ///
    /// # Errors
    /// When the Secret cannot be read or holds no key.
    pub async fn link_keys(&self) -> Result<Arc<str>, ResolveError> {
        let key =
            SessionKey { namespace: self.namespace.clone(), name: keys::LINK_KEYS.to_owned() };
        let version =
            get(&self.stores.secrets, &key).and_then(|s| s.metadata.resource_version.clone());
        let cached = self.link.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some(version), Some((seen, public))) = (&version, cached)
            && *version == seen
        {
            return Ok(public);
        }
        let api = Api::<Secret>::namespaced(self.client.clone(), &key.namespace);
        let secret = within(format!("Secret {key}"), api.get(&key.name)).await?;
        let public: Arc<str> = keys::public_keys(&secret)?.into();
        if let Some(version) = secret.metadata.resource_version {
            *self.link.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((version, public.clone()));
        }
        Ok(public)
    }

    /// The time, in whole milliseconds: what is written is what is read back.
    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        now.round(TimestampRound::new().smallest(Unit::Millisecond)).unwrap_or(now)
    }

    fn pods(&self, session_uid: &str) -> Vec<Arc<Pod>> {
        let belongs = |p: &Pod| refs::is_owned_by(&p.metadata, session_uid);
        self.latest.pods.merge(self.stores.pods.state_filter(belongs), belongs)
    }

    fn policy(&self, session_uid: &str) -> Option<Arc<NetworkPolicy>> {
        let belongs = |p: &NetworkPolicy| refs::is_owned_by(&p.metadata, session_uid);
        self.latest.policies.merge(self.stores.policies.state_filter(belongs), belongs).pop()
    }

    async fn secrets<'a>(
        &self,
        namespace: &str,
        attachments: impl Iterator<Item = &'a Arc<McpAttachment>>,
    ) -> Result<BTreeMap<String, SecretState>, ResolveError> {
        let names: BTreeSet<&str> = attachments.flat_map(|a| refs::secrets_of(&a.spec)).collect();
        let mut out = BTreeMap::new();
        for name in names {
            let key = SessionKey { namespace: namespace.to_owned(), name: name.to_owned() };
            out.insert(name.to_owned(), self.secret(&key).await?);
        }
        Ok(out)
    }

    async fn secret(&self, key: &SessionKey) -> Result<SecretState, ResolveError> {
        let Some(meta) = get(&self.stores.secrets, key) else {
            self.lock_hashes().remove(key);
            return Ok(SecretState::Missing);
        };
        let version = meta.metadata.resource_version.clone().unwrap_or_default();
        if let Some(hashed) = self.lock_hashes().get(key).filter(|h| h.version == version) {
            return Ok(SecretState::Present(hashed.values.clone()));
        }
        let api = Api::<Secret>::namespaced(self.client.clone(), &key.namespace);
        let Some(secret) = within(format!("Secret {key}"), api.get_opt(&key.name)).await? else {
            return Ok(SecretState::Missing);
        };
        let version = secret.metadata.resource_version.clone().unwrap_or_default();
        let allowed_targets = secret.annotations().get(ALLOWED_TARGETS).cloned();
        let data = secret.data.unwrap_or_default();
        let keys: BTreeMap<_, _> = data
            .iter()
            .map(|(name, value)| {
                (name.clone(), Known::of(&value.0, self.source_key.hash(&value.0)))
            })
            .collect();
        let values = Arc::new(Values { keys, allowed_targets });
        self.lock_hashes().insert(key.clone(), Hashed { version, values: values.clone() });
        Ok(SecretState::Present(values))
    }

    fn lock_hashes(&self) -> std::sync::MutexGuard<'_, HashMap<SessionKey, Hashed>> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nobody deletes it.
fn stays(object: &impl ResourceExt) -> bool {
    object.meta().deletion_timestamp.is_none()
}

fn get<K>(store: &Store<K>, key: &SessionKey) -> Option<Arc<K>>
where
    K: kube::runtime::reflector::Lookup<DynamicType = ()> + Clone + 'static,
{
    store.get(&ObjectRef::new(&key.name).within(&key.namespace))
}

async fn within<T>(
    what: String,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ResolveError> {
    match timeout(REQUEST, request).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(source)) => Err(ResolveError::Api { what, source: Box::new(source) }),
        Err(_) => Err(ResolveError::Timeout { what }),
    }
}
