//! What a turn changed in the world, for whoever can tell.

/// Follows what a turn changes.
pub trait Changes: Send + Sync {
    /// A turn begins: how things are now is how they were.
    fn begin(&self);

    /// What has changed since, as a unified diff; empty where nothing has. May block.
    fn diff(&self) -> String;
}
