//! Writes several files atomically: either all of them change or none does. New contents are staged
//! in temporary files, which are then renamed into place. If one rename fails, the earlier ones are
//! rolled back.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::fchown;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt, Permissions, PermissionsExt};
use selvedge_tools::ToolError;

use crate::target_file::{FileMode, TargetFile, check_dir_path};

/// A new content for one file, or its deletion.
#[derive(Debug)]
pub(crate) struct FileWrite<'a> {
    pub(crate) target_file: &'a TargetFile,
    /// The new bytes and mode; `None` deletes the file.
    pub(crate) content: Option<(&'a [u8], FileMode)>,
}

/// Performs all writes. On failure, restores every file and returns the cause.
pub(crate) fn commit(writes: &[FileWrite<'_>]) -> Result<(), ToolError> {
    for target_file in writes
        .iter()
        .filter(|write| write.content.is_some())
        .map(|write| write.target_file)
    {
        let is_deleted = |path: &PathBuf| {
            writes
                .iter()
                .any(|write| write.content.is_none() && write.target_file.real_path() == *path)
        };
        if let Some(path) = target_file
            .blocking_file
            .as_ref()
            .filter(|path| !is_deleted(path))
        {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            return Err(ToolError::new(format!(
                "{} cannot be written: {file} is a file, not a folder",
                target_file.display_path
            )));
        }
    }
    let mut change = CommitTransaction::default();
    match change.execute(writes) {
        Ok(()) => {
            change.remove_backups();
            Ok(())
        }
        Err((target_file, error)) => Err(change.roll_back(target_file, &error)),
    }
}

/// The steps of one commit that have been done so far.
#[derive(Default)]
struct CommitTransaction {
    /// Temporary files that are not yet in place: folder and name.
    temp_files: Vec<(Arc<Dir>, OsString)>,
    steps: Vec<CommitStep>,
}

/// A completed step, with what is needed to undo it.
enum CommitStep {
    CreatedFolder {
        parent: Arc<Dir>,
        name: OsString,
    },
    CreatedFile {
        folder: Arc<Dir>,
        name: OsString,
    },
    /// The earlier file still exists, under the name `backup_name`.
    ReplacedFile {
        folder: Arc<Dir>,
        name: OsString,
        backup_name: OsString,
        shown: String,
    },
}

type SlotFailure<'a> = (&'a TargetFile, io::Error);

