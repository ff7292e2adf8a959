//! The tool `grep_files`: finds lines that match a regular expression, with ripgrep's search
//! engine.

use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use grep_regex::RegexMatcherBuilder;
use grep_searcher::sinks::Lossy;
use grep_searcher::{BinaryDetection, MmapChoice, SearcherBuilder};
use ignore::WalkState;
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::walk::{compile_globs, default_folder, default_limit, walk};

/// The longest line that is searched, in bytes. The search of a file stops at a longer line.
const MAX_SEARCHED_LINE_BYTES: usize = 16 << 20;

/// Maximum number of characters of a matching line in the result.
const MAX_SHOWN_LINE_CHARS: usize = 2000;

/// Maximum number of incompletely searched files in the result.
const MAX_SKIPPED_FILES: usize = 20;

/// The pattern and the files to search.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GrepFilesArgs {
    /// Regular expression in ripgrep's syntax.
    pattern: String,
    /// Search only files whose path matches this glob, such as `*.rs` or `src/**`.
    include: Option<String>,
    /// File or folder to search, relative to the workspace.
    #[serde(default = "default_folder")]
    path: String,
    /// Maximum number of matches.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1))]
    limit: usize,
    /// Whether upper and lower case differ.
    #[serde(default = "default_case_sensitive")]
    case_sensitive: bool,
}

fn default_case_sensitive() -> bool {
    true
}

/// A matching line, or a file that was not searched completely. Such files come last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct GrepMatch {
    /// Relative to the workspace.
    path: String,
    /// Line number, starting at 1; 0 for a file that was not searched completely.
    line: u64,
    /// The line without its line ending.
    text: String,
    /// Why the file was not searched completely; it may have more matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
}

/// The tool `grep_files`.
pub(crate) struct GrepFiles(pub(crate) Workspace);

impl Tool for GrepFiles {
    fn spec(&self) -> ToolSpec {
        let description =
            "Finds lines that match a regular expression. Skips files ignored by .gitignore.";
        built_in_spec::<GrepFilesArgs, Vec<GrepMatch>>("grep_files", &[], description)
            .as_read_only()
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: GrepFilesArgs| run_blocking(move || grep(&workspace, &args, &call.cancel));
        typed_call(args, run, |matches: &Vec<GrepMatch>| Some(render(matches)))
    }
}

fn render(matches: &[GrepMatch]) -> String {
    if matches.is_empty() {
        return "no matches".to_owned();
    }
    let render_one = |found: &GrepMatch| match &found.skipped {
        Some(reason) => format!("{}: not searched completely: {reason}\n", found.path),
        None => format!("{}:{}: {}\n", found.path, found.line, found.text),
    };
    matches.iter().map(render_one).collect()
}

fn grep(
    workspace: &Workspace,
    args: &GrepFilesArgs,
    cancel: &CancellationToken,
) -> Result<Vec<GrepMatch>, ToolError> {
    let matcher = RegexMatcherBuilder::new()
        .case_insensitive(!args.case_sensitive)
        .line_terminator(Some(b'\n'))
        .build(&args.pattern)
        .map_err(|error| {
            let reason = error.to_string();
            let reason = reason
                .lines()
                .last()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_owned();
            ToolError::new(format!(
                "`{}` is not a regular expression: {reason}",
                args.pattern
            ))
            .suggest("escape ( ) [ ] { } . * + ? with \\\\")
        })?;
    let include = args
        .include
        .as_deref()
        .map(|include| compile_globs([include]))
        .transpose()?;
    let folder = workspace.absolute(&args.path, None);
    let shown = workspace.display_path(&folder);
    let Ok(real) = folder.canonicalize() else {
        return Err(ToolError::new(format!("{shown} does not exist")));
    };
    workspace.refuse_secrets(&real, &shown)?;
    let found = Mutex::new(Vec::new());
    let skipped = Mutex::new(Vec::new());
    let count = AtomicUsize::new(0);
    // More matches than the limit, so that the first ones by path are mostly the same in every run,
    // but few enough that a common word does not read the whole disk.
    let max_collected = args.limit.saturating_mul(4).max(1000);
    let (walk, rules) = walk(workspace, &real);
    walk.run(|| {
        let mut searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .heap_limit(Some(MAX_SEARCHED_LINE_BYTES))
            .memory_map(MmapChoice::never())
            .build();
        let (matcher, include, found, skipped) = (&matcher, &include, &found, &skipped);
        let (count, folder, real) = (&count, &folder, &real);
        Box::new(move |entry| {
            if cancel.is_cancelled() || count.load(Ordering::Relaxed) >= max_collected {
                return WalkState::Quit;
            }
            let Ok(entry) = entry else {
                return WalkState::Continue;
            };
            if !entry.file_type().is_some_and(|kind| kind.is_file()) {
                return WalkState::Continue;
            }
            let path = entry.path();
            let below = path.strip_prefix(real).unwrap_or(path);
            let relative = if below.as_os_str().is_empty() {
                path
            } else {
                below
            };
            if include
                .as_ref()
                .is_some_and(|include| !include.is_match(relative))
            {
                return WalkState::Continue;
            }
            let requested = if below.as_os_str().is_empty() {
                folder.clone()
            } else {
                folder.join(below)
            };
            let shown = workspace.display_path(&requested);
            let mut in_file = Vec::new();
            let sink = Lossy(|line, text| {
                let text = text.trim_end_matches(['\n', '\r']);
                let text = text
                    .char_indices()
                    .nth(MAX_SHOWN_LINE_CHARS)
                    .map_or(text, |(end, _)| &text[..end]);
                in_file.push(GrepMatch {
                    path: shown.clone(),
                    line,
                    text: text.to_owned(),
                    skipped: None,
                });
                Ok(in_file.len() < max_collected)
            });
            // The walk does not follow links, so a link here was created after the walk passed.
            let searched = workspace
                .open_no_follow(path)
                .and_then(|file| searcher.search_file(matcher, &file, sink));
            if let Err(error) = searched
                && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput)
                && let Ok(mut skipped) = skipped.lock()
                && skipped.len() < max_collected
            {
                let skip = GrepMatch {
                    path: shown,
                    line: 0,
                    text: String::new(),
                    skipped: Some(skip_reason(&error)),
                };
                skipped.push(skip);
            }
            if !in_file.is_empty() {
                count.fetch_add(in_file.len(), Ordering::Relaxed);
                if let Ok(mut found) = found.lock() {
                    found.extend(in_file);
                }
            }
            WalkState::Continue
        })
    });
    let mut found = found.into_inner().unwrap_or_default();
    found.sort();
    found.truncate(args.limit);
    let mut skipped = skipped.into_inner().unwrap_or_default();
    skipped.extend(rules.take_refused().into_iter().map(|refusal| GrepMatch {
        path: workspace.display_path(&refusal.path),
        line: 0,
        text: String::new(),
        skipped: Some(format!("its ignore rules are not used: {}", refusal.reason)),
    }));
    skipped.sort();
    skipped.truncate(MAX_SKIPPED_FILES);
    found.append(&mut skipped);
    Ok(found)
}

/// Returns why a file was not searched completely.
fn skip_reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        // The searcher's own error is that a line exceeds the heap limit.
        ErrorKind::Other => format!("a line is longer than {} MB", MAX_SEARCHED_LINE_BYTES >> 20),
        _ => error.to_string(),
    }
}
