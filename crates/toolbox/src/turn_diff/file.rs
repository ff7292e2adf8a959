//! One file at one moment: what the system says of it, and what it holds.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Workspace;

/// Bytes of the largest file that is kept and shown.
pub(super) const MAX_FILE: u64 = 1_000_000;

/// The coarsest clock of a file system: two writes within it may bear the same time.
const COARSEST_CLOCK: Duration = Duration::from_secs(2);

/// A file or a symbolic link.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) stat: Stat,
    pub(super) content: Content,
    /// Written so shortly before it was looked at that its time may not tell the next write.
    pub(super) fresh: bool,
}

/// Seconds and nanoseconds since 1970.
type Time = (i64, i64);

/// What the system says of it. Two that are equal are the same file, untouched, unless it was fresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) modified: Time,
    /// When anything of it was changed; unlike `modified`, programs cannot set it.
    changed: Time,
    pub(super) device: u64,
    pub(super) inode: u64,
    mode: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Link,
}

/// What it holds; for a link, where it leads.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Known(Vec<u8>),
    Unknown(Why),
}

/// Why a content is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The file is larger than `MAX_FILE`.
    TooLarge,
    /// All files together are too many or too large.
    NoRoom,
    Unreadable,
}

impl Held {
    /// What is there now; `None` if that is neither a file nor a link.
    pub(super) fn read(workspace: &Workspace, path: &Path) -> Option<Self> {
        let looked = SystemTime::now();
        let stat = Stat::of(&path.symlink_metadata().ok()?)?;
        let content = Content::read(workspace, path, &stat);
        Some(Self {
            fresh: stat.is_fresh(looked),
            stat,
            content,
        })
    }

    /// Whether both hold the same; of what is not known, the system's word is taken.
    pub(super) fn same_content(&self, other: &Self) -> bool {
        match (self.content.bytes(), other.content.bytes()) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => (self.stat.size, self.stat.modified) == (other.stat.size, other.stat.modified),
        }
    }
}

impl Stat {
    pub(super) fn of(metadata: &Metadata) -> Option<Self> {
        let kind = match metadata.file_type() {
            kind if kind.is_file() => Kind::File,
            kind if kind.is_symlink() => Kind::Link,
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

    /// The three modes git knows.
    pub(super) fn git_mode(&self) -> &'static str {
        match self.kind {
            Kind::Link => "120000",
            Kind::File if self.mode & 0o100 != 0 => "100755",
            Kind::File => "100644",
        }
    }

    /// Whether it was written at `looked` or only just before.
    pub(super) fn is_fresh(&self, looked: SystemTime) -> bool {
        let settled = looked
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .saturating_sub(COARSEST_CLOCK);
        let settled = (settled.as_secs() as i64, i64::from(settled.subsec_nanos()));
        self.modified.max(self.changed) >= settled
    }
}

impl Content {
    pub(super) fn read(workspace: &Workspace, path: &Path, stat: &Stat) -> Self {
        match stat.kind {
            Kind::Link => match std::fs::read_link(path) {
                Ok(target) => Self::Known(target.into_os_string().into_vec()),
                Err(_) => Self::Unknown(Why::Unreadable),
            },
            Kind::File if stat.size > MAX_FILE => Self::Unknown(Why::TooLarge),
            Kind::File => {
                let Ok(file) = workspace.open_file(path) else {
                    return Self::Unknown(Why::Unreadable);
                };
                let mut bytes = Vec::with_capacity(stat.size as usize + 1);
                // It may have grown since it was looked at.
                match file.take(MAX_FILE + 1).read_to_end(&mut bytes) {
                    Ok(read) if read as u64 > MAX_FILE => Self::Unknown(Why::TooLarge),
                    Ok(_) => Self::Known(bytes),
                    Err(_) => Self::Unknown(Why::Unreadable),
                }
            }
        }
    }

    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Known(bytes) => Some(bytes),
            Self::Unknown(_) => None,
        }
    }
}
