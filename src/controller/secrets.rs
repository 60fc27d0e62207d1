//! What may be known of Secret values after they were read: a keyed hash, and whether the value can
//! be used where it is named. Pure; no value is kept, and no message repeats one or names another
//! key of the Secret.

use super::seen::{Problem, Seen};
use crate::{
    api::attachment::SecretKeyRef,
    domain::{
        allowed_targets::{Destination, refusal},
        reason::Reason,
    },
};
use std::{collections::BTreeMap, sync::Arc};

/// The longest `NAME=value` that Linux hands to a program, in bytes, with the byte that ends it.
const MAX_VARIABLE: usize = 128 * 1024;
/// The most that the secret variables of one server hold together, in bytes: half of what Linux
/// gives to arguments and environment.
const MAX_VARIABLES: usize = 1024 * 1024;

/// A Secret, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretState {
    /// There is none of that name.
    Missing,
    /// What may be known of it.
    Present(Arc<Values>),
}

/// What may be known of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// Its keys, each with what may be known of its value.
    pub keys: BTreeMap<String, Known>,
    /// Its annotation `awaken.dev/allowed-targets`.
    pub allowed_targets: Option<String>,
}

/// What may be known of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    hash: String,
    len: usize,
    is_text: bool,
    has_null: bool,
    /// Without white space around it, as it is sent.
    header: Result<(), &'static str>,
}

impl Known {
    /// What may be known of this value, with the given keyed hash.
    pub fn of(value: &[u8], hash: String) -> Self {
        let text = std::str::from_utf8(value);
        let header = text.map_err(|_| "no UTF-8 text").and_then(|text| {
            let plain = |c: char| c == '\t' || (' '..='~').contains(&c);
            match text.trim() {
                "" => Err("nothing but white space"),
                text if text.contains(['\r', '\n']) => Err("more than one line"),
                text if !text.chars().all(plain) => Err("more than printable ASCII"),
                _ => Ok(()),
            }
        });
        let (is_text, has_null) = (text.is_ok(), value.contains(&0));
        let header = if value.is_empty() { Err("nothing") } else { header };
        Self { hash, len: value.len(), is_text, has_null, header }
    }
}

/// Whether a Secret may go there, whatever its values.
///
/// # Errors
/// When it is the installation's own, or its annotation does not name the destination.
pub fn may_go(
    seen: &Seen,
    reference: &SecretKeyRef,
    field: &str,
    destination: Destination<'_>,
) -> Result<(), Problem> {
    let name = &reference.name;
    if seen.rules.reserved_secrets.contains(name) {
        let cause = format!(
            "{field} names the Secret {name:?}, which is the installation's own and goes to no \
             server."
        );
        return Err(Problem::new(Reason::SecretReserved, cause));
    }
    let Some(SecretState::Present(values)) = seen.secrets.get(name) else { return Ok(()) };
    let required = seen.rules.require_allowed_targets;
    match refusal(values.allowed_targets.as_deref(), required, destination) {
        None => Ok(()),
        Some(why) => {
            let cause = format!("{field} names the Secret {name:?}, which {why}.");
            Err(Problem::new(Reason::SecretNotAllowed, cause))
        }
    }
}

/// The hash of a value that goes into the environment of a server.
///
/// # Errors
/// When the value is missing or cannot be put there.
pub fn variable<'a>(
    seen: &'a Seen,
    name: &str,
    reference: &SecretKeyRef,
) -> Result<&'a str, Problem> {
    let field = format!("spec.sandboxStdio.secretEnv {name}");
    let known = known(seen, reference, &field)?;
    if known.has_null {
        return Err(invalid(reference, &field, "a NUL byte, which no environment variable holds"));
    }
    if !known.is_text {
        return Err(invalid(reference, &field, "no UTF-8 text"));
    }
    if name.len() + known.len + 2 > MAX_VARIABLE {
        let what = format!("{} bytes, and with its name a variable holds 128 KiB", known.len);
        return Err(invalid(reference, &field, &what));
    }
    Ok(&known.hash)
}

/// Whether the values that go into the environment of one server are not too many together.
///
/// # Errors
/// When they are.
pub fn fit<'a>(
    seen: &Seen,
    references: impl IntoIterator<Item = &'a SecretKeyRef>,
) -> Result<(), Problem> {
    let lengths = references.into_iter().map(|reference| match seen.secrets.get(&reference.name) {
        Some(SecretState::Present(it)) => it.keys.get(&reference.key).map_or(0, |known| known.len),
        Some(SecretState::Missing) | None => 0,
    });
    if lengths.sum::<usize>() <= MAX_VARIABLES {
        return Ok(());
    }
    let cause = "The values of spec.sandboxStdio.secretEnv hold more than 1 MiB in all.";
    Err(Problem::new(Reason::SecretValueInvalid, cause))
}

/// The hash of a value that is sent in a header.
///
/// # Errors
/// When the value is missing or cannot be sent.
pub fn header<'a>(seen: &'a Seen, reference: &SecretKeyRef) -> Result<&'a str, Problem> {
    let field = "spec.http.credential";
    let known = known(seen, reference, field)?;
    match known.header {
        Ok(()) => Ok(&known.hash),
        Err(what) => Err(invalid(reference, field, what)),
    }
}

