//! Why something could not be remembered or recalled.

use selvedge_journal::JournalError;

use crate::SmallModelError;

/// Why something could not be remembered or recalled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The journal's file cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// SQLite says no.
    #[error("the memory: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// There is no such session.
    #[error("there is no session `{0}`")]
    NoSession(String),
    /// There is no such turn.
    #[error("there is no turn `{turn}` in session `{session}`")]
    NoTurn {
        /// The session.
        session: String,
        /// The turn as it was asked for.
        turn: String,
    },
    /// There is no such lesson.
    #[error("there is no lesson `{0}`")]
    NoLesson(String),
    /// What was given cannot be read.
    #[error("{place}: {message}")]
    Unreadable {
        /// The file and line.
        place: String,
        /// What is wrong with it.
        message: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// What was stored is not what should be there.
    #[error("the memory is damaged: {0}")]
    Damaged(String),
    /// Somebody else is at it.
    #[error("session `{0}` is being distilled by another process")]
    Busy(String),
    /// A model that answers later could not be asked, or not be asked how far it is.
    #[error("the provider's batch: {0}")]
    Batch(SmallModelError),
    /// Somebody reads what is forgotten, so that the log cannot be emptied.
    #[error("forgotten, but another process still reads the log in which it was written")]
    StillRead,
    /// The encoder of vectors failed.
    #[error("the encoder: {0}")]
    Encoder(String),
    /// There is no such level of detail.
    #[error("`{0}` is not a level: R, S, C or T")]
    NoLevel(String),
}

impl MemoryError {
    pub(crate) fn no_turn(session: &str, turn: &str) -> Self {
        Self::NoTurn {
            session: session.to_owned(),
            turn: turn.to_owned(),
        }
    }
}
