//! The schema of the journal's file and its migrations. Each component has its own version: the
//! journal, and crates that have tables in the same file.
//!
//! Programs of several versions may use one database. It stores the version of each component, and
//! since which version a program can write to it (`compatible_since`). A migration that adds
//! something leaves that number as it is, so older programs continue. One that removes something
//! raises it; it is refused while an older program has a lease, and afterwards older programs
//! refuse to write.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use selvedge_database::{Connection, NamedLockMode, OptionalRow, TransactionRetry, params};

use crate::store_copy::COPY_MARK;
use crate::{ColumnEncryption, JournalError, JournalLocation, connection};

/// The journal's own tables.
pub(crate) const JOURNAL_SCHEMA: ComponentSchema = ComponentSchema {
    component: "journal",
    migrations: &[SchemaMigration::Expand(include_str!("schema.sql"))],
};

/// The schema version of the memory's tables, whose migrations are in the crate `selvedge-memory`.
pub const MEMORY_SCHEMA_VERSION: u32 = 8;

/// The tables of one component in the journal's file.
#[derive(Debug, Clone, Copy)]
pub struct ComponentSchema {
    /// The name of the component in the table `schema_versions`.
    pub component: &'static str,
    /// The migrations, in order. The version of the tables is the number of migrations. A released
    /// migration is never edited: a change to the schema is a new migration at the end.
    pub migrations: &'static [SchemaMigration],
}

/// A change of the tables of a component.
#[derive(Debug, Clone, Copy)]
pub enum SchemaMigration {
    /// SQL that adds what older programs need neither read, write nor delete: an index, a column
    /// that may be null or has a default, a table. Nothing that is added may refer to `blobs` or
    /// have content that must be forgotten, because older programs would not find it there.
    Expand(&'static str),
    /// SQL that changes or removes what older programs need.
    Contract {
        /// The SQL of the migration.
        sql: &'static str,
        /// The first version whose programs work with the result. An earlier release should have
        /// this version, so that its servers can continue.
        compatible_since: u32,
    },
}

impl SchemaMigration {
    /// Returns the SQL of the migration.
    pub fn sql(self) -> &'static str {
        let (Self::Expand(sql) | Self::Contract { sql, .. }) = self;
        sql
    }

    /// Returns the first version whose programs work after the migration; 0 for all.
    fn compatible_since(self) -> u32 {
        match self {
            Self::Expand(_) => 0,
            Self::Contract {
                compatible_since, ..
            } => compatible_since,
        }
    }
}

/// The row of a component in the table `schema_versions`, or zeros if it has none.
#[derive(Debug, Clone, Copy, Default)]
struct StoredVersion {
    version: u32,
    compatible_since: u32,
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
    /// time, one applies them and the others find them applied. Fails with
    /// [`JournalError::OlderProcesses`] if a running process would not work with the result.
    pub(crate) fn migrate(&self, connection: &Connection) -> Result<(), JournalError> {
        // If the schema is current, this only reads and does not wait for a writer.
        if self.missing_migrations(connection)?.is_empty() {
            return Ok(());
        }
        connection.create_schema()?;
        let mut retry = TransactionRetry::new(connection);
        loop {
            match self.try_migrate(connection) {
                // For example, a write of another process has locked the tables in another order.
                Err(JournalError::Database(error)) if retry.should_repeat(&error) => {}
                done => return done,
            }
        }
    }

    fn try_migrate(&self, connection: &Connection) -> Result<(), JournalError> {
        let transaction = connection.begin_write()?;
        transaction.allow_long_statements();
        transaction.lock_name("migrations", NamedLockMode::Exclusive);
        transaction.execute_batch(
            "CREATE TABLE IF NOT EXISTS schema_versions
             (component TEXT PRIMARY KEY, version INTEGER NOT NULL,
             compatible_since INTEGER NOT NULL) WITHOUT ROWID",
        )?;
        let stored = self.stored_version(&transaction)?;
        let missing = self.missing_migrations(&transaction)?;
        if missing.is_empty() {
            return Ok(());
        }
        let since = missing.iter().map(|step| step.compatible_since()).max();
        let since = since.unwrap_or(0).max(stored.compatible_since);
        if since > stored.compatible_since && stored.version > 0 {
            // Each write reads the versions first. So the writes that found them compatible have
            // ended when this returns, and others wait until the migration is done.
            transaction.lock_table("schema_versions")?;
            self.refuse_older_processes(&transaction, since)?;
        }
        for migration in missing {
            transaction.execute_batch(migration.sql())?;
        }
        transaction.execute(
            "INSERT INTO schema_versions (component, version, compatible_since)
             VALUES (?1, ?2, ?3)
             ON CONFLICT (component) DO UPDATE SET version = excluded.version,
                compatible_since = excluded.compatible_since",
            params![self.component, self.latest_version(), since],
        )?;
        transaction.commit()?;
        Ok(())
    }

