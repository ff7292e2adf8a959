//! What an agent server stores: tokens of its clients, numbered events of sessions, answers to
//! repeated requests, and who decided about approvals. One small interface each.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{InboxMessage, LedgerError, MessageAuthor};

/// Longest name of a token, in characters.
pub const MAX_TOKEN_NAME_CHARS: usize = 64;
/// How the names of tokens begin that logins of browsers created: `page_…`.
pub const LOGIN_TOKEN_PREFIX: &str = "page";
/// How ids begin that are shown where names of tokens are, or are used instead of them. A token
/// whose name begins so could be taken for a login, another token, a session or a run.
const RESERVED_NAME_PREFIXES: [&str; 9] = [
    LOGIN_TOKEN_PREFIX,
    "tok",
    "client",
    "ses",
    "run",
    "scr",
    "trn",
    "agt",
    "req",
];
/// Names that the journal uses for kinds of authors.
const RESERVED_NAMES: [&str; 4] = ["person", "client", "session", "run"];

/// Returns whether a person may give a token this name: letters, digits, `-`, `_` and `.`, the
/// first one a letter or digit, and not like the names that Selvedge itself gives.
pub fn is_token_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let lower = name.to_ascii_lowercase();
    let prefix = lower.split_once('_').map(|(prefix, _)| prefix);
    name.len() <= MAX_TOKEN_NAME_CHARS
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_plain)
        && !prefix.is_some_and(|prefix| RESERVED_NAME_PREFIXES.contains(&prefix))
        && !RESERVED_NAMES.contains(&lower.as_str())
}

/// Most events that one read returns.
pub const MAX_EVENT_READ: u32 = 500;
/// Size of the events of one read, in bytes, after which it returns no further event.
pub const MAX_EVENT_READ_BYTES: usize = 1 << 20;

/// What a token may be used for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TokenScope {
    /// Create, read and use sessions, and read runs.
    Sessions,
    /// Query, read and write documents of the workspace.
    Documents,
    /// Read and post to channels.
    Channels,
    /// Search the memory.
    Memory,
    /// Read approval requests and decide about them.
    Approvals,
    /// Read the lessons that are used in all projects, and change them with `approvals`.
    #[serde(rename = "user-memory")]
    UserMemory,
}

impl TokenScope {
    /// All scopes, in the order of the reference.
    pub const ALL: [Self; 6] = [
        Self::Sessions,
        Self::Documents,
        Self::Channels,
        Self::Memory,
        Self::Approvals,
        Self::UserMemory,
    ];
    /// Scopes that a token has only if they are granted by name.
    pub const BY_NAME: [Self; 2] = [Self::Approvals, Self::UserMemory];

    /// Returns the name used in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Documents => "documents",
            Self::Channels => "channels",
            Self::Memory => "memory",
            Self::Approvals => "approvals",
            Self::UserMemory => "user-memory",
        }
    }
}

/// A token of a client. The secret itself is not stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApiToken {
    /// Id of the token, `tok_…`.
    pub id: String,
    /// Name of the token, and of the person or program that uses it. Names are unique.
    pub name: String,
    /// What the token may be used for.
    pub scopes: Vec<TokenScope>,
    /// Folders whose sessions, documents and runs the token can reach.
    pub workspaces: Vec<String>,
    /// When the token was created, in milliseconds since 1970.
    pub created_ms: i64,
    /// When the token expires, in milliseconds since 1970. `None` if it does not.
    pub expires_ms: Option<i64>,
    /// When the token was revoked, in milliseconds since 1970.
    pub revoked_ms: Option<i64>,
    /// What its turns may cost in all, in US dollars.
    pub max_cost: Option<f64>,
    /// What its turns have cost.
    pub spent: f64,
}

impl ApiToken {
    /// Returns whether the token can be used at a time, in milliseconds since 1970.
    pub fn is_valid_at(&self, now_ms: i64) -> bool {
        self.revoked_ms.is_none() && self.expires_ms.is_none_or(|expires| now_ms < expires)
    }

    /// Returns whether the login of a browser created the token.
    pub fn is_login(&self) -> bool {
        let rest = self.name.strip_prefix(LOGIN_TOKEN_PREFIX);
        rest.is_some_and(|rest| rest.starts_with('_'))
    }

    /// Returns whether its turns have cost as much as they may.
    pub fn has_spent_all(&self) -> bool {
        self.max_cost.is_some_and(|limit| self.spent >= limit)
    }

