//! The tool `file_search`: finds files by glob or by fuzzy name, best match first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ignore::WalkState;
use nucleo_matcher::pattern::{CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher, Utf32Str};
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::walk::{
    STRUCTURED_SEARCH_DEFAULTS, WalkCollector, compile_globs, default_folder, default_limit,
    search_stopped_error, walk, warn_if_limited,
};

/// The file names to search for.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct FileSearchArgs {
    /// A glob with the rules of `.gitignore`, such as `*.test.ts` or `docs/*.md`, if it contains
    /// `*`, `?` or `[`. Any other text is matched fuzzily: its letters must occur in the path in
    /// this order.
    pattern: String,
    /// Maximum number of files.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1))]
    limit: usize,
    /// Folder to search, relative to the workspace.
    #[serde(default = "default_folder")]
    search_directory: String,
    /// Globs of files to exclude.
    #[serde(default)]
    exclude_patterns: Vec<String>,
}

/// A file that matches.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct FileSearchMatch {
    /// Relative to the workspace.
    path: String,
    /// Match quality; higher is better.
    score: u32,
    /// Positions in the path of the matched letters; empty for a glob.
    indices: Vec<u32>,
}

/// The tool `file_search`.
pub(crate) struct FileSearch(pub(crate) Workspace);

impl Tool for FileSearch {
    fn spec(&self) -> ToolSpec {
        let description = "Finds files by name. Skips files ignored by .gitignore.";
        built_in_spec::<FileSearchArgs, Vec<FileSearchMatch>>("file_search", &[], description)
            .as_read_only()
            .with_structured_defaults(STRUCTURED_SEARCH_DEFAULTS)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: FileSearchArgs| {
            run_blocking(move || {
                let (found, total) = search(&workspace, &args, &call.cancel)?;
                warn_if_limited(&call, found.len(), total, "files");
                Ok(found)
            })
        };
        typed_call(args, run, |found: &Vec<FileSearchMatch>| {
            Some(render(found))
        })
    }
}

fn render(found: &[FileSearchMatch]) -> String {
    match found {
        [] => "no files".to_owned(),
        _ => found
            .iter()
            .map(|found| format!("{}\n", found.path))
            .collect(),
    }
}

/// Returns at most `limit` files, and the number of all files that match.
fn search(
    workspace: &Workspace,
    args: &FileSearchArgs,
    cancel: &CancellationToken,
) -> Result<(Vec<FileSearchMatch>, usize), ToolError> {
    let folder = workspace.absolute(&args.search_directory, None);
    let display_path = workspace.display_path(&folder);
    let Some(real) = folder.canonicalize().ok().filter(|real| real.is_dir()) else {
        return Err(ToolError::new(format!("{display_path} is not a folder")));
    };
    workspace.refuse_secrets(&real, &display_path)?;
    let is_glob = args.pattern.contains(['*', '?', '[']);
    let included = if is_glob {
        Some(compile_globs([args.pattern.as_str()])?)
    } else {
        None
    };
    let excluded = compile_globs(args.exclude_patterns.iter().map(String::as_str))?;
    let paths = Mutex::new(Vec::new());
    let was_stopped = AtomicBool::new(false);
    walk(workspace, &real).0.run(|| {
        let (included, excluded, paths) = (&included, &excluded, &paths);
        let (folder, real, was_stopped) = (&folder, &real, &was_stopped);
        // Each thread collects its own matches and merges them when it ends.
        let mut local = WalkCollector::new(paths);
        Box::new(move |entry| {
            if cancel.is_cancelled() {
                was_stopped.store(true, Ordering::Relaxed);
                return WalkState::Quit;
            }
            let Ok(entry) = entry else {
                return WalkState::Continue;
            };
            if !entry
                .file_type()
                .is_some_and(|kind| kind.is_file() || kind.is_symlink())
            {
                return WalkState::Continue;
            }
            let relative = entry.path().strip_prefix(real).unwrap_or(entry.path());
            if !excluded.is_match(relative)
                && included.as_ref().is_none_or(|glob| glob.is_match(relative))
            {
                local
                    .items
                    .push(workspace.display_path(&folder.join(relative)));
            }
            WalkState::Continue
        })
    });
    if was_stopped.into_inner() {
        return Err(search_stopped_error());
    }
    let mut paths = paths.into_inner().unwrap_or_default();
    paths.sort();
    if is_glob {
        let total = paths.len();
        let found = paths.into_iter().take(args.limit);
        let found = found.map(|path| FileSearchMatch {
            path,
            score: 1,
            indices: Vec::new(),
        });
        return Ok((found.collect(), total));
    }
    Ok(rank_fuzzy(paths, args))
}

impl Workspace {
    /// Returns the paths that the tool `file_search` finds for a pattern, best match first. Returns
    /// an empty list if the pattern is invalid.
    pub fn find_files(&self, pattern: &str, limit: usize) -> Vec<String> {
        let args = FileSearchArgs {
            pattern: pattern.to_owned(),
            limit,
            search_directory: default_folder(),
            exclude_patterns: Vec::new(),
        };
        let (found, _) = search(self, &args, &CancellationToken::new()).unwrap_or_default();
        found.into_iter().map(|found| found.path).collect()
    }
}

/// Ranks paths by how well they match the fuzzy pattern. Returns at most `limit`, and the number of
/// all that match.
fn rank_fuzzy(paths: Vec<String>, args: &FileSearchArgs) -> (Vec<FileSearchMatch>, usize) {
    let mut matcher = Matcher::new(Config::DEFAULT.match_paths());
    let pattern = Pattern::parse(&args.pattern, CaseMatching::Smart, Normalization::Smart);
    let mut buffer = Vec::new();
    let mut found: Vec<(u32, String)> = paths
        .into_iter()
        .filter_map(|path| {
            pattern
                .score(Utf32Str::new(&path, &mut buffer), &mut matcher)
                .map(|score| (score, path))
        })
        .collect();
    found.sort_by(|a, b| {
        b.0.cmp(&a.0)
            .then_with(|| a.1.len().cmp(&b.1.len()))
            .then_with(|| a.1.cmp(&b.1))
    });
    let total = found.len();
    found.truncate(args.limit);
    let found = found
        .into_iter()
        .map(|(score, path)| {
            let mut indices = Vec::new();
            pattern.indices(
                Utf32Str::new(&path, &mut buffer),
                &mut matcher,
                &mut indices,
            );
            indices.sort_unstable();
            indices.dedup();
            FileSearchMatch {
                path,
                score,
                indices,
            }
        })
        .collect();
    (found, total)
}
