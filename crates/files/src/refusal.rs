//! Why a file is not read.

use std::io;
use std::path::{Path, PathBuf};

/// A file that exists and is not read.
#[derive(Debug, thiserror::Error)]
#[error("{} is not read: {reason}", path.display())]
pub struct FileRefusal {
    /// Path of the file, as it was looked up.
    pub path: PathBuf,
    /// Why it is not read.
    pub reason: RefusalReason,
}

/// Why a file is not read. Displayed as a clause that follows the file's name and a colon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefusalReason {
    /// A link in its path leads out of the project.
    #[error("it is a link that leaves the project")]
    LeavesProject,
    /// It is a folder, a pipe, a socket or a device.
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    /// It is larger than the limit.
    #[error("it is larger than {} KB", max_bytes >> 10)]
    TooLarge {
        /// The limit, in bytes.
        max_bytes: usize,
    },
    /// Together with the files read before it, it is larger than the limit.
    #[error("it and the files before it are together larger than {} KB", max_bytes >> 10)]
    TotalTooLarge {
        /// The limit, in bytes.
        max_bytes: usize,
    },
    /// It is, or is a hard link to, a file with credentials.
    #[error("it holds credentials")]
    Credentials,
    /// It is in a proc file system, which exposes processes and their environment.
    #[error("it exposes processes and their environment")]
    ProcFile,
    /// It is not UTF-8 text.
    #[error("it is not UTF-8 text")]
    NotText,
    /// The system does not let it be read.
    #[error("{0}")]
    Unreadable(io::Error),
}

impl FileRefusal {
    pub(crate) fn new(path: &Path, reason: RefusalReason) -> Self {
        Self {
            path: path.to_owned(),
            reason,
        }
    }
}

impl From<io::Error> for RefusalReason {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}
