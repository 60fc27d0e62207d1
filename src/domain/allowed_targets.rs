//! Where the values of a Secret may go, as its annotation says: to the origins that it lists, into
//! stdio servers, or, without the annotation, wherever it is named.

use super::address::canonical_url;

/// The annotation of a Secret: origins such as `https://mcp.example.com`, and the word `stdio`,
/// with commas or white space between them. With it, even empty, the Secret goes nowhere else.
pub const ALLOWED_TARGETS: &str = "awaken.dev/allowed-targets";

/// Where a value is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination<'a> {
    /// To a server over HTTP, by its canonical origin.
    Origin(&'a str),
    /// Into the environment of a stdio server.
    Stdio,
}

impl std::fmt::Display for Destination<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Origin(origin) => f.write_str(origin),
            Self::Stdio => f.write_str("stdio"),
        }
    }
}

/// Why a Secret with this annotation may not go there, as the end of a sentence about it; none if
/// it may. `required`: without the annotation it goes nowhere.
pub fn refusal(
    annotation: Option<&str>,
    required: bool,
    destination: Destination<'_>,
) -> Option<String> {
    let Some(annotation) = annotation else {
        return required.then(|| {
            format!("lacks the annotation {ALLOWED_TARGETS}, which this installation demands")
        });
    };
    let mut entries = annotation.split([',', ' ', '\t', '\r', '\n']).filter(|e| !e.is_empty());
    let named = entries.any(|entry| match destination {
        Destination::Stdio => entry == "stdio",
        Destination::Origin(origin) => is_origin(entry, origin),
    });
    (!named).then(|| format!("does not name {destination} in its annotation {ALLOWED_TARGETS}"))
}

/// Whether the text is that origin, in whatever case, with or without the default port and a last
/// slash. A URL with a path is no origin.
fn is_origin(text: &str, origin: &str) -> bool {
    canonical_url(text).is_ok_and(|url| url.path_and_query() == "/" && url.origin() == origin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const HERE: Destination<'_> = Destination::Origin("https://mcp.example.com");

    #[rstest]
    #[case::none(None, HERE, true)]
    #[case::named(Some("https://mcp.example.com"), HERE, true)]
    #[case::other_writing(Some("HTTPS://MCP.example.com:443/"), HERE, true)]
    #[case::one_of_some(Some("stdio, https://a.example\nhttps://mcp.example.com"), HERE, true)]
    #[case::empty(Some(""), HERE, false)]
    #[case::other(Some("https://mcp.example.org"), HERE, false)]
    #[case::other_scheme(Some("http://mcp.example.com"), HERE, false)]
    #[case::other_port(Some("https://mcp.example.com:8443"), HERE, false)]
    #[case::below(Some("https://a.mcp.example.com https://example.com"), HERE, false)]
    #[case::path(Some("https://mcp.example.com/mcp"), HERE, false)]
    #[case::no_origin(Some("mcp.example.com *"), HERE, false)]
    #[case::stdio_alone(Some("stdio"), HERE, false)]
    #[case::stdio(Some("https://a.example,stdio"), Destination::Stdio, true)]
    #[case::no_stdio(Some("https://mcp.example.com"), Destination::Stdio, false)]
    fn places(#[case] annotation: Option<&str>, #[case] to: Destination<'_>, #[case] goes: bool) {
        assert_eq!(refusal(annotation, false, to).is_none(), goes);
        let demanded = refusal(annotation, true, to);
        assert_eq!(demanded.is_none(), goes && annotation.is_some());
    }

    #[test]
    fn the_words_name_what_is_missing() {
        let other = refusal(Some("stdio"), false, HERE).unwrap();
        assert!(other.contains("does not name https://mcp.example.com in"), "{other}");
        assert!(refusal(None, true, HERE).unwrap().starts_with("lacks the annotation awaken.dev/"));
    }
}
