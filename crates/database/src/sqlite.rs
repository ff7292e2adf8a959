//! What only SQLite has: files, their log, and SQL functions.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSql, ToSqlOutput};
use rusqlite::{OpenFlags, types};

use crate::connection::Backend;
use crate::statement::from_sqlite;
use crate::{ColumnCodec, ColumnCodecError, Connection, DatabaseError, DatabaseValue, ValueRef};

/// How long to wait before the switch to WAL mode is tried again.
const WAL_RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// The number of prepared statements that a connection keeps.
const MAX_CACHED_STATEMENTS: usize = 64;

impl Connection {
    /// Opens a file of SQLite for reading and writing, and creates it if it does not exist.
    pub fn open_file(path: &Path, busy_timeout: Duration) -> Result<Self, DatabaseError> {
        let connection = rusqlite::Connection::open(path)?;
        connection.busy_timeout(busy_timeout)?;
        Ok(Self::new(Backend::Sqlite(connection)))
    }

    /// Opens a file of SQLite for reading. Reading its log requires the index of the log, which
    /// exists while a process has the file open.
    pub fn open_file_read_only(path: &Path, busy_timeout: Duration) -> Result<Self, DatabaseError> {
        let connection = rusqlite::Connection::open_with_flags(path, READ_ONLY)?;
        Self::new_reader(connection, busy_timeout)
    }

    /// Opens a file of SQLite that does not change, without its log.
    pub fn open_file_immutable(path: &Path, busy_timeout: Duration) -> Result<Self, DatabaseError> {
        let uri = format!("file:{}?immutable=1", percent_encode(path));
        let flags = READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let connection = rusqlite::Connection::open_with_flags(uri, flags)?;
        Self::new_reader(connection, busy_timeout)
    }

    fn new_reader(
        connection: rusqlite::Connection,
        busy_timeout: Duration,
    ) -> Result<Self, DatabaseError> {
        connection.busy_timeout(busy_timeout)?;
        // The file is opened by the first statement.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
        Ok(Self::new(Backend::Sqlite(connection)))
    }

    /// Sets whether closing the connection leaves the log of the file as it is. Otherwise the last
    /// connection moves the log into the file.
    pub fn keep_log_on_close(&self, keep: bool) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep)?;
            }
            Backend::Postgres(_) => {}
        }
        Ok(())
    }

    /// Prepares a file for many writers: switches it to a write-ahead log, and makes a commit
    /// survive a crash of the process, but not a loss of power.
    pub fn use_log(&self, busy_timeout: Duration) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                switch_to_wal(connection, busy_timeout)?;
                connection.pragma_update(None, "synchronous", "normal")?;
                connection.set_prepared_statement_cache_capacity(MAX_CACHED_STATEMENTS);
            }
            Backend::Postgres(_) => {}
        }
        Ok(())
    }
}

/// Flags of a connection that only reads.
const READ_ONLY: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// Switches the database to WAL mode. If it is in WAL mode already, this only reads.
///
/// The switch upgrades a read lock to an exclusive lock. SQLite does not call the busy handler for
/// an upgrade, because two connections that both wait would deadlock: it returns `SQLITE_BUSY` at
/// once and drops the read lock. Retrying is sufficient: one connection always gets the lock, the
/// switch is permanent, and every other connection then finds the database in WAL mode. All other
/// locks, including those of WAL recovery, go through the busy handler.
fn switch_to_wal(
    connection: &rusqlite::Connection,
    busy_timeout: Duration,
) -> Result<(), rusqlite::Error> {
    let deadline = Instant::now() + busy_timeout;
    let is_busy = |error: &rusqlite::Error| {
        error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
    };
    loop {
        match connection.pragma_update(None, "journal_mode", "wal") {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(WAL_RETRY_INTERVAL);
            }
            done => return done,
        }
    }
}

/// Percent-encodes a path for a URI.
fn percent_encode(path: &Path) -> String {
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

/// Returns the size of some tables with their indexes, in bytes.
pub(crate) fn table_bytes(
    connection: &rusqlite::Connection,
    names: &[&str],
) -> Result<u64, DatabaseError> {
    let mut sum = 0;
    let mut read = connection.prepare_cached(
        "SELECT coalesce(sum(pgsize), 0) FROM dbstat WHERE aggregate = TRUE AND name IN
            (SELECT name FROM sqlite_master WHERE tbl_name LIKE ?1 ESCAPE '\\')",
    )?;
    for name in names {
        let pattern = name.replace('_', "\\_");
        let bytes: i64 = read.query_row([pattern], |row| row.get(0))?;
        sum += bytes.max(0) as u64;
    }
    Ok(sum)
}

/// The result of an SQL function.
enum SqlFunctionResult {
    /// The argument, which is not copied.
    Argument,
    /// A computed value.
    Computed(DatabaseValue),
}

impl ToSql for SqlFunctionResult {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Argument => ToSqlOutput::Arg(0),
            Self::Computed(value) => {
                ToSqlOutput::Borrowed(crate::statement::to_sqlite(ValueRef::from(value)))
            }
        })
    }
}

/// A function of a codec.
type CodecFn =
    fn(&dyn ColumnCodec, ValueRef<'_>) -> Result<Option<DatabaseValue>, ColumnCodecError>;

/// Registers the SQL functions of a codec on a connection.
pub(crate) fn register_functions(
    connection: &rusqlite::Connection,
    codec: &Arc<dyn ColumnCodec>,
) -> Result<(), DatabaseError> {
    let functions: [(&str, CodecFn); 3] = [
        ("encrypt", |codec, value| codec.encrypt(value)),
        ("decrypt", |codec, value| codec.decrypt(value)),
        ("keyed_digest", |codec, value| Ok(codec.keyed_digest(value))),
    ];
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    for (name, function) in functions {
        let codec = codec.clone();
        let call = move |context: &Context<'_>| {
            let argument: types::ValueRef<'_> = context.get_raw(0);
            match function(&*codec, from_sqlite(argument)) {
                Ok(Some(value)) => Ok(SqlFunctionResult::Computed(value)),
                Ok(None) => Ok(SqlFunctionResult::Argument),
                Err(error) => Err(rusqlite::Error::UserFunctionError(error)),
            }
        };
        connection.create_scalar_function(name, 1, flags, call)?;
    }
    Ok(())
}
