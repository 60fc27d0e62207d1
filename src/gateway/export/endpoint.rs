//! The route for one caller, as the MCP server sees it. Translates, and decides nothing: the list is
//! the export set's, the call is `call`'s.

use super::{ExportSet, Pass, SUBJECT};
use crate::{
    gateway::{
        call::{Calls, ExportCall, Ground},
        service,
    },
    mcp::{
        Answer,
        server::{Refused, ServerInfo, Service, ToolCall, ToolList},
    },
};
use futures::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const INSTRUCTIONS: &str = "Tools of an awaken-operator installation on Kubernetes. Those named \
    agents_, attachment_, attachments_, session_, sessions_ and trace_ manage it; any other belongs to \
    an Agent that exports it. A result with isError says the cause and the next step.";

/// The endpoint.
#[derive(Debug)]
pub struct ExportEndpoint {
    /// The way for a call.
    pub calls: Arc<Calls>,
    /// What is exported.
    pub set: Arc<ExportSet>,
    /// What the caller showed.
    pub pass: Pass,
}

impl Service for ExportEndpoint {
    fn info(&self) -> ServerInfo {
        ServerInfo {
            name: "awaken-gateway".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            title: Some("awaken-operator".to_owned()),
            instructions: Some(INSTRUCTIONS.to_owned()),
        }
    }

    fn tools(&self) -> Arc<ToolList> {
        self.set.tools()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.set.changes()
    }

    fn call(&self, call: ToolCall) -> BoxFuture<'static, Answer> {
        let calls = self.calls.clone();
        let call = ExportCall {
            set: self.set.clone(),
            subject: SUBJECT.into(),
            secrets: self.pass.secrets.clone(),
            tool: call.name,
            arguments: call.arguments,
            params: call.params,
            cancel: call.context.cancel,
            gone: call.context.gone,
            progress: call.context.progress,
        };
        Box::pin(async move { service::answer(calls.run_exported(call).await) })
    }

    fn refused(&self, refused: Refused) -> BoxFuture<'static, ()> {
        let (calls, redactor) = (self.calls.clone(), self.pass.secrets.redactor());
        Box::pin(async move {
            let (reason, message) = (refused.reason, service::told(refused));
            calls.refuse_request(Ground::Installation(&redactor), SUBJECT, reason, &message).await;
        })
    }

    fn ended(&self) -> CancellationToken {
        self.pass.withdrawn.clone()
    }
}
