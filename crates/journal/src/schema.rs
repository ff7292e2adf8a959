//! The tables, as ordered named steps. A step that was released is never changed; a new one is added below it.

use rusqlite::{Connection, TransactionBehavior, params};

use crate::JournalError;
use crate::time::now_ms;

/// Each step once, in this order.
const STEPS: &[(&str, &str)] = &[(
    "runs, calls and approvals",
    "
    CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

    -- Large payloads, once each.
    CREATE TABLE blobs (hash BLOB PRIMARY KEY, packed BLOB NOT NULL) WITHOUT ROWID;

    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        session TEXT NOT NULL,
        resumes TEXT,
        source BLOB NOT NULL,
        directory TEXT NOT NULL,
        seed TEXT NOT NULL,
        owner TEXT NOT NULL,
        status TEXT NOT NULL,
        output BLOB,
        started_ms INTEGER NOT NULL,
        ended_ms INTEGER
    ) WITHOUT ROWID;
    CREATE INDEX runs_by_time ON runs (started_ms DESC);
    CREATE INDEX open_runs ON runs (owner) WHERE ended_ms IS NULL;

    CREATE TABLE calls (
        run TEXT NOT NULL,
        id TEXT NOT NULL,
        tool TEXT NOT NULL,
        args BLOB,
        digest TEXT NOT NULL,
        read_only INTEGER NOT NULL,
        line INTEGER,
        state TEXT NOT NULL,
        value BLOB,
        error TEXT,
        reused INTEGER NOT NULL DEFAULT 0,
        started_ms INTEGER NOT NULL,
        duration_ms REAL,
        PRIMARY KEY (run, id)
    ) WITHOUT ROWID;
    CREATE INDEX calls_by_tool ON calls (tool, run);

    CREATE TABLE approvals (
        id TEXT PRIMARY KEY,
        run TEXT NOT NULL,
        request BLOB NOT NULL,
        answers TEXT,
        asked_ms INTEGER NOT NULL,
        answered_ms INTEGER
    ) WITHOUT ROWID;
    CREATE INDEX approvals_of_runs ON approvals (run);
    ",
)];

/// Brings the journal's own tables up to date.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), JournalError> {
    take(connection, "steps", STEPS)
}

/// Brings a file up to date. Several processes may want to at once: one does, the others find it done.
pub(crate) fn take(connection: &mut Connection, table: &str, steps: &[(&str, &str)]) -> Result<(), JournalError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY, name TEXT NOT NULL, taken_ms INTEGER NOT NULL)"
    ))?;
    let taken: i64 = transaction.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
    let taken = taken.max(0) as usize;
    if taken > steps.len() {
        return Err(JournalError::FromTheFuture { steps: taken, known: steps.len() });
    }
    for (number, (name, sql)) in steps.iter().enumerate().skip(taken) {
        transaction.execute_batch(sql)?;
        let sql = format!("INSERT INTO {table} VALUES (?1, ?2, ?3)");
        transaction.execute(&sql, params![number as i64, name, now_ms()])?;
    }
    transaction.commit()?;
    Ok(())
}
