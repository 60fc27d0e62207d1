//! Waiting for a condition, with a limit.

use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Long enough for anything that a healthy cluster does.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Asks again and again until there is an answer; what is missing is shown at the limit.
pub async fn until<T, F>(what: &str, limit: Duration, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let end = Instant::now() + limit;
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(state) if Instant::now() > end => {
                panic!("not within {limit:?}: {what}\nas it is: {state}")
            }
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}
