//! A journal that is only read, where nothing may be written: on a disk that is mounted so, in somebody's copy, on a full disk.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::journal::stored_key;
use crate::tables::BUSY_TIMEOUT;
use crate::{Journal, JournalError, Keeping, schema};

impl Journal {
    /// Opens the journal of a folder to look at it. Where nothing may be written it is read as it is; whatever would write
    /// fails then.
    pub fn open_to_read(folder: &Path, keeping: &Keeping) -> Result<Self, JournalError> {
        match Self::open_with(folder, keeping) {
            Err(error @ (JournalError::File { .. } | JournalError::Sqlite(_))) => {
                match look(folder) {
                    Ok(connection) => {
                        let key = stored_key(&connection)?.ok_or(error)?;
                        Ok(Self::only_read(connection, folder, key, keeping))
                    }
                    Err(
                        told @ (JournalError::ReadOnly { .. } | JournalError::FromTheFuture { .. }),
                    ) => Err(told),
                    // Why it could not be opened says more.
                    Err(_) => Err(error),
                }
            }
            opened => opened,
        }
    }
}

/// A connection that writes nothing, not even beside the file.
fn look(folder: &Path) -> Result<Connection, JournalError> {
    let connection = connect(folder)?;
    match schema::steps_missing(&connection)? {
        0 => Ok(connection),
        _ => Err(JournalError::ReadOnly {
            path: folder.to_owned(),
            why: "it is of an older version and would have to be brought up to date",
        }),
    }
}

fn connect(folder: &Path) -> Result<Connection, JournalError> {
    let file = folder.join("journal.sqlite");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let readable = |connection: Connection| {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        Ok::<_, rusqlite::Error>(connection)
    };
    // With the index of its log, which whoever writes has open, and whoever was killed left behind.
    let refused = match Connection::open_with_flags(&file, flags).and_then(readable) {
        Ok(connection) => return Ok(connection),
        Err(refused) => refused,
    };
    if matches!(
        refused.sqlite_error_code(),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
    ) {
        return Err(refused.into());
    }
    let holds_something = |name: &str| {
        folder
            .join(name)
            .metadata()
            .is_ok_and(|facts| facts.len() > 0)
    };
    if holds_something("journal.sqlite-wal") || holds_something("journal.sqlite-shm") {
        // As if nobody ever wrote again, the log would be passed over, and with it what happened last.
        return Err(JournalError::ReadOnly {
            path: folder.to_owned(),
            why: "what happened last is still in its log (journal.sqlite-wal), which cannot be read without writing",
        });
    }
    if !file.is_file() {
        return Err(refused.into());
    }
    let address = format!("file:{}?immutable=1", percent_encoded(&file));
    let connection = Connection::open_with_flags(address, flags | OpenFlags::SQLITE_OPEN_URI)?;
    Ok(readable(connection)?)
}

/// A path as SQLite's addresses have it.
fn percent_encoded(path: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(byte);
    let encoded = |byte: &u8| {
        if plain(byte) {
            char::from(*byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    path.as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(encoded)
        .collect()
}
