//! Counts calls per tool.

use std::collections::HashMap;

use selvedge_database::params;

use crate::{Journal, JournalError};

impl Journal {
    /// Returns the number of calls of each tool in the last `runs` runs, by canonical name.
    pub fn tool_call_counts(&self, runs: u32) -> Result<HashMap<String, u64>, JournalError> {
        let connection = self.flushed_connection();
        let mut statement = connection.prepare_cached(
            "SELECT tool, count(*) FROM calls
             WHERE run IN (SELECT id FROM runs ORDER BY started_ms DESC LIMIT ?1) GROUP BY tool",
        )?;
        let rows = statement.query_map(params![runs], |row| {
            Ok((row.get(0)?, row.get::<i64>(1)? as u64))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
