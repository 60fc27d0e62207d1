//! The use of one Session that is served here: calls come in and leave, the host's task looks
//! whether it is idle, and the outbox takes what there is to say to the API server.
//!
//! The rules are `domain::usage`'s. Nothing here waits but a call that comes when the API server
//! may hold the word that nobody uses the Session.

use crate::domain::usage::{Entry, Usage, Word};
use jiff::Timestamp;
use std::{
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

/// How long a call waits until the word is taken back.
const TAKING_BACK: Duration = Duration::from_secs(10);

/// The use of one Session under one epoch.
#[derive(Debug)]
pub struct SessionUse {
    began: Instant,
    usage: Mutex<Usage>,
    /// There is something to say.
    told: Notify,
    /// Calls that wait may go on, or never will.
    settled: Notify,
    /// How long it may be idle may have changed.
    look: Notify,
}

/// A call that counts as use until this is dropped.
#[derive(Debug)]
pub struct InUse<'a>(&'a SessionUse);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let now = self.0.began.elapsed();
        self.0.lock().leave(now);
    }
}

impl Default for SessionUse {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            usage: Mutex::default(),
            told: Notify::new(),
            settled: Notify::new(),
            look: Notify::new(),
        }
    }
}

impl SessionUse {
    /// A call comes in; `at` is the time. None: the Session goes, or the API server does not take
    /// back that nobody uses it.
    pub async fn begin(&self, at: Timestamp) -> Option<InUse<'_>> {
        let entry = self.lock().enter(at);
        match entry {
            Entry::Free => Some(InUse(self)),
            Entry::Refused => None,
            Entry::Wait => {
                let counted = InUse(self);
                self.told.notify_one();
                let settled = timeout(TAKING_BACK, self.settled()).await;
                matches!(settled, Ok(Entry::Free)).then_some(counted)
            }
        }
    }

    async fn settled(&self) -> Entry {
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            let verdict = self.lock().verdict();
            match verdict {
                Some(entry) => return entry,
                None => settled.await,
            }
        }
    }

    /// What is known from before it was served here: until now it has been quiet for this long.
    pub fn was_quiet(&self, quiet: Duration) {
        let now = self.began.elapsed();
        self.lock().was_quiet(quiet, now);
    }

    /// Looks whether it has been idle for that long. Gives when to look again.
    pub fn look(&self, timeout: Duration, at: Timestamp) -> Duration {
        let now = self.began.elapsed();
        let again = self.lock().look(timeout, now, at);
        self.told.notify_one();
        again
    }

    /// What should stand in the Session; none while there was nothing to say.
    pub fn word(&self) -> Option<Word> {
        self.lock().word()
    }

    /// Resolves when there may be something to say.
    pub async fn told(&self) {
        self.told.notified().await;
    }

    /// The API server holds this.
    pub fn stands(&self, word: Word) {
        if self.lock().stands(word) {
            self.settled.notify_waiters();
        }
    }

    /// The Session is being deleted, or is served here no longer.
    pub fn goes(&self) {
        if self.lock().goes() {
            self.settled.notify_waiters();
        }
    }

    /// Has the task look again.
    pub fn poke(&self) {
        self.look.notify_one();
    }

    /// Resolves when it should be looked at again before its time.
    pub async fn poked(&self) {
        self.look.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// One that is idle, and of which the API server may know.
    async fn idle() -> Arc<SessionUse> {
        let of = Arc::new(SessionUse::default());
        tokio::time::advance(Duration::from_secs(60)).await;
        of.look(Duration::from_secs(60), at(60));
        assert!(of.word().is_some_and(|w| w.idle_since == Some(at(0))));
        of
    }

    fn call(of: &Arc<SessionUse>) -> tokio::task::JoinHandle<bool> {
        let of = of.clone();
        tokio::spawn(async move { of.begin(at(61)).await.is_some() })
    }

    #[tokio::test(start_paused = true)]
    async fn calls_go_on_once_the_word_is_taken_back() {
        let of = idle().await;
        let calls = [call(&of), call(&of)];
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(calls.iter().all(|c| !c.is_finished()));
        of.stands(of.word().unwrap());
        for call in calls {
            assert!(call.await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_refused_when_it_goes_or_the_word_cannot_be_taken_back() {
        let (leaving, mute) = (idle().await, idle().await);
        let call_of_leaving = call(&leaving);
        tokio::task::yield_now().await;
        leaving.goes();
        assert!(!call_of_leaving.await.unwrap());
        let before = Instant::now();
        assert!(!call(&mute).await.unwrap());
        assert_eq!(before.elapsed(), TAKING_BACK);
        assert!(mute.word().is_some_and(|w| w.idle_since.is_none()), "it was used all the same");
    }
}
