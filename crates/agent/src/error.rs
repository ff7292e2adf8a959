//! The error type of this crate.

use selvedge_journal::JournalError;
use selvedge_protocol::{TurnError, TurnErrorKind};

/// The reason why a session cannot be begun, read or continued. Errors inside a turn are reported
/// in [`crate::TurnOutcome`] instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A stored row of the session cannot be parsed.
    #[error("the session is damaged at row {number}: {why}")]
    Damaged {
        /// The number of the row, counted from 1.
        number: u32,
        /// The parse error.
        why: String,
    },
    /// The model of a turn did not answer a sampling request of an MCP server.
    #[error("{0}")]
    SamplingFailed(String),
}

impl From<AgentError> for TurnError {
    fn from(error: AgentError) -> Self {
        let kind = match &error {
            AgentError::Journal(error) if error.is_disk_full() => TurnErrorKind::DiskFull,
            _ => TurnErrorKind::Journal,
        };
        Self::new(kind, error.to_string())
    }
}
