//! When the next generation is asked for after one that failed or was lost.

use super::{Generation, State};
use crate::domain::reason::Reason;
use jiff::{SignedDuration, Timestamp};

/// After this long in service a loss counts as the first.
pub const STEADY: SignedDuration = SignedDuration::from_mins(10);

const FAILED_FIRST: SignedDuration = SignedDuration::from_mins(1);
const FAILED_MOST: SignedDuration = SignedDuration::from_mins(15);
const LOST_FIRST: SignedDuration = SignedDuration::from_secs(1);
const LOST_MOST: SignedDuration = SignedDuration::from_mins(5);

/// Why a Draining generation drains, when it was taken out on purpose. Any other reason of a
/// Draining generation says how it was lost.
const ON_PURPOSE: [Reason; 4] =
    [Reason::Replaced, Reason::Suspended, Reason::Removed, Reason::Draining];

/// Whether the generation was in service and died.
pub fn is_lost(entry: &Generation) -> bool {
    entry.state == State::Draining && !ON_PURPOSE.contains(&entry.reason)
}

/// When the successor of a generation that failed or was lost may be asked for; `None` when it
/// neither failed nor was lost.
///
/// Failed: 1 minute doubling to 15. Lost: 1 second doubling to 5 minutes. After no failure: at once.
pub fn next_try(entry: &Generation) -> Option<Timestamp> {
    let (first, most) = match entry.state {
        State::Failed => (FAILED_FIRST, FAILED_MOST),
        State::Draining if is_lost(entry) => (LOST_FIRST, LOST_MOST),
        _ => return None,
    };
    if entry.failures == 0 {
        return Some(entry.since);
    }
    let doublings = u32::try_from(entry.failures.clamp(1, 20) - 1).unwrap_or(0);
    let delay = first.saturating_mul(1 << doublings).min(most);
    Some(entry.since.saturating_add(delay).unwrap_or(Timestamp::MAX))
}

/// The count of failures in a row after a generation that was in service since `since` is lost.
pub fn losses(before: i64, since: Timestamp, now: Timestamp) -> i64 {
    if now.duration_since(since) >= STEADY { 1 } else { before.saturating_add(1) }
}
