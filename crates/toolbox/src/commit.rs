//! Files written all or none: every new content goes to a temporary file first, then all change places,
//! and if one cannot, those that did change back.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::fs::fchown;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt, Permissions, PermissionsExt};
use selvedge_tools::ToolError;

use crate::slot::{Mode, Slot, check_place};

/// A file's new state.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) slot: &'a Slot,
    /// Nothing: the file goes.
    pub(crate) content: Option<(&'a [u8], Mode)>,
}

/// Writes all of them, or leaves everything as it was and says why.
pub(crate) fn commit(writes: &[Write<'_>]) -> Result<(), ToolError> {
    for slot in writes
        .iter()
        .filter(|write| write.content.is_some())
        .map(|write| write.slot)
    {
        let goes = |path: &PathBuf| {
            writes
                .iter()
                .any(|write| write.content.is_none() && write.slot.real() == *path)
        };
        if let Some(path) = slot.blocked.as_ref().filter(|path| !goes(path)) {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            return Err(ToolError::new(format!(
                "{} cannot be written: {file} is a file, not a folder",
                slot.shown
            )));
        }
    }
    let mut change = Change::default();
    match change.carry_out(writes) {
        Ok(()) => {
            change.tidy();
            Ok(())
        }
        Err((slot, error)) => Err(change.undo(slot, &error)),
    }
}

/// What has been done so far.
#[derive(Default)]
struct Change {
    /// Contents that wait for their turn: where, and under which name.
    temporary: Vec<(Arc<Dir>, OsString)>,
    steps: Vec<Step>,
}

/// Something to be undone.
enum Step {
    MadeFolder {
        parent: Arc<Dir>,
        name: OsString,
    },
    Created {
        folder: Arc<Dir>,
        name: OsString,
    },
    /// What was there before has another name now.
    Replaced {
        folder: Arc<Dir>,
        name: OsString,
        kept_as: OsString,
        shown: String,
    },
}

type Failed<'a> = (&'a Slot, io::Error);

impl Change {
    fn carry_out<'a>(&mut self, writes: &[Write<'a>]) -> Result<(), Failed<'a>> {
        let mut ready = Vec::new();
        for write in writes {
            let Some((bytes, mode)) = write.content else {
                continue;
            };
            let temporary = self
                .stage(&write.slot.folder, bytes, mode)
                .map_err(|error| (write.slot, error))?;
            ready.push((write.slot, temporary));
        }
        // What goes, goes first: a folder may be needed where it was.
        for write in writes.iter().filter(|write| write.content.is_none()) {
            self.remove(write.slot)
                .map_err(|error| (write.slot, error))?;
        }
        for (slot, temporary) in ready {
            self.put(slot, &temporary).map_err(|error| (slot, error))?;
        }
        let folders: BTreeMap<_, _> = writes
            .iter()
            .map(|write| (&write.slot.place, &write.slot.folder))
            .collect();
        for folder in folders.into_values() {
            // So that the names, too, are on disk. Some systems cannot say; the contents are there in any case.
            let _ = folder.open(".").and_then(|folder| folder.sync_all());
        }
        Ok(())
    }

    /// Writes content to a temporary file, safely on disk.
    fn stage(&mut self, folder: &Arc<Dir>, bytes: &[u8], mode: Mode) -> io::Result<OsString> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(match mode {
            Mode::New { executable: true } => 0o777,
            Mode::New { executable: false } => 0o666,
            Mode::Kept { .. } => 0o600,
        });
        let (name, mut file) = with_free_name(|name| folder.open_with(name, &options))?;
        self.temporary.push((folder.clone(), name.clone()));
        file.write_all(bytes)?;
        if let Mode::Kept { bits, owner, group } = mode {
            // The owner first, because that takes rights away; where it is not ours to give, the file is ours now.
            let _ = fchown(&file, Some(owner), Some(group));
            file.set_permissions(Permissions::from_mode(bits))?;
        }
        file.sync_all()?;
        Ok(name)
    }

    fn remove(&mut self, slot: &Slot) -> io::Result<()> {
        let (kept_as, ()) =
            with_free_name(|kept_as| match slot.folder.symlink_metadata(kept_as) {
                Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                Err(_) => slot.folder.rename(&slot.name, &slot.folder, kept_as),
            })?;
        self.replaced(slot, slot.folder.clone(), kept_as);
        Ok(())
    }

    /// Puts a temporary file in its place.
    fn put(&mut self, slot: &Slot, temporary: &OsStr) -> io::Result<()> {
        let folder = self.make_folders(slot)?;
        let kept_as = match folder.symlink_metadata(&slot.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
            Ok(metadata) if !metadata.is_file() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(_) => Some(keep(&folder, &slot.name)?),
        };
        if let Some(kept_as) = &kept_as {
            self.temporary.push((folder.clone(), kept_as.clone()));
        }
        slot.folder.rename(temporary, &folder, &slot.name)?;
        self.temporary
            .retain(|(_, name)| name != temporary && Some(name) != kept_as.as_ref());
        match kept_as {
            Some(kept_as) => self.replaced(slot, folder, kept_as),
            None => self.steps.push(Step::Created {
                folder,
                name: slot.name.clone(),
            }),
        }
        Ok(())
    }

    fn replaced(&mut self, slot: &Slot, folder: Arc<Dir>, kept_as: OsString) {
        self.steps.push(Step::Replaced {
            folder,
            name: slot.name.clone(),
            kept_as,
            shown: slot.shown.clone(),
        });
    }

    /// Makes the folders that are missing on the way, and opens the last.
    fn make_folders(&mut self, slot: &Slot) -> io::Result<Arc<Dir>> {
        let (mut folder, mut place) = (slot.folder.clone(), slot.place.clone());
        for name in &slot.missing {
            match folder.create_dir(name) {
                Ok(()) => self.steps.push(Step::MadeFolder {
                    parent: folder.clone(),
                    name: name.clone(),
                }),
                // Another file of this change needed it, too.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            place.push(name);
            folder = Arc::new(folder.open_dir(name)?);
            check_place(&folder, &place)?;
        }
        Ok(folder)
    }

    /// Takes everything back, last first.
    fn undo(self, slot: &Slot, error: &io::Error) -> ToolError {
        let mut stuck = Vec::new();
        for step in self.steps.iter().rev() {
            let (undone, what) = match step {
                Step::MadeFolder { parent, name } => {
                    (parent.remove_dir(name), name.to_string_lossy().into_owned())
                }
                Step::Created { folder, name } => (
                    folder.remove_file(name),
                    name.to_string_lossy().into_owned(),
                ),
                Step::Replaced {
                    folder,
                    name,
                    kept_as,
                    shown,
                } => (
                    folder.rename(kept_as, folder, name),
                    format!("{shown} (kept as {})", kept_as.to_string_lossy()),
                ),
            };
            if undone.is_err() {
                stuck.push(what);
            }
        }
        for (folder, name) in &self.temporary {
            let _ = folder.remove_file(name);
        }
        let mut failure = slot.error(error);
        failure.message += &match stuck.is_empty() {
            true => "; nothing was changed".to_owned(),
            false => format!(
                "; and what was done could not be undone for {}",
                stuck.join(", ")
            ),
        };
        failure
    }

    /// Lets go of what was kept to undo with.
    fn tidy(self) {
        for step in &self.steps {
            if let Step::Replaced {
                folder, kept_as, ..
            } = step
            {
                let _ = folder.remove_file(kept_as);
            }
        }
    }
}

