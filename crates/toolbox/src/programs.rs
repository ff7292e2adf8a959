//! Finds programs that run outside of the confinement. A program is taken only from where commands
//! of agents cannot replace it: neither the file, nor a link or folder on the way to it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

/// Most links on the way to a program.
const MAX_LINKS: u32 = 40;

/// Where a program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundProgram {
    /// Its full path.
    Found(PathBuf),
    /// Its full path, and the place on the way to it that commands can write.
    Replaceable {
        /// The path of the program.
        path: PathBuf,
        /// The file, link or folder that commands can write.
        place: PathBuf,
    },
    /// No folder has it.
    Missing,
}

/// Finds a program by its name in the folders of a search path such as `PATH`. `is_writable` says
/// whether commands may write to a path without links.
pub fn find_program(
    name: &str,
    search_path: &OsStr,
    is_writable: &dyn Fn(&Path) -> bool,
) -> FoundProgram {
    for folder in std::env::split_paths(search_path) {
        let path = folder.join(name);
        if folder.as_os_str().is_empty() || !is_executable(&path) {
            continue;
        }
        return match writable_place(&path, is_writable) {
            Some(place) => FoundProgram::Replaceable { path, place },
            None => FoundProgram::Found(path),
        };
    }
    FoundProgram::Missing
}

/// Returns the folders of a search path that exist, in which commands cannot put a program, and
/// that have no link to one that commands can replace.
pub fn safe_search_path(search_path: &OsStr, is_writable: &dyn Fn(&Path) -> bool) -> OsString {
    // Most links lead to the same few folders.
    let known = RefCell::new(HashMap::new());
    let is_writable = |path: &Path| {
        let found = known.borrow().get(path).copied();
        found.unwrap_or_else(|| {
            let answer = is_writable(path);
            known.borrow_mut().insert(path.to_owned(), answer);
            answer
        })
    };
    let is_safe = |folder: &PathBuf| {
        folder.is_dir()
            && writable_place(folder, &is_writable).is_none()
            && !has_replaceable_link(folder, &is_writable)
    };
    let folders = std::env::split_paths(search_path);
    std::env::join_paths(folders.filter(is_safe)).unwrap_or_default()
}

/// Whether a folder has a link that leads through a folder that commands can write. A link whose
/// target does not exist counts only if commands can create it.
fn has_replaceable_link(folder: &Path, is_writable: &dyn Fn(&Path) -> bool) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let mut links = links.map(|entry| entry.path());
    links.any(|link| {
        let mut path = link;
        for _ in 0..MAX_LINKS {
            let (Ok(target), Some(parent)) = (std::fs::read_link(&path), path.parent()) else {
                return false;
            };
            path = parent.join(target);
            let place = path
                .parent()
                .and_then(|parent| writable_place(parent, is_writable));
            if place.is_some_and(|place| is_writable(&place)) {
                return true;
            }
        }
        // The system follows no more links either.
        false
    })
}

/// Returns the first file, link or folder on the way to a path that commands can write. A path that
/// is not absolute, or does not exist, counts as one.
pub fn writable_place(path: &Path, is_writable: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    if !path.is_absolute() {
        return Some(path.to_owned());
    }
    let mut waiting: VecDeque<OsString> = names_of(path);
    let (mut real, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = waiting.pop_front() {
        if name == ".." {
            real.pop();
            continue;
        }
        let entry = real.join(&name);
        if is_writable(&entry) {
            return Some(entry);
        }
        match std::fs::read_link(&entry) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return Some(entry);
                }
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                for name in names_of(&target).into_iter().rev() {
                    waiting.push_front(name);
                }
            }
            Err(_) if entry.symlink_metadata().is_err() => return Some(entry),
            Err(_) => real = entry,
        }
    }
    None
}

