//! The paths inside writable folders that stay read-only: repositories, and files that editors,
//! agents, hooks and shells execute later.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use crate::git_files::{bare_repositories, is_repository, repository_paths};
use crate::hidden_paths::expand_home;
use crate::other_workspaces::OtherWorkspaces;
use crate::workspace::WorkspacePaths;

/// Names that are always protected: history and hooks, and Selvedge's own configuration. They are
/// also protected in the folders above the workspace, where programs look for them.
const REPOSITORY_NAMES: [&str; 2] = [".git", ".selvedge"];

/// Names that are protected unless the configuration excepts them. Programs run what these files
/// say without being asked to run the project: editors and development containers when the folder
/// is opened, agents when they start, `direnv` at a prompt, git at a commit.
/// Commands cannot create them either, which costs each command a mount per name.
const CONFIGURATION_NAMES: [&str; 17] = [
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".envrc",
    ".fleet",
    ".gemini",
    ".hg",
    ".husky",
    ".idea",
    ".jj",
    ".kiro",
    ".mcp.json",
    ".opencode",
    ".vscode",
    ".windsurf",
    ".zed",
];

/// Further names of this kind. Tools can neither create nor change them, commands cannot change
/// those at the top of the workspace. `*` at the start matches any name with this ending.
const RARE_CONFIGURATION_NAMES: [&str; 23] = [
    "*.code-workspace",
    ".aider.conf.yml",
    ".amazonq",
    ".continue",
    ".crush.json",
    ".dir-locals.el",
    ".exrc",
    ".githooks",
    ".idx",
    ".junie",
    ".kilocode",
    ".lefthook.yml",
    ".mise.toml",
    ".nvim.lua",
    ".pre-commit-config.yaml",
    ".qwen",
    ".roo",
    ".trae",
    ".vs",
    "crush.json",
    "lefthook.yml",
    "mise.toml",
    "opencode.json",
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
    /// Names that tools cannot create or change, and commands cannot change.
    rare_names: Vec<String>,
    /// Further protected paths, absolute.
    paths: Vec<PathBuf>,
    /// Workspaces of other sessions. They are not named to agents.
    other_workspaces: OtherWorkspaces,
    /// The folder of the workspace.
    root: PathBuf,
    /// Paths that stay writable although the repository names them, absolute.
    excepted: Vec<PathBuf>,
    /// The canonical home folder. If it is writable, its dot files are protected.
    home: Option<PathBuf>,
}

