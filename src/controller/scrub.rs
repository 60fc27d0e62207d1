//! What looks like a secret: to warn of it where it does not belong, and to keep it out of messages.
//!
//! The admission policy that warns of the same at `kubectl apply` has the same list of tokens; a
//! test compares them.

/// Beginnings of well-known tokens.
const PREFIXES: [&str; 24] = [
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxa-",
    "xoxb-",
    "xoxe-",
    "xoxp-",
    "xoxr-",
    "xoxs-",
    "xapp-",
    "AKIA",
    "ASIA",
    "eyJ",
    "AIza",
    "-----BEGIN ",
];
/// A shorter word is no token.
const MIN_TOKEN: usize = 15;
/// How a key in a text begins; it ends with the text.
const PEM: &str = "-----BEGIN ";
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

/// The text without what looks like a token, a key, or the password in a URL.
pub fn scrub(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut inside) = (text, false);
    while let Some(next) = rest.chars().next() {
        let taken = if inside { 0 } else { token(rest) };
        if taken > 0 {
            out.push_str(GONE);
            rest = &rest[taken..];
            inside = true;
            continue;
        }
        if let Some((before, password)) = password(rest) {
            out.push_str(&rest[..before]);
            out.push_str(GONE);
            rest = &rest[before + password..];
            inside = false;
            continue;
        }
        out.push(next);
        rest = &rest[next.len_utf8()..];
        inside = next.is_ascii_alphanumeric();
    }
    out
}

/// How many bytes at the beginning of the text are a token; 0 when it begins with none.
fn token(text: &str) -> usize {
    if text.starts_with(PEM) {
        return text.len();
    }
    if !PREFIXES.iter().any(|p| text.starts_with(p)) {
        return 0;
    }
    let of_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let word = &text[..text.find(|c| !of_token(c)).unwrap_or(text.len())];
    let word = word.trim_end_matches('.');
    if word.len() >= MIN_TOKEN { word.len() } else { 0 }
}

/// When the text begins with `://user:password@`: how many bytes stand before the password, and how
/// many it has.
fn password(text: &str) -> Option<(usize, usize)> {
    let rest = text.strip_prefix("://")?;
    let end = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'');
    let authority = &rest[..rest.find(end).unwrap_or(rest.len())];
    let (info, _) = authority.rsplit_once('@')?;
    let (user, password) = info.split_once(':')?;
    let before = "://".len() + user.len() + ":".len();
    (!password.is_empty() && password != GONE).then_some((before, password.len()))
}

/// The words of a container runtime without what looks like a token and without the value of any
/// environment variable: it repeats variables that it cannot set, value and all.
pub fn scrub_runtime(text: &str) -> String {
    let about_env = text.find("environment variable");
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('=') {
        let (before, value) = (&rest[..at], &rest[at + 1..]);
        let name = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let told = text.len() - rest.len();
        let end = if name.len() == before.len() {
            0
        } else if name.ends_with('"') {
            quoted(value)
        } else if about_env.is_some_and(|from| from < told + at) {
            value.len()
        } else {
            0
        };
        out.push_str(&rest[..=at]);
        if end > 0 {
            out.push_str(GONE);
        }
        rest = &value[end..];
    }
    out.push_str(rest);
    scrub(&out)
}

/// Where a quoted text ends, as Go writes it: at the next quote without a backslash before it.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    let end = text.find(|c| {
        let is_end = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    });
    end.unwrap_or(text.len())
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
    let named = !plain && NAMES.iter().any(|n| upper.contains(n));
    named || suspicious(value)
}