impl CommitTransaction {
    fn execute<'a>(&mut self, writes: &[FileWrite<'a>]) -> Result<(), SlotFailure<'a>> {
        let mut staged = Vec::new();
        for write in writes {
            let Some((bytes, mode)) = write.content else {
                continue;
            };
            let temporary = self
                .stage(&write.target_file.dir, bytes, mode)
                .map_err(|error| (write.target_file, error))?;
            staged.push((write.target_file, temporary, mode));
        }
        // Deletions come first: a new folder may need the name of a deleted file.
        for write in writes.iter().filter(|write| write.content.is_none()) {
            self.remove(write.target_file)
                .map_err(|error| (write.target_file, error))?;
        }
        for (target_file, temporary, mode) in staged {
            let is_replaced = mode == FileMode::Link || target_file.is_link();
            if is_replaced && target_file.exists() {
                // A link cannot be replaced in place.
                self.remove(target_file)
                    .map_err(|error| (target_file, error))?;
            }
            self.move_into_place(target_file, &temporary)
                .map_err(|error| (target_file, error))?;
        }
        let folders: BTreeMap<_, _> = writes
            .iter()
            .map(|write| (&write.target_file.dir_path, &write.target_file.dir))
            .collect();
        for folder in folders.into_values() {
            // Flushes the directory entries. Not every system supports this, and the contents are
            // already flushed, so errors are ignored.
            let _ = folder.open(".").and_then(|folder| folder.sync_all());
        }
        Ok(())
    }

    /// Writes content to a temporary file and flushes it to disk; returns its name.
    fn stage(&mut self, folder: &Arc<Dir>, bytes: &[u8], mode: FileMode) -> io::Result<OsString> {
        let mut options = OpenOptions::new();
        let permissions = match mode {
            FileMode::Link => {
                let target = OsStr::from_bytes(bytes);
                let link = |name: &OsStr| folder.symlink_contents(target, name);
                let (name, ()) = with_unused_name(link)?;
                self.temp_files.push((folder.clone(), name.clone()));
                return Ok(name);
            }
            FileMode::New { executable: true } => 0o777,
            FileMode::New { executable: false } => 0o666,
            FileMode::Existing { .. } => 0o600,
        };
        options.write(true).create_new(true).mode(permissions);
        let (name, mut file) = with_unused_name(|name| folder.open_with(name, &options))?;
        self.temp_files.push((folder.clone(), name.clone()));
        file.write_all(bytes)?;
        if let FileMode::Existing { bits, owner, group } = mode {
            // Set the owner first, because `fchown` clears permission bits. Without the right to
            // change the owner, the file belongs to the current user.
            let _ = fchown(&file, Some(owner), Some(group));
            file.set_permissions(Permissions::from_mode(bits))?;
        }
        file.sync_all()?;
        Ok(name)
    }

    /// Deletes a file by renaming it, so that the deletion can be undone.
    fn remove(&mut self, target_file: &TargetFile) -> io::Result<()> {
        let (kept_as, ()) =
            with_unused_name(|kept_as| match target_file.dir.symlink_metadata(kept_as) {
                Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                Err(_) => target_file
                    .dir
                    .rename(&target_file.name, &target_file.dir, kept_as),
            })?;
        self.record_replacement(target_file, target_file.dir.clone(), kept_as);
        Ok(())
    }

    /// Renames a temporary file to its final name.
    fn move_into_place(&mut self, target_file: &TargetFile, temporary: &OsStr) -> io::Result<()> {
        let folder = self.create_folders(target_file)?;
        let kept_as = match folder.symlink_metadata(&target_file.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
            Ok(metadata) if !metadata.is_file() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(_) => Some(back_up(&folder, &target_file.name)?),
        };
        if let Some(kept_as) = &kept_as {
            self.temp_files.push((folder.clone(), kept_as.clone()));
        }
        target_file
            .dir
            .rename(temporary, &folder, &target_file.name)?;
        self.temp_files
            .retain(|(_, name)| name != temporary && Some(name) != kept_as.as_ref());
        match kept_as {
            Some(kept_as) => self.record_replacement(target_file, folder, kept_as),
            None => self.steps.push(CommitStep::CreatedFile {
                folder,
                name: target_file.name.clone(),
            }),
        }
        Ok(())
    }

    fn record_replacement(
        &mut self,
        target_file: &TargetFile,
        folder: Arc<Dir>,
        kept_as: OsString,
    ) {
        self.steps.push(CommitStep::ReplacedFile {
            folder,
            name: target_file.name.clone(),
            backup_name: kept_as,
            shown: target_file.display_path.clone(),
        });
    }

    /// Creates the missing parent folders and opens the innermost one.
    fn create_folders(&mut self, target_file: &TargetFile) -> io::Result<Arc<Dir>> {
        let (mut folder, mut place) = (target_file.dir.clone(), target_file.dir_path.clone());
        for name in &target_file.missing_dirs {
            match folder.create_dir(name) {
                Ok(()) => self.steps.push(CommitStep::CreatedFolder {
                    parent: folder.clone(),
                    name: name.clone(),
                }),
                // An earlier file of this commit created the folder.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            place.push(name);
            folder = Arc::new(folder.open_dir(name)?);
            check_dir_path(&folder, &place)?;
        }
        Ok(folder)
    }

    /// Undoes all steps in reverse order; returns the error to report.
    fn roll_back(self, target_file: &TargetFile, error: &io::Error) -> ToolError {
        let mut not_restored = Vec::new();
        for step in self.steps.iter().rev() {
            let (undone, name) = match step {
                CommitStep::CreatedFolder { parent, name } => {
                    (parent.remove_dir(name), name.to_string_lossy().into_owned())
                }
                CommitStep::CreatedFile { folder, name } => (
                    folder.remove_file(name),
                    name.to_string_lossy().into_owned(),
                ),
                CommitStep::ReplacedFile {
                    folder,
                    name,
                    backup_name: kept_as,
                    shown,
                } => (
                    folder.rename(kept_as, folder, name),
                    format!("{shown} (backup: {})", kept_as.to_string_lossy()),
                ),
            };
            if undone.is_err() {
                not_restored.push(name);
            }
        }
        for (folder, name) in &self.temp_files {
            let _ = folder.remove_file(name);
        }
        let mut failure = target_file.write_error(error);
        failure.message += &match not_restored.is_empty() {
            true => "; nothing was changed".to_owned(),
            false => format!("; could not restore {}", not_restored.join(", ")),
        };
        failure
    }

    /// Removes the backups after a successful commit.
    fn remove_backups(self) {
        for step in &self.steps {
            if let CommitStep::ReplacedFile {
                folder,
                backup_name: kept_as,
                ..
            } = step
            {
                let _ = folder.remove_file(kept_as);
            }
        }
    }
}

