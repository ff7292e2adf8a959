//! Parallel directory walks that skip files ignored by `.gitignore`, and glob sets.

use std::path::Path;
use std::sync::{Arc, Mutex};

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::{DirEntry, WalkBuilder, WalkParallel};
use selvedge_text::group_digits;
use selvedge_tools::{CallContext, ToolError};

use crate::Workspace;
use crate::ignore_rules::{IgnoreFiles, IgnoreRules};
use crate::protected_paths::is_repository_name;

/// Default folder of a search: the workspace.
pub(crate) fn default_folder() -> String {
    ".".to_owned()
}

/// Default number of results of a search or listing in a script: enough for most repositories.
pub(crate) fn default_limit() -> usize {
    2000
}

/// Defaults of a search in a structured call.
pub(crate) const STRUCTURED_SEARCH_DEFAULTS: &[(&str, u64)] = &[("limit", 100)];

/// Returns the error of a search that was cancelled or reached its time limit. What it found so far
/// is not returned, because it looks like a complete result.
pub(crate) fn search_stopped_error() -> ToolError {
    ToolError::new("the search was stopped before it was complete")
}

/// Warns if a call returns only some of the results that it found. `what` is their plural.
pub(crate) fn warn_if_limited(call: &CallContext, returned: usize, total: usize, what: &str) {
    if returned < total {
        let [returned, total] = [returned, total].map(group_digits);
        call.warn(format!(
            "returned {returned} of {total} {what}; set a higher limit for more"
        ));
    }
}

/// Returns a parallel walk below `folder`, which must be canonical, and its ignore rules. Skips
/// `.git`, `/proc` and secrets.
pub(crate) fn walk(workspace: &Workspace, folder: &Path) -> (WalkParallel, Arc<IgnoreRules>) {
    let rules = IgnoreRules::new(workspace, folder, IgnoreFiles::Search);
    let workspace = workspace.clone();
    filtered_walk(folder, rules, move |entry| {
        let path = entry.path();
        entry.file_name() != ".git" && path != Path::new("/proc") && !workspace.is_secret(path)
    })
}

/// Returns a walk over the files that git would track, and its ignore rules: it respects
/// `.gitignore` but not `.ignore`.
pub(crate) fn walk_like_git(workspace: &Workspace) -> (WalkParallel, Arc<IgnoreRules>) {
    let rules = IgnoreRules::new(workspace, workspace.root(), IgnoreFiles::Git);
    let filter_workspace = workspace.clone();
    filtered_walk(workspace.root(), rules, move |entry| {
        !is_repository_name(entry.file_name()) && !filter_workspace.is_secret(entry.path())
    })
}

fn filtered_walk(
    folder: &Path,
    rules: IgnoreRules,
    is_included: impl Fn(&DirEntry) -> bool + Send + Sync + 'static,
) -> (WalkParallel, Arc<IgnoreRules>) {
    let rules = Arc::new(rules);
    let filter_rules = rules.clone();
    let walk = WalkBuilder::new(folder)
        // The walk reads no ignore files by itself.
        .standard_filters(false)
        .threads(thread_count())
        .filter_entry(move |entry| {
            let is_dir = entry.file_type().is_some_and(|kind| kind.is_dir());
            is_included(entry) && !filter_rules.is_ignored(entry.path(), is_dir)
        })
        .build_parallel();
    (walk, rules)
}

/// Returns the number of threads for disk-bound work.
pub(crate) fn thread_count() -> usize {
    std::thread::available_parallelism()
        .map_or(2, usize::from)
        .min(8)
}

/// The results of one thread of a walk; appended to the shared list when dropped.
pub(crate) struct WalkCollector<'a, T> {
    shared: &'a Mutex<Vec<T>>,
    pub(crate) items: Vec<T>,
}

impl<'a, T> WalkCollector<'a, T> {
    pub(crate) fn new(all: &'a Mutex<Vec<T>>) -> Self {
        Self {
            shared: all,
            items: Vec::new(),
        }
    }
}

impl<T> Drop for WalkCollector<'_, T> {
    fn drop(&mut self) {
        if let Ok(mut all) = self.shared.lock() {
            all.append(&mut self.items);
        }
    }
}

/// Compiles globs that follow the rules of `.gitignore`: a glob without a slash, apart from one at
/// its end, matches in every folder; `*` and `?` match no slash; and a glob that matches a folder
/// matches everything below it.
pub(crate) fn compile_globs<'a>(
    patterns: impl IntoIterator<Item = &'a str>,
) -> Result<GlobSet, ToolError> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let relative = pattern.trim_start_matches("./");
        let name = relative.trim_end_matches('/');
        let anywhere = match name.contains('/') {
            true => name.trim_start_matches('/').to_owned(),
            false => format!("**/{name}"),
        };
        // A slash at the end means that only folders match.
        if name == relative {
            set.add(compile_glob(&anywhere, pattern)?);
        }
        set.add(compile_glob(&format!("{anywhere}/**"), pattern)?);
    }
    set.build()
        .map_err(|error| ToolError::new(format!("cannot compile the globs: {error}")))
}

/// Compiles a glob whose `*` and `?` match no slash. `written` is the pattern as it was given.
pub(crate) fn compile_glob(glob: &str, written: &str) -> Result<Glob, ToolError> {
    let glob = GlobBuilder::new(glob).literal_separator(true).build();
    glob.map_err(|error| invalid_glob_error(written, &error))
}

fn invalid_glob_error(pattern: &str, error: &globset::Error) -> ToolError {
    ToolError::new(format!("`{pattern}` is not a glob: {}", error.kind()))
        .suggest("use a pattern such as *.ts, src/**/*.rs or {a,b}.txt")
}
