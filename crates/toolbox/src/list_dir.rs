//! The tool `list_dir`: lists a folder, as entries and as a rendered tree.

use std::path::Path;
use std::time::SystemTime;

use jiff::Timestamp;
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_text::group_digits;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::text_file::read_error;
use crate::walk::{
    compile_glob, default_folder, default_limit, search_stopped_error, warn_if_limited,
};
use crate::workspace::is_below_proc;

/// Number of entries after which the listing stops.
const MAX_ENTRIES: usize = 100_000;

/// Levels that `recursive` descends: more than real folders have.
const MAX_RECURSIVE_DEPTH: usize = 64;

/// Number of entries that a structured call returns by default.
const STRUCTURED_ENTRIES: u64 = 25;

/// The folder to list.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ListDirArgs {
    /// Folder, relative to the workspace or absolute.
    #[serde(default = "default_folder")]
    path: String,
    /// Number of the first entry to return, starting at 1.
    #[serde(default = "default_offset")]
    #[schemars(range(min = 1))]
    offset: usize,
    /// Maximum number of entries.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1))]
    limit: usize,
    /// Number of levels to list; 1 by default.
    #[schemars(range(min = 1))]
    depth: Option<usize>,
    /// Whether to list all levels. Ignored if `depth` is given.
    recursive: Option<bool>,
    /// Return only entries whose name, or path below the folder, matches this glob.
    pattern: Option<String>,
    /// `path`, `size` (largest first) or `modified` (newest first).
    #[serde(default)]
    sort: ListDirOrder,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ListDirOrder {
    #[default]
    Path,
    Size,
    Modified,
}

impl ListDirArgs {
    /// Returns the number of levels to descend.
    fn max_depth(&self) -> usize {
        match (self.depth, self.recursive) {
            (Some(depth), _) => depth,
            (None, Some(true)) => MAX_RECURSIVE_DEPTH,
            (None, Some(false) | None) => 1,
        }
    }
}

fn default_offset() -> usize {
    1
}

/// The entries of a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ListDirOutput {
    /// Ordered by path, each folder before its entries, unless `sort` is given.
    entries: Vec<ListDirEntry>,
    /// The entries as a tree; `/` marks folders, `@` links, `?` other types.
    content: String,
    /// Whether more entries follow.
    truncated: bool,
}

/// One entry of a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ListDirEntry {
    /// Relative to the workspace; absolute if outside.
    path: String,
    kind: ListDirEntryKind,
    /// Bytes of a file; 0 for other kinds.
    size: u64,
    /// Time of the last change, such as `2026-01-31T12:00:00.000Z`.
    modified: String,
    /// Levels below the listed folder, starting at 1; sets the indentation in the tree.
    #[serde(skip)]
    depth: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ListDirEntryKind {
    File,
    Dir,
    Symlink,
    Other,
}

/// The tool `list_dir`.
pub(crate) struct ListDir(pub(crate) Workspace);

impl Tool for ListDir {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<ListDirArgs, ListDirOutput>(
            "list_dir",
            &["path"],
            "Lists the entries of a folder.",
        )
        .as_read_only()
        .with_structured_defaults(&[("limit", STRUCTURED_ENTRIES)])
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: ListDirArgs| run_blocking(move || list(&workspace, &args, &call));
        typed_call(args, run, |output: &ListDirOutput| {
            Some(output.content.clone())
        })
    }
}

fn list(
    workspace: &Workspace,
    args: &ListDirArgs,
    call: &CallContext,
) -> Result<ListDirOutput, ToolError> {
    let path = workspace.absolute(&args.path, None);
    let display_path = workspace.display_path(&path);
    let real = path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ToolError::new(format!("{display_path} does not exist"))
            .suggest("list the parent folder with listDir"),
        _ => read_error(&display_path, &error),
    })?;
    workspace.refuse_secrets(&real, &display_path)?;
    if !real.is_dir() {
        return Err(ToolError::new(format!("{display_path} is not a folder"))
            .suggest("use readFile for files"));
    }
    let mut found = FoundEntries::default();
    found.collect(workspace, &path, args.max_depth(), 1, &call.cancel)?;
    if call.cancel.is_cancelled() {
        return Err(search_stopped_error());
    }
    if found.stopped {
        let max = group_digits(MAX_ENTRIES);
        call.warn(format!("the listing stopped after {max} entries"));
    }
    if found.too_deep && args.depth.is_none() && args.recursive == Some(true) {
        call.warn(format!(
            "folders below level {MAX_RECURSIVE_DEPTH} are not listed"
        ));
    }
    let mut found = found.entries;
    if let Some(pattern) = &args.pattern {
        let glob = compile_glob(pattern.trim_start_matches("./"), pattern)?.compile_matcher();
        found.retain(|entry| {
            let below = entry
                .path
                .strip_prefix(&real)
                .or(entry.path.strip_prefix(&path))
                .unwrap_or(&entry.path);
            glob.is_match(below) || below.file_name().is_some_and(|name| glob.is_match(name))
        });
    }
    if args.offset > found.len().max(1) {
        return Err(ToolError::new(format!(
            "offset {} is past the end: {display_path} has {}",
            args.offset,
            match found.len() {
                1 => "1 entry".to_owned(),
                entries => format!("{entries} entries"),
            }
        )));
    }
    let total = found.len();
    let entries = describe_entries(workspace, found, args);
    if call.cancel.is_cancelled() {
        return Err(search_stopped_error());
    }
    let truncated = total > args.offset - 1 + entries.len();
    if truncated {
        warn_if_limited(call, entries.len(), total, "entries");
    }
    Ok(ListDirOutput {
        content: render(&display_path, &entries, args, truncated),
        entries,
        truncated,
    })
}

