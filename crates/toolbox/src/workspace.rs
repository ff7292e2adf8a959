//! Decides which paths tools may read and write. Writes go through open folder
//! handles (`cap_std::fs::Dir`), which symbolic links cannot leave, so that replacing a folder by a
//! link between check and use has no effect.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use selvedge_protocol::SandboxPolicy;
use selvedge_tools::ToolError;

/// Names of folders that stay read-only inside writable folders.
const PROTECTED_NAMES: [&str; 2] = [".git", ".selvedge"];

/// Returns whether a file or folder of this name stays read-only. Ignores case.
pub(crate) fn is_protected_name(name: &OsStr) -> bool {
    PROTECTED_NAMES
        .iter()
        .any(|protected| name.eq_ignore_ascii_case(protected))
}

/// Files and folders with credentials, relative to the home folder.
pub(crate) const HOME_SECRETS: [&str; 27] = [
    ".ssh",
    ".aws",
    ".gnupg",
    ".kube",
    ".docker/config.json",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".config/gcloud",
    ".config/gh",
    ".azure",
    ".boto",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".claude.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".config/git/credentials",
    ".config/op",
    ".gem/credentials",
    ".local/share/keyrings",
    ".my.cnf",
    ".password-store",
    ".pgpass",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
];

/// System files with credentials. Only root can read them, and in containers they are usually
/// empty.
const SYSTEM_SECRETS: [&str; 4] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
];

/// The folder that a session works in, and the other paths that its tools can read and write.
#[derive(Debug, Clone)]
pub struct Workspace {
    inner: Arc<WorkspaceInner>,
}

