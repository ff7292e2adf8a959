//! A file at one moment: metadata and content.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Workspace;

/// The largest file, in bytes, whose content is stored and shown.
pub(super) const MAX_FILE_BYTES: u64 = 1_000_000;

/// The coarsest timestamp resolution of a file system: two writes within it may have the same time.
const MAX_TIMESTAMP_RESOLUTION: Duration = Duration::from_secs(2);

/// A file or a symbolic link at one moment.
#[derive(Debug)]
pub(super) struct TrackedFile {
    pub(super) stat: FileStat,
    pub(super) content: TrackedContent,
    /// Whether the file changed so shortly before it was read that a later write may leave the same
    /// timestamp.
    pub(super) recently_modified: bool,
}

/// Seconds and nanoseconds since the Unix epoch.
type FileTimestamp = (i64, i64);

/// The metadata of a file. If it is equal at two moments, the file is unchanged, unless it was
/// `recently_modified` at the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileStat {
    pub(super) kind: TrackedFileKind,
    pub(super) size: u64,
    pub(super) modified: FileTimestamp,
    /// Time of the last change to the inode (ctime), which programs cannot set, unlike `modified`.
    changed: FileTimestamp,
    pub(super) device: u64,
    pub(super) inode: u64,
    mode: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrackedFileKind {
    File,
    Link,
}

/// The content of a file, or the target of a link.
#[derive(Debug, Clone)]
pub(super) enum TrackedContent {
    Known(Vec<u8>),
    Unknown(UnknownContentReason),
}

/// Why a content is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownContentReason {
    /// The file is larger than `MAX_FILE_BYTES`.
    TooLarge,
    /// The limit on all contents together was reached.
    TotalLimitReached,
    Unreadable,
}

impl TrackedFile {
    /// Reads the current state of a path; `None` if it is neither a file nor a link.
    pub(super) fn read(workspace: &Workspace, path: &Path) -> Option<Self> {
        let read_at = SystemTime::now();
        let stat = FileStat::from_metadata(&path.symlink_metadata().ok()?)?;
        let content = TrackedContent::read(workspace, path, &stat);
        Some(Self {
            recently_modified: stat.is_recently_modified(read_at),
            stat,
            content,
        })
    }

    /// Whether both have the same content. Unknown contents are compared by size and modification
    /// time.
    pub(super) fn has_same_content(&self, other: &Self) -> bool {
        match (self.content.bytes(), other.content.bytes()) {
            (Some(own), Some(other)) => own == other,
            _ => (self.stat.size, self.stat.modified) == (other.stat.size, other.stat.modified),
        }
    }
}

impl FileStat {
    /// Returns `None` if the metadata is of neither a file nor a symbolic link.
    pub(super) fn from_metadata(metadata: &Metadata) -> Option<Self> {
        let kind = match metadata.file_type() {
            kind if kind.is_file() => TrackedFileKind::File,
            kind if kind.is_symlink() => TrackedFileKind::Link,
            _ => return None,
        };
        Some(Self {
            kind,
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            device: metadata.dev(),
            inode: metadata.ino(),
            mode: metadata.mode(),
        })
    }

    /// Returns the file mode in git's notation.
    pub(super) fn git_mode(&self) -> &'static str {
        match self.kind {
            TrackedFileKind::Link => "120000",
            TrackedFileKind::File if self.mode & 0o100 != 0 => "100755",
            TrackedFileKind::File => "100644",
        }
    }

    /// Whether the file changed at `read_at` or shortly before.
    pub(super) fn is_recently_modified(&self, read_at: SystemTime) -> bool {
        let settled = read_at
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .saturating_sub(MAX_TIMESTAMP_RESOLUTION);
        let settled = (settled.as_secs() as i64, i64::from(settled.subsec_nanos()));
        self.modified.max(self.changed) >= settled
    }
}

impl TrackedContent {
    pub(super) fn read(workspace: &Workspace, path: &Path, stat: &FileStat) -> Self {
        match stat.kind {
            TrackedFileKind::Link => match std::fs::read_link(path) {
                Ok(target) => Self::Known(target.into_os_string().into_vec()),
                Err(_) => Self::Unknown(UnknownContentReason::Unreadable),
            },
            TrackedFileKind::File if stat.size > MAX_FILE_BYTES => {
                Self::Unknown(UnknownContentReason::TooLarge)
            }
            TrackedFileKind::File => {
                let Ok(file) = workspace.open_file(path) else {
                    return Self::Unknown(UnknownContentReason::Unreadable);
                };
                let mut bytes = Vec::with_capacity(stat.size as usize + 1);
                // The file may have grown since its size was read.
                match file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes) {
                    Ok(read) if read as u64 > MAX_FILE_BYTES => {
                        Self::Unknown(UnknownContentReason::TooLarge)
                    }
                    Ok(_) => Self::Known(bytes),
                    Err(_) => Self::Unknown(UnknownContentReason::Unreadable),
                }
            }
        }
    }

    /// Returns the content; `None` if it is unknown.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Known(bytes) => Some(bytes),
            Self::Unknown(_) => None,
        }
    }
}
