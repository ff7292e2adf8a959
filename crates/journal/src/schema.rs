//! The tables, as ordered named steps. A step that was released is never changed; a new one is added below it.

use rusqlite::{Connection, TransactionBehavior, params};

use crate::JournalError;
use crate::time::now_ms;

/// Each step once, in this order.
const STEPS: &[(&str, &str)] = &[
    (
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
    ),
    (
        "suspensions and recordings",
        "
    ALTER TABLE runs ADD COLUMN setting TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN recording BLOB;

    -- A script that waits for people. The row is gone as soon as anything else is written of its run.
    CREATE TABLE suspensions (
        run TEXT PRIMARY KEY,
        state BLOB NOT NULL,
        claimed_by TEXT,
        written_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    ",
    ),
    (
        "sessions and their items",
        "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        name TEXT UNIQUE,
        directory TEXT NOT NULL,
        started_ms INTEGER NOT NULL,
        touched_ms INTEGER NOT NULL,
        forked_from TEXT
    ) WITHOUT ROWID;
    CREATE INDEX sessions_by_time ON sessions (touched_ms DESC);

    CREATE TABLE items (
        session TEXT NOT NULL,
        number INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        item BLOB NOT NULL,
        at_ms INTEGER NOT NULL,
        PRIMARY KEY (session, number)
    ) WITHOUT ROWID;
    ",
    ),
    (
        "what scripts of a session keep",
        "
    CREATE TABLE stored (
        session TEXT NOT NULL,
        key TEXT NOT NULL,
        value BLOB NOT NULL,
        bytes INTEGER NOT NULL,
        stored_ms INTEGER NOT NULL,
        PRIMARY KEY (session, key)
    ) WITHOUT ROWID;
    ",
    ),
    (
        "what a model was shown of a call",
        "ALTER TABLE calls ADD COLUMN shown BLOB;
    CREATE INDEX resumed_runs ON runs (resumes) WHERE resumes IS NOT NULL;",
    ),
    (
        "the File Cabinet",
        "
    CREATE TABLE cabinet (
        key TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        -- A digest of kind and source: what came from there is found without being told.
        origin BLOB NOT NULL,
        about BLOB NOT NULL,
        content BLOB NOT NULL,
        bytes INTEGER NOT NULL,
        saved_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX cabinet_by_origin ON cabinet (origin, saved_ms DESC);
    CREATE INDEX cabinet_by_time ON cabinet (kind, saved_ms DESC);
    ",
    ),
    (
        "whose a session is",
        "-- The process that works on it, and the session of the agent that launched its agent.
    ALTER TABLE sessions ADD COLUMN owner TEXT;
    ALTER TABLE sessions ADD COLUMN parent TEXT;",
    ),
    (
        "runs in the order they began",
        "-- Ids are random and rows are large: in the order of ids, each new one tore a page apart.
    CREATE TABLE runs_in_order (
        id TEXT NOT NULL,
        session TEXT NOT NULL,
        resumes TEXT,
        source BLOB NOT NULL,
        directory TEXT NOT NULL,
        seed TEXT NOT NULL,
        owner TEXT NOT NULL,
        status TEXT NOT NULL,
        output BLOB,
        started_ms INTEGER NOT NULL,
        ended_ms INTEGER,
        setting TEXT NOT NULL DEFAULT '',
        recording BLOB
    );
    INSERT INTO runs_in_order (id, session, resumes, source, directory, seed, owner, status, output, started_ms, ended_ms, setting, recording)
        SELECT id, session, resumes, source, directory, seed, owner, status, output, started_ms, ended_ms, setting, recording
        FROM runs ORDER BY started_ms;
    DROP TABLE runs;
    ALTER TABLE runs_in_order RENAME TO runs;
    CREATE UNIQUE INDEX runs_by_id ON runs (id);
    CREATE INDEX runs_by_time ON runs (started_ms DESC);
    CREATE INDEX open_runs ON runs (owner) WHERE ended_ms IS NULL;
    CREATE INDEX resumed_runs ON runs (resumes) WHERE resumes IS NOT NULL;",
    ),
    (
        "runs that are to stop",
        "-- Looked at by the process that runs them, now and then; nearly always empty.
    CREATE TABLE stops (
        run TEXT PRIMARY KEY,
        asked_ms INTEGER NOT NULL
    ) WITHOUT ROWID;",
    ),
    (
        "when calls began and were over",
        "-- Nanoseconds that never go back in one process: what was read beside a change is told from what was read after.
    ALTER TABLE calls ADD COLUMN began_ns INTEGER;
    ALTER TABLE calls ADD COLUMN over_ns INTEGER;",
    ),
    (
        "what a list shows of a run",
        "-- How many calls an ended run made, and of which tools: each call need not be found by its tool. All that
    -- a list shows or asks for stands in one index: it reads neither the rows, which are large, nor the calls.
    ALTER TABLE runs ADD COLUMN calls INTEGER;
    ALTER TABLE runs ADD COLUMN tools TEXT;
    UPDATE runs SET (calls, tools) = (SELECT count(*), json_group_array(DISTINCT tool) FROM calls WHERE run = runs.id)
        WHERE ended_ms IS NOT NULL;
    DROP INDEX runs_by_time;
    DROP INDEX calls_by_tool;
    CREATE INDEX runs_listed
        ON runs (started_ms DESC, id, owner, status, ended_ms, directory, resumes, calls, tools, session);",
    ),
    (
        "what a call means to a run that resumes its run",
        "ALTER TABLE calls ADD COLUMN origin TEXT;
    ALTER TABLE calls ADD COLUMN resume_as TEXT;
    ALTER TABLE calls DROP COLUMN over_ns;",
    ),
];

/// Brings the journal's own tables up to date.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), JournalError> {
    take(connection, "steps", STEPS)
}

/// How many steps a file that is only read lacks.
pub(crate) fn steps_missing(connection: &Connection) -> Result<usize, JournalError> {
    let (taken, known) = (steps_taken(connection, "steps")?, STEPS.len());
    known.checked_sub(taken).ok_or(JournalError::FromTheFuture {
        steps: taken,
        known,
    })
}

/// Brings a file up to date. Several processes may want to at once: one does, the others find it done.
pub(crate) fn take(
    connection: &mut Connection,
    table: &str,
    steps: &[(&str, &str)],
) -> Result<(), JournalError> {
    // Where nothing is to be done, nobody who writes is waited for.
    let there = "SELECT count(*) FROM sqlite_master WHERE name = ?1";
    let there: i64 = connection.query_row(there, params![table], |row| row.get(0))?;
    if there > 0 && steps_taken(connection, table)? == steps.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY, name TEXT NOT NULL, taken_ms INTEGER NOT NULL)"
    ))?;
    let taken = steps_taken(&transaction, table)?;
    if taken > steps.len() {
        return Err(JournalError::FromTheFuture {
            steps: taken,
            known: steps.len(),
        });
    }
    for (number, (name, sql)) in steps.iter().enumerate().skip(taken) {
        transaction.execute_batch(sql)?;
        let sql = format!("INSERT INTO {table} VALUES (?1, ?2, ?3)");
        transaction.execute(&sql, params![number as i64, name, now_ms()])?;
    }
    transaction.commit()?;
    Ok(())
}

fn steps_taken(connection: &Connection, table: &str) -> Result<usize, JournalError> {
    let taken: i64 = connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
        row.get(0)
    })?;
    Ok(taken.max(0) as usize)
}
