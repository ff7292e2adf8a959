//! What the index may see of a workspace.

use std::ffi::OsStr;
use std::path::Path;

use selvedge_files::FileRefusal;

/// Whether a scan leaves out an entry: a path, and whether it is a folder.
pub type ScanFilter = Box<dyn Fn(&Path, bool) -> bool + Send + Sync>;

/// Decides which files of a workspace the index sees, and reads them.
pub trait DocumentAccess: Send + Sync {
    /// Returns the filter of a new scan. Ignore rules may have changed since the last one.
    fn scan_filter(&self) -> ScanFilter;

    /// Whether a file of this name changes what the filter leaves out, such as `.gitignore`.
    fn is_rule_file(&self, name: &OsStr) -> bool;

    /// Reads a text file without blocking, or returns `None` if it does not exist. Refuses files
    /// that are larger than `max_bytes`, that lie outside of the workspace or hold credentials.
    fn read_text(&self, path: &Path, max_bytes: usize) -> Result<Option<String>, FileRefusal>;
}
