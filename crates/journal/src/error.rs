//! The error type of this crate.

use std::path::{Path, PathBuf};

use selvedge_database::{DatabaseError, DatabaseErrorKind};
use selvedge_protocol::{ChannelError, LedgerError, ServerStoreError, SessionError};

const DISK_FULL: &str = "no space left on the disk";

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file or its folder cannot be created or opened.
    #[error("cannot open {path}: {error}")]
    File {
        /// The journal's folder.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The folder is not writable, and the journal cannot be read without writing to it.
    #[error("the journal in {path} is read-only and {why}")]
    ReadOnly {
        /// The journal's folder.
        path: PathBuf,
        /// Why writing is necessary, as the end of a sentence about the journal.
        why: &'static str,
    },
    /// The disk or a quota is full, or the file size limit is reached.
    #[error("cannot write the journal {path}: {why}")]
    DiskFull {
        /// The journal's file.
        path: PathBuf,
        /// What is full.
        why: &'static str,
    },
    /// This version of Selvedge is too old to write to the tables.
    #[error(
        "{path} requires a newer version of Selvedge \
         (schema version {required} of {component}, this version knows {known})"
    )]
    NewerSchema {
        /// The journal's file.
        path: PathBuf,
        /// The component whose tables are newer.
        component: String,
        /// The schema version that a program must know.
        required: u32,
        /// The newest schema version that this build knows; 0 if it does not know the component.
        known: u32,
    },
    /// A migration would remove what running processes of older versions need.
    #[error(
        "cannot migrate {path} while older versions of Selvedge use it: {}",
        processes.join(", ")
    )]
    OlderProcesses {
        /// The journal's file.
        path: PathBuf,
        /// The machine and number of each process.
        processes: Vec<String>,
    },
    /// The file or database has other tables or columns than those of its schema version, or only
    /// tables of other programs.
    #[error("{path} has the tables of another, unreleased version of Selvedge")]
    UnknownSchema {
        /// The journal's file.
        path: PathBuf,
    },
    /// The file is not a database, or SQLite found an error in it.
    #[error("the journal {path} is damaged: {why}")]
    DamagedFile {
        /// The journal's file.
        path: PathBuf,
        /// The error of SQLite.
        why: String,
    },
    /// No run has this id, or an id that begins with it.
    #[error("there is no run `{0}`")]
    RunNotFound(String),
    /// Another run has the same id.
    #[error("there is already a run `{0}`")]
    RunExists(String),
    /// Several runs or sessions have ids that begin with this prefix.
    #[error("`{0}` matches more than one id")]
    AmbiguousId(String),
    /// No session has this id or name, or an id that begins with it.
    #[error("there is no session `{0}`")]
    SessionNotFound(String),
    /// Another process has claimed the session, or has appended items to it in the meantime.
    #[error("session `{0}` is in use by another process")]
    SessionInUse(String),
    /// Another process has claimed the session since this process claimed it.
    #[error("session `{0}` was taken over by another server")]
    TakenOver(String),
    /// Another session already has this name.
    #[error("the session name `{0}` is already in use")]
    NameTaken(String),
    /// The lines to import are not an exported session.
    #[error("not an exported session: {0}")]
    InvalidSessionExport(String),
    /// Saving another document would exceed the size of the File Cabinet.
    #[error("the File Cabinet is full ({megabytes} MB)")]
    DocumentStoreFull {
        /// The size of the File Cabinet.
        megabytes: u64,
    },
    /// A payload cannot be decrypted: no key or another key was given, or the payload was modified.
    #[error("cannot decrypt the journal: wrong or missing key")]
    WrongKey,
    /// Another process has claimed the run.
    #[error("another process has claimed the run")]
    ClaimedByOther,
    /// Another run has already resumed this run.
    #[error("{run} was resumed by {by}")]
    AlreadyResumed {
        /// The run that was to be resumed.
        run: String,
        /// The run that resumed it.
        by: String,
    },
    /// The run is not suspended, so it waits for no approval.
    #[error("run `{0}` is not waiting for approval")]
    NotSuspended(String),
    /// A run that would have to be deleted is running or suspended.
    #[error("run `{0}` has not ended")]
    RunNotEnded(String),
    /// Deleted content may still be in the file's log, because another process reads the file.
    #[error(
        "the content is deleted, but the journal's log cannot be truncated while another process \
         reads the file"
    )]
    LogNotTruncated,
    /// A copy of another store into this one was interrupted.
    #[error("{path} has an unfinished copy of another store")]
    UnfinishedCopy {
        /// The journal's file, or the address of the database.
        path: PathBuf,
    },
    /// A store cannot be copied into another one.
    #[error("cannot copy the store: {0}")]
    StoreCopy(String),
    /// A job of the journal panicked.
    #[error("the journal failed with an internal error")]
    Panicked,
    /// Stored data is missing or malformed.
    #[error("the journal is damaged: {0}")]
    Damaged(String),
    /// The database returned an error.
    #[error("cannot access the journal: {0}")]
    Database(#[from] DatabaseError),
}

