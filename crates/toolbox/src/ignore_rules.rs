//! The rules of `.gitignore`, `.ignore` and git's exclude files, for walks over folders.
//!
//! The `ignore` crate matches the rules but does not read the files: it would follow links out of
//! the project, wait for a pipe, and read without a limit.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use selvedge_files::{CredentialFiles, FileRefusal, ProjectFiles, RefusalReason, read_user_text};

use crate::Workspace;

/// Names of the files with rules of a folder.
const IGNORE_FILE_NAMES: [&str; 2] = [".ignore", ".gitignore"];

/// Largest file of ignore rules that is read, in bytes.
const MAX_IGNORE_FILE_BYTES: usize = 64 << 10;

/// Bytes of rules that are read for one walk. Compiling rules takes far longer than reading them.
const MAX_RULE_BYTES: usize = 256 << 10;

/// Largest file of git's configuration that is searched for the user's exclude file, in bytes.
const MAX_GIT_CONFIG_BYTES: usize = 1 << 20;

/// Whether a file of this name has rules.
pub(crate) fn is_ignore_file(name: &OsStr) -> bool {
    IGNORE_FILE_NAMES.iter().any(|known| name == *known)
}

/// Which files have rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IgnoreFiles {
    /// Those that git reads.
    Git,
    /// Those that git reads, and `.ignore`.
    Search,
}

/// The ignore rules of the folders of a project. Each folder's files are read once, when the first
/// entry of the folder is matched.
#[derive(Debug)]
pub(crate) struct IgnoreRules {
    files: ProjectFiles,
    kinds: IgnoreFiles,
    /// The exclude file of the user's git configuration.
    user_excludes: Gitignore,
    folders: RwLock<HashMap<PathBuf, Arc<FolderRules>>>,
    budget: Mutex<RuleBudget>,
    is_frozen: AtomicBool,
}

/// The rules of one folder, and of the folders above it.
#[derive(Debug)]
struct FolderRules {
    ignore: Gitignore,
    git_ignore: Gitignore,
    git_exclude: Gitignore,
    parent: Option<Arc<FolderRules>>,
}

/// What may still be read, and the files that were refused.
#[derive(Debug)]
struct RuleBudget {
    bytes_left: usize,
    refused: Vec<FileRefusal>,
}

impl Workspace {
    /// Returns the files with credentials, which are never read as files of a project.
    pub fn credential_files(&self) -> CredentialFiles {
        let workspace = self.clone();
        CredentialFiles::new(move || workspace.secret_paths().map(Path::to_owned).collect())
    }
}

/// Returns the ignore files of the workspace folder that cannot be used.
pub fn refused_ignore_files(workspace: &Workspace) -> Vec<FileRefusal> {
    let files = ProjectFiles::of_folder(workspace.root(), workspace.credential_files());
    let refused = |name: &str| {
        let path = workspace.root().join(name);
        files.read_text(&path, MAX_IGNORE_FILE_BYTES).err()
    };
    IGNORE_FILE_NAMES.into_iter().filter_map(refused).collect()
}

impl IgnoreRules {
    /// Creates the rules for a walk below `folder`, which must be canonical. Rules above the folder
    /// are those of its project.
    pub(crate) fn new(workspace: &Workspace, folder: &Path, kinds: IgnoreFiles) -> Self {
        let start = match folder.starts_with(workspace.root()) {
            true => workspace.root(),
            false => folder,
        };
        Self {
            files: ProjectFiles::of_folder(start, workspace.credential_files()),
            kinds,
            user_excludes: user_excludes(workspace.root()),
            folders: RwLock::default(),
            budget: Mutex::new(RuleBudget {
                bytes_left: MAX_RULE_BYTES,
                refused: Vec::new(),
            }),
            is_frozen: AtomicBool::new(false),
        }
    }

