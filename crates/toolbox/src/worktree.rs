//! The git worktree of a session, in which it changes files without touching those of the person:
//! created when it is first needed, shown as a diff, applied or discarded.

mod apply;
mod snapshot;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use selvedge_files::{create_private_folder, has_repository};
use selvedge_protocol::{SandboxPolicy, WeakerConfinement};
use thiserror::Error;

use crate::file_replacement::{FileReplacementError, display_paths};
use crate::safe_git::SafeGit;
use crate::workspace::WorkspacePaths;

/// Why a worktree could not be created, read, applied or removed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorktreeError {
    /// The folder does not belong to a git repository with a work tree.
    #[error("{} is not in a git repository", .0.display())]
    NotARepository(PathBuf),
    /// The repository has no commit to start from.
    #[error("the repository {} has no commit", .0.display())]
    NoCommit(PathBuf),
    /// The configuration of the repository may make git run a program.
    #[error("git does not run in this repository: {reason}")]
    UnsafeRepository {
        /// What may run a program.
        reason: String,
    },
    /// The session has no worktree yet.
    #[error("session {0} has no worktree yet")]
    NotCreated(String),
    /// These files were changed both in the worktree and in the folder.
    #[error("conflicting changes in {}", display_paths(.0))]
    Conflict(Vec<PathBuf>),
    /// The folder protects a file that the session changed. Nothing was changed.
    #[error("{} cannot be applied: {reason}", path.display())]
    Protected {
        /// The file, relative to the repository.
        path: PathBuf,
        /// What protects it.
        reason: String,
    },
    /// The changed files are too large to be applied. Nothing was changed.
    #[error("the changed files have more than 128 MB in all")]
    TooLarge,
    /// A file of the folder cannot be replaced. Nothing was changed.
    #[error(transparent)]
    Files(#[from] FileReplacementError),
    /// Git ended with an error.
    #[error("{message}")]
    Git {
        /// What git reported.
        message: String,
    },
}

impl WorktreeError {
    /// Returns what to do instead.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotARepository(folder) => Some(format!(
                "run `git init` in {}, commit its files, or create the session without `worktree`",
                folder.display()
            )),
            Self::NoCommit(_) => Some("commit the files: git commit -a".to_owned()),
            Self::UnsafeRepository { .. } => Some(
                "remove the setting with `git config --unset`, or create the session without \
                 `worktree`"
                    .to_owned(),
            ),
            Self::NotCreated(session) => Some(format!(
                "run `selvedge sessions send {session} --wait` to let the session work"
            )),
            Self::Conflict(_) => Some(
                "commit or undo your changes to these files, or merge the branch of the session"
                    .to_owned(),
            ),
            Self::TooLarge => Some(
                "commit them in the worktree, and merge the branch of the session with git"
                    .to_owned(),
            ),
            Self::Protected { .. } => Some(
                "undo the change in the worktree, or make it in the folder yourself".to_owned(),
            ),
            Self::Files(FileReplacementError::Changed(_)) => {
                Some("run the command again".to_owned())
            }
            Self::Files(_) => Some("check the permissions of the file".to_owned()),
            Self::Git { .. } => Some("run `git status` in the repository".to_owned()),
        }
    }
}

/// Returns the folder of all worktrees: beside Selvedge's own folder, because commands cannot read
/// that one.
pub fn worktrees_folder(home: &Path) -> PathBuf {
    let mut name = home.file_name().unwrap_or_default().to_owned();
    name.push("-worktrees");
    home.with_file_name(name)
}

/// Whether a folder belongs to a git repository.
pub fn is_in_repository(folder: &Path) -> bool {
    folder.ancestors().any(has_repository)
}

/// What the agent of a session may do, which git obeys when it reads the files of its worktree.
#[derive(Debug, Clone, Default)]
pub struct WorktreeRules {
    /// The rules for paths in the session's folder.
    pub paths: WorkspacePaths,
    /// What commands of the session may change. With full access, git is not confined on a system
    /// that cannot confine commands.
    pub policy: SandboxPolicy,
    /// The weakest confinement to accept where the full one is not available.
    pub accepted_weaker: Option<WeakerConfinement>,
}

