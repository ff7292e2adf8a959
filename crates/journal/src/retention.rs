//! Retention: removes old runs, expired documents, unused payloads and stale lock files.

use std::time::Duration;

use selvedge_database::params;
use selvedge_protocol::Retention;

use crate::connection::query_column;
use crate::lease::OwnerLease;
use crate::liveness::JournalOwner;
use crate::payloads::select_blob_hashes;
use crate::run_call_counts::{SET_CALL_COUNTS, called_tool_condition};
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// What [`Journal::apply_retention`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionReport {
    /// Number of runs, which were removed with their calls.
    pub runs: usize,
    /// Number of documents removed from the File Cabinet.
    pub documents: usize,
}

/// The number of runs that one transaction removes, so that other writers do not wait for long.
const MAX_RUNS_PER_WRITE: i64 = 200;
/// How often the size is measured and excess runs are removed.
const MAX_PASSES: usize = 6;

/// Tables and columns in which runs refer to payloads.
const RUN_PAYLOAD_COLUMNS: [(&str, &str); 10] = [
    ("calls", "args"),
    ("calls", "value"),
    ("calls", "error"),
    ("calls", "shown"),
    ("runs", "source"),
    ("runs", "output"),
    ("runs", "saved_config"),
    ("runs", "recording"),
    ("suspensions", "state"),
    ("approvals", "request"),
];
/// The other tables and columns that refer to payloads.
const OTHER_PAYLOAD_COLUMNS: [(&str, &str); 12] = [
    ("api_replies", "body"),
    ("channel_messages", "content"),
    ("inbox", "answer"),
    ("inbox", "text"),
    ("items", "item"),
    ("session_events", "body"),
    ("stored", "value"),
    ("cabinet", "about"),
    ("cabinet", "content"),
    ("turn_changes", "path"),
    ("turn_changes", "before"),
    ("turn_changes", "after"),
];

/// How long the truncation of the log waits for readers.
const LOG_READERS_TIMEOUT: Duration = Duration::from_secs(1);

impl Journal {
    /// Removes expired documents, runs that are older than the limit, and the oldest runs beyond
    /// the size limit. Runs that have not ended and sessions are never removed. Then the file
    /// becomes smaller, which keeps other processes from writing for a while.
    pub fn apply_retention(&self, retention: &Retention) -> Result<RetentionReport, JournalError> {
        let (removed, unused_blobs) = self.remove_expired(retention)?;
        if removed.runs + unused_blobs > 0 {
            // Returns free pages to the file system. If other processes write, a later call does
            // it.
            let connection = self.flushed_connection();
            let _ = connection
                .truncate_log(LOG_READERS_TIMEOUT)
                .and_then(|_| connection.compact())
                .and_then(|()| connection.truncate_log(LOG_READERS_TIMEOUT));
        }
        Ok(removed)
    }

    /// Like [`Journal::apply_retention`], while other processes or threads write: each transaction
    /// is small, and free pages stay in the file for later rows.
    pub fn apply_retention_while_in_use(
        &self,
        retention: &Retention,
    ) -> Result<RetentionReport, JournalError> {
        Ok(self.remove_expired(retention)?.0)
    }

    /// Removes what is beyond the limits. Returns it with the number of payloads that were unused
    /// before.
    fn remove_expired(
        &self,
        retention: &Retention,
    ) -> Result<(RetentionReport, usize), JournalError> {
        let oldest = now_ms() - i64::from(retention.days) * 24 * 3600 * 1000;
        let mut removed = RetentionReport {
            documents: self.remove_expired_documents()?,
            ..RetentionReport::default()
        };
        // Documents that were removed to make room may have left unused payloads.
        let swept = self.remove_unused_blobs()?;
        self.end_dead_runs(oldest)?;
        self.remove_stale_cancel_requests()?;
        self.remove_old_replies()?;
        removed.runs += self.remove_old_runs(oldest)?;
        if removed.runs > 0 {
            self.remove_unused_blobs()?;
        }
        for _ in 0..MAX_PASSES {
            match self.remove_excess_runs(retention.megabytes << 20)? {
                0 => break,
                runs => removed.runs += runs,
            }
        }
        self.remove_stale_lock_files()?;
        Ok((removed, swept))
    }

    /// Removes the runs that ended before a time, in milliseconds since 1970.
    fn remove_old_runs(&self, oldest: i64) -> Result<usize, JournalError> {
        let count = format!("SELECT count(*) FROM runs WHERE ended_ms < {oldest}");
        let old: i64 = self
            .flushed_connection()
            .query_row(&count, params![], |row| row.get(0))?;
        let which = format!(
            "id IN (SELECT id FROM runs WHERE ended_ms < {oldest} ORDER BY started_ms LIMIT ?1)"
        );
        let (mut removed, mut window) = (0, MAX_RUNS_PER_WRITE);
        loop {
            match self.remove_runs(&which, window)? {
                // All runs of the window are kept for others that resumed them.
                0 if window < old => window *= 2,
                0 => return Ok(removed),
                runs => removed += runs,
            }
        }
    }

