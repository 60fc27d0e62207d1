//! A piece of JSON text that passes through as it came.

use bytes::Bytes;
use serde_json::value::RawValue;

/// A piece of valid JSON text that shares the bytes it came in.
#[derive(Clone, PartialEq, Eq)]
pub struct RawJson(Bytes);

impl RawJson {
    /// Takes text that is known to be one valid JSON value.
    pub fn from_raw(raw: &RawValue) -> Self {
        Self(Bytes::copy_from_slice(raw.get().as_bytes()))
    }

    /// Shares the part of `whole` that `raw` was borrowed from.
    pub fn slice_of(whole: &Bytes, raw: &RawValue) -> Self {
        Self(whole.slice_ref(raw.get().as_bytes()))
    }

    /// Shares the part of this text that `raw` was borrowed from.
    pub fn part(&self, raw: &RawValue) -> Self {
        Self::slice_of(&self.0, raw)
    }

    /// Text of our own making that is one valid JSON value.
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// Reads one JSON value.
    ///
    /// # Errors
    /// What serde_json says of text that is none.
    pub fn parse(bytes: Bytes) -> Result<Self, serde_json::Error> {
        let raw = serde_json::from_slice::<&RawValue>(&bytes)?;
        Ok(Self::slice_of(&bytes, raw))
    }

    /// Writes a value as JSON.
    ///
    /// # Errors
    /// What serde_json says; for our own types: none.
    pub fn of(value: &impl serde::Serialize) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(value).map(|v| Self(Bytes::from(v)))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("valid JSON is valid UTF-8")
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Whether it is an object.
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }
}

impl std::fmt::Debug for RawJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawJson({} bytes)", self.0.len())
    }
}

impl serde::Serialize for RawJson {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue =
            serde_json::from_slice(&self.0).expect("RawJson holds one valid JSON value");
        raw.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitespace_around_a_value_is_not_part_of_it() {
        let raw = RawJson::parse(Bytes::from_static(b" \r\n{\"a\" : 1}\n")).unwrap();
        assert_eq!(raw.as_str(), "{\"a\" : 1}");
    }
}
