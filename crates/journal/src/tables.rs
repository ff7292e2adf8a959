//! The journal's file for other crates' tables: opened the same way, with steps of their own.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use crate::{JournalError, Seal, schema};

/// How long a connection waits for a lock that another one holds. Most writes take well under a millisecond.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to wait before the switch to WAL mode is tried again.
const WAL_RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// The tables of another crate in the journal's file.
#[derive(Debug, Clone, Copy)]
pub struct Tables {
    /// The table in which the steps taken are written down, named by the crate.
    pub steps_table: &'static str,
    /// Ordered steps, each a name and its SQL. One that was released is never changed; a new one is added below it.
    pub steps: &'static [(&'static str, &'static str)],
}

impl Tables {
    /// A connection of one's own to the journal of a folder, with these tables in it, brought up to date, and with the
    /// seal's functions.
    pub fn open(&self, folder: &Path, seal: &Seal) -> Result<Connection, JournalError> {
        let mut connection = self.connect(folder, seal)?;
        schema::take(&mut connection, self.steps_table, self.steps)?;
        Ok(connection)
    }

    /// One more connection, where [`Tables::open`] has been before.
    pub fn connect(&self, folder: &Path, seal: &Seal) -> Result<Connection, JournalError> {
        let connection = connect(folder)?;
        seal.attach(&connection)?;
        Ok(connection)
    }
}

pub(crate) fn connect(folder: &Path) -> Result<Connection, JournalError> {
    let file = |error| JournalError::File {
        path: folder.to_owned(),
        error,
    };
    std::fs::create_dir_all(folder).map_err(file)?;
    let path = folder.join("journal.sqlite");
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
/// The switch upgrades a read lock to an exclusive lock. SQLite does not call the busy handler for an upgrade, because
/// two connections that both wait would block each other: it returns `SQLITE_BUSY` at once and drops the read lock.
/// Trying again is sufficient. One connection always gets the lock, the switch is permanent, and the next attempt of
/// every other connection finds it done. All other locks, also those of WAL recovery, go through the busy handler.
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

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Nobody else may read it, not even before it is first opened.
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

/// Nobody else may read it, as far as the folder's own rights say.
#[cfg(not(unix))]
fn make_private(_: &Path) -> std::io::Result<()> {
    Ok(())
}