    /// Fails if a process has a lease and knows only versions before this one.
    fn refuse_older_processes(
        &self,
        connection: &Connection,
        since: u32,
    ) -> Result<(), JournalError> {
        if !connection.tables()?.iter().any(|name| name == "owners") {
            return Ok(());
        }
        let now = connection.database_now();
        let sql = format!("SELECT name, versions FROM owners WHERE ends_ms > {now}");
        let mut read = connection.prepare_cached(&sql)?;
        let rows = read.query_map(params![], |row| row.try_into())?;
        let mut older = BTreeSet::new();
        for row in rows {
            let (name, versions): (String, String) = row?;
            let versions: BTreeMap<String, u32> = serde_json::from_str(&versions)?;
            if versions
                .get(self.component)
                .is_none_or(|known| *known < since)
            {
                older.insert(name);
            }
        }
        if older.is_empty() {
            return Ok(());
        }
        Err(JournalError::OlderProcesses {
            path: path_of(connection),
            processes: older.into_iter().collect(),
        })
    }

    /// Returns the migrations that the file lacks. Fails if a program of this version cannot write
    /// to it.
    pub(crate) fn missing_migrations(
        &self,
        connection: &Connection,
    ) -> Result<&'static [SchemaMigration], JournalError> {
        let stored = self.stored_version(connection)?;
        if stored.compatible_since > self.latest_version() {
            return Err(self.newer_error(connection, self.component, stored.compatible_since));
        }
        let missing = self.migrations.get(stored.version as usize..);
        // A newer version has added something that this one does not need.
        Ok(missing.unwrap_or_default())
    }

    /// Fails if this build is too old to write any component in the file. Only reads.
    pub(crate) fn check_versions(&self, connection: &Connection) -> Result<(), JournalError> {
        if !has_versions(connection)? {
            return Ok(());
        }
        self.refuse_too_old(connection)
    }

    /// Fails if this build is too old to write any component in the file. Called in each
    /// transaction before it writes: another process may have migrated the file since it was
    /// opened.
    pub fn refuse_too_old(&self, connection: &Connection) -> Result<(), JournalError> {
        // Cached, because parsing takes longer than reading the few rows.
        let mut read =
            connection.prepare_cached("SELECT component, compatible_since FROM schema_versions")?;
        let mut rows = read.query(params![])?;
        while let Some(row) = rows.next()? {
            let (component, since): (String, u32) = (row.get(0)?, row.get(1)?);
            if since > self.known_version(&component) {
                // Closing the connection must not move the log into the file either.
                connection.keep_log_on_close(true)?;
                return Err(self.newer_error(connection, &component, since));
            }
        }
        Ok(())
    }

    /// Fails if any component in the file may have tables or columns that this build does not know.
    pub(crate) fn refuse_unknown(&self, connection: &Connection) -> Result<(), JournalError> {
        let sql = "SELECT component, version FROM schema_versions";
        let mut read = connection.prepare_cached(sql)?;
        let rows = read.query_map(params![], |row| row.try_into())?;
        let versions: Vec<(String, u32)> = rows.collect::<Result<_, _>>()?;
        match versions
            .iter()
            .find(|(component, version)| *version > self.known_version(component))
        {
            Some((component, version)) => Err(self.newer_error(connection, component, *version)),
            None => Ok(()),
        }
    }

    /// Returns the newest version of a component's tables that this build knows.
    fn known_version(&self, component: &str) -> u32 {
        match component {
            own if own == self.component => self.latest_version(),
            "journal" => JOURNAL_SCHEMA.latest_version(),
            "memory" => MEMORY_SCHEMA_VERSION,
            _ => 0,
        }
    }

    fn newer_error(&self, connection: &Connection, component: &str, required: u32) -> JournalError {
        let path = path_of(connection);
        if component == COPY_MARK {
            return JournalError::UnfinishedCopy { path };
        }
        JournalError::NewerSchema {
            path,
            component: component.to_owned(),
            required,
            known: self.known_version(component),
        }
    }

    fn latest_version(&self) -> u32 {
        self.migrations.len() as u32
    }

    fn stored_version(&self, connection: &Connection) -> Result<StoredVersion, JournalError> {
        if !has_versions(connection)? {
            return Ok(StoredVersion::default());
        }
        let sql = "SELECT version, compatible_since FROM schema_versions WHERE component = ?1";
        let stored = connection.query_row(sql, params![self.component], |row| {
            Ok(StoredVersion {
                version: row.get(0)?,
                compatible_since: row.get(1)?,
            })
        });
        Ok(stored.optional()?.unwrap_or_default())
    }
}

/// Returns the versions of all components that this build knows, as JSON. The lease of a process
/// has them.
pub(crate) fn known_versions() -> String {
    serde_json::json!({
        "journal": JOURNAL_SCHEMA.latest_version(),
        "memory": MEMORY_SCHEMA_VERSION,
    })
    .to_string()
}

/// Returns whether the file has schema versions; an empty file has none. Fails if it has other
/// tables only.
fn has_versions(connection: &Connection) -> Result<bool, JournalError> {
    let tables = connection.tables()?;
    if tables.is_empty() || tables.iter().any(|name| name == "schema_versions") {
        return Ok(!tables.is_empty());
    }
    Err(JournalError::UnknownSchema {
        path: path_of(connection),
    })
}

fn path_of(connection: &Connection) -> PathBuf {
    PathBuf::from(connection.path().unwrap_or(connection::FILE_NAME))
}

#[cfg(test)]
mod tests;
