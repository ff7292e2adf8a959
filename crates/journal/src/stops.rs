//! Requests to stop a run that another process executes. A request is a row in the table `stops`,
//! which that process polls.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::params;

use crate::connection::{column, execute};
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// The minimum time between two polls of the table by a process, for all its runs together.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The runs for which a stop was requested, as of the last poll.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    seen: Option<Instant>,
    runs: HashSet<String>,
}

impl Stops {
    /// Returns whether the caller has to poll the table now.
    fn is_due(&mut self) -> bool {
        let due = self.seen.is_none_or(|seen| seen.elapsed() >= POLL_INTERVAL);
        if due {
            self.seen = Some(Instant::now());
        }
        due
    }
}

impl Journal {
    /// Requests that the process that executes a run stops it. The caller polls the state of the
    /// run to learn when it has stopped.
    pub fn ask_to_stop(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            let ask = "INSERT OR REPLACE INTO stops (run, asked_ms) VALUES (?1, ?2)";
            execute(connection, ask, params![run, now_ms()])
        })
    }

    /// Withdraws the stop request of a run, which has stopped or need not stop any more.
    pub fn need_not_stop(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            execute(connection, "DELETE FROM stops WHERE run = ?1", params![run])
        })
    }

    /// Returns whether another process had requested to stop this run at the last poll.
    pub(crate) async fn is_asked_to_stop(&self, run: &str) -> Result<bool, JournalError> {
        if self.stops().is_due() {
            let read = |_: &Self, connection: &_| column(connection, "SELECT run FROM stops", []);
            let runs = self.access(read).await?;
            self.stops().runs = runs.into_iter().collect();
        }
        Ok(self.stops().runs.contains(run))
    }

    fn stops(&self) -> MutexGuard<'_, Stops> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes stop requests of runs that have ended.
    pub(crate) fn forget_stops(&self) -> Result<(), JournalError> {
        self.write(|connection| {
            let open = "SELECT id FROM runs WHERE ended_ms IS NULL";
            connection.execute(&format!("DELETE FROM stops WHERE run NOT IN ({open})"), [])?;
            Ok(())
        })
    }
}
