//! What the headers of a request say: media types, revision, session, and the guard against
//! requests that a foreign page makes a browser send.

use super::respond;
use crate::{
    domain::reason::Reason,
    mcp::{
        legacy::Revision,
        wire::{RpcError, code},
    },
};
use axum::response::Response;
use http::{HeaderMap, HeaderName, StatusCode, Uri, header};

/// The header that names the MCP session.
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The header that names the revision.
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Which of the two media types an `Accept` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accept {
    pub json: bool,
    pub sse: bool,
}

/// Reads every `Accept` line; none at all takes everything.
pub(super) fn accept(headers: &HeaderMap) -> Accept {
    let mut lines = headers.get_all(header::ACCEPT).iter().peekable();
    if lines.peek().is_none() {
        return Accept { json: true, sse: true };
    }
    // for each type: how exact the best matching range is, and whether its q is above zero
    let (mut json, mut sse) = ((0, false), (0, false));
    for range in lines.filter_map(|l| l.to_str().ok()).flat_map(|l| l.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts
            .filter_map(|p| p.split_once('='))
            .find(|(k, _)| k.trim().eq_ignore_ascii_case("q"))
            .map_or(1.0, |(_, q)| q.trim().parse().unwrap_or(0.0));
        for (best, exact, family) in [
            (&mut json, "application/json", "application/*"),
            (&mut sse, "text/event-stream", "text/*"),
        ] {
            let exactness = match name.as_str() {
                n if n == exact => 3,
                n if n == family => 2,
                "*/*" => 1,
                _ => continue,
            };
            if exactness > best.0 {
                *best = (exactness, quality > 0.0);
            }
        }
    }
    Accept { json: json.1, sse: sse.1 }
}

/// Whether the body is said to be JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().is_some_and(|t| t.trim().eq_ignore_ascii_case("application/json"))
}

/// The revision that the header names; none without the header.
///
/// # Errors
/// The value, if it is none that is spoken here.
pub(super) fn revision(headers: &HeaderMap) -> Result<Option<Revision>, String> {
    let Some(value) = headers.get(PROTOCOL_VERSION) else { return Ok(None) };
    let text = value.to_str().unwrap_or("unreadable").trim();
    Revision::known(text).map(Some).ok_or_else(|| text.to_owned())
}

/// The one session id of a request; none if it is missing, repeated or unreadable.
pub(super) fn session_id(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(SESSION_ID).iter();
    let id = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(id)
}

/// The hosts and origins that requests may name.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Host names or addresses, without a port (any port then) or with one; IPv6 in brackets.
    pub hosts: Vec<String>,
    /// Origins, exact: scheme, host and port. An origin whose host is an allowed host passes too.
    pub origins: Vec<String>,
}

/// Refuses a request that names a foreign host or comes from a foreign page, before any work.
///
/// # Errors
/// The response, 403.
pub fn guard(headers: &HeaderMap, uri: &Uri, allowed: &Allowed) -> Result<(), Box<Response>> {
    let refuse = |what: String| {
        let error = RpcError::because(Reason::Forbidden, code::INVALID_REQUEST, what);
        Err(Box::new(respond::error(StatusCode::FORBIDDEN, None, &error)))
    };
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next(), uri.authority()) {
        (Some(host), None, _) => host.to_str().unwrap_or_default(),
        (None, _, Some(authority)) => authority.as_str(),
        _ => return refuse("the request names no host, or more than one".to_owned()),
    };
    if !allowed.has_host(host) {
        return refuse("the Host of the request is not served here (gateway.allowedHosts)".into());
    }
    for origin in headers.get_all(header::ORIGIN) {
        let passes = origin.to_str().is_ok_and(|o| allowed.has_origin(o));
        if !passes {
            return refuse(
                "the Origin of the request is not allowed (gateway.allowedOrigins)".into(),
            );
        }
    }
    Ok(())
}

impl Allowed {
    fn has_host(&self, authority: &str) -> bool {
        let Some((host, port)) = split_port(authority) else { return false };
        self.hosts.iter().filter_map(|h| split_port(h)).any(|(allowed, its_port)| {
            let host = host.strip_suffix('.').unwrap_or(host);
            allowed.eq_ignore_ascii_case(host) && (its_port.is_none() || its_port == port)
        })
    }

