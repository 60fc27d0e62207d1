//! Where a sandbox may connect to: a network that somebody allows, less what no sandbox reaches, and
//! less the networks around it unless they are what was named.
//!
//! ```text
//!  0.0.0.0/0    ──► 0.0.0.0/0 except 10.0.0.0/8, 172.16.0.0/12, …, 169.254.0.0/16, the API server
//!  10.20.0.0/16 ──► 10.20.0.0/16, less the API server if it is in there
//!  169.254.169.254/32 ──► refused
//! ```
//!
//! An allow list is all that a NetworkPolicy knows, so what is left out is left out of each network.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{collections::BTreeSet, fmt, str::FromStr};

/// A network in CIDR notation; its address has no bit beyond the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Net {
    address: IpAddr,
    prefix: u8,
}

/// Why something is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network in CIDR notation, or has bits beyond its prefix")]
pub struct NotANet(String);

/// Why a network is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressProblem {
    /// It cannot be read.
    #[error(transparent)]
    NotANet(#[from] NotANet),
    /// All of it is what no sandbox reaches.
    #[error("{0} lies in {1}, which no sandbox reaches")]
    Denied(Net, Net),
    /// Nothing of it is left.
    #[error("nothing of {0} is left by what it excepts")]
    Nothing(Net),
    /// An exception that is none.
    #[error("{1} is not within {0}")]
    Outside(Net, Net),
}

/// A network that may be reached, but for parts of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The network.
    pub net: Net,
    /// The parts, none within another.
    pub except: Vec<Net>,
}

impl Net {
    /// The network of one address.
    pub fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }

    const fn v4(octets: [u8; 4], prefix: u8) -> Self {
        let [a, b, c, d] = octets;
        Self { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    const fn v6(segments: [u16; 8], prefix: u8) -> Self {
        let [a, b, c, d, e, f, g, h] = segments;
        Self { address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix }
    }

    /// Its bits from the left, and how many an address has.
    fn bits(&self) -> (u128, u8) {
        match self.address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        }
    }

    /// Whether all of the other one is part of it.
    pub fn contains(&self, other: &Self) -> bool {
        let ((own, width), (others, others_width)) = (self.bits(), other.bits());
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
        width == others_width && self.prefix <= other.prefix && (own ^ others) & mask == 0
    }

    /// What it is behind NAT64 by the well-known prefix; none for an IPv6 network.
    fn behind_nat64(&self) -> Option<Self> {
        let IpAddr::V4(v4) = self.address else { return None };
        let [a, b, c, d] = v4.octets();
        let word = |high, low| u16::from_be_bytes([high, low]);
        Some(Self::v6([0x64, 0xff9b, 0, 0, 0, 0, word(a, b), word(c, d)], 96 + self.prefix))
    }
}

impl FromStr for Net {
    type Err = NotANet;

    fn from_str(text: &str) -> Result<Self, NotANet> {
        let read = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let digits = prefix.bytes().all(|b| b.is_ascii_digit()) && !prefix.starts_with("00");
            let prefix: u8 = prefix.parse().ok().filter(|_| digits)?;
            let net = Self { address, prefix };
            let (bits, width) = net.bits();
            let beyond = u128::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
            // an IPv4 address inside of an IPv6 one would be looked for among the IPv6 ones
            let is_plain = address.to_canonical() == address;
            (prefix <= width && bits & beyond == 0 && is_plain).then_some(net)
        };
        read().ok_or_else(|| NotANet(text.to_owned()))
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// What no sandbox reaches, whatever is allowed: this host, link-local addresses, and where clouds
/// have their metadata.
const DENIED: [Net; 14] = [
    Net::v4([0, 0, 0, 0], 8),
    Net::v4([127, 0, 0, 0], 8),
    Net::v4([169, 254, 0, 0], 16),
    Net::v4([100, 100, 100, 200], 32),
    Net::v4([168, 63, 129, 16], 32),
    Net::v4([192, 0, 0, 192], 32),
    Net::v6([0; 8], 127),
    Net::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
    Net::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 64),
    Net::v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128),
    Net::v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128),
    Net::v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128),
    Net::v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96),
    Net::v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48),
];

