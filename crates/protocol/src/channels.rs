//! Channels: named lists of messages between people and sessions, ordered and append-only.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LedgerError, TurnPermissions};

/// Highest hop count of a message: how many sessions in a row can post because of each other before
/// a person has to post.
pub const MAX_HOPS: u32 = 8;
/// Longest message, in bytes.
pub const MAX_CHANNEL_MESSAGE_BYTES: usize = 64 << 10;
/// Most messages that one read returns.
pub const MAX_CHANNEL_READ: u32 = 500;
/// Longest name of a channel, in bytes.
const MAX_CHANNEL_NAME_BYTES: usize = 64;
/// Most mentions of one message that count. Further ones are text only.
const MAX_MENTIONS: usize = 16;

/// Stores channels. It promises:
///
/// - Gapless and in order: the messages of a channel have the numbers 1, 2, 3 and so on, also
///   if several processes post at the same time.
/// - Once: an idempotency key makes it safe to repeat a post.
/// - Delivered with the post: a message and the messages that it queues for sessions are stored
///   together or not at all.
/// - Fenced: a session that another server has taken over cannot post.
/// - What a future that returned `Ok` has changed survives a crash of this process.
#[async_trait]
pub trait ChannelStore: Send + Sync {
    /// Appends a message to a channel, which is created if it does not exist, and queues the
    /// message for the sessions that follow the channel and are mentioned. A message with the
    /// idempotency key of an earlier one is not appended again.
    async fn post(&self, message: NewChannelMessage) -> Result<PostReceipt, ChannelError>;
    /// Returns up to `limit` messages of a channel, oldest first.
    async fn read(
        &self,
        channel: &str,
        from: ReadFrom,
        limit: u32,
    ) -> Result<Vec<ChannelMessage>, ChannelError>;
    /// Returns all channels, the one with the newest message first.
    async fn list(&self) -> Result<Vec<ChannelInfo>, ChannelError>;
    /// Makes a session follow a channel, or no longer follow it.
    async fn follow(
        &self,
        channel: &str,
        session: &str,
        following: Following,
    ) -> Result<(), ChannelError>;
}

/// Where a read of a channel begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the newest messages.
    Newest,
    /// After the message with this number. 0 reads from the beginning.
    After(u64),
}

/// Whether a session follows a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// Posts that mention the session become messages to it.
    On,
    /// Posts are not delivered to the session.
    Off,
}

/// Author of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MessageAuthor {
    /// Whether a person, a session or the script of another program wrote the message.
    pub kind: AuthorKind,
    /// Name of the person, or id of the session or of the script's run.
    pub id: String,
}

/// Kind of an author.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthorKind {
    /// A person, also through a script that the person started.
    Person,
    /// A client of the agent server. Its id is the name of its token.
    Client,
    /// A session, through a script or call of its agent.
    Session,
    /// A script that an MCP client sent.
    Run,
}

impl AuthorKind {
    /// Returns the name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Client => "client",
            Self::Session => "session",
            Self::Run => "run",
        }
    }

    /// Returns whether the author is a person, or a program that a person gave a token.
    pub fn is_person(self) -> bool {
        matches!(self, Self::Person | Self::Client)
    }
}

/// A message to post.
#[derive(Debug, Clone, PartialEq)]
pub struct NewChannelMessage {
    /// Name of the channel.
    pub channel: String,
    /// Author of the message.
    pub author: MessageAuthor,
    /// Text of the message.
    pub text: String,
    /// The same for every attempt to post this message. `None` if it is posted once.
    pub idempotency_key: Option<String>,
    /// What a turn that the message starts may do at most. `None` if a person posts it.
    pub permissions: Option<TurnPermissions>,
    /// Most messages that are not answered, of those that the same token pays for. Beyond it,
    /// mentioned sessions do not get the message. `None` without a limit.
    pub max_open_messages: Option<u32>,
}

/// A message of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChannelMessage {
    /// Name of the channel.
    pub channel: String,
    /// Position in the channel, counted from 1 without gaps.
    pub number: u64,
    /// Author of the message.
    pub author: MessageAuthor,
    /// Text of the message.
    pub text: String,
    /// When it was posted, in milliseconds since 1970.
    pub time: i64,
    /// Ids and titles of sessions after `@` in the text, without the `@`.
    pub mentions: Vec<String>,
    /// Number of sessions that posted because of each other, up to this message. 0 for a person.
    pub hops: u32,
    /// The message (`channel#number`) or turn (`ses_…/T-3`) that led to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// A posted message, and who received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostReceipt {
    /// The message as stored.
    pub message: ChannelMessage,
    /// Ids of the sessions for which the message is queued.
    pub queued: Vec<String>,
    /// Mentioned followers for which the message could not be queued, each with the reason.
    pub refused: Vec<String>,
}

