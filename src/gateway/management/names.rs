//! Arguments that are checked while they are read, so that nothing else can reach the API server:
//! names, numbers within bounds, a place in a list. Pure.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use std::borrow::Cow;

/// Rows on a page, at most.
pub const MOST: u32 = 200;
/// Rows on a page without `limit`.
pub const USUAL: u32 = 50;
/// The longest wait, in seconds.
pub const LONGEST_WAIT: u32 = 300;

const LABEL: &str = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";
const SUBDOMAIN: &str = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$";

/// Whether it is a DNS label: 1 to 63 lower-case letters, digits and inner hyphens.
pub fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len()) && is_part(text)
}

/// Whether it is a DNS subdomain of up to 253 characters.
pub fn is_subdomain(text: &str) -> bool {
    (1..=253).contains(&text.len()) && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $check:ident, $max:literal, $pattern:ident, $wrong:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl TryFrom<String> for $name {
            type Error = &'static str;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                if $check(&text) { Ok(Self(text)) } else { Err($wrong) }
            }
        }

        impl std::ops::Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string", "minLength": 1, "maxLength": $max, "pattern": $pattern,
                })
            }
        }
    };
}

checked_text!(
    /// The name of a namespace.
    Namespace,
    is_label,
    63,
    LABEL,
    "must be the name of a namespace: up to 63 lower-case letters, digits and inner '-'"
);
checked_text!(
    /// A metadata.name.
    Name,
    is_subdomain,
    253,
    SUBDOMAIN,
    "must be a metadata.name: up to 253 lower-case letters, digits, '-' and '.', each part \
     beginning and ending with a letter or digit"
);

macro_rules! checked_number {
    ($(#[$doc:meta])* $name:ident, $min:literal..=$max:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "i64")]
        pub struct $name(pub u32);

        impl TryFrom<i64> for $name {
            type Error = String;

            fn try_from(number: i64) -> Result<Self, Self::Error> {
                match u32::try_from(number) {
                    Ok(fits) if ($min..=$max).contains(&fits) => Ok(Self(fits)),
                    _ => Err(format!("must be between {} and {}", $min, $max)),
                }
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "integer", "minimum": $min, "maximum": $max})
            }
        }
    };
}

checked_number!(
    /// How many rows.
    Limit,
    1..=MOST
);
checked_number!(
    /// How long to wait, in seconds.
    WaitSeconds,
    0..=LONGEST_WAIT
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains() {
        let long = "a".repeat(63);
        for good in ["a", "team-a", "0", &long] {
            assert!(is_label(good) && is_subdomain(good), "{good}");
        }
        let (longer, longest) = ("a".repeat(64), "a.".repeat(127));
        for bad in ["", "-a", "a-", "A", "a_b", "a/b", "a b", "ä", "..", "a\n", "a%2fb", &longer] {
            assert!(!is_label(bad), "{bad}");
        }
        assert!(is_subdomain("a.b-c.d") && !is_label("a.b"));
        for bad in ["", ".", "a.", ".a", "a..b", "a.-b", "../secrets", "a?b", &longest] {
            assert!(!is_subdomain(bad), "{bad}");
        }
    }

    #[test]
    fn numbers_have_bounds() {
        let limit = |text: &str| serde_json::from_str::<Limit>(text).map(|l| l.0);
        assert_eq!((limit("1").unwrap(), limit("200").unwrap()), (1, 200));
        for bad in ["0", "201", "-1", "1.5", "\"1\"", "99999999999999999999"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
        assert_eq!(serde_json::from_str::<WaitSeconds>("0").unwrap().0, 0);
        assert!(serde_json::from_str::<WaitSeconds>("301").is_err());
    }
}
