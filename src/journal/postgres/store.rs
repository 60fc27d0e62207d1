//! The writing connection: makes one statement of a batch, and says of each part how it went.
//!
//! What it knows of chains is a copy of what the database says. A chain that another gateway moved
//! on is not written but read again. After a failure everything is read again, and before anything
//! is written a second time it is looked up whether the first statement did come through.

use super::{
    connect::{Database, STATEMENT, describe, within},
    statements::{CALLS, LOAD, MAKE, WRITE, WRITTEN},
};
use crate::{
    domain::{
        chain::{Hash, Head},
        record::Kind,
    },
    journal::{
        AppendError, Chain, Position,
        queue::{Answer, Request},
        rules::{Past, State},
        stored::hash_of,
    },
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};
use tokio_postgres::{Client, Statement, error::SqlState};

/// More chains than this are not kept in mind between batches.
const MAX_CHAINS: usize = 4096;
/// How long a batch waits for a database that was there a moment ago.
const PATIENCE: Duration = Duration::from_secs(5);
/// The wait between two tries.
const AGAIN: Duration = Duration::from_millis(100);
/// How often in a row other writers may come first.
const MAX_ROUNDS: u32 = 16;

/// A chain as the database has it.
struct Known {
    id: i64,
    state: State,
}

/// A connection, and the statement that is sent again and again.
struct Connection {
    client: Client,
    write: Statement,
}

pub(super) struct Store {
    database: Database,
    connection: Option<Connection>,
    known: HashMap<Chain, Known>,
    /// An index said that a call is there already: calls are looked up before the next write.
    doubtful: bool,
}

/// What of a batch has no answer yet.
struct Pending {
    /// Where it stands in the batch.
    index: usize,
    /// The records (chain, place, hash) that statements without an answer may have written.
    tried: Vec<(i64, i64, Hash)>,
}

/// How a chain moves with one statement.
struct Move {
    id: i64,
    was: (u64, i64),
}

/// The records of one statement, a list for each column.
#[derive(Default)]
struct Rows<'a> {
    chain: Vec<i64>,
    seq: Vec<i64>,
    kind: Vec<i16>,
    call: Vec<Option<&'a str>>,
    previous: Vec<Vec<u8>>,
    hash: Vec<Vec<u8>>,
    entry: Vec<&'a [u8]>,
}

impl Store {
    /// Connects when there is something to write.
    pub fn new(database: Database) -> Self {
        Self { database, connection: None, known: HashMap::new(), doubtful: false }
    }

