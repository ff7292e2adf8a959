//! Messages to sessions: each is stored, claimed by one process, and answered by a turn.

use selvedge_database::{Connection, NamedLockMode, OptionalRow, Row, params};
use selvedge_protocol::{
    AuthorKind, ClaimedMessage, InboxMessage, InboxState, MAX_QUEUED_MESSAGES, MessageAuthor,
    NewInboxMessage, is_login_name,
};

use crate::api_tokens::token_by_name;
use crate::connection::{execute, query_first};
use crate::notices::QUEUES_TOPIC;
use crate::session_queues::open_message_count;
use crate::time::now_ms;
use crate::{Journal, JournalError};

const SELECT_MESSAGE: &str = "SELECT session, number, author_kind, author, text, hops, cause,
    permissions, state, turn, answer, owner, payer FROM inbox";

/// Where a message stands in the chain of messages that sessions sent because of each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CausalPosition {
    pub(crate) hops: u32,
    pub(crate) cause: Option<String>,
    /// Name of the token whose client led to it.
    pub(crate) payer: Option<String>,
}

/// A message that is not answered.
struct OpenMessage {
    message: InboxMessage,
    /// The process that claimed it.
    owner: Option<String>,
    /// Name of the token that pays for its turn.
    payer: Option<String>,
}

/// Why a message cannot be queued for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueRefusal {
    Full,
    OtherWorkspace,
    TooManyOpen(u32),
}

impl std::fmt::Display for QueueRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full => write!(f, "{MAX_QUEUED_MESSAGES} messages wait for it already"),
            Self::OtherWorkspace => f.write_str(
                "it works outside of the workspace of the script; only a person can send to it",
            ),
            Self::TooManyOpen(limit) => {
                write!(f, "{limit} messages of this token are not answered yet")
            }
        }
    }
}

impl Journal {
    /// Claims the oldest message of a session that is not answered. Returns `None` if there is
    /// none, or another running process has claimed it. The caller has claimed the session, so a
    /// claim of this process is left from an attempt that failed. Messages of a token that may not
    /// be used any more fail.
    pub(crate) fn claim_message_in(
        &self,
        connection: &Connection,
        session: &str,
    ) -> Result<Option<ClaimedMessage>, JournalError> {
        connection.lock_name(&inbox_lock(session), NamedLockMode::Exclusive);
        let last_turn = last_turn(connection, session)?;
        while let Some(open) = self.oldest_open_message(connection, session)? {
            let OpenMessage {
                mut message,
                owner,
                payer,
            } = open;
            let is_claimed = message.state == InboxState::Claimed;
            if let Some(owner) = owner.filter(|owner| is_claimed && *owner != self.owner.id)
                && !self.may_replace_owner(connection, &owner)?
            {
                return Ok(None);
            }
            let claimed_turn = message.turn.filter(|_| is_claimed);
            if claimed_turn.is_some_and(|turn| turn < last_turn) {
                // A later turn has begun, so the turn of the message was interrupted.
                let end = "the turn was interrupted";
                self.end_message(connection, &message, InboxState::Failed, end)?;
                continue;
            }
            let payer = payer
                .map(|name| token_by_name(connection, &name))
                .transpose()?;
            if let Some(payer) = &payer
                && let Some(refusal) = payer.refusal_at(now_ms())
            {
                self.end_message(connection, &message, InboxState::Failed, &refusal)?;
                continue;
            }
            let begun = claimed_turn == Some(last_turn);
            let turn = if begun { last_turn } else { last_turn + 1 };
            execute(
                connection,
                "UPDATE inbox SET state = 'claimed', owner = ?3, turn = ?4
                 WHERE session = ?1 AND number = ?2",
                params![session, message.number, self.owner.id, turn],
            )?;
            (message.state, message.turn) = (InboxState::Claimed, Some(turn));
            return Ok(Some(ClaimedMessage {
                message,
                turn,
                begun,
                payer,
            }));
        }
        Ok(None)
    }

