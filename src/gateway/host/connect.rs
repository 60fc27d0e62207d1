//! Makes the connection to one server: its credential, its address, the transport, the handshake.
//! Reads Secrets by name and keeps their values in memory only. Decides nothing else.

use super::{
    addresses::{self, Around},
    cluster::{Cluster, ClusterError},
    keys::LinkKeys,
    noise::Heard,
    realize::{Failure, Note, Realized, Realizer, startup},
};
use crate::{
    domain::{
        address::canonical_url,
        allowed_targets::{Destination, refusal},
        lifecycle::{CredentialRef, Evidence, Generation, PodTarget, SecretKey, Target},
        reason::Reason,
        redact::Redactor,
    },
    gateway::{Config, handle::Surface, index::SessionView},
    mcp::{
        EventSink, Peer,
        client_http::{self, AddressPolicy, HttpPeer, TargetError, tls_config},
        client_stdio::{StdioPeer, StdioTarget},
        legacy::{self, HandshakeError, ToolListing},
    },
};
use awaken_shim::Claim;
use axum::http::HeaderName;
use futures::future::BoxFuture;
use secrecy::SecretString;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// The shim's port.
const SHIM_PORT: u16 = 7411;
/// How long one connection may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// Names that one message lists.
const NAMED: usize = 8;

/// Connects to servers.
pub struct Connector {
    cluster: Arc<dyn Cluster>,
    keys: LinkKeys,
    policy: AddressPolicy,
    tls: Arc<rustls::ClientConfig>,
    require_allowed_targets: bool,
}

impl Connector {
    /// With the networks of the settings.
    ///
    /// # Errors
    /// A network that is none; a machine without usable root certificates.
    pub fn new(
        config: &Config,
        cluster: Arc<dyn Cluster>,
        around: Around,
        keys: LinkKeys,
    ) -> Result<Self, String> {
        let policy = addresses::policy(config, around)?;
        let tls = tls_config().map_err(|e| format!("no root certificates: {e}"))?;
        let require_allowed_targets = config.require_allowed_targets;
        Ok(Self { cluster, keys, policy, tls, require_allowed_targets })
    }

    /// The value of a Secret's key, without white space around it, if it may go there.
    async fn value(
        &self,
        namespace: &str,
        key: &SecretKey,
        destination: Destination<'_>,
    ) -> Result<SecretString, Failure> {
        let SecretKey { secret, key } = key;
        let read = self.cluster.secret(namespace, secret).await.map_err(|error| match error {
            ClusterError::NotFound => {
                Failure::new(Reason::SecretNotFound, format!("there is no Secret {secret}"))
            }
            other => Failure::new(
                Reason::ConnectFailed,
                format!("the Secret {secret} cannot be read: {other}"),
            ),
        })?;
        let allowed = read.allowed_targets.as_deref();
        if let Some(why) = refusal(allowed, self.require_allowed_targets, destination) {
            let what = format!("the Secret {secret} {why}");
            return Err(Failure::new(Reason::SecretNotAllowed, what));
        }
        let missing = |what| Failure::new(Reason::SecretKeyNotFound, what);
        let value = read
            .values
            .get(key)
            .ok_or_else(|| missing(format!("the Secret {secret} has no key {key}")))?;
        let text = std::str::from_utf8(value).map_err(|_| {
            let what = format!("the key {key} of the Secret {secret} holds no UTF-8 text");
            Failure::new(Reason::SecretValueInvalid, what)
        })?;
        Ok(SecretString::from(text.trim().to_owned()))
    }

    async fn http(
        &self,
        namespace: &str,
        (url, credential): (&str, Option<&CredentialRef>),
        generation: &Generation,
        events: EventSink,
    ) -> Result<(Arc<dyn Peer>, Vec<SecretString>), Failure> {
        let mut secrets = vec![];
        let shown = match credential {
            None => None,
            Some(CredentialRef { secret, key, header, scheme }) => {
                let place = SecretKey { secret: secret.clone(), key: key.clone() };
                let to = canonical_url(url)
                    .map_err(|error| Failure::new(Reason::InvalidUrl, error.to_string()))?;
                let to = Destination::Origin(to.origin());
                let value = self.value(namespace, &place, to).await?;
                secrets.push(value.clone());
                let header: HeaderName = header.parse().map_err(|_| {
                    Failure::new(Reason::InvalidUrl, format!("{header:?} is no header name"))
                })?;
                Some(client_http::Credential { header, scheme: scheme.clone(), value })
            }
        };
        let target = client_http::HttpTarget::new(url, shown, limit(generation), CONNECT).map_err(
            |error| match error {
                TargetError::Url(_) => Failure::new(Reason::InvalidUrl, error.to_string()),
                TargetError::Credential => {
                    Failure::new(Reason::SecretValueInvalid, error.to_string())
                }
            },
        )?;
        let peer = HttpPeer::new(target, self.policy.clone(), self.tls.clone(), events);
        Ok((Arc::new(peer), secrets))
    }