    /// Writes the batch. Either what it answers holds, as durably as the database commits, or the
    /// part is answered as `Unavailable`, and it is not known whether it is written. With `failing`
    /// a database that is away is not waited for.
    pub async fn commit(&mut self, batch: &[Request], failing: bool) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = batch.iter().map(|_| None).collect();
        let pending = |index| Pending { index, tried: vec![] };
        let mut pending: Vec<_> = (0..batch.len()).map(pending).collect();
        let (begin, mut rounds) = (Instant::now(), 0);
        while !pending.is_empty() {
            let problem = match self.attempt(batch, &mut pending, &mut answers).await {
                Ok(()) if rounds < MAX_ROUNDS => {
                    rounds += 1;
                    continue;
                }
                Ok(()) if pending.is_empty() => break,
                Ok(()) => "other writers always came first".to_owned(),
                Err(problem) => {
                    self.known.clear();
                    if self.connection.as_ref().is_some_and(|c| c.client.is_closed()) {
                        self.connection = None;
                    }
                    problem
                }
            };
            if failing || begin.elapsed() > PATIENCE {
                for Pending { index, .. } in pending.drain(..) {
                    answers[index] = Some(Err(AppendError::Unavailable(problem.clone())));
                }
            } else {
                tokio::time::sleep(AGAIN).await;
            }
        }
        let lost = || Err(AppendError::Unavailable("the writer lost it".into()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
    }

    /// One statement for what is pending; what it did not answer stays pending.
    async fn attempt(
        &mut self,
        batch: &[Request],
        pending: &mut Vec<Pending>,
        answers: &mut [Option<Answer>],
    ) -> Result<(), String> {
        if self.connection.is_none() {
            let client = self.database.connect().await.map_err(|e| e.to_string())?;
            let write = within(STATEMENT, client.prepare(WRITE)).await?;
            self.connection = Some(Connection { client, write });
        }
        self.load(batch, pending).await?;
        self.find_written(pending, answers).await?;
        let past = self.past(batch, pending).await?;
        self.write(batch, pending, answers, &past).await
    }

    fn client(&self) -> Result<&Client, String> {
        self.connection.as_ref().map(|c| &c.client).ok_or_else(|| "no connection".to_owned())
    }

    /// Reads the chains that are not known yet; makes the rows of new ones.
    async fn load(&mut self, batch: &[Request], pending: &[Pending]) -> Result<(), String> {
        if self.known.len() > MAX_CHAINS {
            self.known.clear();
        }
        let mut missing: BTreeMap<String, &Chain> = BTreeMap::new();
        for Pending { index, .. } in pending {
            let chain = batch[*index].chain();
            if !self.known.contains_key(chain) {
                missing.insert(chain.to_string(), chain);
            }
        }
        for round in 0..2 {
            if missing.is_empty() {
                return Ok(());
            }
            let client = self.client()?;
            let names: Vec<&str> = missing.keys().map(String::as_str).collect();
            if round == 1 {
                let start = &Head::START.hash.0[..];
                within(STATEMENT, client.execute(MAKE, &[&names, &start])).await?;
            }
            for row in within(STATEMENT, client.query(LOAD, &[&names])).await? {
                let Some(chain) = missing.remove(row.get::<_, &str>(0)) else { continue };
                let seq = row.get::<_, i64>(3).cast_unsigned();
                let (calls, places): (Vec<String>, Vec<i64>) = (row.get(5), row.get(6));
                let places = places.into_iter().map(i64::cast_unsigned);
                let state = State {
                    head: Head { seq, hash: hash_of(row.get(4)) },
                    epoch: row.get(2),
                    open: calls.into_iter().zip(places).collect(),
                };
                self.known.insert(chain.clone(), Known { id: row.get(1), state });
            }
        }
        if missing.is_empty() { Ok(()) } else { Err("a chain's row is gone".into()) }
    }

    /// Answers what an earlier statement did write, though its answer was lost.
    async fn find_written(
        &self,
        pending: &mut Vec<Pending>,
        answers: &mut [Option<Answer>],
    ) -> Result<(), String> {
        let tried = || pending.iter().flat_map(|p| &p.tried);
        let (chains, places): (Vec<i64>, Vec<i64>) = tried().map(|t| (t.0, t.1)).unzip();
        if chains.is_empty() {
            return Ok(());
        }
        let client = self.client()?;
        let found = within(STATEMENT, client.query(WRITTEN, &[&chains, &places])).await?;
        let hashes: HashMap<(i64, i64), Hash> =
            found.iter().map(|row| ((row.get(0), row.get(1)), hash_of(row.get(2)))).collect();
        pending.retain(|p| {
            let there = p.tried.iter().find(|t| hashes.get(&(t.0, t.1)) == Some(&t.2));
            let Some((_, seq, hash)) = there else { return true };
            let position = Position { seq: seq.cast_unsigned(), hash: hash.to_hex() };
            answers[p.index] = Some(Ok(position));
            false
        });
        Ok(())
    }

    /// The records that there are of calls which are not open here, and of all when in doubt.
    async fn past(
        &self,
        batch: &[Request],
        pending: &[Pending],
    ) -> Result<HashSet<(String, i16)>, String> {
        let mut calls = vec![];
        for Pending { index, .. } in pending {
            let Request::Append { chain, entry, .. } = &batch[*index] else { continue };
            let Some(call) = entry.call.as_deref() else { continue };
            let open = || self.known.get(chain).is_some_and(|k| k.state.open.contains_key(call));
            if self.doubtful || (entry.kind == Kind::Outcome && !open()) {
                calls.push(call);
            }
        }
        if calls.is_empty() {
            return Ok(HashSet::new());
        }
        let found = within(STATEMENT, self.client()?.query(CALLS, &[&calls])).await?;
        Ok(found.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    async fn write(
        &mut self,
        batch: &[Request],
        pending: &mut Vec<Pending>,
        answers: &mut [Option<Answer>],
        past: &HashSet<(String, i16)>,
    ) -> Result<(), String> {
        let mut moves: HashMap<&Chain, Move> = HashMap::new();
        let (mut rows, mut met) = (Rows::default(), HashSet::new());
        let mut taken: Vec<(usize, &Chain, Position)> = vec![];
        let mut refused: Vec<(usize, &Chain, AppendError)> = vec![];
        pending.retain_mut(|p| {
            let request = &batch[p.index];
            let chain = request.chain();
            let Some(known) = self.known.get_mut(chain) else { return true };
            let was = (known.state.head.seq, known.state.epoch);
            match take(known, request, past, &mut met, &mut rows) {
                Ok(position) => {
                    moves.entry(chain).or_insert(Move { id: known.id, was });
                    if let Request::Append { .. } = request {
                        let Head { seq, hash } = known.state.head;
                        p.tried.push((known.id, seq.cast_signed(), hash));
                    }
                    taken.push((p.index, chain, position));
                    true
                }
                Err(rule) => {
                    // it may rest on a record of this batch: told once that is durable
                    refused.push((p.index, chain, rule));
                    true
                }
            }
        });
        let sent = match moves.is_empty() {
            true => Ok(HashSet::new()),
            false => self.send(&moves, &rows).await,
        };
        let moved = match sent {
            Ok(moved) => moved,
            Err(Refused::Call) => {
                self.doubtful = true;
                return Err("a call has a record already".into());
            }
            Err(Refused::Other(problem)) => return Err(problem),
        };
        self.doubtful = false;
        let mut done = HashSet::new();
        for (index, chain, position) in taken {
            if moves.get(chain).is_some_and(|m| moved.contains(&m.id)) {
                answers[index] = Some(Ok(position));
                done.insert(index);
            } else {
                // another writer was there first
                self.known.remove(chain);
            }
        }
        for (index, chain, rule) in refused {
            if moves.get(chain).is_none_or(|m| moved.contains(&m.id)) {
                answers[index] = Some(Err(rule));
                done.insert(index);
            }
        }
        pending.retain(|p| !done.contains(&p.index));
        Ok(())
    }

    /// Sends the statement; gives the chains that were where they were thought to be.
    async fn send(
        &mut self,
        moves: &HashMap<&Chain, Move>,
        rows: &Rows<'_>,
    ) -> Result<HashSet<i64>, Refused> {
        let (mut ids, mut was, mut was_epoch) = (vec![], vec![], vec![]);
        let (mut seq, mut head, mut settled, mut epoch) = (vec![], vec![], vec![], vec![]);
        for (chain, Move { id, was: (seq_before, epoch_before) }) in moves {
            let Some(Known { state, .. }) = self.known.get(chain) else { continue };
            ids.push(*id);
            was.push(seq_before.cast_signed());
            was_epoch.push(*epoch_before);
            seq.push(state.head.seq.cast_signed());
            head.push(&state.head.hash.0[..]);
            settled.push(state.settled().cast_signed());
            epoch.push(state.epoch);
        }
        let no_connection = || Refused::Other("no connection".to_owned());
        let Connection { client, write } = self.connection.as_ref().ok_or_else(no_connection)?;
        let Rows { chain, seq: places, kind, call, previous, hash, entry } = rows;
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 14] = [
            &ids, &was, &was_epoch, &seq, &head, &settled, &epoch, chain, places, kind, call,
            previous, hash, entry,
        ];
        match tokio::time::timeout(STATEMENT, client.query(write, &values)).await {
            Ok(Ok(moved)) => Ok(moved.iter().map(|row| row.get(0)).collect()),
            Ok(Err(e)) if e.code() == Some(&SqlState::UNIQUE_VIOLATION) => Err(Refused::Call),
            Ok(Err(e)) => Err(Refused::Other(describe(&e))),
            Err(_) => {
                // it may still run: never to be mixed with what comes next
                self.connection = None;
                Err(Refused::Other(format!("no answer within {} s", STATEMENT.as_secs())))
            }
        }
    }
}

/// Why a statement was not carried out.
enum Refused {
    /// A call has such a record already.
    Call,
    Other(String),
}

/// Asks the rules, and puts the record into the rows.
fn take<'a>(
    known: &mut Known,
    request: &'a Request,
    past: &HashSet<(String, i16)>,
    met: &mut HashSet<(&'a str, Kind)>,
    rows: &mut Rows<'a>,
) -> Answer {
    let (chain, epoch, entry, json) = match request {
        Request::Append { chain, epoch, entry, json } => (chain, *epoch, entry, json),
        Request::Raise { epoch, .. } => {
            return known.state.raise(*epoch).map(|()| known.state.position());
        }
    };
    let has = |call: &str, kind: Kind| past.contains(&(call.to_owned(), kind as i16));
    known.state.check(chain, epoch, entry, |call| {
        let ended = met.contains(&(call, Kind::Outcome)) || has(call, Kind::Outcome);
        Ok::<_, AppendError>(if ended { Past::Ended } else { Past::NotEnded })
    })?;
    let call = entry.call.as_deref();
    if let (Some(call), Kind::Intent) = (call, entry.kind)
        && (has(call, Kind::Intent) || met.contains(&(call, Kind::Intent)))
    {
        return Err(AppendError::BadEntry("the call has an intent already"));
    }
    if let Some(call) = call {
        met.insert((call, entry.kind));
    }
    let previous = known.state.head;
    let next = previous.after(json.as_bytes());
    rows.chain.push(known.id);
    rows.seq.push(next.seq.cast_signed());
    rows.kind.push(entry.kind as i16);
    rows.call.push(call);
    rows.previous.push(previous.hash.0.to_vec());
    rows.hash.push(next.hash.0.to_vec());
    rows.entry.push(json.as_bytes());
    known.state.take(entry, next);
    Ok(known.state.position())
}
