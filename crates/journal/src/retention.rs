//! How long things are kept.

use rusqlite::params;

use crate::live::Owner;
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// How much is kept. A run that goes on is never touched.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Runs that ended longer ago are removed.
    pub days: u32,
    /// The oldest runs are removed until the file is no larger.
    pub megabytes: u64,
}

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// Runs, with their calls.
    pub runs: usize,
}

/// Runs removed at a time, when there is too much.
const AT_A_TIME: i64 = 50;

impl Journal {
    /// Removes what is too old or too much.
    pub fn tidy(&self, retention: &Retention) -> Result<Removed, JournalError> {
        let oldest = now_ms() - i64::from(retention.days) * 24 * 3600 * 1000;
        let mut removed = Removed::default();
        removed.runs += self.remove("ended_ms IS NOT NULL AND ended_ms < ?1", oldest)?;
        while self.megabytes_over(retention.megabytes)? > 0 {
            let some = "id IN (SELECT id FROM runs WHERE ended_ms IS NOT NULL ORDER BY started_ms LIMIT ?1)";
            match self.remove(some, AT_A_TIME)? {
                0 => break,
                runs => removed.runs += runs,
            }
        }
        self.forget_the_dead();
        Ok(removed)
    }

    fn remove(&self, which: &str, value: i64) -> Result<usize, JournalError> {
        let removed = self.write(|connection| {
            for table in ["calls", "approvals"] {
                let sql = format!("DELETE FROM {table} WHERE run IN (SELECT id FROM runs WHERE {which})");
                connection.execute(&sql, params![value])?;
            }
            let removed = connection.execute(&format!("DELETE FROM runs WHERE {which}"), params![value])?;
            if removed > 0 {
                connection.execute(
                    "DELETE FROM blobs WHERE hash NOT IN (
                        SELECT substr(args, 2) FROM calls WHERE substr(args, 1, 1) = x'01'
                        UNION SELECT substr(value, 2) FROM calls WHERE substr(value, 1, 1) = x'01'
                        UNION SELECT substr(source, 2) FROM runs WHERE substr(source, 1, 1) = x'01'
                        UNION SELECT substr(output, 2) FROM runs WHERE substr(output, 1, 1) = x'01'
                        UNION SELECT substr(request, 2) FROM approvals WHERE substr(request, 1, 1) = x'01')",
                    [],
                )?;
            }
            Ok(removed)
        })?;
        if removed > 0 {
            // Gives the room back. It waits for nobody: where others write, the next time will do.
            let connection = self.lock();
            let _ =
                connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); VACUUM; PRAGMA wal_checkpoint(TRUNCATE);");
        }
        Ok(removed)
    }

    /// How large the journal's own tables are, once the file is large enough for that to matter. Other crates' tables
    /// keep what they keep: their size is no reason to forget runs.
    fn megabytes_over(&self, limit: u64) -> Result<u64, JournalError> {
        let connection = self.lock();
        let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
        let size: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let whole = (pages * size).max(0) as u64 >> 20;
        if whole <= limit {
            return Ok(0);
        }
        let others: i64 = connection.query_row(
            "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE aggregate = TRUE AND name GLOB 'memory_*'",
            [],
            |row| row.get(0),
        )?;
        Ok(whole.saturating_sub(others.max(0) as u64 >> 20).saturating_sub(limit))
    }

    /// Removes the lock files of processes that are gone.
    fn forget_the_dead(&self) {
        let live = self.folder.join("live");
        for entry in std::fs::read_dir(&live).into_iter().flatten().flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            if !Owner::is_alive(&live, &id) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
