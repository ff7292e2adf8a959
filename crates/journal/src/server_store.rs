//! Tokens of clients of the agent server, its work in the queues of sessions, and answers to
//! repeated requests.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use async_trait::async_trait;
use selvedge_database::{Connection, NamedLockMode, Row, ToParameter, params};
use selvedge_protocol::{
    ApiToken, ApiTokenStore, FailedMessage, IdempotencyStore, InboxMessage, NewApiToken,
    NextMessage, RemovedMessage, RepeatedRequest, ServerStoreError, SessionQueueStore, StoredReply,
    WaitingSession, new_id,
};

use crate::connection::{execute, query_column, query_first};
use crate::inbox::{inbox_lock, read_author};
use crate::notices::QUEUES_TOPIC;
use crate::session_store::message_with_key;
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// How many sessions are searched for failed messages, the last used first.
const SEARCHED_SESSIONS: u32 = 200;

/// How long the answer to a request with an idempotency key is kept at least, in milliseconds,
/// unless there are too many. Later it is removed with old runs.
const REPLY_RETENTION_MS: i64 = 24 * 3600 * 1000;
/// Bytes of an id that are listed for an answer. An id of a session is shorter.
const MAX_ID_BYTES: usize = 64;
/// Most sessions that are listed for an answer. One that names more is deleted with any session.
const MAX_REPLY_SESSIONS: usize = 32;
/// The column `sessions` of an answer that is deleted with any session.
pub(crate) const ANY_SESSION: &str = "*";
/// Most answers that are kept per token. The oldest ones are removed first.
const MAX_REPLIES_PER_TOKEN: u32 = 1000;

/// Most requests with an idempotency key that are handled at once per token.
const MAX_OPEN_REQUESTS: u32 = 100;

const SELECT_TOKEN: &str =
    "SELECT id, name, scopes, workspaces, created_ms, expires_ms, revoked_ms,
    max_cost, spent FROM api_tokens";

