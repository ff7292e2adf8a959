//! Walking a folder the way ripgrep does: in parallel, and past what `.gitignore` names.

use std::path::Path;
use std::sync::Mutex;

use globset::{Glob, GlobSet, GlobSetBuilder};
use ignore::{WalkBuilder, WalkParallel};
use selvedge_tools::ToolError;

use crate::Workspace;
use crate::workspace::is_protected;

/// The folder that is searched where a call names none.
pub(crate) fn here() -> String {
    ".".to_owned()
}

/// How much a search returns where a call does not say.
pub(crate) fn hundred() -> usize {
    100
}

/// A parallel walk below `folder`; secrets, processes, and `.git` itself, are not entered.
pub(crate) fn walk(workspace: &Workspace, folder: &Path) -> WalkParallel {
    let workspace = workspace.clone();
    WalkBuilder::new(folder)
        .hidden(false)
        .require_git(false)
        .threads(threads())
        .filter_entry(move |entry| {
            let path = entry.path();
            entry.file_name() != ".git" && path != Path::new("/proc") && !workspace.is_secret(path)
        })
        .build_parallel()
}

/// A walk through what version control would look at: `.gitignore` hides, `.ignore` does not.
pub(crate) fn walk_like_git(workspace: &Workspace) -> WalkBuilder {
    let inside = workspace.clone();
    let mut builder = WalkBuilder::new(workspace.root());
    builder
        .hidden(false)
        .ignore(false)
        .require_git(false)
        .threads(threads())
        .filter_entry(move |entry| {
            !is_protected(entry.file_name()) && !inside.is_secret(entry.path())
        });
    builder
}

/// Threads for work that is mostly waiting for the disk.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism()
        .map_or(2, usize::from)
        .min(8)
}

/// What one thread of a walk has found; given to all when the thread is done.
pub(crate) struct Gather<'a, T> {
    all: &'a Mutex<Vec<T>>,
    pub(crate) found: Vec<T>,
}

impl<'a, T> Gather<'a, T> {
    pub(crate) fn into(all: &'a Mutex<Vec<T>>) -> Self {
        Self {
            all,
            found: Vec::new(),
        }
    }
}

impl<T> Drop for Gather<'_, T> {
    fn drop(&mut self) {
        if let Ok(mut all) = self.all.lock() {
            all.append(&mut self.found);
        }
    }
}

/// Globs as people write them: one without a slash matches in every folder.
pub(crate) fn globs<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<GlobSet, ToolError> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let pattern = pattern.trim_start_matches("./");
        let anywhere = if pattern.contains('/') {
            pattern.to_owned()
        } else {
            format!("**/{pattern}")
        };
        set.add(Glob::new(&anywhere).map_err(|error| bad_glob(pattern, &error))?);
        // A folder's name stands for all that is in it.
        set.add(
            Glob::new(&format!("{}/**", anywhere.trim_end_matches('/')))
                .map_err(|error| bad_glob(pattern, &error))?,
        );
    }
    set.build()
        .map_err(|error| ToolError::new(format!("the patterns cannot be used: {error}")))
}

fn bad_glob(pattern: &str, error: &globset::Error) -> ToolError {
    ToolError::new(format!("`{pattern}` is not a glob: {}", error.kind()))
        .suggest("write *.ts, src/**/*.rs or {a,b}.txt")
}
