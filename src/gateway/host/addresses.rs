//! Which addresses an HTTP target may have: what is never connected to, and what the installation
//! adds to that or takes out of it. Asked for each resolved address, at each connect.

use crate::{
    domain::address::forbidden_address,
    gateway::{Config, index, peers::Peers},
    mcp::client_http::AddressPolicy,
};
use std::{net::IpAddr, sync::Arc};

/// What an address is compared with, as it is at each connect.
#[derive(Clone, Debug)]
pub struct Around {
    /// Session pods.
    pub index: index::Shared,
    /// The other gateways.
    pub peers: Peers,
}

/// A network, `address/prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    bits: u128,
    prefix: u32,
    v4: bool,
}

impl Network {
    /// Reads `address/prefix`, or an address alone.
    ///
    /// # Errors
    /// What is wrong, naming the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no network: write address/prefix");
        let (address, prefix) = match text.trim().split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (bits, width, v4) = bits(address);
        let prefix = prefix.map_or(Ok(width), str::parse::<u32>).map_err(|_| wrong())?;
        if prefix > width {
            return Err(wrong());
        }
        // an IPv4 network is one of the last 32 bits
        Ok(Self { bits, prefix: prefix + (128 - width), v4 })
    }

    /// Whether the address is in it.
    pub fn holds(&self, address: IpAddr) -> bool {
        let (other, _, v4) = bits(address.to_canonical());
        let rest = 128 - self.prefix;
        v4 == self.v4 && (rest == 128 || self.bits >> rest == other >> rest)
    }
}

fn bits(address: IpAddr) -> (u128, u32, bool) {
    match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32, true),
        IpAddr::V6(v6) => (u128::from(v6), 128, false),
    }
}

/// The policy of this gateway: denied networks first, then allowed ones, then what is forbidden
/// anyway, the API server, gateways, and Session pods.
///
/// # Errors
/// A network in the settings that is none.
pub fn policy(config: &Config, around: Around) -> Result<AddressPolicy, String> {
    let networks = |texts: &[String]| -> Result<Vec<Network>, String> {
        texts.iter().map(|text| Network::parse(text)).collect()
    };
    let denied = networks(&config.denied_networks)?;
    let allowed = networks(&config.allowed_networks)?;
    let api_server = config.api_server.clone();
    let gateways: Vec<IpAddr> =
        config.pod_ip.into_iter().chain(config.service_addresses.iter().copied()).collect();
    Ok(Arc::new(move |address| {
        if denied.iter().any(|n| n.holds(address)) {
            return Err("in a network that this installation denies".to_owned());
        }
        if allowed.iter().any(|n| n.holds(address)) {
            return Ok(());
        }
        if let Some(what) = forbidden_address(address) {
            return Err(what.to_owned());
        }
        if api_server.has(address) {
            return Err("the API server".to_owned());
        }
        if gateways.contains(&address) || around.peers.has(address) {
            return Err("a gateway".to_owned());
        }
        if around.index.load().pod_addresses().contains(&address) {
            return Err("a Session pod".to_owned());
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::peers::ADDRESS;
    use crate::process::api_server::ApiServer;
    use k8s_openapi::api::coordination::v1::Lease;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case("10.1.0.0/16", "10.1.255.3", true)]
    #[case("10.1.0.0/16", "10.2.0.0", false)]
    #[case("10.1.2.3", "10.1.2.3", true)]
    #[case("10.1.2.3/32", "10.1.2.4", false)]
    #[case("0.0.0.0/0", "203.0.113.9", true)]
    #[case("0.0.0.0/0", "2001:db8::1", false)]
    #[case("10.1.0.0/16", "::ffff:10.1.0.9", true)]
    #[case("2001:db8::/32", "2001:db8:1::9", true)]
    #[case("2001:db8::/32", "2001:db9::9", false)]
    #[case("::/0", "2001:db9::9", true)]
    #[case("::/0", "10.0.0.1", false)]
    fn networks(#[case] network: &str, #[case] address: &str, #[case] holds: bool) {
        assert_eq!(Network::parse(network).unwrap().holds(address.parse().unwrap()), holds);
    }

    #[rstest]
    #[case("10.0.0.0/33")]
    #[case("::/129")]
    #[case("10.0.0/8")]
    #[case("10.0.0.0/")]
    #[case("10.0.0.0/-1")]
    #[case("")]
    #[case("example.com")]
    fn no_networks(#[case] text: &str) {
        assert!(Network::parse(text).unwrap_err().contains(text));
    }

    fn lease(address: &str) -> Lease {
        let lease = json!({"metadata": {"name": "gw-b", "annotations": {ADDRESS: address}},
            "spec": {"holderIdentity": "aaaabbbb-1"}});
        serde_json::from_value(lease).unwrap()
    }

    fn verdict(config: &Config, address: &str) -> Result<(), String> {
        let peers = Peers::default();
        peers.apply(&lease("10.244.0.9:8081"));
        let around = Around { index: index::Shared::default(), peers };
        policy(config, around).unwrap()(address.parse().unwrap())
    }

    #[test]
    fn denied_then_allowed_then_forbidden() {
        let config = Config {
            denied_networks: vec!["10.9.0.0/16".into()],
            allowed_networks: vec!["127.0.0.0/8".into(), "10.9.1.0/24".into()],
            api_server: ApiServer::new(["10.96.0.1".parse().unwrap()]),
            pod_ip: Some("10.244.0.7".parse().unwrap()),
            ..Config::default()
        };
        assert_eq!(verdict(&config, "10.244.0.8"), Ok(()));
        assert_eq!(verdict(&config, "127.0.0.1"), Ok(()), "allowed by the installation");
        assert!(verdict(&config, "10.9.1.1").is_err(), "denied counts more");
        assert!(verdict(&config, "169.254.169.254").is_err());
        assert_eq!(verdict(&config, "10.96.0.1"), Err("the API server".into()));
        assert_eq!(verdict(&config, "10.244.0.7"), Err("a gateway".into()));
        assert_eq!(verdict(&config, "10.244.0.9"), Err("a gateway".into()), "another replica");
        assert!(verdict(&Config::default(), "127.0.0.1").is_err());
    }
}
