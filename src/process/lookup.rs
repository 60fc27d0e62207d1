//! Looks up a name that must have an address before a program may go on.
//!
//! A name that is missing is asked for again, since DNS comes up beside us; a limit ends that, so
//! that the kubelet and whoever reads its events see it.

use std::{future::Future, io, net::IpAddr, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// How long one answer may take.
const ONE: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// How long it is tried.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The name has no address.
#[derive(Debug, thiserror::Error)]
#[error("{name} has no address after {} s: {problem}", LIMIT.as_secs())]
pub struct NoAddress {
    /// The name.
    pub name: String,
    /// What the last try said.
    pub problem: String,
}

/// The addresses of `name`, a host and a port, by the machine's resolver.
///
/// # Errors
/// [`NoAddress`] after [`LIMIT`].
pub async fn addresses(name: &str) -> Result<Vec<IpAddr>, NoAddress> {
    let once = || async { Ok(tokio::net::lookup_host(name).await?.map(|a| a.ip()).collect()) };
    until_found(name, once).await
}

async fn until_found<F>(name: &str, once: impl Fn() -> F) -> Result<Vec<IpAddr>, NoAddress>
where
    F: Future<Output = io::Result<Vec<IpAddr>>>,
{
    let end = Instant::now() + LIMIT;
    loop {
        let problem = match timeout(ONE, once()).await {
            Ok(Ok(found)) if !found.is_empty() => return Ok(found),
            Ok(Ok(_)) => "an empty answer".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", ONE.as_secs()),
        };
        if Instant::now() >= end {
            return Err(NoAddress { name: name.to_owned(), problem });
        }
        tracing::warn!(%name, %problem, "no address yet");
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn a_name_that_comes_late_is_found() {
        let (tries, address) = (Cell::new(0), IpAddr::from([10, 0, 0, 7]));
        let once = || async {
            tries.set(tries.get() + 1);
            match tries.get() {
                1 => Err(io::Error::other("no such name")),
                2 => std::future::pending().await,
                3 => Ok(vec![]),
                _ => Ok(vec![address]),
            }
        };
        assert_eq!(until_found("late:80", once).await.unwrap(), [address]);
        assert_eq!(tries.get(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_never_comes_ends_the_wait() {
        let once = || async { Err(io::Error::other("no such name")) };
        let begin = Instant::now();
        let error = until_found("gone:80", once).await.unwrap_err();
        assert_eq!(error.to_string(), "gone:80 has no address after 60 s: no such name");
        assert!(begin.elapsed() < LIMIT + ONE, "{:?}", begin.elapsed());
    }
}
