//! What the command's file system looks like, as steps for the init to take.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::{ConfineError, Confinement, sockets};

/// Device nodes a command needs; there are no others.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
];

/// One step. They are taken in order; each allocates nothing.
#[derive(Debug)]
pub(crate) enum Step {
    /// Keeps a copy of a tree of mounts as it is now, to be attached later.
    Keep { path: CString, slot: usize },
    /// Makes everything read-only, without devices or set-user-id programs.
    LockDown,
    /// Puts a kept tree over its old place, with these attributes.
    Attach {
        path: CString,
        slot: usize,
        attributes: u64,
    },
    /// Mounts a tree over itself, with these attributes. A mount cannot be renamed or removed.
    Overlay { path: CString, attributes: u64 },
    /// A new, empty file system.
    Fresh {
        kind: &'static std::ffi::CStr,
        path: CString,
        flags: libc::c_ulong,
        data: CString,
    },
    /// Mounts one file over another.
    Cover { source: CString, path: CString },
}

impl Step {
    /// The place it is about, for messages.
    pub(crate) fn place(&self) -> &[u8] {
        match self {
            Self::LockDown => b"/",
            Self::Keep { path, .. }
            | Self::Attach { path, .. }
            | Self::Overlay { path, .. }
            | Self::Fresh { path, .. }
            | Self::Cover { path, .. } => path.as_bytes(),
        }
    }

    /// Whether the policy holds although this step failed: what is gone by now needs no hiding, nor pinning.
    pub(crate) fn may_fail_with(&self, error: libc::c_int) -> bool {
        let gone = matches!(error, libc::ENOENT | libc::ENOTDIR | libc::ELOOP);
        gone && matches!(
            self,
            Self::Cover { .. } | Self::Overlay { attributes: 0, .. }
        )
    }
}

/// Whose processes /proc shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proc {
    /// The command's own.
    Own,
    /// All there are: accepted by name, where there can be no other.
    Shared,
}

/// The step to a /proc of its own. Read-only: what root may set below /proc/sys needs no capability. The init is not
/// seen in it: it shares our memory, and with that our command line.
pub(crate) fn own_proc() -> Result<Step, ConfineError> {
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_NODEV | libc::MS_RDONLY;
    fresh(c"proc", Path::new("/proc"), flags, c"hidepid=4")
}

/// How many trees are kept at once.
pub(crate) fn slots(steps: &[Step]) -> usize {
    steps
        .iter()
        .filter(|step| matches!(step, Step::Keep { .. }))
        .count()
}

/// The steps to a confined file system.
pub(crate) fn steps(confinement: &Confinement, proc: Proc) -> Result<Vec<Step>, ConfineError> {
    let writable = outermost(&confinement.writable);
    if writable.iter().any(|path| path.parent().is_none()) {
        return Err(ConfineError::Everything);
    }
    let devices: Vec<&Path> = DEVICES
        .iter()
        .map(Path::new)
        .filter(|path| path.exists())
        .collect();
    let mut steps = Vec::new();
    for (slot, path) in writable
        .iter()
        .map(PathBuf::as_path)
        .chain(devices.iter().copied())
        .enumerate()
    {
        steps.push(Step::Keep {
            path: c_string(path)?,
            slot,
        });
    }
    steps.push(Step::LockDown);
    const TAME: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    for (slot, path) in writable.iter().enumerate() {
        steps.push(Step::Attach {
            path: c_string(path)?,
            slot,
            attributes: TAME,
        });
    }
    for (slot, path) in devices.iter().enumerate() {
        let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
        steps.push(Step::Attach {
            path: c_string(path)?,
            slot: writable.len() + slot,
            attributes,
        });
    }
    if proc == Proc::Own {
        steps.push(own_proc()?);
    }
    steps.extend(own_devices()?);
    for path in &confinement.protected {
        pin_above(path, &writable, &mut steps)?;
        steps.push(Step::Overlay {
            path: c_string(path)?,
            attributes: TAME | libc::MOUNT_ATTR_RDONLY,
        });
    }
    for path in &confinement.hidden {
        let Ok(path) = path.canonicalize() else {
            continue;
        };
        pin_above(&path, &writable, &mut steps)?;
        if path.is_dir() {
            let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            steps.push(fresh(c"tmpfs", &path, flags, c"mode=555,size=4k")?);
        } else {
            steps.push(cover(&path)?);
        }
    }
    for path in sockets::listening() {
        if is_below(&path, &confinement.hidden) {
            continue;
        }
        pin_above(&path, &writable, &mut steps)?;
        steps.push(cover(&path)?);
    }
    Ok(steps)
}

/// Terminals and shared memory of its own.
fn own_devices() -> Result<Vec<Step>, ConfineError> {
    let quiet = libc::MS_NOSUID | libc::MS_NOEXEC;
    let mut steps = Vec::new();
    if Path::new("/dev/pts").is_dir() {
        steps.push(fresh(
            c"devpts",
            Path::new("/dev/pts"),
            quiet,
            c"newinstance,ptmxmode=0666,mode=620",
        )?);
        if Path::new("/dev/ptmx").exists() {
            steps.push(Step::Cover {
                source: c"/dev/pts/ptmx".into(),
                path: c"/dev/ptmx".into(),
            });
        }
    }
    if Path::new("/dev/shm").is_dir() {
        steps.push(fresh(
            c"tmpfs",
            Path::new("/dev/shm"),
            libc::MS_NOSUID | libc::MS_NODEV,
            c"mode=1777",
        )?);
    }
    Ok(steps)
}

