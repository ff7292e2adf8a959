//! The changes of a turn or session in the workspace, as one unified diff. Tools report each file
//! before they write it. Commands may change any file, so a baseline of the whole workspace is
//! taken before the first command.

mod baseline;
mod changes;
mod file;
mod lines;
mod recorded;
mod renames;
mod unified;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_protocol::TurnFileChanges;
use serde::Serialize;

use crate::Workspace;
use crate::protected_paths::is_repository_name;
use baseline::Baseline;
use file::TrackedFile;

/// Tracks the changes in a workspace. Tracking starts with [`TurnDiffTracker::begin_turn`] or
/// [`TurnDiffTracker::begin_session`]. Clones share their state.
#[derive(Debug, Clone)]
pub struct TurnDiffTracker {
    workspace: Workspace,
    /// The state at the start of the turn; `None` while turns are not tracked.
    turn_start: Arc<Mutex<Option<DiffStartState>>>,
    /// The state at the start of the session; `None` while sessions are not tracked.
    session_start: Arc<Mutex<Option<DiffStartState>>>,
}

/// The changes since the start of a turn or session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct WorkspaceDiff {
    /// Unified diff in git's format; empty if nothing changed. Invalid UTF-8 is replaced.
    pub text: String,
    /// The files in the diff, in the order of the diff.
    pub files: Vec<ChangedFile>,
    /// Changes that the diff does not show, and why.
    pub notes: Vec<String>,
}

/// One file of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedFile {
    /// Relative to the workspace.
    pub path: String,
    /// The earlier path, if the file was renamed.
    pub from: Option<String>,
    /// How the file changed.
    pub kind: ChangeKind,
    /// Number of added lines.
    pub added: usize,
    /// Number of removed lines.
    pub removed: usize,
}

/// How a file changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The file is new.
    Added,
    /// The file no longer exists.
    Deleted,
    /// The content, mode or type changed.
    Modified,
    /// The path changed; the content is the same or similar.
    Renamed,
}

/// The known files at the start of a turn or session. Paths are relative to the workspace and
/// ordered by bytes, as in git.
#[derive(Debug, Clone, Default)]
struct DiffStartState {
    /// Files that tools reported before writing them; `None` if the file did not exist. They take
    /// precedence over the baseline, which may contain what a tool wrote before it was taken.
    recorded_files: BTreeMap<OsString, Option<Arc<TrackedFile>>>,
    /// Files that tools reported, also those that the baseline has.
    written_files: BTreeSet<OsString>,
    baseline: BaselineState,
}

/// Whether a baseline of the whole workspace was taken.
#[derive(Debug, Clone, Default)]
enum BaselineState {
    #[default]
    NotTaken,
    /// The workspace has too many files for a baseline.
    TooManyFiles,
    Taken(Arc<Baseline>),
}

impl TurnDiffTracker {
    /// Creates a tracker that does not track yet.
    pub fn new(workspace: &Workspace) -> Self {
        Self {
            workspace: workspace.clone(),
            turn_start: Arc::default(),
            session_start: Arc::default(),
        }
    }

    /// Starts a turn: later changes are relative to the current state.
    pub fn begin_turn(&self) {
        *lock_state(&self.turn_start) = Some(DiffStartState::default());
    }

    /// Starts a session: [`TurnDiffTracker::session_diff`] is relative to the current state.
    pub fn begin_session(&self) {
        *lock_state(&self.session_start) = Some(DiffStartState::default());
    }

    /// Must be called before anything that may change any file: a command or a script. The first
    /// call in a turn takes the baseline, which blocks.
    pub fn before_command(&self) {
        let mut taken = None;
        for before in [&self.turn_start, &self.session_start] {
            if let Some(before) = lock_state(before).as_mut()
                && let BaselineState::NotTaken = before.baseline
            {
                // The turn and the session share one baseline.
                let now =
                    taken.get_or_insert_with(|| Baseline::take(&self.workspace).map(Arc::new));
                before.baseline = now
                    .clone()
                    .map_or(BaselineState::TooManyFiles, BaselineState::Taken);
            }
        }
    }

