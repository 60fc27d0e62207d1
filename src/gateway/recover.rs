//! After a take-over: calls that an earlier host began and never ended get their end on record,
//! `OutcomeUnknown`, before this host's first receipt. Nothing is sent again.

use super::peers::Peers;
use crate::{
    domain::{
        Clock,
        reason::Reason,
        record::{Entry, Kind, Outcome},
    },
    journal::{Append, AppendError, Chain, Read, ReadError},
};
use std::{collections::HashSet, sync::Arc, time::Duration};

/// Why open calls could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// They cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Their end cannot be written.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// Ends what is open in the chains of starts of gateways that are not alive. Gives how many calls
/// that were.
///
/// # Errors
/// The journal's.
pub async fn earlier_starts(
    (append, read): (&dyn Append, &dyn Read),
    clock: &dyn Clock,
    alive: &HashSet<String>,
) -> Result<usize, RecoverError> {
    let mut ended = 0;
    for chain in read.chains().await? {
        if matches!(&chain, Chain::Incarnation(id) if !alive.contains(id)) {
            ended += end_open((append, read), clock, &chain, 0).await?;
        }
    }
    Ok(ended)
}

/// For a journal that several gateways write: ends what those left open that are gone, once when
/// who is there had `settling` to say so, then whenever one goes. Runs until it is dropped.
pub async fn follow_lost(
    (append, read): (Arc<dyn Append>, Arc<dyn Read>),
    clock: Arc<dyn Clock>,
    peers: Peers,
    own: String,
    settling: Duration,
) {
    let told = |ended: Result<usize, RecoverError>| match ended {
        Ok(0) => {}
        Ok(ended) => tracing::warn!(ended, "calls that a gateway which is gone left open"),
        Err(error) => tracing::error!(%error, "calls of gateways that are gone stay open"),
    };
    let alive = || {
        let mut alive = peers.incarnations();
        alive.insert(own.clone());
        alive
    };
    let mut changes = peers.changes();
    // the table keeps its sender, so this ends with the first list
    let _ = changes.wait_for(|version| *version > 0).await;
    tokio::time::sleep(settling).await;
    changes.mark_unchanged();
    let mut known = alive();
    told(earlier_starts((&*append, &*read), &*clock, &known).await);
    while changes.changed().await.is_ok() {
        let now = alive();
        for lost in known.difference(&now) {
            let chain = Chain::Incarnation(lost.clone());
            told(end_open((&*append, &*read), &*clock, &chain, 0).await);
        }
        known = now;
    }
}

/// Ends what an earlier host left open in the chain of a Session whose epoch this host raised. Gives
/// how many calls that were.
///
/// # Errors
/// The journal's; `Fenced` when a later host has the Session already.
pub async fn end_open(
    (append, read): (&dyn Append, &dyn Read),
    clock: &dyn Clock,
    chain: &Chain,
    epoch: i64,
) -> Result<usize, RecoverError> {
    let open = read.open_intents(chain).await?;
    for intent in &open {
        match append.append(chain, epoch, unknown(&intent.entry, clock)).await {
            // the earlier host's outcome came in between: the first one counts
            Ok(_) | Err(AppendError::AlreadyEnded) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(open.len())
}

fn unknown(intent: &Entry, clock: &dyn Clock) -> Entry {
    Entry {
        call: intent.call.clone(),
        subject: intent.subject.clone(),
        session: intent.session.clone(),
        attachment: intent.attachment.clone(),
        generation: intent.generation,
        tool: intent.tool.clone(),
        outcome: Some(Outcome::OutcomeUnknown),
        reason: Some(Reason::HostLost),
        message: Some("the gateway that ran the call is gone; the call may have run".to_owned()),
        ..Entry::new(clock.now(), Kind::Outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{domain::record::Record, journal::memory::Memory, process::clock::SystemClock};
    use serde_json::json;

    fn lease(name: &str, holder: &str) -> k8s_openapi::api::coordination::v1::Lease {
        let annotations = json!({"awaken.dev/address": "10.0.0.1:8081"});
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"holderIdentity": holder}}))
        .unwrap()
    }

    async fn begin(journal: &Memory, incarnation: &str) -> Chain {
        let chain = Chain::Incarnation(incarnation.to_owned());
        let mut intent = Entry::new(jiff::Timestamp::UNIX_EPOCH, Kind::Intent);
        intent.call = Some(format!("call of {incarnation}"));
        journal.append(&chain, 0, intent).await.unwrap();
        chain
    }

    fn ended(journal: &Memory, chain: &Chain) -> bool {
        let outcome = |r: &Record| r.entry.outcome == Some(Outcome::OutcomeUnknown);
        journal.records(chain).iter().any(outcome)
    }

    #[tokio::test(start_paused = true)]
    async fn only_gateways_that_are_gone_have_their_calls_ended() {
        let (journal, peers) = (Memory::new(), Peers::default());
        let mut chains = vec![];
        for incarnation in ["own", "alive", "starting", "long-gone"] {
            chains.push(begin(&journal, incarnation).await);
        }
        let settling = Duration::from_secs(15);
        let parts: (Arc<dyn Append>, Arc<dyn Read>) =
            (Arc::new(journal.clone()), Arc::new(journal.clone()));
        let (clock, own) = (Arc::new(SystemClock), "own".to_owned());
        let following = tokio::spawn(follow_lost(parts, clock, peers.clone(), own, settling));
        let states = || chains.iter().map(|c| ended(&journal, c)).collect::<Vec<_>>();

        tokio::time::sleep(settling * 2).await;
        assert_eq!(states(), [false; 4], "before anything was listed");
        peers.apply(&lease("gw-a", "alive"));
        tokio::time::sleep(settling / 2).await;
        peers.apply(&lease("gw-b", "starting"));
        tokio::time::sleep(settling).await;
        assert_eq!(states(), [false, false, false, true]);

        peers.apply(&lease("gw-b", "another start"));
        tokio::time::sleep(settling).await;
        assert_eq!(states(), [false, false, true, true]);
        following.abort();
    }
}
