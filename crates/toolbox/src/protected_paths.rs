//! The paths inside writable folders that stay read-only: repositories, and files that editors,
//! agents, hooks and shells execute later.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use crate::hidden_paths::expand_home;

/// Names that are always protected: history and hooks, and Selvedge's own configuration. They are
/// also protected in the folders above the workspace, where programs look for them.
const REPOSITORY_NAMES: [&str; 2] = [".git", ".selvedge"];

/// Names that are protected unless the configuration excepts them. Programs run what these files
/// say without being asked to run the project: editors and development containers when the folder
/// is opened, agents when they start, `direnv` at a prompt, git at a commit.
const CONFIGURATION_NAMES: [&str; 13] = [
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".envrc",
    ".fleet",
    ".gemini",
    ".husky",
    ".idea",
    ".mcp.json",
    ".vscode",
    ".windsurf",
    ".zed",
];

/// Maximum number of links that are followed to resolve a path, as in Linux.
const MAX_FOLLOWED_LINKS: usize = 40;

/// Maximum number of entries of a folder that are made writable one by one.
const MAX_FOLDER_ENTRIES: usize = 1_000;

/// Returns whether a name belongs to a repository or to Selvedge. Ignores case.
pub(crate) fn is_repository_name(name: &OsStr) -> bool {
    REPOSITORY_NAMES
        .iter()
        .any(|protected| name.eq_ignore_ascii_case(protected))
}

/// Decides which paths stay read-only.
#[derive(Debug, Default)]
pub(crate) struct ProtectedPaths {
    /// Names that are protected in every writable folder.
    names: Vec<String>,
    /// Further protected paths, absolute.
    paths: Vec<PathBuf>,
    /// The canonical home folder. If it is writable, its dot files are protected.
    home: Option<PathBuf>,
}

impl ProtectedPaths {
    /// Creates the list for a workspace. An entry of `added` without a slash is a name in every
    /// folder, one with a slash is a path relative to the workspace, or to the home folder after
    /// `~`. `excepted` entries are removed from the list; those of repositories stay.
    pub(crate) fn new(root: &Path, added: &[PathBuf], excepted: &[PathBuf]) -> Self {
        let home = std::env::home_dir();
        let is_excepted = |name: &str| {
            let trimmed = |path: &PathBuf| path.to_string_lossy().trim_matches('/').to_owned();
            excepted
                .iter()
                .any(|path| trimmed(path).eq_ignore_ascii_case(name))
        };
        let (names, paths): (Vec<&PathBuf>, Vec<&PathBuf>) =
            added.iter().partition(|path| is_name(path));
        let names = names.into_iter().map(|name| name.display().to_string());
        let default_names = CONFIGURATION_NAMES.map(str::to_owned).into_iter();
        let full = |path: &PathBuf| root.join(expand_home(path, home.as_deref()));
        Self {
            names: REPOSITORY_NAMES
                .map(str::to_owned)
                .into_iter()
                .chain(default_names.filter(|name| !is_excepted(name)))
                .chain(names)
                .collect(),
            paths: paths.into_iter().map(full).collect(),
            home: home.and_then(|home| home.canonicalize().ok()),
        }
    }

    /// Whether the last part of a path is a protected name, or the path itself is protected.
    pub(crate) fn contains_entry(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default();
        let mut names = self.names.iter();
        names.any(|protected| name.eq_ignore_ascii_case(protected))
            || self.paths.iter().any(|protected| protected == path)
    }

    /// Returns what protects a path below the writable folder `writable`, for a message. `None` if
    /// it may be written. The path is absolute and without `..`; `root` is the workspace.
    pub(crate) fn protection_reason(
        &self,
        path: &Path,
        writable: &Path,
        root: &Path,
    ) -> Option<String> {
        let rest = path.strip_prefix(writable).ok()?;
        let is_part = |name: &&String| {
            rest.components()
                .any(|part| part.as_os_str().eq_ignore_ascii_case(name))
        };
        if let Some(name) = self.names.iter().find(is_part) {
            return Some(format!("{name} is protected"));
        }
        if let Some(protected) = self.paths.iter().find(|protected| {
            let real = protected.canonicalize();
            path.starts_with(protected) || real.is_ok_and(|real| path.starts_with(real))
        }) {
            return Some(format!("{} is protected", protected.display()));
        }
        // Another name of a protected folder of the workspace, or a link on the way to it.
        let is_target = |name: &&String| {
            let link = root.join(name);
            link.is_symlink()
                && (link.canonicalize().is_ok_and(|real| path.starts_with(real))
                    || followed_links(&link).iter().any(|link| link == path))
        };
        if let Some(name) = self.names.iter().find(is_target) {
            return Some(format!("{name} is a link to it and protected"));
        }
        let home = self
            .home
            .as_deref()
            .filter(|home| home.starts_with(writable))?;
        let first = path.strip_prefix(home).ok()?.components().next()?;
        let is_dot_file = first.as_os_str().as_encoded_bytes().starts_with(b".");
        is_dot_file.then(|| "dot files of the home folder are protected".to_owned())
    }

