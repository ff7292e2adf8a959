//! Sessions that scripts create, messages to sessions, and which session waits for which.

use std::collections::HashMap;

use async_trait::async_trait;
use selvedge_database::{Connection, NamedLockMode, OptionalRow, Row, params};
use selvedge_protocol::{
    AuthorKind, ClaimedMessage, InboxMessage, InboxState, MAX_CREATED_SESSIONS, MAX_HOPS,
    MAX_INBOX_MESSAGE_BYTES, MAX_SESSION_DEPTH, MAX_TITLE_CHARS, NewInboxMessage, NewSession,
    SessionError, SessionFilter, SessionFolder, SessionInfo, SessionState, SessionStore,
    SessionWait, new_id,
};

use crate::connection::{execute, in_folders_condition, query_column, query_first};
use crate::inbox::{QueueRefusal, payer_lock};
use crate::session_queues::{client_session_count, open_message_count};
use crate::session_title::TITLE_COLUMNS;
use crate::sessions::insert_session;
use crate::time::now_ms;
use crate::{Journal, JournalError};

const SESSION_COLUMNS: &str = "id, coalesce(title, name), environment, directory, creator,
    owner, permissions, worktree,
    (SELECT count(*) FROM inbox WHERE session = sessions.id AND ended_ms IS NULL), touched_ms";
/// The number of these columns.
const SESSION_COLUMN_COUNT: usize = 10;
/// The fewest and most rows that a list of sessions reads at once, besides the next one.
const LIST_BATCH: (u32, u32) = (20, 200);

/// What a transaction returns: an error that is not one of the storage rolls nothing back, because
/// it is returned before the first write.
type Checked<T> = Result<Result<T, SessionError>, JournalError>;

#[async_trait]
impl SessionStore for Journal {
    async fn create(&self, session: NewSession) -> Result<SessionInfo, SessionError> {
        if let Some(prompt) = &session.prompt {
            check_text(prompt)?;
        }
        let id = new_id("ses");
        let claim = self.claim_of_author(&session.creator);
        self.write_async(move |journal, connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.create_in(connection, &session, &id)
        })
        .await?
    }

    async fn get(&self, id: &str) -> Result<SessionInfo, SessionError> {
        let own = self.for_session(id);
        let id = id.to_owned();
        let read =
            move |journal: &Self, connection: &Connection| journal.session_info(connection, &id);
        Ok(own.run_now_or_queue(read).await?)
    }

    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionInfo>, SessionError> {
        let read = move |journal: &Self, connection: &Connection| {
            journal.list_session_infos(connection, &filter)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn send(&self, message: NewInboxMessage) -> Result<InboxMessage, SessionError> {
        check_text(&message.text)?;
        let claim = self.claim_of_author(&message.author);
        let own = self.for_session(&message.session);
        own.write_async(move |journal, connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.send_in(connection, message.clone())
        })
        .await?
    }

    async fn queue(&self, session: &str) -> Result<Vec<InboxMessage>, SessionError> {
        let own = self.for_session(session);
        let session = session.to_owned();
        let read = move |journal: &Self, connection: &Connection| {
            journal.open_messages(connection, &session)
        };
        Ok(own.run_now_or_queue(read).await?)
    }

    async fn message(&self, session: &str, number: u32) -> Result<InboxMessage, SessionError> {
        let own = self.for_session(session);
        let id = session.to_owned();
        let read = move |journal: &Self, connection: &Connection| {
            journal.inbox_message(connection, &id, number)
        };
        let found = own.run_now_or_queue(read).await?;
        found.ok_or_else(|| SessionError::MessageNotFound(session.to_owned(), number))
    }

    async fn claim_next(&self, session: &str) -> Result<Option<ClaimedMessage>, SessionError> {
        let own = self.for_session(session);
        let claim = self.claim_of(session);
        let session = session.to_owned();
        let claim_message = move |journal: &Self, connection: &Connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.claim_message_in(connection, &session)
        };
        Ok(own.write_async(claim_message).await?)
    }

    async fn finish(
        &self,
        message: &InboxMessage,
        state: InboxState,
        answer: String,
    ) -> Result<(), SessionError> {
        let claim = self.claim_of(&message.session);
        let own = self.for_session(&message.session);
        let message = message.clone();
        let finish = move |journal: &Self, connection: &Connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.end_message(connection, &message, state, &answer)
        };
        Ok(own.write_async(finish).await?)
    }

    async fn begin_wait(&self, wait: SessionWait) -> Result<(), SessionError> {
        let claim = self.claim_of(&wait.waiter);
        self.write_async(move |journal, connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.begin_wait_in(connection, &wait)
        })
        .await?
    }

    async fn end_wait(&self, id: &str) -> Result<(), SessionError> {
        let id = id.to_owned();
        let end = move |_: &Self, connection: &Connection| {
            execute(
                connection,
                "DELETE FROM session_waits WHERE id = ?1",
                params![id],
            )
        };
        Ok(self.write_async(end).await?)
    }
}

