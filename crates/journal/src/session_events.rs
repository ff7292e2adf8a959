//! Numbered events of sessions, for the clients of an agent server. They are stored unredacted and
//! stay as long as their session.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use selvedge_database::{Connection, NamedLockMode, Row, params};
use selvedge_protocol::{
    MAX_EVENT_READ, MAX_EVENT_READ_BYTES, ServerStoreError, SessionEvent, SessionEventStore,
};
use serde_json::{Value, json};

use crate::connection::{execute, query_column, query_first};
use crate::notices::events_topic;
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// How often events are appended if the outcome of the attempt before is unknown.
const MAX_APPEND_ATTEMPTS: u32 = 3;
const APPEND_RETRY_INTERVAL: Duration = Duration::from_millis(500);

#[async_trait]
impl SessionEventStore for Journal {
    async fn append_events(
        &self,
        session: &str,
        bodies: Vec<Value>,
    ) -> Result<u64, ServerStoreError> {
        let claim = self.claim_of(session);
        let own = self.for_session(session);
        let events = Arc::new(NewEvents {
            session: session.to_owned(),
            bodies,
            attempted: AtomicI64::new(0),
        });
        let attempt = || {
            let (claim, events) = (claim.clone(), events.clone());
            own.write_async(move |journal: &Self, connection: &Connection| {
                journal.check_claim(connection, claim.as_ref())?;
                journal.append_events_in(connection, &events)
            })
        };
        // If the events were stored, the next attempt finds them.
        Ok(repeat_if(JournalError::is_outcome_unknown, attempt).await?)
    }

    async fn events_changed(&self, session: &str, seen: &mut u64) {
        self.notices.changed(&events_topic(session), seen).await;
    }

    async fn events_after(
        &self,
        session: &str,
        after: u64,
        limit: u32,
    ) -> Result<Vec<SessionEvent>, ServerStoreError> {
        let own = self.for_session(session);
        // SQLite has signed numbers only.
        let (session, after) = (session.to_owned(), i64::try_from(after).unwrap_or(i64::MAX));
        let read = move |journal: &Self, connection: &Connection| {
            let mut read = connection.prepare_cached(
                "SELECT number, body FROM session_events WHERE session = ?1 AND number > ?2
                 ORDER BY number LIMIT ?3",
            )?;
            let mut rows = read.query(params![session, after, limit.min(MAX_EVENT_READ)])?;
            let (mut events, mut bytes) = (Vec::new(), 0);
            while bytes < MAX_EVENT_READ_BYTES
                && let Some(row) = rows.next()?
            {
                let payload = row.get_ref(1)?;
                let body = journal.payloads.require_bytes(connection, payload)?;
                bytes += body.len();
                events.push(SessionEvent {
                    number: event_number(row)?,
                    body: serde_json::from_slice(&body)?,
                });
            }
            Ok(events)
        };
        Ok(own.run_now_or_queue(read).await?)
    }

    async fn events_of_kinds(
        &self,
        session: &str,
        kinds: &[&str],
        after: u64,
        limit: u32,
    ) -> Result<Vec<SessionEvent>, ServerStoreError> {
        let own = self.for_session(session);
        let kinds: Vec<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        let (session, after) = (session.to_owned(), i64::try_from(after).unwrap_or(i64::MAX));
        let limit = limit.min(MAX_EVENT_READ);
        let read = move |journal: &Self, connection: &Connection| {
            // A query per type reads only its part of the index.
            let mut read = connection.prepare_cached(
                "SELECT number, body FROM session_events
                 WHERE session = ?1 AND kind = ?2 AND number > ?3 ORDER BY number LIMIT ?4",
            )?;
            let (mut events, mut end) = (Vec::new(), u64::MAX);
            for kind in &kinds {
                let mut rows = read.query(params![session, kind, after, limit])?;
                let mut bytes = 0;
                while let Some(row) = rows.next()? {
                    if bytes >= MAX_EVENT_READ_BYTES {
                        // What follows, of all types, is for the next read.
                        end = end.min(event_number(row)?);
                        break;
                    }
                    let body = journal
                        .payloads
                        .require_bytes(connection, row.get_ref(1)?)?;
                    bytes += body.len();
                    events.push(SessionEvent {
                        number: event_number(row)?,
                        body: serde_json::from_slice(&body)?,
                    });
                }
            }
            events.retain(|event: &SessionEvent| event.number < end);
            events.sort_unstable_by_key(|event| event.number);
            events.truncate(limit as usize);
            Ok(events)
        };
        Ok(own.run_now_or_queue(read).await?)
    }

    async fn event_before(
        &self,
        session: &str,
        kind: &str,
        before: u64,
    ) -> Result<Option<SessionEvent>, ServerStoreError> {
        let own = self.for_session(session);
        let (session, kind) = (session.to_owned(), kind.to_owned());
        let before = i64::try_from(before).unwrap_or(i64::MAX);
        let read = move |journal: &Self, connection: &Connection| {
            let mut read = connection.prepare_cached(
                "SELECT number, body FROM session_events
                 WHERE session = ?1 AND kind = ?2 AND number < ?3
                 ORDER BY number DESC LIMIT 1",
            )?;
            let mut rows = read.query(params![session, kind, before])?;
            let Some(row) = rows.next()? else {
                return Ok(None);
            };
            Ok(Some(SessionEvent {
                number: event_number(row)?,
                body: journal.payloads.require_json(connection, row.get_ref(1)?)?,
            }))
        };
        Ok(own.run_now_or_queue(read).await?)
    }
}

