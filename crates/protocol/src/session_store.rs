//! Sessions that scripts create, and messages to sessions, which wait in a queue until a process
//! runs the turn that answers them.

use std::pin::Pin;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ApiToken, LedgerError, MessageAuthor, TurnPermissions};

/// Most sessions above one another, each created by a script of the one before.
pub const MAX_SESSION_DEPTH: u32 = 4;
/// Most sessions that the scripts of one session create.
pub const MAX_CREATED_SESSIONS: u32 = 32;
/// Longest title of a session, in characters.
pub const MAX_TITLE_CHARS: usize = 120;

/// Longest message to a session, in bytes.
pub const MAX_INBOX_MESSAGE_BYTES: usize = 1 << 20;
/// Most messages that wait for one session.
pub const MAX_QUEUED_MESSAGES: u32 = 100;

/// Stores sessions and the messages to them. It promises:
///
/// - Once: an idempotency key makes it safe to repeat a creation or a message.
/// - In order: the messages of a session are claimed in the order in which they were queued, and
///   each by one process at a time.
/// - Fenced: a process that lost its claim of a session cannot claim or answer its messages, and
///   the session cannot send any.
/// - A message that was claimed stays open until its turn has ended: if the process dies, the next
///   one claims it again.
/// - What a future that returned `Ok` has changed survives a crash of this process.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Creates a session, and queues its first message if there is one. A session whose first
    /// message has the idempotency key of an earlier one is not created again.
    async fn create(&self, session: NewSession) -> Result<SessionInfo, SessionError>;
    /// Returns the session with this id.
    async fn get(&self, id: &str) -> Result<SessionInfo, SessionError>;
    /// Returns the sessions that match, the last touched one first.
    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionInfo>, SessionError>;
    /// Queues a message for a session. A message with the idempotency key of an earlier one is not
    /// queued again.
    async fn send(&self, message: NewInboxMessage) -> Result<InboxMessage, SessionError>;
    /// Returns the messages of a session that are not answered yet, oldest first.
    async fn queue(&self, session: &str) -> Result<Vec<InboxMessage>, SessionError>;
    /// Returns a message to a session.
    async fn message(&self, session: &str, number: u32) -> Result<InboxMessage, SessionError>;
    /// Claims the oldest message of a session that is not answered, for a process that has claimed
    /// the session. Returns `None` if there is none, or a running process has claimed it.
    async fn claim_next(&self, session: &str) -> Result<Option<ClaimedMessage>, SessionError>;
    /// Stores how the turn of a claimed message ended: its final answer, or why it failed.
    async fn finish(
        &self,
        message: &InboxMessage,
        state: InboxState,
        answer: String,
    ) -> Result<(), SessionError>;
    /// Records that a turn of one session waits for another session. Fails if the other one waits
    /// for this one, directly or through others.
    async fn begin_wait(&self, wait: SessionWait) -> Result<(), SessionError>;
    /// Removes the wait with this id, if [`begin_wait`](Self::begin_wait) recorded it.
    async fn end_wait(&self, id: &str) -> Result<(), SessionError>;
}

/// Future of a [`SessionRunner`].
pub type SessionFuture<'a> =
    Pin<Box<dyn Future<Output = Result<InboxMessage, SessionError>> + Send + 'a>>;

/// Runs turns of other sessions in this process.
pub trait SessionRunner: Send + Sync {
    /// Runs the queued messages of a session up to this one, and returns it with its answer. Waits
    /// while another process runs turns of the session. The budget of the run `run` pays.
    fn run_until_answered(&self, session: String, number: u32, run: String) -> SessionFuture<'_>;
    /// Tells that a message was queued which the caller does not wait for. Returns what runs its
    /// turn.
    fn message_queued(&self, session: String) -> QueuedTurnFuture<'_>;
}

/// Future of [`SessionRunner::message_queued`].
pub type QueuedTurnFuture<'a> = Pin<Box<dyn Future<Output = QueuedTurnRunner> + Send + 'a>>;

/// What runs the turn of a queued message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuedTurnRunner {
    /// The agent server of this process, as soon as the turns before have ended.
    Server,
    /// The next server, chat or command that runs turns of the session.
    NextProcess,
}