/// Mounts the folders between a writable one and this path over themselves: otherwise a command could move
/// one away, and what lies in it would be somewhere else for the next command.
fn pin_above(path: &Path, writable: &[PathBuf], steps: &mut Vec<Step>) -> Result<(), ConfineError> {
    for folder in folders_above(path, writable) {
        let folder = c_string(folder)?;
        if !steps
            .iter()
            .any(|step| matches!(step, Step::Overlay { path, .. } if *path == folder))
        {
            steps.push(Step::Overlay {
                path: folder,
                attributes: 0,
            });
        }
    }
    Ok(())
}

/// The folders between a writable one and this path, from the outside in.
pub(crate) fn folders_above<'a>(path: &'a Path, writable: &[PathBuf]) -> Vec<&'a Path> {
    let Some(root) = writable
        .iter()
        .find(|root| path.starts_with(root) && path != **root)
    else {
        return Vec::new();
    };
    let mut above: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|above| above != root)
        .collect();
    above.reverse();
    above
}

/// The folders that lie in no other: one mount serves both, and no name below a writable folder is followed.
pub(crate) fn outermost(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut outermost: Vec<PathBuf> = Vec::new();
    let mut folders: Vec<&PathBuf> = folders.iter().collect();
    folders.sort();
    for folder in folders {
        if !outermost.iter().any(|outer| folder.starts_with(outer)) {
            outermost.push(folder.clone());
        }
    }
    outermost
}

/// The same policy with one entry per hidden subtree. A hidden folder looks empty and cannot be
/// written, so a hidden or protected path below it needs no mount, and has no place to be mounted on.
pub(crate) fn without_covered_paths(confinement: &Confinement) -> Confinement {
    let resolved: Vec<PathBuf> = confinement
        .hidden
        .iter()
        .map(|path| resolve_existing(path))
        .collect();
    let hidden = outermost(&resolved);
    let protected = confinement
        .protected
        .iter()
        .filter(|path| !is_below(&resolve_existing(path), &hidden))
        .cloned()
        .collect();
    Confinement {
        hidden,
        protected,
        ..confinement.clone()
    }
}

/// Whether a path is one of these folders or lies below one.
pub(crate) fn is_below(path: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

/// The path with the symbolic links of its existing part resolved.
fn resolve_existing(path: &Path) -> PathBuf {
    path.canonicalize()
        .unwrap_or_else(|_| match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => resolve_existing(parent).join(name),
            _ => path.to_owned(),
        })
}

fn fresh(
    kind: &'static std::ffi::CStr,
    path: &Path,
    flags: libc::c_ulong,
    data: &std::ffi::CStr,
) -> Result<Step, ConfineError> {
    Ok(Step::Fresh {
        kind,
        path: c_string(path)?,
        flags,
        data: data.into(),
    })
}

fn cover(path: &Path) -> Result<Step, ConfineError> {
    Ok(Step::Cover {
        source: c"/dev/null".into(),
        path: c_string(path)?,
    })
}

pub(crate) fn c_string(text: impl AsRef<std::ffi::OsStr>) -> Result<CString, ConfineError> {
    let text = text.as_ref();
    CString::new(text.as_bytes()).map_err(|_| {
        ConfineError::Invalid(format!(
            "{} has a NUL in it",
            text.to_string_lossy().replace('\0', "\\0")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(root: &Path, names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| root.join(name)).collect()
    }

    #[test]
    fn a_path_below_a_hidden_folder_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("home/.aws")).unwrap();
        std::os::unix::fs::symlink(root.join("home"), root.join("link")).unwrap();
        let confinement = Confinement {
            hidden: paths(
                &root,
                &[
                    "home/.aws",
                    "home",
                    "link/.aws",
                    "link/missing/key",
                    "homework",
                    "home",
                ],
            ),
            protected: paths(&root, &["home/work/.git", "work/.git"]),
            writable: paths(&root, &["work", "home/work"]),
            ..Confinement::default()
        };
        let normalized = without_covered_paths(&confinement);
        assert_eq!(normalized.hidden, paths(&root, &["home", "homework"]));
        assert_eq!(normalized.protected, paths(&root, &["work/.git"]));
        assert_eq!(normalized.writable, confinement.writable);
    }

    #[test]
    fn separate_hidden_paths_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let confinement = Confinement {
            hidden: paths(&root, &["home/.aws", "home/.ssh"]),
            protected: paths(&root, &["home/.git"]),
            ..Confinement::default()
        };
        let normalized = without_covered_paths(&confinement);
        assert_eq!(normalized.hidden, confinement.hidden);
        assert_eq!(normalized.protected, confinement.protected);
    }
}
