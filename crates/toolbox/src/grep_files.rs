//! The tool `grep_files`: finds lines that match a regular expression, with ripgrep's search
//! engine.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use grep_regex::RegexMatcherBuilder;
use grep_searcher::sinks::Lossy;
use grep_searcher::{BinaryDetection, MmapChoice, SearcherBuilder};
use ignore::WalkState;
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_text::group_digits;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::walk::{STRUCTURED_SEARCH_DEFAULTS, compile_globs, default_folder, default_limit, walk};

/// The longest line that is searched, in bytes. The search of a file stops at a longer line.
const MAX_SEARCHED_LINE_BYTES: usize = 16 << 20;

/// Maximum number of characters of a matching line in the result.
const MAX_SHOWN_LINE_CHARS: usize = 2000;

/// Number of matches after which the search stops, so that a common word does not read the whole
/// disk.
const MAX_COUNTED_MATCHES: usize = 100_000;

/// Memory of a compiled regular expression and of its cache in each thread, in bytes.
const MAX_REGEX_BYTES: usize = 10 << 20;

/// Number of searches that run at the same time. Each one uses all cores.
const MAX_CONCURRENT_SEARCHES: usize = 4;

/// Maximum number of incompletely searched files in the result.
const MAX_SKIPPED_FILES: usize = 20;

/// The pattern and the files to search.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GrepFilesArgs {
    /// Regular expression in ripgrep's syntax.
    pattern: String,
    /// Search only files whose path matches this glob, such as `*.rs` or `src/**`, with the rules
    /// of `.gitignore`.
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
    /// Whether `text` is not the whole line.
    #[serde(skip)]
    cut: bool,
}

static SEARCHES: Semaphore = Semaphore::const_new(MAX_CONCURRENT_SEARCHES);

/// The tool `grep_files`.
pub(crate) struct GrepFiles(pub(crate) Workspace);

impl Tool for GrepFiles {
    fn spec(&self) -> ToolSpec {
        let description =
            "Finds lines that match a regular expression. Skips files ignored by .gitignore.";
        built_in_spec::<GrepFilesArgs, Vec<GrepMatch>>("grep_files", &[], description)
            .as_read_only()
            .with_structured_defaults(STRUCTURED_SEARCH_DEFAULTS)
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: GrepFilesArgs| async move {
            let _turn = SEARCHES.acquire().await;
            run_blocking(move || grep(&workspace, &args, &call)).await
        };
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
    call: &CallContext,
) -> Result<Vec<GrepMatch>, ToolError> {
    let matcher = RegexMatcherBuilder::new()
        .case_insensitive(!args.case_sensitive)
        .line_terminator(Some(b'\n'))
        .size_limit(MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_REGEX_BYTES)
        .build(&args.pattern)
        .map_err(|error| {
            let reason = error.to_string();
            if reason.contains("size limit") {
                return ToolError::new("the regular expression is too large when compiled")
                    .suggest("use smaller numbers in {…}");
            }
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
    let found = Mutex::new(FirstMatches::new(args.limit));
    let skipped = Mutex::new(Vec::new());
    let count = AtomicUsize::new(0);
    let max_counted = args.limit.max(MAX_COUNTED_MATCHES);
    let cancel = &call.cancel;
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
            if cancel.is_cancelled() || count.load(Ordering::Relaxed) > max_counted {
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
            let (mut in_file, mut matches) = (Vec::new(), 0);
            let sink = Lossy(|line, text| {
                matches += 1;
                if in_file.len() >= args.limit {
                    return Ok(count.load(Ordering::Relaxed) + matches <= max_counted);
                }
                let text = text.trim_end_matches(['\n', '\r']);
                let end = text.char_indices().nth(MAX_SHOWN_LINE_CHARS);
                in_file.push(GrepMatch {
                    path: shown.clone(),
                    line,
                    text: end.map_or(text, |(end, _)| &text[..end]).to_owned(),
                    skipped: None,
                    cut: end.is_some(),
                });
                Ok(count.load(Ordering::Relaxed) + matches <= max_counted)
            });
            // The walk does not follow links, so a link here was created after the walk passed.
            let searched = workspace
                .open_no_follow(path)
                .and_then(|file| searcher.search_file(matcher, &file, sink));
            if let Err(error) = searched
                && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput)
                && let Ok(mut skipped) = skipped.lock()
                && skipped.len() < max_counted
            {
                let skip = GrepMatch {
                    path: shown,
                    line: 0,
                    text: String::new(),
                    skipped: Some(skip_reason(&error)),
                    cut: false,
                };
                skipped.push(skip);
            }
            count.fetch_add(matches, Ordering::Relaxed);
            if let Ok(mut found) = found.lock() {
                found.add(in_file);
            }
            WalkState::Continue
        })
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let found = found.into_sorted();
    warn_about_limits(call, &found, count.into_inner(), max_counted);
    let mut skipped = skipped.into_inner().unwrap_or_default();
    skipped.extend(rules.take_refused().into_iter().map(|refusal| GrepMatch {
        path: workspace.display_path(&refusal.path),
        line: 0,
        text: String::new(),
        skipped: Some(format!("its ignore rules are not used: {}", refusal.reason)),
        cut: false,
    }));
    skipped.sort();
    if skipped.len() > MAX_SKIPPED_FILES {
        let [shown, total] = [MAX_SKIPPED_FILES, skipped.len()].map(group_digits);
        call.warn(format!(
            "{shown} of {total} files that were not searched completely"
        ));
        skipped.truncate(MAX_SKIPPED_FILES);
    }
    Ok(found.into_iter().chain(skipped).collect())
}

/// The first matches by path and line, up to a limit.
struct FirstMatches {
    limit: usize,
    matches: Vec<GrepMatch>,
}

impl FirstMatches {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            matches: Vec::new(),
        }
    }

    fn add(&mut self, more: Vec<GrepMatch>) {
        self.matches.extend(more);
        // Sorting only when the list has doubled keeps the work per match small.
        if self.matches.len() > self.limit.saturating_mul(2).max(1000) {
            self.matches.sort();
            self.matches.truncate(self.limit);
        }
    }

    fn into_sorted(mut self) -> Vec<GrepMatch> {
        self.matches.sort();
        self.matches.truncate(self.limit);
        self.matches
    }
}

/// Warns if matches or parts of them are missing in the result.
fn warn_about_limits(call: &CallContext, found: &[GrepMatch], total: usize, max_counted: usize) {
    let returned = group_digits(found.len());
    if total > max_counted {
        let counted = group_digits(max_counted);
        call.warn(format!("{returned} of more than {counted} matches"));
    } else if found.len() < total {
        call.warn(format!("{returned} of {} matches", group_digits(total)));
    }
    let max_chars = group_digits(MAX_SHOWN_LINE_CHARS);
    match found.iter().filter(|found| found.cut).count() {
        0 => {}
        1 => call.warn(format!("1 matching line is cut to {max_chars} characters")),
        cut => call.warn(format!(
            "{} matching lines are cut to {max_chars} characters",
            group_digits(cut)
        )),
    }
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
