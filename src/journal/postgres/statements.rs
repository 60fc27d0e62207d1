//! The tables, their versions, and the statements that the writer and the readers use.

use super::connect::{OpenError, describe};
use tokio_postgres::Client;

/// One step for each version; the table `journal_schema` counts the ones that were made. Steps are
/// only added.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE chains (
        id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name    text   NOT NULL UNIQUE,            -- session/UID or incarnation/ID
        epoch   bigint NOT NULL DEFAULT 0,         -- the highest that was raised
        seq     bigint NOT NULL DEFAULT 0,         -- of the last record
        head    bytea  NOT NULL,                   -- hash of the last record
        settled bigint NOT NULL DEFAULT 0          -- every intent up to this one has its outcome
    ) WITH (fillfactor = 70);
    CREATE TABLE records (
        chain    bigint   NOT NULL REFERENCES chains,
        seq      bigint   NOT NULL,
        kind     smallint NOT NULL,                -- 0 Intent, 1 Outcome, 2 Refusal, 3 Lifecycle
        call     text,
        previous bytea    NOT NULL,
        hash     bytea    NOT NULL,
        entry    bytea    NOT NULL,                -- the canonical bytes
        PRIMARY KEY (chain, seq)
    );
    CREATE UNIQUE INDEX records_call ON records (call, kind) WHERE kind < 2;
"];

/// Keeps two gateways from making the same step: any number of our own.
const LOCK: i64 = 0x6177_6b6a;

/// Makes the rows of chains that have none. $1 names, $2 the hash before the first record.
pub(super) const MAKE: &str =
    "INSERT INTO chains (name, head) SELECT name, $2 FROM unnest($1::text[]) AS name
     ON CONFLICT (name) DO NOTHING";

/// What there is of these chains ($1), each with its open intents; one snapshot.
pub(super) const LOAD: &str = "
    SELECT c.name, c.id, c.epoch, c.seq, c.head, o.calls, o.places
    FROM chains AS c, LATERAL (
        SELECT coalesce(array_agg(i.call), '{}') AS calls, coalesce(array_agg(i.seq), '{}') AS places
        FROM records AS i
        WHERE i.chain = c.id AND i.seq > c.settled AND i.kind = 0 AND NOT EXISTS
            (SELECT 1 FROM records AS e WHERE e.call = i.call AND e.kind = 1)
    ) AS o
    WHERE c.name = ANY ($1)";

/// Moves chains on from the ends that their writer knows, and writes the records of those that
/// were still there. Gives their ids. $1..$7 chains: id, seq and epoch as known, then seq, head,
/// settled and epoch as they become; $8..$14 records.
pub(super) const WRITE: &str = "
    WITH moved AS (
        UPDATE chains AS c SET seq = n.seq, head = n.head, settled = n.settled, epoch = n.epoch
        FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bigint[],
                    $7::bigint[]) AS n (id, was, was_epoch, seq, head, settled, epoch)
        WHERE c.id = n.id AND c.seq = n.was AND c.epoch = n.was_epoch
        RETURNING c.id
    ), written AS (
        INSERT INTO records (chain, seq, kind, call, previous, hash, entry)
        SELECT r.* FROM unnest($8::bigint[], $9::bigint[], $10::smallint[], $11::text[],
                               $12::bytea[], $13::bytea[], $14::bytea[])
            AS r (chain, seq, kind, call, previous, hash, entry)
        JOIN moved ON moved.id = r.chain
    )
    SELECT id FROM moved";

/// Which of these records (chain, seq) are there, and their hashes.
pub(super) const WRITTEN: &str = "
    SELECT r.chain, r.seq, r.hash FROM records AS r
    JOIN unnest($1::bigint[], $2::bigint[]) AS k (chain, seq) ON k.chain = r.chain AND k.seq = r.seq";

/// What is known of these calls: the kinds of their records.
pub(super) const CALLS: &str = "SELECT call, kind FROM records WHERE call = ANY ($1) AND kind < 2";

/// A chain's row, by name.
pub(super) const CHAIN: &str = "SELECT id, seq, head FROM chains WHERE name = $1";

/// A page of the chain $1 after $2, up to $4 of them, none after $3.
pub(super) const PAGE: &str = "
    SELECT seq, kind, call, previous, hash, entry FROM records
    WHERE chain = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4";

/// The intents of the chain named $1 that have no outcome.
pub(super) const OPEN: &str = "
    SELECT i.seq, i.kind, i.call, i.previous, i.hash, i.entry
    FROM records AS i JOIN chains AS c ON c.id = i.chain
    WHERE c.name = $1 AND i.seq > c.settled AND i.kind = 0 AND NOT EXISTS
        (SELECT 1 FROM records AS e WHERE e.call = i.call AND e.kind = 1)
    ORDER BY i.seq";

/// Every chain.
pub(super) const CHAINS: &str = "SELECT name FROM chains ORDER BY id";

/// Brings the tables to the present version. Any number of gateways may do it at the same time.
pub(super) async fn migrate(client: &mut Client) -> Result<(), OpenError> {
    let failed = |e: tokio_postgres::Error| OpenError::Database(describe(&e));
    let step = client.transaction().await.map_err(failed)?;
    step.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(failed)?;
    // found without the right to create it, once somebody did
    let found = "SELECT to_regclass('journal_schema') IS NOT NULL";
    if !step.query_one(found, &[]).await.map_err(failed)?.get::<_, bool>(0) {
        let table = "CREATE TABLE journal_schema (version integer NOT NULL);
                     INSERT INTO journal_schema VALUES (0)";
        step.batch_execute(table).await.map_err(failed)?;
    }
    let row = step.query_one("SELECT version FROM journal_schema", &[]).await.map_err(failed)?;
    let version: i32 = row.get(0);
    let done = usize::try_from(version).unwrap_or(usize::MAX);
    if done > MIGRATIONS.len() {
        return Err(OpenError::Newer(version));
    }
    if done < MIGRATIONS.len() {
        for migration in &MIGRATIONS[done..] {
            step.batch_execute(migration).await.map_err(failed)?;
        }
        let version = MIGRATIONS.len() as i32;
        step.execute("UPDATE journal_schema SET version = $1", &[&version])
            .await
            .map_err(failed)?;
    }
    step.commit().await.map_err(failed)
}
