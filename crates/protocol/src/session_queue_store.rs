//! The interface to the queues of all sessions.

use async_trait::async_trait;

use crate::{InboxMessage, MessageAuthor, ServerStoreError};

/// A session with messages that are not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingSession {
    /// Id of the session.
    pub id: String,
    /// Folder that it works in.
    pub directory: String,
    /// Who sent its oldest message.
    pub author: MessageAuthor,
    /// Name of the token whose client led to that message.
    pub payer: Option<String>,
    /// Id of the process that has claimed it.
    pub owner: Option<String>,
    /// Whether no other process has claimed it, or only one that is dead.
    pub is_free: bool,
}

/// The oldest message of a session that is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextMessage {
    /// Position in the queue of the session.
    pub number: u32,
    /// Who sent it.
    pub author: MessageAuthor,
    /// Name of the token whose client led to it.
    pub payer: Option<String>,
}

/// A message whose turn failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedMessage {
    /// Id of the session.
    pub session: String,
    /// Title of the session.
    pub title: Option<String>,
    /// Number of the turn; `None` if it did not begin.
    pub turn: Option<u32>,
    /// Why the turn failed.
    pub error: String,
    /// When the turn ended, in milliseconds since 1970.
    pub ended_ms: i64,
}

/// What happened to a message that was to be removed from the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovedMessage {
    /// It was removed.
    Removed,
    /// Its turn has begun or ended.
    AlreadyStarted,
    /// There is no such message.
    NotFound,
}

/// Finds the work of an agent server in the queues of sessions, which a
/// [`SessionStore`](crate::SessionStore) fills and works off. It promises:
///
/// - Each message that is not answered is found, by every server, until its turn has ended: also
///   those whose server died.
/// - Order: the next message of a session is its oldest one.
/// - A message is removed from the queue or its turn begins, never both.
/// - What it says about owners may be old when the caller reads it. Only a claim decides who works
///   on a session.
#[async_trait]
pub trait SessionQueueStore: Send + Sync {
    /// Returns the sessions with messages that are not answered.
    async fn waiting_sessions(&self) -> Result<Vec<WaitingSession>, ServerStoreError>;
    /// Waits until another process may have queued a message, and sets `seen`, which begins with 0.
    /// It may miss some or never return, so that callers also poll.
    async fn queues_changed(&self, _seen: &mut u64) {
        std::future::pending().await
    }
    /// Returns the oldest message of a session that is not answered.
    async fn next_message(&self, session: &str) -> Result<Option<NextMessage>, ServerStoreError>;
    /// Returns the number of messages that are not answered and that a token pays for, by its name.
    async fn open_message_count(&self, payer: &str) -> Result<u32, ServerStoreError>;
    /// Returns the number of sessions that clients with a token of this name created.
    async fn session_count(&self, token: &str) -> Result<u32, ServerStoreError>;
    /// Counts a session among those that clients with a token of this name created.
    async fn count_session(&self, session: &str, token: &str) -> Result<(), ServerStoreError>;
    /// Returns up to `limit` messages whose turns failed, of the sessions that were used last and
    /// work in one of these folders, not below. The newest comes first.
    async fn failed_messages(
        &self,
        folders: &[String],
        limit: u32,
    ) -> Result<Vec<FailedMessage>, ServerStoreError>;
    /// Returns the message that was sent with an idempotency key.
    async fn message_by_key(&self, key: &str) -> Result<Option<InboxMessage>, ServerStoreError>;
    /// Removes a message from the queue, unless its turn has begun.
    async fn remove_message(
        &self,
        session: &str,
        number: u32,
    ) -> Result<RemovedMessage, ServerStoreError>;
}
