//! Placeholder folders at paths where a command must not create anything.
//!
//! A read-only mount needs a mount point. A workspace without `.git` therefore gets an empty `.git`
//! while a command runs. Concurrent commands share the folder through a shared lock; the last one
//! removes it.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The mode that marks an empty folder as a placeholder. It is unusual for other folders.
const PLACEHOLDER_MODE: u32 = 0o555;

/// Attempts to create or share a placeholder that other processes create and remove.
const MAX_PLACEHOLDER_ATTEMPTS: u32 = 100_000;

/// Checks of an unfinished or locked placeholder, one per millisecond, before an unfinished one
/// counts as a real folder, and a locked one is replaced. Creating one takes microseconds, and so
/// does the exclusive lock of a removal: a longer lock belongs to another program, such as a
/// command of an agent in another folder.
const MAX_UNFINISHED_CHECKS: u32 = 100;

/// A locked placeholder folder. Dropping it removes the folder unless another process still holds
/// the lock.
#[derive(Debug)]
pub(crate) struct Placeholder {
    path: PathBuf,
    folder: File,
}

/// The state of a path at one moment.
enum PathState {
    /// The path does not exist.
    Missing,
    Placeholder,
    /// An empty, read-only folder with another mode: a placeholder that another process is
    /// creating, or a real folder.
    Unfinished,
    /// A real file or folder.
    Real,
}

impl Placeholder {
    /// Creates the folder, or shares an existing placeholder. `None` if a real file or folder
    /// exists, or a folder of another user: these are protected as they are, and never removed.
    pub(crate) fn create_or_share(path: &Path) -> io::Result<Option<Self>> {
        let (mut unfinished, mut locked) = (0, 0);
        for _ in 0..MAX_PLACEHOLDER_ATTEMPTS {
            let created = match DirBuilder::new().mode(PLACEHOLDER_MODE).create(path) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    match path_state(path)? {
                        PathState::Placeholder => false,
                        PathState::Missing => continue,
                        // Another process has created the folder and is about to set its mode.
                        PathState::Unfinished if unfinished < MAX_UNFINISHED_CHECKS => {
                            unfinished += 1;
                            std::thread::sleep(Duration::from_millis(1));
                            continue;
                        }
                        PathState::Unfinished | PathState::Real => return Ok(None),
                    }
                }
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
                folder.set_permissions(Permissions::from_mode(PLACEHOLDER_MODE))?;
            }
            match folder.try_lock_shared() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if locked < MAX_UNFINISHED_CHECKS => {
                    locked += 1;
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                // While a command uses the folder, its shared lock prevents an exclusive one, so no
                // command uses this one. Without a lock of its own, the folder could be removed
                // while the command runs.
                Err(TryLockError::WouldBlock) => {
                    let tested = Self {
                        path: path.to_owned(),
                        folder,
                    };
                    // Another process may have replaced it meanwhile.
                    if tested.is_current() {
                        match std::fs::remove_dir(path) {
                            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                                return Err(error);
                            }
                            _ => {}
                        }
                    }
                    continue;
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let placeholder = Self {
                path: path.to_owned(),
                folder,
            };
            if placeholder.is_current() && is_placeholder(path) {
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
    pub(crate) fn lock_fd(&self) -> io::Result<OwnedFd> {
        Ok(self.folder.try_clone()?.into())
    }

    /// Returns whether the path still refers to this folder, and not to one that was created later.
    fn is_current(&self) -> bool {
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
        if self.folder.try_lock().is_ok() && self.is_current() && is_placeholder(&self.path) {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Returns whether a path is a placeholder folder.
pub(crate) fn is_placeholder(path: &Path) -> bool {
    matches!(path_state(path), Ok(PathState::Placeholder))
}

fn path_state(path: &Path) -> io::Result<PathState> {
    let check = || -> io::Result<PathState> {
        let metadata = std::fs::symlink_metadata(path)?;
        let mode = metadata.mode() & 0o777;
        // SAFETY: the function only returns a number.
        let is_own = metadata.uid() == unsafe { libc::geteuid() };
        if !metadata.is_dir() || mode & 0o222 != 0 || !is_own {
            return Ok(PathState::Real);
        }
        Ok(match std::fs::read_dir(path)?.next() {
            Some(_) => PathState::Real,
            None if mode == PLACEHOLDER_MODE => PathState::Placeholder,
            None => PathState::Unfinished,
        })
    };
    match check() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PathState::Missing),
        // A placeholder is readable by everyone.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(PathState::Real),
        state => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_another_process_keeps_locked_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".git");
        let placeholder = Placeholder::create_or_share(&path).unwrap().unwrap();
        placeholder.folder.unlock().unwrap();
        let lock = File::open(&path).unwrap();
        lock.lock().unwrap();
        let (done, result) = std::sync::mpsc::channel();
        let same_path = path.clone();
        std::thread::spawn(move || done.send(Placeholder::create_or_share(&same_path)));
        let shared = result.recv_timeout(Duration::from_secs(10)).unwrap();
        let shared = shared.unwrap().unwrap();
        assert_ne!(
            shared.folder.metadata().unwrap().ino(),
            lock.metadata().unwrap().ino()
        );
        // No other command removes the folder while it is used.
        lock.unlock().unwrap();
        drop(Placeholder::create_or_share(&path).unwrap().unwrap());
        assert!(shared.is_current());
        drop(shared);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_of_another_user_is_no_placeholder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".git");
        DirBuilder::new()
            .mode(PLACEHOLDER_MODE)
            .create(&path)
            .unwrap();
        assert!(is_placeholder(&path));
        // Only root can give a folder to another user.
        if std::os::unix::fs::chown(&path, Some(1), None).is_ok() {
            assert!(Placeholder::create_or_share(&path).unwrap().is_none());
            assert!(path.is_dir(), "it is never removed");
        }
    }

    #[test]
    fn a_placeholder_that_is_created_and_removed_concurrently_is_never_taken_for_a_real_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".git");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2000 {
                        assert!(
                            Placeholder::create_or_share(&path).unwrap().is_some(),
                            "round {round}"
                        );
                        // An unfinished placeholder, as another process would create it.
                        if round % 100 == 0 && DirBuilder::new().mode(0o500).create(&path).is_ok() {
                            std::fs::set_permissions(
                                &path,
                                Permissions::from_mode(PLACEHOLDER_MODE),
                            )
                            .unwrap();
                        }
                    }
                });
            }
        });
        assert!(!path.exists());
    }
}
