//! Who is alive. A process holds a lock on a file of its own for as long as it lives; the system lets it go when
//! the process ends, however that happens. The commands it started hold on to it too ([`crate::Journal::hold`]): a
//! run is over when nothing of it can do anything any more.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A process that writes the journal.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: String,
    path: PathBuf,
    pub(crate) lock: File,
}

impl Owner {
    /// A new owner, alive from now on.
    pub(crate) fn new(folder: &Path, id: String) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(&id);
        let lock = File::create(&path)?;
        lock.lock()?;
        Ok(Self { id, path, lock })
    }

    /// Whether the owner of this id, or something it started, lives.
    pub(crate) fn is_alive(folder: &Path, id: &str) -> bool {
        let Ok(file) = File::open(folder.join(id)) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // One that is left is known to be dead by its lock.
        let _ = std::fs::remove_file(&self.path);
    }
}
