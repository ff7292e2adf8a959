//! Decides which paths tools may read and write. Writes go through open folder
//! handles (`cap_std::fs::Dir`), which symbolic links cannot leave, so that replacing a folder by a
//! link between check and use has no effect.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use selvedge_protocol::SandboxPolicy;
use selvedge_tools::ToolError;

use crate::git_files::git_branch;
use crate::hidden_paths::HiddenPaths;
use crate::other_workspaces::OtherWorkspaces;
use crate::protected_paths::ProtectedPaths;

/// The folder that a session works in, and the other paths that its tools can read and write.
#[derive(Debug, Clone)]
pub struct Workspace {
    inner: Arc<WorkspaceInner>,
}

/// Rules for the paths of a workspace. Relative paths are relative to it, and `~` is the home
/// folder except in `private` and `writable`.
#[derive(Debug, Clone, Default)]
pub struct WorkspacePaths {
    /// Paths that cannot be read, whatever the other rules say, such as `SELVEDGE_HOME`. The last
    /// one that can be written contains locks, so it should be the same in all processes of a user.
    pub private: Vec<PathBuf>,
    /// Further folders that may be written.
    pub writable: Vec<PathBuf>,
    /// Further paths that stay read-only in writable folders. A single name means every file and
    /// folder of that name.
    pub protected: Vec<PathBuf>,
    /// Workspaces of other sessions. They stay read-only in writable folders, and are not named.
    pub other_workspaces: OtherWorkspaces,
    /// Names that are protected by default and shall not be.
    pub unprotected: Vec<PathBuf>,
    /// Further paths that cannot be read.
    pub hidden: Vec<PathBuf>,
    /// Paths that are hidden by default and shall not be.
    pub visible: Vec<PathBuf>,
}

#[derive(Debug)]
struct WorkspaceInner {
    root: PathBuf,
    policy: SandboxPolicy,
    /// Canonical path and handle of each writable folder.
    writable: Vec<(PathBuf, Dir)>,
    /// The writable folders that belong to the work, not to the whole machine.
    work_folders: Vec<PathBuf>,
    /// Paths that tools and commands cannot write.
    protected: ProtectedPaths,
    /// Paths that tools and commands cannot read.
    hidden: HiddenPaths,
    /// The folder for locks that commands cannot hold.
    lock_folders: Vec<PathBuf>,
    /// Held while files are changed, because calls run concurrently.
    change_lock: Mutex<()>,
}

/// A writable path, relative to an open folder.
#[derive(Debug)]
pub(crate) struct WritablePath<'a> {
    pub(crate) dir: &'a Dir,
    pub(crate) path: PathBuf,
}

impl Workspace {
    /// Name of the entry of an error's `metadata` that is true if the sandbox is read-only.
    pub const READ_ONLY_METADATA_KEY: &str = "sandboxIsReadOnly";

    /// Opens a workspace. `private` are further paths that cannot be read, such as `SELVEDGE_HOME`.
    pub fn open(root: &Path, policy: SandboxPolicy, private: &[PathBuf]) -> io::Result<Self> {
        Self::open_with_writable(root, policy, private, &[])
    }

    /// Opens a workspace with further writable folders. Relative ones are relative to `root`.
    pub fn open_with_writable(
        root: &Path,
        policy: SandboxPolicy,
        private: &[PathBuf],
        writable_too: &[PathBuf],
    ) -> io::Result<Self> {
        let paths = WorkspacePaths {
            private: private.to_vec(),
            writable: writable_too.to_vec(),
            ..WorkspacePaths::default()
        };
        Self::open_with_paths(root, policy, &paths)
    }