/// The worktree of a session, which may not exist yet.
#[derive(Debug)]
pub struct SessionWorktree {
    session: String,
    /// The work tree that the session's folder belongs to.
    repository: PathBuf,
    /// The session's folder, relative to that work tree.
    folder: PathBuf,
    /// The folder of the worktree.
    path: PathBuf,
}

impl SessionWorktree {
    /// Finds the worktree of a session that works in `directory`. `worktrees` is the folder of all
    /// worktrees. Creates nothing.
    pub fn find(worktrees: &Path, session: &str, directory: &Path) -> Result<Self, WorktreeError> {
        let not_found = || WorktreeError::NotARepository(directory.to_owned());
        if !is_in_repository(directory) || !is_session_id(session) {
            return Err(not_found());
        }
        // Git prints paths without links.
        let worktrees = match (worktrees.parent(), worktrees.file_name()) {
            (Some(above), Some(name)) => above.canonicalize().ok().map(|real| real.join(name)),
            _ => None,
        };
        let worktrees = worktrees.ok_or_else(not_found)?;
        let git = SafeGit::open(directory)?;
        let top = git.bytes(&["rev-parse", "--show-toplevel"]);
        let repository = path_of_line(top.map_err(|_| not_found())?);
        let real = directory.canonicalize().map_err(|_| not_found())?;
        let folder = real.strip_prefix(&repository).map_err(|_| not_found())?;
        Ok(Self {
            session: session.to_owned(),
            folder: folder.to_owned(),
            repository,
            path: worktrees.join(session),
        })
    }

    /// Returns the folder that the session works in.
    pub fn working_folder(&self) -> PathBuf {
        self.path.join(&self.folder)
    }

    /// Returns the branch of the worktree.
    pub fn branch(&self) -> String {
        format!("selvedge/{}", self.session)
    }

    /// The reference to the commit that the diff is relative to. It is written last when the
    /// worktree is created, so that it says whether the worktree is complete.
    fn base_reference(&self) -> String {
        format!("refs/selvedge/{}", self.session)
    }

    /// Creates the worktree from the commit that is checked out in the repository, unless it
    /// exists. One that was deleted gets the files of its branch as git stores them.
    pub fn create_if_missing(&self) -> Result<(), WorktreeError> {
        let git = self.repository_git()?;
        let base = self.base_reference();
        if self.is_complete(&git)? {
            return Ok(());
        }
        if !git.succeeds(&["rev-parse", "--verify", "-q", "HEAD^{commit}"])? {
            return Err(WorktreeError::NoCommit(self.repository.clone()));
        }
        // A process was killed while it created the worktree, or the folder was deleted.
        self.remove_folder(&git)?;
        if let Some(parent) = self.path.parent() {
            create_private_folder(parent).map_err(|error| WorktreeError::Git {
                message: format!("cannot create {}: {error}", parent.display()),
            })?;
        }
        let branch = self.branch();
        let reference = format!("refs/heads/{branch}");
        let mut add: Vec<OsString> = ["worktree", "add", "-q"].map(OsString::from).into();
        if git.succeeds(&["rev-parse", "--verify", "-q", &reference])? {
            add.extend([
                "--no-checkout".into(),
                self.path.clone().into(),
                branch.into(),
            ]);
            git.bytes(&add)?;
            // The branch may have files of the agent, which could name filters of the user.
            let git = SafeGit::open(&self.path)?.without_filters();
            git.bytes(&["-c", "safe.directory=*", "reset", "-q", "--hard"])?;
        } else {
            add.extend([
                "-b".into(),
                branch.into(),
                self.path.clone().into(),
                "HEAD".into(),
            ]);
            git.bytes(&add)?;
        }
        if !git.succeeds(&["rev-parse", "--verify", "-q", &base])? {
            git.bytes(&["update-ref", &base, &reference])?;
        }
        // The folder may be new and not committed yet.
        std::fs::create_dir_all(self.working_folder()).map_err(|error| WorktreeError::Git {
            message: format!("cannot create {}: {error}", self.working_folder().display()),
        })
    }

