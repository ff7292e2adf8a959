//! Plans the file system of a confined command as mount steps. The init process executes them.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::placeholder::is_own;
use crate::{ConfineError, Confinement, sockets};

/// Device nodes that stay usable. All other devices are blocked.
const ALLOWED_DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
];

/// One mount operation. The steps are executed in order, without allocation.
#[derive(Debug)]
pub(crate) enum MountStep {
    /// Saves a copy of a mount tree in its current state, to be attached later.
    SaveTree { path: CString, slot: usize },
    /// Makes all mounts read-only, without devices and set-user-id programs.
    MakeReadOnly,
    /// Mounts a saved tree at its path, with these attributes.
    AttachTree {
        path: CString,
        slot: usize,
        attributes: u64,
    },
    /// Mounts a tree over itself, with these attributes. A symbolic link is mounted itself, not its
    /// target. A mount point cannot be renamed or removed.
    BindOverSelf { path: CString, attributes: u64 },
    /// Mounts a new, empty file system.
    MountNew {
        kind: &'static std::ffi::CStr,
        path: CString,
        flags: libc::c_ulong,
        data: CString,
    },
    /// Mounts an empty, read-only folder over a folder.
    HideFolder { path: CString },
    /// Mounts one file over another.
    BindFile { source: CString, path: CString },
}

impl MountStep {
    /// Returns the path of the mount, for error messages.
    pub(crate) fn path(&self) -> &[u8] {
        match self {
            Self::MakeReadOnly => b"/",
            Self::SaveTree { path, .. }
            | Self::AttachTree { path, .. }
            | Self::BindOverSelf { path, .. }
            | Self::MountNew { path, .. }
            | Self::HideFolder { path }
            | Self::BindFile { path, .. } => path.as_bytes(),
        }
    }

    /// Returns whether this error can be ignored. A path that was removed after the plan was made
    /// needs neither hiding nor pinning.
    pub(crate) fn may_fail_with(&self, error: libc::c_int) -> bool {
        let is_missing = matches!(error, libc::ENOENT | libc::ENOTDIR | libc::ELOOP);
        is_missing
            && matches!(
                self,
                Self::BindFile { .. }
                    | Self::HideFolder { .. }
                    | Self::BindOverSelf { attributes: 0, .. }
            )
    }
}

/// Which /proc a command sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcMount {
    /// A private one with only the command's processes.
    Private,
    /// That of the host. Only used if the configuration accepts it.
    Shared,
}

/// Returns the step that mounts a private /proc. It is read-only, because root needs no capability
/// to write below /proc/sys. `hidepid` hides the init process: it shares the memory of Selvedge, so
/// its /proc entry would show the command line of Selvedge.
pub(crate) fn private_proc_step() -> Result<MountStep, ConfineError> {
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_NODEV | libc::MS_RDONLY;
    new_mount_step(c"proc", Path::new("/proc"), flags, c"hidepid=4")
}

/// Returns the number of mount trees that are saved at the same time.
pub(crate) fn saved_tree_count(steps: &[MountStep]) -> usize {
    steps
        .iter()
        .filter(|step| matches!(step, MountStep::SaveTree { .. }))
        .count()
}

/// Returns the steps that set up the confined file system.
pub(crate) fn mount_steps(
    confinement: &Confinement,
    proc: ProcMount,
) -> Result<Vec<MountStep>, ConfineError> {
    let writable = outermost(&confinement.writable);
    if writable.iter().any(|path| path.parent().is_none()) {
        return Err(ConfineError::WorkspaceIsRoot);
    }
    let devices: Vec<&Path> = ALLOWED_DEVICES
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
        steps.push(MountStep::SaveTree {
            path: c_string(path)?,
            slot,
        });
    }
    steps.push(MountStep::MakeReadOnly);
    const SAFE_ATTRIBUTES: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    for (slot, path) in writable.iter().enumerate() {
        steps.push(MountStep::AttachTree {
            path: c_string(path)?,
            slot,
            attributes: SAFE_ATTRIBUTES,
        });
    }
    for (slot, path) in devices.iter().enumerate() {
        let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
        steps.push(MountStep::AttachTree {
            path: c_string(path)?,
            slot: writable.len() + slot,
            attributes,
        });
    }
    if proc == ProcMount::Private {
        steps.push(private_proc_step()?);
    }
    steps.extend(private_device_steps()?);
    for path in &confinement.protected {
        pin_folders_between(path, &writable, &mut steps)?;
        steps.push(MountStep::BindOverSelf {
            path: c_string(path)?,
            attributes: SAFE_ATTRIBUTES | libc::MOUNT_ATTR_RDONLY,
        });
    }
    for path in &confinement.hidden {
        let Ok(path) = path.canonicalize() else {
            continue;
        };
        pin_folders_between(&path, &writable, &mut steps)?;
        if path.is_dir() {
            steps.push(MountStep::HideFolder {
                path: c_string(&path)?,
            });
        } else {
            steps.push(cover_step(&path)?);
        }
    }
    for path in sockets::bound_socket_paths()? {
        if is_in_any(&path, &confinement.hidden) || is_closed_to_user(&path) {
            continue;
        }
        pin_folders_between(&path, &writable, &mut steps)?;
        steps.push(cover_step(&path)?);
    }
    Ok(steps)
}

