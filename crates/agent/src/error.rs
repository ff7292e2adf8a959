//! Why a session cannot be used.

use selvedge_journal::JournalError;
use selvedge_protocol::{TurnError, TurnErrorKind};

/// Why a session cannot be begun, read or gone on with. What goes wrong inside a turn is told in
/// [`crate::TurnOutcome`] instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// It cannot be read or written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What is stored is no conversation.
    #[error("the session is damaged at item {number}: {why}")]
    Damaged {
        /// Which item, from one.
        number: u32,
        /// What is wrong with it.
        why: String,
    },
    /// The model of a turn did not answer a question of an MCP server.
    #[error("{0}")]
    NotAnswered(String),
}

impl From<AgentError> for TurnError {
    fn from(error: AgentError) -> Self {
        Self::new(TurnErrorKind::Journal, error.to_string())
    }
}
