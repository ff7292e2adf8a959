//! Connections: statements, transactions, and what differs between the databases.

use std::sync::Arc;
use std::time::Duration;

use crate::statement::StatementKind;
use crate::{
    ColumnCodec, DatabaseError, DatabaseValue, Params, Row, Statement, ValueRef, WriteTransaction,
    sqlite,
};

/// A connection to a database.
pub struct Connection {
    pub(crate) backend: Backend,
    codec: Option<Arc<dyn ColumnCodec>>,
}

pub(crate) enum Backend {
    Sqlite(rusqlite::Connection),
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
                let statement = connection.prepare_cached(sql)?;
                Ok(Statement(StatementKind::Sqlite(statement)))
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
        }
    }

    /// Begins a transaction that may write.
    pub fn begin_write(&self) -> Result<WriteTransaction<'_>, DatabaseError> {
        WriteTransaction::begin(self)
    }

    /// Begins a transaction that only reads. All its reads see the same state.
    pub fn begin_snapshot(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => self.run("BEGIN"),
        }
    }

    /// Ends a transaction that only reads.
    pub fn end_snapshot(&self) -> Result<(), DatabaseError> {
        self.run("COMMIT")
    }

    /// Returns whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        match &self.backend {
            Backend::Sqlite(connection) => !connection.is_autocommit(),
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
        }
        self.codec = Some(codec);
        Ok(())
    }

    /// Returns `keyed_digest` of a value, as a statement computes it.
    pub fn keyed_digest(&self, value: &str) -> DatabaseValue {
        let codec = self.codec.as_ref();
        let digest = codec.and_then(|codec| codec.keyed_digest(ValueRef::Text(value.as_bytes())));
        digest.unwrap_or_else(|| DatabaseValue::Text(value.to_owned()))
    }

    /// Returns the file of the database; `None` if it has none.
    pub fn path(&self) -> Option<&str> {
        match &self.backend {
            Backend::Sqlite(connection) => connection.path(),
        }
    }

    /// Returns the names of all tables.
    pub fn tables(&self) -> Result<Vec<String>, DatabaseError> {
        let sql = match &self.backend {
            Backend::Sqlite(_) => "SELECT name FROM sqlite_master WHERE type = 'table'",
        };
        let mut read = self.prepare_cached(sql)?;
        read.query_map(&[], |row| row.get(0))?.collect()
    }

    /// Returns the size of some tables with their indexes, in bytes. A name may end with `%`, which
    /// stands for any text.
    pub fn table_bytes(&self, names: &[&str]) -> Result<u64, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => sqlite::table_bytes(connection, names),
        }
    }

    /// Sets how long a statement waits for a lock of another connection.
    pub fn set_busy_timeout(&self, timeout: Duration) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => Ok(connection.busy_timeout(timeout)?),
        }
    }

    /// Makes each commit wait until the disk has the data, so that it survives a loss of power.
    pub fn set_full_durability(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                Ok(connection.pragma_update(None, "synchronous", "full")?)
            }
        }
    }

    /// Overwrites deleted rows with zeros.
    pub fn overwrite_deleted_rows(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => {
                Ok(connection.pragma_update(None, "secure_delete", "on")?)
            }
        }
    }

    /// Returns the space of deleted rows to the file system.
    pub fn compact(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(connection) => Ok(connection.execute_batch("VACUUM")?),
        }
    }

    /// Truncates the log of the file, which may contain deleted rows. Returns whether it is empty
    /// now: it is not if another process reads it.
    pub fn truncate_log(&self) -> Result<bool, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => {
                let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
                let busy: i64 = self.query_row(sql, &[], |row| row.get(0))?;
                Ok(busy == 0)
            }
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
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match &self.backend {
            Backend::Sqlite(_) => "Connection(SQLite)",
        };
        f.write_str(name)
    }
}
