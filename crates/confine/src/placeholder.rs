//! Placeholder folders at paths where a command must not create anything.
//!
//! A read-only mount needs a mount point. A workspace without `.git` therefore gets an empty `.git`
//! while a command runs. Concurrent commands share the placeholders of a folder: each holds a
//! shared lock, and the last one removes them under an exclusive lock. The lock is a file that
//! commands cannot open: a lock on the placeholder itself could be held by a command in another
//! folder. The placeholders are locked, too, for processes with other lock files, in folders such
//! as `/tmp`.

use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The mode that marks an empty folder as a placeholder. It is unusual for other folders.
const PLACEHOLDER_MODE: u32 = 0o555;

/// How a placeholder is opened: a link is not followed.
const PLACEHOLDER_FLAGS: libc::c_int = libc::O_NOFOLLOW | libc::O_DIRECTORY;

/// Checks of an unfinished or locked placeholder, one per millisecond, before it counts as a real
/// folder, or is used without a lock. Creating and removing one takes microseconds.
const MAX_UNFINISHED_CHECKS: u32 = 100;

/// Attempts to get a lock, one per millisecond. A removal takes microseconds.
const MAX_LOCK_ATTEMPTS: u32 = 5_000;

/// The placeholders of a command. Dropping them removes those that no other command uses.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// By the folder that contains them.
    folders: BTreeMap<PathBuf, LockedFolder>,
}

/// A folder with placeholders.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    lock: File,
    lock_path: PathBuf,
    /// The placeholders that the command uses. They are locked unless another program prevents it.
    placeholders: Vec<(PathBuf, File)>,
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

impl Placeholders {
    /// Locks the folder of a path against the removal of placeholders. `locks` is the folder for
    /// the lock. If it does not exist or this user must not write it, the lock is in the temporary
    /// folder.
    pub(crate) fn lock_folder_of(
        &mut self,
        path: &Path,
        locks: Option<&Path>,
    ) -> io::Result<&mut LockedFolder> {
        let folder = path.parent().unwrap_or(path);
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let entry = match self.folders.entry(folder) {
            Entry::Occupied(locked) => return Ok(locked.into_mut()),
            Entry::Vacant(entry) => entry,
        };
        let mut hasher = DefaultHasher::new();
        entry.key().hash(&mut hasher);
        let name = format!("placeholders-{:016x}", hasher.finish());
        let private = locks.map(|locks| LockedFolder::lock(locks, &name));
        let locked = match private {
            Some(Ok(locked)) => locked,
            // Commands can open files there, so a failure that they may cause does not lead to it.
            Some(Err(error))
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::PermissionDenied
                        | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                return Err(error);
            }
            _ => {
                // SAFETY: the function only returns a number.
                let user = unsafe { libc::geteuid() };
                let shared = std::env::temp_dir().join(format!("selvedge-locks-{user}"));
                LockedFolder::lock(&shared, &name)?
            }
        };
        Ok(entry.insert(locked))
    }

    /// Returns descriptors that hold the locks, for the init process, which may outlive this
    /// process.
    pub(crate) fn lock_fds(&self) -> io::Result<Vec<OwnedFd>> {
        let locks = self.folders.values().flat_map(|folder| {
            let placeholders = folder
                .placeholders
                .iter()
                .map(|(_, placeholder)| placeholder);
            std::iter::once(&folder.lock).chain(placeholders)
        });
        locks
            .map(|lock| lock.try_clone().map(OwnedFd::from))
            .collect()
    }
}

