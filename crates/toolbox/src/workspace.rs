//! Where tools may read and write. A path is resolved inside an opened folder, symbolic links followed
//! by the kernel within it, so that nothing can be swapped between the check and the use.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use selvedge_protocol::SandboxPolicy;
use selvedge_tools::ToolError;

/// Folders inside a writable folder that stay read-only.
const PROTECTED: [&str; 2] = [".git", ".selvedge"];

/// Whether nobody has business in a file or folder of this name.
pub(crate) fn is_protected(name: &OsStr) -> bool {
    PROTECTED
        .iter()
        .any(|protected| name.eq_ignore_ascii_case(protected))
}

/// Files nobody needs for work and everybody wants to steal, below the home folder.
pub(crate) const SECRETS: [&str; 27] = [
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

/// The same for the whole machine. Only root can read them, and in containers they mostly hold nothing.
const SYSTEM_SECRETS: [&str; 4] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
];

/// The folder a session works in, and what else it may touch.
#[derive(Debug, Clone)]
pub struct Workspace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    policy: SandboxPolicy,
    /// Canonical path and handle of each folder that may be written.
    writable: Vec<(PathBuf, Dir)>,
    secrets: Vec<PathBuf>,
    /// Held while files are changed: calls run side by side.
    changing: Mutex<()>,
}

/// A path that may be written, relative to an opened folder.
#[derive(Debug)]
pub(crate) struct Writable<'a> {
    pub(crate) dir: &'a Dir,
    pub(crate) path: PathBuf,
}

impl Workspace {
    /// Opens the folder. `private` are folders nobody may read, such as Selvedge's own.
    pub fn open(root: &Path, policy: SandboxPolicy, private: &[PathBuf]) -> io::Result<Self> {
        Self::open_with(root, policy, private, &[])
    }

    /// The same, with more folders that may be written.
    pub fn open_with(
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
        // Each that is hidden costs every command a mount.
        let holds_one = |path: &PathBuf| std::fs::read(path).is_ok_and(|text| text.contains(&b'$'));
        secrets.extend(SYSTEM_SECRETS.iter().map(PathBuf::from).filter(holds_one));
        if let Some(home) = std::env::home_dir() {
            secrets.extend(SECRETS.iter().map(|name| home.join(name)));
            // Where the home folder itself is a link, what is in it has two names.
            secrets.extend(
                home.canonicalize()
                    .into_iter()
                    .flat_map(|home| SECRETS.map(|name| home.join(name))),
            );
        }
        // And where a secret is one, too.
        secrets.extend(
            secrets
                .clone()
                .iter()
                .filter_map(|path| path.canonicalize().ok()),
        );
        secrets.sort();
        secrets.dedup();
        Ok(Self {
            inner: Arc::new(Inner {
                root,
                policy,
                writable,
                secrets,
                changing: Mutex::new(()),
            }),
        })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// What may be changed.
    pub fn policy(&self) -> SandboxPolicy {
        self.inner.policy
    }

    /// Folders that may be written.
    pub fn writable_roots(&self) -> impl Iterator<Item = &Path> {
        self.inner.writable.iter().map(|(path, _)| path.as_path())
    }

    /// What stays read-only inside the folders that may be written.
    pub(crate) fn protected(&self) -> Vec<PathBuf> {
        if self.inner.policy != SandboxPolicy::WorkspaceWrite {
            return Vec::new();
        }
        let within_reach =
            |folder: &Path| self.writable_roots().any(|root| folder.starts_with(root));
        // Git looks for a repository from the workspace upwards.
        let above = self
            .inner
            .root
            .ancestors()
            .skip(1)
            .filter(|folder| within_reach(folder));
        let mut folders: Vec<&Path> = self.writable_roots().chain(above).collect();
        folders.sort();
        folders.dedup();
        let mut protected = Vec::new();
        for folder in folders {
            let names = PROTECTED.map(|name| folder.join(name)).into_iter();
            protected.extend(
                names.filter(|path| folder == self.inner.root || !is_a_strangers_link(path)),
            );
            // A linked work tree keeps its history elsewhere, perhaps within reach.
            let linked = linked_git_folder(&folder.join(".git"));
            let shared = linked.as_ref().and_then(|folder| {
                let text = read_pointer(&folder.join("commondir"))?;
                folder.join(text.trim()).canonicalize().ok()
            });
            protected.extend(
                shared
                    .into_iter()
                    .chain(linked)
                    .filter(|folder| within_reach(folder)),
            );
        }
        protected
    }

    /// Folders and files nobody may read.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &Path> {
        self.inner.secrets.iter().map(PathBuf::as_path)
    }