/// Whether something in the text looks like a secret.
pub fn suspicious(text: &str) -> bool {
    scrub(text) != text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::collections::BTreeSet;

    #[rstest]
    #[case("key sk-proj-abcdefghijklmnop", "key [redacted]")]
    #[case("Bearer: eyJhbGciOiJIUzI1NiJ9.e30.x\nnext", "Bearer: [redacted]\nnext")]
    #[case("TOKEN=ghp_0123456789abcdef0123", "TOKEN=[redacted]")]
    #[case("https://ghp_0123456789abcdef0123@github.com/o/r", "https://[redacted]@github.com/o/r")]
    #[case(
        "https://x-access-token:ghs_0123456789abcdef@h/r",
        "https://x-access-token:[redacted]@h/r"
    )]
    #[case("https://h/r?key=ghp_0123456789abcdef0123&x=1", "https://h/r?key=[redacted]&x=1")]
    #[case("[ghp_0123456789abcdef0123]", "[[redacted]]")]
    #[case("see postgres://u:p@w@db/x now", "see postgres://u:[redacted]@db/x now")]
    #[case("redis://:hunter2@r:6379", "redis://:[redacted]@r:6379")]
    #[case("a key -----BEGIN RSA PRIVATE KEY-----\nMII", "a key [redacted]")]
    #[case("sk-short stays", "sk-short stays")]
    #[case("task-runner-with-a-long-name-indeed", "task-runner-with-a-long-name-indeed")]
    #[case(
        "https://user@h/p and https://h:8080/a:b@c",
        "https://user@h/p and https://h:8080/a:b@c"
    )]
    #[case("plain words, as they are: ä", "plain words, as they are: ä")]
    fn scrubbed(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(scrub(text), expected);
        assert_eq!(scrub(expected), expected, "once is enough");
        assert_eq!(suspicious(text), text != expected);
    }

    #[rstest]
    #[case::quoted(r#"null: "K=a b\"c d", unknown"#, r#"null: "K=[redacted]", unknown"#)]
    #[case::cut_off(r#"null: "K=a b"#, r#"null: "K=[redacted]"#)]
    #[case::twice(r#""K=a" "L=b" c"#, r#""K=[redacted]" "L=[redacted]" c"#)]
    #[case::not_quoted("bad environment variable K=a b", "bad environment variable K=[redacted]")]
    #[case::no_variable("rpc error: code = Unknown desc = x", "rpc error: code = Unknown desc = x")]
    #[case::elsewhere("memory.max=1: refused", "memory.max=1: refused")]
    #[case::token("x sk-proj-abcdefghijklmnop", "x [redacted]")]
    fn of_a_runtime(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(scrub_runtime(text), expected);
    }

    #[rstest]
    #[case("API_TOKEN", "hunter2hunter2", true)]
    #[case("API_TOKEN_FILE", "/run/secrets/token", false)]
    #[case("LOG_LEVEL", "debug", false)]
    #[case("DATABASE", "postgres://u:pw@db/x", true)]
    #[case("DATABASE_URL", "postgres://u:pw@db/x", true)]
    #[case("ROOT", "/workspace", false)]
    #[case("X", "ghp_0123456789abcdef0123", true)]
    fn env(#[case] name: &str, #[case] value: &str, #[case] expected: bool) {
        assert_eq!(suspicious_env(name, value), expected);
    }

    /// Every way in which the alternatives of a pattern begin, before what is repeated.
    fn beginnings(pattern: &str) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for alternative in pattern.split('|') {
            let (mut heads, mut rest) = (vec![String::new()], alternative);
            while let Some(c) = rest.chars().next() {
                let (choice, after) = match rest.strip_prefix('[') {
                    Some(class) => class.split_once(']').unwrap(),
                    None => rest.split_at(c.len_utf8()),
                };
                if after.starts_with(['{', '*']) {
                    break;
                }
                let longer =
                    |h: &String| choice.chars().map(|c| format!("{h}{c}")).collect::<Vec<_>>();
                heads = heads.iter().flat_map(longer).collect();
                rest = after;
            }
            all.extend(heads);
        }
        all
    }

    #[test]
    fn the_admission_policy_knows_the_same_tokens() {
        let policy =
            include_str!("../../charts/awaken-operator/templates/admission/plain-secrets.yaml");
        let (_, pattern) = policy.split_once("(^|[^A-Za-z0-9])(").unwrap();
        let (pattern, _) = pattern.split_once(")|://").unwrap();
        let here = PREFIXES.iter().map(|p| (*p).to_owned()).collect();
        assert_eq!(beginnings(pattern), here);
    }
}