#[derive(Debug)]
struct WorkspaceInner {
    root: PathBuf,
    policy: SandboxPolicy,
    /// Canonical path and handle of each writable folder.
    writable: Vec<(PathBuf, Dir)>,
    /// Paths that tools and commands cannot read.
    secrets: Vec<PathBuf>,
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
        let root = root.canonicalize()?;
        let mut writable = Vec::new();
        let folders = match policy {
            SandboxPolicy::ReadOnly => Vec::new(),
            SandboxPolicy::WorkspaceWrite => {
                let mut folders = vec![root.clone(), PathBuf::from("/tmp")];
                folders.extend(std::env::var_os("TMPDIR").map(PathBuf::from));
                folders.extend(writable_too.iter().map(|folder| root.join(folder)));
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
        let mut secrets = private.to_vec();
        // Only files with a password hash are hidden, because each hidden path costs every command
        // a mount.
        let has_hash = |path: &PathBuf| std::fs::read(path).is_ok_and(|text| text.contains(&b'$'));
        secrets.extend(SYSTEM_SECRETS.iter().map(PathBuf::from).filter(has_hash));
        if let Some(home) = std::env::home_dir() {
            secrets.extend(HOME_SECRETS.iter().map(|name| home.join(name)));
            // If the home folder is a link, the files in it have two paths.
            secrets.extend(
                home.canonicalize()
                    .into_iter()
                    .flat_map(|home| HOME_SECRETS.map(|name| home.join(name))),
            );
        }
        // If a secret is itself a link, its target is a secret, too.
        secrets.extend(
            secrets
                .clone()
                .iter()
                .filter_map(|path| path.canonicalize().ok()),
        );
        secrets.sort();
        secrets.dedup();
        Ok(Self {
            inner: Arc::new(WorkspaceInner {
                root,
                policy,
                writable,
                secrets,
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

    /// Returns the canonical paths of the writable folders.
    pub fn writable_roots(&self) -> impl Iterator<Item = &Path> {
        self.inner.writable.iter().map(|(path, _)| path.as_path())
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
        let mut protected = Vec::new();
        for folder in folders {
            let names = PROTECTED_NAMES.map(|name| folder.join(name)).into_iter();
            protected.extend(
                names.filter(|path| folder == self.inner.root || !is_foreign_symlink(path)),
            );
            // The history of a linked work tree is in another folder, which may be writable.
            let linked = linked_git_folder(&folder.join(".git"));
            let shared = linked.as_ref().and_then(|folder| {
                let text = read_git_pointer(&folder.join("commondir"))?;
                folder.join(text.trim()).canonicalize().ok()
            });
            protected.extend(
                shared
                    .into_iter()
                    .chain(linked)
                    .filter(|folder| is_writable(folder)),
            );
        }
        protected
    }

    /// Returns the files and folders that cannot be read.
    pub(crate) fn secret_paths(&self) -> impl Iterator<Item = &Path> {
        self.inner.secrets.iter().map(PathBuf::as_path)
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
        let is_file = file.metadata()?.is_file() && !is_proc_file(&file);
        if is_file {
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
            return Err(ToolError::new(format!(
                "{display_path} cannot be accessed: it holds secrets"
            )));
        }
        if is_below_proc(path) {
            return Err(proc_error(display_path));
        }
        Ok(())
    }

    pub(crate) fn is_secret(&self, path: &Path) -> bool {
        self.inner
            .secrets
            .iter()
            .any(|secret| path.starts_with(secret))
    }

    /// Takes the lock for changing files. Hold it from reading the old content to writing the new.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        // A change that panicked has been rolled back or reported, so the lock can be used again.
        self.inner
            .change_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if a path below a writable folder contains a protected name.
    pub(crate) fn refuse_protected(
        &self,
        path: &Path,
        display_path: &str,
    ) -> Result<(), ToolError> {
        let relative = self
            .writable_roots()
            .filter_map(|root| path.strip_prefix(root).ok());
        // Relative to the innermost root: the workspace may lie in a folder with a protected name.
        let Some(rest) = relative.min_by_key(|rest| rest.components().count()) else {
            return Ok(());
        };
        let contains = |name: &str| {
            rest.components()
                .any(|part| part.as_os_str().eq_ignore_ascii_case(name))
        };
        match PROTECTED_NAMES.iter().find(|name| contains(name)) {
            Some(name) if self.inner.policy == SandboxPolicy::WorkspaceWrite => {
                Err(ToolError::new(format!(
                    "{display_path} cannot be written: {name} is protected"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns a path relative to an open folder, or fails if it must not be written.
    pub(crate) fn writable_path(
        &self,
        path: &Path,
        display_path: &str,
    ) -> Result<WritablePath<'_>, ToolError> {
        if self.inner.policy == SandboxPolicy::ReadOnly {
            return Err(ToolError::new(format!(
                "{display_path} cannot be written: the sandbox is read-only"
            ))
            .suggest("set `sandbox_mode = \"workspace-write\"` in the configuration to allow it"));
        }
        let found = self
            .inner
            .writable
            .iter()
            .find_map(|(root, dir)| Some((dir, path.strip_prefix(root).ok()?)));
        let Some((dir, rest)) = found else {
            return Err(
                ToolError::new(format!("{display_path} is outside the workspace")).suggest(
                    format!(
                        "write below {} or in a temporary folder",
                        self.inner.root.display()
                    ),
                ),
            );
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
    ToolError::new(format!(
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
fn open_nonblocking(path: &Path) -> io::Result<std::fs::File> {
    // Magic links of /proc lead to the open files of other processes.
    match open_with_resolve(path, rustix::fs::ResolveFlags::NO_MAGICLINKS) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => open_without_resolve(path),
        opened => opened,
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn open_nonblocking(path: &Path) -> io::Result<std::fs::File> {
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
fn open_nonblocking(path: &Path) -> io::Result<std::fs::File> {
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

/// Returns the repository folder that a `.git` file names. `None` if `.git` is a folder.
fn linked_git_folder(git: &Path) -> Option<PathBuf> {
    let text = read_git_pointer(git)?;
    let folder = text.strip_prefix("gitdir:")?.trim();
    git.parent()?.join(folder).canonicalize().ok()
}

/// Reads a file that contains a path. The file may be untrusted, so at most 16 kB are read and a
/// pipe does not block.
fn read_git_pointer(path: &Path) -> Option<String> {
    const MAX_BYTES: u64 = 16 << 10;
    let file = open_nonblocking(path).ok()?;
    let mut text = String::new();
    file.metadata()
        .ok()?
        .is_file()
        .then_some(file)?
        .take(MAX_BYTES)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}
