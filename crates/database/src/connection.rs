//! Connections: statements, transactions, and what differs between the databases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::postgres::{NamedLockMode, PostgresConnection};
use crate::statement::StatementKind;
use crate::{
    ColumnCodec, DatabaseError, DatabaseValue, Params, PostgresUrl, Row, Statement, ValueRef,
    WriteTransaction, sqlite,
};

/// How long an attempt to truncate the log waits for readers. Other processes cannot write
/// meanwhile.
const TRUNCATION_ATTEMPT: Duration = Duration::from_millis(250);
/// Pause between two attempts, in which others write.
const TRUNCATION_PAUSE: Duration = Duration::from_millis(50);

/// A connection to a database.
pub struct Connection {
    pub(crate) backend: Backend,
    pub(crate) codec: Option<Arc<dyn ColumnCodec>>,
}

pub(crate) enum Backend {
    Sqlite(rusqlite::Connection),
    Postgres(Box<PostgresConnection>),
}

impl Connection {
    pub(crate) fn new(backend: Backend) -> Self {
        Self {
            backend,
            codec: None,
        }
    }

    /// Prepares a statement, or returns the prepared one from the cache of the connection.
    pub fn prepare_cached(&self, sql: &str) -> Result<Statement<'_>, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                // So that tests with a file find what PostgreSQL would refuse.
                #[cfg(debug_assertions)]
                crate::postgres::check_translation(sql)?;
                let statement = connection.prepare_cached(sql)?;
                Ok(Statement(StatementKind::Sqlite(statement)))
            }
            Backend::Postgres(connection) => {
                let statement = connection.prepare(sql)?;
                Ok(Statement(StatementKind::Postgres(
                    self, connection, statement,
                )))
            }
        }
    }

    /// Executes a statement that returns no rows, and returns the number of changed rows.
    pub fn execute(&self, sql: &str, params: Params<'_>) -> Result<usize, DatabaseError> {
        self.prepare_cached(sql)?.execute(params)
    }

    /// Executes a query and converts its first row. Fails if there is none.
    pub fn query_row<T>(
        &self,
        sql: &str,
        params: Params<'_>,
        map: impl FnOnce(Row<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.prepare_cached(sql)?.query_row(params, map)
    }

    /// Executes several statements without parameters.
    pub fn execute_batch(&self, sql: &str) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => Ok(connection.execute_batch(sql)?),
            Backend::Postgres(connection) => connection.execute_batch(sql),
        }
    }

    /// Begins a transaction that may write.
    ///
    /// SQLite lets one transaction write at a time. In PostgreSQL, transactions write at the same
    /// time and see what others have committed. A transaction that writes something because of what
    /// it read must lock it before: a row with [`Connection::row_lock`], and anything else with
    /// [`Connection::lock_name`].
    pub fn begin_write(&self) -> Result<WriteTransaction<'_>, DatabaseError> {
        WriteTransaction::begin(self)
    }

    /// Begins a transaction that only reads. All its reads see the same state.
    pub fn begin_snapshot(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => self.run("BEGIN"),
            Backend::Postgres(connection) => {
                connection.begin_snapshot();
                Ok(())
            }
        }
    }

    /// Ends a transaction that only reads.
    pub fn end_snapshot(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => self.run("COMMIT"),
            Backend::Postgres(connection) => connection.end_snapshot(),
        }
    }

    pub(crate) fn begin_transaction(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => self.run("BEGIN IMMEDIATE"),
            Backend::Postgres(connection) => {
                connection.begin_write();
                Ok(())
            }
        }
    }

    pub(crate) fn commit_transaction(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => self.run("COMMIT"),
            Backend::Postgres(connection) => connection.commit(),
        }
    }

    pub(crate) fn rollback_transaction(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => self.run("ROLLBACK"),
            Backend::Postgres(connection) => connection.rollback(),
        }
    }

    /// Returns the end of a `SELECT` in a transaction that may write: the rows that it returns
    /// cannot be changed or locked by other transactions until the end of this one.
    pub fn row_lock(&self) -> &'static str {
        match &self.backend {
            // The transaction has locked the whole file.
            Backend::Sqlite(_) => "",
            Backend::Postgres(_) => " FOR UPDATE",
        }
    }

    /// Returns the end of a `SELECT` in a transaction that may write: the rows that it returns
    /// cannot be deleted or changed until the end of this transaction. Several transactions can
    /// have this lock of a row at the same time.
    pub fn shared_row_lock(&self) -> &'static str {
        match &self.backend {
            // The transaction has locked the whole file.
            Backend::Sqlite(_) => "",
            Backend::Postgres(_) => " FOR SHARE",
        }
    }

    /// Like [`Connection::row_lock`], but rows that another transaction has locked are not
    /// returned.
    pub fn free_row_lock(&self) -> &'static str {
        match &self.backend {
            // The transaction has locked the whole file.
            Backend::Sqlite(_) => "",
            Backend::Postgres(_) => " FOR UPDATE SKIP LOCKED",
        }
    }

    /// Locks a name for this transaction, until it ends. The lock is taken with the next statement.
    pub fn lock_name(&self, name: &str, mode: NamedLockMode) {
        match &self.backend {
            // The transaction has locked the whole file.
            Backend::Sqlite(_) => {}
            Backend::Postgres(connection) => connection.lock_name(name, mode),
        }
    }

    /// Waits until all transactions have ended that have read a table, and lets no other one read
    /// it until the end of this transaction.
    pub fn lock_table(&self, table: &str) -> Result<(), DatabaseError> {
        match &self.backend {
            // The transaction has locked the whole file.
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(connection) => {
                connection.execute_simple(format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
            }
        }
    }

    /// Lets the statements of this transaction take as long as they need.
    pub fn allow_long_statements(&self) {
        match &self.backend {
            Backend::Sqlite(_) => {}
            Backend::Postgres(connection) => connection.allow_long_statements(),
        }
    }

    /// Sends a notice about a topic to all listeners when the transaction is committed. A file of
    /// SQLite has no notices.
    pub fn notify(&self, topic: &str) {
        match &self.backend {
            Backend::Sqlite(_) => {}
            Backend::Postgres(connection) => connection.notify(topic),
        }
    }

    /// Returns the address of the database; `None` if it is a file.
    pub fn address(&self) -> Option<&PostgresUrl> {
        match &self.backend {
            Backend::Sqlite(_) => None,
            Backend::Postgres(connection) => Some(connection.pool().url()),
        }
    }

    /// Returns whether statements go to another process, so that each of them takes time.
    pub fn is_remote(&self) -> bool {
        matches!(self.backend, Backend::Postgres(_))
    }

    /// Returns whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        match &self.backend {
            Backend::Sqlite(connection) => !connection.is_autocommit(),
            Backend::Postgres(connection) => connection.is_in_transaction(),
        }
    }

    /// Executes a statement without parameters. It is cached, because parsing it takes as long as a
    /// small write.
    pub(crate) fn run(&self, sql: &str) -> Result<(), DatabaseError> {
        self.execute(sql, &[]).map(drop)
    }

    /// Sets the codec of `encrypt`, `decrypt` and `keyed_digest` in SQL.
    pub fn set_codec(&mut self, codec: Arc<dyn ColumnCodec>) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => sqlite::register_functions(connection, &codec)?,
            // The client encrypts parameters and decrypts columns.
            Backend::Postgres(_) => {}
        }
        self.codec = Some(codec);
        Ok(())
    }

    pub(crate) fn codec(&self) -> Option<&Arc<dyn ColumnCodec>> {
        self.codec.as_ref()
    }

    /// Returns `keyed_digest` of a value, as a statement computes it.
    pub fn keyed_digest(&self, value: &str) -> DatabaseValue {
        let codec = self.codec.as_ref();
        let digest = codec.and_then(|codec| codec.keyed_digest(ValueRef::Text(value.as_bytes())));
        digest.unwrap_or_else(|| DatabaseValue::Text(value.to_owned()))
    }

    /// Returns the file of the database, or its address without the password; `None` if it has
    /// neither.
    pub fn path(&self) -> Option<&str> {
        match &self.backend {
            Backend::Sqlite(connection) => connection.path(),
            Backend::Postgres(connection) => Some(connection.pool().url().label()),
        }
    }

    /// Returns the names of all tables.
    pub fn tables(&self) -> Result<Vec<String>, DatabaseError> {
        let sql = match &self.backend {
            Backend::Sqlite(_) => "SELECT name FROM sqlite_master WHERE type = 'table'",
            Backend::Postgres(_) => {
                "SELECT CAST(table_name AS TEXT) FROM information_schema.tables
                 WHERE table_schema = current_schema()"
            }
        };
        let mut read = self.prepare_cached(sql)?;
        read.query_map(&[], |row| row.get(0))?.collect()
    }

    /// Creates the default schema of the connection if it does not exist.
    pub fn create_schema(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(connection) => connection.create_schema(),
        }
    }

    /// Returns the size of some tables with their indexes, in bytes. A name may end with `%`, which
    /// stands for any text.
    pub fn table_bytes(&self, names: &[&str]) -> Result<u64, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => sqlite::table_bytes(connection, names),
            Backend::Postgres(_) => self.postgres_table_bytes(names),
        }
    }

    /// Sets how long a statement waits for a lock of another connection.
    pub fn set_busy_timeout(&self, timeout: Duration) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => Ok(connection.busy_timeout(timeout)?),
            // The time-out of a connection is fixed, because a change would need an answer.
            Backend::Postgres(_) => Ok(()),
        }
    }

    /// Sets how long a statement waits for its answer from the server. The connection is lost
    /// after that.
    pub fn set_answer_timeout(&self, timeout: Duration) {
        match &self.backend {
            // The file is in this process.
            Backend::Sqlite(_) => {}
            Backend::Postgres(connection) => connection.set_answer_timeout(timeout),
        }
    }

    /// Fails if the server takes no writes, for example because it is a standby.
    pub fn check_server_is_writable(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            // The check would wait for other writers.
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(_) => {
                let transaction = self.begin_write()?;
                transaction.query_row("SELECT 1", &[], |row| row.get::<i64>(0))?;
                transaction.rollback()
            }
        }
    }

    /// Makes each commit wait until the disk has the data, so that it survives a loss of power.
    pub fn set_full_durability(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                Ok(connection.pragma_update(None, "synchronous", "full")?)
            }
            // PostgreSQL does so unless its administrator chose otherwise.
            Backend::Postgres(_) => Ok(()),
        }
    }

    /// Overwrites deleted rows with zeros.
    pub fn overwrite_deleted_rows(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                Ok(connection.pragma_update(None, "secure_delete", "on")?)
            }
            // Deleted rows are overwritten when `compact` has made their space free.
            Backend::Postgres(_) => Ok(()),
        }
    }

    /// Returns the space of deleted rows to the file system.
    pub fn compact(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => Ok(connection.execute_batch("VACUUM")?),
            Backend::Postgres(connection) => connection.vacuum(&self.tables()?),
        }
    }

    /// Truncates the log of the file, which may contain deleted rows. Returns whether it is empty
    /// now: it is not if another process reads it all the time until the limit.
    pub fn truncate_log(&self, limit: Duration) -> Result<bool, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                let begin = Instant::now();
                let timeout: u32 =
                    connection.pragma_query_value(None, "busy_timeout", |row| row.get(0))?;
                let timeout = Duration::from_millis(timeout.into());
                connection.busy_timeout(TRUNCATION_ATTEMPT)?;
                let truncate = || -> Result<bool, DatabaseError> {
                    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
                    let busy: i64 = self.query_row(sql, &[], |row| row.get(0))?;
                    Ok(busy == 0)
                };
                let mut truncated = truncate();
                while matches!(truncated, Ok(false)) && begin.elapsed() < limit {
                    std::thread::sleep(TRUNCATION_PAUSE);
                    truncated = truncate();
                }
                connection.busy_timeout(timeout)?;
                truncated
            }
            // The log belongs to the administrator of the database.
            Backend::Postgres(_) => Ok(true),
        }
    }

    /// Returns the SQL of the time of the database, in milliseconds since 1970. All servers of a
    /// database compare times of this one clock, whatever their own clocks say.
    pub fn database_now(&self) -> &'static str {
        match &self.backend {
            Backend::Sqlite(_) => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
            Backend::Postgres(_) => "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
        }
    }

    /// Returns a number that changes when another connection has written. `None` if the database
    /// has no such number.
    pub fn data_version(&self) -> Result<Option<i64>, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                let version = connection.pragma_query_value(None, "data_version", |row| row.get(0));
                Ok(Some(version?))
            }
            Backend::Postgres(_) => Ok(None),
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match &self.backend {
            Backend::Sqlite(_) => "Connection(SQLite)",
            Backend::Postgres(_) => "Connection(PostgreSQL)",
        };
        f.write_str(name)
    }
}
