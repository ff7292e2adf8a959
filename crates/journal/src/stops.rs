//! Runs that somebody in another process wants stopped. Whoever wants it leaves a line, the process that runs it looks.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rusqlite::params;

use crate::connection::{column, execute};
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// How often a process looks, however many runs it has.
const LOOK: Duration = Duration::from_millis(500);

/// The runs that are to stop, as they were seen last.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    seen: Option<Instant>,
    runs: HashSet<String>,
}

impl Journal {
    /// Asks the process that runs it to stop a run. That it has, its state will tell.
    pub fn ask_to_stop(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            let ask = "INSERT OR REPLACE INTO stops (run, asked_ms) VALUES (?1, ?2)";
            execute(connection, ask, params![run, now_ms()])?;
            Ok(())
        })
    }

    /// Takes that back: it has stopped, or need not any more.
    pub fn need_not_stop(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            execute(connection, "DELETE FROM stops WHERE run = ?1", params![run])?;
            Ok(())
        })
    }

    /// Whether somebody wants this run stopped, as far as was seen lately.
    pub(crate) fn is_asked_to_stop(&self, run: &str) -> Result<bool, JournalError> {
        let mut stops = self.stops.lock().unwrap_or_else(PoisonError::into_inner);
        if stops.seen.is_none_or(|seen| seen.elapsed() >= LOOK) {
            stops.seen = Some(Instant::now());
            let runs = column(&self.lock(), "SELECT run FROM stops", [])?;
            stops.runs = runs.into_iter().collect();
        }
        Ok(stops.runs.contains(run))
    }

    /// What was asked of runs that are over.
    pub(crate) fn forget_stops(&self) -> Result<(), JournalError> {
        self.write(|connection| {
            let open = "SELECT id FROM runs WHERE ended_ms IS NULL";
            connection.execute(&format!("DELETE FROM stops WHERE run NOT IN ({open})"), [])?;
            Ok(())
        })
    }
}
