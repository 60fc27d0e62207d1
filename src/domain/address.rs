//! Targets: the canonical form of a URL, and addresses and names that nothing may connect to.
//!
//! The host is brought into one form (case, IDNA, decimal and hex addresses); path and query stay
//! byte for byte as they are written, or the URL is refused. A check of the written host is not
//! enough: whoever connects checks each resolved address with [`forbidden_address`] as well.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use url::{Host, Position, Url};

/// What is wrong with a URL, as a sentence about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlProblem {
    /// It is not a URL, or lacks a host.
    #[error("the URL cannot be read: {0}")]
    Unreadable(String),
    /// Neither http nor https, or not written with `://`.
    #[error("the URL must begin with http:// or https://")]
    Scheme,
    /// `user:password@`.
    #[error("the URL must not hold user information; name a Secret in credential instead")]
    UserInfo,
    /// `#…`.
    #[error("the URL must not hold a fragment")]
    Fragment,
    /// Port 0.
    #[error("the URL must not name port 0")]
    Port,
    /// Path or query would not arrive as they are written.
    #[error("path and query would be sent as {sent:?}; write them so")]
    Rewritten {
        /// As a client would send them.
        sent: String,
    },
}

/// A target: where to connect, and what to ask there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CanonicalUrl {
    text: String,
    /// Length of the origin in `text`.
    origin: usize,
    /// As in the URL: IPv6 in brackets.
    host: String,
    port: u16,
    https: bool,
}

impl CanonicalUrl {
    /// The URL: lower-case scheme and host, no default port, path and query as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// `scheme://host[:port]`, the default port left out. Credentials go to one origin only.
    pub fn origin(&self) -> &str {
        &self.text[..self.origin]
    }

    /// Path and query, as written; at least `/`.
    pub fn path_and_query(&self) -> &str {
        &self.text[self.origin..]
    }

    /// The host; an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, also when it is the default one.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is https.
    pub fn is_https(&self) -> bool {
        self.https
    }
}

impl std::fmt::Display for CanonicalUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The canonical form of a target's URL.
///
/// # Errors
/// What is wrong with it, the first such thing.
pub fn canonical_url(written: &str) -> Result<CanonicalUrl, UrlProblem> {
    let (scheme, rest) = written.split_once("://").ok_or(UrlProblem::Scheme)?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(UrlProblem::Scheme);
    }
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(UrlProblem::UserInfo);
    }
    if tail.contains('#') {
        return Err(UrlProblem::Fragment);
    }
    if authority.is_empty() || authority.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(UrlProblem::Unreadable("it has no host".into()));
    }
    let url = Url::parse(written).map_err(|e| UrlProblem::Unreadable(e.to_string()))?;
    let unreadable = || UrlProblem::Unreadable("it has no host".into());
    let host = url.host_str().ok_or_else(unreadable)?.to_owned();
    let port = url.port_or_known_default().ok_or_else(unreadable)?;
    if port == 0 {
        return Err(UrlProblem::Port);
    }
    let sent = &url[Position::BeforePath..Position::AfterQuery];
    let as_written = match tail.as_bytes().first() {
        None => sent == "/",
        Some(b'/') => sent == tail,
        Some(_) => sent.strip_prefix('/') == Some(tail),
    };
    if !as_written {
        return Err(UrlProblem::Rewritten { sent: sent.to_owned() });
    }
    let origin = url[..Position::AfterPort].len();
    let https = url.scheme() == "https";
    Ok(CanonicalUrl { text: url[..Position::AfterQuery].to_owned(), origin, host, port, https })
}

/// Why nothing may connect to the address, if so. An IPv4 address inside of an IPv6 one counts as
/// itself. Private ranges are not forbidden here: a server inside of the cluster has such an address.
pub fn forbidden_address(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => forbidden_v4(v4),
        IpAddr::V6(v6) => forbidden_v6(v6),
    }
}

const METADATA: &str = "a metadata service";
const LINK_LOCAL: &str = "a link-local address";
const LOOPBACK: &str = "a loopback address";
const UNSPECIFIED: &str = "an unspecified address";
const MULTICAST: &str = "a multicast address";

/// Of clouds: most; Alibaba; Azure; Oracle.
const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// Of clouds: AWS, its container services, Google, Oracle, Scaleway.
const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