/// A channel, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChannelInfo {
    /// Name of the channel.
    pub name: String,
    /// Number of messages, which is the number of the newest one.
    pub messages: u64,
    /// When the newest message was posted, in milliseconds since 1970. 0 without messages.
    pub time: i64,
    /// Ids of the sessions that follow the channel.
    pub followers: Vec<String>,
}

/// Why a channel could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelError {
    /// The name is not valid.
    InvalidName(String),
    /// No channel has this name.
    NotFound(String),
    /// No session has this id.
    SessionNotFound(String),
    /// The message has no text.
    EmptyMessage,
    /// The message has this many bytes, more than [`MAX_CHANNEL_MESSAGE_BYTES`].
    MessageTooLong(usize),
    /// The hop count of the message would be above [`MAX_HOPS`].
    TooManyHops,
    /// The storage failed.
    Storage(LedgerError),
}

impl std::fmt::Display for ChannelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InvalidName(name) => write!(f, "`{name}` is not a valid name of a channel"),
            Self::NotFound(name) => write!(f, "there is no channel `{name}`"),
            Self::SessionNotFound(id) => write!(f, "there is no session `{id}`"),
            Self::EmptyMessage => f.write_str("the message is empty"),
            Self::MessageTooLong(bytes) => write!(
                f,
                "the message has {bytes} bytes; the limit is {MAX_CHANNEL_MESSAGE_BYTES}"
            ),
            Self::TooManyHops => write!(
                f,
                "{MAX_HOPS} sessions have posted because of each other; a person has to post next"
            ),
            Self::Storage(error) => write!(f, "cannot access the channels: {error}"),
        }
    }
}

impl std::error::Error for ChannelError {}

impl ChannelError {
    /// Returns what to do instead.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::InvalidName(_) => Some(
                "use up to 64 lower-case letters, digits, `-`, `_` and `.`, such as `engineering`",
            ),
            Self::NotFound(_) => Some("run `selvedge channels list` to list the channels"),
            Self::SessionNotFound(_) => Some("run `selvedge sessions list` to list the sessions"),
            Self::EmptyMessage => Some("pass a text"),
            Self::MessageTooLong(_) => Some("save the text to a file and post its path"),
            Self::TooManyHops => Some("run `selvedge channels post NAME MESSAGE` as a person"),
            Self::Storage(_) => None,
        }
    }
}

/// Fails if the name of a channel is not valid: lower-case letters, digits, `-`, `_` and `.`, and a
/// letter or digit first.
pub fn check_channel_name(name: &str) -> Result<(), ChannelError> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_valid = name.len() <= MAX_CHANNEL_NAME_BYTES
        && name.starts_with(is_plain)
        && name.chars().all(|c| is_plain(c) || "-_.".contains(c));
    match is_valid {
        true => Ok(()),
        false => {
            let shown: String = name.chars().take(MAX_CHANNEL_NAME_BYTES).collect();
            Err(ChannelError::InvalidName(shown))
        }
    }
}

/// Returns the words after `@` in a text, in lower case and each once. An `@` inside a word, as in
/// a mail address, does not count.
pub fn mentions_in(text: &str) -> Vec<String> {
    let mut mentions: Vec<String> = Vec::new();
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let starts_word = c == '@' && !before.is_alphanumeric() && before != '@';
        before = c;
        if !starts_word {
            continue;
        }
        let word = text[at + 1..].split(|c: char| !is_mention_char(c));
        let word = word.into_iter().next().unwrap_or_default();
        let word = word.trim_end_matches(['.', '-']).to_lowercase();
        if !word.is_empty() && !mentions.contains(&word) && mentions.len() < MAX_MENTIONS {
            mentions.push(word);
        }
    }
    mentions
}

fn is_mention_char(c: char) -> bool {
    c.is_alphanumeric() || "_-.".contains(c)
}

/// Returns the word that mentions a session with this title: `fix-login` for `Fix login`.
pub fn mention_of_title(title: &str) -> String {
    let words = title.split(|c: char| !is_mention_char(c));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-").trim_end_matches(['.', '-']).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mentions_are_words_after_an_at_sign() {
        assert_eq!(
            mentions_in("@ses_1a, ask @Fix-Login. (@other) mail a@b.de @@x @ses_1a @"),
            ["ses_1a", "fix-login", "other"]
        );
        let many: String = (0..40).map(|n| format!("@s{n} ")).collect();
        assert_eq!(mentions_in(&many).len(), MAX_MENTIONS);
        assert_eq!(mention_of_title("Fix  login!"), "fix-login");
        assert_eq!(mention_of_title("…"), "");
    }

    #[test]
    fn names_of_channels_are_plain() {
        for name in ["engineering", "a.b-c_1", "7"] {
            assert_eq!(check_channel_name(name), Ok(()));
        }
        for name in [
            "",
            "Engineering",
            "-x",
            "a b",
            "a@b",
            "a/b",
            &"x".repeat(65),
        ] {
            assert!(check_channel_name(name).is_err(), "{name}");
        }
    }
}