    /// Whether the rules exclude an entry. Does not consider whether a folder above it is excluded,
    /// because a walk does not enter such a folder.
    pub(crate) fn is_ignored(&self, path: &Path, is_dir: bool) -> bool {
        let Some(folder) = path.parent() else {
            return false;
        };
        let rules = self.folder_rules(folder);
        let matched = |kind: fn(&FolderRules) -> &Gitignore| {
            std::iter::successors(Some(&rules), |rules| rules.parent.as_ref())
                .map(|rules| kind(rules).matched(path, is_dir))
                .find(|matched| !matched.is_none())
        };
        matched(|rules| &rules.ignore)
            .or_else(|| matched(|rules| &rules.git_ignore))
            .or_else(|| matched(|rules| &rules.git_exclude))
            .unwrap_or_else(|| self.user_excludes.matched(path, is_dir))
            .is_ignore()
    }

    /// Whether the rules exclude a file or a folder above it, up to `root`.
    pub(crate) fn is_ignored_below(&self, root: &Path, path: &Path) -> bool {
        let folders = path.ancestors().skip(1);
        let mut folders = folders.take_while(|folder| *folder != root && folder.starts_with(root));
        self.is_ignored(path, false) || folders.any(|folder| self.is_ignored(folder, true))
    }

    /// Reads no further files: folders that were not asked about have the rules of their parents.
    pub(crate) fn freeze(&self) {
        self.is_frozen.store(true, Ordering::Relaxed);
    }

    /// Returns the files that could not be used so far.
    pub(crate) fn take_refused(&self) -> Vec<FileRefusal> {
        std::mem::take(&mut self.lock_budget().refused)
    }

    fn folder_rules(&self, folder: &Path) -> Arc<FolderRules> {
        let folders = self.folders.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(rules) = folders.get(folder) {
            return rules.clone();
        }
        drop(folders);
        let is_below_root = folder != self.files.root() && folder.starts_with(self.files.root());
        let parent = folder.parent().filter(|_| is_below_root);
        let parent = parent.map(|parent| self.folder_rules(parent));
        let rules = match parent {
            Some(parent) if self.is_frozen.load(Ordering::Relaxed) => parent,
            parent => self.read_rules(folder, parent),
        };
        let mut folders = self.folders.write().unwrap_or_else(PoisonError::into_inner);
        folders
            .entry(folder.to_owned())
            .or_insert_with(|| rules.clone());
        rules
    }

    /// Reads the rules of one folder. Returns those of its parent if it has none of its own.
    fn read_rules(&self, folder: &Path, parent: Option<Arc<FolderRules>>) -> Arc<FolderRules> {
        let read = |path: PathBuf| self.compile(folder, &path, self.read_file(&path));
        let git = folder.join(".git");
        let rules = FolderRules {
            ignore: match self.kinds {
                IgnoreFiles::Search => read(folder.join(IGNORE_FILE_NAMES[0])),
                IgnoreFiles::Git => Gitignore::empty(),
            },
            git_ignore: read(folder.join(IGNORE_FILE_NAMES[1])),
            git_exclude: self.compile(folder, &git, self.read_git_exclude(folder, &git)),
            parent: parent.clone(),
        };
        let own = [&rules.ignore, &rules.git_ignore, &rules.git_exclude];
        match parent {
            Some(parent) if own.iter().all(|rules| rules.is_empty()) => parent,
            _ => Arc::new(rules),
        }
    }

    fn read_file(&self, path: &Path) -> Option<String> {
        match self.files.read_text(path, MAX_IGNORE_FILE_BYTES) {
            Ok(text) => text,
            Err(refusal) => {
                self.lock_budget().refused.push(refusal);
                None
            }
        }
    }

    /// Reads `info/exclude` of the repository whose work tree starts at a folder.
    fn read_git_exclude(&self, folder: &Path, git: &Path) -> Option<String> {
        if git.symlink_metadata().ok()?.is_dir() {
            return self.read_file(&git.join("info/exclude"));
        }
        // In a linked work tree, `.git` is a file that names a folder of the main repository. That
        // repository may lie outside of the project, but its files must lie in it.
        let pointer = self.read_file(git)?;
        let linked = folder.join(pointer.strip_prefix("gitdir:")?.trim());
        let common = self.read_file_in(&linked, "commondir")?;
        self.read_file_in(&linked.join(common.trim()), "info/exclude")
    }

