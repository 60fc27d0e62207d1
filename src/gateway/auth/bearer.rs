//! The token of a request, from its headers. Strict: one header, one token.

use crate::gateway::answer::HttpRefusal;
use axum::http::{HeaderMap, header::AUTHORIZATION};

/// The longest token that is looked at, in bytes.
const LONGEST: usize = 16 * 1024;

/// Whether a request can carry this token.
pub fn is_usable(token: &[u8]) -> bool {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b);
    !token.is_empty() && token.len() <= LONGEST && token.iter().all(plain)
}

/// The bearer token of a request.
///
/// # Errors
/// 401 where there is none, more than one header, another scheme or an empty or malformed token.
pub fn bearer(headers: &HeaderMap) -> Result<&str, HttpRefusal> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let refuse = |what: &str| Err(HttpRefusal::unauthenticated(what));
    let value = match (all.next(), all.next()) {
        (None, _) => return refuse("the request carries no Authorization header"),
        (Some(_), Some(_)) => return refuse("the request carries two Authorization headers"),
        (Some(value), None) => value,
    };
    let Some((scheme, token)) = value.to_str().ok().and_then(|text| text.split_once(' ')) else {
        return refuse("the Authorization header is not `Bearer` and a token");
    };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return refuse("the Authorization header has another scheme than Bearer");
    }
    let token = token.trim_matches(' ');
    if !is_usable(token.as_bytes()) {
        return refuse("the Authorization header carries no usable token");
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use rstest::rstest;

    #[rstest]
    #[case::plain(&["Bearer abc.def-1_~+/="], Some("abc.def-1_~+/="))]
    #[case::lower(&["bearer X"], Some("X"))]
    #[case::upper(&["BEARER X"], Some("X"))]
    #[case::two_spaces(&["Bearer  X"], Some("X"))]
    #[case::none(&[], None)]
    #[case::empty(&["Bearer "], None)]
    #[case::scheme_alone(&["Bearer"], None)]
    #[case::blank(&[""], None)]
    #[case::token_alone(&["abc"], None)]
    #[case::basic(&["Basic abc"], None)]
    #[case::two_tokens(&["Bearer a b"], None)]
    #[case::comma(&["Bearer a, Bearer b"], None)]
    #[case::two_headers(&["Bearer a", "Bearer a"], None)]
    #[case::not_ascii(&["Bearer é"], None)]
    #[case::prefix(&["Bearerx abc"], None)]
    fn table(#[case] values: &[&str], #[case] token: Option<&str>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        assert_eq!(bearer(&headers).ok(), token);
    }

    #[test]
    fn a_token_without_end_is_refused() {
        let mut headers = HeaderMap::new();
        let value = format!("Bearer {}", "a".repeat(LONGEST + 1));
        headers.append(AUTHORIZATION, HeaderValue::from_str(&value).unwrap());
        assert!(bearer(&headers).is_err());
    }
}
