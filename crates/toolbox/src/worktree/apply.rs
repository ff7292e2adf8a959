//! Applies the changes of a worktree to the folder that it was created from. Each file is merged
//! with the person's changes; if one cannot be merged, no file is changed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use selvedge_protocol::{FileSnapshot, FileSnapshotKind};

use super::snapshot::WorktreeSnapshot;
use super::{SessionWorktree, WorktreeError, WorktreeRules};
use crate::file_replacement::{FileReplacement, find_protected, read_snapshot, replace_files};
use crate::safe_git::SafeGit;
use crate::workspace::WorkspacePaths;

/// Most bytes of all files that are replaced, before and after. They are in memory at once.
const MAX_APPLIED_BYTES: usize = 128 << 20;

/// A file that the session changed, and what it was before and after; `None` if it did not exist.
struct SessionChange {
    path: PathBuf,
    base: Option<FileSnapshotKind>,
    session: Option<FileSnapshotKind>,
}

impl SessionWorktree {
    /// Merges the changes of the session into the folder that the worktree was created from, and
    /// returns the changed files. Fails without changing a file if one of them has conflicting
    /// changes, or is protected there. Later diffs are relative to what
    /// was applied.
    pub fn apply(&self, rules: &WorktreeRules) -> Result<Vec<PathBuf>, WorktreeError> {
        let snapshot = self.snapshot(rules)?;
        let mut replacements = Vec::new();
        let mut conflicts = Vec::new();
        let mut total_bytes = 0;
        for change in self.changes(&snapshot)? {
            let current = read_snapshot(&self.repository, &change.path)?;
            match self.merge(&snapshot, &change, current.as_ref())? {
                Some(target) if target == current => {}
                Some(target) => {
                    let states = [&current, &target].into_iter().flatten();
                    total_bytes += states.map(|state| state.content.len()).sum::<usize>();
                    if total_bytes > MAX_APPLIED_BYTES {
                        return Err(WorktreeError::TooLarge);
                    }
                    replacements.push(FileReplacement {
                        path: change.path,
                        expected: current,
                        target,
                    });
                }
                None => conflicts.push(change.path),
            }
        }
        if !conflicts.is_empty() {
            return Err(WorktreeError::Conflict(conflicts));
        }
        self.refuse_protected(&rules.paths, &replacements)?;
        let commit = snapshot.commit(&self.base_reference())?;
        replace_files(&self.repository, &replacements)?;
        self.set_base(snapshot, &commit)?;
        Ok(replacements.into_iter().map(|change| change.path).collect())
    }

    /// Fails if the repository or the session's folder in it protects a file. In the worktree
    /// itself, files that the configuration names by absolute paths are not protected.
    fn refuse_protected(
        &self,
        paths: &WorkspacePaths,
        replacements: &[FileReplacement],
    ) -> Result<(), WorktreeError> {
        for root in [self.repository.clone(), self.repository.join(&self.folder)] {
            let protected = find_protected(&root, paths, &self.repository, replacements)?;
            if let Some((path, reason)) = protected {
                return Err(WorktreeError::Protected { path, reason });
            }
        }
        Ok(())
    }

    /// Makes a commit the base of later diffs, and the newest one of the session's branch.
    fn set_base(&self, snapshot: WorktreeSnapshot, commit: &str) -> Result<(), WorktreeError> {
        let branch = format!("refs/heads/{}", self.branch());
        let repository = snapshot.repository;
        repository.bytes(&["update-ref", &self.base_reference(), commit])?;
        let git = repository.with_variables(&[("GIT_DIR", snapshot.own_folder.as_os_str())]);
        // With full access, the session can check out another branch.
        if git.line(&["symbolic-ref", "-q", "HEAD"]).ok() == Some(branch) {
            git.bytes(&["update-ref", "HEAD", commit])?;
            git.bytes(&["read-tree", commit])?;
        }
        Ok(())
    }