/// A session to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    /// Title, for people and for mentions.
    pub title: Option<String>,
    /// Name of the environment that the session works with.
    pub environment: Option<String>,
    /// Folder that the session works in.
    pub directory: String,
    /// Whether it works in the folder itself, or in a worktree of it.
    pub folder: SessionFolder,
    /// Who creates the session.
    pub creator: MessageAuthor,
    /// What turns of the session may do at most. `None` if a person creates the session.
    pub permissions: Option<TurnPermissions>,
    /// The first message.
    pub prompt: Option<String>,
    /// The same for every attempt to create this session.
    pub idempotency_key: Option<String>,
    /// Most messages that are not answered, of those that the same token pays for. `None` without a
    /// limit.
    pub max_open_messages: Option<u32>,
    /// Most sessions that clients of the same token create. `None` without a limit.
    pub max_client_sessions: Option<u32>,
}

/// A session, as scripts see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionInfo {
    /// Id of the session, `ses_…`.
    pub id: String,
    /// Title, the name that a person gave it, or the first line of its first message.
    pub title: Option<String>,
    /// Name of its environment.
    pub environment: Option<String>,
    /// Folder that it works in.
    pub directory: String,
    /// Id of the session whose script created it.
    pub creator: Option<String>,
    /// Whether a process runs a turn of it or has it open.
    pub state: SessionState,
    /// Number of messages that are not answered yet.
    pub queued: u32,
    /// Whether it works in the folder itself, or in a worktree of it.
    #[serde(skip)]
    pub folder: SessionFolder,
    /// What its turns may do at most. `None` if a person began it.
    #[serde(skip)]
    pub permissions: Option<TurnPermissions>,
    /// When an item was last appended, in milliseconds since 1970.
    #[serde(skip)]
    pub touched_ms: i64,
}

/// A turn of a session that waits for the answer of another session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionWait {
    /// Id of the wait.
    pub id: String,
    /// Id of the session that waits.
    pub waiter: String,
    /// Id of the session that it waits for.
    pub target: String,
}

/// Where a session changes files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionFolder {
    /// In its folder.
    #[default]
    Shared,
    /// In a git worktree of its own, which its first turn creates from the repository of its
    /// folder.
    Worktree,
}

/// Whether a process uses a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// No process uses it.
    Idle,
    /// A running process has claimed it.
    Busy,
    /// Messages wait for it, and no running server serves its folder. Only with a database that
    /// several servers share.
    Unserved,
}

/// Which sessions to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionFilter {
    /// Only sessions that work in one of these folders. Empty for all.
    pub workspaces: Vec<String>,
    /// Whether sessions in folders below the workspaces count, too.
    pub include_subfolders: bool,
    /// Only sessions whose title contains this text, in any case.
    pub title: Option<String>,
    /// Only sessions of this environment.
    pub environment: Option<String>,
    /// Only sessions that the scripts of this session created.
    pub creator: Option<String>,
    /// Only sessions in this state.
    pub state: Option<SessionState>,
    /// Only sessions that were last touched before this time, in milliseconds since 1970. No two
    /// sessions have the same, so a list continues after the last session of the list before.
    pub touched_before_ms: Option<i64>,
    /// Maximum number of sessions.
    pub limit: u32,
}

/// Why a session could not be created, found or reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionError {
    /// No session has this id.
    NotFound(String),
    /// The session has no message with this number.
    MessageNotFound(String, u32),
    /// The message has no text.
    EmptyMessage,
    /// The message has this many bytes, more than [`MAX_INBOX_MESSAGE_BYTES`].
    MessageTooLong(usize),
    /// As many messages as possible wait for the session.
    QueueFull(String),
    /// As many messages as possible, which is this number, wait that the same token pays for.
    TooManyOpen(u32),
    /// Clients of the token have created as many sessions as possible, which is this number.
    TooManySessions(u32),
    /// The session works outside of the workspace of the script.
    OtherWorkspace(String),
    /// The session would be more than [`MAX_SESSION_DEPTH`] levels deep.
    TooDeep,
    /// The session has created [`MAX_CREATED_SESSIONS`] sessions.
    TooManyCreated,
    /// More than [`MAX_HOPS`](crate::MAX_HOPS) sessions would send messages because of each other.
    TooManyHops,
    /// The session waits for the caller.
    Circular(String),
    /// The turn could not be run.
    NotRun(String),
    /// The storage failed.
    Storage(LedgerError),
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound(id) => write!(f, "there is no session `{id}`"),
            Self::MessageNotFound(id, number) => {
                write!(f, "session `{id}` has no message {number}")
            }
            Self::EmptyMessage => f.write_str("the message is empty"),
            Self::MessageTooLong(bytes) => write!(
                f,
                "the message has {bytes} bytes; the limit is {MAX_INBOX_MESSAGE_BYTES}"
            ),
            Self::QueueFull(id) => write!(
                f,
                "{MAX_QUEUED_MESSAGES} messages wait for session `{id}` already"
            ),
            Self::TooManyOpen(limit) => {
                write!(f, "{limit} messages of this token are not answered yet")
            }
            Self::TooManySessions(limit) => write!(f, "this token has created {limit} sessions"),
            Self::OtherWorkspace(id) => write!(
                f,
                "session `{id}` works outside of the workspace of the script"
            ),
            Self::TooDeep => write!(
                f,
                "sessions can create sessions at most {MAX_SESSION_DEPTH} levels deep"
            ),
            Self::TooManyCreated => write!(
                f,
                "a session can create at most {MAX_CREATED_SESSIONS} sessions"
            ),
            Self::TooManyHops => write!(
                f,
                "{} sessions have sent messages because of each other; a person has to send next",
                crate::MAX_HOPS
            ),
            Self::Circular(id) => write!(f, "session `{id}` waits for this session"),
            Self::NotRun(why) => write!(f, "cannot run the turn: {why}"),
            Self::Storage(error) => write!(f, "cannot access the sessions: {error}"),
        }
    }
}

