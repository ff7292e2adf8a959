//! The error of the interfaces with which an agent server stores and reads.

use crate::LedgerError;

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