/// Returns the names in a path, and `..`.
fn names_of(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let metadata = path.metadata();
    metadata.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A folder `safe`, a folder `open` that commands can write, and programs in both.
    fn folders() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (safe, open) = (root.join("safe"), root.join("open"));
        for folder in [&safe, &open] {
            std::fs::create_dir(folder).unwrap();
            for name in ["tool", "data"] {
                let file = folder.join(name);
                std::fs::write(&file, "#!/bin/sh\n").unwrap();
                let mode = if name == "tool" { 0o755 } else { 0o644 };
                std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        (dir, safe, open)
    }

    fn path_of(folders: &[&Path]) -> OsString {
        std::env::join_paths(folders).unwrap()
    }

    #[test]
    fn the_first_program_in_the_path_is_found_or_refused() {
        let (dir, safe, open) = folders();
        let is_writable = |path: &Path| path.starts_with(&open);
        let find =
            |name: &str, folders: &[&Path]| find_program(name, &path_of(folders), &is_writable);
        let missing = dir.path().join("missing");
        assert_eq!(
            find("tool", &[&missing, &safe, &open]),
            FoundProgram::Found(safe.join("tool"))
        );
        assert_eq!(
            find("tool", &[&open, &safe]),
            FoundProgram::Replaceable {
                path: open.join("tool"),
                place: open.clone(),
            }
        );
        assert_eq!(find("data", &[&safe, &open]), FoundProgram::Missing);
        assert_eq!(find("other", &[&safe]), FoundProgram::Missing);
    }

    #[test]
    fn every_link_on_the_way_must_be_safe() {
        let (_dir, safe, open) = folders();
        let is_writable = |path: &Path| path.starts_with(&open);
        // A link of a program, a link of a folder, and a link that leads back.
        symlink(open.join("tool"), safe.join("linked")).unwrap();
        symlink("../open", safe.join("folder")).unwrap();
        symlink(&safe, open.join("back")).unwrap();
        symlink("tool", safe.join("own")).unwrap();
        symlink("loop", safe.join("loop")).unwrap();
        symlink(open.join("later"), safe.join("later")).unwrap();
        let place = |path: &str| writable_place(&safe.parent().unwrap().join(path), &is_writable);
        assert_eq!(place("safe/tool"), None);
        assert_eq!(place("safe/own"), None);
        assert_eq!(place("safe/../safe/own"), None);
        assert_eq!(place("safe/linked"), Some(open.clone()));
        assert_eq!(place("safe/folder/tool"), Some(open.clone()));
        assert_eq!(place("open/back/tool"), Some(open.clone()));
        assert_eq!(place("safe/loop"), Some(safe.join("loop")));
        // What does not exist yet, commands may create.
        assert_eq!(place("safe/later"), Some(open.clone()));
        assert_eq!(place("safe/nothing"), Some(safe.join("nothing")));
        assert_eq!(
            writable_place(Path::new("tool"), &is_writable),
            Some(PathBuf::from("tool"))
        );
    }

    #[test]
    fn a_search_path_keeps_the_folders_in_which_commands_put_no_program() {
        let (_dir, safe, open) = folders();
        let is_writable = |path: &Path| path.starts_with(&open);
        symlink(&open, safe.join("linked")).unwrap();
        let linked = safe.join("linked");
        let missing = safe.join("missing");
        let folders = [&*open, &*linked, &*safe, &*missing, Path::new("bin")];
        let kept = || safe_search_path(&path_of(&folders), &is_writable);
        assert_eq!(kept(), safe.clone().into_os_string());
        // Links within safe folders, and to what commands cannot create.
        symlink("tool", safe.join("own")).unwrap();
        symlink("own", safe.join("again")).unwrap();
        symlink(safe.join("gone/tool"), safe.join("dangling")).unwrap();
        assert_eq!(kept(), safe.clone().into_os_string());
        for target in [
            open.join("tool"),
            open.join("later"),
            open.join("bin/later"),
            PathBuf::from("../open/tool"),
            PathBuf::from("linked/tool"),
        ] {
            let link = safe.join("bad");
            symlink(&target, &link).unwrap();
            assert_eq!(kept(), OsString::new(), "{}", target.display());
            // A link to the link.
            std::fs::rename(&link, safe.join("first")).unwrap();
            symlink("first", &link).unwrap();
            assert_eq!(kept(), OsString::new(), "{}", target.display());
            std::fs::remove_file(&link).unwrap();
            std::fs::remove_file(safe.join("first")).unwrap();
        }
        symlink("loop", safe.join("loop")).unwrap();
        assert_eq!(kept(), safe.into_os_string());
    }
}
