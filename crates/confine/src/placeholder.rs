//! Folders that stand where nothing may be created while a command runs.
//!
//! A read-only mount needs something to be mounted on: a workspace without `.git` gets an empty one for as
//! long as a command could make its own there. Who finds one shares it by a lock; the last one removes it.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The mode that marks a folder as a placeholder. Nobody makes such a folder for anything else.
const MODE: u32 = 0o555;

/// How often it is tried beside others who make and remove it.
const MOST_TRIES: u32 = 100_000;

/// How often one that is being made is looked at again.
const PATIENCE: u32 = 100;

/// A folder that is there for a while.
#[derive(Debug)]
pub(crate) struct Placeholder {
    path: PathBuf,
    folder: File,
}

/// What stands at a path, as it was seen at one moment.
enum Standing {
    /// Nothing any more.
    Nothing,
    Placeholder,
    /// One that somebody is about to make, or somebody's folder that looks like it.
    Unfinished,
    Real,
}

impl Placeholder {
    /// Makes the folder, or shares one that is there; `None` where something real stands.
    pub(crate) fn stand_in(path: &Path) -> io::Result<Option<Self>> {
        let mut unfinished = 0;
        for _ in 0..MOST_TRIES {
            let made = match DirBuilder::new().mode(MODE).create(path) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match standing(path)?
                {
                    Standing::Placeholder => false,
                    Standing::Nothing => continue,
                    // Whoever makes one needs a moment for it.
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
                // Its last user has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            // Whatever the mask says; and only to a folder that can be ours.
            if made && folder.metadata()?.mode() & 0o222 == 0 {
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
            "{} comes and goes",
            path.display()
        )))
    }
}

impl Placeholder {
    /// The lock, for somebody who may outlive us.
    pub(crate) fn lock(&self) -> io::Result<OwnedFd> {
        Ok(self.folder.try_clone()?.into())
    }

    /// Whether it is this one that stands there, and not one that came after it.
    fn is_there(&self) -> bool {
        let now = std::fs::symlink_metadata(&self.path);
        now.is_ok_and(|now| {
            self.folder
                .metadata()
                .is_ok_and(|own| (own.dev(), own.ino()) == (now.dev(), now.ino()))
        })
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        // Whoever still needs it holds the lock, and removes it later.
        if self.folder.try_lock().is_ok() && self.is_there() && is_placeholder(&self.path) {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Whether a folder is there for a while only.
pub(crate) fn is_placeholder(path: &Path) -> bool {
    matches!(standing(path), Ok(Standing::Placeholder))
}

fn standing(path: &Path) -> io::Result<Standing> {
    let seen = || -> io::Result<Standing> {
        let there = std::fs::symlink_metadata(path)?;
        let mode = there.mode() & 0o777;
        if !there.is_dir() || mode & 0o222 != 0 {
            return Ok(Standing::Real);
        }
        Ok(match std::fs::read_dir(path)?.next() {
            Some(_) => Standing::Real,
            None if mode == MODE => Standing::Placeholder,
            None => Standing::Unfinished,
        })
    };
    match seen() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Standing::Nothing),
        // What nobody may look into holds something.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Standing::Real),
        seen => seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_comes_and_goes_is_never_taken_for_something_real() {
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
                        // One that somebody is about to make.
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