/// Returns whether a path is below a folder of another user that only its owner can enter. A
/// command cannot reach it, not even one of root, and neither can a mount.
pub(crate) fn is_closed_to_user(path: &Path) -> bool {
    path.ancestors().skip(1).any(|folder| {
        folder
            .metadata()
            .is_ok_and(|it| !is_own(&it) && it.mode() & 0o011 == 0)
    })
}

/// Returns the steps that mount private terminals and private shared memory.
fn private_device_steps() -> Result<Vec<MountStep>, ConfineError> {
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
    let mut steps = Vec::new();
    if Path::new("/dev/pts").is_dir() {
        steps.push(new_mount_step(
            c"devpts",
            Path::new("/dev/pts"),
            flags,
            c"newinstance,ptmxmode=0666,mode=620",
        )?);
        if Path::new("/dev/ptmx").exists() {
            steps.push(MountStep::BindFile {
                source: c"/dev/pts/ptmx".into(),
                path: c"/dev/ptmx".into(),
            });
        }
    }
    if Path::new("/dev/shm").is_dir() {
        steps.push(new_mount_step(
            c"tmpfs",
            Path::new("/dev/shm"),
            libc::MS_NOSUID | libc::MS_NODEV,
            c"mode=1777",
        )?);
    }
    Ok(steps)
}

/// Adds steps that mount the folders between a writable folder and `path` over themselves.
/// A mount point cannot be renamed. Otherwise a command could rename such a folder, and its hidden
/// or protected content would be reachable at the new path by the next command.
fn pin_folders_between(
    path: &Path,
    writable: &[PathBuf],
    steps: &mut Vec<MountStep>,
) -> Result<(), ConfineError> {
    for folder in folders_between(path, writable) {
        let folder = c_string(folder)?;
        if !steps
            .iter()
            .any(|step| matches!(step, MountStep::BindOverSelf { path, .. } if *path == folder))
        {
            steps.push(MountStep::BindOverSelf {
                path: folder,
                attributes: 0,
            });
        }
    }
    Ok(())
}

/// Returns the folders between a writable folder and `path`, outermost first, without both ends.
pub(crate) fn folders_between<'a>(path: &'a Path, writable: &[PathBuf]) -> Vec<&'a Path> {
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

/// Returns the folders that lie in no other folder of the list. Nested folders need no mount
/// of their own, and no path that a command could have changed has to be resolved.
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

/// Returns the same policy with one entry for each hidden subtree. A hidden folder is an empty,
/// read-only mount, so paths below it need no mount, and could not have one.
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
        .filter(|path| !is_in_any(&resolve_existing(path), &hidden))
        .cloned()
        .collect();
    Confinement {
        hidden,
        protected,
        ..confinement.clone()
    }
}

/// Returns whether a path is one of these folders or lies below one.
pub(crate) fn is_in_any(path: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

/// Resolves the symbolic links in the existing part of a path.
fn resolve_existing(path: &Path) -> PathBuf {
    path.canonicalize()
        .unwrap_or_else(|_| match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => resolve_existing(parent).join(name),
            _ => path.to_owned(),
        })
}

fn new_mount_step(
    kind: &'static std::ffi::CStr,
    path: &Path,
    flags: libc::c_ulong,
    data: &std::ffi::CStr,
) -> Result<MountStep, ConfineError> {
    Ok(MountStep::MountNew {
        kind,
        path: c_string(path)?,
        flags,
        data: data.into(),
    })
}

fn cover_step(path: &Path) -> Result<MountStep, ConfineError> {
    Ok(MountStep::BindFile {
        source: c"/dev/null".into(),
        path: c_string(path)?,
    })
}

pub(crate) fn c_string(text: impl AsRef<std::ffi::OsStr>) -> Result<CString, ConfineError> {
    let text = text.as_ref();
    CString::new(text.as_bytes()).map_err(|_| {
        ConfineError::Invalid(format!(
            "{} contains a NUL byte",
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
    fn only_a_private_folder_of_another_user_is_closed() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        assert!(!is_closed_to_user(&socket), "a folder of this user");
        // Only root can give a folder away.
        if chown(folder.path(), Some(1), None).is_ok() {
            for (mode, is_closed) in [(0o700, true), (0o711, false), (0o750, false)] {
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(folder.path(), mode.clone()).unwrap();
                assert_eq!(is_closed_to_user(&socket), is_closed, "{mode:?}");
            }
        }
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
