//! The tool `read_file`: reads a range of lines, or the indented block around a line.

use schemars::JsonSchema;
use selvedge_protocol::{ResultView, ToolSpec};
use selvedge_text::{group_digits, json_byte_len, json_string_len};
use selvedge_tools::{CallContext, CallFuture, Tool, ToolError, typed_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Workspace;
use crate::aliases::built_in_spec;
use crate::blocking::run_blocking;
use crate::read_coverage::{FileRead, OpenedFile, note_read};
use crate::text_file::{TextFile, TextFileLine};

/// Maximum number of characters of a line in the text for models.
const MAX_RENDERED_LINE_CHARS: usize = 500;
/// Maximum bytes of text in one result.
const MAX_TEXT_BYTES: usize = 8 << 20;
/// Maximum bytes of this text as JSON, where some characters take six bytes.
const MAX_JSON_BYTES: usize = 16 << 20;
/// Number of lines that a structured call returns by default.
const STRUCTURED_LINES: u64 = 2000;
/// Maximum bytes of a file in `indentation` mode, which holds the whole file in memory.
const MAX_BLOCK_FILE_BYTES: usize = 64 << 20;
/// Words that end a block, in Ruby, Lua and shells.
const CLOSING_WORDS: [&str; 4] = ["end", "fi", "done", "esac"];
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
    /// Maximum number of lines; in scripts, by default the whole file, up to 8 MB.
    #[schemars(range(min = 1))]
    limit: Option<u64>,
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
#[schemars(inline)]
enum ReadFileMode {
    #[default]
    Slice,
    Indentation,
}

fn default_offset() -> i64 {
    1
}

/// Always true: the sandbox computes the field, because it would repeat the text.
fn is_added_by_guest((): &()) -> bool {
    true
}

/// The lines that were read.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadFileOutput {
    /// The lines, unchanged.
    text: String,
    /// The same as `text`. Added in the sandbox.
    #[serde(skip_serializing_if = "is_added_by_guest")]
    #[schemars(with = "String")]
    content: (),
    /// The lines with their numbers: `L12: …`. Added in the sandbox.
    #[serde(skip_serializing_if = "is_added_by_guest")]
    #[schemars(with = "String")]
    numbered: (),
    /// Number of the first line in `text`.
    first_line: u64,
    /// Number of lines in the whole file; a final newline does not start another line.
    total_lines: u64,
    /// Whether more lines follow.
    truncated: bool,
    /// Whether a line was cut, because it is longer than 8 MB.
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
        let description = "Reads a text file, or part of it.";
        let spec = built_in_spec::<ReadFileArgs, ReadFileOutput>("read_file", &[], description);
        ToolSpec {
            result_view: ResultView::TextLines,
            ..spec
                .as_read_only()
                .with_structured_defaults(&[("limit", STRUCTURED_LINES)])
        }
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let workspace = self.0.clone();
        let run = |args: ReadFileArgs| run_blocking(move || read(&workspace, &args, &call));
        typed_call(args, run, |output: &ReadFileOutput| Some(output.render()))
    }
}

fn read(
    workspace: &Workspace,
    args: &ReadFileArgs,
    call: &CallContext,
) -> Result<ReadFileOutput, ToolError> {
    let path = workspace.absolute(&args.path, args.workdir.as_deref());
    let display_path = workspace.display_path(&path);
    if args.offset < 1 {
        return Err(ToolError::new(format!(
            "offset is {}, but line numbers start at 1",
            args.offset
        )));
    }
    let file = workspace.open_file(&path)?;
    let opened = OpenedFile::new(&file, &path);
    let text = TextFile::open(file, &display_path, &call.cancel)?;
    let (selection, output) = match args.mode {
        ReadFileMode::Slice => read_slice(text, args, &display_path)?,
        ReadFileMode::Indentation => read_block(text, args, &display_path)?,
    };
    note_read(
        call,
        opened,
        &FileRead {
            lines: selection.last_line.map(|last| (output.first_line, last)),
            total_lines: output.total_lines,
            lossy: output.lossy,
            has_cut_line: output.cut,
        },
    );
    if output.cut {
        call.warn(format!(
            "a line of {display_path} is longer than 8 MB and was cut"
        ));
    } else if let Some(last) = selection.last_line.filter(|_| selection.full) {
        let [first, last, total] = [output.first_line, last, output.total_lines].map(group_digits);
        call.warn(format!(
            "read only lines {first} to {last} of {total} in {display_path}: one call reads at most 8 MB"
        ));
    }
    if output.lossy {
        call.warn(format!(
            "{display_path} is not valid UTF-8; its invalid bytes are replaced in `text`"
        ));
    }
    Ok(output)
}

impl ReadFileOutput {
    /// Returns the numbered lines for a model, and how to read the next ones.
    fn render(&self) -> String {
        let mut text = String::new();
        for (number, line) in (self.first_line..).zip(self.text.lines()) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&match line.char_indices().nth(MAX_RENDERED_LINE_CHARS) {
                Some((end, _)) => format!(
                    "L{number}: {}… (cut at {MAX_RENDERED_LINE_CHARS} characters)",
                    &line[..end]
                ),
                None => format!("L{number}: {line}"),
            });
        }
        let next = self.first_line + self.text.lines().count() as u64;
        if self.truncated {
            let more = match self.total_lines + 1 - next {
                1 => "1 more line".to_owned(),
                more => format!("{} more lines", group_digits(more)),
            };
            text.push_str(&format!("\n… {more}: continue with offset {next}"));
        }
        text
    }
}