    async fn stdio(
        &self,
        namespace: &str,
        pod: &PodTarget,
        generation: &Generation,
        events: EventSink,
    ) -> Result<(Arc<dyn Peer>, Vec<SecretString>), Failure> {
        let mut secrets = vec![];
        for key in &pod.secrets {
            secrets.push(self.value(namespace, key, Destination::Stdio).await?);
        }
        let not_yet = |what: &str| Failure::new(Reason::ConnectFailed, what);
        let key = self.keys.current().ok_or_else(|| not_yet("the link keys are not there yet"))?;
        let (Some(uid), Some(address)) = (&pod.uid, &pod.address) else {
            return Err(not_yet("the Session pod has no address yet"));
        };
        let address: IpAddr =
            address.parse().map_err(|_| not_yet("the Session pod's address is none"))?;
        let Some(stage) = &generation.stage else {
            return Err(not_yet("nothing is asked of the generation"));
        };
        let whole = &stage.generation_ref;
        let number = |n: i64| u64::try_from(n).unwrap_or_default();
        let claim = Claim {
            pod_uid: uid.clone(),
            session_uid: whole.session_uid.clone(),
            attachment_uid: whole.attachment_uid.clone(),
            generation: number(whole.generation),
            epoch: number(whole.epoch),
            incarnation: whole.incarnation.clone(),
        };
        let target = StdioTarget {
            address: SocketAddr::new(address, SHIM_PORT),
            claim,
            max_message_bytes: limit(generation),
        };
        let peer = StdioPeer::connect(target, key, events).await.map_err(|error| {
            let redactor = redactor(&secrets);
            failure(&redactor, &HandshakeError::of(&error, "attach"))
        })?;
        Ok((Arc::new(peer), secrets))
    }
}

impl Realizer for Connector {
    fn realize<'a>(
        &'a self,
        session: &'a SessionView,
        generation: &'a Generation,
        events: EventSink,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Realized, Failure>> {
        Box::pin(async move {
            let (namespace, end) = (&session.key.namespace, Instant::now() + limit);
            let noise = Heard::default();
            let connecting = async {
                match &generation.target {
                    Target::Http(http) => {
                        let target = (&*http.url, http.credential.as_ref());
                        self.http(namespace, target, generation, events).await
                    }
                    Target::SandboxStdio(pod) => {
                        self.stdio(namespace, pod, generation, noise.before(events)).await
                    }
                }
            };
            let (peer, secrets) = timeout_at(end, connecting).await.unwrap_or_else(|_| {
                let message = format!("no connection within {} ms", limit.as_millis());
                Err(Failure::new(Reason::ConnectFailed, message))
            })?;
            let redactor = redactor(&secrets);
            let left = end.saturating_duration_since(Instant::now());
            let shaken = match legacy::handshake(&*peer, left).await {
                Ok(shaken) => shaken,
                Err(error) => {
                    peer.close().await;
                    let failure = failure(&redactor, &error);
                    return Err(match noise.latest() {
                        Some(noise) => noise.explain(failure, &redactor),
                        None => failure,
                    });
                }
            };
            let info = format!("{} {}", shaken.server_name, shaken.server_version);
            let info = redactor.text(&info);
            let notes = notes(&redactor, &shaken.listing);
            let surface = Surface::new(&generation.server, shaken.listing);
            let evidence = Evidence {
                protocol_version: Some(shaken.revision.as_str().to_owned()),
                server_info: Some(info.trim().chars().take(64).collect()),
                ..listed(&surface)
            };
            Ok(Realized { peer, surface, evidence, redactor, notes })
        })
    }

    fn relist<'a>(
        &'a self,
        generation: &'a Generation,
        peer: &'a dyn Peer,
        redactor: &'a Redactor,
    ) -> BoxFuture<'a, Result<(Surface, Vec<Note>), Failure>> {
        Box::pin(async move {
            let listing = legacy::relist(peer, startup(generation)).await;
            let listing = listing.map_err(|e| failure(redactor, &e))?;
            let notes = notes(redactor, &listing);
            Ok((Surface::new(&generation.server, listing), notes))
        })
    }
}

/// What a list of tools proves.
pub fn listed(surface: &Surface) -> Evidence {
    Evidence {
        tool_count: i64::try_from(surface.tools.len()).ok(),
        surface_digest: Some(surface.digest.clone()),
        ..Evidence::default()
    }
}

fn limit(generation: &Generation) -> usize {
    usize::try_from(generation.limits.max_message_bytes).unwrap_or(16 << 20)
}

fn redactor(secrets: &[SecretString]) -> Redactor {
    use secrecy::ExposeSecret as _;
    Redactor::new(secrets.iter().map(|s| s.expose_secret()))
}

fn failure(redactor: &Redactor, error: &HandshakeError) -> Failure {
    Failure::new(error.reason, redactor.text(&error.message))
}

fn notes(redactor: &Redactor, listing: &ToolListing) -> Vec<Note> {
    let mut notes = vec![];
    if let Some(where_) = &listing.truncated {
        let message = format!("the server's list was cut {}", redactor.text(where_));
        notes.push(Note { reason: Reason::ListTruncated, message });
    }
    if !listing.repeated.is_empty() {
        let named: Vec<_> = listing.repeated.iter().take(NAMED).map(|n| format!("{n:?}")).collect();
        let more = listing.repeated.len().saturating_sub(NAMED);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!("listed more than once: {}{rest}", redactor.text(&named.join(", ")));
        notes.push(Note { reason: Reason::ToolRepeated, message });
    }
    if !listing.quarantined.is_empty() {
        let named = listing.quarantined.iter().take(NAMED);
        let named: Vec<_> = named.map(|q| format!("{:?}: {}", q.name, q.why)).collect();
        let more = listing.quarantined.len().saturating_sub(NAMED);
        let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
        let message = redactor.text(&named.join("; ")).into_owned() + &rest;
        notes.push(Note { reason: Reason::ToolQuarantined, message });
    }
    notes
}
