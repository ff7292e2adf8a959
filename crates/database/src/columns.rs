//! The columns of tables, for programs that copy them.

use crate::connection::Backend;
use crate::{Connection, DatabaseError, DatabaseValue, Row, params};

/// Rows that are read from a cursor at once.
const MAX_FETCHED_ROWS: usize = 200;

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnInfo {
    /// The name of the column.
    pub name: String,
    /// Whether the column is declared as `CODED TEXT`. PostgreSQL has bytes in its place.
    pub is_coded_text: bool,
}

impl Connection {
    /// Returns the columns of a table, ordered by name.
    pub fn columns(&self, table: &str) -> Result<Vec<ColumnInfo>, DatabaseError> {
        let sql = match &self.backend {
            Backend::Sqlite(_) => "SELECT name, type FROM pragma_table_info(?1) ORDER BY name",
            Backend::Postgres(_) => {
                "SELECT CAST(column_name AS TEXT), CAST(data_type AS TEXT)
                 FROM information_schema.columns
                 WHERE table_schema = current_schema() AND table_name = ?1
                 ORDER BY CAST(column_name AS TEXT) COLLATE \"C\""
            }
        };
        let mut read = self.prepare_cached(sql)?;
        let rows = read.query_map(params![table], |row| {
            Ok(ColumnInfo {
                name: row.get(0)?,
                is_coded_text: row.get::<String>(1)? == "CODED TEXT",
            })
        })?;
        rows.collect()
    }

    /// Locks all tables against writes of others until the end of the transaction, and lets all
    /// reads of it see the same state.
    pub fn begin_exclusive_read(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => self.run("BEGIN IMMEDIATE"),
            Backend::Postgres(connection) => {
                let tables = self.tables()?;
                connection.begin_exclusive_read(&tables)
            }
        }
    }

    /// Calls `take` with some columns of each row of a table. The rows are not all in memory at
    /// once.
    pub fn for_each_row<E: From<DatabaseError>>(
        &self,
        table: &str,
        columns: &[String],
        mut take: impl FnMut(Vec<DatabaseValue>) -> Result<(), E>,
    ) -> Result<(), E> {
        let sql = format!("SELECT {} FROM {table}", columns.join(", "));
        let read = |row: Row<'_>| {
            let values = (0..columns.len()).map(|index| row.get(index));
            values.collect::<Result<Vec<DatabaseValue>, DatabaseError>>()
        };
        if matches!(self.backend, Backend::Sqlite(_)) {
            let mut select = self.prepare_cached(&sql)?;
            let mut rows = select.query(params![])?;
            while let Some(row) = rows.next()? {
                take(read(row)?)?;
            }
            return Ok(());
        }
        // A cursor needs a transaction.
        let is_own = !self.is_in_transaction();
        if is_own {
            self.begin_snapshot()?;
        }
        let cursor = format!("rows_of_{table}");
        self.execute_batch(&format!("DECLARE {cursor} NO SCROLL CURSOR FOR {sql}"))?;
        let fetch = format!("FETCH {MAX_FETCHED_ROWS} FROM {cursor}");
        loop {
            let mut fetched = self.prepare_cached(&fetch)?;
            let rows = fetched.query_map(params![], read)?;
            let rows: Vec<Vec<DatabaseValue>> = rows.collect::<Result<_, _>>()?;
            if rows.is_empty() {
                break;
            }
            rows.into_iter().try_for_each(&mut take)?;
        }
        self.execute_batch(&format!("CLOSE {cursor}"))?;
        if is_own {
            self.end_snapshot()?;
        }
        Ok(())
    }

    /// Continues the numbers that the database assigns after the largest one in each table.
    pub fn continue_numbers(&self) -> Result<(), DatabaseError> {
        match &self.backend {
            // SQLite does so itself.
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(_) => {
                let sql = "SELECT CAST(table_name AS TEXT), CAST(column_name AS TEXT)
                    FROM information_schema.columns
                    WHERE table_schema = current_schema() AND is_identity = 'YES'";
                let mut read = self.prepare_cached(sql)?;
                let rows = read.query_map(params![], |row| row.try_into())?;
                let columns: Vec<(String, String)> = rows.collect::<Result<_, _>>()?;
                for (table, column) in columns {
                    let sql = format!(
                        "SELECT setval(pg_get_serial_sequence('{table}', '{column}'),
                            coalesce((SELECT max({column}) FROM {table}), 0) + 1, false)"
                    );
                    self.query_row(&sql, params![], |_| Ok(()))?;
                }
                Ok(())
            }
        }
    }

    /// Returns the name and version of the database.
    pub fn version(&self) -> Result<String, DatabaseError> {
        let (name, sql) = match &self.backend {
            Backend::Sqlite(_) => ("SQLite", "SELECT sqlite_version()"),
            Backend::Postgres(_) => ("PostgreSQL", "SELECT current_setting('server_version')"),
        };
        let version: String = self.query_row(sql, params![], |row| row.get(0))?;
        Ok(format!("{name} {version}"))
    }

    /// Returns the time of the database's clock in milliseconds since 1970; `None` for a file.
    pub fn clock_ms(&self) -> Result<Option<i64>, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => Ok(None),
            Backend::Postgres(_) => {
                let sql = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";
                self.query_row(sql, params![], |row| row.get(0)).map(Some)
            }
        }
    }

    /// Returns what is damaged in the file of SQLite. PostgreSQL checks itself (`pg_amcheck`).
    pub fn find_damage(&self) -> Result<Vec<String>, DatabaseError> {
        match &self.backend {
            Backend::Sqlite(_) => {
                let mut read = self.prepare_cached("PRAGMA quick_check")?;
                let lines = read.query_map(params![], |row| row.get(0))?;
                let lines: Vec<String> = lines.collect::<Result<_, _>>()?;
                Ok(lines.into_iter().filter(|line| line != "ok").collect())
            }
            Backend::Postgres(_) => Ok(Vec::new()),
        }
    }
}
