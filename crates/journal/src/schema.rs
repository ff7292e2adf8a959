//! The schema of the journal's file and its migrations. Each component has its own version: the
//! journal, and crates that have tables in the same file. A file in which a component is newer than
//! this build, or unknown to it, is never written.

use std::path::PathBuf;
use std::sync::Arc;

use selvedge_database::{Connection, NamedLockMode, OptionalRow, params};

use crate::{ColumnEncryption, JournalError, JournalLocation, connection};

/// The journal's own tables.
pub(crate) const JOURNAL_SCHEMA: ComponentSchema = ComponentSchema {
    component: "journal",
    migrations: &[include_str!("schema.sql"), include_str!("schema_2.sql")],
};

/// The schema version of the memory's tables, whose migrations are in the crate `selvedge-memory`.
pub const MEMORY_SCHEMA_VERSION: u32 = 6;

/// The tables of one component in the journal's file.
#[derive(Debug, Clone, Copy)]
pub struct ComponentSchema {
    /// The name of the component in the table `schema_versions`.
    pub component: &'static str,
    /// The SQL of each migration, in order. A released migration is never edited: a change to the
    /// schema is a new migration at the end.
    pub migrations: &'static [&'static str],
}

impl ComponentSchema {
    /// Opens a connection to the journal of a folder, with the SQL functions of `encryption`, and
    /// migrates these tables to the latest version.
    pub fn open(
        &self,
        location: impl Into<JournalLocation>,
        encryption: &ColumnEncryption,
    ) -> Result<Connection, JournalError> {
        let connection = self.connect(location, encryption)?;
        self.migrate(&connection)?;
        Ok(connection)
    }

    /// Opens another connection without migrating. Requires an earlier [`ComponentSchema::open`].
    pub fn connect(
        &self,
        location: impl Into<JournalLocation>,
        encryption: &ColumnEncryption,
    ) -> Result<Connection, JournalError> {
        let mut connection = connection::open_read_write(&location.into(), self)?;
        connection.set_codec(Arc::new(encryption.clone()))?;
        Ok(connection)
    }

    /// Applies the missing migrations in one transaction. If several processes try at the same
    /// time, one applies them and the others find them applied.
    pub(crate) fn migrate(&self, connection: &Connection) -> Result<(), JournalError> {
        // If the schema is current, this only reads and does not wait for a writer.
        if self.missing_migrations(connection)?.is_empty() {
            return Ok(());
        }
        connection.create_schema()?;
        let transaction = connection.begin_write()?;
        transaction.lock_name("migrations", NamedLockMode::Exclusive);
        transaction.execute_batch(
            "CREATE TABLE IF NOT EXISTS schema_versions
             (component TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID",
        )?;
        for migration in self.missing_migrations(&transaction)? {
            transaction.execute_batch(migration)?;
        }
        transaction.execute(
            "INSERT INTO schema_versions (component, version) VALUES (?1, ?2)
             ON CONFLICT (component) DO UPDATE SET version = excluded.version",
            params![self.component, self.latest_version()],
        )?;
        transaction.commit()?;
        Ok(())
    }

    /// Returns the migrations that the file lacks. Fails if the file has a newer version.
    pub(crate) fn missing_migrations(
        &self,
        connection: &Connection,
    ) -> Result<&'static [&'static str], JournalError> {
        let version = self.stored_version(connection)?;
        self.migrations
            .get(version as usize..)
            .ok_or_else(|| self.newer_error(connection, self.component, version))
    }

    /// Fails if any component in the file is newer than this build. Only reads.
    pub(crate) fn check_versions(&self, connection: &Connection) -> Result<(), JournalError> {
        if !has_versions(connection)? {
            return Ok(());
        }
        self.refuse_newer(connection)
    }

    /// Fails if any component in the file is newer than this build. Called in each transaction
    /// before it writes: another process may have migrated the file since it was opened.
    pub fn refuse_newer(&self, connection: &Connection) -> Result<(), JournalError> {
        // Cached, because parsing takes longer than reading the few rows.
        let mut read =
            connection.prepare_cached("SELECT component, version FROM schema_versions")?;
        let mut rows = read.query(params![])?;
        while let Some(row) = rows.next()? {
            let (component, version): (String, u32) = (row.get(0)?, row.get(1)?);
            if version > self.known_version(&component) {
                // Closing the connection must not move the log into the file either.
                connection.keep_log_on_close(true)?;
                return Err(self.newer_error(connection, &component, version));
            }
        }
        Ok(())
    }

