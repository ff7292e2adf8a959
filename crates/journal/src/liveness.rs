//! Liveness of processes. Each process locks its own file in the folder `live`. The operating
//! system releases the lock when the process ends or is killed. Commands that the process started
//! inherit the lock ([`crate::Journal::owner_lock_fd`]), so a run counts as alive until its last
//! command has ended. Processes of several machines also have leases in the database. There, a lock
//! file tells only that a process of this machine has ended.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_database::Connection;

use crate::connection::create_private_folder;
use crate::lease::{LeaseTimes, OwnerLease};
use crate::{Journal, JournalError, JournalLocation};

/// A process that writes to the journal, identified by a random id.
#[derive(Debug)]
pub(crate) struct JournalOwner {
    pub(crate) id: String,
    /// `None` if the journal is open read-only.
    lock_file: Option<OwnerLockFile>,
    /// `None` if all processes run on one machine.
    lease: Option<Arc<OwnerLease>>,
}

#[derive(Debug)]
struct OwnerLockFile {
    path: PathBuf,
    lock: File,
}

impl JournalOwner {
    /// Creates and locks the file of a new owner. Its lease begins with its first write.
    pub(crate) fn new(
        location: &JournalLocation,
        id: String,
        leases: Option<LeaseTimes>,
    ) -> io::Result<Self> {
        let folder = location.folder().join("live");
        // Another user could lock the files, and the session of a killed process would stay owned.
        create_private_folder(&folder)?;
        let path = folder.join(&id);
        // A process that removes stale lock files may remove this one before it is locked.
        for _ in 0..100 {
            let mut lock = File::create(&path)?;
            lock.lock()?;
            let is_mine = File::open(&path)
                .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
            if !is_mine {
                continue;
            }
            if leases.is_some() {
                lock.write_all(boot_id().as_bytes())?;
            }
            let lease = leases.map(|times| OwnerLease::new(&id, location.name(), times));
            return Ok(Self {
                id,
                lock_file: Some(OwnerLockFile { path, lock }),
                lease,
            });
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
            lease: None,
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

    /// Returns the lease of the process; `None` if processes only lock files.
    pub(crate) fn lease(&self) -> Option<&Arc<OwnerLease>> {
        self.lease.as_ref()
    }

    /// Returns whether a process with a lease has run on this machine and has ended, with all its
    /// commands.
    pub(crate) fn has_ended_here(folder: &Path, id: &str) -> bool {
        let Ok(mut file) = File::open(folder.join(id)) else {
            return false;
        };
        // The folder may be on a file system without locks between machines.
        let mut machine = String::new();
        let is_here = |machine: &str| !machine.is_empty() && machine == boot_id();
        file.try_lock_shared().is_ok()
            && file.read_to_string(&mut machine).is_ok()
            && is_here(&machine)
    }

    /// Returns whether the process with this id, or a command that it started, is running.
    pub(crate) fn has_lock(folder: &Path, id: &str) -> bool {
        // A run that was taken over has no owner.
        if id.is_empty() {
            return false;
        }
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

/// Returns the name of the machine and the number of the process, for people.
pub(crate) fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} {}", host.trim(), std::process::id())
}

/// Returns the id that this machine has since it was started; empty if it has none.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

impl Journal {
    /// Returns whether a process is alive, as lists show it.
    pub(crate) fn is_owner_alive(
        &self,
        connection: &Connection,
        owner: &str,
    ) -> Result<bool, JournalError> {
        let live = self.location.folder().join("live");
        match self.owner.lease() {
            Some(_) => Ok(!JournalOwner::has_ended_here(&live, owner)
                && OwnerLease::is_current(connection, owner)?),
            None => Ok(JournalOwner::has_lock(&live, owner)),
        }
    }

    /// Returns whether this process may take over what another one has claimed, because that one is
    /// dead for certain.
    pub(crate) fn may_replace_owner(
        &self,
        connection: &Connection,
        owner: &str,
    ) -> Result<bool, JournalError> {
        match self.owner.lease() {
            Some(lease) => Ok(JournalOwner::has_ended_here(
                &self.location.folder().join("live"),
                owner,
            ) || lease.may_replace(connection, owner)?),
            None => Ok(!self.is_owner_alive(connection, owner)?),
        }
    }
}
