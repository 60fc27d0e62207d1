//! A record as a store has it, and the checks that every store makes of one that it reads.

use super::{Chain, ReadError};
use crate::domain::{
    chain::{Hash, Head, Stored},
    record::{Entry, Kind, Record},
};

/// A record as it is stored.
pub(super) struct Raw {
    pub seq: u64,
    pub kind: i64,
    pub call: Option<String>,
    pub previous: Hash,
    pub hash: Hash,
    pub entry: Vec<u8>,
}

/// The part of an entry that has columns of its own. The rest is not looked at, so that a record
/// with words of a later version still fits.
#[derive(serde::Deserialize)]
struct Columns {
    kind: Kind,
    #[serde(default)]
    call: Option<String>,
}

/// The hash in a column. What is no hash becomes one that fits nothing.
pub(super) fn hash_of(column: &[u8]) -> Hash {
    Hash(column.try_into().unwrap_or([0xff; 32]))
}

impl Raw {
    fn corrupt(&self, chain: &Chain, problem: impl ToString) -> ReadError {
        ReadError::Corrupt { chain: chain.to_string(), seq: self.seq, problem: problem.to_string() }
    }

    fn entry(&self, chain: &Chain) -> Result<Entry, ReadError> {
        serde_json::from_slice(&self.entry)
            .map_err(|e| self.corrupt(chain, format!("its entry cannot be read: {e}")))
    }

    /// As those who read a chain see it.
    pub fn record(self, chain: &Chain) -> Result<Record, ReadError> {
        let entry = self.entry(chain)?;
        let (previous, hash) = (self.previous.to_hex(), self.hash.to_hex());
        Ok(Record { seq: self.seq, entry, previous, hash })
    }

    /// The end of the chain after this record, which must fit it, and whose columns must say what
    /// its entry says.
    pub fn follow(&self, chain: &Chain, head: Head) -> Result<Head, ReadError> {
        let Self { seq, previous, hash, .. } = *self;
        let head = head
            .follow(Stored { seq, entry: &self.entry, previous, hash })
            .map_err(|problem| self.corrupt(chain, problem))?;
        let columns: Columns = serde_json::from_slice(&self.entry)
            .map_err(|e| self.corrupt(chain, format!("its entry cannot be read: {e}")))?;
        if columns.kind as i64 != self.kind || columns.call != self.call {
            return Err(self.corrupt(chain, "its kind or call is not that of its entry"));
        }
        Ok(head)
    }
}
