//! The files of a worktree as a tree of git. An agent may change the files at the same time, so git
//! reads them confined, and writes to a folder of its own instead of the repository.

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use selvedge_confine::{
    ConfineError, Confinement, ConfinementBackend, ConfinementMode, NetworkAccess,
};
use selvedge_protocol::SandboxPolicy;

use super::{SessionWorktree, WorktreeError, WorktreeRules, path_of_line};
use crate::git_files::linked_folders;
use crate::safe_git::{SafeGit, confinement_support};
use crate::workspace::Workspace;

/// The files of a worktree at one moment.
pub(super) struct WorktreeSnapshot {
    /// Git in the worktree. It is confined and writes new objects to `scratch`.
    pub(super) git: SafeGit,
    /// The id of the tree.
    pub(super) tree: String,
    /// Git in the repository, which does not read the worktree.
    pub(super) repository: SafeGit,
    /// The folder in the repository that belongs to the worktree.
    pub(super) own_folder: PathBuf,
    pub(super) scratch: ScratchFolder,
}

impl SessionWorktree {
    /// Stores the files of the worktree as a tree. Changes nothing in the repository.
    pub(super) fn snapshot(
        &self,
        rules: &WorktreeRules,
    ) -> Result<WorktreeSnapshot, WorktreeError> {
        let repository = self.repository_git()?;
        if !self.is_complete(&repository)? {
            return Err(WorktreeError::NotCreated(self.session.clone()));
        }
        let common = ["rev-parse", "--path-format=absolute", "--git-common-dir"];
        let common = path_of_line(repository.bytes(&common)?);
        let own_folder = self.own_folder(&common)?;
        let scratch = ScratchFolder::create(&self.path.with_file_name(""))?;
        let (index, objects) = (scratch.path.join("index"), scratch.path.join("objects"));
        // Without the index, git only has to read all files.
        let _ = std::fs::copy(own_folder.join("index"), &index);
        std::fs::create_dir(&objects).map_err(|error| cannot_create(&objects, &error))?;
        let alternates = quoted(&common.join("objects"));
        let variables = [
            ("GIT_INDEX_FILE", index.as_os_str()),
            ("GIT_OBJECT_DIRECTORY", objects.as_os_str()),
            ("GIT_ALTERNATE_OBJECT_DIRECTORIES", &alternates),
        ];
        let folder = self.working_folder();
        // Turns of a session with full access may have had fewer rights.
        let policy = SandboxPolicy::WorkspaceWrite;
        let workspace = Workspace::open_with_paths(&folder, policy, &rules.paths);
        let workspace = workspace.map_err(|error| WorktreeError::Git {
            message: format!("cannot open {}: {error}", folder.display()),
        })?;
        let mut hidden = workspace.paths_to_hide();
        if rules.policy == SandboxPolicy::DangerFullAccess {
            hidden.retain(|path| !path.starts_with(&self.path));
        }
        let backend = confinement_support().strongest_backend(rules.accepted_weaker);
        let mode = confinement_mode(rules, &backend, &hidden, &scratch.path);
        let git = SafeGit::open_with(&self.path, mode, &variables)?;
        let hidden = hidden
            .iter()
            .filter_map(|path| path.strip_prefix(&self.path).ok());
        add_files(&git, &hidden.collect::<Vec<_>>())?;
        let tree = git.line(&["write-tree"])?;
        Ok(WorktreeSnapshot {
            git,
            tree,
            repository,
            own_folder,
            scratch,
        })
    }

    /// Returns the folder in the repository that belongs to the worktree.
    fn own_folder(&self, common: &Path) -> Result<PathBuf, WorktreeError> {
        let named = linked_folders(&self.path.join(".git")).into_iter().next();
        let all = common.join("worktrees");
        match named.filter(|folder| folder.parent() == Some(&all)) {
            Some(folder) => Ok(folder),
            None => Err(WorktreeError::NotCreated(self.session.clone())),
        }
    }
}

impl WorktreeSnapshot {
    /// Commits the tree, with the commit that is checked out in the worktree as the parent, and
    /// copies what is new into the repository. `base` is a commit that the repository has.
    pub(super) fn commit(&self, base: &str) -> Result<String, WorktreeError> {
        let message = "Changes that were applied";
        let commit = ["commit-tree", &self.tree, "-p", "HEAD", "-m", message];
        let commit = self.git.line(&commit)?;
        let pack = ["pack-objects", "-q", "--revs", "--stdout"];
        let pack = self
            .git
            .bytes_with(&pack, format!("{commit}\n^{base}\n").as_bytes())?;
        // This computes the ids again, so an object cannot have the id of another one.
        self.repository
            .bytes_with(&["unpack-objects", "-q"], &pack)?;
        Ok(commit)
    }
}

