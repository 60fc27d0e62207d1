//! The real clock: the one place that asks the machine for the time of day.

use crate::domain::Clock;
use jiff::Timestamp;

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that asks for the time")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
