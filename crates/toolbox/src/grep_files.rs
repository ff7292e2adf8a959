//! The tool `grep_files`: finds lines that match a regular expression, with ripgrep's search
//! engine.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use globset::GlobSet;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::sinks::Lossy;
use grep_searcher::{BinaryDetection, MmapChoice, Searcher, SearcherBuilder};
use ignore::{DirEntry, WalkState};
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_text::group_digits;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::walk::{
    STRUCTURED_SEARCH_DEFAULTS, compile_globs, default_folder, default_limit, search_stopped_error,
    walk, warn_if_limited,
};

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
    /// Whether the search is case-sensitive.
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
    is_cut: bool,
}

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
        let run = |args: GrepFilesArgs| search_in_turn(move || grep(&workspace, &args, &call));
        typed_call(args, run, |matches: &Vec<GrepMatch>| Some(render(matches)))
    }
}

/// Runs a search on a thread that may block, a few at a time.
async fn search_in_turn<T: Send + 'static>(
    search: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    static SEARCHES: Semaphore = Semaphore::const_new(MAX_CONCURRENT_SEARCHES);
    let _turn = SEARCHES.acquire().await;
    run_blocking(search).await
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

impl GrepMatch {
    /// A file that was not searched completely.
    fn skipped(path: String, reason: String) -> Self {
        Self {
            path,
            line: 0,
            text: String::new(),
            skipped: Some(reason),
            is_cut: false,
        }
    }
}

fn grep(
    workspace: &Workspace,
    args: &GrepFilesArgs,
    call: &CallContext,
) -> Result<Vec<GrepMatch>, ToolError> {
    let matcher = build_matcher(args)?;
    let include = args.include.as_deref();
    let include = include
        .map(|include| compile_globs([include]))
        .transpose()?;
    let folder = workspace.absolute(&args.path, None);
    let display_path = workspace.display_path(&folder);
    let Ok(real) = folder.canonicalize() else {
        return Err(ToolError::new(format!("{display_path} does not exist")));
    };
    workspace.refuse_secrets(&real, &display_path)?;
    let (walk, rules) = walk(workspace, &real);
    let search = FileGrep {
        workspace,
        cancel: &call.cancel,
        matcher,
        include,
        folder: &folder,
        real_folder: &real,
        limit: args.limit,
        max_counted: args.limit.max(MAX_COUNTED_MATCHES),
        found: Mutex::new(FirstMatches::new(args.limit)),
        skipped: Mutex::default(),
        count: AtomicUsize::new(0),
        was_cancelled: AtomicBool::new(false),
    };
    walk.run(|| {
        let mut searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .heap_limit(Some(MAX_SEARCHED_LINE_BYTES))
            .memory_map(MmapChoice::never())
            .build();
        let search = &search;
        Box::new(move |entry| match entry {
            _ if search.is_stopped() => WalkState::Quit,
            Ok(entry) => search.search_entry(&mut searcher, &entry),
            Err(_) => WalkState::Continue,
        })
    });
    if search.was_cancelled.into_inner() {
        return Err(search_stopped_error());
    }
    let found = search.found.into_inner();
    let found = found.unwrap_or_else(PoisonError::into_inner).into_sorted();
    warn_about_limits(call, &found, search.count.into_inner(), search.max_counted);
    let mut skipped = search.skipped.into_inner().unwrap_or_default();
    skipped.extend(rules.take_refused().into_iter().map(|refusal| {
        let reason = format!("its ignore rules are not used: {}", refusal.reason);
        GrepMatch::skipped(workspace.display_path(&refusal.path), reason)
    }));
    Ok(found
        .into_iter()
        .chain(list_skipped(call, skipped))
        .collect())
}

fn build_matcher(args: &GrepFilesArgs) -> Result<RegexMatcher, ToolError> {
    let matcher = RegexMatcherBuilder::new()
        .case_insensitive(!args.case_sensitive)
        .line_terminator(Some(b'\n'))
        .size_limit(MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_REGEX_BYTES)
        .build(&args.pattern);
    matcher.map_err(|error| {
        let error = error.to_string();
        if error.contains("size limit") {
            return ToolError::new("the regular expression is too large when compiled")
                .suggest("use smaller numbers in {…}");
        }
        let reason = error.lines().last().unwrap_or_default();
        let reason = reason.trim_start_matches("error: ");
        ToolError::new(format!(
            "`{}` is not a regular expression: {reason}",
            args.pattern
        ))
        .suggest("escape ( ) [ ] { } . * + ? with \\\\")
    })
}

