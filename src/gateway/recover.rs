//! After a take-over: calls that an earlier host began and never ended get their end on record,
//! `OutcomeUnknown`, before this host's first receipt. Nothing is sent again.

use crate::{
    domain::{
        Clock,
        reason::Reason,
        record::{Entry, Kind, Outcome},
    },
    journal::{Append, AppendError, Chain, Read, ReadError},
};

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

/// Ends what is open in the chains of other starts of a gateway. Only right for a journal that no
/// other process writes: then they are all over. Gives how many calls that were.
///
/// # Errors
/// The journal's.
pub async fn earlier_starts(
    (append, read): (&dyn Append, &dyn Read),
    clock: &dyn Clock,
    incarnation: &str,
) -> Result<usize, RecoverError> {
    let mut ended = 0;
    for chain in read.chains().await? {
        if matches!(&chain, Chain::Incarnation(id) if id != incarnation) {
            ended += end_open((append, read), clock, &chain, 0).await?;
        }
    }
    Ok(ended)
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
