//! The files that a turn changed, recorded so that the turn can be reverted.

use std::path::PathBuf;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::SessionError;

/// Number of turns of a session whose changes are kept. Those of older turns are removed.
pub const MAX_RECORDED_TURNS: u32 = 50;

/// Stores the file changes of turns. When a future returns `Ok`, the change survives a crash of
/// this process.
#[async_trait]
pub trait TurnChangeStore: Send + Sync {
    /// Stores the changes of a turn, and removes those of turns before the last
    /// [`MAX_RECORDED_TURNS`] with changes.
    async fn record_changes(
        &self,
        session: &str,
        turn: u32,
        changes: TurnFileChanges,
    ) -> Result<(), SessionError>;
    /// Returns the changes of a turn with its number; without a number, of the last turn that
    /// changed files. `None` if none are stored.
    async fn recorded_changes(
        &self,
        session: &str,
        turn: Option<u32>,
    ) -> Result<Option<(u32, TurnFileChanges)>, SessionError>;
    /// Returns the turns whose changes are stored, in order, each with its number of files.
    async fn changed_turns(&self, session: &str) -> Result<Vec<(u32, u32)>, SessionError>;
}

/// The files that a turn changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TurnFileChanges {
    /// Folder that the paths are relative to.
    pub directory: PathBuf,
    /// The changed files.
    pub files: Vec<TurnFileChange>,
    /// Changed files whose content is not recorded, because they are too large, or because another
    /// session may have changed them.
    pub unrecorded: Vec<PathBuf>,
}

impl TurnFileChanges {
    /// Keeps the contents of these files only. The others stay as files that are not recorded.
    pub fn record_only(&mut self, paths: &[PathBuf]) {
        let is_kept = |change: &mut TurnFileChange| paths.contains(&change.path);
        let other = self.files.extract_if(.., |change| !is_kept(change));
        self.unrecorded.extend(other.map(|change| change.path));
    }

    /// Adds changes that were made after these ones, in the same turn. A file that is as it was
    /// before both is no change.
    pub fn followed_by(mut self, later: Self) -> Self {
        if self.directory != later.directory {
            return later;
        }
        for change in later.files {
            let earlier = self.files.iter().position(|one| one.path == change.path);
            let before = match earlier {
                Some(at) => self.files.remove(at).before,
                None => change.before,
            };
            if before != change.after {
                self.files.push(TurnFileChange { before, ..change });
            }
        }
        self.files
            .retain(|change| !later.unrecorded.contains(&change.path));
        for path in later.unrecorded {
            if !self.unrecorded.contains(&path) {
                self.unrecorded.push(path);
            }
        }
        self
    }
}

/// A file that a turn changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnFileChange {
    /// Relative to the folder.
    pub path: PathBuf,
    /// The file before the turn. `None` if it did not exist.
    pub before: Option<FileSnapshot>,
    /// The file after the turn. `None` if it does not exist.
    pub after: Option<FileSnapshot>,
}

/// A file or a symbolic link at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSnapshot {
    /// What it is.
    pub kind: FileSnapshotKind,
    /// The content, or the target of the link.
    pub content: Vec<u8>,
}

/// What a [`FileSnapshot`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileSnapshotKind {
    /// A file that cannot be executed.
    File,
    /// A file that can be executed.
    Executable,
    /// A symbolic link.
    Link,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_changes_of_a_turn_keep_the_first_state() {
        let file = |text: &str| {
            Some(FileSnapshot {
                kind: FileSnapshotKind::File,
                content: text.into(),
            })
        };
        let change = |path: &str, before, after| TurnFileChange {
            path: path.into(),
            before,
            after,
        };
        let changes = |files, unrecorded: &[&str]| TurnFileChanges {
            directory: "/w".into(),
            files,
            unrecorded: unrecorded.iter().map(PathBuf::from).collect(),
        };
        let earlier = vec![
            change("a", file("1"), file("2")),
            change("b", None, file("b")),
            change("c", file("c"), None),
            change("large", file("c"), None),
        ];
        let later = vec![
            change("a", file("2"), file("3")),
            change("b", file("b"), None),
            change("d", None, file("d")),
        ];
        let both = changes(earlier, &["x"]).followed_by(changes(later, &["x", "large"]));
        let expected = vec![
            change("c", file("c"), None),
            change("a", file("1"), file("3")),
            change("d", None, file("d")),
        ];
        assert_eq!(both, changes(expected, &["x", "large"]));
    }
}
