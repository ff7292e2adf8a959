//! Answers to repeated requests of clients of the agent server.

use std::collections::BTreeSet;

use async_trait::async_trait;
use selvedge_database::{Connection, NamedLockMode, params};
use selvedge_protocol::{IdempotencyStore, RepeatedRequest, ServerStoreError, StoredReply};

use crate::connection::{execute, query_column};
use crate::time::now_ms;
use crate::{Journal, JournalError};

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