    /// Marks old runs as ended if their process is dead, except suspended runs.
    fn end_dead_runs(&self, before_ms: i64) -> Result<(), JournalError> {
        self.write(|connection| {
            let mut read = connection.prepare_cached(
                "SELECT id, owner FROM runs WHERE ended_ms IS NULL AND started_ms < ?1
                 AND id NOT IN (SELECT run FROM suspensions)",
            )?;
            let open: Vec<(String, String)> = read
                .query_map(params![before_ms], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?;
            for (id, owner) in &open {
                if !self.may_replace_owner(connection, owner)? {
                    continue;
                }
                let over = format!(
                    "UPDATE runs SET ended_ms = started_ms, {SET_CALL_COUNTS}
                     WHERE id = ?1 AND owner = ?2 AND ended_ms IS NULL"
                );
                connection.execute(&over, params![id, owner])?;
            }
            Ok(())
        })
    }

    /// Removes the ended runs that the SQL condition `which` selects. `value` is its parameter
    /// `?1`.
    fn remove_runs(&self, which: &str, value: i64) -> Result<usize, JournalError> {
        let removed = self.write(|connection| {
            // Runs that resumed each other are kept or removed together with the tasks they
            // started, which are runs as well: a resume needs the results of all of them.
            let starts_tasks = called_tool_condition("'spawn.exec'");
            let which = format!(
                "ended_ms IS NOT NULL AND {which} AND id NOT IN (
                    WITH RECURSIVE kept(id) AS (
                        SELECT id FROM runs WHERE (ended_ms IS NULL OR NOT ({which}))
                            AND (resumes IS NOT NULL OR {starts_tasks}
                                OR EXISTS (SELECT 1 FROM runs AS later
                                    WHERE later.resumes = runs.id))
                        UNION SELECT links.other FROM kept JOIN (
                                SELECT run AS one, id AS other FROM calls
                                    WHERE tool = 'spawn.exec'
                                UNION ALL SELECT id, resumes FROM runs WHERE resumes IS NOT NULL
                                UNION ALL SELECT resumes, id FROM runs WHERE resumes IS NOT NULL
                            ) AS links ON links.one = kept.id)
                    SELECT id FROM kept)"
            );
            // Selected once: another process may end, resume or remove runs between statements.
            let lock = connection.row_lock();
            let sql = format!("SELECT id FROM runs WHERE {which}{lock}");
            let ids: Vec<String> = query_column(connection, &sql, params![value])?;
            let ids = serde_json::to_string(&ids)?;
            let mut removed = 0;
            for (table, column) in [("calls", "run"), ("approvals", "run"), ("runs", "id")] {
                let sql = format!(
                    "DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?1))"
                );
                removed = connection.execute(&sql, params![ids])?;
            }
            Ok(removed)
        })?;
        Ok(removed)
    }

    /// Removes the share of the oldest runs that exceeds the limit in bytes, assuming that all runs
    /// have the same size.
    fn remove_excess_runs(&self, limit: u64) -> Result<usize, JournalError> {
        let bytes = self.total_run_bytes()?;
        let ended = "SELECT count(*) FROM runs WHERE ended_ms IS NOT NULL";
        let ended: i64 = self
            .flushed_connection()
            .query_row(ended, params![], |row| row.get(0))?;
        if bytes <= limit || ended == 0 {
            return Ok(0);
        }
        let share = (bytes - limit) as f64 / bytes as f64;
        let mut remaining = ((ended as f64 * share).ceil() as i64).max(1);
        let mut removed = 0;
        let mut window = remaining.min(MAX_RUNS_PER_WRITE);
        while remaining > 0 {
            let oldest = "id IN
                (SELECT id FROM runs WHERE ended_ms IS NOT NULL ORDER BY started_ms LIMIT ?1)";
            match self.remove_runs(oldest, window)? {
                // All runs of the window are kept for newer runs that resumed them.
                0 if window < ended => window *= 2,
                0 => break,
                runs => {
                    removed += runs;
                    remaining -= runs as i64;
                    window = remaining.min(MAX_RUNS_PER_WRITE);
                }
            }
        }
        self.remove_unused_blobs()?;
        Ok(removed)
    }

    /// Returns the size of all runs in the file. Sessions and tables of other crates do not count,
    /// because removing runs does not make them smaller.
    fn total_run_bytes(&self) -> Result<u64, JournalError> {
        let connection = self.flushed_connection();
        let tables = connection.table_bytes(&["runs", "calls", "approvals", "blobs"])?;
        let others: i64 = connection.query_row(
            &format!(
                "SELECT CAST(coalesce(sum(length(packed)), 0) AS BIGINT) FROM blobs WHERE hash IN ({})",
                select_referenced_blobs(&OTHER_PAYLOAD_COLUMNS)
            ),
            params![],
            |row| row.get(0),
        )?;
        Ok(tables.saturating_sub(others.max(0) as u64))
    }

    /// Removes the lock files of processes that have ended. A process that ended on this machine
    /// loses its lease first: without its file, it would count as alive until the lease ends.
    fn remove_stale_lock_files(&self) -> Result<(), JournalError> {
        let live = self.location.folder().join("live");
        for entry in std::fs::read_dir(&live).into_iter().flatten().flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            if JournalOwner::has_lock(&live, &id) {
                continue;
            }
            if self.owner.lease().is_some() && JournalOwner::has_ended_here(&live, &id) {
                self.write(|connection| OwnerLease::remove(connection, &id))?;
            }
            let _ = std::fs::remove_file(entry.path());
        }
        Ok(())
    }
}

/// Returns the SQL that selects the hashes of all blobs that a row refers to, as `hash`.
pub(crate) fn select_all_blob_hashes() -> String {
    format!(
        "{} UNION {}",
        select_referenced_blobs(&RUN_PAYLOAD_COLUMNS),
        select_referenced_blobs(&OTHER_PAYLOAD_COLUMNS)
    )
}

/// Returns the SQL that selects the hashes of the blobs that these columns refer to.
fn select_referenced_blobs(columns: &[(&str, &str)]) -> String {
    let each = columns
        .iter()
        .map(|(table, column)| select_blob_hashes(table, column));
    each.collect::<Vec<_>>().join(" UNION ")
}
