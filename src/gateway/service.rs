//! One endpoint of one Session for one caller, as the MCP server sees it. Translates, and decides
//! nothing: the list is the catalog's, the call is `call`'s.

use super::{
    auth::{Auth, Caller, Right},
    call::{Call, Calls, Ground, Refusal, Reply},
    hosted::Hosted,
};
use crate::{
    domain::identity::SessionKey,
    mcp::{
        Answer,
        server::{Refused, ServerInfo, Service, ToolCall, ToolList},
        wire::RpcError,
    },
};
use axum::http::StatusCode;
use futures::future::BoxFuture;
use secrecy::{ExposeSecret, SecretString};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often the caller of an open stream is reviewed again. Longer than any review is remembered.
pub const REVIEW: Duration = Duration::from_secs(60);

/// An endpoint.
#[derive(Debug)]
pub struct Endpoint {
    calls: Arc<Calls>,
    hosted: Arc<Hosted>,
    server: Option<Arc<str>>,
    caller: Arc<Caller>,
    ended: CancellationToken,
}

impl Endpoint {
    /// The endpoint of all servers, or of one. `ended` ends its streams.
    pub fn new(
        calls: Arc<Calls>,
        hosted: Arc<Hosted>,
        server: Option<Arc<str>>,
        caller: Arc<Caller>,
        ended: CancellationToken,
    ) -> Self {
        Self { calls, hosted, server, caller, ended }
    }
}

/// A stream's caller, reviewed again and again until the stream is over; `ended` is cancelled when
/// the token or the right is withdrawn.
pub async fn review(
    auth: Arc<Auth>,
    token: SecretString,
    session: SessionKey,
    every: Duration,
    (ended, over): (CancellationToken, CancellationToken),
) {
    loop {
        tokio::select! {
            () = over.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
        let review = async {
            let caller = auth.caller(token.expose_secret()).await?;
            auth.allow(&caller, Right::UseTools, &session).await
        };
        // an API server that does not answer withdraws nothing
        if review.await.is_err_and(|e| e.status != StatusCode::SERVICE_UNAVAILABLE) {
            return ended.cancel();
        }
    }
}

impl Service for Endpoint {
    fn info(&self) -> ServerInfo {
        ServerInfo {
            name: "awaken-gateway".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            title: None,
            instructions: None,
        }
    }

    fn tools(&self) -> Arc<ToolList> {
        self.hosted.catalogs.load().list(self.server.as_deref()).clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.hosted.catalogs.changes()
    }

    fn call(&self, call: ToolCall) -> BoxFuture<'static, Answer> {
        let calls = self.calls.clone();
        let call = Call {
            hosted: self.hosted.clone(),
            server: self.server.clone(),
            origin: None,
            subject: self.caller.user.clone(),
            tool: call.name,
            secrets: None,
            alias: None,
            arguments: call.arguments,
            params: call.params,
            cancel: call.context.cancel,
            gone: call.context.gone,
        };
        Box::pin(async move { answer(calls.run(call).await) })
    }

    fn refused(&self, refused: Refused) -> BoxFuture<'static, ()> {
        let (calls, hosted, caller) =
            (self.calls.clone(), self.hosted.clone(), self.caller.clone());
        Box::pin(async move {
            let (ground, reason) = (Ground::Session(&hosted), refused.reason);
            calls.refuse_request(ground, &caller.user, reason, &told(refused)).await;
        })
    }

    fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }
}

/// What the client gets.
pub(super) fn answer(reply: Reply) -> Answer {
    match reply {
        Reply::Result(result) => Answer::Result(result),
        Reply::Error(error) => Answer::Error(error),
        Reply::Refused(Refusal { code, reason, message, retry_after }) => {
            let error = RpcError::because(reason, code, message);
            let error = match retry_after {
                Some(seconds) => error.with("retryAfter", seconds),
                None => error,
            };
            Answer::Error(error.to_json())
        }
    }
}

/// What the record of a refused request says.
pub(super) fn told(refused: Refused) -> String {
    match refused.method {
        Some(method) => format!("{method}: {}", refused.message),
        None => refused.message,
    }
}