impl LockedFolder {
    /// Creates a placeholder, or shares an existing one. A real file or folder, or a folder of
    /// another user, is protected as it is, and never removed.
    pub(crate) fn create_or_share(&mut self, path: &Path) -> io::Result<()> {
        let mut locked = 0;
        for _ in 0..MAX_LOCK_ATTEMPTS {
            if !create_if_missing(path)? {
                return Ok(());
            }
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(PLACEHOLDER_FLAGS);
            let placeholder = match options.open(path) {
                Ok(placeholder) => placeholder,
                // A process with another lock file has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            match placeholder.try_lock_shared() {
                Ok(()) => {}
                // It is being removed, or another program holds the lock.
                Err(TryLockError::WouldBlock) if locked < MAX_UNFINISHED_CHECKS => {
                    locked += 1;
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if is_current(&placeholder, path) && is_placeholder(path) {
                self.placeholders.push((path.to_owned(), placeholder));
                return Ok(());
            }
        }
        Err(io::Error::other(format!(
            "{} is created and removed repeatedly by other processes",
            path.display()
        )))
    }

    fn lock(locks: &Path, name: &str) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(locks) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let lock_path = locks.join(name);
        for _ in 0..MAX_LOCK_ATTEMPTS {
            let lock = OpenOptions::new()
                .write(true)
                .create(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&lock_path)?;
            match lock.try_lock_shared() {
                // The last command that used it may have removed the file meanwhile.
                Ok(()) if is_current(&lock, &lock_path) => {
                    return Ok(Self {
                        lock,
                        lock_path,
                        placeholders: Vec::new(),
                    });
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::other(format!(
            "{} is locked by another process",
            lock_path.display()
        )))
    }
}

impl Drop for LockedFolder {
    fn drop(&mut self) {
        // If another command still holds the lock, that command removes the placeholders later.
        if self.lock.try_lock().is_ok() {
            for (path, placeholder) in &self.placeholders {
                let is_unused = placeholder.try_lock().is_ok() && is_current(placeholder, path);
                if is_unused && is_placeholder(path) {
                    let _ = std::fs::remove_dir(path);
                }
            }
            let _ = std::fs::remove_file(&self.lock_path);
        }
    }
}

/// Returns whether a path still refers to a file, and not to one that was created later.
fn is_current(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let current = std::fs::symlink_metadata(path).map(identity);
    matches!((file.metadata().map(identity), current), (Ok(own), Ok(current)) if own == current)
}

/// Creates a placeholder unless something exists. Returns whether the path is a placeholder.
fn create_if_missing(path: &Path) -> io::Result<bool> {
    let mut unfinished = 0;
    loop {
        match DirBuilder::new().mode(PLACEHOLDER_MODE).create(path) {
            Ok(()) => {
                // The umask may have cleared bits of the mode.
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(PLACEHOLDER_FLAGS);
                let folder = match options.open(path) {
                    Ok(folder) => folder,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
                folder.set_permissions(Permissions::from_mode(PLACEHOLDER_MODE))?;
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        match path_state(path)? {
            PathState::Placeholder => return Ok(true),
            PathState::Real => return Ok(false),
            PathState::Missing => {}
            // Another process has created the folder and is about to set its mode.
            PathState::Unfinished if unfinished < MAX_UNFINISHED_CHECKS => {
                unfinished += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            PathState::Unfinished => return Ok(false),
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

    fn create_or_share(path: &Path, locks: &Path) -> Placeholders {
        let mut placeholders = Placeholders::default();
        let folder = placeholders.lock_folder_of(path, Some(locks)).unwrap();
        folder.create_or_share(path).unwrap();
        placeholders
    }

    fn count(placeholders: &Placeholders) -> usize {
        let folders = placeholders.folders.values();
        folders.map(|folder| folder.placeholders.len()).sum()
    }

    #[test]
    fn a_placeholder_that_another_program_locks_is_neither_replaced_nor_removed_too_early() {
        let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join(".git");
        let first = create_or_share(&path, locks.path());
        // As a command in another folder can.
        first.folders.values().for_each(|folder| {
            let (_, placeholder) = &folder.placeholders[0];
            placeholder.unlock().unwrap();
        });
        let lock = File::open(&path).unwrap();
        lock.lock().unwrap();
        let second = create_or_share(&path, locks.path());
        assert_eq!((count(&first), count(&second)), (1, 1));
        assert!(is_current(&lock, &path), "it is shared, not replaced");
        lock.unlock().unwrap();
        drop(first);
        assert!(is_current(&lock, &path), "it is removed while it is used");
        drop(second);
        assert!(!path.exists());
        assert_eq!(
            locks.path().read_dir().unwrap().count(),
            0,
            "a lock is left"
        );
    }

    #[test]
    fn processes_with_different_lock_files_share_placeholders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".git");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let locks = tempfile::tempdir().unwrap();
                    for round in 0..1000 {
                        let placeholders = create_or_share(&path, locks.path());
                        assert_eq!(count(&placeholders), 1, "round {round}");
                        assert!(is_placeholder(&path), "round {round}");
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_of_another_user_is_no_placeholder() {
        let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join(".git");
        DirBuilder::new()
            .mode(PLACEHOLDER_MODE)
            .create(&path)
            .unwrap();
        assert!(is_placeholder(&path));
        // Only root can give a folder to another user.
        if std::os::unix::fs::chown(&path, Some(1), None).is_ok() {
            assert_eq!(count(&create_or_share(&path, locks.path())), 0);
            assert!(path.is_dir(), "it is never removed");
        }
    }

    #[test]
    fn a_placeholder_that_is_created_and_removed_concurrently_is_never_taken_for_a_real_folder() {
        let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join(".git");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2000 {
                        let placeholders = create_or_share(&path, locks.path());
                        assert_eq!(count(&placeholders), 1, "round {round}");
                        assert!(is_placeholder(&path), "round {round}");
                    }
                });
            }
        });
        assert!(!path.exists());
    }
}
