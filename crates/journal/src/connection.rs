//! Opening connections that read and write the journal's file.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::types::FromSql;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Params};

use crate::JournalError;

/// The name of the journal's file in its folder.
pub(crate) const FILE: &str = "journal.sqlite";
/// How long a connection waits for a lock that another one holds. A write usually takes well under
/// a millisecond.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to wait before the switch to WAL mode is tried again.
const WAL_RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Opens the file, and creates it with its folder if there is none.
pub(crate) fn read_write(folder: &Path) -> Result<Connection, JournalError> {
    let file = |error| JournalError::File {
        path: folder.to_owned(),
        error,
    };
    std::fs::create_dir_all(folder).map_err(file)?;
    let path = folder.join(FILE);
    make_private(&path).map_err(file)?;
    let connection = Connection::open(&path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    switch_to_wal(&connection)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Switches the database to WAL mode. If it is in WAL mode already, this only reads.
///
/// The switch upgrades a read lock to an exclusive lock. For an upgrade SQLite does not call the busy
/// handler, because two connections that both wait would block each other: it returns `SQLITE_BUSY`
/// at once and drops the read lock. Trying again is sufficient: one connection always gets the lock,
/// the switch is permanent, and the next attempt of every other connection finds it done. All other
/// locks, also those of WAL recovery, go through the busy handler.
fn switch_to_wal(connection: &Connection) -> rusqlite::Result<()> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match connection.pragma_update(None, "journal_mode", "wal") {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(WAL_RETRY_INTERVAL);
            }
            done => return done,
        }
    }
}

pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Creates the file if there is none, and takes all permissions from other users.
#[cfg(unix)]
fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    let mut permissions = file.metadata()?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(0o600);
        file.set_permissions(permissions)?;
    }
    Ok(())
}

/// The permissions of the folder apply.
#[cfg(not(unix))]
fn make_private(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Runs a statement, which is prepared once per connection.
pub(crate) fn execute(
    connection: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<(), JournalError> {
    connection.prepare_cached(sql)?.execute(params)?;
    Ok(())
}

/// Reads the first column of all rows.
pub(crate) fn column<T: FromSql>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<Vec<T>, JournalError> {
    let mut read = connection.prepare_cached(sql)?;
    let rows = read.query_map(params, |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Reads the first column of the first row, if there is one.
pub(crate) fn first<T: FromSql>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<Option<T>, JournalError> {
    let mut read = connection.prepare_cached(sql)?;
    Ok(read.query_row(params, |row| row.get(0)).optional()?)
}
