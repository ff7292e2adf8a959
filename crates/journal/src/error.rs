//! Why the journal could not be read or written.

use std::path::PathBuf;

use selvedge_protocol::LedgerError;

use crate::connection::is_busy;

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file or its folder cannot be used.
    #[error("cannot open {path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Nothing may be written, and it cannot be read without.
    #[error("the journal in {path} may only be read, and {why}")]
    ReadOnly {
        /// Where.
        path: PathBuf,
        /// What would have to be written.
        why: &'static str,
    },
    /// The schema is newer than this version of Selvedge.
    #[error(
        "the journal was written by a newer version of Selvedge \
         (schema version {version} of {component}, this version knows {known})"
    )]
    NewerSchema {
        /// Whose tables.
        component: &'static str,
        /// The version in the file.
        version: u32,
        /// The newest version known here.
        known: u32,
    },
    /// The file has tables, but none that says which version wrote them.
    #[error("the journal was written by an unreleased version of Selvedge")]
    UnknownSchema,
    /// There is no such run.
    #[error("there is no run `{0}`")]
    NoRun(String),
    /// More than one run begins like that.
    #[error("`{0}` is the beginning of several runs")]
    Ambiguous(String),
    /// There is no such session.
    #[error("there is no session `{0}`")]
    NoSession(String),
    /// Another process works on the session, or has gone on with it meanwhile.
    #[error("another process works on session `{0}`")]
    SessionInUse(String),
    /// Another session has the name.
    #[error("another session is called `{0}`")]
    NameTaken(String),
    /// What was to be taken in is no exported session.
    #[error("this is no exported session: {0}")]
    NotASession(String),
    /// There is no room for another document.
    #[error("the File Cabinet holds {megabytes} MB and is full")]
    CabinetFull {
        /// How much it holds.
        megabytes: u64,
    },
    /// Payloads are sealed with a key that is not at hand.
    #[error("the journal is sealed, and the key at hand does not open it")]
    Sealed,
    /// Another process goes on with the run.
    #[error("another process goes on with the run")]
    TakenOver,
    /// Another run has resumed the same one.
    #[error("{run} was resumed by {by}")]
    AlreadyResumed {
        /// From which.
        run: String,
        /// Which does.
        by: String,
    },
    /// The run waits for no answer.
    #[error("`{0}` does not wait for an answer")]
    NotSuspended(String),
    /// A run that would have to be removed goes on, or waits for an answer.
    #[error("`{0}` is not over")]
    NotOver(String),
    /// Removed content may still be in the file's log, because another process reads the file.
    #[error(
        "it is removed, but another process still reads the file, whose log could not be emptied"
    )]
    StillRead,
    /// The journal's own code panicked.
    #[error("the journal failed with an internal error")]
    Panicked,
    /// What was stored is not what should be there.
    #[error("the journal is damaged: {0}")]
    Damaged(String),
    /// SQLite says no.
    #[error("the journal: {}", first_line(.0))]
    Sqlite(#[from] rusqlite::Error),
}

impl JournalError {
    /// Whether another connection has locked the file.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Self::Sqlite(error) if is_busy(error))
    }
}

/// An error of SQLite without the statement that it can quote.
fn first_line(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        error => error.to_string(),
    }
}

impl From<serde_json::Error> for JournalError {
    fn from(error: serde_json::Error) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl From<std::string::FromUtf8Error> for JournalError {
    fn from(error: std::string::FromUtf8Error) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl From<JournalError> for LedgerError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::TakenOver => Self::TakenOver,
            JournalError::AlreadyResumed { run, by } => Self::AlreadyResumed { run, by },
            other => Self::Failed(other.to_string()),
        }
    }
}

impl JournalError {
    /// Whether the disk or a quota is probably full. SQLite reports it as an I/O error if it cannot
    /// extend the index of its log.
    pub fn is_disk_full(&self) -> bool {
        use rusqlite::ErrorCode::{DiskFull, SystemIoFailure};
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::File { error, .. } => {
                matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
            }
            Self::Sqlite(error) => {
                matches!(error.sqlite_error_code(), Some(DiskFull | SystemIoFailure))
            }
            _ => false,
        }
    }
}