impl ProtectedPaths {
    /// Creates the list for a workspace. A protected path without a slash is a name in every
    /// folder, one with a slash is a path relative to the workspace, or to the home folder after
    /// `~`. Unprotected ones are removed from the list; those of repositories stay.
    pub(crate) fn new(root: &Path, rules: &WorkspacePaths) -> Self {
        let (added, excepted) = (&rules.protected, &rules.unprotected);
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
        let rare_names = RARE_CONFIGURATION_NAMES.map(str::to_owned).into_iter();
        let full = |path: &PathBuf| root.join(expand_home(path, home.as_deref()));
        Self {
            names: REPOSITORY_NAMES
                .map(str::to_owned)
                .into_iter()
                .chain(default_names.filter(|name| !is_excepted(name)))
                .chain(names)
                .collect(),
            rare_names: rare_names.filter(|name| !is_excepted(name)).collect(),
            paths: paths.into_iter().map(full).collect(),
            other_workspaces: rules.other_workspaces.clone(),
            root: root.to_owned(),
            excepted: excepted.iter().map(full).collect(),
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
        let is_rare_part = |pattern: &&String| {
            rest.components()
                .any(|part| matches_name(pattern, part.as_os_str()))
        };
        let mut rare_names = self.rare_names.iter();
        let name = self.names.iter().find(is_part);
        if let Some(name) = name.or_else(|| rare_names.find(is_rare_part)) {
            return Some(format!("{name} is protected"));
        }
        let other_workspaces = self.other_workspaces.around(&self.root);
        let mut paths = self.paths.iter().chain(&other_workspaces);
        if let Some(protected) = paths.find(|protected| {
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
        if let Some(why) = self.repository_reason(path, root) {
            return Some(why);
        }
        let home = self
            .home
            .as_deref()
            .filter(|home| home.starts_with(writable))?;
        let first = path.strip_prefix(home).ok()?.components().next()?;
        let is_dot_file = first.as_os_str().as_encoded_bytes().starts_with(b".");
        is_dot_file.then(|| "dot files of the home folder are protected".to_owned())
    }

    /// Returns why a path belongs to a repository, or to the target of a link in a protected
    /// folder, although its name does not show it.
    fn repository_reason(&self, path: &Path, root: &Path) -> Option<String> {
        let folders = || path.ancestors().skip(1);
        if let Some(repository) = folders().find(|folder| is_repository(folder)) {
            return Some(format!("{} is a git repository", repository.display()));
        }
        let is_below = |named: &PathBuf| path.starts_with(named) && !self.is_excepted(named);
        let named = folders().any(|folder| {
            let mut paths = repository_paths(folder).into_iter();
            paths.any(|named| !folder.starts_with(&named) && is_below(&named))
        });
        if named {
            return Some("the repository refers to it, and git obeys it".to_owned());
        }
        let linked = self.linked_from(root).iter().any(is_below);
        linked.then(|| "a link in a protected folder leads to it".to_owned())
    }

    fn is_excepted(&self, path: &Path) -> bool {
        self.excepted
            .iter()
            .any(|excepted| path.starts_with(excepted))
    }

    /// Returns the targets of links in the protected folders at the top of a folder.
    fn linked_from(&self, folder: &Path) -> Vec<PathBuf> {
        let names = self.names.iter().filter(|name| *name != ".git");
        let folders = names.map(|name| folder.join(name));
        folders
            .filter(|path| path.symlink_metadata().is_ok_and(|found| found.is_dir()))
            .flat_map(|path| link_targets(&path, 2))
            .collect()
    }

    /// Returns the paths outside of protected folders that are executed or obeyed like their
    /// content. Parameters as in [`Self::in_folders`].
    pub(crate) fn executed_outside(&self, folders: &[&Path], above: &[&Path]) -> Vec<PathBuf> {
        let own = folders.iter().flat_map(|folder| {
            let bare = bare_repositories(folder);
            let rare = self.rare_names_in(folder);
            self.linked_from(folder).into_iter().chain(bare).chain(rare)
        });
        let all = folders.iter().chain(above);
        let mut paths: Vec<PathBuf> = all.flat_map(|folder| repository_paths(folder)).collect();
        paths.extend(own);
        let contains_folder = |path: &PathBuf| folders.iter().any(|own| own.starts_with(path));
        paths.retain(|path| !self.is_excepted(path) && !contains_folder(path));
        paths.sort();
        paths.dedup();
        paths
    }

    /// Returns the files and folders in a folder that have a protected name for which there is no
    /// placeholder.
    fn rare_names_in(&self, folder: &Path) -> Vec<PathBuf> {
        let is_rare = |name: &OsStr| {
            let mut names = self.rare_names.iter();
            names.any(|pattern| matches_name(pattern, name))
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .take(MAX_FOLDER_ENTRIES)
            .filter(|entry| is_rare(&entry.file_name()))
            // A broken link could not be protected.
            .map(|entry| entry.path())
            .filter(|path| path.exists())
            .collect()
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
            .chain(self.other_workspaces.around(&self.root))
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

    /// Returns what is protected, as a person would name it: names, paths relative to `root`, and
    /// a few examples of [`CONFIGURATION_NAMES`].
    pub(crate) fn display_names(&self, root: &Path) -> Vec<String> {
        let shown = |path: &PathBuf| {
            let path = path.strip_prefix(root).unwrap_or(path);
            path.display().to_string()
        };
        let is_configuration = |name: &&String| CONFIGURATION_NAMES.contains(&name.as_str());
        let (configuration, names): (Vec<&String>, Vec<&String>) =
            self.names.iter().partition(is_configuration);
        let names = names.into_iter().cloned();
        let mut all: Vec<String> = names.chain(self.paths.iter().map(shown)).collect();
        if let [one, two, three, ..] = &configuration[..] {
            let examples = format!("{one}, {two}, {three}");
            all.push(format!(
                "configuration of editors, agents and hooks ({examples}, …)"
            ));
        } else {
            all.extend(configuration.into_iter().cloned());
        }
        all
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

/// Returns whether a name is protected by a name, or by `*` and an ending. Ignores case.
fn matches_name(pattern: &str, name: &OsStr) -> bool {
    let Some(ending) = pattern.strip_prefix('*') else {
        return name.eq_ignore_ascii_case(pattern);
    };
    let (name, ending) = (name.as_encoded_bytes(), ending.as_bytes());
    let start = name.len().checked_sub(ending.len());
    start.is_some_and(|start| name[start..].eq_ignore_ascii_case(ending))
}

/// Returns whether a path is a single name.
fn is_name(path: &Path) -> bool {
    path.components().count() == 1 && !path.is_absolute() && path != Path::new("~")
}

/// Returns the links that are followed to resolve a path, with the real paths of their folders. Who
/// can replace one of them can replace the target.
pub(crate) fn followed_links(path: &Path) -> Vec<PathBuf> {
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

/// Returns the targets of the links in a folder and the links on the way to them, except those in
/// the folder itself. `levels` is the number of nested folders that are searched.
pub(crate) fn link_targets(folder: &Path, levels: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(real) = folder.canonicalize() else {
        return found;
    };
    let mut pending = vec![(real.clone(), levels)];
    let mut left = MAX_FOLDER_ENTRIES;
    while let Some((searched, levels)) = pending.pop() {
        let entries = std::fs::read_dir(&searched).into_iter().flatten().flatten();
        for entry in entries {
            left = left.saturating_sub(1);
            match entry.file_type() {
                _ if left == 0 => return found,
                Ok(kind) if kind.is_symlink() => {
                    found.extend(followed_links(&entry.path()));
                    found.push(resolve_existing(&entry.path()));
                }
                Ok(kind) if kind.is_dir() && levels > 1 => pending.push((entry.path(), levels - 1)),
                _ => {}
            }
        }
    }
    found.retain(|path| !path.starts_with(&real));
    found
}

/// Resolves the symbolic links in the existing part of a path, and the target of a broken link.
pub(crate) fn resolve_existing(path: &Path) -> PathBuf {
    resolve_at_depth(path, 0)
}

fn resolve_at_depth(path: &Path, depth: usize) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return path.to_owned();
    };
    let folder = resolve_at_depth(folder, depth);
    match std::fs::read_link(path) {
        Ok(target) if depth < MAX_FOLLOWED_LINKS => {
            resolve_at_depth(&folder.join(target), depth + 1)
        }
        _ => folder.join(name),
    }
}
