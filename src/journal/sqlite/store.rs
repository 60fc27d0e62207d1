//! The writing connection: takes a batch, makes one transaction of it, and says of each part how
//! it went. Blocking; runs on the writer's thread alone.
//!
//! What it knows of chains is a copy of what the file says. After a failure the copy and the
//! connection are thrown away, and the next batch begins with what the file says then.

use super::schema::{self, Durability, OPEN, place};
use crate::{
    domain::{
        chain::Head,
        record::{Entry, Kind},
    },
    journal::{
        AppendError, Chain,
        queue::{Answer, Request},
        rules::{Past, State},
    },
};
use rusqlite::{Connection, params};
use std::{collections::HashMap, path::PathBuf};

/// More chains than this are not kept in mind between batches.
const MAX_CHAINS: usize = 4096;
/// A chain's row is written again when it is this many records behind.
const NOTE_EVERY: u64 = 256;
/// The last place of a chain.
const MAX_SEQ: u64 = u32::MAX as u64;

struct Known {
    id: i64,
    state: State,
    /// What its row says: the last record and the epoch.
    noted: (u64, i64),
    /// Whether the row is to be written with the present batch.
    due: bool,
}

/// What is known of chains, and whose rows are to be written with the present batch.
#[derive(Default)]
struct Chains {
    places: HashMap<Chain, usize>,
    known: Vec<Known>,
    due: Vec<usize>,
}

pub(super) struct Store {
    path: PathBuf,
    durability: Durability,
    db: Option<Connection>,
    chains: Chains,
}

impl Store {
    pub fn open(path: PathBuf, durability: Durability) -> Result<Self, super::OpenError> {
        let db = Some(schema::open_writer(&path, durability)?);
        Ok(Self { path, durability, db, chains: Chains::default() })
    }

    /// One transaction for the batch. Either what it answers holds, durably, or every part is
    /// answered as `Unavailable` and nothing is known to be written.
    pub fn commit(&mut self, batch: &[Request]) -> Vec<Answer> {
        let result = match self.connected() {
            Ok(db) => commit(&db, &mut self.chains, batch).map(|answers| (db, answers)),
            Err(problem) => Err(problem),
        };
        match result {
            Ok((db, answers)) => {
                self.db = Some(db);
                answers
            }
            Err(problem) => {
                self.chains = Chains::default();
                batch.iter().map(|_| Err(AppendError::Unavailable(problem.clone()))).collect()
            }
        }
    }

    /// Writes the row of every chain that is behind, so that a file at rest says where each ends.
    /// Nothing depends on it.
    pub fn note(&mut self) {
        let Some(db) = &self.db else { return };
        for known in self.chains.known.iter_mut().filter(|k| k.noted.0 < k.state.head.seq) {
            if let Err(error) = write_chain(db, known) {
                tracing::warn!(%error, "the end of a chain is not noted");
            }
        }
    }

    fn connected(&mut self) -> Result<Connection, String> {
        match self.db.take() {
            Some(db) => Ok(db),
            None => schema::open_writer(&self.path, self.durability).map_err(|e| e.to_string()),
        }
    }
}

fn commit(db: &Connection, chains: &mut Chains, batch: &[Request]) -> Result<Vec<Answer>, String> {
    if chains.known.len() > MAX_CHAINS {
        *chains = Chains::default();
    }
    let result = (|| {
        db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut answers = Vec::with_capacity(batch.len());
        for request in batch {
            answers.push(handle(db, chains, request)?);
        }
        for place in chains.due.drain(..) {
            write_chain(db, &mut chains.known[place])?;
        }
        db.prepare_cached("COMMIT")?.execute([])?;
        Ok(answers)
    })();
    // The connection is dropped after an error, and an open transaction with it.
    result.map_err(|e: rusqlite::Error| e.to_string())
}

fn handle(db: &Connection, chains: &mut Chains, request: &Request) -> rusqlite::Result<Answer> {
    let place = chains.place(db, request.chain())?;
    let known = &mut chains.known[place];
    let answer = match request {
        Request::Append { chain, epoch, entry, json } => {
            append(db, known, chain, *epoch, entry, json)?
        }
        Request::Raise { epoch, .. } => known.state.raise(*epoch).map(|()| known.state.position()),
    };
    let (seq, epoch) = known.noted;
    let behind = known.state.epoch != epoch || known.state.head.seq >= seq + NOTE_EVERY;
    if behind && !known.due {
        known.due = true;
        chains.due.push(place);
    }
    Ok(answer)
}