    /// Returns the newest version of a component's tables that this build supports.
    fn known_version(&self, component: &str) -> u32 {
        match component {
            own if own == self.component => self.latest_version(),
            "journal" => JOURNAL_SCHEMA.latest_version(),
            "memory" => MEMORY_SCHEMA_VERSION,
            _ => 0,
        }
    }

    fn newer_error(&self, connection: &Connection, component: &str, version: u32) -> JournalError {
        JournalError::NewerSchema {
            path: PathBuf::from(connection.path().unwrap_or(connection::FILE_NAME)),
            component: component.to_owned(),
            version,
            known: self.known_version(component),
        }
    }

    fn latest_version(&self) -> u32 {
        self.migrations.len() as u32
    }

    /// Returns the number of migrations applied to the file, which is 0 for an empty file.
    fn stored_version(&self, connection: &Connection) -> Result<u32, JournalError> {
        if !has_versions(connection)? {
            return Ok(0);
        }
        let version = "SELECT version FROM schema_versions WHERE component = ?1";
        let version: Option<u32> = connection
            .query_row(version, params![self.component], |row| row.get(0))
            .optional()?;
        Ok(version.unwrap_or(0))
    }
}

/// Returns whether the file has schema versions; an empty file has none. Fails if it has other
/// tables only.
fn has_versions(connection: &Connection) -> Result<bool, JournalError> {
    let tables = connection.tables()?;
    if tables.is_empty() || tables.iter().any(|name| name == "schema_versions") {
        return Ok(!tables.is_empty());
    }
    Err(JournalError::UnknownSchema {
        path: PathBuf::from(connection.path().unwrap_or(connection::FILE_NAME)),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FIRST: ComponentSchema = ComponentSchema {
        component: "test",
        migrations: &["CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('first')"],
    };
    const SECOND: ComponentSchema = ComponentSchema {
        component: "test",
        migrations: &[
            FIRST.migrations[0],
            "ALTER TABLE notes ADD COLUMN length INTEGER; UPDATE notes SET length = length(text)",
        ],
    };
    const BROKEN: ComponentSchema = ComponentSchema {
        component: "test",
        migrations: &[
            SECOND.migrations[0],
            SECOND.migrations[1],
            "DELETE FROM notes",
            "UPDATE nothing SET x = 1",
        ],
    };

    fn lengths(connection: &Connection) -> Vec<i64> {
        let mut read = connection
            .prepare_cached("SELECT length FROM notes")
            .unwrap();
        let rows = read.query_map(params![], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }

    #[test]
    fn missing_migrations_are_applied_in_order_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let open = |tables: ComponentSchema| tables.open(dir.path(), &ColumnEncryption::disabled());
        drop(open(FIRST).unwrap());
        assert_eq!(lengths(&open(SECOND).unwrap()), [5]);
        assert_eq!(lengths(&open(SECOND).unwrap()), [5]);
        // A new file gets all migrations.
        let other = tempfile::tempdir().unwrap();
        assert_eq!(
            lengths(
                &SECOND
                    .open(other.path(), &ColumnEncryption::disabled())
                    .unwrap()
            ),
            [5]
        );
    }

    #[test]
    fn a_failed_migration_is_rolled_back() {
        let dir = tempfile::tempdir().unwrap();
        let open = |tables: ComponentSchema| tables.open(dir.path(), &ColumnEncryption::disabled());
        drop(open(FIRST).unwrap());
        assert!(matches!(open(BROKEN), Err(JournalError::Database(_))));
        assert_eq!(lengths(&open(SECOND).unwrap()), [5]);
    }

    #[test]
    fn a_newer_schema_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = |tables: ComponentSchema| tables.open(dir.path(), &ColumnEncryption::disabled());
        drop(open(SECOND).unwrap());
        let error = open(FIRST).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{} was written by a newer version of Selvedge \
                 (schema version 2 of test, this version supports 1)",
                dir.path().join("journal.sqlite").display()
            )
        );
    }

    #[test]
    fn each_component_has_its_own_version() {
        let dir = tempfile::tempdir().unwrap();
        let memory = ComponentSchema {
            component: "memory",
            ..FIRST
        };
        drop(crate::Journal::open(dir.path()).unwrap());
        drop(
            memory
                .open(dir.path(), &ColumnEncryption::disabled())
                .unwrap(),
        );
        drop(crate::Journal::open(dir.path()).unwrap());
    }
}
