//! Files that are never read as files of a project.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of entries of folders with credentials that are compared with a hard link.
#[cfg(unix)]
const MAX_COMPARED_ENTRIES: usize = 10_000;

/// Canonical paths of files and folders with credentials.
#[derive(Debug, Clone, Default)]
pub struct CredentialFiles(Arc<[PathBuf]>);

impl CredentialFiles {
    /// Takes these files, and everything below these folders, as credentials.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(paths.into_iter().collect())
    }

    /// Whether a file holds credentials: by its canonical path, or because it is a hard link to
    /// such a file.
    pub(crate) fn contains(&self, path: &Path, metadata: &Metadata) -> bool {
        self.0.iter().any(|known| path.starts_with(known)) || self.is_hard_link_to_any(metadata)
    }

    #[cfg(unix)]
    fn is_hard_link_to_any(&self, metadata: &Metadata) -> bool {
        use std::os::unix::fs::MetadataExt;
        if metadata.nlink() < 2 {
            return false;
        }
        let mut left = MAX_COMPARED_ENTRIES;
        let mut paths: Vec<PathBuf> = self.0.to_vec();
        while let Some(path) = paths.pop() {
            // If too much would have to be compared, the file counts as one of them: a file of a
            // project seldom has hard links, so little is lost.
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => return true,
            };
            let Ok(other) = path.symlink_metadata() else {
                continue;
            };
            if other.is_dir() {
                let entries = path.read_dir().into_iter().flatten().flatten();
                paths.extend(entries.take(MAX_COMPARED_ENTRIES).map(|entry| entry.path()));
            } else if (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()) {
                return true;
            }
        }
        false
    }

    #[cfg(not(unix))]
    fn is_hard_link_to_any(&self, _: &Metadata) -> bool {
        false
    }
}