/// Reads the requested lines and counts the others.
fn read_slice(
    mut text: TextFile<'_>,
    args: &ReadFileArgs,
    display_path: &str,
) -> Result<(SelectedLines, ReadFileOutput), ToolError> {
    let offset = args.offset as u64;
    let last_by_limit = args.limit.map(|limit| offset.saturating_add(limit - 1));
    let last = args.end_line.or(last_by_limit).unwrap_or(u64::MAX);
    let (mut number, mut selection) = (0, SelectedLines::default());
    loop {
        let selected = number + 1 >= offset && number < last && !selection.full;
        let Some(line) = text.next_line(if selected { MAX_TEXT_BYTES } else { 0 })? else {
            break;
        };
        number += 1;
        if selected {
            selection.add(number, line);
        }
    }
    if offset > number.max(1) {
        return Err(ToolError::new(format!(
            "offset {offset} is past the end: {display_path} has {number} lines"
        )));
    }
    let output = selection.take_output(&text, number);
    Ok((selection, output))
}

/// Reads the lines around the anchor that are indented at least as deeply as its enclosing block.
fn read_block(
    mut text: TextFile<'_>,
    args: &ReadFileArgs,
    display_path: &str,
) -> Result<(SelectedLines, ReadFileOutput), ToolError> {
    let anchor = args.anchor_line.unwrap_or(args.offset as u64);
    let mut lines = Vec::new();
    let mut held_bytes = 0;
    while let Some(line) = text.next_line(MAX_TEXT_BYTES)? {
        held_bytes += line.text.len() + size_of::<TextFileLine>();
        if held_bytes > MAX_BLOCK_FILE_BYTES {
            return Err(ToolError::new(format!(
                "{display_path} is too large for indentation mode"
            ))
            .suggest("read a slice with offset and limit"));
        }
        lines.push(line);
    }
    let total = lines.len() as u64;
    if anchor < 1 || anchor > total {
        return Err(ToolError::new(format!(
            "line {anchor} does not exist: {display_path} has {total} lines"
        )));
    }
    let at = anchor as usize - 1;
    let (mut start, mut end) = block_around(&lines, at, args);
    let limit = args.limit.map_or(lines.len(), |limit| limit as usize);
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
    let output = selection.take_output(&text, total);
    Ok((selection, output))
}

/// Returns the first and the last line of the block around the line `at`, counted from zero.
fn block_around(lines: &[TextFileLine], at: usize, args: &ReadFileArgs) -> (usize, usize) {
    let depth = effective_indents(lines);
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
    let is_blank = |line: usize| lines[line].text.trim().is_empty();
    // Without an enclosing level, the line may open a block itself.
    let below = (at + 1..lines.len()).find(|line| !is_blank(*line));
    let opens_block = below.is_some_and(|below| depth[below] > Some(own));
    let is_bounded = !args.include_siblings && (block_indent < own || opens_block);
    let is_at_block_level =
        |line: usize| is_bounded && depth[line] == Some(block_indent) && !is_blank(line);
    let mut start = at;
    while start > 0 && !is_at_block_level(start) && inside(&depth[start - 1]) {
        start -= 1;
    }
    let mut end = at;
    while end + 1 < lines.len() && inside(&depth[end + 1]) {
        if is_at_block_level(end + 1) {
            end += usize::from(closes_block(&lines[end + 1].text));
            break;
        }
        end += 1;
    }
    while start < at && is_blank(start) {
        start += 1;
    }
    while end > at && is_blank(end) {
        end -= 1;
    }
    (start, end)
}

/// Whether a line ends the block above it, and is not the start of the next one.
fn closes_block(line: &str) -> bool {
    let line = line.trim_start();
    let is_word = |word: &str| {
        let rest = line.strip_prefix(word);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    line.starts_with(['}', ')', ']'])
        || line.starts_with("</")
        || line.starts_with("/>")
        || CLOSING_WORDS.iter().any(|word| is_word(word))
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

/// The selected lines, up to `MAX_TEXT_BYTES`.
#[derive(Default)]
struct SelectedLines {
    text: String,
    /// Bytes of `text` as JSON.
    json_bytes: usize,
    /// Whether a line did not fit.
    full: bool,
    /// Number of the first line added.
    first_line: Option<u64>,
    /// Number of the last line added.
    last_line: Option<u64>,
    /// Whether one of the lines was cut at the size limit.
    has_cut_line: bool,
}

impl SelectedLines {
    fn add(&mut self, number: u64, mut line: TextFileLine) {
        let room = MAX_TEXT_BYTES - self.text.len();
        let json_room = MAX_JSON_BYTES - self.json_bytes;
        if line.text.len() > room || json_string_len(&line.text) > json_room {
            self.full = true;
            if self.last_line.is_some() {
                return;
            }
            // Truncate the first line: otherwise a line longer than the limit could never be read.
            let end = fitting_prefix_len(&line.text, json_room).min(room);
            line.text.truncate(line.text.floor_char_boundary(end));
            line.is_cut = true;
        }
        self.text.push_str(&line.text);
        self.json_bytes += json_string_len(&line.text);
        self.first_line.get_or_insert(number);
        self.last_line = Some(number);
        self.has_cut_line |= line.is_cut;
    }

    /// Takes the text into a result. The numbers of the lines stay.
    fn take_output(&mut self, text: &TextFile<'_>, total: u64) -> ReadFileOutput {
        ReadFileOutput {
            text: std::mem::take(&mut self.text),
            content: (),
            numbered: (),
            first_line: self.first_line.unwrap_or(1),
            total_lines: total,
            truncated: self.last_line.is_some_and(|last| last < total),
            cut: self.has_cut_line,
            encoding: text.encoding.to_owned(),
            lossy: text.lossy,
        }
    }
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
