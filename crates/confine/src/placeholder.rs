//! Placeholder folders at paths where a command must not create anything.
//!
//! A read-only mount needs a mount point. A workspace without `.git` therefore gets an empty `.git`
//! while a command runs. Concurrent commands share the placeholders of a folder: each holds a
//! shared lock, and the last one removes them under an exclusive lock. The lock is a file that
//! commands cannot open: a lock on the placeholder itself could be held by a command in another
//! folder. The file lists the placeholders, because the last command may not use all of them. The
//! placeholders are locked, too, for other users, who have other lock files, in folders such as
//! `/tmp`.

use std::collections::btree_map::{BTreeMap, Entry};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The mode that marks an empty folder as a placeholder. It is unusual for other folders.
const PLACEHOLDER_MODE: u32 = 0o555;

/// Checks of an unfinished or locked placeholder, one per millisecond, before it counts as a real
/// folder, or is used without a lock. Creating and removing one takes microseconds.
const MAX_UNFINISHED_CHECKS: u32 = 100;

/// Attempts to get a lock, one per millisecond. A removal takes microseconds.
const MAX_LOCK_ATTEMPTS: u32 = 5_000;

/// Ends each name in a lock file. No file name contains it.
const NAME_END: u8 = 0;

/// Largest list of names that is read from a lock file, in bytes.
const MAX_LIST_BYTES: u64 = 1 << 16;

/// The placeholders of a command. Dropping them removes those that no other command uses.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// By the folder that contains them.
    folders: BTreeMap<PathBuf, LockedFolder>,
}

