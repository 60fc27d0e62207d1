//! Whether a Session is in use: what its gateway knows, what it tells, and when a Session's time is
//! over.
//!
//! ```text
//!  calls ──enter, leave──► Usage ──quiet──► Activity{idleSince} ──► the operator deletes the Session,
//!                            │                                      as it stood with these words
//!  a call that comes then ───┴─► Activity{} stands first, then the call goes on
//! ```
//!
//! The gateway alone can say that nobody uses a Session, and says nothing while somebody does. A
//! gateway that is cut off, or starts anew, says nothing either: then the Session stays longer.

use core::time::Duration;
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the gateway says of a Session's use. It says something only when the Session has been idle
/// for its idleTimeout, and when it is used again after that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// The start of the gateway that says it. That of another one counts no more.
    #[schemars(length(max = 64))]
    pub incarnation: String,
    /// Under which epoch.
    #[schemars(range(min = 1))]
    pub epoch: i64,
    /// Since when no call ran. Absent: the Session is in use again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub idle_since: Option<Timestamp>,
    /// When it was said.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub at: Timestamp,
}

/// One thing that a gateway has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Since when no call ran; none when the Session is in use again.
    pub idle_since: Option<Timestamp>,
    /// When it was said. No two words of one gateway have the same time.
    pub at: Timestamp,
}

/// What becomes of a call at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It goes on. It counts until it leaves.
    Free,
    /// It waits until the word is taken back. It counts until it leaves.
    Wait,
    /// The Session goes, since nobody used it.
    Refused,
}

/// The use of one Session at its gateway. Times are counted from when the gateway took it over.
#[derive(Debug, Default)]
pub struct Usage {
    running: u32,
    last: Option<Duration>,
    before: Duration,
    word: Option<Word>,
    heard: bool,
    going: bool,
}

impl Usage {
    /// A call comes in. No call goes on while the API server may hold the word that nobody uses the
    /// Session.
    pub fn enter(&mut self, at: Timestamp) -> Entry {
        if self.going {
            return Entry::Refused;
        }
        self.running += 1;
        match &mut self.word {
            None => return Entry::Free,
            Some(word) if word.idle_since.is_some() => {
                *word = Word { idle_since: None, at: at.max(after(word.at)) };
                self.heard = false;
            }
            Some(_) => {}
        }
        if self.heard { Entry::Free } else { Entry::Wait }
    }

    /// How a call that waits goes on; none while it waits.
    pub fn verdict(&self) -> Option<Entry> {
        match () {
            () if self.going => Some(Entry::Refused),
            () if self.heard => Some(Entry::Free),
            () => None,
        }
    }

    /// A call that came in has ended.
    pub fn leave(&mut self, now: Duration) {
        self.running = self.running.saturating_sub(1);
        self.last = Some(now);
    }

    /// What is known from before it was taken over: now it has been quiet for this long.
    pub fn was_quiet(&mut self, quiet: Duration, now: Duration) {
        self.before = quiet.saturating_sub(now);
    }

    /// Looks whether it has been idle for that long, and has something to say if so. Gives when to
    /// look again.
    pub fn look(&mut self, timeout: Duration, now: Duration, at: Timestamp) -> Duration {
        // whoever runs ends later than now
        if self.running > 0 || self.going {
            return timeout;
        }
        let quiet = match self.last {
            Some(last) => now.saturating_sub(last),
            None => now.saturating_add(self.before),
        };
        if quiet < timeout {
            return timeout - quiet;
        }
        let at = match self.word {
            Some(Word { idle_since: Some(_), .. }) => return timeout,
            // what was taken back last does not stand yet
            Some(_) if !self.heard => return timeout.min(Duration::from_secs(1)),
            Some(word) => at.max(after(word.at)),
            None => at,
        };
        let since = SignedDuration::try_from(quiet).ok().and_then(|q| at.checked_sub(q).ok());
        self.word = Some(Word { idle_since: Some(since.unwrap_or(at)), at });
        self.heard = false;
        timeout
    }

    /// What should stand; none while there was nothing to say.
    pub fn word(&self) -> Option<Word> {
        self.word.filter(|_| !self.going)
    }

    /// A word stands. Tells whether somebody may wait for that.
    pub fn stands(&mut self, word: Word) -> bool {
        let new = !self.heard && self.word == Some(word);
        self.heard |= new;
        new && word.idle_since.is_none()
    }

    /// The Session is being deleted. What was said is not taken back any more.
    pub fn goes(&mut self) -> bool {
        let new = !self.going && self.word.is_some_and(|w| w.idle_since.is_some() || !self.heard);
        self.going |= new;
        new
    }
}

/// A moment later: a word that differs from the last one is a write that fences those before it.
fn after(at: Timestamp) -> Timestamp {
    at.checked_add(SignedDuration::from_millis(1)).unwrap_or(at)
}

/// When a Session's time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// Not as things are.
    Open,
    /// Then, if nothing happens.
    Until(Timestamp),
    /// Now: nobody used it since then.
    Idle(Timestamp),
    /// Now: it has lived as long as it may.
    Outlived,
}

