//! Opens a journal that cannot be written, for example on a read-only mount, in a folder of another
//! user, or on a full disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use selvedge_database::{Connection, DatabaseErrorKind};

use crate::connection::{BUSY_TIMEOUT, FILE_NAME};
use crate::journal::load_digest_key;
use crate::liveness::JournalOwner;
use crate::schema::JOURNAL_SCHEMA;
use crate::{Journal, JournalError, JournalLocation, JournalOptions};

impl Journal {
    /// Opens the journal of a folder for reading. If the folder is not writable, the journal is
    /// opened read-only, and every write to it fails.
    pub fn open_for_reading(
        location: impl Into<JournalLocation>,
        keeping: &JournalOptions,
    ) -> Result<Arc<Self>, JournalError> {
        let location = location.into();
        let folder = location.folder();
        match Self::open_with(&location, keeping) {
            // Only a file can be opened without writing.
            Err(error) if location.database().is_some() => Err(error),
            Err(
                error @ (JournalError::File { .. }
                | JournalError::DiskFull { .. }
                | JournalError::Database(_)),
            ) => {
                match open_current_read_only(folder) {
                    Ok(connection) => {
                        let key = load_digest_key(&connection)?.ok_or(error)?;
                        Ok(Self::new(
                            connection,
                            &location,
                            JournalOwner::read_only(),
                            key,
                            keeping,
                        ))
                    }
                    Err(JournalError::ReadOnly { .. }) if error.is_disk_full() => Err(error),
                    Err(busy) if busy.is_busy() => Err(busy),
                    Err(
                        specific @ (JournalError::ReadOnly { .. }
                        | JournalError::NewerSchema { .. }),
                    ) => Err(specific),
                    // The error of opening it for writing is more informative.
                    Err(_) => Err(error),
                }
            }
            opened => opened,
        }
    }
}

/// Opens a read-only connection. Fails if the journal needs a migration.
fn open_current_read_only(folder: &Path) -> Result<Connection, JournalError> {
    let connection = open_read_only(folder, BUSY_TIMEOUT)?;
    if JOURNAL_SCHEMA.missing_migrations(&connection)?.is_empty() {
        return Ok(connection);
    }
    Err(JournalError::ReadOnly {
        path: folder.to_owned(),
        why: "needs a migration, because an older version wrote it",
    })
}

/// Opens a connection that writes neither to the file nor to files next to it. Fails if another
/// process has locked the file and does not release it in time.
fn open_read_only(folder: &Path, busy_timeout: Duration) -> Result<Connection, JournalError> {
    let file = folder.join(FILE_NAME);
    // Reading the log requires its index (the `-shm` file). It exists while a process has the
    // journal open, and after such a process was killed.
    let refused = match Connection::open_file_read_only(&file, busy_timeout) {
        Ok(connection) => return Ok(connection),
        Err(refused) => refused,
    };
    if matches!(
        refused.kind(),
        DatabaseErrorKind::Corrupt | DatabaseErrorKind::Busy
    ) {
        return Err(refused.into());
    }
    let has_bytes = |suffix: &str| {
        folder
            .join(format!("{FILE_NAME}{suffix}"))
            .metadata()
            .is_ok_and(|metadata| metadata.len() > 0)
    };
    if has_bytes("-wal") || has_bytes("-shm") {
        // An immutable connection would ignore the log, which contains the latest writes.
        return Err(JournalError::ReadOnly {
            path: folder.to_owned(),
            why: "its latest writes are in the log journal.sqlite-wal, which cannot be read \
                  without write access",
        });
    }
    if !file.is_file() {
        return Err(refused.into());
    }
    Ok(Connection::open_file_immutable(&file, busy_timeout)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_another_connection_has_locked_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let writer = rusqlite::Connection::open(dir.path().join(FILE_NAME)).unwrap();
        // Without a log, and with one that only the writer can read.
        for lock in [
            "CREATE TABLE t (x); BEGIN EXCLUSIVE; INSERT INTO t VALUES (1);",
            "COMMIT; PRAGMA locking_mode = exclusive; PRAGMA journal_mode = wal;
             INSERT INTO t VALUES (2);",
        ] {
            writer.execute_batch(lock).unwrap();
            let opened = open_read_only(dir.path(), Duration::from_millis(10));
            let error = opened.unwrap_err();
            assert!(error.is_busy(), "{error}");
        }
    }
}
