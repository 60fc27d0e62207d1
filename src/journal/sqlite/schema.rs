//! The file of the journal: its tables, their versions, and how a connection is set up.
//!
//! A `place` is one number for chain and record: `chain << 32 | seq`. It is the key of the table,
//! so that a chain lies together in its order and a record costs one tree and one index.
//!
//! The row of a chain is written now and then, not with each record: its last record and its open
//! intents are found in `records`, from what the row says onward.

use super::OpenError;
use crate::{
    domain::chain::{Hash, Head},
    journal::Chain,
};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params, types::ValueRef};
use std::path::Path;

/// "awkj": tells a journal from other SQLite files.
const APPLICATION_ID: i32 = 0x6177_6b6a;

/// One step for each version; `user_version` counts the ones that were made. Steps are only added.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE chains (
        id    INTEGER PRIMARY KEY,
        kind  INTEGER NOT NULL,          -- 0 Session, 1 incarnation
        name  TEXT    NOT NULL,          -- UID of the Session, id of the incarnation
        epoch INTEGER NOT NULL,          -- the highest that was raised
        seq   INTEGER NOT NULL,          -- of the last record
        head  BLOB    NOT NULL,          -- hash of the last record
        UNIQUE (kind, name)
    ) STRICT;
    CREATE TABLE records (
        place    INTEGER PRIMARY KEY,
        chain    INTEGER GENERATED ALWAYS AS (place >> 32) VIRTUAL,
        seq      INTEGER GENERATED ALWAYS AS (place & 4294967295) VIRTUAL,
        kind     INTEGER NOT NULL,       -- 0 Intent, 1 Outcome, 2 Refusal, 3 Lifecycle
        call     TEXT,
        previous BLOB    NOT NULL,
        hash     BLOB    NOT NULL,
        entry    TEXT    NOT NULL        -- the canonical bytes
    ) STRICT;
    CREATE UNIQUE INDEX records_call ON records (call, kind) WHERE kind < 2;
    CREATE TABLE open_intents (
        place INTEGER PRIMARY KEY,
        call  TEXT NOT NULL
    ) STRICT;
",
    "
    DROP TABLE open_intents;
    -- every intent up to this one has its outcome; the rest is looked up
    ALTER TABLE chains ADD COLUMN settled INTEGER NOT NULL DEFAULT 0;
",
];

/// Of the records between two places those that are intents without an outcome.
pub(super) const OPEN: &str = "place > ?1 AND place < ?2 AND kind = 0 AND NOT EXISTS
    (SELECT 1 FROM records AS ended
     WHERE ended.call = records.call AND ended.kind = 1 AND ended.kind < 2)";

/// How sure an append is when it is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// On disk: it survives a loss of power. One fsync for each group of appends.
    #[default]
    Full,
    /// With the kernel: it survives the end of the process, not that of the machine.
    Relaxed,
}

/// Opens the file for writing, made and brought to the present version when needed.
pub(super) fn open_writer(path: &Path, durability: Durability) -> Result<Connection, OpenError> {
    let mut db = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    let mode: String = db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(OpenError::NoWal(path.to_owned()));
    }
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    db.pragma_update(None, "synchronous", synchronous)?;
    db.pragma_update(None, "cache_size", -16_000)?;
    // The log is cut back to this after it was carried over, should a reader have let it grow.
    db.query_row("PRAGMA journal_size_limit = 67108864", [], |_| Ok(()))?;
    migrate(&mut db, path)?;
    Ok(db)
}

fn version(db: &Connection, path: &Path) -> Result<usize, OpenError> {
    let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let id: i32 = db.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if id != APPLICATION_ID && (id != 0 || version != 0 || tables != 0) {
        return Err(OpenError::NotAJournal(path.to_owned()));
    }
    match usize::try_from(version) {
        Ok(version) if version <= MIGRATIONS.len() => Ok(version),
        _ => Err(OpenError::Newer { path: path.to_owned(), version }),
    }
}

