//! The tool `read_file`: reads a range of lines, or the indented block around a line.

use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::text_file::{TextFile, TextFileLine};

/// Maximum number of characters of a line in the rendering.
const MAX_RENDERED_LINE_CHARS: usize = 500;
/// Maximum bytes of a line that are read.
const MAX_LINE_BYTES: usize = 4 << 20;
/// Maximum bytes of one result, measured as JSON, where some characters take six bytes.
const MAX_OUTPUT_BYTES: usize = 10 << 20;
/// Maximum bytes of a file in `indentation` mode, which holds the whole file in memory.
const MAX_BLOCK_FILE_BYTES: usize = 64 << 20;
/// Columns of indentation that a tab counts for.
const TAB_WIDTH: usize = 4;

/// The file and the lines to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ReadFileArgs {
    /// File to read, relative to the workspace or absolute.
    path: String,
    /// Number of the first line, starting at 1.
    #[serde(default = "default_offset")]
    #[schemars(range(min = 0))]
    offset: i64,
    /// Maximum number of lines.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1))]
    limit: u64,
    /// Last line, instead of `limit`.
    end_line: Option<u64>,
    /// `slice` reads consecutive lines; `indentation` reads the block around `anchor_line`.
    #[serde(default)]
    mode: ReadFileMode,
    /// In `indentation` mode, the line whose block is read; `offset` by default.
    anchor_line: Option<u64>,
    /// In `indentation` mode, the number of enclosing levels to include; 0 for all.
    max_levels: Option<u32>,
    /// In `indentation` mode, include neighbouring blocks at the same level.
    #[serde(default)]
    include_siblings: bool,
    /// Folder that `path` is relative to, instead of the workspace.
    workdir: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ReadFileMode {
    #[default]
    Slice,
    Indentation,
}

fn default_offset() -> i64 {
    1
}

fn default_limit() -> u64 {
    2000
}

/// The lines that were read.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadFileOutput {
    /// The lines, unchanged.
    text: String,
    /// The lines with their numbers: `L12: …`.
    content: String,
    /// Number of lines in the whole file; a final newline does not start another line.
    total_lines: u64,
    /// Whether more lines follow.
    truncated: bool,
    /// Whether a line was truncated: at most 4 MB of each line are read.
    cut: bool,
    /// `utf-8`, `utf-16le` or `utf-16be`.
    encoding: String,
    /// Whether invalid bytes were replaced.
    lossy: bool,
}

/// The tool `read_file`.
pub(crate) struct ReadFile(pub(crate) Workspace);

impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        built_in_spec::<ReadFileArgs, ReadFileOutput>(
            "read_file",
            &[],
            "Reads a text file, or part of it.",
        )
        .as_read_only()
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: ReadFileArgs| run_blocking(move || read(&workspace, &args, &call.cancel));
        typed_call(args, run, |output: &ReadFileOutput| {
            Some(output.content.clone())
        })
    }
}

fn read(
    workspace: &Workspace,
    args: &ReadFileArgs,
    cancel: &CancellationToken,
) -> Result<ReadFileOutput, ToolError> {
    let path = workspace.absolute(&args.path, args.workdir.as_deref());
    let shown = workspace.display_path(&path);
    if args.offset < 1 {
        return Err(ToolError::new(format!(
            "offset is {}, but line numbers start at 1",
            args.offset
        )));
    }
    let file = workspace.open_file(&path)?;
    let text = TextFile::open(file, &shown, cancel)?;
    match args.mode {
        ReadFileMode::Slice => read_slice(text, args, &shown),
        ReadFileMode::Indentation => read_block(text, args, &shown),
    }
}

/// Reads the requested lines and counts the others.
fn read_slice(
    mut text: TextFile<'_>,
    args: &ReadFileArgs,
    shown: &str,
) -> Result<ReadFileOutput, ToolError> {
    let offset = args.offset as u64;
    let last = args
        .end_line
        .unwrap_or_else(|| offset.saturating_add(args.limit - 1));
    let (mut number, mut selection) = (0, SelectedLines::default());
    loop {
        let selected = number + 1 >= offset && number < last && !selection.full;
        let Some(line) = text.next_line(if selected { MAX_LINE_BYTES } else { 0 })? else {
            break;
        };
        number += 1;
        if selected {
            selection.add(number, line);
        }
    }
    if offset > number.max(1) {
        return Err(ToolError::new(format!(
            "offset {offset} is past the end: {shown} has {number} lines"
        )));
    }
    Ok(selection.into_output(&text, number))
}

