//! Reading the database: pages, open intents, and the walk along a chain, over connections that
//! are not the writer's.

use super::{
    connect::{Database, STATEMENT, describe},
    statements::{CHAIN, CHAINS, OPEN, PAGE},
};
use crate::{
    domain::{chain::Head, record::Record},
    journal::{
        Chain, MAX_PAGE, ReadError,
        stored::{Raw, hash_of},
    },
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, Row, error::SqlState, types::ToSql};

/// How many reads run at the same time.
const READERS: usize = 4;
/// How many connections in a row may end under one statement.
const AGAIN: usize = 5;

pub(in crate::journal) struct Reader {
    database: Database,
    idle: Mutex<Vec<Client>>,
    permits: Semaphore,
}

fn raw(row: &Row) -> Raw {
    Raw {
        seq: row.get::<_, i64>(0).cast_unsigned(),
        kind: i64::from(row.get::<_, i16>(1)),
        call: row.get(2),
        previous: hash_of(row.get(3)),
        hash: hash_of(row.get(4)),
        entry: row.get(5),
    }
}

impl Reader {
    pub fn new(database: Database) -> Self {
        Self { database, idle: Mutex::default(), permits: Semaphore::new(READERS) }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Client>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One statement. A connection that ends meanwhile is replaced, some times: a read changes
    /// nothing.
    async fn query(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, ReadError> {
        let _permit = self.permits.acquire().await.map_err(|e| unavailable(e.to_string()))?;
        let mut left = AGAIN;
        loop {
            let kept = self.idle().pop();
            let client = match kept {
                Some(client) => client,
                None => self.database.connect().await.map_err(|e| unavailable(e.to_string()))?,
            };
            match tokio::time::timeout(STATEMENT, client.query(statement, values)).await {
                Ok(Ok(rows)) => {
                    self.idle().push(client);
                    return Ok(rows);
                }
                Ok(Err(error)) if left > 0 && has_ended(&error) => left -= 1,
                Ok(Err(error)) => return Err(unavailable(describe(&error))),
                Err(_) => {
                    let limit = STATEMENT.as_secs();
                    return Err(unavailable(format!("no answer within {limit} s")));
                }
            }
        }
    }

    /// The id and the end of a chain.
    async fn chain(&self, chain: &Chain) -> Result<Option<(i64, Head)>, ReadError> {
        let rows = self.query(CHAIN, &[&chain.to_string()]).await?;
        Ok(rows.first().map(|row| {
            let seq = row.get::<_, i64>(1).cast_unsigned();
            (row.get(0), Head { seq, hash: hash_of(row.get(2)) })
        }))
    }

    async fn raw_page(
        &self,
        chain: i64,
        after: u64,
        last: u64,
        limit: usize,
    ) -> Result<Vec<Raw>, ReadError> {
        let place = |seq: u64| i64::try_from(seq).unwrap_or(i64::MAX);
        let limit = limit.min(MAX_PAGE) as i64;
        let rows = self.query(PAGE, &[&chain, &place(after), &place(last), &limit]).await?;
        Ok(rows.iter().map(raw).collect())
    }

    pub async fn page(
        &self,
        chain: &Chain,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Record>, ReadError> {
        let Some((id, _)) = self.chain(chain).await? else { return Ok(vec![]) };
        let page = self.raw_page(id, after, u64::MAX, limit).await?;
        page.into_iter().map(|raw| raw.record(chain)).collect()
    }

    pub async fn end(&self, chain: &Chain) -> Result<u64, ReadError> {
        Ok(self.chain(chain).await?.map_or(0, |(_, end)| end.seq))
    }

    pub async fn open_intents(&self, chain: &Chain) -> Result<Vec<Record>, ReadError> {
        let rows = self.query(OPEN, &[&chain.to_string()]).await?;
        rows.iter().map(|row| raw(row).record(chain)).collect()
    }

    pub async fn chains(&self) -> Result<Vec<Chain>, ReadError> {
        let rows = self.query(CHAINS, &[]).await?;
        let chain = |row: &Row| {
            let name: String = row.get(0);
            name.parse().map_err(|problem| unavailable(format!("{name}: {problem}")))
        };
        rows.iter().map(chain).collect()
    }

    /// Walks a chain from its first record to what was its last when the walk began, compares
    /// every hash, and hands each record that fits to `each`. Gives the end of the chain.
    pub async fn walk<E: From<ReadError>>(
        &self,
        chain: &Chain,
        mut each: impl FnMut(&Raw) -> Result<(), E> + Send,
    ) -> Result<Head, E> {
        let Some((id, end)) = self.chain(chain).await? else { return Ok(Head::START) };
        let mut head = Head::START;
        while head.seq < end.seq {
            let page = self.raw_page(id, head.seq, end.seq, MAX_PAGE).await?;
            if page.is_empty() {
                break;
            }
            for raw in &page {
                head = raw.follow(chain, head)?;
                each(raw)?;
            }
        }
        if head != end {
            let problem = "the chain is not as it is noted beside it: records are missing";
            let (chain, seq) = (chain.to_string(), head.seq + 1);
            return Err(ReadError::Corrupt { chain, seq, problem: problem.into() }.into());
        }
        Ok(head)
    }
}

/// Whether the connection ended, by the server's word or without one.
fn has_ended(error: &tokio_postgres::Error) -> bool {
    let shutdown = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN];
    error.is_closed() || error.code().is_some_and(|code| shutdown.contains(code)) || {
        let source = std::error::Error::source(error);
        source.is_some_and(|source| source.is::<std::io::Error>())
    }
}

fn unavailable(problem: String) -> ReadError {
    ReadError::Unavailable(problem)
}
