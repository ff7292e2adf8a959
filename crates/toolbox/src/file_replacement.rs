//! Replaces several files at once, each only if it is still as expected: applies the changes of a
//! worktree, and reverts those of a turn.

use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use cap_std::fs::{MetadataExt, OpenOptions, OpenOptionsExt};
use selvedge_protocol::{FileSnapshot, FileSnapshotKind, SandboxPolicy};
use thiserror::Error;

use crate::commit::{FileWrite, commit};
use crate::parent_folders::ParentFolders;
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
    let parents = ParentFolders::open(workspace.root());
    let mut parents = parents.map_err(|error| cannot_open(folder, &error))?;
    for replacement in replacements {
        let target = open_target(&workspace, &replacement.path)?;
        if snapshot_of(&target)? != replacement.expected {
            changed.push(replacement.path.clone());
        }
        if let (Some(_), None) = (&replacement.expected, &replacement.target) {
            // A folder that was replaced meanwhile is not removed.
            let _ = parents.add(&replacement.path, &target.dir);
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
    parents.remove_empty();
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
    let workspace = workspace.map_err(|error| cannot_open(root, &error))?;
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
    let workspace = workspace.map_err(|error| cannot_open(folder, &error))?;
    match workspace.root() == folder {
        true => Ok(workspace),
        false => Err(FileReplacementError::NotWritable(format!(
            "the folder {} now leads to another one",
            folder.display()
        ))),
    }
}

fn cannot_open(folder: &Path, error: &io::Error) -> FileReplacementError {
    FileReplacementError::NotWritable(format!("cannot open {}: {error}", folder.display()))
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
    // If the file was replaced meanwhile, a link is not followed and a pipe does not block.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits() as i32);
    let file = target.dir.open_with(&target.name, &options);
    let file = file.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mut content = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content);
    read.map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no file")));
    }
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(failed(io::Error::other("it is larger than 64 MB")));
    }
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
    use std::fs::File;

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

    /// Calls `act` until it returns false, while another thread exchanges two paths.
    fn while_exchanging(one: &Path, other: &Path, mut act: impl FnMut() -> bool) {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let empty = Err(std::sync::mpsc::TryRecvError::Empty);
                while stopped.try_recv() == empty {
                    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                }
            });
            while act() {}
            drop(stop);
        });
    }

    /// Another process exchanges the folder of a deleted file with a link all the time.
    #[test]
    fn no_folder_is_removed_through_a_link() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (folder, link) = (dir.path().join("g"), dir.path().join("link"));
        let empty = outside.path().join("empty");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("kept"), "").unwrap();
        std::fs::create_dir(&empty).unwrap();
        std::os::unix::fs::symlink(outside.path(), &link).unwrap();
        let real = cap_std::fs::Dir::from_std_file(File::open(&folder).unwrap());
        let deletion = [replacement("g/empty/x", file("x"), None)];
        let mut deleted = 0;
        while_exchanging(&folder, &link, || {
            real.create_dir_all("empty").unwrap();
            real.write("empty/x", "x").unwrap();
            deleted += u32::from(replace_files(dir.path(), &deletion).is_ok());
            assert!(empty.exists(), "removed with deletion {deleted}");
            deleted < 50
        });
    }

    /// Another process exchanges a small file with a large one all the time.
    #[test]
    fn a_file_is_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let (small, large) = (dir.path().join("small"), dir.path().join("large"));
        std::fs::write(&small, "x").unwrap();
        let file = File::create(&large).unwrap();
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        let mut results = [0, 0];
        while_exchanging(&small, &large, || {
            let content = read_snapshot(dir.path(), Path::new("small"));
            let read = content.map(|file| file.unwrap().content.len());
            match read {
                Ok(bytes) => assert_eq!(bytes, 1),
                Err(ref error) => assert!(error.to_string().ends_with("larger than 64 MB")),
            }
            results[usize::from(read.is_err())] += 1;
            results.iter().any(|count| *count < 5)
        });
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