    fn has_origin(&self, origin: &str) -> bool {
        if self.origins.iter().any(|o| o.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        host.is_some_and(|h| self.has_host(h))
    }
}

/// Host and port of an authority; none if it is not one.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let after_host = match authority.strip_prefix('[') {
        Some(v6) => v6.find(']')? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at_checked(after_host)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    let port = match rest.strip_prefix(':') {
        Some(port) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => Some(port),
        None if rest.is_empty() => None,
        _ => return None,
    };
    (!host.is_empty() && host.chars().all(plain)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn headers(name: HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|v| (name.clone(), v.parse().unwrap())).collect()
    }

    #[rstest]
    #[case::none(&[], true, true)]
    #[case::both(&["application/json, text/event-stream"], true, true)]
    #[case::order_and_q(&["text/event-stream, application/json;q=0.9"], true, true)]
    #[case::anything(&["*/*"], true, true)]
    #[case::two_lines(&["application/json", "text/event-stream"], true, true)]
    #[case::spaces_and_case(&["Application/JSON ; q=0.5 ,TEXT/Event-Stream"], true, true)]
    #[case::families(&["text/*, application/*;q=0.1"], true, true)]
    #[case::json_only(&["application/json"], true, false)]
    #[case::sse_only(&["text/event-stream"], false, true)]
    #[case::html(&["text/html"], false, false)]
    #[case::excluded(&["*/*, application/json;q=0"], false, true)]
    #[case::excluded_first(&["text/event-stream;q=0.0, */*"], true, false)]
    #[case::empty(&[""], false, false)]
    #[case::prefix(&["application/jsonp"], false, false)]
    fn accepts(#[case] lines: &[&str], #[case] json: bool, #[case] sse: bool) {
        assert_eq!(accept(&headers(header::ACCEPT, lines)), Accept { json, sse });
    }

    #[rstest]
    #[case("application/json", true)]
    #[case("Application/Json; charset=utf-8", true)]
    #[case("text/plain", false)]
    #[case("application/json-rpc", false)]
    #[case("", false)]
    fn content_types(#[case] value: &str, #[case] json: bool) {
        assert_eq!(is_json(&headers(header::CONTENT_TYPE, &[value])), json);
    }

    fn allowed() -> Allowed {
        Allowed {
            hosts: vec![
                "awaken-gateway.awaken-system.svc".into(),
                "localhost".into(),
                "[::1]".into(),
                "tools.example.com:8443".into(),
            ],
            origins: vec!["https://console.example.org".into()],
        }
    }

    #[rstest]
    #[case::service("awaken-gateway.awaken-system.svc", true)]
    #[case::port("localhost:8080", true)]
    #[case::case_and_dot("Awaken-Gateway.awaken-system.SVC.:80", true)]
    #[case::v6("[::1]:8080", true)]
    #[case::v6_bare("[::1]", true)]
    #[case::fixed_port("tools.example.com:8443", true)]
    #[case::other_port("tools.example.com:80", false)]
    #[case::evil("evil.test", false)]
    #[case::suffix("evil-localhost", false)]
    #[case::subdomain("localhost.evil.test", false)]
    #[case::user("localhost@evil.test", false)]
    #[case::bad_port("localhost:80:90", false)]
    #[case::empty("", false)]
    fn hosts(#[case] host: &str, #[case] passes: bool) {
        let verdict = guard(&headers(header::HOST, &[host]), &Uri::from_static("/mcp"), &allowed());
        assert_eq!(verdict.is_ok(), passes);
        if let Err(response) = verdict {
            assert_eq!(response.status(), StatusCode::FORBIDDEN);
        }
    }

    #[rstest]
    #[case::listed("https://console.example.org", true)]
    #[case::of_an_allowed_host("http://localhost:6274", true)]
    #[case::null("null", false)]
    #[case::evil("https://evil.test", false)]
    #[case::other_scheme("http://console.example.org", false)]
    #[case::other_port("https://console.example.org:444", false)]
    #[case::file("file://localhost", false)]
    #[case::empty("", false)]
    fn origins(#[case] origin: &str, #[case] passes: bool) {
        let mut map = headers(header::HOST, &["localhost"]);
        map.insert(header::ORIGIN, origin.parse().unwrap());
        assert_eq!(guard(&map, &Uri::from_static("/mcp"), &allowed()).is_ok(), passes);
    }

    #[test]
    fn a_request_names_exactly_one_host() {
        let two = headers(header::HOST, &["localhost", "localhost"]);
        assert!(guard(&two, &Uri::from_static("/mcp"), &allowed()).is_err());
        let none = HeaderMap::new();
        assert!(guard(&none, &Uri::from_static("/mcp"), &allowed()).is_err());
        let http2 = Uri::from_static("http://localhost:8080/mcp");
        assert!(guard(&none, &http2, &allowed()).is_ok(), "HTTP/2 names it in the URI");
    }
}