impl Journal {
    /// Stores how the turn of a message ended, and releases its session in the same transaction. So
    /// no other process can claim the session while its message is not answered, and a client that
    /// reads the answer finds the session free.
    pub async fn finish_and_release(
        &self,
        message: &InboxMessage,
        state: InboxState,
        answer: String,
    ) -> Result<(), SessionError> {
        let claim = self.claim_of(&message.session);
        let own = self.for_session(&message.session);
        let message = message.clone();
        let finish = move |journal: &Self, connection: &Connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.end_message(connection, &message, state, &answer)?;
            match &claim {
                Some(claim) => journal.release_in(connection, claim),
                None => Ok(()),
            }
        };
        Ok(own.write_async(finish).await?)
    }

    fn create_in(
        &self,
        connection: &Connection,
        session: &NewSession,
        id: &str,
    ) -> Checked<SessionInfo> {
        if let Some(earlier) = message_with_key(connection, session.idempotency_key.as_deref())? {
            return self.session_info(connection, &earlier.0).map(Ok);
        }
        let creator = Some(&session.creator.id);
        let creator = creator.filter(|_| session.creator.kind == AuthorKind::Session);
        let mut depth = 0;
        if let Some(creator) = creator {
            let above = "SELECT depth FROM sessions WHERE id = ?1";
            let above: Option<u32> = query_first(connection, above, params![creator])?;
            depth = above.unwrap_or(0) + 1;
            let lock = format!("created by {creator}");
            connection.lock_name(&lock, NamedLockMode::Exclusive);
            let created = "SELECT count(*) FROM sessions WHERE creator = ?1";
            let created: Option<u32> = query_first(connection, created, params![creator])?;
            if depth > MAX_SESSION_DEPTH {
                return Ok(Err(SessionError::TooDeep));
            }
            if created.unwrap_or(0) >= MAX_CREATED_SESSIONS {
                return Ok(Err(SessionError::TooManyCreated));
            }
        }
        let position = self.causal_position(connection, &session.creator)?;
        if session.prompt.is_some() && position.hops > MAX_HOPS {
            return Ok(Err(SessionError::TooManyHops));
        }
        if let Some(payer) = &position.payer {
            connection.lock_name(&payer_lock(payer), NamedLockMode::Exclusive);
        }
        if let Some(limit) = session.max_open_messages
            && let (Some(_), Some(payer)) = (&session.prompt, &position.payer)
            && open_message_count(connection, payer)? >= limit
        {
            return Ok(Err(SessionError::TooManyOpen(limit)));
        }
        if let Some(limit) = session.max_client_sessions
            && session.creator.kind == AuthorKind::Client
            && client_session_count(connection, &session.creator.id)? >= limit
        {
            return Ok(Err(SessionError::TooManySessions(limit)));
        }
        insert_session(connection, id, &session.directory, now_ms(), None)?;
        let title = session.title.as_deref().map(|title| {
            let line = title.split_whitespace().collect::<Vec<_>>().join(" ");
            line.chars().take(MAX_TITLE_CHARS).collect::<String>()
        });
        execute(
            connection,
            "UPDATE sessions SET title = ?2, environment = ?3, creator = ?4, depth = ?5,
                permissions = ?6, worktree = ?7, client = ?8 WHERE id = ?1",
            params![
                id,
                title.filter(|title| !title.is_empty()),
                session.environment,
                creator,
                depth,
                session
                    .permissions
                    .as_ref()
                    .map(serde_json::to_string)
                    .transpose()?,
                session.folder == SessionFolder::Worktree,
                Some(&session.creator.id).filter(|_| session.creator.kind == AuthorKind::Client),
            ],
        )?;
        if let Some(prompt) = &session.prompt {
            let first = NewInboxMessage {
                session: id.to_owned(),
                author: session.creator.clone(),
                text: prompt.clone(),
                permissions: session.permissions.clone(),
                idempotency_key: session.idempotency_key.clone(),
                max_open_messages: None,
            };
            // A new session has an empty queue and the workspace of its permissions.
            let _ = self.queue_message(connection, &first, &position)?;
        }
        self.session_info(connection, id).map(Ok)
    }

    fn send_in(
        &self,
        connection: &Connection,
        mut message: NewInboxMessage,
    ) -> Checked<InboxMessage> {
        let missing = || JournalError::Damaged("a queued message is missing".into());
        if let Some((session, number)) =
            message_with_key(connection, message.idempotency_key.as_deref())?
        {
            let earlier = self.inbox_message(connection, &session, number)?;
            return earlier.ok_or_else(missing).map(Ok);
        }
        let session = self.session_info(connection, &message.session)?;
        let position = self.causal_position(connection, &message.author)?;
        if position.hops > MAX_HOPS {
            return Ok(Err(SessionError::TooManyHops));
        }
        if let Some(permissions) = &mut message.permissions
            && message.author.kind == AuthorKind::Session
            && session.creator.as_ref() == Some(&message.author.id)
        {
            // The workspace was allowed when the session was created.
            permissions.workspace.clone_from(&session.directory);
        }
        if !message.author.kind.is_person() {
            message.text = format!(
                "Message from {} {}:\n\n{}",
                message.author.kind.as_str(),
                message.author.id,
                message.text
            );
        }
        match self.queue_message(connection, &message, &position)? {
            Ok(number) => {
                let queued = self.inbox_message(connection, &session.id, number)?;
                queued.ok_or_else(missing).map(Ok)
            }
            Err(QueueRefusal::Full) => Ok(Err(SessionError::QueueFull(session.id))),
            Err(QueueRefusal::OtherWorkspace) => Ok(Err(SessionError::OtherWorkspace(session.id))),
            Err(QueueRefusal::TooManyOpen(limit)) => Ok(Err(SessionError::TooManyOpen(limit))),
        }
    }

    /// Returns the session with this id. Fails with [`JournalError::SessionNotFound`].
    fn session_info(&self, connection: &Connection, id: &str) -> Result<SessionInfo, JournalError> {
        let sql = format!("SELECT {SESSION_COLUMNS} FROM sessions WHERE id = ?1");
        let mut read = connection.prepare_cached(&sql)?;
        let mut rows = read.query(params![id])?;
        match rows.next()? {
            Some(row) => {
                let is_alive = |owner: &str| self.is_owner_alive(connection, owner);
                let session = read_session_info(row, is_alive)?;
                let session = self.with_served_state(connection, session, &mut None)?;
                self.with_title(connection, session)
            }
            None => Err(JournalError::SessionNotFound(id.to_owned())),
        }
    }

    /// Gives a session without a title one from its first message.
    fn with_title(
        &self,
        connection: &Connection,
        mut session: SessionInfo,
    ) -> Result<SessionInfo, JournalError> {
        if session.title.is_none() {
            session.title = self.title_from_message(connection, &session.id)?;
        }
        Ok(session)
    }

    fn list_session_infos(
        &self,
        connection: &Connection,
        filter: &SessionFilter,
    ) -> Result<Vec<SessionInfo>, JournalError> {
        let in_workspaces = in_folders_condition("directory", "?1");
        let sql = format!(
            "SELECT {SESSION_COLUMNS}, {TITLE_COLUMNS} FROM sessions
             WHERE parent IS NULL AND touched_ms <= ?4 AND (touched_ms < ?4 OR id > ?5)
             AND (?1 = '[]' OR {in_workspaces})
             AND (environment = ?2 OR ?2 IS NULL)
             AND (creator = ?3 OR ?3 IS NULL)
             ORDER BY touched_ms DESC, id LIMIT ?6"
        );
        let workspaces = serde_json::to_string(&filter.workspaces)?;
        let batch = filter.limit.clamp(LIST_BATCH.0, LIST_BATCH.1) + 1;
        let mut sessions: Vec<SessionInfo> = Vec::new();
        // Each process is checked once, because it may have many sessions.
        let mut alive: HashMap<String, bool> = HashMap::new();
        let mut served = None;
        // The last row that was read.
        let mut touched_ms = filter.touched_before_ms.unwrap_or(i64::MAX);
        let mut last: Option<String> = None;
        loop {
            let mut read = connection.prepare_cached(&sql)?;
            let (environment, creator) = (&filter.environment, &filter.creator);
            let values = params![workspaces, environment, creator, touched_ms, last, batch];
            let mut rows = read.query(values)?;
            let mut count = 0;
            while let Some(row) = rows.next()? {
                count += 1;
                let mut session = read_session_info(row, |owner| match alive.get(owner) {
                    Some(known) => Ok(*known),
                    None => {
                        let is_alive = self.is_owner_alive(connection, owner)?;
                        alive.insert(owner.to_owned(), is_alive);
                        Ok(is_alive)
                    }
                })?;
                touched_ms = session.touched_ms;
                last = Some(session.id.clone());
                // A page does not end between sessions that several servers touched in the same
                // millisecond, because the next page begins after them.
                let is_after = |last: &SessionInfo| last.touched_ms != session.touched_ms;
                if sessions.len() >= filter.limit as usize && sessions.last().is_none_or(is_after) {
                    return Ok(sessions);
                }
                let is_in_folder = filter.include_subfolders
                    || filter.workspaces.is_empty()
                    || filter.workspaces.contains(&session.directory);
                session = self.with_served_state(connection, session, &mut served)?;
                if !is_in_folder || filter.state.is_some_and(|state| state != session.state) {
                    continue;
                }
                if session.title.is_none() {
                    let first = SESSION_COLUMN_COUNT;
                    session.title = self.title_in_row(connection, &session.id, row, first)?;
                }
                let is_titled = |part: &String| {
                    let title = session.title.as_deref().unwrap_or_default();
                    title.to_lowercase().contains(&part.to_lowercase())
                };
                if filter.title.as_ref().is_none_or(is_titled) {
                    sessions.push(session);
                }
            }
            if count < batch {
                return Ok(sessions);
            }
        }
    }

    fn begin_wait_in(&self, connection: &Connection, wait: &SessionWait) -> Checked<()> {
        let SessionWait { id, waiter, target } = wait;
        connection.lock_name("session_waits", NamedLockMode::Exclusive);
        let sql = "SELECT DISTINCT owner FROM session_waits";
        let owners: Vec<String> = query_column(connection, sql, params![])?;
        for owner in &owners {
            if *owner != self.owner.id && self.may_replace_owner(connection, owner)? {
                let sql = "DELETE FROM session_waits WHERE owner = ?1";
                execute(connection, sql, params![owner])?;
            }
        }
        let sql = "WITH RECURSIVE reached(id) AS (
                SELECT target FROM session_waits WHERE waiter = ?1
                UNION SELECT session_waits.target FROM session_waits
                    JOIN reached ON session_waits.waiter = reached.id)
             SELECT 1 FROM reached WHERE id = ?2";
        let mut read = connection.prepare_cached(sql)?;
        if target == waiter || read.exists(params![target, waiter])? {
            return Ok(Err(SessionError::Circular(target.clone())));
        }
        let sql = "INSERT INTO session_waits (id, waiter, target, owner) VALUES (?1, ?2, ?3, ?4)";
        execute(connection, sql, params![id, waiter, target, self.owner.id])?;
        Ok(Ok(()))
    }
}