fn known<'a>(seen: &'a Seen, at: &SecretKeyRef, field: &str) -> Result<&'a Known, Problem> {
    let SecretKeyRef { name, key } = at;
    let Some(SecretState::Present(values)) = seen.secrets.get(name) else {
        let cause = format!("{field} names the Secret {name:?}, which does not exist.");
        return Err(Problem::new(Reason::SecretNotFound, cause));
    };
    values.keys.get(key).ok_or_else(|| {
        let cause = format!("{field} names the key {key:?}, which the Secret {name:?} lacks.");
        Problem::new(Reason::SecretKeyNotFound, cause)
    })
}

fn invalid(at: &SecretKeyRef, field: &str, what: &str) -> Problem {
    let SecretKeyRef { name, key } = at;
    let cause = format!("{field}: the key {key:?} of the Secret {name:?} holds {what}.");
    Problem::new(Reason::SecretValueInvalid, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        controller::{
            exports::ExportsSeen,
            seen::{Leaving, Rules},
        },
        domain::identity::SessionKey,
    };
    use jiff::Timestamp;
    use rstest::rstest;

    fn seen(values: &[(&str, &[u8])]) -> Seen {
        let known = |(key, value): &(&str, &[u8])| {
            ((*key).to_owned(), Known::of(value, format!("hash of {}", value.len())))
        };
        let keys = values.iter().map(known).collect();
        let values = Values { keys, allowed_targets: None };
        Seen {
            key: SessionKey { namespace: "team-a".into(), name: "coder".into() },
            now: Timestamp::UNIX_EPOCH,
            agent: None,
            session: None,
            attachments: vec![],
            leaving: Leaving::default(),
            unreadable: vec![],
            secrets: BTreeMap::from([("s".to_owned(), SecretState::Present(Arc::new(values)))]),
            pods: vec![],
            policy: None,
            exports: ExportsSeen::default(),
            gateways: vec![],
            rules: Rules::default(),
        }
    }

    fn at(name: &str, key: &str) -> SecretKeyRef {
        SecretKeyRef { name: name.into(), key: key.into() }
    }

    fn of_variable(value: &[u8]) -> Result<String, Problem> {
        variable(&seen(&[("k", value)]), "NAME", &at("s", "k")).map(str::to_owned)
    }

    fn of_header(value: &[u8]) -> Result<String, Problem> {
        header(&seen(&[("k", value)]), &at("s", "k")).map(str::to_owned)
    }

    #[rstest]
    #[case::null(b"canary\0x", "a NUL byte")]
    #[case::bytes(b"canary\xff", "no UTF-8 text")]
    #[case::long(&[b'c'; MAX_VARIABLE - 5], "131067 bytes, and with its name")]
    fn no_variable(#[case] value: &[u8], #[case] words: &str) {
        let problem = of_variable(value).unwrap_err();
        assert_eq!(problem.reason, Reason::SecretValueInvalid);
        assert!(problem.message.starts_with("spec.sandboxStdio.secretEnv NAME: the key \"k\""));
        assert!(problem.message.contains(words), "{}", problem.message);
        assert!(!problem.message.contains("canary"), "{}", problem.message);
    }

    #[rstest]
    #[case::nothing(b"", "holds nothing.")]
    #[case::white(b" \n", "nothing but white space")]
    #[case::lines(b"canary\r\nX-Evil: y", "more than one line")]
    #[case::null(b"canary\0", "more than printable ASCII")]
    #[case::not_ascii("canaryä".as_bytes(), "more than printable ASCII")]
    #[case::bytes(b"canary\xff", "no UTF-8 text")]
    fn no_header(#[case] value: &[u8], #[case] words: &str) {
        let problem = of_header(value).unwrap_err();
        assert_eq!(problem.reason, Reason::SecretValueInvalid);
        assert!(problem.message.contains(words), "{}", problem.message);
        assert!(!problem.message.contains("canary"), "{}", problem.message);
    }

    #[rstest]
    #[case(b"")]
    #[case(b"two\nlines")]
    #[case("ä".as_bytes())]
    #[case(&[b'c'; MAX_VARIABLE - 6])]
    fn a_variable(#[case] value: &[u8]) {
        assert_eq!(of_variable(value), Ok(format!("hash of {}", value.len())));
    }

    #[rstest]
    #[case(b"token\n")]
    #[case(b"two words\tand a tab")]
    fn a_header(#[case] value: &[u8]) {
        assert_eq!(of_header(value), Ok(format!("hash of {}", value.len())));
    }

    #[test]
    fn what_is_missing_is_told_without_what_is_there() {
        let seen = seen(&[("other-key", b"x")]);
        let problem = header(&seen, &at("s", "k")).unwrap_err();
        assert_eq!(problem.reason, Reason::SecretKeyNotFound);
        assert!(!problem.message.contains("other-key"), "{}", problem.message);
        assert!(problem.message.contains("\"k\"") && problem.message.contains("\"s\""));
        let problem = variable(&seen, "NAME", &at("gone", "k")).unwrap_err();
        assert_eq!(problem.reason, Reason::SecretNotFound);
    }

    #[test]
    fn all_variables_of_a_server_together_are_bounded() {
        let half = vec![b'c'; MAX_VARIABLES / 2];
        let seen = seen(&[("a", &half), ("b", &half), ("c", b"x")]);
        assert_eq!(fit(&seen, [&at("s", "a"), &at("s", "b")]), Ok(()));
        let problem = fit(&seen, [&at("s", "a"), &at("s", "b"), &at("s", "c")]).unwrap_err();
        assert_eq!(problem.reason, Reason::SecretValueInvalid);
    }
}