/// A folder with placeholders.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    folder: PathBuf,
    /// Lists the names of the placeholders of all commands in the folder.
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
    /// Locks the folder of a path against the removal of placeholders. The lock is in the first of
    /// the folders `locks` that this user may write, or else in a folder of the system.
    pub(crate) fn lock_folder_of(
        &mut self,
        path: &Path,
        locks: &[PathBuf],
    ) -> io::Result<&mut LockedFolder> {
        let folder = path.parent().unwrap_or(path);
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let entry = match self.folders.entry(folder) {
            Entry::Occupied(locked) => return Ok(locked.into_mut()),
            Entry::Vacant(entry) => entry,
        };
        let locked = LockedFolder::lock_in_first(entry.key(), locks, &system_lock_folders())?;
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
    /// Creates a placeholder, or shares an existing one, also of another user. A real file or
    /// folder is protected as it is, and never removed.
    pub(crate) fn create_or_share(&mut self, path: &Path) -> io::Result<()> {
        let mut locked = 0;
        for _ in 0..MAX_LOCK_ATTEMPTS {
            if !create_if_missing(path)? {
                return Ok(());
            }
            let placeholder = match open_placeholder(path) {
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
                return self.list(path.file_name().unwrap_or_default());
            }
        }
        Err(io::Error::other(format!(
            "{} is created and removed repeatedly by other processes",
            path.display()
        )))
    }

    /// Locks a folder, with a lock file in the first of these folders that this user may write.
    /// Fails if other users can write that of the system: they could hold the lock.
    fn lock_in_first(folder: &Path, locks: &[PathBuf], system: &[PathBuf]) -> io::Result<Self> {
        let private = locks.iter().map(|locks| Self::lock(folder, locks));
        let system = system
            .iter()
            .map(|locks| create_private(locks).and_then(|()| Self::lock(folder, locks)));
        let mut last = io::Error::other("there is no folder for lock files");
        for locked in private.chain(system) {
            match locked {
                // Commands may open files in the next folder, so a failure that they may cause
                // does not lead to it.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound
                            | io::ErrorKind::PermissionDenied
                            | io::ErrorKind::ReadOnlyFilesystem
                    ) =>
                {
                    last = error;
                }
                locked => return locked,
            }
        }
        Err(last)
    }

    /// Locks a folder. `locks` is the folder for the lock file.
    fn lock(folder: &Path, locks: &Path) -> io::Result<Self> {
        let mut hasher = DefaultHasher::new();
        folder.hash(&mut hasher);
        let name = format!("placeholders-{:016x}", hasher.finish());
        if let Some(home) = locks.parent() {
            create_folder(home)?;
        }
        create_folder(locks)?;
        let lock_path = locks.join(name);
        for _ in 0..MAX_LOCK_ATTEMPTS {
            let lock = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&lock_path)?;
            match lock.try_lock_shared() {
                // The last command that used it may have removed the file meanwhile.
                Ok(()) if is_current(&lock, &lock_path) => {
                    return Ok(Self {
                        folder: folder.to_owned(),
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

    /// Returns the names of the placeholders of all commands in the folder.
    fn listed(&self) -> io::Result<Vec<Vec<u8>>> {
        let (mut lock, mut names) = (&self.lock, Vec::new());
        lock.rewind()?;
        lock.take(MAX_LIST_BYTES).read_to_end(&mut names)?;
        let names = names.split_inclusive(|byte| *byte == NAME_END);
        let complete = names.filter_map(|name| name.strip_suffix(&[NAME_END]));
        Ok(complete.map(<[u8]>::to_vec).collect())
    }

    /// Adds a name to those of the lock file.
    fn list(&self, name: &OsStr) -> io::Result<()> {
        let name = name.as_bytes();
        if self.listed()?.iter().any(|listed| listed == name) {
            return Ok(());
        }
        (&self.lock).write_all(&[name, &[NAME_END]].concat())
    }

    /// Returns the listed placeholders that this command does not use.
    fn unshared(&self) -> io::Result<Vec<(PathBuf, File)>> {
        let names = self.listed()?;
        let names = names.iter().map(|name| Path::new(OsStr::from_bytes(name)));
        // The list may be in a folder that commands can write.
        let names = names.filter(|name| name.file_name() == Some(name.as_os_str()));
        let used = |name: &&Path| {
            let mut used = self.placeholders.iter();
            used.any(|(path, _)| path.file_name() == name.file_name())
        };
        let unshared = names.filter(|name| !used(name)).filter_map(|name| {
            let path = self.folder.join(name);
            open_placeholder(&path).ok().map(|file| (path, file))
        });
        Ok(unshared.collect())
    }
}

impl Drop for LockedFolder {
    fn drop(&mut self) {
        // If another command still holds the lock, that command removes the placeholders later.
        if self.lock.try_lock().is_ok() {
            let unshared = self.unshared().unwrap_or_default();
            for (path, placeholder) in self.placeholders.iter().chain(&unshared) {
                let is_unused = placeholder.try_lock().is_ok() && is_current(placeholder, path);
                // Its user removes a placeholder with the next command in the folder.
                let is_own = placeholder.metadata().is_ok_and(|it| is_own(&it));
                if is_unused && is_own && is_placeholder(path) {
                    let _ = std::fs::remove_dir(path);
                }
            }
            let _ = std::fs::remove_file(&self.lock_path);
        }
    }
}

/// Returns the folders for lock files of users without a home folder that they may write.
fn system_lock_folders() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| folder.is_absolute());
    let temporary = format!("selvedge-locks-{}", effective_user());
    let temporary = std::env::temp_dir().join(temporary);
    let runtime = runtime.map(|folder| folder.join("selvedge-locks"));
    runtime.into_iter().chain([temporary]).collect()
}

/// Creates a folder unless it exists. Fails if other users have access to it.
fn create_private(folder: &Path) -> io::Result<()> {
    create_folder(folder)?;
    let metadata = std::fs::symlink_metadata(folder)?;
    match metadata.is_dir() && is_own(&metadata) && metadata.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "other users have access to {}",
            folder.display()
        ))),
    }
}

/// Creates a folder that other users cannot access. One that exists stays as it is.
fn create_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