fn forbidden_v4(v4: Ipv4Addr) -> Option<&'static str> {
    match v4.octets() {
        _ if METADATA_V4.contains(&v4) => Some(METADATA),
        [0, ..] => Some(UNSPECIFIED),
        [127, ..] => Some(LOOPBACK),
        [169, 254, ..] => Some(LINK_LOCAL),
        [224..=239, ..] => Some(MULTICAST),
        [255, 255, 255, 255] => Some("the broadcast address"),
        [240..=255, ..] => Some("a reserved address"),
        _ => None,
    }
}

fn forbidden_v6(v6: Ipv6Addr) -> Option<&'static str> {
    let s = v6.segments();
    let v4 = |high: u16, low: u16| {
        forbidden_v4(Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low)))
    };
    match s {
        _ if v6.is_unspecified() => Some(UNSPECIFIED),
        _ if v6.is_loopback() => Some(LOOPBACK),
        _ if METADATA_V6.contains(&v6) => Some(METADATA),
        [0xfe80..=0xfebf, ..] => Some(LINK_LOCAL),
        [0xfec0..=0xfeff, ..] => Some("a site-local address"),
        [0xff00..=0xffff, ..] => Some(MULTICAST),
        // IPv4-compatible, -mapped and -translated; NAT64 by its own and its local prefix.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low] => v4(high, low),
        // 6to4; Teredo, whose IPv4 part is inverted.
        [0x2002, high, low, ..] => v4(high, low),
        [0x2001, 0, .., high, low] => v4(!high, !low),
        _ => None,
    }
}

/// Why nothing may connect to a host as it is written, if so: an address in whatever notation, or
/// a name that means this machine, a metadata service or the API server.
pub fn forbidden_host(host: &str) -> Option<&'static str> {
    let name = host.trim_end_matches('.');
    match Host::parse(name) {
        Ok(Host::Ipv4(v4)) => forbidden_v4(v4),
        Ok(Host::Ipv6(v6)) => forbidden_v6(v6),
        Ok(Host::Domain(name)) => forbidden_name(&name),
        Err(_) => name.parse().ok().and_then(forbidden_v6),
    }
}

