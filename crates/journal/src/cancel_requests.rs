//! Requests to cancel a run, or a turn of a session, that another process executes. A request is a
//! row in the table `cancel_requests`, which that process polls.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_database::{Connection, params};

use crate::connection::execute;
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// The minimum time between two polls of the table by a process, for all its runs together.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The runs and sessions whose cancellation was requested, as of the last poll.
#[derive(Debug, Default)]
pub(crate) struct CancelRequests {
    polled_at: Option<Instant>,
    requests: HashMap<String, CancelRequest>,
}

/// What a row of the table requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CancelRequest {
    /// Cancel a run.
    Run,
    /// Stop the turn of a session with this number.
    Turn(u32),
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
            let ask = "INSERT INTO cancel_requests (run, asked_ms) VALUES (?1, ?2)
                ON CONFLICT (run) DO UPDATE SET asked_ms = excluded.asked_ms, turn = NULL";
            execute(connection, ask, params![run, now_ms()])
        })
    }

    /// Requests that the process that executes a turn of a session stops it. Has no effect on other
    /// turns of the session.
    pub fn request_stop(&self, session: &str, turn: u32) -> Result<(), JournalError> {
        self.write(|connection| {
            let ask = "INSERT INTO cancel_requests (run, asked_ms, turn) VALUES (?1, ?2, ?3)
                ON CONFLICT (run) DO UPDATE SET asked_ms = excluded.asked_ms, turn = excluded.turn";
            execute(connection, ask, params![session, now_ms(), turn])
        })
    }

    /// Withdraws the request about a run or session, which has ended or may continue.
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
        Ok(self.cancel_request(run).await?.is_some())
    }

    /// Returns whether [`Journal::request_stop`] was called for this turn of a session.
    pub async fn is_stop_requested(&self, session: &str, turn: u32) -> bool {
        // If the request cannot be read, the turn continues.
        let request = self.cancel_request(session).await;
        request.is_ok_and(|request| request == Some(CancelRequest::Turn(turn)))
    }

    /// Returns what was requested for a run or session, as of the last poll.
    async fn cancel_request(&self, id: &str) -> Result<Option<CancelRequest>, JournalError> {
        if self.lock_cancel_requests().begin_poll_if_due() {
            let read = |_: &Self, connection: &Connection| {
                let sql = "SELECT run, turn FROM cancel_requests";
                let mut read = connection.prepare_cached(sql)?;
                let rows = read.query_map(params![], |row| {
                    let turn: Option<u32> = row.get(1)?;
                    let request = turn.map_or(CancelRequest::Run, CancelRequest::Turn);
                    Ok((row.get(0)?, request))
                })?;
                Ok(rows.collect::<Result<HashMap<String, CancelRequest>, _>>()?)
            };
            let requests = self.run_now_or_queue(read).await?;
            self.lock_cancel_requests().requests = requests;
        }
        Ok(self.lock_cancel_requests().requests.get(id).copied())
    }

    fn lock_cancel_requests(&self) -> MutexGuard<'_, CancelRequests> {
        self.cancel_requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes requests about runs that have ended and sessions that no process has claimed.
    pub(crate) fn remove_stale_cancel_requests(&self) -> Result<(), JournalError> {
        self.write(|connection| {
            let open = "SELECT id FROM runs WHERE ended_ms IS NULL
                UNION SELECT id FROM sessions WHERE owner IS NOT NULL";
            connection.execute(
                &format!("DELETE FROM cancel_requests WHERE run NOT IN ({open})"),
                params![],
            )?;
            Ok(())
        })
    }
}
