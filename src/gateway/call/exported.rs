//! Calls through `/v1/mcp`: an exported tool of an Agent is a call of its Session, under its own
//! name there; a management tool is let through by the export set and recorded in the chain of this
//! start of the gateway.

use super::{
    Call, Calls, Errand, Ground, Question, Reply,
    outcome::Ending,
    refusal::{self, Refused},
};
use crate::{
    domain::{
        export::MANAGEMENT_TOOLS,
        gate::{self, Permit},
        lifecycle::Origin,
        reason::Reason,
        record::{Entry, Kind, Outcome},
        redact::Redactor,
    },
    gateway::export::{ExportSet, Found, ManagementContext, ManagementError, Progress, Secrets},
    journal::Chain,
    mcp::{Answer, RawJson},
};
use jiff::Timestamp;
use std::{sync::Arc, time::Duration};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

/// How long a management tool may take. Its own waits are shorter.
const LIMIT: Duration = Duration::from_secs(330);
/// What stands as target in the records of management tools.
const TARGET: &str = "management";

/// A call as the caller sent it.
#[derive(Debug)]
pub struct ExportCall {
    /// What is exported.
    pub set: Arc<ExportSet>,
    /// Name of the caller.
    pub subject: Arc<str>,
    /// What the caller shows, for it to stand in no record.
    pub secrets: Secrets,
    /// The tool as the caller named it.
    pub tool: String,
    /// The arguments, raw.
    pub arguments: Option<RawJson>,
    /// The whole params, raw.
    pub params: RawJson,
    /// Cancelled when the caller cancels.
    pub cancel: CancellationToken,
    /// Cancelled when the caller no longer waits. The call goes on.
    pub gone: CancellationToken,
    /// Takes progress, where the caller asked for it.
    pub progress: Option<Progress>,
}

/// A call of a management tool that passed every check and has a place.
struct Managed<'a> {
    calls: &'a Calls,
    call: &'a ExportCall,
    digest: String,
    permit: Permit,
    _place: OwnedSemaphorePermit,
}

impl Calls {
    pub(super) async fn exported(&self, call: ExportCall) -> Reply {
        let refused = match call.set.find(&call.tool) {
            Found::Agent { hosted, server, tool } => {
                let call = Call {
                    hosted,
                    server: Some(server),
                    // of the server's name the Session may have one of its own the next moment
                    origin: Some(Origin::Agent),
                    subject: call.subject,
                    tool,
                    alias: Some(call.tool),
                    secrets: Some(call.secrets),
                    arguments: call.arguments,
                    params: call.params,
                    cancel: call.cancel,
                    gone: call.gone,
                };
                return self.attached(&call).await;
            }
            Found::Management { digest } => match self.managed(&call, digest) {
                Ok((errand, question)) => return self.carry_out(&errand, question).await,
                Err(refused) => refused,
            },
            Found::Coming(next) => Refused::new(refusal::away(next, &call.tool, self.clock.now())),
            Found::Away => Refused::out_of_service(&call.tool),
            // on record it makes a difference whether the installation has such a tool
            Found::Nothing if MANAGEMENT_TOOLS.contains(&&*call.tool) => {
                Refused::denied(&call.tool, None, "exports".to_owned())
            }
            Found::Nothing => Refused::unknown(&call.tool),
        };
        let redactor = call.secrets.redactor();
        let ground = Ground::Installation(&redactor);
        let refused = refused.without(&redactor);
        self.refuse(ground, (&call.subject, &call.tool), refused).await
    }

    /// Every check, none of which waits.
    fn managed<'a>(
        &'a self,
        call: &'a ExportCall,
        digest: String,
    ) -> Result<(Managed<'a>, Question), Refused> {
        let permit = gate::exported(call.set.management_names(), &call.tool)
            .map_err(|rule| Refused::denied(&call.tool, None, rule))?;
        let question =
            Question::read(call.arguments.as_ref(), &call.params, &call.secrets.redactor())
                .map_err(|problem| Refused::arguments_of_ours(&problem))?;
        let place = call.set.admit().map_err(Refused::crowded)?;
        Ok((Managed { calls: self, call, digest, permit, _place: place }, question))
    }
}

impl Errand for Managed<'_> {
    fn chain(&self) -> (&Chain, i64) {
        self.calls.own_place()
    }

    fn entry(&self, at: Timestamp, kind: Kind) -> Entry {
        Entry {
            subject: Some(self.call.subject.as_ref().to_owned()),
            tool: Some(self.permit.tool().to_owned()),
            ..Entry::new(at, kind)
        }
    }

    fn intended(&self, entry: Entry) -> Entry {
        Entry {
            target: Some(TARGET.to_owned()),
            descriptor: Some(self.digest.clone()),
            rule: Some(self.permit.rule().to_owned()),
            ..entry
        }
    }

    fn redactor(&self) -> Arc<Redactor> {
        self.call.secrets.redactor()
    }

    fn abandoned(&self) -> bool {
        self.call.gone.is_cancelled()
    }

    async fn make(&self) -> Ending {
        let call = self.call;
        if call.cancel.is_cancelled() {
            return ended(ManagementError::Cancelled, &self.redactor());
        }
        let context =
            ManagementContext { cancel: call.cancel.clone(), progress: call.progress.clone() };
        let work = call.set.call(&self.permit, call.arguments.clone(), context);
        let stopped = "the gateway stopped while the call ran";
        tokio::select! {
            biased;
            result = tokio::time::timeout(LIMIT, work) => match result {
                Ok(Ok(result)) => Ending::answered(Answer::Result(result)),
                Ok(Err(error)) => ended(error, &self.redactor()),
                Err(_) => Ending::refused(
                    (Outcome::TimedOut, Reason::CallTimeout),
                    &format!("no end within {} s; it may have worked", LIMIT.as_secs()),
                    &self.redactor(),
                ),
            },
            () = self.calls.cut.cancelled() => {
                ended(ManagementError::OutcomeUnknown(stopped.to_owned()), &self.redactor())
            }
        }
    }
}

fn ended(error: ManagementError, redactor: &Redactor) -> Ending {
    let message = error.to_string();
    let (outcome, reason) = match error {
        ManagementError::Cancelled => (Outcome::Cancelled, Reason::Cancelled),
        ManagementError::OutcomeUnknown(_) => (Outcome::OutcomeUnknown, Reason::OutcomeUnknown),
        ManagementError::Unknown => (Outcome::TransportError, Reason::UnknownTool),
    };
    Ending::refused((outcome, reason), &message, redactor)
}