    /// Returns the changes of the session since the worktree was created or last applied, as a
    /// unified diff in git's format. Hidden paths are not read.
    pub fn diff(&self, rules: &WorktreeRules) -> Result<String, WorktreeError> {
        let snapshot = self.snapshot(rules)?;
        let base = self.base_reference();
        let diff = snapshot.git.bytes(&[
            "diff",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--find-renames",
            &base,
            &snapshot.tree,
        ])?;
        Ok(String::from_utf8_lossy(&diff).into_owned())
    }

    /// Removes the worktree, its branch and its changes.
    pub fn discard(&self) -> Result<(), WorktreeError> {
        let git = self.repository_git()?;
        self.remove_folder(&git)?;
        let branch = format!("refs/heads/{}", self.branch());
        for reference in [branch, self.base_reference()] {
            if git.succeeds(&["rev-parse", "--verify", "-q", &reference])? {
                git.bytes(&["update-ref", "-d", &reference])?;
            }
        }
        Ok(())
    }

    fn repository_git(&self) -> Result<SafeGit, WorktreeError> {
        SafeGit::open(&self.repository)
    }

    /// Whether the worktree was created completely, and still exists. Git writes the index of a
    /// worktree after its files.
    fn is_complete(&self, git: &SafeGit) -> Result<bool, WorktreeError> {
        let base = self.base_reference();
        if !self.path.join(".git").is_file()
            || !git.succeeds(&["rev-parse", "--verify", "-q", &base])?
        {
            return Ok(false);
        }
        let index = ["-c", "safe.directory=*", "rev-parse", "--git-path", "index"];
        let index = SafeGit::open(&self.path)?.bytes(&index)?;
        Ok(self.path.join(path_of_line(index)).is_file())
    }

    /// Removes the folder of the worktree, if there is one, and git's record of it. Git does not
    /// remove the folder, because it would follow a link that replaces a folder in it meanwhile.
    fn remove_folder(&self, git: &SafeGit) -> Result<(), WorktreeError> {
        remove_worktree_folder(&self.path)?;
        let listed = git.bytes(&["worktree", "list", "--porcelain", "-z"])?;
        let name = format!("worktree {}", self.path.display());
        if listed
            .split(|byte| *byte == 0)
            .any(|line| line == name.as_bytes())
        {
            let mut remove: Vec<OsString> = ["worktree", "remove", "--force", "--force"]
                .map(OsString::from)
                .into();
            remove.push(self.path.clone().into());
            git.bytes(&remove)?;
        }
        Ok(())
    }
}

/// Removes the worktree of a session that no longer exists, with its branch if the repository can
/// still be found. `worktrees` is the folder of all worktrees.
pub fn remove_session_worktree(worktrees: &Path, session: &str) -> Result<(), WorktreeError> {
    let path = worktrees.join(session);
    if !is_session_id(session) || path.symlink_metadata().is_err() {
        return Ok(());
    }
    let common = SafeGit::open(&path)
        .and_then(|git| git.bytes(&["rev-parse", "--path-format=absolute", "--git-common-dir"]));
    let repository = common.ok().map(path_of_line);
    let repository = repository.as_deref().and_then(Path::parent);
    if let Some(repository) = repository {
        let worktree = SessionWorktree {
            session: session.to_owned(),
            repository: repository.to_owned(),
            folder: PathBuf::new(),
            path: path.clone(),
        };
        if worktree.discard().is_ok() {
            return Ok(());
        }
    }
    // Git forgets the worktree when it collects garbage.
    remove_worktree_folder(&path)
}

fn remove_worktree_folder(path: &Path) -> Result<(), WorktreeError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(WorktreeError::Git {
            message: format!("cannot remove {}: {error}", path.display()),
        }),
        _ => Ok(()),
    }
}

/// Whether a text can be the name of a folder and the part of a reference.
fn is_session_id(text: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_';
    !text.is_empty() && text.chars().all(is_plain)
}

/// Returns the path that git printed as a line.
fn path_of_line(mut output: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    if output.last() == Some(&b'\n') {
        output.pop();
    }
    PathBuf::from(OsString::from_vec(output))
}
