//! Shows the file changes of a turn, and reverts them if no file changed since.

use std::path::PathBuf;

use selvedge_protocol::{FileSnapshot, TurnFileChanges};
use thiserror::Error;

use crate::file_replacement::{
    FileReplacement, FileReplacementError, display_paths, find_protected, read_snapshot,
    replace_files,
};
use crate::preview::file_diff;
use crate::workspace::WorkspacePaths;

/// Why a turn could not be reverted. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RevertError {
    /// The contents of these files are not recorded.
    #[error(
        "not recorded, because too large, unreadable, or changed by a command while another \
         session worked in the folder: {}",
        display_paths(.0)
    )]
    NotRecorded(Vec<PathBuf>),
    /// The folder protects a file that changed during the turn.
    #[error("{} is protected: {reason}", path.display())]
    Protected {
        /// The file, relative to the folder.
        path: PathBuf,
        /// What protects it.
        reason: String,
    },
    /// A file changed since the turn, or cannot be written.
    #[error(transparent)]
    Files(#[from] FileReplacementError),
}

/// Returns the recorded changes of a turn as a unified diff.
pub fn changes_diff(changes: &TurnFileChanges) -> String {
    let files = changes.files.iter().map(|change| {
        let path = change.path.display().to_string();
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        let content = |file: Option<&FileSnapshot>| file.map(|file| file.content.clone());
        let (before, after) = (content(before), content(after));
        file_diff(&path, &path, before.as_deref(), after.as_deref())
    });
    files.collect()
}

/// Restores all files that a turn changed, or none of them. Returns the restored files, which are
/// none if the turn was reverted before. With `protection`, fails if the folder protects one of
/// them: then no person has decided to restore it.
pub fn revert_changes(
    changes: &TurnFileChanges,
    protection: Option<&WorkspacePaths>,
) -> Result<Vec<PathBuf>, RevertError> {
    if !changes.unrecorded.is_empty() {
        return Err(RevertError::NotRecorded(changes.unrecorded.clone()));
    }
    let replacements: Vec<FileReplacement> = changes
        .files
        .iter()
        .map(|change| FileReplacement {
            path: change.path.clone(),
            expected: change.after.clone(),
            target: change.before.clone(),
        })
        .collect();
    if is_reverted(changes)? {
        return Ok(Vec::new());
    }
    if let Some(paths) = protection {
        let folder = &changes.directory;
        let protected = find_protected(folder, paths, folder, &replacements)?;
        if let Some((path, reason)) = protected {
            return Err(RevertError::Protected { path, reason });
        }
    }
    replace_files(&changes.directory, &replacements)?;
    let paths = replacements.into_iter().map(|replaced| replaced.path);
    Ok(paths.collect())
}

/// Returns whether all files are as they were before the turn. Fails if a file cannot be read.
pub fn is_reverted(changes: &TurnFileChanges) -> Result<bool, RevertError> {
    let mut is_reverted = true;
    for change in &changes.files {
        let now = read_snapshot(&changes.directory, &change.path)?;
        is_reverted &= now == change.before;
    }
    Ok(is_reverted)
}
