//! Reading the file: pages, open intents, and the walk along a chain. Blocking; the connections
//! are not the writer's, and no read holds a snapshot for longer than one page, so that the
//! write-ahead log can be carried over in between.

use super::schema::{self, OPEN, place};
use crate::{
    domain::{chain::Head, record::Record},
    journal::{
        Chain, MAX_PAGE, ReadError,
        stored::{Raw, hash_of},
    },
};
use rusqlite::{Connection, Row, params, types::ValueRef};

fn unavailable(error: rusqlite::Error) -> ReadError {
    ReadError::Unavailable(error.to_string())
}

const COLUMNS: &str = "place, kind, call, previous, hash, entry";

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    let place: i64 = row.get(0)?;
    // Damaged text is for the hash to find, not for the database.
    let bytes = |column| -> rusqlite::Result<Vec<u8>> {
        Ok(match row.get_ref(column)? {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
            _ => vec![],
        })
    };
    let call = match row.get_ref(2)? {
        ValueRef::Null => None,
        _ => Some(String::from_utf8_lossy(&bytes(2)?).into_owned()),
    };
    Ok(Raw {
        seq: place.cast_unsigned() & u64::from(u32::MAX),
        kind: row.get(1)?,
        call,
        previous: hash_of(&bytes(3)?),
        hash: hash_of(&bytes(4)?),
        entry: bytes(5)?,
    })
}

fn raw_page(db: &Connection, chain: i64, after: u64, limit: usize) -> Result<Vec<Raw>, ReadError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM records WHERE place > ?1 AND place < ?2 ORDER BY place LIMIT ?3"
    );
    let after = after.min(u64::from(u32::MAX));
    let values = params![place(chain, after), place(chain + 1, 0), limit.min(MAX_PAGE) as i64];
    let mut statement = db.prepare_cached(&sql).map_err(unavailable)?;
    let rows = statement.query_map(values, raw).map_err(unavailable)?;
    rows.collect::<rusqlite::Result<_>>().map_err(unavailable)
}

pub(super) fn page(
    db: &Connection,
    chain: &Chain,
    after: u64,
    limit: usize,
) -> Result<Vec<Record>, ReadError> {
    let Some(row) = schema::find_chain(db, chain).map_err(unavailable)? else { return Ok(vec![]) };
    raw_page(db, row.id, after, limit)?.into_iter().map(|raw| raw.record(chain)).collect()
}

pub(super) fn end(db: &Connection, chain: &Chain) -> Result<u64, ReadError> {
    let Some(row) = schema::find_chain(db, chain).map_err(unavailable)? else { return Ok(0) };
    Ok(schema::last(db, row.id).map_err(unavailable)?.seq)
}

pub(super) fn open_intents(db: &Connection, chain: &Chain) -> Result<Vec<Record>, ReadError> {
    let Some(row) = schema::find_chain(db, chain).map_err(unavailable)? else { return Ok(vec![]) };
    let sql = format!("SELECT {COLUMNS} FROM records WHERE {OPEN} ORDER BY place");
    let mut statement = db.prepare_cached(&sql).map_err(unavailable)?;
    let rows = statement.query_map(row.unsettled(), raw).map_err(unavailable)?;
    rows.map(|row| row.map_err(unavailable)?.record(chain)).collect()
}

pub(in crate::journal) fn chains(db: &Connection) -> Result<Vec<Chain>, ReadError> {
    let mut statement =
        db.prepare_cached("SELECT kind, name FROM chains ORDER BY id").map_err(unavailable)?;
    let rows = statement
        .query_map([], |row| {
            let (kind, name): (i64, String) = (row.get(0)?, row.get(1)?);
            Ok(if kind == 0 { Chain::Session(name) } else { Chain::Incarnation(name) })
        })
        .map_err(unavailable)?;
    rows.collect::<rusqlite::Result<_>>().map_err(unavailable)
}

/// Walks a chain from its first record to what was its last when the walk began, compares every
/// hash, and hands each record that fits to `each`. Gives the end of the chain.
pub(in crate::journal) fn walk<E: From<ReadError>>(
    db: &Connection,
    chain: &Chain,
    mut each: impl FnMut(&Raw) -> Result<(), E>,
) -> Result<Head, E> {
    let found = schema::find_chain(db, chain).map_err(unavailable)?;
    let Some(row) = found else { return Ok(Head::START) };
    let last = schema::last(db, row.id).map_err(unavailable)?;
    let mut head = Head::START;
    let mut as_noted = row.noted == head;
    while head.seq < last.seq {
        let left = usize::try_from(last.seq - head.seq).unwrap_or(MAX_PAGE);
        let page = raw_page(db, row.id, head.seq, left)?;
        if page.is_empty() {
            break;
        }
        for raw in &page {
            head = raw.follow(chain, head)?;
            as_noted |= row.noted == head;
            each(raw)?;
        }
    }
    if !as_noted {
        let problem = "the chain is not as it is noted beside it: records are missing";
        let (chain, seq) = (chain.to_string(), head.seq + 1);
        return Err(ReadError::Corrupt { chain, seq, problem: problem.into() }.into());
    }
    Ok(head)
}
