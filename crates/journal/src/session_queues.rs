//! The work of an agent server in the queues of sessions.

use std::collections::HashMap;

use async_trait::async_trait;
use selvedge_database::{Connection, NamedLockMode, Row, params};
use selvedge_protocol::{
    FailedMessage, InboxMessage, NextMessage, RemovedMessage, ServerStoreError, SessionQueueStore,
    WaitingSession,
};

use crate::connection::{execute, query_first};
use crate::inbox::{inbox_lock, read_author};
use crate::notices::QUEUES_TOPIC;
use crate::session_store::message_with_key;
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// How many sessions are searched for failed messages, the last used first.
const SEARCHED_SESSIONS: u32 = 200;

#[async_trait]
impl SessionQueueStore for Journal {
    async fn waiting_sessions(&self) -> Result<Vec<WaitingSession>, ServerStoreError> {
        let read = |journal: &Self, connection: &Connection| {
            let mut read = connection.prepare_cached(
                "SELECT inbox.session, directory, author_kind, author, payer, sessions.owner
                 FROM (SELECT session, min(number) AS number FROM inbox
                    WHERE ended_ms IS NULL GROUP BY session) AS oldest
                 JOIN inbox ON inbox.session = oldest.session AND inbox.number = oldest.number
                 JOIN sessions ON sessions.id = inbox.session",
            )?;
            let mut rows = read.query(params![])?;
            let mut waiting = Vec::new();
            // Each process is checked once, because it may have many sessions.
            let mut replaceable: HashMap<String, bool> = HashMap::new();
            while let Some(row) = rows.next()? {
                let owner: Option<String> = row.get(5)?;
                let is_free = match &owner {
                    None => true,
                    Some(owner) => match replaceable.get(owner) {
                        Some(known) => *known,
                        None => {
                            let is_free = journal.is_replaceable(connection, owner)?;
                            *replaceable.entry(owner.clone()).or_insert(is_free)
                        }
                    },
                };
                waiting.push(WaitingSession {
                    id: row.get(0)?,
                    directory: row.get(1)?,
                    author: read_author(row, 2)?,
                    payer: row.get(4)?,
                    owner,
                    is_free,
                });
            }
            Ok(waiting)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn queues_changed(&self, seen: &mut u64) {
        self.notices.changed(QUEUES_TOPIC, seen).await;
    }

    async fn next_message(&self, session: &str) -> Result<Option<NextMessage>, ServerStoreError> {
        let session = session.to_owned();
        let read = move |_: &Self, connection: &Connection| {
            let mut read = connection.prepare_cached(
                "SELECT number, author_kind, author, payer FROM inbox
                 WHERE session = ?1 AND ended_ms IS NULL ORDER BY number LIMIT 1",
            )?;
            let mut rows = read.query(params![session])?;
            let row = rows.next()?;
            let read = |row: Row<'_>| {
                Ok(NextMessage {
                    number: row.get(0)?,
                    author: read_author(row, 1)?,
                    payer: row.get(3)?,
                })
            };
            row.map(read).transpose()
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn open_message_count(&self, payer: &str) -> Result<u32, ServerStoreError> {
        let payer = payer.to_owned();
        let read = move |_: &Self, connection: &Connection| open_message_count(connection, &payer);
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn session_count(&self, token: &str) -> Result<u32, ServerStoreError> {
        let token = token.to_owned();
        let read =
            move |_: &Self, connection: &Connection| client_session_count(connection, &token);
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn count_session(&self, session: &str, token: &str) -> Result<(), ServerStoreError> {
        let (session, token) = (session.to_owned(), token.to_owned());
        let count = move |_: &Self, connection: &Connection| {
            let sql = "UPDATE sessions SET client = ?2 WHERE id = ?1";
            execute(connection, sql, params![session, token])
        };
        Ok(self.write_async(count).await?)
    }

    async fn failed_messages(
        &self,
        folders: &[String],
        limit: u32,
    ) -> Result<Vec<FailedMessage>, ServerStoreError> {
        let folders = folders.to_vec();
        let read = move |journal: &Self, connection: &Connection| {
            let sql = "SELECT inbox.session, coalesce(title, name), turn, answer, ended_ms
                 FROM (SELECT id, title, name FROM sessions
                    WHERE directory IN (SELECT value FROM json_each(?1))
                    ORDER BY touched_ms DESC LIMIT ?2) AS used
                 JOIN inbox ON inbox.session = used.id
                 WHERE state = 'failed' AND ended_ms IS NOT NULL
                 ORDER BY ended_ms DESC, inbox.session, number DESC LIMIT ?3";
            let folders = serde_json::to_string(&folders)?;
            let mut read = connection.prepare_cached(sql)?;
            let mut rows = read.query(params![folders, SEARCHED_SESSIONS, limit])?;
            let mut failed = Vec::new();
            while let Some(row) = rows.next()? {
                let answer = journal.payloads.get(connection, row.get_ref(3)?)?;
                let session: String = row.get(0)?;
                let title = match row.get(1)? {
                    Some(title) => Some(title),
                    None => journal.title_from_message(connection, &session)?,
                };
                failed.push(FailedMessage {
                    session,
                    title,
                    turn: row.get(2)?,
                    error: String::from_utf8(answer.unwrap_or_default())?,
                    ended_ms: row.get(4)?,
                });
            }
            Ok(failed)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn message_by_key(&self, key: &str) -> Result<Option<InboxMessage>, ServerStoreError> {
        let key = key.to_owned();
        let read = move |journal: &Self, connection: &Connection| match message_with_key(
            connection,
            Some(&key),
        )? {
            Some((session, number)) => journal.inbox_message(connection, &session, number),
            None => Ok(None),
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn remove_message(
        &self,
        session: &str,
        number: u32,
    ) -> Result<RemovedMessage, ServerStoreError> {
        let session = session.to_owned();
        let remove = move |_: &Self, connection: &Connection| {
            connection.lock_name(&inbox_lock(&session), NamedLockMode::Exclusive);
            let which = params![session, number];
            let sql = "SELECT state FROM inbox WHERE session = ?1 AND number = ?2";
            let state: Option<String> = query_first(connection, sql, which)?;
            Ok(match state.as_deref() {
                None => RemovedMessage::NotFound,
                Some("queued") => {
                    let sql = "UPDATE inbox SET state = 'stopped', ended_ms = ?3
                        WHERE session = ?1 AND number = ?2";
                    execute(connection, sql, params![session, number, now_ms()])?;
                    RemovedMessage::Removed
                }
                Some(_) => RemovedMessage::AlreadyStarted,
            })
        };
        Ok(self.write_async(remove).await?)
    }
}

impl Journal {
    /// Returns whether another process, which has claimed something, is dead for certain.
    pub(crate) fn is_replaceable(
        &self,
        connection: &Connection,
        owner: &str,
    ) -> Result<bool, JournalError> {
        Ok(owner != self.owner.id && self.may_replace_owner(connection, owner)?)
    }
}

/// Returns the number of messages that are not answered and that a token pays for, by its name.
pub(crate) fn open_message_count(
    connection: &Connection,
    payer: &str,
) -> Result<u32, JournalError> {
    let sql = "SELECT count(*) FROM inbox WHERE payer = ?1 AND ended_ms IS NULL";
    Ok(query_first(connection, sql, params![payer])?.unwrap_or(0))
}

/// Returns the number of sessions that clients with a token of this name created.
pub(crate) fn client_session_count(
    connection: &Connection,
    token: &str,
) -> Result<u32, JournalError> {
    let sql = "SELECT count(*) FROM sessions WHERE client = ?1";
    Ok(query_first(connection, sql, params![token])?.unwrap_or(0))
}
