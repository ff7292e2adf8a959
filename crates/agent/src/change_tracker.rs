//! [`ChangeTracker`]: reports the file changes of a turn.

/// Tracks the files that a turn changes.
pub trait ChangeTracker: Send + Sync {
    /// Called when a turn begins. The current state is the base of the diff.
    fn begin_turn(&self);

    /// Returns the changes since the turn began as a unified diff, which is empty if there are
    /// none. May block.
    fn diff(&self) -> String;
}