/// Sorts the files that were not searched completely. Warns if there are more than are returned.
fn list_skipped(call: &CallContext, mut skipped: Vec<GrepMatch>) -> Vec<GrepMatch> {
    skipped.sort();
    if skipped.len() > MAX_SKIPPED_FILES {
        let [listed, total] = [MAX_SKIPPED_FILES, skipped.len()].map(group_digits);
        call.warn(format!(
            "{total} files were not searched completely; {listed} of them are listed"
        ));
        skipped.truncate(MAX_SKIPPED_FILES);
    }
    skipped
}

/// A search that several threads make together.
struct FileGrep<'a> {
    workspace: &'a Workspace,
    cancel: &'a CancellationToken,
    matcher: RegexMatcher,
    include: Option<GlobSet>,
    /// The searched file or folder, as the call names it.
    folder: &'a Path,
    /// Its canonical path.
    real_folder: &'a Path,
    limit: usize,
    /// Number of matches after which the search stops.
    max_counted: usize,
    found: Mutex<FirstMatches>,
    skipped: Mutex<Vec<GrepMatch>>,
    /// Number of all matches.
    count: AtomicUsize,
    /// Whether the search stopped because the call was cancelled.
    was_cancelled: AtomicBool,
}

impl FileGrep<'_> {
    fn is_stopped(&self) -> bool {
        if self.cancel.is_cancelled() {
            self.was_cancelled.store(true, Ordering::Relaxed);
            return true;
        }
        self.count.load(Ordering::Relaxed) > self.max_counted
    }

    fn search_entry(&self, searcher: &mut Searcher, entry: &DirEntry) -> WalkState {
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            return WalkState::Continue;
        }
        let path = entry.path();
        let below = path.strip_prefix(self.real_folder).unwrap_or(path);
        // The path below a file is empty.
        let (relative, requested) = match below.as_os_str().is_empty() {
            true => (path, self.folder.to_owned()),
            false => (below, self.folder.join(below)),
        };
        let include = self.include.as_ref();
        if include.is_some_and(|include| !include.is_match(relative)) {
            return WalkState::Continue;
        }
        let display_path = self.workspace.display_path(&requested);
        let (mut in_file, mut matches) = (Vec::new(), 0);
        let sink = Lossy(|line, text| {
            matches += 1;
            if in_file.len() < self.limit {
                let text = text.trim_end_matches(['\n', '\r']);
                let end = text.char_indices().nth(MAX_SHOWN_LINE_CHARS);
                in_file.push(GrepMatch {
                    path: display_path.clone(),
                    line,
                    text: end.map_or(text, |(end, _)| &text[..end]).to_owned(),
                    skipped: None,
                    is_cut: end.is_some(),
                });
            }
            Ok(self.count.load(Ordering::Relaxed) + matches <= self.max_counted)
        });
        // The walk does not follow links, so a link here was created after the walk passed.
        let file = self.workspace.open_no_follow(path);
        let searched = file.and_then(|file| searcher.search_file(&self.matcher, &file, sink));
        if let Err(error) = searched
            && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput)
            && let Ok(mut skipped) = self.skipped.lock()
            && skipped.len() < self.max_counted
        {
            skipped.push(GrepMatch::skipped(display_path, skip_reason(&error)));
        }
        self.count.fetch_add(matches, Ordering::Relaxed);
        if let Ok(mut found) = self.found.lock() {
            found.add(in_file);
        }
        WalkState::Continue
    }
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
        call.warn(format!(
            "returned {returned} of more than {counted} matches; set a higher limit for more"
        ));
    } else {
        warn_if_limited(call, found.len(), total, "matches");
    }
    let max_chars = group_digits(MAX_SHOWN_LINE_CHARS);
    match found.iter().filter(|found| found.is_cut).count() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_few_searches_run_at_the_same_time() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let search = || {
            let running = RUNNING.fetch_add(1, Ordering::SeqCst) + 1;
            std::thread::sleep(Duration::from_millis(50));
            RUNNING.fetch_sub(1, Ordering::SeqCst);
            Ok(running)
        };
        let searches = (0..3 * MAX_CONCURRENT_SEARCHES).map(|_| search_in_turn(search));
        let counts = futures_util::future::join_all(searches).await;
        let most = counts.into_iter().map(Result::unwrap).max().unwrap();
        assert!(most <= MAX_CONCURRENT_SEARCHES, "{most}");
    }
}