/// Makes up to [`MAX_APPEND_ATTEMPTS`] attempts while their outcome is unknown, and returns the
/// last result.
async fn repeat_if<T, E: std::fmt::Display, F>(
    is_unknown: impl Fn(&E) -> bool,
    attempt: impl Fn() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    for _ in 1..MAX_APPEND_ATTEMPTS {
        match attempt().await {
            Err(error) if is_unknown(&error) => {
                tracing::error!(%error, "appending events again");
                tokio::time::sleep(APPEND_RETRY_INTERVAL).await;
            }
            done => return done,
        }
    }
    attempt().await
}

/// Events to append to a session.
struct NewEvents {
    session: String,
    bodies: Vec<Value>,
    /// The number that the last attempt gave the first event; 0 before the first attempt.
    attempted: AtomicI64,
}

impl Journal {
    /// Appends events, and returns the number of the first one. If an earlier attempt, whose
    /// outcome is unknown, has stored them, returns the number that they have.
    fn append_events_in(
        &self,
        connection: &Connection,
        events: &NewEvents,
    ) -> Result<u64, JournalError> {
        let NewEvents {
            session,
            bodies,
            attempted,
        } = events;
        // Numbers are assigned under a lock, so that they become visible in their order. An attempt
        // that has not ended yet still holds it.
        let lock = format!("events {session}");
        connection.lock_name(&lock, NamedLockMode::Exclusive);
        let earlier = attempted.load(Ordering::Relaxed);
        if let Some(body) = bodies.first()
            && self.is_event_stored(connection, session, earlier, body)?
        {
            return Ok(earlier.unsigned_abs());
        }
        let sql = "SELECT coalesce(max(number), 0) + 1 FROM session_events WHERE session = ?1";
        let first: i64 = query_first(connection, sql, params![session])?.unwrap_or(1);
        attempted.store(first, Ordering::Relaxed);
        for (number, body) in (first..).zip(bodies) {
            let payload = self.payloads.put_json(connection, body)?;
            let kind = body["type"].as_str().unwrap_or_default();
            execute(
                connection,
                "INSERT INTO session_events (session, number, kind, body, at_ms, turn)
                 VALUES (?1, ?2, ?3, ?4, ?5, (SELECT turn FROM items
                    WHERE session = ?1 ORDER BY items.number DESC LIMIT 1))",
                params![session, number, kind, payload, now_ms()],
            )?;
        }
        connection.notify(&events_topic(session));
        Ok(first.unsigned_abs())
    }

    fn is_event_stored(
        &self,
        connection: &Connection,
        session: &str,
        number: i64,
        body: &Value,
    ) -> Result<bool, JournalError> {
        if number == 0 {
            return Ok(false);
        }
        let mut read = connection
            .prepare_cached("SELECT body FROM session_events WHERE session = ?1 AND number = ?2")?;
        let mut rows = read.query(params![session, number])?;
        let Some(row) = rows.next()? else {
            return Ok(false);
        };
        let stored = self.payloads.require_bytes(connection, row.get_ref(0)?)?;
        Ok(stored == serde_json::to_vec(body)?)
    }

    /// Replaces the events of a turn by events without content, so that the numbers have no gap.
    pub(crate) fn clear_events(
        &self,
        connection: &Connection,
        session: &str,
        turn: u32,
    ) -> Result<(), JournalError> {
        const FORGOTTEN: &str = "event.forgotten";
        let sql = "SELECT number FROM session_events WHERE session = ?1 AND turn = ?2";
        let numbers: Vec<i64> = query_column(connection, sql, params![session, turn])?;
        let body = json!({"type": FORGOTTEN});
        let body = self.payloads.put_json(connection, &body)?;
        for number in numbers {
            let sql = "UPDATE session_events SET kind = ?3, body = ?4
                WHERE session = ?1 AND number = ?2";
            execute(connection, sql, params![session, number, FORGOTTEN, body])?;
        }
        Ok(())
    }
}

/// Returns the number of an event from its first column. Numbers begin at 1.
fn event_number(row: Row<'_>) -> Result<u64, JournalError> {
    Ok(row.get::<i64>(0)?.unsigned_abs())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::test_store::store;

    #[test]
    fn an_append_of_unknown_outcome_is_made_three_times() {
        for (error, expected) in [("unknown", 3), ("full", 1)] {
            let attempts = AtomicI64::new(0);
            let attempt = || {
                attempts.fetch_add(1, Ordering::Relaxed);
                std::future::ready(Err::<(), _>(error))
            };
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().build().unwrap();
            let done = runtime.block_on(repeat_if(|error: &&str| *error == "unknown", attempt));
            assert_eq!(done, Err(error));
            assert_eq!(attempts.load(Ordering::Relaxed), expected, "{error}");
        }
    }

    #[test]
    fn events_are_stored_once_if_the_outcome_of_their_commit_was_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(store(dir.path())).unwrap();
        let events = || NewEvents {
            session: "ses_1".to_owned(),
            bodies: vec![json!({"type": "a", "cost": 0.1}), json!({"type": "b"})],
            attempted: AtomicI64::new(0),
        };
        let append = |events: &NewEvents| {
            let written = journal.write(|connection| journal.append_events_in(connection, events));
            written.unwrap()
        };
        // The first attempt was committed, but the connection was lost before its answer.
        let first = events();
        assert_eq!(append(&first), 1);
        assert_eq!(append(&first), 1);
        // The same events again are others.
        let second = events();
        let undone = journal.write(|connection| {
            journal.append_events_in(connection, &second)?;
            Err::<(), _>(JournalError::Panicked)
        });
        assert!(undone.is_err());
        assert_eq!(append(&second), 3);
        let sql = "SELECT number FROM session_events WHERE session = 'ses_1' ORDER BY number";
        let connection = journal.flushed_connection();
        let numbers: Vec<i64> = query_column(&connection, sql, params![]).unwrap();
        assert_eq!(numbers, [1, 2, 3, 4]);
    }
}