    /// Returns the oldest message that is not answered.
    fn oldest_open_message(
        &self,
        connection: &Connection,
        session: &str,
    ) -> Result<Option<OpenMessage>, JournalError> {
        let sql = format!(
            "{SELECT_MESSAGE} WHERE session = ?1 AND ended_ms IS NULL ORDER BY number LIMIT 1"
        );
        let mut read = connection.prepare_cached(&sql)?;
        let mut rows = read.query(params![session])?;
        match rows.next()? {
            Some(row) => Ok(Some(OpenMessage {
                message: self.read_message(connection, row)?,
                owner: row.get(11)?,
                payer: row.get(12)?,
            })),
            None => Ok(None),
        }
    }

    /// Returns the messages that are not answered, oldest first.
    pub(crate) fn open_messages(
        &self,
        connection: &Connection,
        session: &str,
    ) -> Result<Vec<InboxMessage>, JournalError> {
        let sql =
            format!("{SELECT_MESSAGE} WHERE session = ?1 AND ended_ms IS NULL ORDER BY number");
        let mut read = connection.prepare_cached(&sql)?;
        let mut rows = read.query(params![session])?;
        let mut messages = Vec::new();
        while let Some(row) = rows.next()? {
            messages.push(self.read_message(connection, row)?);
        }
        Ok(messages)
    }

    /// Returns a message to a session.
    pub(crate) fn inbox_message(
        &self,
        connection: &Connection,
        session: &str,
        number: u32,
    ) -> Result<Option<InboxMessage>, JournalError> {
        let sql = format!("{SELECT_MESSAGE} WHERE session = ?1 AND number = ?2");
        let mut read = connection.prepare_cached(&sql)?;
        let mut rows = read.query(params![session, number])?;
        let row = rows.next()?;
        row.map(|row| self.read_message(connection, row))
            .transpose()
    }

    /// Stores how the turn of a message ended.
    pub(crate) fn end_message(
        &self,
        connection: &Connection,
        message: &InboxMessage,
        state: InboxState,
        answer: &str,
    ) -> Result<(), JournalError> {
        let answer = self.payloads.put(connection, answer.as_bytes())?;
        execute(
            connection,
            "UPDATE inbox SET state = ?3, answer = ?4, ended_ms = ?5
             WHERE session = ?1 AND number = ?2",
            params![
                message.session,
                message.number,
                state.as_str(),
                answer,
                now_ms()
            ],
        )
    }

