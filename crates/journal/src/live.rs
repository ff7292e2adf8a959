//! Who is alive. A process holds a lock on a file of its own for as long as it lives; the system lets it go when
//! the process ends, however that happens. The commands it started hold on to it too ([`crate::Journal::hold`]): a
//! run is over when nothing of it can do anything any more.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A process that writes the journal.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: String,
    /// `None` for one who only looks: nothing is ever theirs.
    shown: Option<Shown>,
}

/// What shows that an owner lives.
#[derive(Debug)]
struct Shown {
    path: PathBuf,
    lock: File,
}

impl Owner {
    /// A new owner, alive from now on.
    pub(crate) fn new(folder: &Path, id: String) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(&id);
        // Whoever tidies may have taken the file away before it was locked.
        for _ in 0..100 {
            let lock = File::create(&path)?;
            lock.lock()?;
            if File::open(&path)
                .is_ok_and(|there| matches!(there.try_lock_shared(), Err(TryLockError::WouldBlock)))
            {
                return Ok(Self {
                    id,
                    shown: Some(Shown { path, lock }),
                });
            }
        }
        Err(io::Error::other(
            "the file that shows that this process lives is taken away again and again",
        ))
    }

    /// One who writes nothing.
    pub(crate) fn nobody() -> Self {
        Self {
            id: String::new(),
            shown: None,
        }
    }

    /// What shows that it lives, to be held by others as well.
    #[cfg(unix)]
    pub(crate) fn hold(&self) -> io::Result<std::os::fd::OwnedFd> {
        let shown = self
            .shown
            .as_ref()
            .ok_or_else(|| io::Error::other("the journal is only read"))?;
        Ok(shown.lock.try_clone()?.into())
    }

    /// Whether the owner of this id, or something it started, lives.
    pub(crate) fn is_alive(folder: &Path, id: &str) -> bool {
        match File::open(folder.join(id)) {
            Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
            // Where it cannot be found out, nothing is taken from anybody.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(shown) = &self.shown {
            // One that is left is known to be dead by its lock.
            let _ = std::fs::remove_file(&shown.path);
        }
    }
}
