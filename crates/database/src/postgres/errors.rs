//! Errors of PostgreSQL.

use std::error::Error;

use tokio_postgres::error::SqlState;

use super::PostgresUrl;
use crate::{DatabaseError, DatabaseErrorKind};

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(reported) = error.as_db_error() else {
            // The text of the error names only its kind, its source the cause.
            let cause = error.source().map(ToString::to_string);
            let kind = match input_output_cause(&error) {
                // The certificate of the server is not trusted, or has another name.
                Some(std::io::ErrorKind::InvalidData) => DatabaseErrorKind::Address,
                Some(_) => DatabaseErrorKind::Unavailable,
                None if error.is_closed() => DatabaseErrorKind::Unavailable,
                None => DatabaseErrorKind::Other,
            };
            return Self::new(kind, cause.unwrap_or_else(|| error.to_string()));
        };
        // The message without the details, which may quote values.
        Self::new(
            kind_of(reported.code(), reported.message()),
            reported.message(),
        )
    }
}

/// Returns the kind of the error of the network or of TLS that caused this one.
fn input_output_cause(error: &tokio_postgres::Error) -> Option<std::io::ErrorKind> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return Some(error.kind());
        }
        source = error.source();
    }
    None
}

/// Returns the kind of an error that the server reported.
fn kind_of(state: &SqlState, message: &str) -> DatabaseErrorKind {
    match *state {
        SqlState::UNIQUE_VIOLATION => DatabaseErrorKind::UniqueViolation,
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN => DatabaseErrorKind::UnknownColumn,
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            DatabaseErrorKind::Conflict
        }
        // A prepared statement whose table was changed by a migration.
        SqlState::FEATURE_NOT_SUPPORTED if message.contains("cached plan") => {
            DatabaseErrorKind::Conflict
        }
        SqlState::LOCK_NOT_AVAILABLE | SqlState::QUERY_CANCELED => DatabaseErrorKind::Busy,
        SqlState::DISK_FULL => DatabaseErrorKind::DiskFull,
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => DatabaseErrorKind::Corrupt,
        SqlState::READ_ONLY_SQL_TRANSACTION
        | SqlState::TOO_MANY_CONNECTIONS
        | SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => DatabaseErrorKind::Unavailable,
        ref state if state.code().starts_with("08") => DatabaseErrorKind::Unavailable,
        // The password or the name of the user or database is wrong.
        ref state if state.code().starts_with("28") || state.code().starts_with("3D") => {
            DatabaseErrorKind::Address
        }
        _ => DatabaseErrorKind::Other,
    }
}

impl DatabaseError {
    /// Adds which database could not be reached.
    pub(super) fn while_connecting(self, url: &PostgresUrl) -> Self {
        let kind = match self.kind() {
            DatabaseErrorKind::Address => DatabaseErrorKind::Address,
            _ => DatabaseErrorKind::Unavailable,
        };
        Self::new(kind, format!("cannot connect to {url}: {self}"))
    }
}

pub(super) fn lost_in_transaction() -> DatabaseError {
    DatabaseError::new(
        DatabaseErrorKind::Unavailable,
        "the connection was lost during a transaction",
    )
}

pub(super) fn lost() -> DatabaseError {
    DatabaseError::new(DatabaseErrorKind::Unavailable, "the connection was lost")
}

pub(super) fn no_free_connection(max_connections: usize) -> DatabaseError {
    DatabaseError::new(
        DatabaseErrorKind::Unavailable,
        format!("none of the {max_connections} connections to the database became free in time"),
    )
}

pub(super) fn no_answer() -> DatabaseError {
    DatabaseError::new(
        DatabaseErrorKind::Unavailable,
        "the database did not answer in time",
    )
}

pub(super) fn failed_transaction() -> DatabaseError {
    DatabaseError::new(
        DatabaseErrorKind::Other,
        "the transaction cannot be committed, because a statement of it failed",
    )
}
