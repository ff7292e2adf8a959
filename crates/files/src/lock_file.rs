//! Files that processes lock to take turns. The operating system releases a lock when its process
//! ends. A lock file may be removed while it is not locked.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// How often a lock file is opened again that another process removed meanwhile.
const MAX_ATTEMPTS: u32 = 10_000;

/// Creates a file unless it exists, and waits until no other process has locked it. The lock is
/// held until the result and its copies are dropped.
pub fn lock_file(path: &Path) -> io::Result<File> {
    for _ in 0..MAX_ATTEMPTS {
        let file = open(path)?;
        file.lock()?;
        if is_current(&file, path) {
            return Ok(file);
        }
    }
    Err(removed(path))
}

/// Like [`lock_file`], but returns `None` if another process, or another task of this one, has
/// locked the file.
pub fn try_lock_file(path: &Path) -> io::Result<Option<File>> {
    for _ in 0..MAX_ATTEMPTS {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) if is_current(&file, path) => return Ok(Some(file)),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(removed(path))
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn removed(path: &Path) -> io::Error {
    io::Error::other(format!("{} is removed again and again", path.display()))
}

/// Returns whether a path still refers to a locked file, and not to one that was created later.
#[cfg(unix)]
fn is_current(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let current = path.metadata().map(identity);
    matches!((file.metadata().map(identity), current), (Ok(own), Ok(current)) if own == current)
}

/// The same without identities of files: a file at the path that is locked.
#[cfg(not(unix))]
fn is_current(_: &File, path: &Path) -> bool {
    File::open(path)
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lock_at_a_time_although_the_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        let held = lock_file(&path).unwrap();
        assert!(try_lock_file(&path).unwrap().is_none());
        drop(held);
        assert!(try_lock_file(&path).unwrap().is_some());
        // Each thread counts in a file without any other protection, and removes the lock file.
        let counter = dir.path().join("counter");
        std::fs::write(&counter, "0").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let lock = lock_file(&path).unwrap();
                        let count: u32 =
                            std::fs::read_to_string(&counter).unwrap().parse().unwrap();
                        std::fs::write(&counter, (count + 1).to_string()).unwrap();
                        std::fs::remove_file(&path).unwrap();
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&counter).unwrap(), "800");
    }
}