/// Gives a file a second name, so that the first can be given away. The file itself has no moment without one.
fn keep(folder: &Dir, name: &OsStr) -> io::Result<OsString> {
    let linked = with_free_name(|kept_as| folder.hard_link(name, folder, kept_as));
    let (kept_as, ()) = linked.or_else(|_| {
        // Not every file system has links.
        with_free_name(|kept_as| {
            folder.open_with(kept_as, OpenOptions::new().write(true).create_new(true))?;
            folder
                .copy(name, folder, kept_as)
                .map(drop)
                .inspect_err(|_| _ = folder.remove_file(kept_as))
        })
    })?;
    Ok(kept_as)
}

/// Does something with a name nobody has yet.
fn with_free_name<T>(mut act: impl FnMut(&OsStr) -> io::Result<T>) -> io::Result<(OsString, T)> {
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
    use crate::slot::Links;

    /// Something that happens between the judging and the writing.
    type Mishap = fn(&Path);

    #[test]
    fn a_change_that_fails_midway_is_undone() {
        let becomes_a_folder: Mishap = |path| {
            let _ = std::fs::remove_file(path);
            std::fs::create_dir_all(path.join("full")).unwrap();
        };
        let vanishes: Mishap = |path| std::fs::remove_file(path).unwrap();
        let is_made_a_file: Mishap =
            |path| std::fs::write(path.parent().unwrap(), "in the way").unwrap();
        let mishaps = [
            ("a", becomes_a_folder),
            ("b", becomes_a_folder),
            ("gone", vanishes),
            ("c", becomes_a_folder),
            ("new/deep/d", is_made_a_file),
            ("e", becomes_a_folder),
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
        for (at, mishap) in mishaps {
            let dir = tempfile::tempdir().unwrap();
            for name in ["a", "b", "c", "gone", "also gone"] {
                std::fs::write(dir.path().join(name), name).unwrap();
            }
            std::fs::create_dir(dir.path().join("new")).unwrap();
            let workspace =
                Workspace::open(dir.path(), SandboxPolicy::WorkspaceWrite, &[]).unwrap();
            let slots = names.map(|name| {
                workspace
                    .slot(&workspace.absolute(name, None), Links::Follow)
                    .unwrap()
            });
            let writes: Vec<Write<'_>> = slots
                .iter()
                .map(|slot| {
                    let content = (
                        &b"changed"[..],
                        slot.look()
                            .unwrap()
                            .unwrap_or(Mode::New { executable: false }),
                    );
                    Write {
                        slot,
                        content: Some(content).filter(|_| !slot.shown.ends_with("gone")),
                    }
                })
                .collect();
            mishap(&dir.path().join(at));
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