impl std::error::Error for SessionError {}

impl SessionError {
    /// Returns what to do instead.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotFound(_) => Some("run `selvedge sessions list` to list the sessions"),
            Self::EmptyMessage => Some("pass a text"),
            Self::MessageTooLong(_) => Some("save the text to a file and send its path"),
            Self::QueueFull(_) => {
                Some("run `selvedge sessions send ID --wait` to answer the messages")
            }
            Self::TooManyOpen(_) => {
                Some("repeat it later, or set `serve.max_queued_turns` in config.toml")
            }
            Self::TooManySessions(_) => {
                Some("continue a session, delete some, or set `serve.max_sessions` in config.toml")
            }
            Self::OtherWorkspace(_) | Self::TooManyHops => {
                Some("run `selvedge sessions send ID MESSAGE` as a person")
            }
            Self::TooDeep => Some("do the work in this session"),
            Self::TooManyCreated => Some("send messages to the existing sessions"),
            Self::Circular(_) => Some("send the message without `wait`"),
            Self::MessageNotFound(..) | Self::NotRun(_) | Self::Storage(_) => None,
        }
    }
}

/// A message to a session.
#[derive(Debug, Clone, PartialEq)]
pub struct NewInboxMessage {
    /// Id of the session.
    pub session: String,
    /// Who sends the message.
    pub author: MessageAuthor,
    /// Text of the message.
    pub text: String,
    /// What the turn may do at most. `None` if a person sends the message.
    pub permissions: Option<TurnPermissions>,
    /// The same for every attempt to send this message. `None` if it is sent once.
    pub idempotency_key: Option<String>,
    /// Most messages that are not answered, of those that the same token pays for. `None` without a
    /// limit.
    pub max_open_messages: Option<u32>,
}

/// A stored message to a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InboxMessage {
    /// Id of the session.
    pub session: String,
    /// Position in the queue of the session, counted from 1.
    pub number: u32,
    /// Who sent the message.
    pub author: MessageAuthor,
    /// Text of the message.
    pub text: String,
    /// Number of sessions that caused each other to send it. 0 for a person.
    pub hops: u32,
    /// The message or turn that led to this message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What the turn may do at most. `None` if a person sent the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<TurnPermissions>,
    /// What has happened with the message.
    pub state: InboxState,
    /// The turn that answers the message, once a process has claimed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The final answer of the turn, or why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// State of a message to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboxState {
    /// Waits for a process that runs the turn.
    Queued,
    /// A process runs the turn, or has been killed while it ran it.
    Claimed,
    /// The turn has ended with an answer.
    Answered,
    /// The turn failed.
    Failed,
    /// The turn was stopped, or the message was removed from the queue.
    Stopped,
}

impl InboxState {
    /// Returns whether the turn of the message has not ended.
    pub fn is_open(self) -> bool {
        match self {
            Self::Queued | Self::Claimed => true,
            Self::Answered | Self::Failed | Self::Stopped => false,
        }
    }

    /// Returns the name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Claimed => "claimed",
            Self::Answered => "answered",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// A message that this process has claimed.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedMessage {
    /// The message that waits for its answer.
    pub message: InboxMessage,
    /// Number of the turn that answers the message.
    pub turn: u32,
    /// Whether the turn has begun already, in a process that was killed.
    pub begun: bool,
    /// The token that pays for the turn; `None` if a person at a terminal led to it.
    pub payer: Option<ApiToken>,
}