    /// A path as given, made absolute; `base` (a `workdir`) counts from the workspace.
    pub(crate) fn absolute(&self, path: impl AsRef<Path>, base: Option<&str>) -> PathBuf {
        let base = base.map_or_else(
            || self.inner.root.clone(),
            |base| self.inner.root.join(base),
        );
        lexical(&base.join(path))
    }

    /// A path the way scripts see it: relative to the workspace where it is inside.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let path = path.strip_prefix(&self.inner.root).unwrap_or(path);
        if path.as_os_str().is_empty() {
            ".".to_owned()
        } else {
            path.to_string_lossy().into_owned()
        }
    }

    /// Opens a file for reading. Anything may be read but secrets.
    pub(crate) fn open_file(&self, path: &Path) -> Result<std::fs::File, ToolError> {
        let shown = self.shown(path);
        let file = open_without_waiting(path).map_err(|error| read_error(&shown, &error))?;
        // What was opened is what is judged: the name may have pointed elsewhere.
        if tells_of_processes(&file) {
            return Err(of_processes(&shown));
        }
        self.refuse_secrets(&real_path(&file, path), &shown)?;
        let metadata = file
            .metadata()
            .map_err(|error| read_error(&shown, &error))?;
        if metadata.is_dir() {
            return Err(
                ToolError::new(format!("{shown} is a folder")).suggest("use listDir for folders")
            );
        }
        if !metadata.is_file() {
            return Err(ToolError::new(format!(
                "{shown} is not a file but a pipe, a socket or a device"
            )));
        }
        Ok(file)
    }

    /// Opens a file by its canonical path, which was judged: no link is followed, and nothing but a file is opened.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_without_links(&self, path: &Path) -> io::Result<std::fs::File> {
        let file = match open_resolving(path, rustix::fs::ResolveFlags::NO_SYMLINKS) {
            // Where the kernel cannot be told, what was opened must have the name that was judged.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => open_plainly(path)
                .and_then(|file| match real_path(&file, path) == path {
                    true => Ok(file),
                    false => Err(io::ErrorKind::InvalidInput.into()),
                }),
            opened => opened,
        }?;
        let is_file = file.metadata()?.is_file() && !tells_of_processes(&file);
        if is_file {
            Ok(file)
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// Opens a file by its canonical path, as far as this system can.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn open_without_links(&self, path: &Path) -> io::Result<std::fs::File> {
        self.open_file(path)
            .map_err(|error| io::Error::other(error.message))
    }

    /// Refuses folders and files that hold secrets, below them too.
    pub(crate) fn refuse_secrets(&self, path: &Path, shown: &str) -> Result<(), ToolError> {
        if self.is_secret(path) {
            return Err(ToolError::new(format!(
                "{shown} holds secrets and is not read"
            )));
        }
        if is_below_proc(path) {
            return Err(of_processes(shown));
        }
        Ok(())
    }

    pub(crate) fn is_secret(&self, path: &Path) -> bool {
        self.inner
            .secrets
            .iter()
            .any(|secret| path.starts_with(secret))
    }

    /// Lets one change of files at a time through, from reading the old ones to writing the new.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        // A change that broke off has undone itself or says so: the next may go on.
        self.inner
            .changing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses names that stay as they are, wherever below a folder that may be written.
    pub(crate) fn refuse_protected(&self, path: &Path, shown: &str) -> Result<(), ToolError> {
        let below = self
            .writable_roots()
            .filter_map(|root| path.strip_prefix(root).ok());
        // Below the innermost: the workspace itself may lie in a folder of such a name.
        let Some(rest) = below.min_by_key(|rest| rest.components().count()) else {
            return Ok(());
        };
        let protected = |name: &str| {
            rest.components()
                .any(|part| part.as_os_str().eq_ignore_ascii_case(name))
        };
        match PROTECTED.iter().find(|name| protected(name)) {
            Some(name) if self.inner.policy == SandboxPolicy::WorkspaceWrite => Err(
                ToolError::new(format!("{shown} cannot be written: {name} is protected")),
            ),
            _ => Ok(()),
        }
    }

    /// Checks that a path may be written, and returns it relative to an opened folder.
    pub(crate) fn writable(&self, path: &Path, shown: &str) -> Result<Writable<'_>, ToolError> {
        if self.inner.policy == SandboxPolicy::ReadOnly {
            return Err(ToolError::new(format!(
                "{shown} cannot be written: the sandbox is read-only"
            ))
            .suggest("the sandbox policy `workspace-write` allows it"));
        }
        let inside = self
            .inner
            .writable
            .iter()
            .find_map(|(root, dir)| Some((dir, path.strip_prefix(root).ok()?)));
        let Some((dir, rest)) = inside else {
            return Err(
                ToolError::new(format!("{shown} is outside the workspace")).suggest(format!(
                    "only {} and temporary folders can be written",
                    self.inner.root.display()
                )),
            );
        };
        self.refuse_protected(path, shown)?;
        Ok(Writable {
            dir,
            path: rest.to_owned(),
        })
    }
}