    /// Opens a workspace with further rules for paths.
    pub fn open_with_paths(
        root: &Path,
        policy: SandboxPolicy,
        paths: &WorkspacePaths,
    ) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let own: Vec<PathBuf> = std::iter::once(root.clone())
            .chain(paths.writable.iter().map(|folder| root.join(folder)))
            .filter_map(|folder| folder.canonicalize().ok())
            .collect();
        let mut writable = Vec::new();
        let folders = match policy {
            SandboxPolicy::ReadOnly => Vec::new(),
            SandboxPolicy::WorkspaceWrite => {
                let mut folders = vec![root.clone(), PathBuf::from("/tmp")];
                folders.extend(std::env::var_os("TMPDIR").map(PathBuf::from));
                folders.extend(own.iter().cloned());
                folders
            }
            SandboxPolicy::DangerFullAccess => vec![root.clone(), PathBuf::from("/")],
        };
        for folder in folders {
            let Ok(folder) = folder.canonicalize() else {
                continue;
            };
            if folder.is_dir() && !writable.iter().any(|(path, _)| *path == folder) {
                let dir = Dir::open_ambient_dir(&folder, ambient_authority())?;
                writable.push((folder, dir));
            }
        }
        Ok(Self {
            inner: Arc::new(WorkspaceInner {
                protected: ProtectedPaths::new(&root, paths),
                hidden: HiddenPaths::new(&root, &paths.private, &paths.hidden, &paths.visible),
                // The last private folder is the same for all processes of a user.
                lock_folders: (paths.private.iter().rev())
                    .map(|folder| folder.join("locks"))
                    .collect(),
                root,
                policy,
                writable,
                work_folders: own,
                change_lock: Mutex::new(()),
            }),
        })
    }

    /// Returns the canonical path of the workspace folder.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// Returns the sandbox policy, which decides what can be written.
    pub fn policy(&self) -> SandboxPolicy {
        self.inner.policy
    }

    /// Returns the names and paths that stay read-only in writable folders.
    pub fn protected_names(&self) -> Vec<String> {
        self.inner.protected.display_names(&self.inner.root)
    }

    /// Returns the branch of git that is checked out in the workspace.
    pub fn git_branch(&self) -> Option<String> {
        git_branch(&self.inner.root)
    }

    /// Returns the canonical paths of the writable folders.
    pub fn writable_roots(&self) -> impl Iterator<Item = &Path> {
        self.inner.writable.iter().map(|(path, _)| path.as_path())
    }

    /// Returns the folders that commands may write. If the home folder belongs to the work, its dot
    /// files are protected in all of them. If it only lies in a temporary folder, that folder stays
    /// writable as a whole.
    pub(crate) fn command_writable_roots(&self) -> Vec<PathBuf> {
        let protected = &self.inner.protected;
        let mut own = self.inner.work_folders.iter();
        if !own.any(|folder| protected.contains_home(folder)) {
            return self.writable_roots().map(Path::to_owned).collect();
        }
        self.writable_roots()
            .flat_map(|folder| protected.writable_by_commands(folder))
            .collect()
    }

    /// Returns the paths inside writable folders that stay read-only.
    pub(crate) fn protected_paths(&self) -> Vec<PathBuf> {
        if self.inner.policy != SandboxPolicy::WorkspaceWrite {
            return Vec::new();
        }
        let is_writable =
            |folder: &Path| self.writable_roots().any(|root| folder.starts_with(root));
        // Git searches for a repository in the parent folders of the workspace.
        let above = self
            .inner
            .root
            .ancestors()
            .skip(1)
            .filter(|folder| is_writable(folder));
        let mut folders: Vec<&Path> = self.writable_roots().chain(above).collect();
        folders.sort();
        folders.dedup();
        let (own, shared): (Vec<&Path>, Vec<&Path>) = folders
            .iter()
            .partition(|folder| self.inner.work_folders.iter().any(|own| own == **folder));
        let mut protected = self.inner.protected.in_folders(&own, &shared);
        // The history of a linked work tree is in another folder, which may be writable. A
        // repository above the workspace can refer to files in it.
        let above: Vec<&Path> = self.inner.root.ancestors().skip(1).collect();
        let above = [shared, above].concat();
        let outside = self.inner.protected.executed_outside(&own, &above);
        let contains_root = |path: &Path| self.writable_roots().any(|root| root.starts_with(path));
        protected.extend(outside.into_iter().filter(|path| !contains_root(path)));
        let writable = self.command_writable_roots();
        protected.retain(|path| {
            let is_own = path.parent() == Some(&self.inner.root);
            writable.iter().any(|folder| path.starts_with(folder))
                && (is_own || !is_foreign_symlink(path))
        });
        protected
    }

    /// Returns whether the sandbox lets commands write to a path.
    pub fn is_writable_by_commands(&self, path: &Path) -> bool {
        let is_below = |roots: &[PathBuf]| roots.iter().any(|root| path.starts_with(root));
        is_below(&self.command_writable_roots()) && !is_below(&self.protected_paths())
    }

    /// Returns the files and folders that cannot be read.
    pub(crate) fn secret_paths(&self) -> impl Iterator<Item = &Path> {
        self.inner.hidden.iter()
    }

    /// Returns the secrets that a confined command could read or create: those that exist, and
    /// those in writable folders. The others are most, and each would have to be resolved.
    pub(crate) fn paths_to_hide(&self) -> Vec<PathBuf> {
        let is_writable = |path: &Path| self.writable_roots().any(|root| path.starts_with(root));
        let secrets = self.secret_paths();
        // The start of the command may create it.
        let has_locks = |path: &Path| {
            let mut folders = self.inner.lock_folders.iter();
            folders.any(|locks| locks.starts_with(path))
        };
        // The profile of macOS names paths, whether they exist or not.
        let is_needed = |path: &&Path| {
            cfg!(not(target_os = "linux"))
                || is_writable(path)
                || has_locks(path)
                || path.symlink_metadata().is_ok()
        };
        secrets.filter(is_needed).map(Path::to_owned).collect()
    }

    /// Returns the folders for locks that commands cannot hold.
    pub(crate) fn lock_folders(&self) -> Vec<PathBuf> {
        self.inner.lock_folders.clone()
    }

    /// Makes a path absolute. It is relative to `base`, which is relative to the workspace.
    pub(crate) fn absolute(&self, path: impl AsRef<Path>, base: Option<&str>) -> PathBuf {
        let base = base.map_or_else(
            || self.inner.root.clone(),
            |base| self.inner.root.join(base),
        );
        normalize_lexically(&base.join(path))
    }

    /// Returns a path as scripts see it: relative to the workspace if it is inside.
    pub(crate) fn display_path(&self, path: &Path) -> String {
        let path = path.strip_prefix(&self.inner.root).unwrap_or(path);
        if path.as_os_str().is_empty() {
            ".".to_owned()
        } else {
            path.to_string_lossy().into_owned()
        }
    }

    /// Opens a file for reading. Fails for secrets, folders and special files.
    pub(crate) fn open_file(&self, path: &Path) -> Result<std::fs::File, ToolError> {
        let display_path = self.display_path(path);
        let file = open_nonblocking(path).map_err(|error| read_error(&display_path, &error))?;
        // Checks the open file, not the path, which may lead to another file by now.
        if is_proc_file(&file) {
            return Err(proc_error(&display_path));
        }
        self.refuse_secrets(&real_path(&file, path), &display_path)?;
        let metadata = file
            .metadata()
            .map_err(|error| read_error(&display_path, &error))?;
        self.refuse_secret_file(&metadata, &display_path)?;
        if metadata.is_dir() {
            return Err(ToolError::new(format!("{display_path} is a folder"))
                .suggest("list it with tools.listDir"));
        }
        if !metadata.is_file() {
            return Err(ToolError::new(format!(
                "{display_path} is not a file but a pipe, a socket or a device"
            )));
        }
        Ok(file)
    }

    /// Opens a file of the workspace for reading, if no part of its path below is a link.
    pub(crate) fn open_file_inside(&self, path: &Path) -> Result<std::fs::File, ToolError> {
        let display_path = self.display_path(path);
        if !path.starts_with(&self.inner.root) {
            return Err(ToolError::new(format!(
                "{display_path} is outside the workspace"
            )));
        }
        self.refuse_secrets(path, &display_path)?;
        self.open_no_follow(path)
            .map_err(|error| read_error(&display_path, &error))
    }

    /// Opens a regular file by its canonical path, which the caller has checked. Does not follow
    /// links.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_no_follow(&self, path: &Path) -> io::Result<std::fs::File> {
        let file = match open_with_resolve(path, rustix::fs::ResolveFlags::NO_SYMLINKS) {
            // Without support in the kernel, check the path of the opened file.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => open_without_resolve(path)
                .and_then(|file| match real_path(&file, path) == path {
                    true => Ok(file),
                    false => Err(io::ErrorKind::InvalidInput.into()),
                }),
            opened => opened,
        }?;
        let metadata = file.metadata()?;
        let is_secret = self.inner.hidden.contains_file(&metadata);
        if metadata.is_file() && !is_secret && !is_proc_file(&file) {
            Ok(file)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// Opens a file by its canonical path. This system cannot forbid links.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn open_no_follow(&self, path: &Path) -> io::Result<std::fs::File> {
        self.open_file(path)
            .map_err(|error| io::Error::other(error.message))
    }

    /// Fails if a path is or lies below a secret, or is below /proc.
    pub(crate) fn refuse_secrets(&self, path: &Path, display_path: &str) -> Result<(), ToolError> {
        if self.is_secret(path) {
            let error = ToolError::sandbox_violation(format!(
                "{display_path} cannot be accessed: it holds secrets"
            ));
            return Err(match self.inner.hidden.credential_of(path) {
                Some(hidden) => error.suggest(format!(
                    "add {:?} to visible_paths under [sandbox] in config.toml",
                    hidden.display().to_string()
                )),
                None => error,
            });
        }
        if is_below_proc(path) {
            return Err(proc_error(display_path));
        }
        Ok(())
    }

    /// Fails if an open file is a hard link to a secret.
    pub(crate) fn refuse_secret_file(
        &self,
        metadata: &std::fs::Metadata,
        display_path: &str,
    ) -> Result<(), ToolError> {
        if !self.is_secret_file(metadata) {
            return Ok(());
        }
        Err(ToolError::sandbox_violation(format!(
            "{display_path} cannot be accessed: it is a hard link to a file that holds secrets"
        )))
    }

    /// Returns whether a path is or lies below a secret.
    pub fn is_secret(&self, path: &Path) -> bool {
        self.inner.hidden.contains(path)
    }

    /// Returns whether a file is a hard link to a secret.
    pub(crate) fn is_secret_file(&self, metadata: &std::fs::Metadata) -> bool {
        self.inner.hidden.contains_file(metadata)
    }

    /// Returns whether there may be a hard link to a secret.
    pub(crate) fn has_linked_secrets(&self) -> bool {
        self.inner.hidden.has_linked_files()
    }

    /// Takes the lock for changing files. Hold it from reading the old content to writing the new.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        // A change that panicked has been rolled back or reported, so the lock can be used again.
        self.inner
            .change_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if a path below a writable folder is protected.
    pub(crate) fn refuse_protected(
        &self,
        path: &Path,
        display_path: &str,
    ) -> Result<(), ToolError> {
        match self.protection_reason(path) {
            Some(why) if self.inner.policy == SandboxPolicy::WorkspaceWrite => {
                let message = format!("{display_path} cannot be written: {why}");
                Err(ToolError::sandbox_violation(message).suggest(
                    "run a command with withEscalatedPermissions: true, which asks for approval",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns what protects a path from changes, for a message. `None` if nothing does.
    pub(crate) fn protection_reason(&self, path: &Path) -> Option<String> {
        // Relative to the innermost root: the workspace may lie in a folder with a protected name.
        let innermost = self
            .writable_roots()
            .filter(|root| path.starts_with(root))
            .max_by_key(|root| root.components().count())?;
        self.inner
            .protected
            .protection_reason(path, innermost, &self.inner.root)
    }

    /// Returns whether an entry is protected by its own name or path, for walks that enter no
    /// protected folder.
    pub(crate) fn is_protected_entry(&self, path: &Path) -> bool {
        self.inner.protected.contains_entry(path)
    }

    /// Returns a path relative to an open folder, or fails if it must not be written.
    pub(crate) fn writable_path(
        &self,
        path: &Path,
        display_path: &str,
    ) -> Result<WritablePath<'_>, ToolError> {
        if self.inner.policy == SandboxPolicy::ReadOnly {
            let mut error = ToolError::sandbox_violation(format!(
                "{display_path} cannot be written: the sandbox is read-only"
            ))
            .suggest("restart Selvedge with --sandbox workspace-write");
            let read_only = (Self::READ_ONLY_METADATA_KEY.to_owned(), true.into());
            error.metadata.extend([read_only]);
            return Err(error);
        }
        let found = self
            .inner
            .writable
            .iter()
            .find_map(|(root, dir)| Some((dir, path.strip_prefix(root).ok()?)));
        let Some((dir, rest)) = found else {
            return Err(ToolError::sandbox_violation(format!(
                "{display_path} cannot be written: it is outside the workspace"
            ))
            .suggest(format!(
                "write below {} or in a temporary folder",
                self.inner.root.display()
            )));
        };
        self.refuse_protected(path, display_path)?;
        Ok(WritablePath {
            dir,
            path: rest.to_owned(),
        })
    }
}

fn read_error(display_path: &str, error: &io::Error) -> ToolError {
    match error.kind() {
        io::ErrorKind::NotFound => ToolError::new(format!("{display_path} does not exist"))
            .suggest("find files by name with tools.fileSearch"),
        io::ErrorKind::PermissionDenied => {
            ToolError::new(format!("{display_path} cannot be read: permission denied"))
        }
        _ => ToolError::new(format!("{display_path} cannot be read: {error}")),
    }
}

/// Returns the current path of an open file.
#[cfg(target_os = "linux")]
pub(crate) fn real_path(file: &impl std::os::fd::AsRawFd, path: &Path) -> PathBuf {
    let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    real.or_else(|_| path.canonicalize()).unwrap_or_default()
}

/// Returns the canonical form of `path`. This system cannot look up the path of an open file.
#[cfg(not(target_os = "linux"))]
pub(crate) fn real_path<T>(_: &T, path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_default()
}

fn proc_error(display_path: &str) -> ToolError {
    ToolError::sandbox_violation(format!(
        "{display_path} cannot be accessed: it exposes processes and their environment"
    ))
}

/// Returns whether an open file is in a proc file system, whatever its path.
#[cfg(target_os = "linux")]
fn is_proc_file(file: &std::fs::File) -> bool {
    // If the check fails, assume that it is.
    rustix::fs::fstatfs(file).map_or(true, |system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(not(target_os = "linux"))]
fn is_proc_file(_: &std::fs::File) -> bool {
    false
}

/// Returns whether a path, or its deepest existing part, is in a proc file system.
#[cfg(target_os = "linux")]
pub(crate) fn is_below_proc(path: &Path) -> bool {
    let nearest = path
        .ancestors()
        .find_map(|path| rustix::fs::statfs(path).ok());
    nearest.is_some_and(|system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn is_below_proc(_: &Path) -> bool {
    false
}

/// Returns whether a path is a symbolic link of another user. A command cannot replace such a link,
/// so it needs no protection.
fn is_foreign_symlink(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own_uid = rustix::process::geteuid().as_raw();
    path.symlink_metadata()
        .is_ok_and(|metadata| metadata.is_symlink() && metadata.uid() != own_uid)
}

/// Opens a file for reading. Does not block if it is a pipe without a writer.
#[cfg(target_os = "linux")]
pub(crate) fn open_nonblocking(path: &Path) -> io::Result<std::fs::File> {
    // Magic links of /proc lead to the open files of other processes.
    match open_with_resolve(path, rustix::fs::ResolveFlags::NO_MAGICLINKS) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => open_without_resolve(path),
        opened => opened,
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
pub(crate) fn open_nonblocking(path: &Path) -> io::Result<std::fs::File> {
    open_without_resolve(path)
}

/// Opens a file for reading and restricts which links are followed. Returns `Unsupported` if the
/// kernel has no `openat2`.
#[cfg(target_os = "linux")]
fn open_with_resolve(path: &Path, resolve: rustix::fs::ResolveFlags) -> io::Result<std::fs::File> {
    use rustix::fs::{CWD, Mode, OFlags, openat2};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat2(CWD, path, flags, Mode::empty(), resolve)?.into())
}

#[cfg(unix)]
fn open_without_resolve(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

#[cfg(not(unix))]
pub(crate) fn open_nonblocking(path: &Path) -> io::Result<std::fs::File> {
    std::fs::File::open(path)
}

/// Removes `.` and `..` from a path without access to the file system.
fn normalize_lexically(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => _ = out.pop(),
            part => out.push(part),
        }
    }
    out
}