/// Returns how git is confined while it reads the files of a worktree. It is not on a system that
/// cannot confine commands, if those of the session are not confined either.
fn confinement_mode(
    rules: &WorktreeRules,
    backend: &Result<ConfinementBackend, ConfineError>,
    hidden: &[PathBuf],
    scratch: &Path,
) -> ConfinementMode {
    match rules.policy == SandboxPolicy::DangerFullAccess && backend.is_err() {
        true => ConfinementMode::Unconfined,
        false => ConfinementMode::Confined(Confinement {
            writable: vec![scratch.to_owned()],
            hidden: hidden.to_vec(),
            network: NetworkAccess::Off,
            accepted_weaker: rules.accepted_weaker,
            ..Confinement::default()
        }),
    }
}

/// Adds all files of a worktree to the index. Submodules and hidden files stay as they are in the
/// index. Git does not enter submodules: the session can make a repository there whose
/// configuration runs programs. Hidden files look missing to git.
fn add_files(git: &SafeGit, hidden: &[&Path]) -> Result<(), WorktreeError> {
    let listed = git.bytes(&["ls-files", "--stage", "-z"])?;
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut kept_paths = Vec::new();
    let mut excluded: Vec<&Path> = hidden.to_vec();
    for entry in listed.split_inclusive(|byte| *byte == 0) {
        let path = entry.splitn(2, |byte| *byte == b'\t').nth(1);
        let path_and_end = path.unwrap_or_default();
        let path = path_and_end.strip_suffix(b"\0").unwrap_or(path_and_end);
        let path = Path::new(OsStr::from_bytes(path));
        let is_submodule = entry.starts_with(b"160000 ");
        if is_submodule || hidden.iter().any(|hidden| path.starts_with(hidden)) {
            kept.push(entry);
            kept_paths.extend_from_slice(path_and_end);
        }
        if is_submodule {
            excluded.push(path);
        }
    }
    let mut add: Vec<OsString> = ["add", "--all", "--", ":/"].map(OsString::from).into();
    for path in excluded {
        let mut exclude = OsString::from(":(top,literal,exclude)");
        exclude.push(path);
        add.push(exclude);
    }
    let remove = ["update-index", "-z", "--force-remove", "--stdin"];
    git.bytes_with(&remove, &kept_paths)?;
    git.bytes(&add)?;
    let restore = ["update-index", "-z", "--index-info"];
    git.bytes_with(&restore, &kept.concat())?;
    Ok(())
}

/// Returns a path as git reads it in a list of paths.
fn quoted(path: &Path) -> OsString {
    let mut text = vec![b'"'];
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text.push(b'"');
    OsString::from_vec(text)
}

/// A folder for one operation, which is removed afterwards. Commands of agents cannot write it.
pub(super) struct ScratchFolder {
    pub(super) path: PathBuf,
}

impl ScratchFolder {
    fn create(parent: &Path) -> Result<Self, WorktreeError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let parent = parent.canonicalize().unwrap_or_else(|_| parent.to_owned());
        let path = parent.join(format!(".scratch-{}-{number}", std::process::id()));
        // An earlier process with the same id was killed.
        let _ = std::fs::remove_dir_all(&path);
        let created = DirBuilder::new().mode(0o700).create(&path);
        created.map_err(|error| cannot_create(&path, &error))?;
        Ok(Self { path })
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn cannot_create(path: &Path, error: &std::io::Error) -> WorktreeError {
    WorktreeError::Git {
        message: format!("cannot create {}: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment may give the session fewer rights than the configuration.
    #[test]
    fn git_is_confined_with_full_access_too_if_the_system_can() {
        let namespaces = || Ok(ConfinementBackend::Namespaces);
        let none = || {
            Err(ConfineError::Unsupported {
                reason: "no namespaces".to_owned(),
            })
        };
        for (policy, backend, is_confined) in [
            (SandboxPolicy::DangerFullAccess, namespaces(), true),
            (SandboxPolicy::WorkspaceWrite, namespaces(), true),
            (SandboxPolicy::DangerFullAccess, none(), false),
            // Git does not start then.
            (SandboxPolicy::WorkspaceWrite, none(), true),
        ] {
            let rules = WorktreeRules {
                policy,
                ..WorktreeRules::default()
            };
            let mode = confinement_mode(&rules, &backend, &[], Path::new("/tmp/scratch"));
            let is_seen = matches!(mode, ConfinementMode::Confined(_));
            assert_eq!(is_seen, is_confined, "{policy:?} {backend:?}");
        }
    }
}
