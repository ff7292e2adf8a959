//! Where a journal is stored.

use std::path::{Path, PathBuf};

use selvedge_database::PostgresUrl;

/// Where a journal is stored: in a file of its folder, or in a PostgreSQL database. The folder also
/// has what belongs to this machine, such as the lock files of processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLocation {
    folder: PathBuf,
    database: Option<PostgresUrl>,
}

impl JournalLocation {
    /// A file in this folder.
    pub fn file_in(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            database: None,
        }
    }

    /// A PostgreSQL database, used by processes with this folder.
    pub fn postgres(folder: &Path, database: PostgresUrl) -> Self {
        Self {
            folder: folder.to_owned(),
            database: Some(database),
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
