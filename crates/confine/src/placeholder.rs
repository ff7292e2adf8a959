//! Folders that stand where nothing may be created while a command runs.
//!
//! A read-only mount needs something to be mounted on: a workspace without `.git` gets an empty one for as
//! long as a command could make its own there. Who finds one shares it by a lock; the last one removes it.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The mode that marks a folder as a placeholder. Nobody makes such a folder for anything else.
const MODE: u32 = 0o555;

/// A folder that is there for a while.
#[derive(Debug)]
pub(crate) struct Placeholder {
    path: PathBuf,
    folder: File,
}

impl Placeholder {
    /// Makes the folder, or shares one that is there; `None` where something real stands.
    pub(crate) fn stand_in(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let made = match DirBuilder::new().mode(MODE).create(path) {
                Ok(()) => {
                    // Whatever the mask says.
                    std::fs::set_permissions(path, Permissions::from_mode(MODE))?;
                    true
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                Err(error) => return Err(error),
            };
            if !made && !is_placeholder(path) {
                return Ok(None);
            }
            let folder = match File::open(path) {
                Ok(folder) => folder,
                // Its last user has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            folder.lock_shared()?;
            let same =
                std::fs::symlink_metadata(path).is_ok_and(|now| folder.metadata().is_ok_and(|m| m.ino() == now.ino()));
            if same {
                return Ok(Some(Self { path: path.to_owned(), folder }));
            }
        }
    }
}

impl Placeholder {
    /// The lock, for somebody who may outlive us.
    pub(crate) fn lock(&self) -> io::Result<OwnedFd> {
        Ok(self.folder.try_clone()?.into())
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        // Whoever still needs it holds the lock, and removes it later.
        if self.folder.try_lock().is_ok() && is_placeholder(&self.path) {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Whether a folder is there for a while only.
pub(crate) fn is_placeholder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir() && m.mode() & 0o777 == MODE)
        && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}
