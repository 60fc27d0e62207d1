//! `awaken journal verify` and `awaken journal export`, without flags and process: they read a
//! journal, beside a gateway that writes it or as a copy of its file, and write text.
//!
//! Both check every hash on the way. Nothing is ever written to the journal.

use super::{
    Chain, ReadError,
    postgres::{self, Database, reader::Reader},
    sqlite::{self, reader, schema},
    stored::Raw,
};
use crate::domain::chain::{Hash, Head};
use std::{
    io::{self, Write},
    path::Path,
};

/// Why a journal could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] sqlite::OpenError),
    /// The database cannot be reached.
    #[error(transparent)]
    Connect(#[from] postgres::OpenError),
    /// It cannot be read, or a record that was to be exported is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The text cannot be written.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
}

/// What a check found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Chains that were walked.
    pub chains: u64,
    /// Records that fit their chain.
    pub records: u64,
    /// Chains with a record that does not.
    pub bad: u64,
}

/// A journal that is read only.
pub struct Source(Inner);

enum Inner {
    File(rusqlite::Connection),
    Database(Reader),
}

impl Source {
    /// A journal's file.
    ///
    /// # Errors
    /// If it cannot be opened or is no journal.
    pub fn file(path: &Path) -> Result<Self, ToolError> {
        Ok(Self(Inner::File(schema::open_reader(path)?)))
    }

    /// A journal's database. It is connected to when it is read.
    pub fn database(database: Database) -> Self {
        Self(Inner::Database(Reader::new(database)))
    }

    async fn chains(&self) -> Result<Vec<Chain>, ReadError> {
        match &self.0 {
            Inner::File(db) => reader::chains(db),
            Inner::Database(reader) => reader.chains().await,
        }
    }

    async fn walk<E: From<ReadError>>(
        &self,
        chain: &Chain,
        each: impl FnMut(&Raw) -> Result<(), E> + Send,
    ) -> Result<Head, E> {
        match &self.0 {
            Inner::File(db) => reader::walk(db, chain, each),
            Inner::Database(reader) => reader.walk(chain, each).await,
        }
    }
}

/// Walks every chain and writes a line for each: its name, its number of records and the hash of
/// the last one, or the first record that does not fit. A sum ends the text.
///
/// # Errors
/// If the journal cannot be read. A damaged record is no error but counted.
pub async fn verify(source: &Source, out: &mut (dyn Write + Send)) -> Result<Verified, ToolError> {
    let mut sum = Verified::default();
    for chain in source.chains().await? {
        sum.chains += 1;
        match source.walk(&chain, |_| Ok::<_, ReadError>(())).await {
            Ok(Head { seq, hash }) => {
                sum.records += seq;
                writeln!(out, "{chain}  {seq} records  {}", hash.to_hex())?;
            }
            Err(problem @ ReadError::Corrupt { .. }) => {
                sum.bad += 1;
                writeln!(out, "{chain}  BAD  {problem}")?;
            }
            Err(problem) => return Err(problem.into()),
        }
    }
    writeln!(out, "{} chains, {} records, {} bad", sum.chains, sum.records, sum.bad)?;
    Ok(sum)
}

/// Writes records as JSON, one a line, chain after chain: a record as the trace shows it, with the
/// name of its chain before. The entry's canonical bytes stand in it as they were hashed. Gives
/// the number of records.
///
/// # Errors
/// If the journal cannot be read, or a record does not fit: what stands after it would be worth
/// nothing.
pub async fn export(
    source: &Source,
    only: Option<&Chain>,
    out: &mut (dyn Write + Send),
) -> Result<u64, ToolError> {
    let mut count = 0;
    for chain in source.chains().await?.iter().filter(|chain| only.is_none_or(|o| o == *chain)) {
        let name = serde_json::to_string(&chain.to_string()).map_err(io::Error::from)?;
        let each = |raw: &Raw| {
            write_line(out, &name, raw.seq, &raw.entry, raw.previous, raw.hash)
                .map_err(ToolError::Write)?;
            count += 1;
            Ok::<_, ToolError>(())
        };
        source.walk(chain, each).await?;
    }
    Ok(count)
}

fn write_line(
    out: &mut dyn Write,
    chain: &str,
    seq: u64,
    entry: &[u8],
    previous: Hash,
    hash: Hash,
) -> io::Result<()> {
    // The entry was read as an object of our own form: it begins and ends with a brace.
    let fields = entry.get(1..entry.len().saturating_sub(1)).unwrap_or_default();
    write!(out, "{{\"chain\":{chain},\"seq\":{seq},")?;
    out.write_all(fields)?;
    let (previous, hash) = (previous.to_hex(), hash.to_hex());
    writeln!(out, ",\"previous\":\"{previous}\",\"hash\":\"{hash}\"}}")
}