impl JournalError {
    /// Names the file in errors that concern the whole file: there was no space for a write, the
    /// file is damaged, or it has other columns than the statements need.
    pub(crate) fn naming_file(self, file: &Path) -> Self {
        let path = file.to_owned();
        let why = match &self {
            Self::Database(error) => match error.kind() {
                // The statements are constant, so they do not fit the file.
                DatabaseErrorKind::UnknownColumn => return Self::UnknownSchema { path },
                DatabaseErrorKind::Corrupt => {
                    let why = error.to_string();
                    return Self::DamagedFile { path, why };
                }
                DatabaseErrorKind::DiskFull => DISK_FULL,
                DatabaseErrorKind::WriteFailed => {
                    "no space left on the disk, or the file size limit is reached"
                }
                _ => return self,
            },
            Self::File { .. } if self.is_disk_full() => DISK_FULL,
            _ => return self,
        };
        Self::DiskFull { path, why }
    }

    /// Returns whether another connection has locked the file.
    pub(crate) fn is_busy(&self) -> bool {
        self.has_kind(DatabaseErrorKind::Busy)
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
            JournalError::ClaimedByOther | JournalError::TakenOver(_) => Self::ClaimedByOther,
            JournalError::AlreadyResumed { run, by } => Self::AlreadyResumed { run, by },
            other if other.is_disk_full() => Self::DiskFull(other.to_string()),
            other if other.is_unavailable() => Self::Unavailable(other.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<JournalError> for ChannelError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::SessionNotFound(id) => Self::SessionNotFound(id),
            other => Self::Storage(other.into()),
        }
    }
}

impl From<JournalError> for SessionError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::SessionNotFound(id) => Self::NotFound(id),
            other => Self::Storage(other.into()),
        }
    }
}

impl From<JournalError> for ServerStoreError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::TakenOver(session) => Self::TakenOver(session),
            other => Self::Storage(other.into()),
        }
    }
}

impl JournalError {
    /// Whether the database cannot be reached, or the connection to it was lost.
    pub fn is_unavailable(&self) -> bool {
        self.has_kind(DatabaseErrorKind::Unavailable)
    }

    /// Whether the write may have been committed: the connection to the database was lost
    /// meanwhile, and the database did not tell.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        self.has_kind(DatabaseErrorKind::OutcomeUnknown)
    }

    /// Whether the address, user or password of the database is wrong.
    pub fn is_address_wrong(&self) -> bool {
        self.has_kind(DatabaseErrorKind::Address)
    }

    fn has_kind(&self, kind: DatabaseErrorKind) -> bool {
        matches!(self, Self::Database(error) if error.kind() == kind)
    }

    /// Whether the disk or a quota is probably full. SQLite reports it as an I/O error if it cannot
    /// extend the index of its log.
    pub fn is_disk_full(&self) -> bool {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::DiskFull { .. } => true,
            Self::File { error, .. } => {
                matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
            }
            Self::Database(error) => error.is_disk_full(),
            _ => false,
        }
    }
}