    /// Returns the protected paths at the top of these folders. `above` are folders in which only
    /// repositories are protected, because others share them.
    pub(crate) fn in_folders(&self, folders: &[&Path], above: &[&Path]) -> Vec<PathBuf> {
        let all = folders
            .iter()
            .flat_map(|folder| self.names.iter().map(|name| folder.join(name)));
        let repositories = above
            .iter()
            .flat_map(|folder| REPOSITORY_NAMES.map(|name| folder.join(name)));
        let mut paths: Vec<PathBuf> = all
            .chain(repositories)
            .chain(self.paths.iter().cloned())
            .collect();
        let targets: Vec<PathBuf> = paths
            .iter()
            .filter(|path| path.is_symlink())
            .flat_map(|path| followed_links(path).into_iter().chain(path.canonicalize()))
            .collect();
        paths.extend(targets);
        paths.sort();
        paths.dedup();
        paths
    }

    /// Returns what is protected, as a person would name it: names, and paths relative to `root`.
    pub(crate) fn display_names(&self, root: &Path) -> Vec<String> {
        let shown = |path: &PathBuf| {
            let path = path.strip_prefix(root).unwrap_or(path);
            path.display().to_string()
        };
        let names = self.names.iter().cloned();
        names.chain(self.paths.iter().map(shown)).collect()
    }

    /// Returns whether the home folder is this folder or lies in it.
    pub(crate) fn contains_home(&self, folder: &Path) -> bool {
        self.home
            .as_ref()
            .is_some_and(|home| home.starts_with(folder))
    }

    /// Returns the folders that commands may write if `folder` is writable. That is `folder`
    /// itself, unless the home folder lies in it: then commands may write the folders of the home
    /// folder whose names start with no dot, and create nothing directly in it.
    pub(crate) fn writable_by_commands(&self, folder: &Path) -> Vec<PathBuf> {
        let Some(home) = self.home.as_deref().filter(|home| home.starts_with(folder)) else {
            return vec![folder.to_owned()];
        };
        let mut writable = Vec::new();
        for level in home
            .ancestors()
            .take_while(|level| level.starts_with(folder))
        {
            let entries = std::fs::read_dir(level).into_iter().flatten().flatten();
            let folders = entries
                .take(MAX_FOLDER_ENTRIES)
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
                .map(|entry| entry.path())
                .filter(|path| !home.starts_with(path));
            writable.extend(folders);
        }
        writable
    }
}

/// Returns whether a path is a single name.
fn is_name(path: &Path) -> bool {
    path.components().count() == 1 && !path.is_absolute() && path != Path::new("~")
}

/// Returns the links that are followed to resolve a path, with the real paths of their folders. Who
/// can replace one of them can replace the target.
fn followed_links(path: &Path) -> Vec<PathBuf> {
    let mut links = Vec::new();
    let mut resolved = PathBuf::new();
    // The parts that are left, the next one last.
    let parts = |path: &Path| -> Vec<PathBuf> {
        let parts = path.components().rev();
        parts.map(|part| PathBuf::from(part.as_os_str())).collect()
    };
    let mut left = parts(path);
    while let Some(part) = left.pop() {
        if part.components().next() == Some(Component::ParentDir) {
            resolved.pop();
            continue;
        }
        // The root of an absolute target replaces the path so far.
        let next = resolved.join(&part);
        match std::fs::read_link(&next) {
            Ok(_) if links.len() == MAX_FOLLOWED_LINKS => break,
            Ok(target) => {
                left.extend(parts(&target));
                links.push(next);
            }
            Err(_) => resolved = next,
        }
    }
    links
}

/// Returns the repository folders that a `.git` file names, with the links on the way to them: that
/// of the work tree and the one it shares with others. None if `.git` is a folder.
pub(crate) fn linked_git_folders(git: &Path) -> Vec<PathBuf> {
    let linked = || {
        let text = read_git_pointer(git)?;
        Some(git.parent()?.join(text.strip_prefix("gitdir:")?.trim()))
    };
    let Some(linked) = linked() else {
        return Vec::new();
    };
    let pointer = linked.join("commondir");
    let shared = read_git_pointer(&pointer).map(|text| linked.join(text.trim()));
    let mut paths = Vec::new();
    for folder in std::iter::once(linked).chain(shared) {
        paths.extend(followed_links(&folder));
        paths.extend(folder.canonicalize());
    }
    paths
}

/// Returns the branch that is checked out in the repository of a folder. `None` without one, and if
/// the name has characters that are unusual in a branch: it is shown to models.
pub(crate) fn git_branch(folder: &Path) -> Option<String> {
    const MAX_CHARS: usize = 100;
    let mut repositories = folder.ancestors().map(|above| above.join(".git"));
    let git = repositories.find(|git| git.symlink_metadata().is_ok())?;
    let git = linked_git_folders(&git).pop().unwrap_or(git);
    let head = read_git_pointer(&git.join("HEAD"))?;
    let branch = head.trim().strip_prefix("ref: refs/heads/")?;
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "/._-+#@".contains(c);
    (branch.len() <= MAX_CHARS && branch.chars().all(is_usual)).then(|| branch.to_owned())
}

/// Reads a file that contains a path. The file may be untrusted, so at most 16 kB are read and a
/// pipe does not block.
fn read_git_pointer(path: &Path) -> Option<String> {
    const MAX_BYTES: u64 = 16 << 10;
    let file = crate::workspace::open_nonblocking(path).ok()?;
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