/// Sorts entries, selects those to return, and looks up their sizes and times.
fn describe_entries(
    workspace: &Workspace,
    mut found: Vec<FoundEntry>,
    args: &ListDirArgs,
) -> Vec<ListDirEntry> {
    match args.sort {
        ListDirOrder::Path => {}
        ListDirOrder::Size => found.sort_by_cached_key(|entry| std::cmp::Reverse(entry.stat().0)),
        ListDirOrder::Modified => {
            found.sort_by_cached_key(|entry| std::cmp::Reverse(entry.stat().1));
        }
    }
    let selected = found.into_iter().skip(args.offset - 1).take(args.limit);
    let described = selected.map(|entry| {
        let (size, modified) = entry.stat();
        let modified = Timestamp::try_from(modified).unwrap_or_default();
        ListDirEntry {
            path: workspace.display_path(&entry.path),
            kind: entry.kind,
            size,
            modified: modified.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
            depth: entry.depth,
        }
    });
    described.collect()
}

/// Renders entries as a tree, or as rows with size and time if they are not in the order of a tree.
fn render(
    display_path: &str,
    entries: &[ListDirEntry],
    args: &ListDirArgs,
    truncated: bool,
) -> String {
    let mut content = format!("{display_path}\n");
    for entry in entries {
        let name = Path::new(&entry.path)
            .file_name()
            .map(|name| name.to_string_lossy())
            .unwrap_or_default();
        let mark = match entry.kind {
            ListDirEntryKind::File => "",
            ListDirEntryKind::Dir => "/",
            ListDirEntryKind::Symlink => "@",
            ListDirEntryKind::Other => "?",
        };
        content.push_str(&match args.sort {
            ListDirOrder::Path => format!("{}{name}{mark}\n", "  ".repeat(entry.depth)),
            ListDirOrder::Size | ListDirOrder::Modified => {
                let (size, modified, path) = (entry.size, &entry.modified, &entry.path);
                format!("{size:>12}  {modified}  {path}{mark}\n")
            }
        });
    }
    if truncated {
        content.push_str(&format!(
            "… more entries: continue with offset {}\n",
            args.offset + entries.len()
        ));
    }
    content
}

/// The entries below a folder, in path order.
#[derive(Default)]
struct FoundEntries {
    entries: Vec<FoundEntry>,
    /// Whether there were more than `MAX_ENTRIES`.
    stopped: bool,
    /// Whether there are folders below the last level.
    too_deep: bool,
}

/// An entry of a folder, before its size and time are known.
struct FoundEntry {
    path: std::path::PathBuf,
    kind: ListDirEntryKind,
    depth: usize,
}

impl FoundEntry {
    /// Returns the size of a file, and the time of its last change. A file that was deleted
    /// meanwhile has the size 0 and the time 1970.
    fn stat(&self) -> (u64, SystemTime) {
        let metadata = self.path.symlink_metadata().ok();
        let modified = metadata.as_ref().and_then(|data| data.modified().ok());
        let size = metadata.filter(|_| self.kind == ListDirEntryKind::File);
        (
            size.map_or(0, |data| data.len()),
            modified.unwrap_or(SystemTime::UNIX_EPOCH),
        )
    }
}

impl FoundEntries {
    /// Adds the entries of a folder, down to `levels` levels. Stops early if `cancel` is cancelled.
    fn collect(
        &mut self,
        workspace: &Workspace,
        folder: &Path,
        levels: usize,
        depth: usize,
        cancel: &CancellationToken,
    ) -> Result<(), ToolError> {
        let unreadable =
            |error: std::io::Error| read_error(&workspace.display_path(folder), &error);
        let mut children: Vec<_> = std::fs::read_dir(folder)
            .map_err(unreadable)?
            .filter_map(Result::ok)
            .collect();
        children.sort_by_key(std::fs::DirEntry::file_name);
        for entry in children {
            if self.entries.len() >= MAX_ENTRIES {
                self.stopped = true;
                return Ok(());
            }
            if cancel.is_cancelled() {
                return Ok(());
            }
            let path = entry.path();
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_symlink() => ListDirEntryKind::Symlink,
                Ok(kind) if kind.is_dir() => ListDirEntryKind::Dir,
                Ok(kind) if kind.is_file() => ListDirEntryKind::File,
                _ => ListDirEntryKind::Other,
            };
            self.entries.push(FoundEntry {
                path: path.clone(),
                kind,
                depth,
            });
            let is_folder = kind == ListDirEntryKind::Dir;
            self.too_deep |= is_folder && levels == 1;
            // Unreadable folders, secrets and `/proc` are listed but not entered.
            if is_folder && levels > 1 && !workspace.is_secret(&path) && !is_below_proc(&path) {
                let _ = self.collect(workspace, &path, levels - 1, depth + 1, cancel);
            }
        }
        Ok(())
    }
}
