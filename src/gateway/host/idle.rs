//! Looks whether a Session has been idle for its Agent's idleTimeout. What was before this host
//! took it over is read from the journal, where every call is on record.

use super::Parts;
use crate::{
    domain::record::Kind,
    gateway::{hosted::Hosted, index::SessionView},
    journal::{Chain, Read, ReadError},
};
use jiff::Timestamp;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// How many of the last records are looked through for a call.
const TAIL: u64 = 256;

/// Looks until `stop`, whenever its time has come. While no limit is set nothing is looked at.
pub async fn watch(
    parts: Parts,
    hosted: Arc<Hosted>,
    view: Arc<SessionView>,
    stop: CancellationToken,
) {
    let (mut is_known, mut failures) = (false, 0);
    loop {
        let timeout = parts.index.load().idle_timeout(&view);
        let again = match timeout {
            None => None,
            Some(limit) if is_known => Some(hosted.usage.look(limit, parts.clock.now())),
            Some(_) => match quiet(&*parts.read, &hosted.chain, parts.clock.now()).await {
                Ok(quiet) => {
                    hosted.usage.was_quiet(quiet);
                    is_known = true;
                    Some(Duration::ZERO)
                }
                Err(error) => {
                    tracing::warn!(session = %hosted.key, %error, "its last call is not known yet");
                    failures += 1;
                    Some(parts.backoff.after(failures))
                }
            },
        };
        let time = async {
            match again {
                Some(again) => tokio::time::sleep(again).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = hosted.usage.poked() => {}
            () = time => {}
        }
    }
}

/// For how long no call was made, as far as that is on record. What is not known is not counted.
async fn quiet(read: &dyn Read, chain: &Chain, now: Timestamp) -> Result<Duration, ReadError> {
    let end = read.end(chain).await?;
    let tail = read.page(chain, end.saturating_sub(TAIL), TAIL as usize).await?;
    let call = tail.iter().rev().find(|record| record.entry.kind != Kind::Lifecycle);
    let since = call.or(tail.first()).map_or(now, |record| record.entry.at);
    Ok(now.duration_since(since).try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::record::{Entry, Outcome},
        journal::{Append as _, memory::Memory},
    };
    use rstest::rstest;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[rstest]
    #[case::nothing(&[], 0)]
    #[case::no_call_yet(&[(Kind::Lifecycle, 10), (Kind::Lifecycle, 50)], 90)]
    #[case::a_call(&[(Kind::Lifecycle, 10), (Kind::Intent, 20), (Kind::Outcome, 60), (Kind::Lifecycle, 70)], 40)]
    #[case::one_that_runs(&[(Kind::Lifecycle, 10), (Kind::Intent, 20)], 80)]
    #[case::the_clock_went_back(&[(Kind::Refusal, 200)], 0)]
    #[tokio::test]
    async fn the_journal_tells(#[case] records: &[(Kind, i64)], #[case] seconds: u64) {
        let (journal, chain) = (Memory::new(), Chain::Session("s".to_owned()));
        for (kind, second) in records {
            let entry = Entry {
                call: Some("c".to_owned()).filter(|_| *kind != Kind::Lifecycle),
                outcome: Some(Outcome::Succeeded).filter(|_| *kind == Kind::Outcome),
                ..Entry::new(at(*second), *kind)
            };
            journal.append(&chain, 1, entry).await.unwrap();
        }
        let quiet = quiet(&journal, &chain, at(100)).await.unwrap();
        assert_eq!(quiet, Duration::from_secs(seconds));
    }

    #[tokio::test]
    async fn a_call_too_far_back_counts_as_not_longer_ago_than_what_was_looked_through() {
        let (journal, chain) = (Memory::new(), Chain::Session("s".to_owned()));
        for second in 0..400 {
            journal.append(&chain, 1, Entry::new(at(second), Kind::Lifecycle)).await.unwrap();
        }
        let quiet = quiet(&journal, &chain, at(500)).await.unwrap();
        assert_eq!(quiet, Duration::from_secs(500 - (400 - TAIL)));
    }
}
