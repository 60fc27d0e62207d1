//! Calls of the servers that are attached to a Session: found in its catalog, let through by its
//! ToolSets, recorded in its chain.

use super::{Calls, Errand, Ground, Question, Reply, outcome::Ending, params, refusal::Refused};
use crate::{
    domain::{
        Clock,
        gate::{self, Permit},
        lifecycle::{Origin, hosting::NoPlace},
        record::{Entry, Kind},
        redact::Redactor,
    },
    gateway::{
        catalog::{Catalog, Found},
        export::Secrets,
        handle::{Handle, Place, Tool},
        hosted::Hosted,
    },
    journal::Chain,
    mcp::{Answer, ConnectionFailure, Outgoing, Peer, PeerError, RawJson, Sent},
};
use jiff::Timestamp;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// A call as the caller sent it.
#[derive(Debug)]
pub struct Call {
    /// The Session.
    pub hosted: Arc<Hosted>,
    /// The server, on an endpoint of one server.
    pub server: Option<Arc<str>>,
    /// Who must have brought the server; none where that is no matter.
    pub origin: Option<Origin>,
    /// User name of the caller.
    pub subject: Arc<str>,
    /// The tool as the endpoint names it.
    pub tool: String,
    /// The tool as the caller named it, where that is another name.
    pub alias: Option<String>,
    /// The arguments, raw.
    pub arguments: Option<RawJson>,
    /// The whole params, raw.
    pub params: RawJson,
    /// What the caller shows that must stand in no record; none of a Kubernetes token is kept.
    pub secrets: Option<Secrets>,
    /// Cancelled when the caller cancels.
    pub cancel: CancellationToken,
    /// Cancelled when the caller no longer waits. The call goes on.
    pub gone: CancellationToken,
}

impl Call {
    fn shown(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.tool)
    }

    /// Takes out what is secret to the server and what the caller shows, as both are now.
    fn redactor(&self, handle: &Handle) -> Arc<Redactor> {
        let servers = handle.redactor();
        match &self.secrets {
            Some(secrets) => Arc::new(servers.beside(&secrets.redactor())),
            None => servers,
        }
    }
}

/// What passed every check and has a place, which it keeps until it is on record how it ended.
struct Attached<'a> {
    call: &'a Call,
    handle: Arc<Handle>,
    tool: Arc<Tool>,
    permit: Permit,
    _place: Place,
}

impl Calls {
    pub(super) async fn attached(&self, call: &Call) -> Reply {
        // until it is on record how it ended, refused calls too
        let in_use = call.hosted.usage.begin(self.clock.now()).await;
        let admitted = match in_use {
            Some(_) => admit(call, &*self.clock),
            None => Err(Refused::leaving(&call.hosted.label)),
        };
        match admitted {
            Ok((errand, question)) => self.carry_out(&errand, question).await,
            Err(refused) => {
                let ground = Ground::Session(&call.hosted);
                let refused = match &call.secrets {
                    Some(secrets) => refused.without(&secrets.redactor()),
                    None => refused,
                };
                self.refuse(ground, (&call.subject, &call.tool), refused).await
            }
        }
    }
}

/// Every check, none of which waits.
fn admit<'a>(call: &'a Call, clock: &dyn Clock) -> Result<(Attached<'a>, Question), Refused> {
    // a draining generation left the catalog before it began to refuse: look again
    for _ in 0..3 {
        let catalog: Arc<Catalog> = call.hosted.catalogs.load();
        let meant =
            |f: &Found<'_>| call.origin.is_none_or(|origin| f.server.handle.origin == origin);
        let found = catalog.find(call.server.as_deref(), &call.tool).filter(meant);
        let Some(found) = found else {
            return Err(nothing(call, &catalog, clock));
        };
        let permit = gate::pass(found.server.policy.as_deref(), &found.tool.name)
            .map_err(|rule| Refused::denied(call.shown(), Some(&found), rule))?;
        let question = Question::read(
            call.arguments.as_ref(),
            &call.params,
            &call.redactor(&found.server.handle),
        )
        .map_err(|problem| Refused::arguments(&found, &problem))?;
        match found.server.handle.admit() {
            Ok(place) => {
                let (handle, tool) = (found.server.handle.clone(), found.tool.clone());
                return Ok((Attached { call, handle, tool, permit, _place: place }, question));
            }
            Err(NoPlace::Full) => return Err(Refused::full(&found)),
            Err(NoPlace::Draining) => {}
        }
    }
    Err(Refused::leaving(&call.hosted.label))
}

