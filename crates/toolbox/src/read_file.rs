//! The tool `read_file`: reads a range of lines, or the indented block around a line.

use schemars::JsonSchema;
use selvedge_protocol::ToolSpec;
use selvedge_tools::{Call, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Workspace;
use crate::aliases::spec;
use crate::blocking::blocking;
use crate::text_file::{Line, TextFile};

/// Maximum number of characters of a line in the rendering.
const SHOWN_LINE: usize = 500;
/// Maximum bytes of a line that are read.
const MAX_LINE: usize = 4 << 20;
/// Maximum bytes of one result, measured as JSON, where some characters take six bytes.
const MAX_RETURNED: usize = 10 << 20;
/// Maximum bytes of a file in `indentation` mode, which holds the whole file in memory.
const MAX_HELD: usize = 64 << 20;
/// Columns of indentation that a tab counts for.
const TAB: usize = 4;

/// The file and the lines to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// File to read, relative to the workspace or absolute.
    path: String,
    /// Number of the first line, starting at 1.
    #[serde(default = "first")]
    #[schemars(range(min = 0))]
    offset: i64,
    /// Maximum number of lines.
    #[serde(default = "two_thousand")]
    #[schemars(range(min = 1))]
    limit: u64,
    /// Last line, instead of `limit`.
    end_line: Option<u64>,
    /// `slice` reads consecutive lines; `indentation` reads the block around `anchor_line`.
    #[serde(default)]
    mode: Mode,
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
enum Mode {
    #[default]
    Slice,
    Indentation,
}

fn first() -> i64 {
    1
}

fn two_thousand() -> u64 {
    2000
}

/// The lines that were read.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
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
        spec::<Args, Output>("read_file", &[], "Reads a text file, or part of it.").as_read_only()
    }

    fn call(&self, args: Value, call: Call) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: Args| blocking(move || read(&workspace, &args, &call.cancel));
        typed_call(args, run, |output: &Output| Some(output.content.clone()))
    }
}

fn read(
    workspace: &Workspace,
    args: &Args,
    cancel: &CancellationToken,
) -> Result<Output, ToolError> {
    let path = workspace.absolute(&args.path, args.workdir.as_deref());
    let shown = workspace.shown(&path);
    if args.offset < 1 {
        return Err(ToolError::new(format!(
            "offset is {}, but line numbers start at 1",
            args.offset
        )));
    }
    let file = workspace.open_file(&path)?;
    let text = TextFile::open(file, &shown, cancel)?;
    match args.mode {
        Mode::Slice => slice(text, args, &shown),
        Mode::Indentation => block(text, args, &shown),
    }
}

/// Reads the requested lines and counts the others.
fn slice(mut text: TextFile<'_>, args: &Args, shown: &str) -> Result<Output, ToolError> {
    let offset = args.offset as u64;
    let last = args
        .end_line
        .unwrap_or_else(|| offset.saturating_add(args.limit - 1));
    let (mut number, mut selection) = (0, Picked::default());
    loop {
        let selected = number + 1 >= offset && number < last && !selection.full;
        let Some(line) = text.next_line(if selected { MAX_LINE } else { 0 })? else {
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
    Ok(selection.output(&text, number))
}

/// Reads the lines around the anchor that are indented at least as deeply as its enclosing block.
fn block(mut text: TextFile<'_>, args: &Args, shown: &str) -> Result<Output, ToolError> {
    let anchor = args.anchor_line.unwrap_or(args.offset as u64);
    let mut lines = Vec::new();
    let mut held_bytes = 0;
    while let Some(line) = text.next_line(MAX_LINE)? {
        held_bytes += line.text.len() + size_of::<Line>();
        if held_bytes > MAX_HELD {
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
    let mut selection = Picked::default();
    for (index, line) in lines
        .into_iter()
        .enumerate()
        .skip(start)
        .take(end + 1 - start)
    {
        selection.add(index as u64 + 1, line);
    }
    Ok(selection.output(&text, total))
}

/// Returns the indentation of each line. A blank line has that of the line before it.
fn effective_indents(lines: &[Line]) -> Vec<Option<usize>> {
    let mut last = None;
    lines
        .iter()
        .map(|Line { text, .. }| {
            if !text.trim().is_empty() {
                last = Some(
                    text.chars()
                        .take_while(|c| c.is_whitespace())
                        .map(|c| if c == '\t' { TAB } else { 1 })
                        .sum(),
                );
            }
            last
        })
        .collect()
}

/// The selected lines, up to `MAX_OUTPUT_BYTES`.
#[derive(Default)]
struct Picked {
    text: String,
    content: String,
    /// Bytes of `text` and `content` as JSON.
    weight: usize,
    /// Whether a line did not fit.
    full: bool,
    /// Number of the last line added.
    last: Option<u64>,
    /// Whether a line was truncated.
    cut: bool,
}

impl Picked {
    fn add(&mut self, number: u64, mut line: Line) {
        // Each line is stored twice: as text and in the rendering.
        let room = (MAX_RETURNED - self.weight) / 2;
        if weight(&line.text) > room {
            self.full = true;
            if self.last.is_some() {
                return;
            }
            // Truncate the first line: otherwise a line longer than the limit could never be read.
            let end = fitting(&line.text, room);
            line.text.truncate(end);
            line.cut = true;
        }
        let visible = line.text.trim_end_matches(['\n', '\r']);
        let visible = match visible.char_indices().nth(SHOWN_LINE) {
            Some((end, _)) => format!("L{number}: {}…", &visible[..end]),
            None => format!("L{number}: {visible}"),
        };
        if self.last.is_some() {
            self.content.push('\n');
        }
        self.content.push_str(&visible);
        self.text.push_str(&line.text);
        self.weight = (self.weight + weight(&line.text) + weight(&visible) + 2).min(MAX_RETURNED);
        self.last = Some(number);
        self.cut |= line.cut;
    }

    fn output(self, text: &TextFile<'_>, total: u64) -> Output {
        Output {
            text: self.text,
            content: self.content,
            total_lines: total,
            truncated: self.last.is_some_and(|last| last < total),
            cut: self.cut,
            encoding: text.encoding.to_owned(),
            lossy: text.lossy,
        }
    }
}

/// Returns the bytes that a text takes as JSON.
fn weight(text: &str) -> usize {
    text.bytes().map(byte_weight).sum()
}

/// Returns the length of the longest prefix that takes at most `max_weight` bytes as JSON.
fn fitting(text: &str, max_weight: usize) -> usize {
    let mut weight = 0;
    let end = text.bytes().position(|byte| {
        weight += byte_weight(byte);
        weight > max_weight
    });
    text.floor_char_boundary(end.unwrap_or(text.len()))
}

fn byte_weight(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1,
    }
}
