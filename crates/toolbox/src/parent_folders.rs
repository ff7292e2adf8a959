//! The folders above files that are deleted. They are opened before the files are deleted, and
//! removed relative to each other, so that a folder that takes the place of one meanwhile stays.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, Metadata, MetadataExt};
use rustix::fs::{Mode, OFlags, openat};

/// The open folders between a root and files, by their paths relative to the root. The root has the
/// empty path.
#[derive(Debug)]
pub(crate) struct ParentFolders {
    folders: BTreeMap<PathBuf, Dir>,
}

impl ParentFolders {
    /// Opens the root, which is never removed.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let root = Dir::open_ambient_dir(root, ambient_authority())?;
        Ok(Self {
            folders: BTreeMap::from([(PathBuf::new(), root)]),
        })
    }

    /// Opens the folders above a file. Follows no link, and fails if the last of them is not
    /// `parent`, which has the file. So none of them is an empty folder of another program.
    pub(crate) fn add(&mut self, file: &Path, parent: &Dir) -> io::Result<()> {
        let path = file.parent().unwrap_or(Path::new(""));
        let mut opened = BTreeMap::new();
        let mut at = PathBuf::new();
        for name in path {
            let above = opened.get(&at).or_else(|| self.folders.get(&at));
            let above: &Dir = above.ok_or(io::ErrorKind::NotFound)?;
            at.push(name);
            if !self.folders.contains_key(&at) {
                let folder = open_folder(above, name)?;
                opened.insert(at.clone(), folder);
            }
        }
        let last = opened.get(&at).or_else(|| self.folders.get(&at));
        let last = last.ok_or(io::ErrorKind::NotFound)?;
        if file_id(&last.dir_metadata()?) != file_id(&parent.dir_metadata()?) {
            return Err(io::Error::other("a folder above it was replaced"));
        }
        self.folders.extend(opened);
        Ok(())
    }

    /// Removes the folders that are empty and still in their places.
    pub(crate) fn remove_empty(&self) {
        // A folder comes after the folder above it.
        for (path, folder) in self.folders.iter().rev() {
            if let (Some(above), Some(name)) = (path.parent(), path.file_name())
                && let Some(above) = self.folders.get(above)
                && let (Ok(there), Ok(opened)) =
                    (above.symlink_metadata(name), folder.dir_metadata())
                && file_id(&there) == file_id(&opened)
            {
                // It is not empty, or cannot be removed.
                let _ = above.remove_dir(name);
            }
        }
    }
}

fn open_folder(above: &Dir, name: &OsStr) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(above, name, flags, Mode::empty())?;
    Ok(Dir::from_std_file(File::from(folder)))
}

/// Returns what identifies a file or folder: its device and its number there.
fn file_id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder `a/b/c` with a file, whose parents are open, and an empty folder `other/b/c`.
    fn opened() -> (tempfile::TempDir, ParentFolders) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        std::fs::create_dir_all(dir.path().join("other/b/c")).unwrap();
        let parent = Dir::open_ambient_dir(dir.path().join("a/b/c"), ambient_authority()).unwrap();
        let mut folders = ParentFolders::open(dir.path()).unwrap();
        folders.add(Path::new("a/b/c/x"), &parent).unwrap();
        (dir, folders)
    }

    #[test]
    fn empty_folders_are_removed_up_to_the_root() {
        let (dir, folders) = opened();
        folders.remove_empty();
        assert!(!dir.path().join("a").exists() && dir.path().join("other/b/c").exists());

        let (dir, folders) = opened();
        std::fs::write(dir.path().join("a/kept"), "").unwrap();
        folders.remove_empty();
        assert!(!dir.path().join("a/b").exists() && dir.path().join("a/kept").exists());
    }

    #[test]
    fn a_folder_in_the_place_of_another_stays() {
        // Each case moves a folder that was opened, and puts another one or a link in its place.
        for place in ["a", "a/b", "a/b/c"] {
            for is_link in [true, false] {
                let (dir, folders) = opened();
                let (place, other) = (dir.path().join(place), place.replacen('a', "other", 1));
                let other = dir.path().join(other);
                std::fs::rename(&place, dir.path().join("moved")).unwrap();
                match is_link {
                    true => symlink(&other, &place).unwrap(),
                    false => std::fs::rename(&other, &place).unwrap(),
                }
                folders.remove_empty();
                let now = if is_link { "other" } else { "a" };
                let innermost = match (is_link, place.ends_with("a")) {
                    (false, false) => dir.path().join("a/b/c"),
                    _ => dir.path().join(now).join("b/c"),
                };
                assert!(innermost.is_dir(), "{} {is_link}", place.display());
            }
        }
    }

    #[test]
    fn folders_that_do_not_lead_to_the_file_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::create_dir_all(dir.path().join("other/b")).unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        let parent = Dir::open_ambient_dir(dir.path().join("a/b"), ambient_authority()).unwrap();
        let mut folders = ParentFolders::open(dir.path()).unwrap();
        for path in ["other/b/x", "link/b/x", "missing/x"] {
            folders.add(Path::new(path), &parent).unwrap_err();
        }
        folders.remove_empty();
        assert!(dir.path().join("other/b").exists() && dir.path().join("a/b").exists());
    }
}