    /// Returns the files that differ between the base and a tree.
    fn changes(&self, snapshot: &WorktreeSnapshot) -> Result<Vec<SessionChange>, WorktreeError> {
        let base = self.base_reference();
        let listed = snapshot.git.bytes(&[
            "diff-tree",
            "-r",
            "-z",
            "--no-renames",
            "--raw",
            &base,
            &snapshot.tree,
        ])?;
        let mut parts = listed.split(|byte| *byte == 0);
        let mut changes = Vec::new();
        // Each change is `:OLDMODE NEWMODE OLDID NEWID STATUS` and the path.
        while let (Some(header), Some(path)) = (parts.next(), parts.next()) {
            let path = Path::new(OsStr::from_bytes(path));
            let header = String::from_utf8_lossy(header);
            let mut fields = header.trim_start_matches(':').split(' ');
            let (old, new) = (fields.next(), fields.next());
            changes.push(SessionChange {
                path: path.to_owned(),
                base: file_kind(old, path)?,
                session: file_kind(new, path)?,
            });
        }
        Ok(changes)
    }

    /// Returns a file of the base as a checkout would write it.
    fn base_file(
        &self,
        git: &SafeGit,
        kind: FileSnapshotKind,
        path: &Path,
    ) -> Result<FileSnapshot, WorktreeError> {
        let mut object = OsString::from(self.base_reference());
        object.push(":");
        object.push(path);
        let how = match kind {
            FileSnapshotKind::Link => "blob",
            FileSnapshotKind::File | FileSnapshotKind::Executable => "--filters",
        };
        let content = git.bytes(&["cat-file".into(), how.into(), object])?;
        Ok(FileSnapshot { kind, content })
    }

    /// Merges the change of the session with the current file. Returns what the file becomes, or
    /// `None` if both changed it in different ways.
    #[expect(
        clippy::option_option,
        reason = "a conflict, or a file that may be absent"
    )]
    fn merge(
        &self,
        snapshot: &WorktreeSnapshot,
        change: &SessionChange,
        current: Option<&FileSnapshot>,
    ) -> Result<Option<Option<FileSnapshot>>, WorktreeError> {
        let session = match change.session {
            None => None,
            Some(_) => read_snapshot(&self.path, &change.path)?,
        };
        let base = match change.base {
            None => None,
            Some(kind) => Some(self.base_file(&snapshot.git, kind, &change.path)?),
        };
        if current == base.as_ref() || current == session.as_ref() {
            return Ok(Some(session));
        }
        let (Some(base), Some(session), Some(current)) = (base, session, current) else {
            return Ok(None);
        };
        let versions = [current, &base, &session];
        let is_text = |file: &&FileSnapshot| {
            file.kind != FileSnapshotKind::Link && !file.content.contains(&0)
        };
        if !versions.iter().all(is_text) {
            return Ok(None);
        }
        let content = merge_texts(snapshot, versions)?;
        let kind = match session.kind == base.kind {
            true => current.kind,
            false => session.kind,
        };
        Ok(content.map(|content| Some(FileSnapshot { kind, content })))
    }
}

/// Merges the current text, the base and the text of the session. `None` is a conflict.
fn merge_texts(
    snapshot: &WorktreeSnapshot,
    versions: [&FileSnapshot; 3],
) -> Result<Option<Vec<u8>>, WorktreeError> {
    let mut merge: Vec<OsString> = ["merge-file", "-p", "-q"].map(OsString::from).into();
    for (name, version) in ["current", "base", "session"].iter().zip(versions) {
        let file = snapshot.scratch.path.join(name);
        std::fs::write(&file, &version.content).map_err(|error| WorktreeError::Git {
            message: format!("cannot write {}: {error}", file.display()),
        })?;
        merge.push(file.into());
    }
    // The exit status is the number of conflicts.
    Ok(snapshot.git.bytes(&merge).ok())
}

/// Returns the kind of a file from its mode in git. `None` if it does not exist. Fails for a
/// submodule.
fn file_kind(mode: Option<&str>, path: &Path) -> Result<Option<FileSnapshotKind>, WorktreeError> {
    match mode.unwrap_or_default() {
        "000000" => Ok(None),
        "100644" => Ok(Some(FileSnapshotKind::File)),
        "100755" => Ok(Some(FileSnapshotKind::Executable)),
        "120000" => Ok(Some(FileSnapshotKind::Link)),
        _ => Err(WorktreeError::Git {
            message: format!("{} is a repository of its own", path.display()),
        }),
    }
}
