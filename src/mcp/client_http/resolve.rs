//! From a host name to the addresses that may be connected to.

use crate::mcp::{ConnectionFailure, PeerError, Sent};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

/// How long a name may take to resolve.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Says of an address why it is never connected to. Asked with IPv4-mapped addresses as IPv4.
pub type AddressPolicy = Arc<dyn Fn(IpAddr) -> Result<(), String> + Send + Sync>;

/// The addresses of a host, in the resolver's order, that the policy lets pass.
///
/// # Errors
/// A name that does not resolve, or has no address that passes.
pub async fn resolve(
    host: &str,
    port: u16,
    policy: &AddressPolicy,
) -> Result<Vec<SocketAddr>, PeerError> {
    let failed = |kind, message| PeerError::Connection { sent: Sent::No, kind, message };
    let name = |message| failed(ConnectionFailure::Name, message);
    let parsed = host.parse::<IpAddr>();
    let literal = parsed.is_ok();
    let found: Vec<SocketAddr> = match parsed {
        Ok(address) => vec![(address, port).into()],
        Err(_) => tokio::time::timeout(TIMEOUT, tokio::net::lookup_host((host, port)))
            .await
            .map_err(|_| name(format!("{host} does not resolve within {TIMEOUT:?}")))?
            .map_err(|e| name(format!("{host} does not resolve: {e}")))?
            .collect(),
    };
    let mut refused = None;
    let mut passing = Vec::with_capacity(found.len());
    for address in found {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        match policy(address.ip()) {
            Ok(()) if passing.contains(&address) => {}
            Ok(()) => passing.push(address),
            Err(why) if literal => refused = Some(format!("{host} is {why}")),
            Err(why) => refused = Some(format!("{host} resolves to {}: {why}", address.ip())),
        }
    }
    match refused {
        Some(refused) if passing.is_empty() => Err(failed(ConnectionFailure::Forbidden, refused)),
        None if passing.is_empty() => Err(name(format!("{host} has no address"))),
        _ => Ok(passing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn no_loopback() -> AddressPolicy {
        Arc::new(|ip| if ip.is_loopback() { Err("loopback".to_owned()) } else { Ok(()) })
    }

    #[rstest]
    #[case::literal("127.0.0.1")]
    #[case::v6("::1")]
    #[case::mapped("::ffff:127.0.0.1")]
    #[case::short("127.1")]
    #[case::hex("0x7f.1")]
    #[case::name("localhost")]
    #[tokio::test]
    async fn a_forbidden_address_is_refused_however_it_is_written(#[case] host: &str) {
        let error = resolve(host, 80, &no_loopback()).await.unwrap_err();
        let PeerError::Connection { sent: Sent::No, kind, message } = error else { panic!() };
        assert_eq!(kind, ConnectionFailure::Forbidden);
        assert!(message.contains("loopback"), "{message}");
        let literal = host.parse::<IpAddr>().is_ok();
        assert_eq!(message.contains(" resolves to "), !literal, "{message}");
    }

    #[tokio::test]
    async fn an_allowed_address_passes_with_its_port() {
        let any: AddressPolicy = Arc::new(|_| Ok(()));
        let found = resolve("192.0.2.7", 8081, &any).await.unwrap();
        assert_eq!(found, ["192.0.2.7:8081".parse().unwrap()]);
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_says_so() {
        let error = resolve("no such name", 80, &no_loopback()).await.unwrap_err();
        assert!(matches!(error, PeerError::Connection { kind: ConnectionFailure::Name, .. }));
    }
}