    /// Reads a file of a folder outside of the project. Links must not leave the folder.
    fn read_file_in(&self, folder: &Path, name: &str) -> Option<String> {
        let files = self.files.with_root(folder).ok()?;
        let text = files.read_text(&folder.join(name), MAX_IGNORE_FILE_BYTES);
        text.ok().flatten()
    }

    fn compile(&self, folder: &Path, path: &Path, text: Option<String>) -> Gitignore {
        let Some(text) = text else {
            return Gitignore::empty();
        };
        let mut budget = self.lock_budget();
        match budget.bytes_left.checked_sub(text.len()) {
            Some(left) => budget.bytes_left = left,
            None => {
                budget.refused.push(FileRefusal {
                    path: path.to_owned(),
                    reason: RefusalReason::TotalTooLarge {
                        max_bytes: MAX_RULE_BYTES,
                    },
                });
                return Gitignore::empty();
            }
        }
        drop(budget);
        compile_rules(folder, &text)
    }

    fn lock_budget(&self) -> MutexGuard<'_, RuleBudget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compiles rules. Lines that are not valid are omitted, as git does.
fn compile_rules(folder: &Path, text: &str) -> Gitignore {
    let mut builder = GitignoreBuilder::new(folder);
    for line in text.trim_start_matches('\u{feff}').lines() {
        let _ = builder.add_line(None, line);
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

/// Reads the exclude file that the user's git configuration names.
fn user_excludes(root: &Path) -> Gitignore {
    let home = std::env::home_dir().unwrap_or_default();
    let variable = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let xdg = variable("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
    let configs = [
        variable("GIT_CONFIG_GLOBAL"),
        Some(home.join(".gitconfig")),
        Some(xdg.join("git/config")),
        Some(variable("GIT_CONFIG_SYSTEM").unwrap_or_else(|| "/etc/gitconfig".into())),
    ];
    let named = configs.into_iter().flatten().find_map(|config| {
        let text = read_user_text(&config, MAX_GIT_CONFIG_BYTES).ok()??;
        excludes_file(&text, &home)
    });
    let path = named.unwrap_or_else(|| xdg.join("git/ignore"));
    match read_user_text(&path, MAX_IGNORE_FILE_BYTES) {
        Ok(Some(text)) => compile_rules(root, &text),
        _ => Gitignore::empty(),
    }
}

/// Returns the value of `core.excludesFile`. Ignores sections, since no other key has this name.
fn excludes_file(config: &str, home: &Path) -> Option<PathBuf> {
    config.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        if !key.trim().eq_ignore_ascii_case("excludesfile") {
            return None;
        }
        let value = value.trim().trim_matches('"').trim();
        Some(match value.strip_prefix("~/") {
            Some(rest) => home.join(rest),
            None => PathBuf::from(value),
        })
    })
}

#[cfg(test)]
mod tests {
    use selvedge_protocol::SandboxPolicy;

    use super::*;

    /// A workspace with these files.
    fn workspace(files: &[(&str, &str)]) -> (tempfile::TempDir, Workspace) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = dir.path().join("work");
        let workspace = Workspace::open(&root, SandboxPolicy::ReadOnly, &[]).unwrap();
        (dir, workspace)
    }

    /// Returns those of the names that are ignored.
    fn ignored<'a>(workspace: &Workspace, kinds: IgnoreFiles, names: &[&'a str]) -> Vec<&'a str> {
        let rules = IgnoreRules::new(workspace, workspace.root(), kinds);
        let is_ignored = |name: &&&str| {
            let path = workspace.root().join(name.trim_end_matches('/'));
            rules.is_ignored(&path, name.ends_with('/'))
        };
        names.iter().filter(is_ignored).copied().collect()
    }

    #[test]
    fn the_nearest_rule_counts_and_ignore_precedes_gitignore() {
        let (_dir, workspace) = workspace(&[
            ("work/.git/HEAD", ""),
            ("work/.git/info/exclude", "*.excluded\n"),
            ("work/.gitignore", "\u{feff}*.log\nbuild/\n/top\n"),
            ("work/.ignore", "!kept.log\n*.gen\n"),
            ("work/sub/.gitignore", "!own.log\n"),
            // The folder above is not part of the repository.
            (".gitignore", "*\n"),
        ]);
        let names = [
            "a.log",
            "kept.log",
            "sub/a.log",
            "sub/own.log",
            "build",
            "build/",
            "top",
            "sub/top",
            "a.gen",
            "a.excluded",
            "plain",
        ];
        assert_eq!(
            ignored(&workspace, IgnoreFiles::Search, &names),
            ["a.log", "sub/a.log", "build/", "top", "a.gen", "a.excluded"]
        );
        assert_eq!(
            ignored(&workspace, IgnoreFiles::Git, &names),
            [
                "a.log",
                "kept.log",
                "sub/a.log",
                "build/",
                "top",
                "a.excluded"
            ]
        );
    }

    #[test]
    fn a_linked_work_tree_has_the_rules_of_its_repository() {
        let (_dir, workspace) = workspace(&[
            ("main/.git/info/exclude", "*.excluded\n"),
            ("main/.git/worktrees/work/commondir", "../..\n"),
            ("work/.git", "gitdir: ../main/.git/worktrees/work\n"),
        ]);
        let names = ["a.excluded", "plain"];
        assert_eq!(
            ignored(&workspace, IgnoreFiles::Git, &names),
            ["a.excluded"]
        );
    }

    #[test]
    fn the_exclude_file_of_a_named_repository_is_no_link_to_another_place() {
        for target in ["../../../outside", "../../../work/own"] {
            let (dir, workspace) = workspace(&[
                ("outside", "*.excluded\n"),
                ("work/own", "*.excluded\n"),
                ("work/evil/commondir", ".\n"),
                ("work/evil/info/x", ""),
                ("work/sub/.git", "gitdir: ../evil\n"),
            ]);
            let exclude = dir.path().join("work/evil/info/exclude");
            std::os::unix::fs::symlink(target, &exclude).unwrap();
            let names = ["sub/a.excluded"];
            let found = ignored(&workspace, IgnoreFiles::Git, &names);
            assert!(found.is_empty(), "{target}: {found:?}");
            std::fs::remove_file(&exclude).unwrap();
            std::fs::write(&exclude, "*.excluded\n").unwrap();
            assert_eq!(ignored(&workspace, IgnoreFiles::Git, &names), names);
        }
    }

    #[test]
    fn frozen_rules_do_not_change() {
        let (_dir, workspace) = workspace(&[("work/.gitignore", "old\n"), ("work/sub/x", "")]);
        let rules = IgnoreRules::new(&workspace, workspace.root(), IgnoreFiles::Git);
        let root = workspace.root();
        assert!(rules.is_ignored(&root.join("old"), false));
        rules.freeze();
        std::fs::write(root.join(".gitignore"), "new\n").unwrap();
        std::fs::write(root.join("sub/.gitignore"), "new\n").unwrap();
        assert!(rules.is_ignored_below(root, &root.join("sub/old/deep/file")));
        assert!(!rules.is_ignored_below(root, &root.join("sub/new")));
    }

    #[test]
    fn rules_beyond_the_limit_are_not_used_and_named() {
        let long = "a-long-rule-that-matches-nothing\n".repeat(1500);
        let names: Vec<String> = (0..12).map(|at| format!("work/{at}/.gitignore")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), &*long)).collect();
        let (_dir, workspace) = workspace(&files);
        let rules = IgnoreRules::new(&workspace, workspace.root(), IgnoreFiles::Git);
        for at in 0..12 {
            rules.is_ignored(&workspace.root().join(format!("{at}/file")), false);
        }
        let refused = rules.take_refused();
        assert_eq!(refused.len(), 7, "{refused:?}");
        let reason =
            "/.gitignore is not read: it and the files before it are together larger than 256 KB";
        assert!(refused[0].to_string().ends_with(reason), "{}", refused[0]);
    }

    #[test]
    fn the_exclude_file_of_the_user_is_found() {
        let home = Path::new("/home/me");
        for (config, path) in [
            (
                "[core]\n\texcludesFile = ~/.ignored\n",
                Some("/home/me/.ignored"),
            ),
            ("[core]\nexcludesfile=\"/a b\"\n", Some("/a b")),
            ("[core]\nexcludes = x\n", None),
        ] {
            assert_eq!(excludes_file(config, home).as_deref(), path.map(Path::new));
        }
    }
}
