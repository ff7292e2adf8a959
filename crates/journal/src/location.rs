//! Where a journal is stored.

use std::path::{Path, PathBuf};

use selvedge_database::{PostgresPool, PostgresUrl};

/// The number of connections of a process to a database, unless it is configured.
const DEFAULT_MAX_CONNECTIONS: u16 = 8;

/// Where a journal is stored: in a file of its folder, or in a PostgreSQL database. The folder also
/// has what belongs to this machine, such as the lock files of processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLocation {
    folder: PathBuf,
    database: Option<PostgresUrl>,
    max_connections: u16,
}

impl JournalLocation {
    /// A file in this folder.
    pub fn file_in(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            database: None,
            max_connections: DEFAULT_MAX_CONNECTIONS,
        }
    }

    /// A PostgreSQL database, used by processes with this folder.
    pub fn postgres(folder: &Path, database: PostgresUrl) -> Self {
        Self {
            folder: folder.to_owned(),
            database: Some(database),
            max_connections: DEFAULT_MAX_CONNECTIONS,
        }
    }

    /// Limits the connections of this process to the database. Those of leases and notices are not
    /// counted.
    pub fn with_max_connections(self, max_connections: u16) -> Self {
        Self {
            max_connections,
            ..self
        }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the PostgreSQL database; `None` if the journal is a file.
    pub fn database(&self) -> Option<&PostgresUrl> {
        self.database.as_ref()
    }

    /// Returns the connections of this process to the database; `None` if the journal is a file.
    pub(crate) fn pool(&self) -> Option<PostgresPool> {
        let database = self.database.as_ref()?;
        Some(PostgresPool::of_process(
            database,
            usize::from(self.max_connections),
        ))
    }

    /// Returns the file, or the address of the database without its password.
    pub(crate) fn name(&self) -> PathBuf {
        match &self.database {
            None => self.folder.join(crate::connection::FILE_NAME),
            Some(database) => PathBuf::from(database.label()),
        }
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for JournalLocation {
    fn from(folder: &P) -> Self {
        Self::file_in(folder.as_ref())
    }
}

impl From<&Self> for JournalLocation {
    fn from(location: &Self) -> Self {
        location.clone()
    }
}
