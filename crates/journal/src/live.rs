//! Liveness of processes. Each process locks a file of its own in the folder `live`; the system
//! releases the lock when the process ends, also when it is killed. The commands that it started hold
//! the same lock ([`crate::Journal::hold`]), so a run counts as alive until its last command ended.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A process that writes the journal.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: String,
    /// `None` if the journal is only read.
    lock_file: Option<LockFile>,
}

#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    lock: File,
}

impl Owner {
    /// Creates and locks the file of a new owner.
    pub(crate) fn new(folder: &Path, id: String) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(&id);
        // Another process that removes files of dead owners may remove this one before it is locked.
        for _ in 0..100 {
            let lock = File::create(&path)?;
            lock.lock()?;
            if File::open(&path)
                .is_ok_and(|there| matches!(there.try_lock_shared(), Err(TryLockError::WouldBlock)))
            {
                return Ok(Self {
                    id,
                    lock_file: Some(LockFile { path, lock }),
                });
            }
        }
        Err(io::Error::other(
            "the lock file of this process is removed again and again",
        ))
    }

    /// The owner of nothing, for a journal that is only read.
    pub(crate) fn none() -> Self {
        Self {
            id: String::new(),
            lock_file: None,
        }
    }

    /// A handle to the locked file for a child process.
    #[cfg(unix)]
    pub(crate) fn hold(&self) -> io::Result<std::os::fd::OwnedFd> {
        let file = self
            .lock_file
            .as_ref()
            .ok_or_else(|| io::Error::other("the journal is read-only"))?;
        Ok(file.lock.try_clone()?.into())
    }

    /// Whether the process with this id, or a command that it started, is alive.
    pub(crate) fn is_alive(folder: &Path, id: &str) -> bool {
        match File::open(folder.join(id)) {
            Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
            // If this cannot be found out, the owner counts as alive and keeps its runs.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(file) = &self.lock_file {
            // A file that stays is not locked, which shows that its owner is dead.
            let _ = std::fs::remove_file(&file.path);
        }
    }
}
