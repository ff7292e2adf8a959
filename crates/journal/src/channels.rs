//! Channels: messages with numbers, stored unredacted, and the sessions that follow them. They do
//! not expire.
//!
//! A channel may belong to an owner, such as the clients with one token. Its stored name then ends
//! with a hash of the owner, so that it is found with both only.

use std::sync::Arc;

use async_trait::async_trait;
use selvedge_database::{Connection, Row, params};
use selvedge_protocol::{
    ChannelError, ChannelInfo, ChannelMessage, ChannelStore, Following, MAX_CHANNEL_MESSAGE_BYTES,
    MAX_CHANNEL_READ, MAX_HOPS, NewChannelMessage, NewInboxMessage, PostReceipt, ReadFrom,
    check_channel_name, mention_of_title, mentions_in,
};
use serde::{Deserialize, Serialize};

use crate::connection::{execute, query_column, query_first};
use crate::document_store::OWNER_SEPARATOR;
use crate::inbox::{CausalPosition, read_author};
use crate::time::now_ms;
use crate::{Journal, JournalError};

const SELECT_MESSAGE: &str = "SELECT channel, number, author_kind, author, content, hops, cause,
    posted_ms FROM channel_messages";

/// The text of a message and its mentions, stored as one payload so that both are encrypted.
#[derive(Serialize, Deserialize)]
struct MessageContent {
    text: String,
    mentions: Vec<String>,
}

/// The channels of one owner. The owner is empty for those of the user.
struct OwnedChannels {
    journal: Arc<Journal>,
    owner: String,
}

#[async_trait]
impl ChannelStore for Journal {
    async fn post(&self, message: NewChannelMessage) -> Result<PostReceipt, ChannelError> {
        self.post_message(message, String::new()).await
    }

    async fn read(
        &self,
        channel: &str,
        from: ReadFrom,
        limit: u32,
    ) -> Result<Vec<ChannelMessage>, ChannelError> {
        self.read_channel(channel, String::new(), from, limit).await
    }

    async fn list(&self) -> Result<Vec<ChannelInfo>, ChannelError> {
        self.list_channels(String::new()).await
    }

    async fn follow(
        &self,
        channel: &str,
        session: &str,
        following: Following,
    ) -> Result<(), ChannelError> {
        self.follow_channel(channel, String::new(), session, following)
            .await
    }
}

#[async_trait]
impl ChannelStore for OwnedChannels {
    async fn post(&self, message: NewChannelMessage) -> Result<PostReceipt, ChannelError> {
        let owner = self.owner.clone();
        self.journal.post_message(message, owner).await
    }

    async fn read(
        &self,
        channel: &str,
        from: ReadFrom,
        limit: u32,
    ) -> Result<Vec<ChannelMessage>, ChannelError> {
        let owner = self.owner.clone();
        self.journal.read_channel(channel, owner, from, limit).await
    }

    async fn list(&self) -> Result<Vec<ChannelInfo>, ChannelError> {
        self.journal.list_channels(self.owner.clone()).await
    }

    async fn follow(
        &self,
        channel: &str,
        session: &str,
        following: Following,
    ) -> Result<(), ChannelError> {
        let owner = self.owner.clone();
        self.journal
            .follow_channel(channel, owner, session, following)
            .await
    }
}

impl Journal {
    /// Returns a store with the channels of one owner only. Others cannot read them.
    pub fn channels_of(self: &Arc<Self>, owner: &str) -> Arc<dyn ChannelStore> {
        Arc::new(OwnedChannels {
            journal: self.clone(),
            owner: self.owner_suffix(owner),
        })
    }

