//! Files that are never read as files of a project.

#[cfg(unix)]
use std::collections::HashSet;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::sync::OnceLock;
use std::sync::{Arc, LazyLock};

/// Maximum number of entries of folders with credentials that are compared with a hard link.
#[cfg(unix)]
const MAX_COMPARED_ENTRIES: usize = 10_000;

type PathCollector = Box<dyn FnOnce() -> Vec<PathBuf> + Send>;

/// Canonical paths of files and folders with credentials, collected when a file is first compared
/// with them. Clones share what is known about them.
#[derive(Debug, Clone)]
pub struct CredentialFiles {
    paths: Arc<LazyLock<Vec<PathBuf>, PathCollector>>,
    /// The files at and below the paths that have further hard links, collected at first use.
    #[cfg(unix)]
    linked: Arc<OnceLock<LinkedCredentials>>,
}

/// The credential files that have further hard links.
#[cfg(unix)]
#[derive(Debug)]
enum LinkedCredentials {
    /// Their device and inode numbers.
    Known(HashSet<(u64, u64)>),
    /// There are too many files to look at.
    TooMany,
}

/// Takes no file as credentials.
impl Default for CredentialFiles {
    fn default() -> Self {
        Self::new(Vec::new)
    }
}

impl CredentialFiles {
    /// Takes the files that `collect` returns, and everything below its folders, as credentials.
    pub fn new(collect: impl FnOnce() -> Vec<PathBuf> + Send + 'static) -> Self {
        Self {
            paths: Arc::new(LazyLock::new(Box::new(collect))),
            #[cfg(unix)]
            linked: Arc::default(),
        }
    }

    /// Whether a file holds credentials: by its canonical path, or because it is a hard link to
    /// such a file.
    pub(crate) fn contains(&self, path: &Path, metadata: &Metadata) -> bool {
        let mut paths = self.paths.iter();
        paths.any(|known| path.starts_with(known)) || self.is_hard_link_to_any(metadata)
    }

    #[cfg(unix)]
    fn is_hard_link_to_any(&self, metadata: &Metadata) -> bool {
        use std::os::unix::fs::MetadataExt;
        if metadata.nlink() < 2 {
            return false;
        }
        match self.linked.get_or_init(|| self.collect_linked()) {
            LinkedCredentials::Known(files) => files.contains(&(metadata.dev(), metadata.ino())),
            // If too much would have to be compared, the file counts as one of them: a file of a
            // project seldom has hard links, so little is lost.
            LinkedCredentials::TooMany => true,
        }
    }

    #[cfg(unix)]
    fn collect_linked(&self) -> LinkedCredentials {
        use std::os::unix::fs::MetadataExt;
        let mut files = HashSet::new();
        let mut left = MAX_COMPARED_ENTRIES;
        let mut paths: Vec<PathBuf> = self.paths.to_vec();
        while let Some(path) = paths.pop() {
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => return LinkedCredentials::TooMany,
            };
            let Ok(found) = path.symlink_metadata() else {
                continue;
            };
            if found.is_dir() {
                let entries = path.read_dir().into_iter().flatten().flatten();
                paths.extend(entries.take(MAX_COMPARED_ENTRIES).map(|entry| entry.path()));
            } else if found.nlink() > 1 {
                files.insert((found.dev(), found.ino()));
            }
        }
        LinkedCredentials::Known(files)
    }

    #[cfg(not(unix))]
    fn is_hard_link_to_any(&self, _: &Metadata) -> bool {
        false
    }
}
