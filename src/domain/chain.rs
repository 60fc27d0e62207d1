//! The hash chain: what a record's hash is over, and whether records fit each other.
//!
//! ```text
//! canonical bytes of an entry = its JSON: the fields in the order of `Entry`, camelCase, absent
//!                               ones left out, no white space
//! hash = SHA-256("awaken-journal-v1\n" ‖ previous (32 bytes) ‖ seq (8 bytes, big-endian) ‖ bytes)
//! ```
//!
//! The first record's `previous` is 32 zero bytes. What is stored are the canonical bytes, and
//! a check hashes what is stored, so that any changed byte is seen, and so that a record of
//! a newer version, with fields unknown here, still has its hash.

use super::{canonical::push_hex, record::Entry};
use sha2::{Digest as _, Sha256};

const DOMAIN: &[u8] = b"awaken-journal-v1\n";

/// A hash of the chain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// What the first record of a chain has as `previous`.
    pub const ZERO: Self = Self([0; 32]);

    /// 64 lower-case hex digits.
    pub fn to_hex(self) -> String {
        let mut out = String::with_capacity(64);
        push_hex(&mut out, &self.0);
        out
    }
}

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// The canonical bytes of an entry.
pub fn entry_json(entry: &Entry) -> String {
    serde_json::to_string(entry).expect("an entry has string keys and no failing parts")
}

/// The hash of a record.
pub fn hash(previous: Hash, seq: u64, entry: &[u8]) -> Hash {
    let mut sha = Sha256::new();
    sha.update(DOMAIN);
    sha.update(previous.0);
    sha.update(seq.to_be_bytes());
    sha.update(entry);
    Hash(sha.finalize().into())
}

/// A record as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Its place.
    pub seq: u64,
    /// The canonical bytes.
    pub entry: &'a [u8],
    /// As stored.
    pub previous: Hash,
    /// As stored.
    pub hash: Hash,
}

/// The end of a chain, as far as it was walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Place of the last record; 0: none yet.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Head {
    /// Before the first record.
    pub const START: Self = Self { seq: 0, hash: Hash::ZERO };

    /// The end after one more entry.
    #[must_use]
    pub fn after(self, entry: &[u8]) -> Self {
        let seq = self.seq + 1;
        Self { seq, hash: hash(self.hash, seq, entry) }
    }

    /// The end after a stored record, or what is wrong with that record.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence.
    pub fn follow(self, record: Stored<'_>) -> Result<Self, &'static str> {
        let next = self.after(record.entry);
        if record.seq != next.seq {
            Err("its number does not follow the one before")
        } else if record.previous != self.hash {
            Err("it does not name the hash of the record before")
        } else if record.hash != next.hash {
            Err("its hash does not fit its content")
        } else {
            Ok(next)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::record::Kind;
    use jiff::Timestamp;

    #[test]
    fn the_canonical_bytes_are_the_fields_in_order() {
        let mut entry = Entry::new(Timestamp::UNIX_EPOCH, Kind::Intent);
        (entry.tool, entry.call) = (Some("read".into()), Some("c1".into()));
        let text = entry_json(&entry);
        assert_eq!(
            text,
            r#"{"at":"1970-01-01T00:00:00Z","kind":"Intent","call":"c1","tool":"read"}"#
        );
    }

    #[test]
    fn the_hash_is_what_the_documentation_says() {
        // printf 'awaken-journal-v1\n' + 32 zero bytes + 00 00 00 00 00 00 00 01 + '{}' | sha256sum
        let wanted = "0827f589fdf002df90f11dc7ebe58956b6682553ea413235f8e99a671518027a";
        assert_eq!(hash(Hash::ZERO, 1, b"{}").to_hex(), wanted);
    }

    #[test]
    fn each_change_is_seen() {
        let one = Head::START.after(b"{}");
        let two = one.after(b"{\"a\":1}");
        let good = Stored { seq: 2, entry: b"{\"a\":1}", previous: one.hash, hash: two.hash };
        assert_eq!(one.follow(good), Ok(two));
        assert!(one.follow(Stored { entry: b"{\"a\":2}", ..good }).is_err());
        assert!(one.follow(Stored { seq: 3, ..good }).is_err());
        assert!(one.follow(Stored { previous: two.hash, ..good }).is_err());
        assert!(one.follow(Stored { hash: one.hash, ..good }).is_err());
        assert!(Head::START.follow(good).is_err());
    }
}