fn migrate(db: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let done = version(db, path)?;
    for (i, step) in MIGRATIONS.iter().enumerate().skip(done) {
        let step_tx = db.transaction()?;
        step_tx.execute_batch(step)?;
        step_tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        step_tx.pragma_update(None, "user_version", i as i64 + 1)?;
        step_tx.commit()?;
    }
    Ok(())
}

/// Opens the file for reading alone: beside a writer, without one, or as a copy in a folder that
/// cannot be written.
pub(in crate::journal) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |db: rusqlite::Result<Connection>| {
        let db = db?;
        db.busy_timeout(std::time::Duration::from_secs(5))?;
        match version(&db, path)? {
            0 => Err(OpenError::NotAJournal(path.to_owned())),
            _ => Ok(db),
        }
    };
    let opened = open(Connection::open_with_flags(path, flags));
    let log = path
        .with_file_name(format!("{}-wal", path.file_name().unwrap_or_default().to_string_lossy()));
    match opened {
        // A file in WAL mode wants an index beside it, which cannot be made; without a log it is
        // not needed.
        Err(OpenError::Sqlite(error)) if path.exists() && !log.exists() => {
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            let mut uri = String::from("file:");
            for byte in path.as_os_str().as_encoded_bytes() {
                match char::from(*byte) {
                    c if plain(c) => uri.push(c),
                    _ => uri.push_str(&format!("%{byte:02x}")),
                }
            }
            uri.push_str("?immutable=1");
            let flags = flags | OpenFlags::SQLITE_OPEN_URI;
            open(Connection::open_with_flags(uri, flags)).map_err(|_| OpenError::Sqlite(error))
        }
        other => other,
    }
}

/// What a chain is called in the table.
pub(super) fn chain_columns(chain: &Chain) -> (i64, &str) {
    match chain {
        Chain::Session(uid) => (0, uid),
        Chain::Incarnation(id) => (1, id),
    }
}

/// The row of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainRow {
    pub id: i64,
    pub epoch: i64,
    /// The last record when the row was written.
    pub noted: Head,
    /// Every intent up to this one has its outcome.
    pub settled: u64,
}

impl ChainRow {
    /// The places between which open intents stand.
    pub fn unsettled(&self) -> [i64; 2] {
        [place(self.id, self.settled), place(self.id + 1, 0)]
    }
}

/// Finds a chain.
pub(super) fn find_chain(db: &Connection, chain: &Chain) -> rusqlite::Result<Option<ChainRow>> {
    let (kind, name) = chain_columns(chain);
    let sql = "SELECT id, epoch, seq, head, settled FROM chains WHERE kind = ?1 AND name = ?2";
    db.prepare_cached(sql)?
        .query_row(params![kind, name], |row| {
            let (seq, hash): (i64, [u8; 32]) = (row.get(2)?, row.get(3)?);
            let noted = Head { seq: seq.cast_unsigned(), hash: Hash(hash) };
            let settled = row.get::<_, i64>(4)?.cast_unsigned();
            Ok(ChainRow { id: row.get(0)?, epoch: row.get(1)?, noted, settled })
        })
        .optional()
}

/// The last record of a chain.
pub(super) fn last(db: &Connection, chain: i64) -> rusqlite::Result<Head> {
    let sql = "SELECT place, hash FROM records WHERE place > ?1 AND place < ?2
               ORDER BY place DESC LIMIT 1";
    let found = db
        .prepare_cached(sql)?
        .query_row([place(chain, 0), place(chain + 1, 0)], |row| {
            let (place, hash): (i64, ValueRef<'_>) = (row.get(0)?, row.get_ref(1)?);
            // What is no hash becomes one that fits nothing.
            let hash = hash.as_blob().ok().and_then(|b| b.try_into().ok()).unwrap_or([0xff; 32]);
            let seq = place.cast_unsigned() & u64::from(u32::MAX);
            Ok(Head { seq, hash: Hash(hash) })
        })
        .optional()?;
    Ok(found.unwrap_or(Head::START))
}

/// The place of record `seq` of a chain; `seq` 0 is before the first.
pub(super) fn place(chain: i64, seq: u64) -> i64 {
    (chain << 32) | seq.cast_signed()
}