#[async_trait]
impl ApiTokenStore for Journal {
    async fn create_token(&self, token: NewApiToken) -> Result<ApiToken, ServerStoreError> {
        let id = new_id("tok");
        let create = move |_: &Self, connection: &Connection| {
            // Two tokens with nested workspaces must not be created at the same time.
            connection.lock_name("api_tokens", NamedLockMode::Exclusive);
            let sql = "SELECT 1 FROM api_tokens WHERE name = ?1 OR id = ?1";
            if connection
                .prepare_cached(sql)?
                .exists(params![token.name])?
            {
                return Ok(Err(ServerStoreError::TokenNameTaken(token.name.clone())));
            }
            let valid = format!("{SELECT_TOKEN} WHERE revoked_ms IS NULL");
            let mut others = read_tokens(connection, &valid)?;
            others.retain(|other| other.is_valid_at(now_ms()));
            if let Some(nested) = nested_workspaces(&token.workspaces, &others) {
                return Ok(Err(nested));
            }
            execute(
                connection,
                "INSERT INTO api_tokens (id, name, secret_hash, scopes, workspaces, created_ms,
                    expires_ms, max_cost) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    id,
                    token.name,
                    token.secret_hash,
                    serde_json::to_string(&token.scopes)?,
                    serde_json::to_string(&token.workspaces)?,
                    now_ms(),
                    token.expires_ms,
                    token.max_cost,
                ],
            )?;
            let created = first_token(connection, &format!("{SELECT_TOKEN} WHERE id = ?1"), &id)?;
            Ok(created.ok_or(ServerStoreError::TokenNotFound(id.clone())))
        };
        self.write_async(create).await?
    }

    async fn tokens(&self) -> Result<Vec<ApiToken>, ServerStoreError> {
        let read = |_: &Self, connection: &Connection| {
            let sql = format!("{SELECT_TOKEN} ORDER BY created_ms DESC, id");
            read_tokens(connection, &sql)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn token_by_hash(&self, hash: [u8; 32]) -> Result<Option<ApiToken>, ServerStoreError> {
        let read = move |_: &Self, connection: &Connection| {
            let sql = format!("{SELECT_TOKEN} WHERE secret_hash = ?1");
            first_token(connection, &sql, hash)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn revoke_token(&self, name: &str) -> Result<ApiToken, ServerStoreError> {
        let wanted = name.to_owned();
        let revoke = move |_: &Self, connection: &Connection| {
            let sql = "UPDATE api_tokens SET revoked_ms = coalesce(revoked_ms, ?2)
                WHERE id = ?1 OR name = ?1";
            execute(connection, sql, params![wanted, now_ms()])?;
            let sql = format!("{SELECT_TOKEN} WHERE id = ?1 OR name = ?1");
            first_token(connection, &sql, &wanted)
        };
        let revoked = self.write_async(revoke).await?;
        revoked.ok_or_else(|| ServerStoreError::TokenNotFound(name.to_owned()))
    }

    async fn create_login(&self, hash: [u8; 32], expires_ms: i64) -> Result<(), ServerStoreError> {
        let create = move |_: &Self, connection: &Connection| {
            let sql = "DELETE FROM api_logins WHERE expires_ms <= ?1";
            execute(connection, sql, params![now_ms()])?;
            let sql = "INSERT INTO api_logins (secret_hash, expires_ms) VALUES (?1, ?2)";
            execute(connection, sql, params![hash, expires_ms])
        };
        Ok(self.write_async(create).await?)
    }

    async fn take_login(&self, hash: [u8; 32]) -> Result<bool, ServerStoreError> {
        let take = move |_: &Self, connection: &Connection| {
            let sql = "DELETE FROM api_logins WHERE secret_hash = ?1 AND expires_ms > ?2";
            let taken = connection
                .prepare_cached(sql)?
                .execute(params![hash, now_ms()])?;
            Ok(taken > 0)
        };
        Ok(self.write_async(take).await?)
    }
}

/// Returns the token with this name. Tokens are never deleted.
pub(crate) fn token_by_name(connection: &Connection, name: &str) -> Result<ApiToken, JournalError> {
    let found = first_token(connection, &format!("{SELECT_TOKEN} WHERE name = ?1"), name)?;
    found.ok_or_else(|| JournalError::Damaged(format!("the token `{name}` is missing")))
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

/// Returns the error for a workspace that lies in another one, of `workspaces` or of `tokens`.
fn nested_workspaces(workspaces: &[String], tokens: &[ApiToken]) -> Option<ServerStoreError> {
    let others = tokens.iter().flat_map(|token| &token.workspaces);
    let others: Vec<&String> = others.chain(workspaces).collect();
    workspaces.iter().find_map(|one| {
        others.iter().find_map(|other| {
            let (inner, outer) = match one.len() > other.len() {
                true => (one, *other),
                false => (*other, one),
            };
            let is_nested = inner != outer && Path::new(inner).starts_with(outer);
            is_nested.then(|| ServerStoreError::NestedWorkspaces {
                inner: inner.clone(),
                outer: outer.clone(),
            })
        })
    })
}

fn read_tokens(connection: &Connection, sql: &str) -> Result<Vec<ApiToken>, JournalError> {
    let mut read = connection.prepare_cached(sql)?;
    let mut rows = read.query(params![])?;
    let mut tokens = Vec::new();
    while let Some(row) = rows.next()? {
        tokens.push(read_token(row)?);
    }
    Ok(tokens)
}

fn first_token(
    connection: &Connection,
    sql: &str,
    param: impl ToParameter,
) -> Result<Option<ApiToken>, JournalError> {
    let mut read = connection.prepare_cached(sql)?;
    let mut rows = read.query(params![param])?;
    rows.next()?.map(read_token).transpose()
}

fn read_token(row: Row<'_>) -> Result<ApiToken, JournalError> {
    Ok(ApiToken {
        id: row.get(0)?,
        name: row.get(1)?,
        scopes: serde_json::from_str(&row.get::<String>(2)?)?,
        workspaces: serde_json::from_str(&row.get::<String>(3)?)?,
        created_ms: row.get(4)?,
        expires_ms: row.get(5)?,
        revoked_ms: row.get(6)?,
        max_cost: row.get(7)?,
        spent: row.get(8)?,
    })
}

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

#[async_trait]
impl IdempotencyStore for Journal {
    async fn begin_request(
        &self,
        token: &str,
        key: &str,
        digest: [u8; 32],
    ) -> Result<RepeatedRequest, ServerStoreError> {
        let (token, key) = (token.to_owned(), key.to_owned());
        let begin = move |journal: &Self, connection: &Connection| {
            journal.begin_request_in(connection, &token, &key, digest)
        };
        Ok(self.write_async(begin).await?)
    }

    async fn end_request(
        &self,
        token: &str,
        key: &str,
        reply: Option<StoredReply>,
    ) -> Result<(), ServerStoreError> {
        let (token, key) = (token.to_owned(), key.to_owned());
        let sessions = reply.as_ref().map(|reply| named_sessions(&reply.body));
        let end = move |journal: &Self, connection: &Connection| match &reply {
            Some(reply) => {
                let body = journal.payloads.put(connection, reply.body.as_bytes())?;
                let sql = "UPDATE api_replies
                    SET status = ?3, body = ?4, at_ms = ?5, content_type = ?6, sessions = ?8
                    WHERE token = ?1 AND key = ?2 AND owner = ?7";
                let (kind, owner) = (&reply.content_type, &journal.owner.id);
                let row = params![
                    token,
                    key,
                    reply.status,
                    body,
                    now_ms(),
                    kind,
                    owner,
                    sessions
                ];
                execute(connection, sql, row)
            }
            None => {
                let sql = "DELETE FROM api_replies WHERE token = ?1 AND key = ?2 AND owner = ?3";
                execute(connection, sql, params![token, key, journal.owner.id])
            }
        };
        Ok(self.write_async(end).await?)
    }
}

impl Journal {
    fn begin_request_in(
        &self,
        connection: &Connection,
        token: &str,
        key: &str,
        digest: [u8; 32],
    ) -> Result<RepeatedRequest, JournalError> {
        let lock = format!("requests {token}");
        connection.lock_name(&lock, NamedLockMode::Exclusive);
        let earlier = {
            let mut read = connection.prepare_cached(
                "SELECT digest, owner, status, body, content_type FROM api_replies
                 WHERE token = ?1 AND key = ?2",
            )?;
            let mut rows = read.query(params![token, key])?;
            match rows.next()? {
                None => None,
                Some(row) => {
                    let body = self.payloads.get(connection, row.get_ref(3)?)?;
                    let digest: [u8; 32] = row.get(0)?;
                    let (owner, status): (String, Option<u16>) = (row.get(1)?, row.get(2)?);
                    let content_type: Option<String> = row.get(4)?;
                    let reply = status.map(|status| (status, content_type, body));
                    Some((digest, owner, reply))
                }
            }
        };
        match earlier {
            Some((other, ..)) if other != digest => return Ok(RepeatedRequest::OtherRequest),
            Some((_, _, Some((status, content_type, body)))) => {
                return Ok(RepeatedRequest::Answered(StoredReply {
                    status,
                    content_type: content_type.unwrap_or_default(),
                    body: String::from_utf8(body.unwrap_or_default())?,
                }));
            }
            Some((_, owner, None)) if !self.is_replaceable(connection, &owner)? => {
                return Ok(RepeatedRequest::InProgress);
            }
            _ => {}
        }
        let sql = "SELECT owner FROM api_replies WHERE token = ?1 AND status IS NULL";
        let open: Vec<String> = query_column(connection, sql, params![token])?;
        if open.len() >= MAX_OPEN_REQUESTS as usize {
            let mut removed = 0;
            for owner in &open {
                if self.is_replaceable(connection, owner)? {
                    let sql = "DELETE FROM api_replies
                        WHERE token = ?1 AND owner = ?2 AND status IS NULL";
                    let mut delete = connection.prepare_cached(sql)?;
                    removed += delete.execute(params![token, owner])?;
                }
            }
            if removed == 0 {
                return Ok(RepeatedRequest::TooMany);
            }
        }
        execute(
            connection,
            "INSERT INTO api_replies (token, key, digest, owner, at_ms, number)
             SELECT ?1, ?2, ?3, ?4, ?5, coalesce(max(number), 0) + 1 FROM api_replies
                WHERE token = ?1
             ON CONFLICT (token, key) DO UPDATE SET digest = excluded.digest,
                owner = excluded.owner, at_ms = excluded.at_ms, number = excluded.number,
                status = NULL, content_type = NULL, body = NULL",
            params![token, key, digest, self.owner.id, now_ms()],
        )?;
        execute(
            connection,
            "DELETE FROM api_replies WHERE token = ?1 AND status IS NOT NULL AND number <=
                (SELECT number FROM api_replies WHERE token = ?1
                 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
            params![token, MAX_REPLIES_PER_TOKEN],
        )?;
        Ok(RepeatedRequest::New)
    }

    /// Returns whether the process that handles a request is dead for certain.
    fn is_replaceable(&self, connection: &Connection, owner: &str) -> Result<bool, JournalError> {
        Ok(owner != self.owner.id && self.may_replace_owner(connection, owner)?)
    }

    /// Removes answers to requests that are older than a day.
    pub(crate) fn remove_old_replies(&self) -> Result<(), JournalError> {
        self.write(|connection| {
            let sql = "DELETE FROM api_replies WHERE at_ms < ?1";
            execute(connection, sql, params![now_ms() - REPLY_RETENTION_MS])
        })
    }
}

/// Returns the ids of sessions in an answer, separated by spaces, or [`ANY_SESSION`] for many. The
/// deletion of a session reads these instead of all answers.
fn named_sessions(body: &str) -> String {
    let mut ids = BTreeSet::new();
    for (start, prefix) in body.match_indices("ses_") {
        let rest = body[start + prefix.len()..].bytes();
        let random = rest.take_while(u8::is_ascii_alphanumeric);
        let length = prefix.len() + random.take(MAX_ID_BYTES).count();
        ids.insert(&body[start..start + length]);
        if ids.len() > MAX_REPLY_SESSIONS {
            return ANY_SESSION.to_owned();
        }
    }
    ids.into_iter().collect::<Vec<_>>().join(" ")
}