/// Reads the lines around the anchor that are indented at least as deeply as its enclosing block.
fn read_block(
    mut text: TextFile<'_>,
    args: &ReadFileArgs,
    shown: &str,
) -> Result<ReadFileOutput, ToolError> {
    let anchor = args.anchor_line.unwrap_or(args.offset as u64);
    let mut lines = Vec::new();
    let mut held_bytes = 0;
    while let Some(line) = text.next_line(MAX_LINE_BYTES)? {
        held_bytes += line.text.len() + size_of::<TextFileLine>();
        if held_bytes > MAX_BLOCK_FILE_BYTES {
            return Err(
                ToolError::new(format!("{shown} is too large for indentation mode"))
                    .suggest("read a slice with offset and limit"),
            );
        }
        lines.push(line);
    }
    let total = lines.len() as u64;
    if anchor < 1 || anchor > total {
        return Err(ToolError::new(format!(
            "line {anchor} does not exist: {shown} has {total} lines"
        )));
    }
    let depth: Vec<Option<usize>> = effective_indents(&lines);
    let at = anchor as usize - 1;
    let own = depth[at].unwrap_or(0);
    // Going up, each line with less indentation opens one more enclosing level.
    let mut levels: Vec<usize> = Vec::new();
    let mut current = own;
    for indent in depth[..at].iter().rev().flatten() {
        if *indent < current {
            current = *indent;
            levels.push(current);
        }
    }
    let block_indent = match args.max_levels.unwrap_or(0) as usize {
        0 => levels.last().copied().unwrap_or(own),
        n => levels.get(n - 1).or(levels.last()).copied().unwrap_or(own),
    };
    let inside = |indent: &Option<usize>| indent.is_none_or(|indent| indent >= block_indent);
    let mut start = at;
    while start > 0 && inside(&depth[start - 1]) {
        start -= 1;
        // A line at the block's own level opens the block; further lines at that level are
        // siblings.
        if depth[start] == Some(block_indent) && block_indent < own && !args.include_siblings {
            break;
        }
    }
    let mut end = at;
    while end + 1 < lines.len() && inside(&depth[end + 1]) {
        end += 1;
        if depth[end] == Some(block_indent) && block_indent < own && !args.include_siblings {
            break;
        }
    }
    let limit = args.limit.min(2000) as usize;
    if end + 1 - start > limit {
        start = start.max(at.saturating_sub(limit / 2));
        end = end.min(start + limit - 1);
    }
    let mut selection = SelectedLines::default();
    for (index, line) in lines
        .into_iter()
        .enumerate()
        .skip(start)
        .take(end + 1 - start)
    {
        selection.add(index as u64 + 1, line);
    }
    Ok(selection.into_output(&text, total))
}

/// Returns the indentation of each line. A blank line has that of the line before it.
fn effective_indents(lines: &[TextFileLine]) -> Vec<Option<usize>> {
    let mut last = None;
    lines
        .iter()
        .map(|TextFileLine { text, .. }| {
            if !text.trim().is_empty() {
                last = Some(
                    text.chars()
                        .take_while(|c| c.is_whitespace())
                        .map(|c| if c == '\t' { TAB_WIDTH } else { 1 })
                        .sum(),
                );
            }
            last
        })
        .collect()
}

/// The selected lines, up to `MAX_OUTPUT_BYTES`.
#[derive(Default)]
struct SelectedLines {
    text: String,
    content: String,
    /// Bytes of `text` and `content` as JSON.
    json_bytes: usize,
    /// Whether a line did not fit.
    full: bool,
    /// Number of the last line added.
    last_line: Option<u64>,
    /// Whether a line was truncated.
    truncated: bool,
}

impl SelectedLines {
    fn add(&mut self, number: u64, mut line: TextFileLine) {
        // Each line is stored twice: as text and in the rendering.
        let room = (MAX_OUTPUT_BYTES - self.json_bytes) / 2;
        if json_len(&line.text) > room {
            self.full = true;
            if self.last_line.is_some() {
                return;
            }
            // Truncate the first line: otherwise a line longer than the limit could never be read.
            let end = fitting_prefix_len(&line.text, room);
            line.text.truncate(end);
            line.truncated = true;
        }
        let visible = line.text.trim_end_matches(['\n', '\r']);
        let visible = match visible.char_indices().nth(MAX_RENDERED_LINE_CHARS) {
            Some((end, _)) => format!("L{number}: {}…", &visible[..end]),
            None => format!("L{number}: {visible}"),
        };
        if self.last_line.is_some() {
            self.content.push('\n');
        }
        self.content.push_str(&visible);
        self.text.push_str(&line.text);
        self.json_bytes =
            (self.json_bytes + json_len(&line.text) + json_len(&visible) + 2).min(MAX_OUTPUT_BYTES);
        self.last_line = Some(number);
        self.truncated |= line.truncated;
    }

    fn into_output(self, text: &TextFile<'_>, total: u64) -> ReadFileOutput {
        ReadFileOutput {
            text: self.text,
            content: self.content,
            total_lines: total,
            truncated: self.last_line.is_some_and(|last| last < total),
            cut: self.truncated,
            encoding: text.encoding.to_owned(),
            lossy: text.lossy,
        }
    }
}

/// Returns the bytes that a text takes as JSON.
fn json_len(text: &str) -> usize {
    text.bytes().map(json_byte_len).sum()
}

/// Returns the length of the longest prefix that takes at most `max_weight` bytes as JSON.
fn fitting_prefix_len(text: &str, max_weight: usize) -> usize {
    let mut weight = 0;
    let end = text.bytes().position(|byte| {
        weight += json_byte_len(byte);
        weight > max_weight
    });
    text.floor_char_boundary(end.unwrap_or(text.len()))
}

fn json_byte_len(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1,
    }
}
