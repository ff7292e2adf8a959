//! Placeholder folders at paths where a command must not create anything.
//!
//! A read-only mount needs a mount point. A workspace without `.git` therefore gets an empty `.git`
//! while a command runs. Concurrent commands share the folder through a shared lock; the last one
//! removes it.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The mode that marks an empty folder as a placeholder. It is unusual for other folders.
const MODE: u32 = 0o555;

/// Attempts to create or share a placeholder that other processes create and remove.
const MOST_TRIES: u32 = 100_000;

/// Checks of an unfinished placeholder, one per millisecond, before it counts as a real folder.
const PATIENCE: u32 = 100;

/// A locked placeholder folder. Dropping it removes the folder unless another process still holds
/// the lock.
#[derive(Debug)]
pub(crate) struct Placeholder {
    path: PathBuf,
    folder: File,
}

/// The state of a path at one moment.
enum Standing {
    /// The path does not exist.
    Nothing,
    Placeholder,
    /// An empty, read-only folder with another mode: a placeholder that another process is
    /// creating, or a real folder.
    Unfinished,
    /// A real file or folder.
    Real,
}

impl Placeholder {
    /// Creates the folder, or shares an existing placeholder. `None` if a real file or folder
    /// exists.
    pub(crate) fn stand_in(path: &Path) -> io::Result<Option<Self>> {
        let mut unfinished = 0;
        for _ in 0..MOST_TRIES {
            let created = match DirBuilder::new().mode(MODE).create(path) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match standing(path)?
                {
                    Standing::Placeholder => false,
                    Standing::Nothing => continue,
                    // Another process has created the folder and is about to set its mode.
                    Standing::Unfinished if unfinished < PATIENCE => {
                        unfinished += 1;
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    Standing::Unfinished | Standing::Real => return Ok(None),
                },
                Err(error) => return Err(error),
            };
            let folder = match File::open(path) {
                Ok(folder) => folder,
                // The last process that used it has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            // The umask may have cleared bits of the mode. A folder with write permission is not
            // the one that was created above.
            if created && folder.metadata()?.mode() & 0o222 == 0 {
                folder.set_permissions(Permissions::from_mode(MODE))?;
            }
            folder.lock_shared()?;
            let placeholder = Self {
                path: path.to_owned(),
                folder,
            };
            if placeholder.is_there() && is_placeholder(path) {
                return Ok(Some(placeholder));
            }
        }
        Err(io::Error::other(format!(
            "{} is created and removed repeatedly by other processes",
            path.display()
        )))
    }
}

impl Placeholder {
    /// Returns a descriptor that holds the shared lock, for the init process, which may outlive
    /// this process.
    pub(crate) fn lock(&self) -> io::Result<OwnedFd> {
        Ok(self.folder.try_clone()?.into())
    }

    /// Returns whether the path still refers to this folder, and not to one that was created later.
    fn is_there(&self) -> bool {
        let current = std::fs::symlink_metadata(&self.path);
        current.is_ok_and(|current| {
            self.folder
                .metadata()
                .is_ok_and(|own| (own.dev(), own.ino()) == (current.dev(), current.ino()))
        })
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        // If another process still holds the lock, that process removes the folder later.
        if self.folder.try_lock().is_ok() && self.is_there() && is_placeholder(&self.path) {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Returns whether a path is a placeholder folder.
pub(crate) fn is_placeholder(path: &Path) -> bool {
    matches!(standing(path), Ok(Standing::Placeholder))
}

fn standing(path: &Path) -> io::Result<Standing> {
    let check = || -> io::Result<Standing> {
        let metadata = std::fs::symlink_metadata(path)?;
        let mode = metadata.mode() & 0o777;
        if !metadata.is_dir() || mode & 0o222 != 0 {
            return Ok(Standing::Real);
        }
        Ok(match std::fs::read_dir(path)?.next() {
            Some(_) => Standing::Real,
            None if mode == MODE => Standing::Placeholder,
            None => Standing::Unfinished,
        })
    };
    match check() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Standing::Nothing),
        // A placeholder is readable by everyone.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Standing::Real),
        state => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_that_is_created_and_removed_concurrently_is_never_taken_for_a_real_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".git");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2000 {
                        assert!(
                            Placeholder::stand_in(&path).unwrap().is_some(),
                            "round {round}"
                        );
                        // An unfinished placeholder, as another process would create it.
                        if round % 100 == 0 && DirBuilder::new().mode(0o500).create(&path).is_ok() {
                            std::fs::set_permissions(&path, Permissions::from_mode(MODE)).unwrap();
                        }
                    }
                });
            }
        });
        assert!(!path.exists());
    }
}
