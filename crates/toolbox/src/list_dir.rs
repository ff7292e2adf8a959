//! The tool `list_dir`: lists a folder, as entries and as a rendered tree.

use std::path::Path;

use globset::Glob;
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::walk::default_folder;
use crate::workspace::is_below_proc;

/// Number of entries after which the listing stops.
const MAX_ENTRIES: usize = 100_000;

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
    /// Number of levels; 2 if neither this nor `recursive` is given.
    #[schemars(range(min = 1))]
    depth: Option<usize>,
    /// True for all levels, false for the first level only.
    recursive: Option<bool>,
    /// Return only entries whose name, or path below the folder, matches this glob.
    pattern: Option<String>,
}

/// Levels that `recursive` descends: more than real folders have.
const MAX_RECURSIVE_DEPTH: usize = 64;

impl ListDirArgs {
    /// Returns the number of levels to descend.
    fn max_depth(&self) -> usize {
        match (self.depth, self.recursive) {
            (Some(depth), _) => depth,
            (None, Some(true)) => MAX_RECURSIVE_DEPTH,
            (None, Some(false)) => 1,
            (None, None) => 2,
        }
    }
}

fn default_offset() -> usize {
    1
}

fn default_limit() -> usize {
    25
}

/// The entries of a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ListDirOutput {
    /// Ordered by path, each folder before its entries.
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
    /// Levels below the listed folder, starting at 1; sets the indentation in the tree.
    #[serde(skip)]
    depth: usize,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
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
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: ListDirArgs| run_blocking(move || list(&workspace, &args));
        typed_call(args, run, |output: &ListDirOutput| {
            Some(output.content.clone())
        })
    }
}

fn list(workspace: &Workspace, args: &ListDirArgs) -> Result<ListDirOutput, ToolError> {
    let path = workspace.absolute(&args.path, None);
    let shown = workspace.display_path(&path);
    let real = path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ToolError::new(format!("{shown} does not exist"))
            .suggest("list the parent folder with listDir"),
        _ => ToolError::new(format!("{shown} cannot be read: {error}")),
    })?;
    workspace.refuse_secrets(&real, &shown)?;
    if !real.is_dir() {
        return Err(
            ToolError::new(format!("{shown} is not a folder")).suggest("use readFile for files")
        );
    }
    let mut entries = Vec::new();
    collect_entries(workspace, &path, args.max_depth(), 1, &mut entries)?;
    if let Some(pattern) = &args.pattern {
        let glob = Glob::new(pattern)
            .map_err(|error| ToolError::new(format!("`{pattern}` is not a glob: {error}")))?
            .compile_matcher();
        let below = |entry: &ListDirEntry| {
            let path = workspace.absolute(&entry.path, None);
            path.strip_prefix(&real)
                .or(path.strip_prefix(workspace.root()))
                .unwrap_or(&path)
                .to_owned()
        };
        entries.retain(|entry| {
            let below = below(entry);
            glob.is_match(&below) || below.file_name().is_some_and(|name| glob.is_match(name))
        });
    }
    if args.offset > entries.len().max(1) {
        return Err(ToolError::new(format!(
            "offset {} is past the end: {shown} has {} entries",
            args.offset,
            entries.len()
        )));
    }
    let truncated = entries.len() > args.offset - 1 + args.limit;
    let entries: Vec<ListDirEntry> = entries
        .into_iter()
        .skip(args.offset - 1)
        .take(args.limit)
        .collect();
    let mut content = format!("{shown}\n");
    for entry in &entries {
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
        content.push_str(&format!("{}{name}{mark}\n", "  ".repeat(entry.depth)));
    }
    if truncated {
        content.push_str(&format!(
            "… more entries: continue with offset {}\n",
            args.offset + entries.len()
        ));
    }
    Ok(ListDirOutput {
        entries,
        content,
        truncated,
    })
}

/// Appends the entries of a folder, down to `levels` levels, in path order.
fn collect_entries(
    workspace: &Workspace,
    folder: &Path,
    levels: usize,
    depth: usize,
    entries: &mut Vec<ListDirEntry>,
) -> Result<(), ToolError> {
    let unreadable = |error: std::io::Error| {
        ToolError::new(format!(
            "{} cannot be read: {error}",
            workspace.display_path(folder)
        ))
    };
    let mut children: Vec<_> = std::fs::read_dir(folder)
        .map_err(unreadable)?
        .filter_map(Result::ok)
        .collect();
    children.sort_by_key(std::fs::DirEntry::file_name);
    for entry in children {
        if entries.len() >= MAX_ENTRIES {
            return Ok(());
        }
        let path = entry.path();
        let kind = match entry.file_type() {
            Ok(kind) if kind.is_symlink() => ListDirEntryKind::Symlink,
            Ok(kind) if kind.is_dir() => ListDirEntryKind::Dir,
            Ok(kind) if kind.is_file() => ListDirEntryKind::File,
            _ => ListDirEntryKind::Other,
        };
        entries.push(ListDirEntry {
            path: workspace.display_path(&path),
            kind,
            depth,
        });
        // Unreadable folders, secrets and `/proc` are listed but not entered.
        if matches!(kind, ListDirEntryKind::Dir)
            && levels > 1
            && !workspace.is_secret(&path)
            && !is_below_proc(&path)
        {
            let _ = collect_entries(workspace, &path, levels - 1, depth + 1, entries);
        }
    }
    Ok(())
}
