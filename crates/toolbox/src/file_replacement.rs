//! Replaces several files at once, each only if it is still as expected: applies the changes of a
//! worktree, and reverts those of a turn.

use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use cap_std::fs::{MetadataExt, OpenOptions, OpenOptionsExt};
use selvedge_protocol::{FileSnapshot, FileSnapshotKind, SandboxPolicy};
use thiserror::Error;

use crate::commit::{FileWrite, commit};
use crate::target_file::{FileMode, LinkMode, TargetFile};
use crate::workspace::{Workspace, WorkspacePaths};

/// Largest file that is replaced, in bytes. Several of them are in memory at once.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A new content for a file, which is written only if the file is still as expected.
#[derive(Debug, Clone, PartialEq)]
pub struct FileReplacement {
    /// Relative to the folder.
    pub path: PathBuf,
    /// What the file has to be now. `None` if it does not exist.
    pub expected: Option<FileSnapshot>,
    /// What the file becomes. `None` deletes it.
    pub target: Option<FileSnapshot>,
}

/// Why files could not be replaced. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileReplacementError {
    /// These files are not as expected.
    #[error("{} changed since: {}", count_files(.0.len()), display_paths(.0))]
    Changed(Vec<PathBuf>),
    /// A file cannot be read or written.
    #[error("{0}")]
    NotWritable(String),
}

/// Replaces all files below a folder, or none of them.
pub fn replace_files(
    folder: &Path,
    replacements: &[FileReplacement],
) -> Result<(), FileReplacementError> {
    let workspace = open_folder(folder)?;
    let _lock = workspace.lock_changes();
    let mut targets = Vec::with_capacity(replacements.len());
    let mut changed = Vec::new();
    for replacement in replacements {
        let target = open_target(&workspace, &replacement.path)?;
        if snapshot_of(&target)? != replacement.expected {
            changed.push(replacement.path.clone());
        }
        targets.push(target);
    }
    if !changed.is_empty() {
        return Err(FileReplacementError::Changed(changed));
    }
    let writes: Vec<FileWrite<'_>> = targets
        .iter()
        .zip(replacements)
        .filter(|(_, replacement)| replacement.expected != replacement.target)
        .map(|(target_file, replacement)| FileWrite {
            target_file,
            content: replacement.target.as_ref().map(|target| {
                let mode = file_mode(target_file, target.kind);
                (target.content.as_slice(), mode)
            }),
        })
        .collect();
    commit(&writes).map_err(|error| FileReplacementError::NotWritable(error.message))?;
    for deleted in replacements.iter().filter(|one| one.target.is_none()) {
        remove_empty_parents(workspace.root(), &deleted.path);
    }
    Ok(())
}

/// Returns the first of the files below `folder` that a workspace at `root` protects with the rules
/// of `paths`, and why.
pub(crate) fn find_protected(
    root: &Path,
    paths: &WorkspacePaths,
    folder: &Path,
    replacements: &[FileReplacement],
) -> Result<Option<(PathBuf, String)>, FileReplacementError> {
    let workspace = Workspace::open_with_paths(root, SandboxPolicy::WorkspaceWrite, paths);
    let workspace = workspace.map_err(|error| {
        FileReplacementError::NotWritable(format!("cannot open {}: {error}", root.display()))
    })?;
    let protected = workspace.protected_paths();
    Ok(replacements
        .iter()
        .find_map(|FileReplacement { path, target, .. }| {
            let full = folder.join(path);
            // A link in the place of a missing folder would lead to other files.
            let is_above = || protected.iter().any(|below| below.starts_with(&full));
            let above = || "a protected path lies below it".to_owned();
            let reason = workspace.protection_reason(&full);
            let reason = reason.or_else(|| (target.is_some() && is_above()).then(above))?;
            Some((path.clone(), reason))
        }))
}

/// Returns the current state of a file below a folder. `None` if it does not exist.
pub(crate) fn read_snapshot(
    folder: &Path,
    path: &Path,
) -> Result<Option<FileSnapshot>, FileReplacementError> {
    snapshot_of(&open_target(&open_folder(folder)?, path)?)
}

/// Opens a folder. Fails if it has become a link, which may lead to a folder that must not be
/// changed.
fn open_folder(folder: &Path) -> Result<Workspace, FileReplacementError> {
    // A person decided about the files, so no name is protected from the change.
    let workspace = Workspace::open(folder, SandboxPolicy::DangerFullAccess, &[]);
    let workspace = workspace.map_err(|error| {
        FileReplacementError::NotWritable(format!("cannot open {}: {error}", folder.display()))
    })?;
    match workspace.root() == folder {
        true => Ok(workspace),
        false => Err(FileReplacementError::NotWritable(format!(
            "the folder {} now leads to another one",
            folder.display()
        ))),
    }
}

/// Opens the folder of a file. Fails if a folder on the way is a link, or the path leaves the
/// workspace.
fn open_target(workspace: &Workspace, path: &Path) -> Result<TargetFile, FileReplacementError> {
    let refused = |why: &str| {
        let message = format!("{} cannot be written: {why}", path.display());
        FileReplacementError::NotWritable(message)
    };
    let is_plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || path.as_os_str().is_empty() {
        return Err(refused("the path is not below the folder"));
    }
    let full = workspace.root().join(path);
    let target = workspace
        .target_file(&full, LinkMode::NoFollow)
        .map_err(|error| FileReplacementError::NotWritable(error.message))?;
    match target.real_path() == full {
        true => Ok(target),
        false => Err(refused("a folder above it is a symbolic link")),
    }
}