/// Backs up a file under a second name, which is returned. The file keeps its own name, so it
/// exists at every moment.
fn back_up(folder: &Dir, name: &OsStr) -> io::Result<OsString> {
    let linked = with_unused_name(|kept_as| folder.hard_link(name, folder, kept_as));
    let (kept_as, ()) = linked.or_else(|_| {
        // Fallback for file systems without hard links.
        with_unused_name(|kept_as| {
            folder.open_with(kept_as, OpenOptions::new().write(true).create_new(true))?;
            folder
                .copy(name, folder, kept_as)
                .map(drop)
                .inspect_err(|_| _ = folder.remove_file(kept_as))
        })
    })?;
    Ok(kept_as)
}

/// Calls `act` with unused file names until it does not fail with `AlreadyExists`.
fn with_unused_name<T>(mut act: impl FnMut(&OsStr) -> io::Result<T>) -> io::Result<(OsString, T)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!(".selvedge-{}-{next}.tmp", std::process::id()));
        match act(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result.map(|done| (name, done)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use selvedge_protocol::SandboxPolicy;

    use super::*;
    use crate::Workspace;
    use crate::target_file::LinkMode;

    /// A change by another process between the checks and the commit.
    type Interference = fn(&Path);

    #[test]
    fn failed_commit_is_rolled_back() {
        let replace_with_folder: Interference = |path| {
            let _ = std::fs::remove_file(path);
            std::fs::create_dir_all(path.join("full")).unwrap();
        };
        let delete: Interference = |path| std::fs::remove_file(path).unwrap();
        let replace_parent_with_file: Interference =
            |path| std::fs::write(path.parent().unwrap(), "in the way").unwrap();
        let interferences = [
            ("a", replace_with_folder),
            ("b", replace_with_folder),
            ("gone", delete),
            ("c", replace_with_folder),
            ("new/deep/d", replace_parent_with_file),
            ("e", replace_with_folder),
        ];
        let names = [
            "a",
            "b",
            "gone",
            "c",
            "new/deep/d",
            "new/e",
            "e",
            "also gone",
        ];
        for (at, interfere) in interferences {
            let dir = tempfile::tempdir().unwrap();
            for name in ["a", "b", "c", "gone", "also gone"] {
                std::fs::write(dir.path().join(name), name).unwrap();
            }
            std::fs::create_dir(dir.path().join("new")).unwrap();
            let workspace =
                Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
            let target_files = names.map(|name| {
                workspace
                    .target_file(&workspace.absolute(name, None), LinkMode::Follow)
                    .unwrap()
            });
            let writes: Vec<FileWrite<'_>> = target_files
                .iter()
                .map(|target_file| {
                    let content = (
                        &b"changed"[..],
                        target_file
                            .existing_mode()
                            .unwrap()
                            .unwrap_or(FileMode::New { executable: false }),
                    );
                    FileWrite {
                        target_file,
                        content: Some(content)
                            .filter(|_| !target_file.display_path.ends_with("gone")),
                    }
                })
                .collect();
            interfere(&dir.path().join(at));
            let before = tree(dir.path());
            let error = commit(&writes).unwrap_err();
            assert!(
                error.message.ends_with("; nothing was changed"),
                "{at}: {error}"
            );
            assert_eq!(tree(dir.path()), before, "{at}");
        }
    }

    fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut tree = BTreeMap::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                tree.extend(self::tree(&path));
                tree.insert(path, Vec::new());
            } else {
                tree.insert(path.clone(), std::fs::read(&path).unwrap());
            }
        }
        tree
    }
}
