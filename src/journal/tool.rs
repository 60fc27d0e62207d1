//! `awaken journal verify` and `awaken journal export`, without flags and process: they read a
//! journal's file, beside a gateway that writes it or as a copy, and write text.
//!
//! Both check every hash on the way. Nothing is ever written to the journal.

use super::{
    Chain, ReadError,
    sqlite::{OpenError, reader, schema},
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
    Open(#[from] OpenError),
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

/// Walks every chain and writes a line for each: its name, its number of records and the hash of
/// the last one, or the first record that does not fit. A sum ends the text.
///
/// # Errors
/// If the file cannot be opened or read. A damaged record is no error but counted.
pub fn verify(path: &Path, out: &mut dyn Write) -> Result<Verified, ToolError> {
    let db = schema::open_reader(path)?;
    let mut sum = Verified::default();
    for chain in reader::chains(&db)? {
        sum.chains += 1;
        match reader::walk(&db, &chain, |_| Ok::<_, ReadError>(())) {
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
/// If the file cannot be opened or read, or a record does not fit: what stands after it would be
/// worth nothing.
pub fn export(path: &Path, only: Option<&Chain>, out: &mut dyn Write) -> Result<u64, ToolError> {
    let db = schema::open_reader(path)?;
    let mut count = 0;
    for chain in reader::chains(&db)?.iter().filter(|chain| only.is_none_or(|o| o == *chain)) {
        let name = serde_json::to_string(&chain.to_string()).map_err(io::Error::from)?;
        reader::walk(&db, chain, |raw| {
            write_line(out, &name, raw.seq, &raw.entry, raw.previous, raw.hash)
                .map_err(ToolError::Write)?;
            count += 1;
            Ok::<_, ToolError>(())
        })?;
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