fn snapshot_of(target: &TargetFile) -> Result<Option<FileSnapshot>, FileReplacementError> {
    let failed = |error: io::Error| {
        let message = format!("{} cannot be read: {error}", target.display_path);
        FileReplacementError::NotWritable(message)
    };
    if !target.missing_dirs.is_empty() {
        return Ok(None);
    }
    let metadata = match target.dir.symlink_metadata(&target.name) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if metadata.is_symlink() {
        let link = target.dir.read_link_contents(&target.name);
        return Ok(Some(FileSnapshot {
            kind: FileSnapshotKind::Link,
            content: link.map_err(failed)?.into_os_string().into_vec(),
        }));
    }
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no file")));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(failed(io::Error::other("it is larger than 64 MB")));
    }
    // If the file was replaced meanwhile, a link is not followed and a pipe does not block.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits() as i32);
    let file = target.dir.open_with(&target.name, &options);
    let mut content = Vec::new();
    file.and_then(|mut file| file.read_to_end(&mut content))
        .map_err(failed)?;
    Ok(Some(FileSnapshot {
        kind: match metadata.mode() & 0o100 {
            0 => FileSnapshotKind::File,
            _ => FileSnapshotKind::Executable,
        },
        content,
    }))
}

/// Returns the mode of the new file: that of the existing one, with or without permission to
/// execute.
fn file_mode(target: &TargetFile, kind: FileSnapshotKind) -> FileMode {
    let executable = match kind {
        FileSnapshotKind::Link => return FileMode::Link,
        FileSnapshotKind::File => false,
        FileSnapshotKind::Executable => true,
    };
    let existing = match target.is_link() {
        true => None,
        false => target.existing_mode().ok().flatten(),
    };
    let mode = existing.unwrap_or(FileMode::New { executable });
    match mode.is_executable() == executable {
        true => mode,
        false => mode.with_executable(executable),
    }
}

/// Removes the folders above a deleted file that are empty now.
fn remove_empty_parents(root: &Path, path: &Path) {
    for parent in path.ancestors().skip(1) {
        let is_root = parent.as_os_str().as_bytes().is_empty();
        if is_root || std::fs::remove_dir(root.join(parent)).is_err() {
            return;
        }
    }
}

fn count_files(count: usize) -> String {
    match count {
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    }
}

/// Returns paths for a message.
pub(crate) fn display_paths(paths: &[PathBuf]) -> String {
    let shown = paths.iter().map(|path| path.display().to_string());
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Option<FileSnapshot> {
        Some(FileSnapshot {
            kind: FileSnapshotKind::File,
            content: text.into(),
        })
    }

    fn link(target: &str) -> Option<FileSnapshot> {
        Some(FileSnapshot {
            kind: FileSnapshotKind::Link,
            content: target.into(),
        })
    }

    fn replacement(
        path: &str,
        expected: Option<FileSnapshot>,
        target: Option<FileSnapshot>,
    ) -> FileReplacement {
        FileReplacement {
            path: path.into(),
            expected,
            target,
        }
    }

    #[test]
    fn all_files_are_replaced_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| read_snapshot(dir.path(), Path::new(name)).unwrap();
        let executable = FileSnapshot {
            kind: FileSnapshotKind::Executable,
            content: b"run".to_vec(),
        };
        std::fs::write(dir.path().join("a"), "1").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let changes = [
            replacement("a", file("1"), Some(executable.clone())),
            replacement("link", link("a"), file("plain")),
            replacement("new/deep/b", None, link("../a")),
            replacement("c", None, file("c")),
        ];
        let mut wrong = changes.to_vec();
        wrong[3].expected = file("c");
        let error = replace_files(dir.path(), &wrong).unwrap_err();
        assert_eq!(error.to_string(), "1 file changed since: c");
        assert_eq!((read("a"), read("link")), (file("1"), link("a")));
        assert!(!dir.path().join("new").exists());

        replace_files(dir.path(), &changes).unwrap();
        assert_eq!(read("a"), Some(executable));
        assert_eq!(read("link"), file("plain"));
        assert_eq!(read("new/deep/b"), link("../a"));

        let back: Vec<FileReplacement> = changes
            .into_iter()
            .map(|change| FileReplacement {
                expected: change.target,
                target: change.expected,
                ..change
            })
            .collect();
        replace_files(dir.path(), &back).unwrap();
        assert_eq!((read("a"), read("link")), (file("1"), link("a")));
        let names = std::fs::read_dir(dir.path()).unwrap();
        assert_eq!(
            names.count(),
            2,
            "no temporary file or empty folder is left"
        );
    }

    #[test]
    fn no_path_leaves_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
        for path in ["out/x", "../x", "/x", ""] {
            let error = replace_files(dir.path(), &[replacement(path, None, file("x"))]);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("cannot be written"), "{path}: {error}");
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
