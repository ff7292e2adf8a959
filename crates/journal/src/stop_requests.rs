//! Requests to stop a run that another process executes. A request is a row in the table `stops`,
//! which that process polls.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::params;

use crate::connection::{execute, query_column};
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// The minimum time between two polls of the table by a process, for all its runs together.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The runs for which a stop was requested, as of the last poll.
#[derive(Debug, Default)]
pub(crate) struct StopRequests {
    polled_at: Option<Instant>,
    runs: HashSet<String>,
}

impl StopRequests {
    /// Returns whether the caller has to poll the table now.
    fn begin_poll_if_due(&mut self) -> bool {
        let due = self
            .polled_at
            .is_none_or(|seen| seen.elapsed() >= POLL_INTERVAL);
        if due {
            self.polled_at = Some(Instant::now());
        }
        due
    }
}

impl Journal {
    /// Requests that the process that executes a run stops it. The caller polls the state of the
    /// run to learn when it has stopped.
    pub fn request_stop(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            let ask = "INSERT OR REPLACE INTO stops (run, asked_ms) VALUES (?1, ?2)";
            execute(connection, ask, params![run, now_ms()])
        })
    }

    /// Withdraws the stop request of a run, which has stopped or need not stop any more.
    pub fn withdraw_stop_request(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            execute(connection, "DELETE FROM stops WHERE run = ?1", params![run])
        })
    }

    /// Returns whether another process had requested to stop this run at the last poll.
    pub(crate) async fn is_stop_requested_at_last_poll(
        &self,
        run: &str,
    ) -> Result<bool, JournalError> {
        if self.lock_stop_requests().begin_poll_if_due() {
            let read =
                |_: &Self, connection: &_| query_column(connection, "SELECT run FROM stops", []);
            let runs = self.run_now_or_queue(read).await?;
            self.lock_stop_requests().runs = runs.into_iter().collect();
        }
        Ok(self.lock_stop_requests().runs.contains(run))
    }

    fn lock_stop_requests(&self) -> MutexGuard<'_, StopRequests> {
        self.stop_requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes stop requests of runs that have ended.
    pub(crate) fn remove_stale_stop_requests(&self) -> Result<(), JournalError> {
        self.write(|connection| {
            let open = "SELECT id FROM runs WHERE ended_ms IS NULL";
            connection.execute(&format!("DELETE FROM stops WHERE run NOT IN ({open})"), [])?;
            Ok(())
        })
    }
}
