//! The error type of this crate.

use rusqlite::ErrorCode;
use rusqlite::ffi::{
    SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE, SQLITE_IOERR_SHMSIZE,
    SQLITE_IOERR_WRITE,
};

/// Why a statement failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DatabaseError {
    kind: DatabaseErrorKind,
    message: String,
}

/// The kind of a [`DatabaseError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatabaseErrorKind {
    /// Another connection has locked the database.
    Busy,
    /// The disk or a quota is full.
    DiskFull,
    /// A file could not be written, which usually means that the disk is full.
    WriteFailed,
    /// Another error of reading or writing a file.
    InputOutput,
    /// The file is damaged, or no database.
    Corrupt,
    /// A statement names a table or column that the database does not have.
    UnknownColumn,
    /// A row with the same key exists.
    UniqueViolation,
    /// The query returned no row.
    NoRows,
    /// A column has another type than the caller expects.
    WrongType,
    /// Another transaction is in the way. The whole transaction can be repeated.
    Conflict,
    /// The database cannot be reached, or the connection to it was lost. Nothing was written.
    Unavailable,
    /// The connection was lost during a commit, and the database did not tell its outcome.
    OutcomeUnknown,
    /// The address, user or password of the database is wrong.
    Address,
    /// An error that no other kind describes.
    Other,
}

impl DatabaseError {
    pub(crate) fn new(kind: DatabaseErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> DatabaseErrorKind {
        self.kind
    }

    /// Whether the whole transaction can be repeated, and may succeed then: another transaction was
    /// in the way, or the connection was lost before the commit.
    pub fn is_transient(&self) -> bool {
        use DatabaseErrorKind::{Conflict, Unavailable};
        matches!(self.kind, Conflict | Unavailable)
    }

    /// Whether the disk or a quota is probably full.
    pub fn is_disk_full(&self) -> bool {
        use DatabaseErrorKind::{DiskFull, InputOutput, WriteFailed};
        matches!(self.kind, DiskFull | WriteFailed | InputOutput)
    }
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        // Without the statement that an error can quote.
        let message = match &error {
            rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
            error => error.to_string(),
        };
        let extended = error.sqlite_error().map(|error| error.extended_code);
        // SQLite has no code for it.
        let is_unknown_column = ["no such table", "no such column", "has no column named"]
            .iter()
            .any(|phrase| message.contains(phrase));
        let kind = match (error.sqlite_error_code(), extended) {
            _ if is_unknown_column => DatabaseErrorKind::UnknownColumn,
            _ if error == rusqlite::Error::QueryReturnedNoRows => DatabaseErrorKind::NoRows,
            (Some(ErrorCode::DatabaseBusy), _) => DatabaseErrorKind::Busy,
            (Some(ErrorCode::DiskFull), _) => DatabaseErrorKind::DiskFull,
            // SQLite reports only a failed write of its main files as a full disk.
            (_, Some(SQLITE_IOERR_SHMSIZE | SQLITE_IOERR_WRITE)) => DatabaseErrorKind::WriteFailed,
            (Some(ErrorCode::SystemIoFailure), _) => DatabaseErrorKind::InputOutput,
            (Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase), _) => {
                DatabaseErrorKind::Corrupt
            }
            (_, Some(SQLITE_CONSTRAINT_UNIQUE | SQLITE_CONSTRAINT_PRIMARYKEY)) => {
                DatabaseErrorKind::UniqueViolation
            }
            _ => DatabaseErrorKind::Other,
        };
        Self { kind, message }
    }
}

/// Converts a missing row into `None`.
pub trait OptionalRow<T> {
    /// Returns `None` if the query returned no row.
    fn optional(self) -> Result<Option<T>, DatabaseError>;
}

impl<T> OptionalRow<T> for Result<T, DatabaseError> {
    fn optional(self) -> Result<Option<T>, DatabaseError> {
        match self {
            Ok(row) => Ok(Some(row)),
            Err(error) if error.kind == DatabaseErrorKind::NoRows => Ok(None),
            Err(error) => Err(error),
        }
    }
}