    /// Returns why turns of the token's messages cannot run at a time; `None` if they can.
    pub fn refusal_at(&self, now_ms: i64) -> Option<String> {
        let name = &self.name;
        match self.max_cost {
            _ if self.revoked_ms.is_some() => Some(format!("the token `{name}` was revoked")),
            _ if !self.is_valid_at(now_ms) => Some(format!("the token `{name}` has expired")),
            Some(limit) if self.has_spent_all() => Some(format!(
                "the token `{name}` has spent {:.2} of {limit:.2}",
                self.spent
            )),
            _ => None,
        }
    }

    /// Returns whether sessions of the token can work in a folder: it is one of the workspaces. Not
    /// in folders below, because agents can replace these with links.
    pub fn works_in(&self, directory: &str) -> bool {
        self.workspaces
            .iter()
            .any(|workspace| workspace == directory)
    }

    /// Returns whether the token can read what was recorded in a folder.
    pub fn allows_directory(&self, directory: &str) -> bool {
        let directory = std::path::Path::new(directory);
        self.workspaces
            .iter()
            .any(|workspace| directory.starts_with(workspace))
    }
}

/// A token to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewApiToken {
    /// Name of the token.
    pub name: String,
    /// Hash of the secret.
    pub secret_hash: [u8; 32],
    /// What the token may be used for.
    pub scopes: Vec<TokenScope>,
    /// Folders that the token can reach.
    pub workspaces: Vec<String>,
    /// When the token expires, in milliseconds since 1970.
    pub expires_ms: Option<i64>,
    /// What its turns may cost in all.
    pub max_cost: Option<f64>,
}

/// Why something of an agent server could not be stored or read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerStoreError {
    /// Another token has this name.
    TokenNameTaken(String),
    /// No token has this name or id.
    TokenNotFound(String),
    /// A workspace of a token lies in another one.
    NestedWorkspaces {
        /// The workspace that lies in the other one.
        inner: String,
        /// The other one.
        outer: String,
    },
    /// Another server has claimed the session since this one claimed it.
    TakenOver(String),
    /// The storage failed.
    Storage(LedgerError),
}

impl std::fmt::Display for ServerStoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TokenNameTaken(name) => write!(f, "there is a token `{name}` already"),
            Self::TokenNotFound(name) => write!(f, "there is no token `{name}`"),
            Self::NestedWorkspaces { inner, outer } => write!(
                f,
                "the workspace {inner} lies in {outer}, which is one as well"
            ),
            Self::TakenOver(session) => {
                write!(f, "session `{session}` was taken over by another server")
            }
            Self::Storage(error) => write!(f, "cannot access the journal: {error}"),
        }
    }
}

impl std::error::Error for ServerStoreError {}

impl ServerStoreError {
    /// Returns what to do instead.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TokenNameTaken(_) => Some("pass another name"),
            Self::TokenNotFound(_) => Some("run `selvedge serve token list` to list the tokens"),
            Self::NestedWorkspaces { .. } => {
                Some("see `selvedge serve token list`; revoke the tokens for one of the folders")
            }
            Self::TakenOver(_) | Self::Storage(_) => None,
        }
    }
}

/// Stores the tokens of clients.
#[async_trait]
pub trait ApiTokenStore: Send + Sync {
    /// Creates a token. Fails if another one has its name, and if one of its workspaces lies in
    /// another workspace of a valid token: agents in the outer one could replace the inner one with
    /// a link.
    async fn create_token(&self, token: NewApiToken) -> Result<ApiToken, ServerStoreError>;
    /// Returns all tokens, the newest first.
    async fn tokens(&self) -> Result<Vec<ApiToken>, ServerStoreError>;
    /// Returns the token with this hash of its secret, also if it is expired or revoked.
    async fn token_by_hash(&self, hash: [u8; 32]) -> Result<Option<ApiToken>, ServerStoreError>;
    /// Revokes a token by its name or id. A revoked token stays in the list.
    async fn revoke_token(&self, name: &str) -> Result<ApiToken, ServerStoreError>;
    /// Stores the hash of a secret with which a browser can log in once until a time, in
    /// milliseconds since 1970.
    async fn create_login(&self, hash: [u8; 32], expires_ms: i64) -> Result<(), ServerStoreError>;
    /// Uses up the secret of a login. Returns whether it was valid.
    async fn take_login(&self, hash: [u8; 32]) -> Result<bool, ServerStoreError>;
}

/// A stored event of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionEvent {
    /// Position among the events of the session, counted from 1 without gaps.
    pub number: u64,
    /// The event, as `exec --json` prints it.
    pub body: Value,
}