/// Reads a session from a row that begins with the [`SESSION_COLUMNS`].
fn read_session_info(
    row: Row<'_>,
    is_alive: impl FnOnce(&str) -> Result<bool, JournalError>,
) -> Result<SessionInfo, JournalError> {
    let (owner, permissions): (Option<String>, Option<String>) = (row.get(5)?, row.get(6)?);
    let permissions = permissions.map(|json| serde_json::from_str(&json));
    let is_busy = owner.map(|owner| is_alive(&owner)).transpose()?;
    Ok(SessionInfo {
        id: row.get(0)?,
        title: row.get(1)?,
        environment: row.get(2)?,
        directory: row.get(3)?,
        creator: row.get(4)?,
        state: match is_busy.unwrap_or(false) {
            true => SessionState::Busy,
            false => SessionState::Idle,
        },
        queued: row.get(8)?,
        folder: match row.get(7)? {
            true => SessionFolder::Worktree,
            false => SessionFolder::Shared,
        },
        permissions: permissions.transpose()?,
        touched_ms: row.get(9)?,
    })
}

/// Returns session and number of the message that was sent with this idempotency key.
pub(crate) fn message_with_key(
    connection: &Connection,
    key: Option<&str>,
) -> Result<Option<(String, u32)>, JournalError> {
    let Some(key) = key else {
        return Ok(None);
    };
    let sql = "SELECT session, number FROM inbox WHERE idempotency_key = ?1";
    let mut read = connection.prepare_cached(sql)?;
    let found = read.query_row(params![key], |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(found.optional()?)
}

fn check_text(text: &str) -> Result<(), SessionError> {
    match text.len() {
        _ if text.trim().is_empty() => Err(SessionError::EmptyMessage),
        bytes if bytes > MAX_INBOX_MESSAGE_BYTES => Err(SessionError::MessageTooLong(bytes)),
        _ => Ok(()),
    }
}