/// Opens a placeholder, and follows no link.
fn open_placeholder(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY);
    options.open(path)
}

/// Returns whether a file belongs to the user of this process.
pub(crate) fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == effective_user()
}

fn effective_user() -> u32 {
    // SAFETY: the function only returns a number.
    unsafe { libc::geteuid() }
}

/// Returns whether a path still refers to a file, and not to one that was created later.
fn is_current(file: &File, path: &Path) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
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
                let folder = match open_placeholder(path) {
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
        if !metadata.is_dir() || mode & 0o222 != 0 {
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
        let folder = placeholders
            .lock_folder_of(path, &[locks.to_owned()])
            .unwrap();
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
    fn the_last_command_removes_placeholders_that_only_earlier_commands_used() {
        let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [both, first_only] = [".git", ".envrc"].map(|name| folder.path().join(name));
        let real = folder.path().join("real");
        std::fs::create_dir(&real).unwrap();
        let second = create_or_share(&both, locks.path());
        let mut first = create_or_share(&both, locks.path());
        for path in [&first_only, &real] {
            let locks = [locks.path().to_owned()];
            let locked = first.lock_folder_of(path, &locks).unwrap();
            locked.create_or_share(path).unwrap();
        }
        drop(first);
        assert!(both.exists(), "it is removed while it is used");
        drop(second);
        let left = std::fs::read_dir(folder.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["real"]);
        assert_eq!(locks.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn names_in_a_lock_file_lead_to_no_other_folder() {
        let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let other = tempfile::tempdir().unwrap();
        let victim = other.path().join("empty");
        let mut builder = DirBuilder::new();
        builder.mode(PLACEHOLDER_MODE).create(&victim).unwrap();
        let path = folder.path().join(".git");
        let placeholders = create_or_share(&path, locks.path());
        let locked = placeholders.folders.values().next().unwrap();
        let up = format!("../{}/empty", other.path().file_name().unwrap().display());
        for name in [victim.as_os_str(), OsStr::new(&up), OsStr::new("..")] {
            locked.list(name).unwrap();
        }
        drop(placeholders);
        assert!(victim.exists() && !path.exists());
    }

    #[test]
    fn a_lock_folder_of_the_system_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let locks = folder.path().join("selvedge-locks-0");
        let lock = || {
            LockedFolder::lock_in_first(folder.path(), &[], std::slice::from_ref(&locks)).map(drop)
        };
        lock().unwrap();
        let set_mode = |mode| std::fs::set_permissions(&locks, Permissions::from_mode(mode));
        set_mode(0o777).unwrap();
        let error = lock().unwrap_err().to_string();
        assert!(error.starts_with("other users have access to "), "{error}");
        set_mode(0o700).unwrap();
        // Only root can give a folder to another user.
        if std::os::unix::fs::chown(&locks, Some(1), None).is_ok() {
            lock().unwrap_err();
        }
        std::fs::remove_dir(&locks).unwrap();
        std::os::unix::fs::symlink(folder.path(), &locks).unwrap();
        lock().unwrap_err();
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

    /// Two users share folders such as `/tmp`. The user who created a placeholder must not remove
    /// it while a command of the other one relies on it.
    #[test]
    fn a_placeholder_of_another_user_is_locked_and_left_to_that_user() {
        let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join(".git");
        let mut builder = DirBuilder::new();
        builder.mode(PLACEHOLDER_MODE).create(&path).unwrap();
        // Only root can give a folder away.
        let is_given = std::os::unix::fs::chown(&path, Some(1), None).is_ok();
        let placeholders = create_or_share(&path, locks.path());
        assert_eq!(count(&placeholders), 1);
        let of_its_user = open_placeholder(&path).unwrap();
        assert!(of_its_user.try_lock().is_err(), "it is not locked");
        drop(placeholders);
        of_its_user.try_lock().unwrap();
        assert!(!is_given || path.is_dir(), "another user removed it");
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