    /// Adds a message to the queue of a session, and returns its number.
    pub(crate) fn queue_message(
        &self,
        connection: &Connection,
        message: &NewInboxMessage,
        position: &CausalPosition,
    ) -> Result<Result<u32, QueueRefusal>, JournalError> {
        let session = &message.session;
        if let Some(permissions) = &message.permissions {
            let sql = "SELECT directory FROM sessions WHERE id = ?1";
            let directory: Option<String> = query_first(connection, sql, params![session])?;
            if !permissions.allows_workspace(&directory.unwrap_or_default()) {
                return Ok(Err(QueueRefusal::OtherWorkspace));
            }
        }
        connection.lock_name(&inbox_lock(session), NamedLockMode::Exclusive);
        let sql = "SELECT count(*) FROM inbox WHERE session = ?1 AND ended_ms IS NULL";
        let waiting: Option<u32> = query_first(connection, sql, params![session])?;
        if waiting.unwrap_or_default() >= MAX_QUEUED_MESSAGES {
            return Ok(Err(QueueRefusal::Full));
        }
        if let Some(payer) = &position.payer {
            connection.lock_name(&payer_lock(payer), NamedLockMode::Exclusive);
        }
        if let Some(limit) = message.max_open_messages
            && let Some(payer) = &position.payer
            && open_message_count(connection, payer)? >= limit
        {
            return Ok(Err(QueueRefusal::TooManyOpen(limit)));
        }
        let sql = "SELECT coalesce(max(number), 0) + 1 FROM inbox WHERE session = ?1";
        let number: u32 = query_first(connection, sql, params![session])?.unwrap_or(1);
        let permissions = message.permissions.as_ref();
        let permissions = permissions.map(serde_json::to_string).transpose()?;
        let text = self.payloads.put(connection, message.text.as_bytes())?;
        execute(
            connection,
            "INSERT INTO inbox (session, number, author_kind, author, text, hops, cause,
                permissions, state, queued_ms, idempotency_key, payer)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'queued', ?9, ?10, ?11)",
            params![
                session,
                number,
                message.author.kind.as_str(),
                message.author.id,
                text,
                position.hops,
                position.cause,
                permissions,
                now_ms(),
                message.idempotency_key,
                position.payer,
            ],
        )?;
        connection.notify(QUEUES_TOPIC);
        Ok(Ok(number))
    }

    /// Returns the position of a new message of this author. A turn that answers a message is one
    /// hop further than the message; a turn that a person started is the first hop, and so is a
    /// message of a program with a token.
    pub(crate) fn causal_position(
        &self,
        connection: &Connection,
        author: &MessageAuthor,
    ) -> Result<CausalPosition, JournalError> {
        let first_hop = |cause| CausalPosition {
            hops: 1,
            cause,
            payer: None,
        };
        match author.kind {
            AuthorKind::Person | AuthorKind::Client => {
                let is_client = author.kind == AuthorKind::Client;
                return Ok(CausalPosition {
                    hops: u32::from(is_client && !is_login_name(&author.id)),
                    cause: None,
                    payer: is_client.then(|| author.id.clone()),
                });
            }
            AuthorKind::Run => return Ok(first_hop(Some(author.id.clone()))),
            AuthorKind::Session => {}
        }
        let turn = last_turn(connection, &author.id)?;
        let this_turn = || Some(format!("{}/T-{turn}", author.id));
        let mut read = connection.prepare_cached(
            "SELECT hops, cause, payer FROM inbox
             WHERE session = ?1 AND turn = ?2 AND ended_ms IS NULL",
        )?;
        let trigger = read.query_row(params![author.id, turn], |row| {
            Ok(CausalPosition {
                hops: row.get(0)?,
                cause: row.get(1)?,
                payer: row.get(2)?,
            })
        });
        Ok(match trigger.optional()? {
            Some(trigger) => CausalPosition {
                hops: trigger.hops + 1,
                cause: trigger.cause.or_else(this_turn),
                payer: trigger.payer,
            },
            None => first_hop(this_turn()),
        })
    }

    fn read_message(
        &self,
        connection: &Connection,
        row: Row<'_>,
    ) -> Result<InboxMessage, JournalError> {
        let permissions: Option<String> = row.get(7)?;
        let permissions = permissions.map(|json| serde_json::from_str(&json));
        let answer = self.payloads.get(connection, row.get_ref(10)?)?;
        Ok(InboxMessage {
            session: row.get(0)?,
            number: row.get(1)?,
            author: read_author(row, 2)?,
            text: self.payloads.require_text(connection, row.get_ref(4)?)?,
            hops: row.get(5)?,
            cause: row.get(6)?,
            permissions: permissions.transpose()?,
            state: serde_json::from_value(row.get::<String>(8)?.into())?,
            turn: row.get(9)?,
            answer: answer.map(String::from_utf8).transpose()?,
        })
    }
}

/// Returns the lock of the queue of a session.
pub(crate) fn inbox_lock(session: &str) -> String {
    format!("inbox {session}")
}

/// Returns the lock of what a token has: its open messages and its sessions.
pub(crate) fn payer_lock(token: &str) -> String {
    format!("payer {token}")
}

/// Reads the author from two columns: its kind, and its id after that.
pub(crate) fn read_author(row: Row<'_>, column: usize) -> Result<MessageAuthor, JournalError> {
    let kind: String = row.get(column)?;
    Ok(MessageAuthor {
        kind: serde_json::from_value(kind.into())?,
        id: row.get(column + 1)?,
    })
}

/// Returns the number of the last turn of a session; zero if there is none.
fn last_turn(connection: &Connection, session: &str) -> Result<u32, JournalError> {
    let sql = "SELECT turn FROM items WHERE session = ?1 ORDER BY number DESC LIMIT 1";
    Ok(query_first(connection, sql, params![session])?.unwrap_or(0))
}
