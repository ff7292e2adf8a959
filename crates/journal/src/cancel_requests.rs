//! Requests to cancel a run, or a turn of a session, that another process executes. A request is a
//! row in the table `cancel_requests`, which that process polls.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

use crate::connection::execute;
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// The minimum time between two polls of the table by a process, for all its runs together.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The runs and sessions whose cancellation was requested, and when, as of the last poll.
#[derive(Debug, Default)]
pub(crate) struct CancelRequests {
    polled_at: Option<Instant>,
    asked_ms: HashMap<String, i64>,
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
        Ok(self.cancel_requested_ms(run).await?.is_some())
    }

    /// Returns whether another process has requested to stop the turn of a session that began at
    /// `since_ms`. The request is `request_cancel` with the id of the session; an older one meant
    /// an earlier turn.
    pub async fn is_stop_requested(&self, session: &str, since_ms: i64) -> bool {
        // If the request cannot be read, the turn continues.
        let asked_ms = self.cancel_requested_ms(session).await;
        asked_ms.is_ok_and(|asked_ms| asked_ms.is_some_and(|asked_ms| asked_ms >= since_ms))
    }

    /// Returns when the cancellation was requested, as of the last poll.
    async fn cancel_requested_ms(&self, id: &str) -> Result<Option<i64>, JournalError> {
        if self.lock_cancel_requests().begin_poll_if_due() {
            let read = |_: &Self, connection: &Connection| {
                let sql = "SELECT run, asked_ms FROM cancel_requests";
                let mut read = connection.prepare_cached(sql)?;
                let rows = read.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                Ok(rows.collect::<Result<HashMap<String, i64>, _>>()?)
            };
            let asked_ms = self.run_now_or_queue(read).await?;
            self.lock_cancel_requests().asked_ms = asked_ms;
        }
        Ok(self.lock_cancel_requests().asked_ms.get(id).copied())
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