/// Stores the events of sessions. When a future returns `Ok`, the change survives a crash of this
/// process.
#[async_trait]
pub trait SessionEventStore: Send + Sync {
    /// Appends events, all or none, and returns the number of the first one. Fails with
    /// [`ServerStoreError::TakenOver`] if this process lost its claim on the session.
    async fn append_events(
        &self,
        session: &str,
        bodies: Vec<Value>,
    ) -> Result<u64, ServerStoreError>;
    /// Waits until another process may have appended events of a session, and sets `seen`, which
    /// begins with 0. It may miss some or never return, so that callers also poll.
    async fn events_changed(&self, _session: &str, _seen: &mut u64) {
        std::future::pending().await
    }
    /// Returns up to `limit` events after a number, in order: at least one if there is one, and
    /// fewer if they have more than [`MAX_EVENT_READ_BYTES`].
    async fn events_after(
        &self,
        session: &str,
        after: u64,
        limit: u32,
    ) -> Result<Vec<SessionEvent>, ServerStoreError>;
    /// Returns up to `limit` events of these types after a number, in order: at least one if there
    /// is one, and fewer if they have more than [`MAX_EVENT_READ_BYTES`].
    async fn events_of_kinds(
        &self,
        session: &str,
        kinds: &[&str],
        after: u64,
        limit: u32,
    ) -> Result<Vec<SessionEvent>, ServerStoreError>;
    /// Returns the newest event of a type.
    async fn latest_event(
        &self,
        session: &str,
        kind: &str,
    ) -> Result<Option<SessionEvent>, ServerStoreError> {
        // Numbers of SQL are signed.
        self.event_before(session, kind, i64::MAX.unsigned_abs())
            .await
    }
    /// Returns the newest event of a type before a number.
    async fn event_before(
        &self,
        session: &str,
        kind: &str,
        before: u64,
    ) -> Result<Option<SessionEvent>, ServerStoreError>;
}

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

/// Finds the work of an agent server in the queues of sessions.
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

/// An answer to a request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReply {
    /// The HTTP status.
    pub status: u16,
    /// Type of the body.
    pub content_type: String,
    /// The body that the client received.
    pub body: String,
}

/// What is known of a request with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepeatedRequest {
    /// The request is new, or the process that handled it was killed.
    New,
    /// The request was answered like this.
    Answered(StoredReply),
    /// A running process handles the request.
    InProgress,
    /// Running processes handle as many requests of the token as possible.
    TooMany,
    /// The key was used for another request.
    OtherRequest,
}

/// Stores the answers to requests with an idempotency key, for at least a day and a limited number
/// of them per token: those of the newest requests.
#[async_trait]
pub trait IdempotencyStore: Send + Sync {
    /// Reserves a key for a request with this digest, unless it was used before.
    async fn begin_request(
        &self,
        token: &str,
        key: &str,
        digest: [u8; 32],
    ) -> Result<RepeatedRequest, ServerStoreError>;
    /// Stores the answer of a request that was reserved; `None` frees the key.
    async fn end_request(
        &self,
        token: &str,
        key: &str,
        reply: Option<StoredReply>,
    ) -> Result<(), ServerStoreError>;
}

/// A decision about an approval request, and who made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecider {
    /// Id of the approval request.
    pub approval: String,
    /// Id of the session whose turn asked.
    pub session: String,
    /// Id of the token that decided.
    pub token: String,
    /// The decision, as it was sent.
    pub decision: String,
    /// Why the calls are denied, for the model.
    pub reason: Option<String>,
}

/// Whether a decision counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionRace {
    /// This decision was the first one.
    Won,
    /// Another decision was stored before.
    Lost,
    /// The request does not wait any more.
    Closed,
}

/// Records who decided about approval requests. Of several decisions about a request, one wins.
#[async_trait]
pub trait ApprovalDeciderStore: Send + Sync {
    /// Stores a decision, unless there is one for the request.
    async fn record_decider(
        &self,
        decision: ApprovalDecider,
    ) -> Result<DecisionRace, ServerStoreError>;
    /// Removes the decision about a request, because the turn did not receive it.
    async fn remove_decider(&self, approval: &str) -> Result<(), ServerStoreError>;
    /// Returns the decision about a request.
    async fn decider(&self, approval: &str) -> Result<Option<ApprovalDecider>, ServerStoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tokens_are_not_those_that_selvedge_gives() {
        for name in [
            "ci",
            "build-7",
            "a.b_c",
            "pagerduty",
            "page",
            "7",
            "sessions_bot",
        ] {
            assert!(is_token_name(name), "{name}");
        }
        let long = "x".repeat(MAX_TOKEN_NAME_CHARS + 1);
        for name in [
            "", ".", "..", "-", "-x", "_x", "a b", "a/b", "ä", "page_x", "PAGE_x", "tok_1",
            "ses_1", "client_1", "person", "Client", "run", &long,
        ] {
            assert!(!is_token_name(name), "{name}");
        }
    }
}
