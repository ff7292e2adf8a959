//! [`ChangeTracker`]: reports the file changes of a turn.

use std::path::PathBuf;

use selvedge_protocol::TurnFileChanges;

/// Tracks the files that a turn changes.
pub trait ChangeTracker: Send + Sync {
    /// Called when a turn begins. The current state is the base of the diff.
    fn begin_turn(&self);

    /// Returns the changes since the turn began as a unified diff, which is empty if there are
    /// none. May block.
    fn diff(&self) -> String;

    /// Returns the files that changed since the turn began, with their contents, to be recorded for
    /// a revert. May block.
    fn changed_files(&self) -> TurnFileChanges {
        TurnFileChanges::default()
    }

    /// Returns the files of [`ChangeTracker::changed_files`] that tools of the turn wrote. The
    /// others may have been changed by another turn at the same time.
    fn files_written_by_tools(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}
