//! [`OtherWorkspaces`]: the workspaces of other sessions, which can change while tools run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A function that returns the folders as they are now.
type ListFolders = dyn Fn() -> Vec<PathBuf> + Send + Sync;

/// The workspaces of other sessions. They are listed again for each path that is checked and each
/// command that is started.
#[derive(Clone, Default)]
pub struct OtherWorkspaces(Option<Arc<ListFolders>>);

impl OtherWorkspaces {
    /// The canonical folders that a function returns.
    pub fn listed_by(list: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(list)))
    }

    /// Returns those that exist, except the workspace `root` and folders above it, which would make
    /// it read-only.
    pub(crate) fn around(&self, root: &Path) -> Vec<PathBuf> {
        let mut folders = self.0.as_ref().map(|list| list()).unwrap_or_default();
        folders.retain(|folder| folder.is_dir() && !root.starts_with(folder));
        folders
    }
}

impl fmt::Debug for OtherWorkspaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherWorkspaces").finish_non_exhaustive()
    }
}
