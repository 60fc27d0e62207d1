//! Makes the connection to one server: its credential, its address, the transport, the handshake.
//! Reads Secrets by name and keeps their values in memory only. Decides nothing else.

use super::{
    cluster::{Cluster, ClusterError},
    realize::{Failure, Note, Realized, Realizer},
};
use crate::{
    domain::{
        lifecycle::{Evidence, Generation, Target},
        reason::Reason,
        redact::Redactor,
    },
    gateway::{Config, handle::Surface, index::{self, SessionView}},
    mcp::{EventSink, Peer, legacy},
    process::health::Guard,
};
use futures::future::BoxFuture;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Default)]
pub struct LinkKeys;
impl LinkKeys {
    pub async fn load(self, _: Arc<dyn Cluster>, _: String, _: String, _: Guard, _: CancellationToken) {}
}
pub struct Connector;
impl Connector {
    pub fn new(_: &Config, _: Arc<dyn Cluster>, _: index::Shared, _: LinkKeys) -> Result<Self, String> { Ok(Self) }
}
impl Realizer for Connector {
    fn realize<'a>(&'a self, _: &'a SessionView, _: &'a Generation, _: EventSink) -> BoxFuture<'a, Result<Realized, Failure>> { Box::pin(async { Err(Failure::new(Reason::ConnectFailed, "")) }) }
    fn relist<'a>(&'a self, _: &'a Generation, _: &'a dyn Peer) -> BoxFuture<'a, Result<(Surface, Evidence), Failure>> { Box::pin(async { Err(Failure::new(Reason::ConnectFailed, "")) }) }
}
