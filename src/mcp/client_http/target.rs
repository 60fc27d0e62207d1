//! Where a server is and what is shown to it.

use crate::domain::redact::Redactor;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use secrecy::{ExposeSecret as _, SecretString};
use std::time::Duration;

/// What is kept of a server's own words, in characters.
const MAX_WORDS: usize = 256;

/// What is shown to the server in a header.
#[derive(Clone, Debug)]
pub struct Credential {
    /// The header, for example `authorization`.
    pub header: HeaderName,
    /// Put before the value, with a space; for example `Bearer`. Empty for none.
    pub scheme: String,
    /// The value.
    pub value: SecretString,
}

/// A URL or credential that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Not an absolute http or https URL without user information.
    #[error("the URL cannot be used: {0}")]
    Url(String),
    /// The credential holds bytes that no header may hold. Its value is not repeated here.
    #[error("the credential holds characters that a header cannot carry")]
    Credential,
}

/// A server over HTTP.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    uri: Uri,
    host: String,
    headers: HeaderMap,
    secret: Option<SecretString>,
    /// Knows the secret in every writing.
    redactor: Redactor,
    /// The biggest message that is taken, in bytes.
    pub(super) limit: usize,
    /// How long a connection, TLS included, may take.
    pub(super) connect_timeout: Duration,
}

impl HttpTarget {
    /// Takes a URL as it is written, path and query byte for byte. `limit` is the biggest message
    /// that is taken, in bytes; `connect_timeout` bounds making a connection.
    ///
    /// # Errors
    /// A URL or credential that cannot be used.
    pub fn new(
        url: &str,
        credential: Option<Credential>,
        limit: usize,
        connect_timeout: Duration,
    ) -> Result<Self, TargetError> {
        let wrong = |what: &str| TargetError::Url(what.to_owned());
        let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| wrong(&e.to_string()))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong("its scheme is neither http nor https"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it holds user information"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let mut headers = HeaderMap::with_capacity(8);
        let both = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(header::ACCEPT, both);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let agent = concat!("awaken/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        if let Some(credential) = &credential {
            let secret = credential.value.expose_secret();
            let text = match credential.scheme.as_str() {
                "" => secret.to_owned(),
                scheme => format!("{scheme} {secret}"),
            };
            let mut value = HeaderValue::from_str(&text).map_err(|_| TargetError::Credential)?;
            value.set_sensitive(true);
            headers.insert(&credential.header, value);
        }
        let secret = credential.map(|c| c.value);
        let redactor = Redactor::new(secret.iter().map(|s| s.expose_secret()));
        Ok(Self { uri, host, headers, secret, redactor, limit, connect_timeout })
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The host, an IPv6 address without brackets.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        let default = if self.uri.scheme_str() == Some("https") { 443 } else { 80 };
        self.uri.port_u16().unwrap_or(default)
    }

    /// The headers of every POST.
    pub(super) fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    /// Text of the server as it may be shown: cut, on one line, without the credential.
    pub(super) fn scrub(&self, text: &str) -> String {
        let text = match self.secret.as_ref().map(|s| s.expose_secret()) {
            Some(secret) if !secret.is_empty() => text.replace(secret, "[redacted]"),
            _ => text.to_owned(),
        };
        // before it is cut: what is left of a cut secret would not be known any more
        let text = self.redactor.text(&text);
        let one_line = text.split(|c: char| c.is_whitespace() || c.is_control());
        let words: Vec<_> = one_line.filter(|w| !w.is_empty()).collect();
        words.join(" ").chars().take(MAX_WORDS).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn target(url: &str) -> Result<HttpTarget, TargetError> {
        HttpTarget::new(url, None, 100, Duration::from_secs(3))
    }

    #[rstest]
    #[case("http://a.example/mcp/?k=a%2Fb", "a.example", 80, "/mcp/?k=a%2Fb")]
    #[case("https://a.example:8443", "a.example", 8443, "/")]
    #[case("https://[2001:db8::7]/x/../y", "2001:db8::7", 443, "/x/../y")]
    fn urls_are_used_byte_for_byte(
        #[case] url: &str,
        #[case] host: &str,
        #[case] port: u16,
        #[case] path: &str,
    ) {
        let target = target(url).unwrap();
        assert_eq!((target.host(), target.port()), (host, port));
        assert_eq!(target.uri().path_and_query().unwrap().as_str(), path);
    }

    #[rstest]
    #[case("ftp://a.example/")]
    #[case("a.example")]
    #[case("/mcp")]
    #[case("http://")]
    #[case("http://user:pass@a.example/")]
    #[case("http://a.example/ space")]
    #[case("")]
    fn urls_that_cannot_be_used(#[case] url: &str) {
        assert!(matches!(target(url), Err(TargetError::Url(_))));
    }

    #[test]
    fn a_credential_is_marked_and_never_shown() {
        let credential = |value: &str| Credential {
            header: HeaderName::from_static("x-api-key"),
            scheme: "Token".into(),
            value: value.into(),
        };
        let new = |value| {
            HttpTarget::new("http://a/", Some(credential(value)), 1, Duration::from_secs(1))
        };
        let target = new("s3cr3t").unwrap();
        let value = &target.headers()["x-api-key"];
        assert!(value.is_sensitive() && value == "Token s3cr3t");
        assert!(!format!("{target:?}").contains("s3cr3t"));
        assert_eq!(target.scrub("bad\n token: s3cr3t\0!"), "bad token: [redacted] !");
        let long = "x".repeat(MAX_WORDS - 4);
        for form in ["s3cr3t", "czNjcjN0", "733363723374"] {
            assert_eq!(target.scrub(&format!("{long}{form}")), format!("{long}[red"), "{form}");
        }
        let error = new("line\nbreak").unwrap_err();
        assert!(error == TargetError::Credential && !error.to_string().contains("line"));
    }
}
