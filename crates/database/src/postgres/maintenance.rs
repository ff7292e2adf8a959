//! Schemas, sizes of tables, and freeing space.

use super::{LONG_ANSWER_TIMEOUT, PostgresConnection, PostgresPool};
use crate::{Connection, DatabaseError};

impl Connection {
    /// Returns the size of some tables with their indexes, in bytes.
    pub(crate) fn postgres_table_bytes(&self, names: &[&str]) -> Result<u64, DatabaseError> {
        let mut sum = 0;
        for name in names {
            let pattern = name.replace('_', "\\_");
            let sql =
                "SELECT CAST(coalesce(sum(pg_total_relation_size(pg_class.oid)), 0) AS BIGINT)
                FROM pg_class JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace
                WHERE relkind = 'r' AND nspname = current_schema()
                    AND CAST(relname AS TEXT) LIKE ?1";
            let bytes: i64 = self.query_row(sql, &[&pattern], |row| row.get(0))?;
            sum += bytes.max(0) as u64;
        }
        Ok(sum)
    }
}

impl PostgresConnection {
    /// Begins a transaction that reads while no connection can write to these tables. It may
    /// take long.
    pub(crate) fn begin_exclusive_read(&self, tables: &[String]) -> Result<(), DatabaseError> {
        let tables: Vec<String> = tables.iter().map(|table| format!("\"{table}\"")).collect();
        self.begin_write();
        self.allow_long_statements();
        self.execute_simple(format!(
            "SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE {} IN SHARE MODE",
            tables.join(", ")
        ))
    }

    /// Creates the first schema of the search path, unless one of them exists.
    pub(crate) fn create_schema(&self) -> Result<(), DatabaseError> {
        self.execute_simple(
            "DO $$ BEGIN
                IF current_schema() IS NULL THEN
                    PERFORM pg_advisory_xact_lock(hashtext(current_setting('search_path')));
                    EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I',
                        btrim(split_part(current_setting('search_path'), ',', 1), ' \"'));
                END IF;
            END $$",
        )
    }

    /// Makes the space of deleted rows free, and fills it with other rows later.
    pub(crate) fn vacuum(&self, tables: &[String]) -> Result<(), DatabaseError> {
        // A connection of its own, because `VACUUM` cannot be part of a transaction, in which the
        // time-out could be changed for a while.
        let own = Self::new(PostgresPool::new(self.pool().url(), 1));
        own.answer_timeout.set(LONG_ANSWER_TIMEOUT);
        own.execute_simple("SET statement_timeout = 0")?;
        tables
            .iter()
            .try_for_each(|table| own.execute_simple(format!("VACUUM \"{table}\"")))
    }
}
