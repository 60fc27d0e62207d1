//! What must be durable before a call goes on: the intent before it is sent, the outcome before it
//! is answered.
//!
//! Each step takes the proof of the one before, so that no way for a call can leave one out.

/// The intent of a call is on record: only now may it be sent, once.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Intended(());

impl Intended {
    /// After the journal said whether it took the intent.
    ///
    /// # Errors
    /// The journal's: nothing may be sent.
    pub fn once<E>(recorded: Result<(), E>) -> Result<Self, E> {
        recorded.map(|()| Self(()))
    }

    /// The answer for the caller, after the journal said whether it took the outcome.
    ///
    /// # Errors
    /// The journal's: the caller may not hear the answer, since it is not on record.
    pub fn answer<A, E>(self, recorded: Result<(), E>, answer: A) -> Result<A, E> {
        recorded.map(|()| answer)
    }
}
