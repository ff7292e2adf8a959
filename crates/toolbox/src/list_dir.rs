//! `list_dir`: what a folder holds, as entries and as a tree.

use std::path::Path;

use globset::Glob;
use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{Call, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Workspace;
use crate::aliases::spec;
use crate::blocking::blocking;
use crate::walk::here;
use crate::workspace::is_below_proc;

/// Entries looked at before giving up on counting.
const MAX_ENTRIES: usize = 100_000;

/// What to list.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// Folder, relative to the workspace or absolute.
    #[serde(default = "here")]
    path: String,
    /// First entry, from one.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    offset: usize,
    /// Entries at most.
    #[serde(default = "twenty_five")]
    #[schemars(range(min = 1))]
    limit: usize,
    /// How many levels down; 2 where neither this nor `recursive` is said.
    #[schemars(range(min = 1))]
    depth: Option<usize>,
    /// All levels, or the first alone.
    recursive: Option<bool>,
    /// Only what matches this glob, by name or by path below the folder.
    pattern: Option<String>,
}

/// Deeper than any folder anybody made on purpose.
const ALL_LEVELS: usize = 64;

impl Args {
    fn levels(&self) -> usize {
        match (self.depth, self.recursive) {
            (Some(depth), _) => depth,
            (None, Some(true)) => ALL_LEVELS,
            (None, Some(false)) => 1,
            (None, None) => 2,
        }
    }
}

fn one() -> usize {
    1
}

fn twenty_five() -> usize {
    25
}

/// What a folder holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// In the order of their paths, folders before what is in them.
    entries: Vec<Entry>,
    /// The same as a tree; `/` marks folders, `@` links, `?` others.
    content: String,
    /// Whether entries follow that were not listed.
    truncated: bool,
}

/// One entry.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Entry {
    /// Relative to the workspace where it is inside.
    path: String,
    kind: Kind,
    #[serde(skip)]
    depth: usize,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    File,
    Dir,
    Symlink,
    Other,
}

/// The tool `list_dir`.
pub(crate) struct ListDir(pub(crate) Workspace);

impl Tool for ListDir {
    fn spec(&self) -> ToolSpec {
        spec::<Args, Output>("list_dir", &[], "Lists what a folder holds.").as_read_only()
    }

    fn call(&self, args: Value, _: Call) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: Args| blocking(move || list(&workspace, &args));
        typed_call(args, run, |output: &Output| Some(output.content.clone()))
    }
}

fn list(workspace: &Workspace, args: &Args) -> Result<Output, ToolError> {
    let path = workspace.absolute(&args.path, None);
    let shown = workspace.shown(&path);
    let real = path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ToolError::new(format!("{shown} does not exist"))
            .suggest("fileSearch finds files by name"),
        _ => ToolError::new(format!("{shown} cannot be read: {error}")),
    })?;
    workspace.refuse_secrets(&real, &shown)?;
    if !real.is_dir() {
        return Err(
            ToolError::new(format!("{shown} is not a folder")).suggest("use readFile for files")
        );
    }
    let mut entries = Vec::new();
    collect(workspace, &path, args.levels(), 1, &mut entries)?;
    if let Some(pattern) = &args.pattern {
        let glob = Glob::new(pattern)
            .map_err(|error| ToolError::new(format!("`{pattern}` is not a glob: {error}")))?
            .compile_matcher();
        let below = |entry: &Entry| {
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
    let entries: Vec<Entry> = entries
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
            Kind::File => "",
            Kind::Dir => "/",
            Kind::Symlink => "@",
            Kind::Other => "?",
        };
        content.push_str(&format!("{}{name}{mark}\n", "  ".repeat(entry.depth)));
    }
    if truncated {
        content.push_str(&format!(
            "… more: offset {} goes on\n",
            args.offset + entries.len()
        ));
    }
    Ok(Output {
        entries,
        content,
        truncated,
    })
}

fn collect(
    workspace: &Workspace,
    folder: &Path,
    levels: usize,
    depth: usize,
    entries: &mut Vec<Entry>,
) -> Result<(), ToolError> {
    let unreadable = |error: std::io::Error| {
        ToolError::new(format!(
            "{} cannot be read: {error}",
            workspace.shown(folder)
        ))
    };
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .map_err(unreadable)?
        .filter_map(Result::ok)
        .collect();
    found.sort_by_key(std::fs::DirEntry::file_name);
    for entry in found {
        if entries.len() >= MAX_ENTRIES {
            return Ok(());
        }
        let path = entry.path();
        let kind = match entry.file_type() {
            Ok(kind) if kind.is_symlink() => Kind::Symlink,
            Ok(kind) if kind.is_dir() => Kind::Dir,
            Ok(kind) if kind.is_file() => Kind::File,
            _ => Kind::Other,
        };
        entries.push(Entry {
            path: workspace.shown(&path),
            kind,
            depth,
        });
        // A folder that cannot be read is listed, and not entered; the same goes for secrets and processes.
        if matches!(kind, Kind::Dir)
            && levels > 1
            && !workspace.is_secret(&path)
            && !is_below_proc(&path)
        {
            let _ = collect(workspace, &path, levels - 1, depth + 1, entries);
        }
    }
    Ok(())
}
