//! Waiting for a condition, with a limit.

use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Long enough for anything that a healthy cluster does.
pub const LIMIT: Duration = Duration::from_secs(60);

/// How much slower than usual this machine is just now: `AWAKEN_E2E_PATIENCE`, default 1.
fn patience() -> u32 {
    std::env::var("AWAKEN_E2E_PATIENCE").ok().and_then(|v| v.parse().ok()).unwrap_or(1)
}

/// Asks again and again until there is an answer; what is missing is shown at the limit.
pub async fn until<T, F>(what: &str, limit: Duration, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let limit = limit * patience();
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
