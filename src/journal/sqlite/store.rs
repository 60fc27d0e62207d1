//! The writing connection: takes a batch, makes one transaction of it, and says of each part how
//! it went. Blocking; runs on the writer's thread alone.
//!
//! What it knows of chains is a copy of what the file says. After a failure the copy and the
//! connection are thrown away, and the next batch begins with what the file says then.

use super::schema::{self, Durability, place};
use crate::{
    domain::{
        chain::Head,
        record::{Entry, Kind},
    },
    journal::{
        AppendError, Chain, Position,
        rules::{Past, State},
    },
};
use rusqlite::{Connection, params};
use std::{collections::HashMap, path::PathBuf};

/// More chains than this are not kept in mind between batches.
const MAX_CHAINS: usize = 4096;
/// The last place of a chain.
const MAX_SEQ: u64 = u32::MAX as u64;

/// What is asked of the store.
pub(super) enum Request {
    /// Append the entry, whose canonical JSON comes with it.
    Append { chain: Chain, epoch: i64, entry: Box<Entry>, json: String },
    /// Raise the epoch.
    Raise { chain: Chain, epoch: i64 },
}

/// The place of the record; of a raised epoch: that of the last record there is.
pub(super) type Answer = Result<Position, AppendError>;

struct Known {
    id: i64,
    state: State,
    /// Whether the present batch changed it.
    changed: bool,
}

/// What is known of chains, and which of them the present batch changed.
#[derive(Default)]
struct Chains {
    places: HashMap<Chain, usize>,
    known: Vec<Known>,
    changed: Vec<usize>,
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
        for place in chains.changed.drain(..) {
            write_chain(db, &mut chains.known[place])?;
        }
        db.prepare_cached("COMMIT")?.execute([])?;
        Ok(answers)
    })();
    // The connection is dropped after an error, and an open transaction with it.
    result.map_err(|e: rusqlite::Error| e.to_string())
}

fn handle(db: &Connection, chains: &mut Chains, request: &Request) -> rusqlite::Result<Answer> {
    let (Request::Append { chain, .. } | Request::Raise { chain, .. }) = request;
    let place = chains.place(db, chain)?;
    let known = &mut chains.known[place];
    let before = (known.state.head, known.state.epoch);
    let answer = match request {
        Request::Append { epoch, entry, json, .. } => {
            append(db, known, chain, *epoch, entry, json)?
        }
        Request::Raise { epoch, .. } => known.state.raise(*epoch).map(|()| known.state.position()),
    };
    if before != (known.state.head, known.state.epoch) && !known.changed {
        known.changed = true;
        chains.changed.push(place);
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
    match (entry.kind, entry.call.as_deref()) {
        (Kind::Intent, Some(call)) => {
            db.prepare_cached("INSERT INTO open_intents (place, call) VALUES (?1, ?2)")?
                .execute(params![place(known.id, next.seq), call])?;
        }
        (Kind::Outcome, Some(call)) => {
            let intent = known.state.open.get(call).copied().unwrap_or_default();
            db.prepare_cached("DELETE FROM open_intents WHERE place = ?1")?
                .execute([place(known.id, intent)])?;
        }
        _ => {}
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
        .prepare_cached("SELECT 1 FROM records WHERE call = ?1 AND kind = ?2")?
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
        return Ok(Known { id, state: State::default(), changed: false });
    };
    let open = db
        .prepare_cached("SELECT call, place FROM open_intents WHERE place > ?1 AND place < ?2")?
        .query_map([place(row.id, 0), place(row.id + 1, 0)], |open| {
            let place: i64 = open.get(1)?;
            Ok((open.get(0)?, place.cast_unsigned() & MAX_SEQ))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let state = State { head: row.head, epoch: row.epoch, open };
    Ok(Known { id: row.id, state, changed: false })
}

fn write_chain(db: &Connection, known: &mut Known) -> rusqlite::Result<()> {
    known.changed = false;
    let State { head, epoch, .. } = &known.state;
    db.prepare_cached("UPDATE chains SET epoch = ?2, seq = ?3, head = ?4 WHERE id = ?1")?
        .execute(params![known.id, epoch, head.seq.cast_signed(), head.hash.0])?;
    Ok(())
}