fn read_error(shown: &str, error: &io::Error) -> ToolError {
    match error.kind() {
        io::ErrorKind::NotFound => ToolError::new(format!("{shown} does not exist"))
            .suggest("fileSearch finds files by name"),
        io::ErrorKind::PermissionDenied => {
            ToolError::new(format!("{shown} cannot be read: permission denied"))
        }
        _ => ToolError::new(format!("{shown} cannot be read: {error}")),
    }
}

/// The path an open file really has.
#[cfg(target_os = "linux")]
pub(crate) fn real_path(file: &impl std::os::fd::AsRawFd, path: &Path) -> PathBuf {
    let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    real.or_else(|_| path.canonicalize()).unwrap_or_default()
}

/// The path an open file really has, as far as this system tells.
#[cfg(not(target_os = "linux"))]
pub(crate) fn real_path<T>(_: &T, path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_default()
}

fn of_processes(shown: &str) -> ToolError {
    ToolError::new(format!(
        "{shown} tells of processes, secrets in their environment among it, and is not read"
    ))
}

/// Whether an open file is one of those in which the kernel tells of processes, whatever it is called.
#[cfg(target_os = "linux")]
fn tells_of_processes(file: &std::fs::File) -> bool {
    // What cannot be asked is not trusted.
    rustix::fs::fstatfs(file).map_or(true, |system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(not(target_os = "linux"))]
fn tells_of_processes(_: &std::fs::File) -> bool {
    false
}

/// Whether a path, or the nearest part of it that is there, lies where the kernel tells of processes.
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

/// Whether a link is somebody else's: it cannot be replaced by us, and is not ours to protect.
fn is_a_strangers_link(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata()
        .is_ok_and(|there| there.is_symlink() && there.uid() != rustix::process::geteuid().as_raw())
}

/// Opens for reading; a pipe that nobody writes to is not waited for.
#[cfg(target_os = "linux")]
fn open_without_waiting(path: &Path) -> io::Result<std::fs::File> {
    // Links of the kernel's lead to what other processes have open, whatever it is called.
    match open_resolving(path, rustix::fs::ResolveFlags::NO_MAGICLINKS) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => open_plainly(path),
        opened => opened,
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn open_without_waiting(path: &Path) -> io::Result<std::fs::File> {
    open_plainly(path)
}

/// Opens for reading, following links only as far as this; unsupported where the kernel knows no such thing.
#[cfg(target_os = "linux")]
fn open_resolving(path: &Path, resolve: rustix::fs::ResolveFlags) -> io::Result<std::fs::File> {
    use rustix::fs::{CWD, Mode, OFlags, openat2};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat2(CWD, path, flags, Mode::empty(), resolve)?.into())
}

#[cfg(unix)]
fn open_plainly(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

#[cfg(not(unix))]
fn open_without_waiting(path: &Path) -> io::Result<std::fs::File> {
    std::fs::File::open(path)
}

/// Without `.` and `..`, by names alone: what may be followed, the kernel decides.
fn lexical(path: &Path) -> PathBuf {
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

/// The folder that holds a repository's history when `.git` is a file that names it.
fn linked_git_folder(git: &Path) -> Option<PathBuf> {
    let text = read_pointer(git)?;
    let folder = text.strip_prefix("gitdir:")?.trim();
    git.parent()?.join(folder).canonicalize().ok()
}

/// A file that names another. Where others may write, it may be anything: a pipe is not waited for.
fn read_pointer(path: &Path) -> Option<String> {
    const LONGEST: u64 = 16 << 10;
    let file = open_without_waiting(path).ok()?;
    let mut text = String::new();
    file.metadata()
        .ok()?
        .is_file()
        .then_some(file)?
        .take(LONGEST)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}
