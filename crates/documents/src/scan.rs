//! Scans a workspace for documents: names and stamps, without reading the files.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::MAX_DOCUMENT_BYTES;
use crate::access::ScanFilter;
use crate::globs::DocumentGlobs;
use crate::watch::FolderWatch;

/// Maximum number of documents.
pub(crate) const MAX_DOCUMENTS: usize = 50_000;
/// Maximum number of files and folders that one scan looks at.
const MAX_ENTRIES: usize = 400_000;
/// Maximum depth of folders.
const MAX_FOLDER_DEPTH: usize = 64;

/// What tells whether a file changed, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    modified: Option<SystemTime>,
    /// Device, inode and time of the last change of content or attributes, where they exist.
    identity: (u64, u64, i64, i64),
    pub(crate) size: u64,
}

/// Result of a scan.
#[derive(Debug, Default)]
pub(crate) struct ScanResult {
    /// Absolute paths of the documents, sorted.
    pub(crate) files: Vec<(PathBuf, FileStamp)>,
    /// Whether a limit ended the scan early.
    pub(crate) is_incomplete: bool,
}

impl FileStamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt;
            (
                metadata.dev(),
                metadata.ino(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            )
        };
        #[cfg(not(unix))]
        let identity = (0, 0, 0, 0);
        Self {
            modified: metadata.modified().ok(),
            identity,
            size: metadata.len(),
        }
    }

    /// Returns the size that counts for the limit of all documents.
    pub(crate) fn indexed_bytes(&self) -> u64 {
        self.size.min(MAX_DOCUMENT_BYTES as u64)
    }

    /// Whether the file was changed so shortly before `now` that a further change may leave the
    /// stamp as it is.
    pub(crate) fn is_recent(&self, now: SystemTime) -> bool {
        /// Coarsest time stamp of common file systems, in milliseconds.
        const MAX_STAMP_STEP_MS: u128 = 2_000;
        let age = self
            .modified
            .and_then(|modified| now.duration_since(modified).ok());
        age.is_none_or(|age| age.as_millis() < MAX_STAMP_STEP_MS)
    }
}

/// Finds the documents below a folder of the workspace `root`. Watches every folder that it enters,
/// before it reads it. Links are not followed.
pub(crate) fn scan(
    root: &Path,
    start: &Path,
    globs: &DocumentGlobs,
    is_left_out: &ScanFilter,
    mut watch: Option<&mut FolderWatch>,
) -> ScanResult {
    let mut result = ScanResult::default();
    let mut entries_left = MAX_ENTRIES;
    let depth = start
        .strip_prefix(root)
        .map_or(0, |path| path.components().count());
    let mut folders = vec![(start.to_owned(), depth)];
    while let Some((folder, depth)) = folders.pop() {
        if let Some(watch) = watch.as_deref_mut() {
            watch.add(&folder);
        }
        let Ok(entries) = folder.read_dir() else {
            continue;
        };
        let mut found: Vec<_> = entries.flatten().take(entries_left).collect();
        entries_left -= found.len();
        if entries_left == 0 {
            result.is_incomplete = true;
        }
        found.sort_by_key(std::fs::DirEntry::file_name);
        // The stack is taken from its end: the first folder goes there last.
        for entry in found.into_iter().rev() {
            let path = entry.path();
            let (Ok(kind), Ok(relative)) = (entry.file_type(), path.strip_prefix(root)) else {
                continue;
            };
            if kind.is_dir() {
                let is_entered = depth < MAX_FOLDER_DEPTH
                    && globs.may_contain(relative)
                    && !is_left_out(&path, true);
                if is_entered {
                    folders.push((path, depth + 1));
                }
            } else if kind.is_file()
                && globs.is_match(relative)
                && !is_left_out(&path, false)
                && let Ok(metadata) = entry.metadata()
            {
                result.files.push((path, FileStamp::of(&metadata)));
            }
        }
        if result.is_incomplete {
            break;
        }
    }
    result.files.sort_by(|a, b| a.0.cmp(&b.0));
    if result.files.len() > MAX_DOCUMENTS {
        result.files.truncate(MAX_DOCUMENTS);
        result.is_incomplete = true;
    }
    result
}