/// A name that leads to nothing is unknown, unless it is one of a server that comes and the policy
/// as it is now lets its call pass.
fn nothing(call: &Call, catalog: &Catalog, clock: &dyn Clock) -> Refused {
    let Some(expected) = catalog.expected(call.server.as_deref(), &call.tool) else {
        return Refused::unknown(call.shown());
    };
    match gate::pass(expected.policy, expected.tool) {
        Ok(_) => Refused::coming(&expected, call.shown(), clock.now()),
        Err(rule) => Refused::denied(call.shown(), None, rule),
    }
}

impl Errand for Attached<'_> {
    fn chain(&self) -> (&Chain, i64) {
        (&self.call.hosted.chain, self.call.hosted.epoch)
    }

    fn entry(&self, at: Timestamp, kind: Kind) -> Entry {
        Entry {
            subject: Some(self.call.subject.as_ref().to_owned()),
            session: Some(self.call.hosted.label.clone()),
            attachment: Some(self.handle.attachment.clone()),
            generation: Some(self.handle.generation),
            tool: Some(self.permit.tool().to_owned()),
            ..Entry::new(at, kind)
        }
    }

    fn intended(&self, entry: Entry) -> Entry {
        Entry {
            target: Some(self.handle.target.clone()),
            credential: self.handle.credential.clone(),
            descriptor: Some(self.tool.digest.clone()),
            rule: Some(self.permit.rule().to_owned()),
            ..entry
        }
    }

    fn redactor(&self) -> Arc<Redactor> {
        self.call.redactor(&self.handle)
    }

    fn abandoned(&self) -> bool {
        self.call.gone.is_cancelled()
    }

    async fn make(&self) -> Ending {
        let (call, handle) = (self.call, &*self.handle);
        if call.cancel.is_cancelled() {
            return Ending::failed(&PeerError::Cancelled, &self.redactor());
        }
        let name = self.permit.tool();
        let params = params::toward_server(name, call.arguments.as_ref(), &call.params);
        let (peer, end) = (handle.peer(), Instant::now() + handle.call_timeout());
        let mut answer = ask(call, handle, &*peer, (params.clone(), end)).await;
        // refused before it ran, since the server forgot the MCP session: once more
        if let Err(PeerError::Connection {
            sent: Sent::No,
            kind: ConnectionFailure::SessionLost,
            ..
        }) = &answer
        {
            tokio::select! {
                biased;
                () = call.cancel.cancelled() => answer = Err(PeerError::Cancelled),
                // it did not run: the answer that says so stands
                () = handle.cut().cancelled() => {}
                renewed = timeout_at(end, handle.renewed(&peer)) => if let Ok(Some(fresh)) = renewed {
                    answer = ask(call, handle, &*fresh, (params, end)).await;
                }
            }
        }
        answer.map_or_else(|error| Ending::failed(&error, &self.redactor()), Ending::answered)
    }
}

async fn ask(
    call: &Call,
    handle: &Handle,
    peer: &dyn Peer,
    (params, end): (RawJson, Instant),
) -> Result<Answer, PeerError> {
    let request = Outgoing {
        method: "tools/call",
        params: Some(params),
        timeout: end.saturating_duration_since(Instant::now()),
        cancel: call.cancel.clone(),
    };
    tokio::select! {
        biased;
        answer = peer.request(request) => answer,
        () = handle.cut().cancelled() => Err(PeerError::Connection {
            sent: Sent::Maybe,
            kind: ConnectionFailure::Unreachable,
            message: "the server was taken out of service while the call ran".to_owned(),
        }),
    }
}