    /// Must be called before a tool writes or removes a file, with its absolute path. Only the
    /// first call for a path has an effect.
    pub(crate) fn before_write(&self, path: &Path) {
        for before in [&self.turn_start, &self.session_start] {
            let mut before = lock_state(before);
            let Some(before) = before.as_mut() else {
                continue;
            };
            for entry in affected_entries(path) {
                let inside = entry.strip_prefix(self.workspace.root()).ok();
                if let Some(name) = inside.filter(|name| !name.iter().any(is_repository_name))
                    && !self.workspace.is_secret(&entry)
                {
                    before.record_file(&self.workspace, name);
                    before.written_files.insert(name.as_os_str().to_owned());
                }
            }
        }
    }

    /// Returns the changes since the start of the turn. Blocks.
    pub fn diff(&self) -> WorkspaceDiff {
        self.diff_since(&self.turn_start)
    }

    /// Returns the changes since the start of the session. Blocks.
    pub fn session_diff(&self) -> WorkspaceDiff {
        self.diff_since(&self.session_start)
    }

    /// Returns the files that changed since the start of the turn, with their contents. Blocks.
    pub fn changed_files(&self) -> TurnFileChanges {
        let Some(before) = lock_state(&self.turn_start).clone() else {
            return TurnFileChanges::default();
        };
        let (changes, _) = changes::find_changes(&self.workspace, &before);
        recorded::record_contents(self.workspace.root(), changes)
    }

    /// Returns the files that tools wrote since the start of the turn, relative to the workspace.
    /// All other changed files were changed by commands, of this turn or of another one.
    pub fn files_written_by_tools(&self) -> Vec<PathBuf> {
        let turn = lock_state(&self.turn_start);
        let written = turn.iter().flat_map(|turn| &turn.written_files);
        written.map(PathBuf::from).collect()
    }

    fn diff_since(&self, before: &Mutex<Option<DiffStartState>>) -> WorkspaceDiff {
        let Some(before) = lock_state(before).clone() else {
            return WorkspaceDiff::default();
        };
        let (mut changes, notes) = changes::find_changes(&self.workspace, &before);
        renames::detect_renames(&mut changes);
        let mut diff = unified::render_diff(&changes);
        diff.notes.splice(0..0, notes);
        diff
    }
}

fn lock_state(before: &Mutex<Option<DiffStartState>>) -> MutexGuard<'_, Option<DiffStartState>> {
    before.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiffStartState {
    /// Stores the current state of a file, unless it is already known.
    fn record_file(&mut self, workspace: &Workspace, name: &Path) {
        let name = name.as_os_str();
        if self.recorded_files.contains_key(name) {
            return;
        }
        let mut now = TrackedFile::read(workspace, &workspace.root().join(name));
        if let BaselineState::Taken(baseline) = &self.baseline {
            if baseline.files.contains_key(name) {
                return;
            }
            // The baseline has all files except ignored ones, so any other file that it lacks was
            // created since.
            now = now.filter(|_| baseline.is_ignored(name));
        }
        self.recorded_files
            .insert(name.to_owned(), now.map(Arc::new));
    }
}

/// Maximum length of a chain of symbolic links that is followed.
const MAX_LINK_HOPS: usize = 8;

/// Returns the directory entries that writing to a path may change: the path itself and, if it is a
/// symbolic link, its targets.
fn affected_entries(path: &Path) -> Vec<PathBuf> {
    let mut entries = Vec::new();
    let mut next = path.to_owned();
    while let Some(entry) = resolve_parent(&next).filter(|_| entries.len() < MAX_LINK_HOPS) {
        let target = std::fs::read_link(&entry).ok();
        let leads_to = target.and_then(|target| Some(entry.parent()?.join(target)));
        entries.push(entry);
        match leads_to {
            Some(target) => next = target,
            None => break,
        }
    }
    entries
}

/// Resolves symbolic links in the folders of a path, but not in its last component.
fn resolve_parent(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?, path.file_name()?);
    let folder = match folder.canonicalize() {
        Ok(folder) => folder,
        Err(_) => resolve_parent(folder)?,
    };
    Some(folder.join(name))
}
