//! The members of an object, one level deep, as they came.

use super::{RawJson, parse::Key};
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::HashSet};

/// Why there are no members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// It is no object.
    #[error("it is not an object")]
    NotAnObject,
    /// It names a key twice.
    #[error("the key {0:?} is named twice")]
    RepeatedKey(String),
}

type Members<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

/// The members of an object: keys unescaped, values as they came.
///
/// # Errors
/// Whatever is no object, and an object that names a key twice.
pub fn members(raw: &RawJson) -> Result<Members<'_>, MembersError> {
    struct V;
    impl<'de> Visitor<'de> for V {
        type Value = Members<'de>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut out = Vec::new();
            while let Some((Key(key), value)) = map.next_entry()? {
                out.push((key, value));
            }
            Ok(out)
        }
    }
    let mut json = serde_json::Deserializer::from_str(raw.as_str());
    let members = json.deserialize_map(V).map_err(|_| MembersError::NotAnObject)?;
    let mut seen = HashSet::with_capacity(members.len());
    match members.iter().find(|(key, _)| !seen.insert(key.as_ref())) {
        Some((key, _)) => Err(MembersError::RepeatedKey(key.clone().into_owned())),
        None => Ok(members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_level_deep_and_no_deeper() {
        let raw = RawJson::from_static(r#"{"n\u0061me":"x","b":{"c":1,"c":2}}"#);
        let members = members(&raw).unwrap();
        let seen: Vec<_> = members.iter().map(|(k, v)| (k.as_ref(), v.get())).collect();
        assert_eq!(seen, [("name", "\"x\""), ("b", r#"{"c":1,"c":2}"#)]);
    }

    #[test]
    fn a_repeated_key_and_other_values_are_refused() {
        let repeated = RawJson::from_static(r#"{"name":1,"n\u0061me":1}"#);
        assert_eq!(members(&repeated).err(), Some(MembersError::RepeatedKey("name".into())));
        for other in ["[]", "1", "null", "\"{}\""] {
            let error = members(&RawJson::from_static(other)).err();
            assert_eq!(error, Some(MembersError::NotAnObject));
        }
    }
}