/// Networks around a cluster: pods, Services, nodes and what stands beside them. A network that
/// merely contains them does not mean them.
const LOCAL: [Net; 6] = [
    Net::v4([10, 0, 0, 0], 8),
    Net::v4([100, 64, 0, 0], 10),
    Net::v4([172, 16, 0, 0], 12),
    Net::v4([192, 168, 0, 0], 16),
    Net::v4([198, 18, 0, 0], 15),
    Net::v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
];

/// The networks, and the same behind NAT64.
fn with_nat64(nets: impl IntoIterator<Item = Net>) -> impl Iterator<Item = Net> {
    nets.into_iter().flat_map(|net| [Some(net), net.behind_nat64()].into_iter().flatten())
}

/// What of a network may be reached. `denied` is what the installation adds to what no sandbox
/// reaches.
///
/// # Errors
/// Why nothing of it may be.
pub fn block(cidr: &str, except: &[String], denied: &[Net]) -> Result<Block, EgressProblem> {
    let net: Net = cidr.parse()?;
    let denied: Vec<Net> = with_nat64(DENIED.iter().chain(denied).copied()).collect();
    if let Some(all) = denied.iter().find(|d| d.contains(&net)) {
        return Err(EgressProblem::Denied(net, *all));
    }
    let mut out: BTreeSet<Net> = denied.into_iter().filter(|d| net.contains(d)).collect();
    let local: Vec<Net> = with_nat64(LOCAL).collect();
    if !local.iter().any(|l| l.contains(&net)) {
        out.extend(local.iter().filter(|l| net.contains(l)));
    }
    for part in except {
        let part: Net = part.parse()?;
        if !net.contains(&part) {
            return Err(EgressProblem::Outside(net, part));
        }
        out.insert(part);
    }
    if out.contains(&net) {
        return Err(EgressProblem::Nothing(net));
    }
    let is_within = |one: &Net| out.iter().any(|other| other != one && other.contains(one));
    let except = out.iter().filter(|one| !is_within(one)).copied().collect();
    Ok(Block { net, except })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::address::forbidden_address;
    use rstest::rstest;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    fn reaches(block: &Block, address: &str) -> bool {
        let address = Net::of(address.parse().unwrap());
        block.net.contains(&address) && !block.except.iter().any(|e| e.contains(&address))
    }

    #[rstest]
    #[case("10.0.0.0/8", true)]
    #[case("0.0.0.0/0", true)]
    #[case("::/0", true)]
    #[case("2001:db8::/32", true)]
    #[case("192.0.2.7/32", true)]
    #[case::bits_beyond("10.0.0.1/8", false)]
    #[case::no_prefix("10.0.0.0", false)]
    #[case::too_long("10.0.0.0/33", false)]
    #[case::sign("10.0.0.0/+8", false)]
    #[case::zeros("10.0.0.0/008", false)]
    #[case::mapped("::ffff:10.0.0.0/104", false)]
    #[case::words("anywhere", false)]
    fn networks(#[case] text: &str, #[case] is_one: bool) {
        let read = text.parse::<Net>();
        assert_eq!(read.map(|n| n.to_string()).ok(), is_one.then(|| text.to_owned()));
    }

    #[rstest]
    #[case("10.0.0.0/8", "10.1.2.3/32", true)]
    #[case("10.0.0.0/8", "10.0.0.0/8", true)]
    #[case("10.0.0.0/8", "11.0.0.0/32", false)]
    #[case("10.0.0.0/9", "10.0.0.0/8", false)]
    #[case("0.0.0.0/0", "255.0.0.0/8", true)]
    #[case("0.0.0.0/0", "::/0", false)]
    #[case("::/0", "10.0.0.0/8", false)]
    #[case("2001:db8::/33", "2001:db8:8000::/33", false)]
    fn containment(#[case] one: &str, #[case] other: &str, #[case] expected: bool) {
        assert_eq!(net(one).contains(&net(other)), expected);
    }

    #[test]
    fn everything_is_the_internet_and_nothing_around() {
        let denied = [net("203.0.113.9/32"), net("2001:db8:5::1/128")];
        let all = block("0.0.0.0/0", &[], &denied).unwrap();
        for address in ["1.1.1.1", "203.0.113.8", "172.32.0.1", "192.0.2.1", "100.128.0.1"] {
            assert!(reaches(&all, address), "{address}");
        }
        for address in [
            "10.0.0.1",
            "10.96.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "169.254.169.254",
            "169.254.20.10",
            "127.0.0.1",
            "168.63.129.16",
            "192.0.0.192",
            "203.0.113.9",
        ] {
            assert!(!reaches(&all, address), "{address}");
        }
        let all = block("::/0", &[], &denied).unwrap();
        for address in ["2606:4700::1", "64:ff9b::101:101", "2001:db8:5::2"] {
            assert!(reaches(&all, address), "{address}");
        }
        for address in [
            "fd00:ec2::254",
            "fd12::1",
            "fe80::1",
            "::1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2001:db8:5::1",
            "64:ff9b::cb00:7109",
        ] {
            assert!(!reaches(&all, address), "{address}");
        }
    }

    /// Whatever the gateway never connects to, a sandbox does not reach either.
    #[test]
    fn metadata_is_the_same_for_gateways_and_sandboxes() {
        for address in [
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert!(forbidden_address(address).is_some(), "{address}");
            let one = Net::of(address).to_string();
            assert!(matches!(block(&one, &[], &[]), Err(EgressProblem::Denied(..))), "{address}");
        }
    }

    #[test]
    fn a_network_around_is_reached_when_it_is_named() {
        let near = block("10.20.0.0/16", &["10.20.5.0/24".to_owned()], &[net("10.20.0.1/32")]);
        let near = near.unwrap();
        assert_eq!(near.except, [net("10.20.0.1/32"), net("10.20.5.0/24")]);
        assert!(reaches(&near, "10.20.1.1"));
        let one = block("192.168.7.9/32", &[], &[]).unwrap();
        assert_eq!((one.net, one.except), (net("192.168.7.9/32"), vec![]));
        let half = block("100.64.0.0/10", &[], &[]).unwrap();
        assert_eq!(half.except, [net("100.100.100.200/32")], "metadata is nowhere reached");
    }

    #[rstest]
    #[case::metadata("169.254.169.254/32", &[], "169.254.169.254/32 lies in 169.254.0.0/16, which no sandbox reaches")]
    #[case::loopback("127.0.0.0/8", &[], "127.0.0.0/8 lies in 127.0.0.0/8, which no sandbox reaches")]
    #[case::api_server("203.0.113.9/32", &[], "203.0.113.9/32 lies in 203.0.113.9/32, which no sandbox reaches")]
    #[case::outside("192.0.2.0/24", &["192.0.3.0/25"], "192.0.3.0/25 is not within 192.0.2.0/24")]
    #[case::other_family("0.0.0.0/0", &["::/1"], "::/1 is not within 0.0.0.0/0")]
    #[case::nothing("192.0.2.0/24", &["192.0.2.0/24"], "nothing of 192.0.2.0/24 is left by what it excepts")]
    #[case::unreadable("192.0.2.0/24", &["x"], "\"x\" is no network in CIDR notation, or has bits beyond its prefix")]
    fn refused(#[case] cidr: &str, #[case] except: &[&str], #[case] said: &str) {
        let except: Vec<_> = except.iter().map(|e| (*e).to_owned()).collect();
        let problem = block(cidr, &except, &[net("203.0.113.9/32")]).unwrap_err();
        assert_eq!(problem.to_string(), said);
    }

    #[test]
    fn no_exception_stands_within_another() {
        let except = ["10.1.0.0/16".to_owned(), "192.0.2.0/25".to_owned()];
        let all = block("0.0.0.0/0", &except, &[net("10.96.0.1/32")]).unwrap();
        assert!(!all.except.contains(&net("10.1.0.0/16")));
        assert!(!all.except.contains(&net("10.96.0.1/32")));
        assert!(all.except.contains(&net("192.0.2.0/25")));
        let mut sorted = all.except.clone();
        sorted.sort();
        assert_eq!(sorted, all.except, "the same each time");
    }
}
