//! Liveness of processes. Each process locks its own file in the folder `live`. The operating
//! system releases the lock when the process ends or is killed. Commands that the process started
//! inherit the lock ([`crate::Journal::owner_lock_fd`]), so a run counts as alive until its last
//! command has ended.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::connection::create_private_folder;

/// A process that writes to the journal, identified by a random id.
#[derive(Debug)]
pub(crate) struct JournalOwner {
    pub(crate) id: String,
    /// `None` if the journal is open read-only.
    lock_file: Option<OwnerLockFile>,
}

#[derive(Debug)]
struct OwnerLockFile {
    path: PathBuf,
    lock: File,
}

impl JournalOwner {
    /// Creates and locks the file of a new owner.
    pub(crate) fn new(folder: &Path, id: String) -> io::Result<Self> {
        // Another user could lock the files, and the session of a killed process would stay owned.
        create_private_folder(folder)?;
        let path = folder.join(&id);
        // A process that removes stale lock files may remove this one before it is locked.
        for _ in 0..100 {
            let lock = File::create(&path)?;
            lock.lock()?;
            if File::open(&path)
                .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
            {
                return Ok(Self {
                    id,
                    lock_file: Some(OwnerLockFile { path, lock }),
                });
            }
        }
        Err(io::Error::other(
            "the lock file of this process was removed 100 times",
        ))
    }

    /// Returns an owner without a lock file, for a journal that is open read-only.
    pub(crate) fn read_only() -> Self {
        Self {
            id: String::new(),
            lock_file: None,
        }
    }

    /// Returns a handle to the lock file for a child process.
    #[cfg(unix)]
    pub(crate) fn lock_fd(&self) -> io::Result<std::os::fd::OwnedFd> {
        let file = self
            .lock_file
            .as_ref()
            .ok_or_else(|| io::Error::other("the journal is read-only"))?;
        Ok(file.lock.try_clone()?.into())
    }

    /// Returns whether the process with this id, or a command that it started, is running.
    pub(crate) fn is_alive(folder: &Path, id: &str) -> bool {
        match File::open(folder.join(id)) {
            Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
            // If the file cannot be opened, the owner counts as alive and keeps its runs.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

impl Drop for JournalOwner {
    fn drop(&mut self) {
        if let Some(file) = &self.lock_file {
            // A file that cannot be removed is no longer locked, so the owner counts as dead.
            let _ = std::fs::remove_file(&file.path);
        }
    }
}
