//! Requests to cancel a run that another process executes. A request is a row in the table
//! `cancel_requests`, which that process polls.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::params;

use crate::connection::{execute, query_column};
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// The minimum time between two polls of the table by a process, for all its runs together.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The runs whose cancellation was requested, as of the last poll.
#[derive(Debug, Default)]
pub(crate) struct CancelRequests {
    polled_at: Option<Instant>,
    runs: HashSet<String>,
}

impl CancelRequests {
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
    /// Requests that the process that executes a run cancels it. The caller polls the state of the
    /// run to learn when it has ended.
    pub fn request_cancel(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            let ask = "INSERT OR REPLACE INTO cancel_requests (run, asked_ms) VALUES (?1, ?2)";
            execute(connection, ask, params![run, now_ms()])
        })
    }

    /// Withdraws the cancel request of a run, which has ended or may continue.
    pub fn withdraw_cancel_request(&self, run: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            execute(
                connection,
                "DELETE FROM cancel_requests WHERE run = ?1",
                params![run],
            )
        })
    }

    /// Returns whether another process had requested to cancel this run at the last poll.
    pub(crate) async fn is_cancel_requested_at_last_poll(
        &self,
        run: &str,
    ) -> Result<bool, JournalError> {
        if self.lock_cancel_requests().begin_poll_if_due() {
            let read = |_: &Self, connection: &_| {
                query_column(connection, "SELECT run FROM cancel_requests", [])
            };
            let runs = self.run_now_or_queue(read).await?;
            self.lock_cancel_requests().runs = runs.into_iter().collect();
        }
        Ok(self.lock_cancel_requests().runs.contains(run))
    }

    fn lock_cancel_requests(&self) -> MutexGuard<'_, CancelRequests> {
        self.cancel_requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes cancel requests of runs that have ended.
    pub(crate) fn remove_stale_cancel_requests(&self) -> Result<(), JournalError> {
        self.write(|connection| {
            let open = "SELECT id FROM runs WHERE ended_ms IS NULL";
            connection.execute(
                &format!("DELETE FROM cancel_requests WHERE run NOT IN ({open})"),
                [],
            )?;
            Ok(())
        })
    }
}
