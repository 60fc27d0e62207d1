//! Reading one message: a single pass over the envelope, every part a slice of what came.

use super::{Answer, Id, Message, RawJson, RpcError, code};
use crate::domain::reason::Reason;
use bytes::{Buf as _, Bytes};
use serde::de::{Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::HashSet};

/// Text that is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not JSON, or not UTF-8.
    #[error("the message is not JSON: {0}")]
    NotJson(String),
    /// A JSON array.
    #[error("batches are not taken: send one message a request")]
    Batch,
    /// An envelope that names a key twice.
    #[error("the message names the key {key:?} twice")]
    RepeatedKey {
        /// Which.
        key: String,
        /// The id, if it was read before and is not the key.
        id: Option<Id>,
    },
    /// JSON, but no JSON-RPC 2.0 message.
    #[error("the message is not JSON-RPC 2.0: {what}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
        /// The id, if there is a usable one.
        id: Option<Id>,
    },
}

impl Malformed {
    pub(super) fn invalid(what: &'static str) -> Self {
        Self::Invalid { what, id: None }
    }

    /// The id to answer under, if it is known.
    pub fn id(&self) -> Option<&Id> {
        match self {
            Self::RepeatedKey { id, .. } | Self::Invalid { id, .. } => id.as_ref(),
            Self::NotJson(_) | Self::Batch => None,
        }
    }

    /// The reason of the refusal.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotJson(_) | Self::Invalid { .. } => Reason::InvalidRequest,
            Self::Batch => Reason::BatchRefused,
            Self::RepeatedKey { .. } => Reason::RepeatedKey,
        }
    }

    /// The error object for the answer.
    pub fn to_error(&self) -> RpcError {
        let code = match self {
            Self::NotJson(_) => code::PARSE,
            _ => code::INVALID_REQUEST,
        };
        RpcError::because(self.reason(), code, self.to_string())
    }
}

/// Reads one message. A byte order mark and whitespace around it are not part of it.
///
/// # Errors
/// Text that is no message, with the id where it can be told.
pub fn parse(bytes: &Bytes) -> Result<Message, Malformed> {
    let mut text = bytes.clone();
    if text.starts_with(b"\xEF\xBB\xBF") {
        text.advance(3);
    }
    let utf8 = std::str::from_utf8(&text).map_err(|e| Malformed::NotJson(e.to_string()))?;
    match utf8.trim_start_matches([' ', '\t', '\r', '\n']).bytes().next() {
        Some(b'{') => {}
        Some(b'[') => {
            serde_json::from_str::<IgnoredAny>(utf8)
                .map_err(|e| Malformed::NotJson(e.to_string()))?;
            return Err(Malformed::Batch);
        }
        _ => {
            serde_json::from_str::<IgnoredAny>(utf8)
                .map_err(|e| Malformed::NotJson(e.to_string()))?;
            return Err(Malformed::invalid("it is not an object"));
        }
    }
    let mut envelope = Envelope::default();
    let mut json = serde_json::Deserializer::from_str(utf8);
    json.deserialize_map(&mut envelope)
        .and_then(|()| json.end())
        .map_err(|e| Malformed::NotJson(e.to_string()))?;
    envelope.into_message(&text)
}

#[derive(Default)]
struct Envelope<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    others: HashSet<String>,
    repeated: Option<String>,
}

impl<'de> Visitor<'de> for &mut Envelope<'de> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
            let place = match key.as_ref() {
                "jsonrpc" => &mut self.jsonrpc,
                "id" => &mut self.id,
                "method" => &mut self.method,
                "params" => &mut self.params,
                "result" => &mut self.result,
                "error" => &mut self.error,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    if self.others.len() >= MAX_UNKNOWN_KEYS {
                        return Err(A::Error::custom("too many unknown members"));
                    }
                    if self.others.contains(key.as_ref()) {
                        self.repeated.get_or_insert_with(|| key.into_owned());
                    } else {
                        self.others.insert(key.into_owned());
                    }
                    continue;
                }
            };
            let value = map.next_value()?;
            if place.replace(value).is_some() {
                self.repeated.get_or_insert_with(|| key.into_owned());
            }
        }
        Ok(())
    }
}

/// More members that JSON-RPC does not know than this make no message.
const MAX_UNKNOWN_KEYS: usize = 64;

/// A key, unescaped; borrowed where it has no escapes.
pub(super) struct Key<'a>(pub Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(v.to_owned())))
            }
        }
        deserializer.deserialize_str(V)
    }
}

impl Envelope<'_> {
    fn into_message(self, whole: &Bytes) -> Result<Message, Malformed> {
        let part = |raw: Option<&RawValue>| raw.map(|r| RawJson::slice_of(whole, r));
        let raw_id = part(self.id);
        let id = raw_id.as_ref().and_then(|raw| Id::from_json(raw).ok());
        if let Some(key) = self.repeated {
            let id = id.filter(|_| key != "id");
            return Err(Malformed::RepeatedKey { key, id });
        }
        let wrong = |what| Err(Malformed::Invalid { what, id: id.clone() });
        if self.jsonrpc.is_none_or(|v| v.get() != "\"2.0\"") {
            return wrong("the member jsonrpc is not \"2.0\"");
        }
        match (self.method, self.result, self.error) {
            (Some(method), None, None) => {
                let Ok(method) = serde_json::from_str::<String>(method.get()) else {
                    return wrong("the method is not a string");
                };
                let params = part(self.params);
                match (raw_id, id) {
                    (None, _) => Ok(Message::Notification { method, params }),
                    (Some(_), Some(id)) => Ok(Message::Request { id, method, params }),
                    (Some(_), None) => {
                        Err(Malformed::invalid("the id is neither a number nor a string"))
                    }
                }
            }
            (None, Some(result), None) => {
                let answer = Answer::Result(RawJson::slice_of(whole, result));
                match id {
                    Some(id) => Ok(Message::Response { id: Some(id), answer }),
                    None => Err(Malformed::invalid("a result without an id")),
                }
            }
            (None, None, Some(error)) => {
                let error = RawJson::slice_of(whole, error);
                if !error.is_object() {
                    return wrong("the error is not an object");
                }
                Ok(Message::Response { id, answer: Answer::Error(error) })
            }
            (None, None, None) => wrong("neither method nor result nor error"),
            _ => wrong("more than one of method, result and error"),
        }
    }
}

#[cfg(test)]
mod tests;
