//! The error type of this crate.

use selvedge_database::DatabaseError;
use selvedge_journal::JournalError;

use crate::SmallModelError;

/// An error of the memory store, of importing, or of distilling.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The journal's file cannot be opened, or it is encrypted with another key.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The database reported an error.
    #[error("memory database: {0}")]
    Database(#[from] DatabaseError),
    /// No session has this name.
    #[error("there is no session `{0}`")]
    SessionNotFound(String),
    /// The session has no such turn.
    #[error("there is no turn `{turn}` in session `{session}`")]
    TurnNotFound {
        /// The name of the session.
        session: String,
        /// The turn as the caller named it.
        turn: String,
    },
    /// No lesson has this id.
    #[error("there is no lesson `{0}`")]
    LessonNotFound(String),
    /// No layer has this id.
    #[error("there is no layer `{0}`")]
    LayerNotFound(String),
    /// The project has a layer with this title.
    #[error("there is already a layer with the title `{0}`")]
    LayerExists(String),
    /// The text is too short or too long for a layer.
    #[error("a layer has 500 to 5000 tokens, and this text has {tokens}")]
    LayerSize {
        /// The size of the text, in tokens.
        tokens: u32,
    },
    /// The new text of a lesson cannot be stored.
    #[error("the lesson cannot be changed: {0}")]
    InvalidLesson(String),
    /// A gap cannot be used in prompts.
    #[error("the lesson `{0}` is a gap, which says only what is missing")]
    GapAccepted(String),
    /// No project has this root.
    #[error("there is no project at `{0}`")]
    ProjectNotFound(String),
    /// Another project has this root.
    #[error("there is already a project at `{0}`")]
    ProjectExists(String),
    /// The lesson was learned in no project, or in several.
    #[error("the lesson `{0}` does not belong to one project")]
    LessonWithoutProject(String),
    /// A line of an imported file is not in a supported format.
    #[error("{location}: {message}")]
    InvalidLine {
        /// File name and line number: `chat.jsonl:3`.
        location: String,
        /// What is wrong with the line.
        message: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The path of the file.
        path: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// Stored data is missing or has an unknown format.
    #[error("memory database is damaged: {0}")]
    Damaged(String),
    /// Another process holds the lock for distilling this session.
    #[error("session `{0}` is being distilled by another process")]
    DistillLocked(String),
    /// The small model cannot be used now. Nothing is lost: the turns are distilled later.
    #[error("memory.model is not available: {0}")]
    ModelUnavailable(SmallModelError),
    /// The provider's batch API could not accept a batch or report its status.
    #[error("provider batch failed: {0}")]
    ProviderBatch(SmallModelError),
    /// The rows are deleted, but another process reads the write-ahead log, so that it cannot be
    /// truncated and still contains the deleted text.
    #[error("deleted, but another process still reads the write-ahead log that contains the text")]
    LogInUse,
    /// The encoder failed to compute vectors.
    #[error("encoder failed: {0}")]
    Encoder(String),
    /// The text is not the letter or name of a level.
    #[error("`{0}` is not a level (use R, S, C or T)")]
    InvalidLevel(String),
}

impl MemoryError {
    /// Whether the disk or a quota is probably full.
    pub fn is_disk_full(&self) -> bool {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::Journal(error) => error.is_disk_full(),
            Self::Database(error) => error.is_disk_full(),
            Self::File { error, .. } => {
                matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
            }
            _ => false,
        }
    }

    /// Returns the error of the database that caused this one.
    pub(crate) fn database(&self) -> Option<&DatabaseError> {
        match self {
            Self::Database(error) | Self::Journal(JournalError::Database(error)) => Some(error),
            _ => None,
        }
    }

    pub(crate) fn turn_not_found(session: &str, turn: &str) -> Self {
        Self::TurnNotFound {
            session: session.to_owned(),
            turn: turn.to_owned(),
        }
    }
}
