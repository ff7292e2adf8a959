//! The journal's file for other crates' tables: opened the same way, with steps of their own.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use crate::{JournalError, Seal, schema};

/// How long a writer waits for another. Each writes for well under a millisecond.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

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
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
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