fn append(
    db: &Connection,
    known: &mut Known,
    chain: &Chain,
    epoch: i64,
    entry: &Entry,
    json: &str,
) -> rusqlite::Result<Answer> {
    /// Either of what stops an append: a rule, or the file.
    enum Stop {
        Rule(AppendError),
        File(rusqlite::Error),
    }
    impl From<AppendError> for Stop {
        fn from(rule: AppendError) -> Self {
            Self::Rule(rule)
        }
    }
    let past = |call: &str| past(db, call).map_err(Stop::File);
    match known.state.check(chain, epoch, entry, past) {
        Ok(()) => {}
        Err(Stop::Rule(rule)) => return Ok(Err(rule)),
        Err(Stop::File(error)) => return Err(error),
    }
    let previous = known.state.head;
    if previous.seq == MAX_SEQ {
        return Ok(Err(AppendError::Unavailable("the chain is full".into())));
    }
    let next = previous.after(json.as_bytes());
    if !insert(db, known.id, previous, next, entry, json)? {
        return Ok(Err(AppendError::BadEntry("the call has an intent already")));
    }
    known.state.take(entry, next);
    Ok(Ok(known.state.position()))
}

/// Writes the record; false if an intent of the call is there already.
fn insert(
    db: &Connection,
    chain: i64,
    previous: Head,
    next: Head,
    entry: &Entry,
    json: &str,
) -> rusqlite::Result<bool> {
    const SQL: &str = "INSERT INTO records (place, kind, call, previous, hash, entry)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let place = place(chain, next.seq);
    let values = params![place, entry.kind as i64, entry.call, previous.hash.0, next.hash.0, json];
    match db.prepare_cached(SQL)?.execute(values) {
        Ok(_) => Ok(true),
        Err(rusqlite::Error::SqliteFailure(e, _))
            if e.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn past(db: &Connection, call: &str) -> rusqlite::Result<Past> {
    let ended = db
        // the second half says that the index can be used
        .prepare_cached("SELECT 1 FROM records WHERE call = ?1 AND kind = ?2 AND kind < 2")?
        .exists(params![call, Kind::Outcome as i64])?;
    Ok(if ended { Past::Ended } else { Past::NotEnded })
}

impl Chains {
    /// Where the chain is in `known`; read from the file, or made there, when it is not yet.
    fn place(&mut self, db: &Connection, chain: &Chain) -> rusqlite::Result<usize> {
        if let Some(place) = self.places.get(chain) {
            return Ok(*place);
        }
        self.known.push(load(db, chain)?);
        let place = self.known.len() - 1;
        self.places.insert(chain.clone(), place);
        Ok(place)
    }
}

fn load(db: &Connection, chain: &Chain) -> rusqlite::Result<Known> {
    let Some(row) = schema::find_chain(db, chain)? else {
        let (kind, name) = schema::chain_columns(chain);
        db.prepare_cached(
            "INSERT INTO chains (kind, name, epoch, seq, head) VALUES (?1, ?2, 0, 0, ?3)",
        )?
        .execute(params![kind, name, Head::START.hash.0])?;
        let id = db.last_insert_rowid();
        return Ok(Known { id, state: State::default(), noted: (0, 0), due: false });
    };
    let sql = format!("SELECT call, place FROM records WHERE {OPEN}");
    let open = db
        .prepare_cached(&sql)?
        .query_map(row.unsettled(), |open| {
            let place: i64 = open.get(1)?;
            Ok((open.get(0)?, place.cast_unsigned() & MAX_SEQ))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let state = State { head: schema::last(db, row.id)?, epoch: row.epoch, open };
    Ok(Known { id: row.id, state, noted: (row.noted.seq, row.epoch), due: false })
}

fn write_chain(db: &Connection, known: &mut Known) -> rusqlite::Result<()> {
    let State { head, epoch, .. } = &known.state;
    let settled = known.state.settled();
    let sql = "UPDATE chains SET epoch = ?2, seq = ?3, head = ?4, settled = ?5 WHERE id = ?1";
    let seq = head.seq.cast_signed();
    let values = params![known.id, epoch, seq, head.hash.0, settled.cast_signed()];
    db.prepare_cached(sql)?.execute(values)?;
    (known.noted, known.due) = ((head.seq, *epoch), false);
    Ok(())
}
