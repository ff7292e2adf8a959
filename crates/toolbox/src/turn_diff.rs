//! What a turn changed in the workspace, as one unified diff, whichever tool did it. A tool that knows what it
//! will write says so before; a command cannot, so before the first one the whole workspace is remembered.

mod baseline;
mod changes;
mod file;
mod lines;
mod renames;
mod unified;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::Workspace;
use crate::workspace::is_protected;
use baseline::Baseline;
use file::Held;

/// What a turn changed in the workspace, followed once [`TurnDiff::begin`] was called. Clones share it.
#[derive(Debug, Clone)]
pub struct TurnDiff {
    workspace: Workspace,
    /// `None` while nobody wants to know.
    before: Arc<Mutex<Option<Before>>>,
    /// The same for more than one turn.
    before_session: Arc<Mutex<Option<Before>>>,
}

/// A turn's changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// A unified diff as git writes it; empty if nothing changed. Bytes that are not Unicode are replaced.
    pub text: String,
    /// The files in it, in order.
    pub files: Vec<ChangedFile>,
    /// What could not be covered, and why.
    pub notes: Vec<String>,
}

/// One file of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedFile {
    /// Relative to the workspace.
    pub path: String,
    /// Its path before, if it was renamed.
    pub from: Option<String>,
    /// What became of it.
    pub kind: ChangeKind,
    /// Lines added.
    pub added: usize,
    /// Lines removed.
    pub removed: usize,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// It is not there any more.
    Deleted,
    /// Its content, its mode or its type is another.
    Modified,
    /// It has another path, and the same content or nearly so.
    Renamed,
}

/// How things were when the turn began, as far as anybody asked. Paths are relative to the workspace and ordered
/// by their bytes, as git orders them.
#[derive(Debug, Clone, Default)]
struct Before {
    /// What tools said they would write; `None` if nothing was there. Wins over the baseline, for whatever
    /// a tool wrote before the baseline is in it.
    remembered: BTreeMap<OsString, Option<Arc<Held>>>,
    baseline: Baselined,
}

/// Whether the workspace was remembered as a whole.
#[derive(Debug, Clone, Default)]
enum Baselined {
    #[default]
    Not,
    /// It was too large for that.
    TooMany,
    Taken(Arc<Baseline>),
}

impl TurnDiff {
    /// Nobody wants to know yet, and nothing is remembered.
    pub fn new(workspace: &Workspace) -> Self {
        Self {
            workspace: workspace.clone(),
            before: Arc::default(),
            before_session: Arc::default(),
        }
    }

    /// A new turn: how things are now is how they were.
    pub fn begin(&self) {
        *lock(&self.before) = Some(Before::default());
    }

    /// A new session: from now on [`TurnDiff::session_diff`] tells what all its turns changed.
    pub fn begin_session(&self) {
        *lock(&self.before_session) = Some(Before::default());
    }

    /// Called before something that may change any file: a command, or a script as a whole. Remembers the
    /// workspace the first time in a turn, which blocks.
    pub fn before_command(&self) {
        let mut taken = None;
        for before in [&self.before, &self.before_session] {
            if let Some(before) = lock(before).as_mut()
                && let Baselined::Not = before.baseline
            {
                // Both are of the same moment.
                let now =
                    taken.get_or_insert_with(|| Baseline::take(&self.workspace).map(Arc::new));
                before.baseline = now.clone().map_or(Baselined::TooMany, Baselined::Taken);
            }
        }
    }

    /// Called before a file is written or removed, with its absolute path. The first call for a path counts.
    pub(crate) fn before_write(&self, path: &Path) {
        for before in [&self.before, &self.before_session] {
            let mut before = lock(before);
            let Some(before) = before.as_mut() else {
                continue;
            };
            for entry in entries(path) {
                let inside = entry.strip_prefix(self.workspace.root()).ok();
                if let Some(name) = inside.filter(|name| !name.iter().any(is_protected))
                    && !self.workspace.is_secret(&entry)
                {
                    before.remember(&self.workspace, name);
                }
            }
        }
    }

    /// What has changed since the turn began. Blocks.
    pub fn diff(&self) -> Diff {
        self.since(&self.before)
    }

    /// What has changed since the session began. Blocks.
    pub fn session_diff(&self) -> Diff {
        self.since(&self.before_session)
    }

    fn since(&self, before: &Mutex<Option<Before>>) -> Diff {
        let Some(before) = lock(before).clone() else {
            return Diff::default();
        };
        let (mut changes, notes) = changes::changes(&self.workspace, &before);
        renames::pair(&mut changes);
        let mut diff = unified::write(&changes);
        diff.notes.splice(0..0, notes);
        diff
    }
}

fn lock(before: &Mutex<Option<Before>>) -> MutexGuard<'_, Option<Before>> {
    before.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Before {
    fn remember(&mut self, workspace: &Workspace, name: &Path) {
        let name = name.as_os_str();
        if self.remembered.contains_key(name) {
            return;
        }
        let mut now = Held::read(workspace, &workspace.root().join(name));
        if let Baselined::Taken(baseline) = &self.baseline {
            if baseline.files.contains_key(name) {
                return;
            }
            // The baseline has all but what was ignored: what else it lacks has come since.
            now = now.filter(|_| baseline.ignored(name));
        }
        self.remembered.insert(name.to_owned(), now.map(Arc::new));
    }
}

/// Links followed from one name to the next.
const MAX_LINKS: usize = 8;

/// The directory entries that writing to a path may change: its own, and, where it is a link, those it leads to.
fn entries(path: &Path) -> Vec<PathBuf> {
    let mut entries = Vec::new();
    let mut next = path.to_owned();
    while let Some(entry) = real_entry(&next).filter(|_| entries.len() < MAX_LINKS) {
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

/// The path with its folders resolved and its last name as it is. Folders that are not there have no links.
fn real_entry(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?, path.file_name()?);
    let folder = match folder.canonicalize() {
        Ok(folder) => folder,
        Err(_) => real_entry(folder)?,
    };
    Some(folder.join(name))
}