/// Whether a Session's time is over. `activity` is what the gateway says that serves it now.
pub fn term(
    (created, max_lifetime): (Option<Timestamp>, Option<Duration>),
    (activity, idle_timeout): (Option<&Activity>, Option<Duration>),
    now: Timestamp,
) -> Term {
    let end = |from: Option<Timestamp>, limit: Option<Duration>| {
        let limit = SignedDuration::try_from(limit?).ok()?;
        from?.checked_add(limit).ok()
    };
    let lifetime = end(created, max_lifetime);
    if lifetime.is_some_and(|end| end <= now) {
        return Term::Outlived;
    }
    let since = activity.and_then(|a| a.idle_since);
    let idle = end(since, idle_timeout);
    match (idle, since) {
        (Some(end), Some(since)) if end <= now => return Term::Idle(since),
        _ => {}
    }
    [lifetime, idle].into_iter().flatten().min().map_or(Term::Open, Term::Until)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// One that said at second 1060 that it was idle since second 1000, which stands.
    fn idle() -> Usage {
        let mut usage = Usage::default();
        assert_eq!(usage.look(TIMEOUT, s(60), at(1060)), TIMEOUT);
        assert_eq!(usage.word(), Some(Word { idle_since: Some(at(1000)), at: at(1060) }));
        usage.stands(usage.word().unwrap());
        usage
    }

    #[test]
    fn while_it_is_used_nothing_is_said() {
        let mut usage = Usage::default();
        for n in 0..10 {
            assert_eq!(usage.enter(at(n)), Entry::Free);
            usage.leave(s(10));
        }
        assert_eq!(usage.look(TIMEOUT, s(30), at(30)), s(40));
        assert_eq!(usage.word(), None);
    }

    #[test]
    fn a_call_that_runs_is_use_however_long() {
        let mut usage = Usage::default();
        usage.enter(at(0));
        assert_eq!(usage.look(TIMEOUT, s(100_000), at(100_000)), TIMEOUT);
        assert_eq!(usage.word(), None);
        usage.leave(s(100_001));
        assert_eq!(usage.look(TIMEOUT, s(100_011), at(0)), s(50), "its end counts, not its begin");
    }

    #[test]
    fn a_call_waits_until_the_word_is_taken_back() {
        let mut usage = idle();
        assert_eq!(usage.enter(at(1070)), Entry::Wait);
        assert_eq!(usage.enter(at(1071)), Entry::Wait, "so does another one");
        let word = Word { idle_since: None, at: at(1070) };
        assert_eq!((usage.word(), usage.verdict()), (Some(word), None));
        assert!(!usage.stands(Word { idle_since: Some(at(1000)), at: at(1060) }), "an old write");
        assert_eq!(usage.verdict(), None);
        assert!(usage.stands(word));
        assert_eq!(usage.verdict(), Some(Entry::Free));
        assert_eq!(usage.enter(at(1072)), Entry::Free);
    }

    #[test]
    fn what_does_not_stand_yet_may_stand_and_is_waited_for() {
        let mut usage = Usage::default();
        usage.look(TIMEOUT, s(60), at(1060));
        assert_eq!(usage.enter(at(1060)), Entry::Wait, "its write may be on the way");
        let word = usage.word().unwrap();
        assert!(word.idle_since.is_none() && word.at > at(1060), "no two words are the same");
    }

    #[test]
    fn it_is_idle_again_only_after_it_was_heard_that_it_is_not() {
        let mut usage = idle();
        usage.enter(at(1070));
        usage.leave(s(70));
        assert_eq!(usage.look(TIMEOUT, s(200), at(1200)), s(1));
        usage.stands(usage.word().unwrap());
        assert_eq!(usage.look(TIMEOUT, s(200), at(1200)), TIMEOUT);
        assert_eq!(usage.word().unwrap().idle_since, Some(at(1070)));
    }

    #[test]
    fn of_a_session_that_goes_nothing_is_taken_back() {
        let mut usage = idle();
        usage.enter(at(1070));
        assert!(usage.goes());
        assert_eq!((usage.verdict(), usage.word()), (Some(Entry::Refused), None));
        assert_eq!(usage.enter(at(1071)), Entry::Refused);
        let mut used = Usage::default();
        used.enter(at(0));
        assert!(!used.goes(), "somebody deletes one in use: calls drain as always");
        assert_eq!(used.enter(at(1)), Entry::Free);
    }

    #[test]
    fn what_was_before_counts_until_the_first_call() {
        let mut usage = Usage::default();
        usage.was_quiet(s(50), s(2));
        assert_eq!(usage.look(TIMEOUT, s(5), at(1005)), s(7));
        usage.enter(at(1006));
        usage.leave(s(6));
        assert_eq!(usage.look(TIMEOUT, s(6), at(1006)), TIMEOUT);
        let mut usage = Usage::default();
        usage.was_quiet(s(60), s(2));
        usage.look(TIMEOUT, s(5), at(1005));
        assert_eq!(usage.word().unwrap().idle_since, Some(at(942)));
    }

    #[rstest]
    #[case::nothing_is_limited(None, Some(10), None, Term::Open)]
    #[case::nobody_said_anything(None, None, Some(30), Term::Open)]
    #[case::in_use(None, None, Some(30), Term::Open)]
    #[case::lives(Some(200), None, None, Term::Until(at(200)))]
    #[case::lived(Some(100), None, None, Term::Outlived)]
    #[case::idle(Some(200), Some(10), Some(90), Term::Idle(at(10)))]
    #[case::idle_for_too_short(Some(200), Some(10), Some(91), Term::Until(at(101)))]
    #[case::both_are_over(Some(99), Some(10), Some(30), Term::Outlived)]
    fn the_time_of_a_session(
        #[case] lifetime: Option<u64>,
        #[case] idle_since: Option<i64>,
        #[case] timeout: Option<u64>,
        #[case] expected: Term,
    ) {
        let activity = Activity {
            incarnation: "i".to_owned(),
            epoch: 1,
            idle_since: idle_since.map(at),
            at: at(99),
        };
        let idle = (Some(&activity), timeout.map(s));
        assert_eq!(term((Some(at(0)), lifetime.map(s)), idle, at(100)), expected);
    }
}