fn forbidden_name(name: &str) -> Option<&'static str> {
    let below = |parent: &str| {
        name.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    const LOCAL: [&str; 5] = [
        "localhost",
        "localhost.localdomain",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    ];
    const CLOUD: [&str; 6] = [
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.tencentyun.com",
        "instance-data",
        "instance-data.ec2.internal",
    ];
    const API: [&str; 3] =
        ["kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
    if LOCAL.into_iter().any(below) {
        Some("a name of the gateway's own machine")
    } else if CLOUD.contains(&name) {
        Some(METADATA)
    } else if API.contains(&name) {
        Some("the API server")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::as_written(
        "https://mcp.example.com/mcp/?k=a%2Fb",
        "https://mcp.example.com/mcp/?k=a%2Fb",
        "https://mcp.example.com",
        443
    )]
    #[case::case_and_default_port(
        "HTTPS://MCP.Example.com:443/A%2fb//c",
        "https://mcp.example.com/A%2fb//c",
        "https://mcp.example.com",
        443
    )]
    #[case::http_port("http://h:80", "http://h/", "http://h", 80)]
    #[case::other_port("http://h:8080/x?", "http://h:8080/x?", "http://h:8080", 8080)]
    #[case::other_default(
        "https://h:80/x;a=1?b=c&d",
        "https://h:80/x;a=1?b=c&d",
        "https://h:80",
        80
    )]
    #[case::query_without_path("http://h?a=b", "http://h/?a=b", "http://h", 80)]
    #[case::decimal("http://2130706433/", "http://127.0.0.1/", "http://127.0.0.1", 80)]
    #[case::short("http://127.1/", "http://127.0.0.1/", "http://127.0.0.1", 80)]
    #[case::hex("http://0x7f.1/", "http://127.0.0.1/", "http://127.0.0.1", 80)]
    #[case::v6("http://[0:0::1]:81/x", "http://[::1]:81/x", "http://[::1]:81", 81)]
    #[case::idna(
        "http://BÜCHER.example/",
        "http://xn--bcher-kva.example/",
        "http://xn--bcher-kva.example",
        80
    )]
    fn one_form(
        #[case] written: &str,
        #[case] text: &str,
        #[case] origin: &str,
        #[case] port: u16,
    ) {
        let url = canonical_url(written).unwrap();
        assert_eq!((url.as_str(), url.origin(), url.port()), (text, origin, port));
        assert_eq!(canonical_url(text).unwrap(), url);
    }

    #[rstest]
    #[case("ftp://h/", UrlProblem::Scheme)]
    #[case("//h/", UrlProblem::Scheme)]
    #[case("http:h/", UrlProblem::Scheme)]
    #[case("http:/h/", UrlProblem::Scheme)]
    #[case("mcp.example.com", UrlProblem::Scheme)]
    #[case(" http://h/", UrlProblem::Scheme)]
    #[case("http://u:p@h/", UrlProblem::UserInfo)]
    #[case("http://@h/", UrlProblem::UserInfo)]
    #[case("http://h@/", UrlProblem::UserInfo)]
    #[case("http://h/#", UrlProblem::Fragment)]
    #[case("http://h#f", UrlProblem::Fragment)]
    #[case("http://h:0/", UrlProblem::Port)]
    #[case("http://h/a/../b", UrlProblem::Rewritten { sent: "/b".into() })]
    #[case("http://h/a/%2e%2E/b", UrlProblem::Rewritten { sent: "/b".into() })]
    #[case("http://h/a b", UrlProblem::Rewritten { sent: "/a%20b".into() })]
    #[case("http://h/a ", UrlProblem::Rewritten { sent: "/a".into() })]
    #[case("http://h/a\nb", UrlProblem::Rewritten { sent: "/ab".into() })]
    #[case("http://h/é", UrlProblem::Rewritten { sent: "/%C3%A9".into() })]
    #[case("http://h\\x", UrlProblem::Rewritten { sent: "/x".into() })]
    fn refused(#[case] written: &str, #[case] problem: UrlProblem) {
        assert_eq!(canonical_url(written), Err(problem));
    }

    #[rstest]
    fn unreadable(
        #[values(
            "http://",
            "http:///x",
            "https://?x",
            "http://h:99999/",
            "http://h:x/",
            "http://a b/",
            "http://[::1/",
            "http://1.2.3.256/",
            "http://h\t/"
        )]
        written: &str,
    ) {
        assert!(matches!(canonical_url(written), Err(UrlProblem::Unreadable(_))), "{written}");
    }

    #[rstest]
    fn forbidden_addresses(
        #[values(
            "127.0.0.1",
            "127.255.0.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "240.0.0.1",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "::ffff:a9fe:a9fe",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:ffff::127.0.0.1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::",
            "2001:0:1:2:3:4:5601:5601"
        )]
        address: &str,
    ) {
        assert!(forbidden_address(address.parse().unwrap()).is_some());
        assert!(forbidden_host(address).is_some());
        assert!(forbidden_host(&format!("[{address}]")).is_some() || !address.contains(':'));
    }

    #[rstest]
    fn allowed_addresses(
        #[values(
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "8.8.8.8",
            "223.255.255.255",
            "fd00::1",
            "2606:4700::1111",
            "::ffff:10.0.0.1",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "128.0.0.1",
            "169.253.1.1"
        )]
        address: &str,
    ) {
        assert_eq!(forbidden_address(address.parse().unwrap()), None);
        assert_eq!(forbidden_host(address), None);
    }

    #[rstest]
    fn forbidden_hosts(
        #[values(
            "localhost",
            "LOCALHOST",
            "localhost.",
            "a.b.localhost",
            "Localhost.localdomain",
            "ip6-loopback",
            "metadata.google.internal",
            "metadata.google.internal.",
            "Metadata.Google.Internal..",
            "metadata",
            "kubernetes.default.svc",
            "127.1",
            "0x7f000001",
            "2130706433",
            "017700000001",
            "127.0.0.1.",
            "[::1]",
            "[::ffff:a9fe:a9fe]",
            "0",
            "\u{2460}\u{2461}\u{2466}.0.0.1",
            "\u{ff4c}ocalhost"
        )]
        host: &str,
    ) {
        assert!(forbidden_host(host).is_some());
    }

    #[rstest]
    fn allowed_hosts(
        #[values(
            "example.com",
            "notlocalhost",
            "localhost.example.com",
            "files.team-a.svc",
            "metadata.example.com"
        )]
        host: &str,
    ) {
        assert_eq!(forbidden_host(host), None);
    }
}
