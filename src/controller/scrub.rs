//! What looks like a secret: to warn of it where it does not belong, and to keep it out of messages.

/// Beginnings of well-known tokens.
const PREFIXES: [&str; 16] = [
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "eyJ",
    "AIza",
];
/// A shorter word is no token.
const MIN_TOKEN: usize = 16;
/// Parts of names whose values are secrets.
const NAMES: [&str; 9] = [
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "CREDENTIAL",
];
/// What stands in its place.
const GONE: &str = "[redacted]";

/// The text without words that look like tokens.
pub fn scrub(text: &str) -> String {
    let edge = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '=' | ',' | ';' | '(' | ')');
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(edge) {
        let word = piece.trim_end_matches(edge);
        if is_token(word) {
            out.push_str(GONE);
            out.push_str(&piece[word.len()..]);
        } else {
            out.push_str(piece);
        }
    }
    out
}

/// Whether an environment variable looks as if its value were a secret.
pub fn suspicious_env(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    // Paths and references to files are fine: TOKEN_FILE=/run/token.
    let plain = value.is_empty()
        || value.starts_with('/')
        || ["true", "false", "0", "1"].contains(&value)
        || upper.ends_with("_FILE")
        || upper.ends_with("_PATH")
        || upper.ends_with("_URL");
    !plain && (NAMES.iter().any(|n| upper.contains(n)) || suspicious(value))
}

/// Whether a word of the text looks like a secret.
pub fn suspicious(text: &str) -> bool {
    text.contains("-----BEGIN") || scrub(text) != text || password_in_url(text)
}

fn is_token(word: &str) -> bool {
    // A header's or an option's value may be glued to its name.
    let word = word.rsplit([':', '/']).next().unwrap_or(word);
    word.len() >= MIN_TOKEN && PREFIXES.iter().any(|p| word.starts_with(p))
}

fn password_in_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.split_once('@').is_some_and(|(user, _)| {
            user.split_once(':').is_some_and(|(_, password)| !password.is_empty())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("key sk-proj-abcdefghijklmnop", "key [redacted]")]
    #[case("Bearer: eyJhbGciOiJIUzI1NiJ9.e30.x\nnext", "Bearer: [redacted]\nnext")]
    #[case("TOKEN=ghp_0123456789abcdef0123", "TOKEN=[redacted]")]
    #[case("sk-short stays", "sk-short stays")]
    #[case("plain words, as they are", "plain words, as they are")]
    fn scrubbed(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(scrub(text), expected);
    }

    #[rstest]
    #[case("API_TOKEN", "hunter2hunter2", true)]
    #[case("API_TOKEN_FILE", "/run/secrets/token", false)]
    #[case("LOG_LEVEL", "debug", false)]
    #[case("DATABASE", "postgres://u:pw@db/x", true)]
    #[case("ROOT", "/workspace", false)]
    #[case("X", "ghp_0123456789abcdef0123", true)]
    fn env(#[case] name: &str, #[case] value: &str, #[case] expected: bool) {
        assert_eq!(suspicious_env(name, value), expected);
    }
}