    async fn post_message(
        &self,
        message: NewChannelMessage,
        owner: String,
    ) -> Result<PostReceipt, ChannelError> {
        check_channel_name(&message.channel)?;
        if message.text.trim().is_empty() {
            return Err(ChannelError::EmptyMessage);
        }
        if message.text.len() > MAX_CHANNEL_MESSAGE_BYTES {
            return Err(ChannelError::MessageTooLong(message.text.len()));
        }
        let stored_name = format!("{}{owner}", message.channel);
        let claim = self.claim_of_author(&message.author);
        self.write_async(move |journal, connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.post_in(connection, &message, &stored_name)
        })
        .await?
    }

    /// Posts a message in a transaction. If it returns an error, nothing was written.
    fn post_in(
        &self,
        connection: &Connection,
        message: &NewChannelMessage,
        channel: &str,
    ) -> Result<Result<PostReceipt, ChannelError>, JournalError> {
        if let Some(earlier) = self.posted_before(connection, message, channel)? {
            return Ok(Ok(PostReceipt {
                message: earlier,
                queued: Vec::new(),
                refused: Vec::new(),
            }));
        }
        let position = self.causal_position(connection, &message.author)?;
        let CausalPosition { hops, cause, payer } = position;
        if hops > MAX_HOPS {
            return Ok(Err(ChannelError::TooManyHops));
        }
        let time = now_ms();
        execute(
            connection,
            "INSERT INTO channels (name, messages, posted_ms) VALUES (?1, 1, ?2)
             ON CONFLICT (name) DO UPDATE SET messages = channels.messages + 1, posted_ms = ?2",
            params![channel, time],
        )?;
        let sql = "SELECT messages FROM channels WHERE name = ?1";
        let number: Option<i64> = query_first(connection, sql, params![channel])?;
        let number = number.unwrap_or(1);
        let content = MessageContent {
            text: message.text.clone(),
            mentions: mentions_in(&message.text),
        };
        execute(
            connection,
            "INSERT INTO channel_messages (channel, number, author_kind, author, content, hops,
                cause, posted_ms, idempotency_key, turn)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, (SELECT turn FROM items
                WHERE session = ?4 AND ?3 = 'session' ORDER BY items.number DESC LIMIT 1))",
            params![
                channel,
                number,
                message.author.kind.as_str(),
                message.author.id,
                self.payloads.put_json(connection, &content)?,
                hops,
                cause,
                time,
                message.idempotency_key,
            ],
        )?;
        let stored = ChannelMessage {
            channel: message.channel.clone(),
            number: number as u64,
            author: message.author.clone(),
            text: content.text,
            time,
            mentions: content.mentions,
            hops,
            cause,
        };
        self.queue_for_followers(connection, message, stored, channel, payer)
            .map(Ok)
    }

    /// Queues a message for the sessions that follow the channel and are mentioned, except for its
    /// author.
    fn queue_for_followers(
        &self,
        connection: &Connection,
        posted: &NewChannelMessage,
        message: ChannelMessage,
        channel: &str,
        payer: Option<String>,
    ) -> Result<PostReceipt, JournalError> {
        let mut receipt = PostReceipt {
            message,
            queued: Vec::new(),
            refused: Vec::new(),
        };
        if receipt.message.mentions.is_empty() {
            return Ok(receipt);
        }
        let mut read = connection.prepare_cached(
            "SELECT id, name, title FROM sessions
             JOIN channel_followers ON session = id WHERE channel = ?1 ORDER BY id",
        )?;
        let mut rows = read.query(params![channel])?;
        let position = CausalPosition {
            hops: receipt.message.hops,
            cause: Some(format!(
                "{}#{}",
                receipt.message.channel, receipt.message.number
            )),
            payer,
        };
        let mut mentioned = Vec::new();
        while let Some(row) = rows.next()? {
            let (id, name, title): (String, Option<String>, Option<String>) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let title = match (&name, title) {
                (None, None) => self.title_from_message(connection, &id)?,
                (_, title) => title,
            };
            let titles = name.iter().chain(&title);
            let names = titles.map(|title| mention_of_title(title));
            let is_mentioned = names
                .chain([id.clone()])
                .any(|name| receipt.message.mentions.contains(&name));
            if is_mentioned && id != posted.author.id {
                mentioned.push(id);
            }
        }
        let turns = u32::try_from(mentioned.len()).unwrap_or(u32::MAX);
        let permissions = posted.permissions.as_ref();
        let permissions = permissions.map(|permissions| permissions.for_one_of(turns));
        for id in mentioned {
            let delivered = NewInboxMessage {
                session: id.clone(),
                author: posted.author.clone(),
                text: inbox_text(&receipt.message),
                permissions: permissions.clone(),
                idempotency_key: None,
                max_open_messages: posted.max_open_messages,
            };
            match self.queue_message(connection, &delivered, &position)? {
                Ok(_) => receipt.queued.push(id),
                Err(refusal) => receipt.refused.push(format!("{id}: {refusal}")),
            }
        }
        Ok(receipt)
    }

    /// Returns the message that was posted with the same idempotency key.
    fn posted_before(
        &self,
        connection: &Connection,
        message: &NewChannelMessage,
        channel: &str,
    ) -> Result<Option<ChannelMessage>, JournalError> {
        let Some(key) = &message.idempotency_key else {
            return Ok(None);
        };
        let sql = format!("{SELECT_MESSAGE} WHERE idempotency_key = ?1 AND channel = ?2");
        let mut read = connection.prepare_cached(&sql)?;
        let mut rows = read.query(params![key, channel])?;
        let row = rows.next()?;
        row.map(|row| self.read_channel_message(connection, row))
            .transpose()
    }

    async fn read_channel(
        &self,
        channel: &str,
        owner: String,
        from: ReadFrom,
        limit: u32,
    ) -> Result<Vec<ChannelMessage>, ChannelError> {
        check_channel_name(channel)?;
        let stored_name = format!("{channel}{owner}");
        let limit = limit.min(MAX_CHANNEL_READ);
        let read = move |journal: &Self, connection: &Connection| {
            let exists = "SELECT 1 FROM channels WHERE name = ?1";
            let exists = connection
                .prepare_cached(exists)?
                .exists(params![stored_name])?;
            if !exists {
                return Ok(None);
            }
            let (which, after) = match from {
                ReadFrom::Newest => ("number > ?2 ORDER BY number DESC", 0),
                ReadFrom::After(number) => ("number > ?2 ORDER BY number", number),
            };
            let sql = format!("{SELECT_MESSAGE} WHERE channel = ?1 AND {which} LIMIT ?3");
            let mut read = connection.prepare_cached(&sql)?;
            let after = i64::try_from(after).unwrap_or(i64::MAX);
            let mut rows = read.query(params![stored_name, after, limit])?;
            let mut messages = Vec::new();
            while let Some(row) = rows.next()? {
                messages.push(journal.read_channel_message(connection, row)?);
            }
            messages.sort_by_key(|message| message.number);
            Ok(Some(messages))
        };
        let messages = self.run_now_or_queue(read).await?;
        messages.ok_or_else(|| ChannelError::NotFound(channel.to_owned()))
    }

    async fn list_channels(&self, owner: String) -> Result<Vec<ChannelInfo>, ChannelError> {
        let read = move |_: &Self, connection: &Connection| {
            let mut read = connection.prepare_cached(
                "SELECT name, messages, posted_ms FROM channels
                 WHERE (?1 = '' AND name NOT LIKE '%@%') OR (?1 <> '' AND name LIKE '%' || ?1)
                 ORDER BY posted_ms DESC, name",
            )?;
            let mut rows = read.query(params![owner])?;
            let mut channels = Vec::new();
            while let Some(row) = rows.next()? {
                let (stored, messages): (String, i64) = (row.get(0)?, row.get(1)?);
                let sql = "SELECT session FROM channel_followers WHERE channel = ?1 ORDER BY 1";
                channels.push(ChannelInfo {
                    name: without_owner(&stored),
                    messages: messages.max(0) as u64,
                    time: row.get(2)?,
                    followers: query_column(connection, sql, params![stored])?,
                });
            }
            Ok(channels)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn follow_channel(
        &self,
        channel: &str,
        owner: String,
        session: &str,
        following: Following,
    ) -> Result<(), ChannelError> {
        check_channel_name(channel)?;
        let (stored_name, session) = (format!("{channel}{owner}"), session.to_owned());
        let write = move |_: &Self, connection: &Connection| {
            if following == Following::Off {
                let sql = "DELETE FROM channel_followers WHERE channel = ?1 AND session = ?2";
                return execute(connection, sql, params![stored_name, session]);
            }
            let exists = "SELECT 1 FROM sessions WHERE id = ?1";
            if !connection
                .prepare_cached(exists)?
                .exists(params![session])?
            {
                return Err(JournalError::SessionNotFound(session.clone()));
            }
            let sql = "INSERT INTO channels (name, messages, posted_ms) VALUES (?1, 0, 0)
                ON CONFLICT DO NOTHING";
            execute(connection, sql, params![stored_name])?;
            let sql = "INSERT INTO channel_followers (channel, session) VALUES (?1, ?2)
                ON CONFLICT DO NOTHING";
            execute(connection, sql, params![stored_name, session])
        };
        Ok(self.write_async(write).await?)
    }

    /// Removes the texts of a session's messages, or of those of one turn. Their numbers stay.
    pub(crate) fn clear_posts(
        &self,
        connection: &Connection,
        session: &str,
        turn: Option<u32>,
    ) -> Result<(), JournalError> {
        let cleared = MessageContent {
            text: "(forgotten)".to_owned(),
            mentions: Vec::new(),
        };
        let cleared = self.payloads.put_json(connection, &cleared)?;
        execute(
            connection,
            "UPDATE channel_messages SET content = ?3
             WHERE author = ?1 AND author_kind = 'session' AND (turn = ?2 OR ?2 IS NULL)",
            params![session, turn, cleared],
        )
    }

    fn read_channel_message(
        &self,
        connection: &Connection,
        row: Row<'_>,
    ) -> Result<ChannelMessage, JournalError> {
        let stored: String = row.get(0)?;
        let number: i64 = row.get(1)?;
        let content: MessageContent = self.payloads.require_json(connection, row.get_ref(4)?)?;
        Ok(ChannelMessage {
            channel: without_owner(&stored),
            number: number.max(0) as u64,
            author: read_author(row, 2)?,
            text: content.text,
            time: row.get(7)?,
            mentions: content.mentions,
            hops: row.get(5)?,
            cause: row.get(6)?,
        })
    }
}

/// Returns the text of a message for a session that it mentions, with the place it comes from.
fn inbox_text(message: &ChannelMessage) -> String {
    let heading = inbox_heading(&message.channel, &message.number.to_string());
    let (author, text) = (&message.author, &message.text);
    format!("{heading}{} {}:\n\n{text}", author.kind.as_str(), author.id)
}

/// Returns how the text of a message for a session begins if it was posted to a channel.
pub(crate) fn inbox_heading(channel: &str, number: &str) -> String {
    format!("Message {number} in the channel `{channel}`, from ")
}

fn without_owner(stored: &str) -> String {
    let name = stored.split(OWNER_SEPARATOR).next();
    name.unwrap_or_default().to_owned()
}
