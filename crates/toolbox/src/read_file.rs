//! `read_file`: a slice of a text file, or the block around a line by its indentation.

use std::io::{BufRead, BufReader, Read};

use schemars::JsonSchema;
use selvedge_tools::{Tool, ToolError, tool};
use serde::{Deserialize, Serialize};

use crate::Workspace;
use crate::aliases::aliases_of;
use crate::blocking::blocking;

/// Characters of a line that the rendering shows.
const SHOWN_LINE: usize = 500;
/// Bytes of text one call returns.
const MAX_BYTES: usize = 4 << 20;
/// Indentation of a tab.
const TAB: usize = 4;

/// What to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Args {
    /// File to read, relative to the workspace or absolute.
    path: String,
    /// First line, from one.
    #[serde(default = "first")]
    #[schemars(range(min = 0))]
    offset: i64,
    /// Lines to read at most.
    #[serde(default = "two_thousand")]
    #[schemars(range(min = 1))]
    limit: u64,
    /// Last line, instead of `limit`.
    end_line: Option<u64>,
    /// `slice` reads lines in a row; `indentation` reads the block around `anchor_line`.
    #[serde(default)]
    mode: Mode,
    /// The line whose block is wanted, in `indentation` mode; `offset` where it is not given.
    anchor_line: Option<u64>,
    /// How many enclosing levels to include, in `indentation` mode; 0 for all.
    max_levels: Option<u32>,
    /// Include blocks beside the anchor's at the same level, in `indentation` mode.
    #[serde(default)]
    include_siblings: bool,
    /// Folder the path counts from, instead of the workspace.
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

/// What was read.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    /// The lines as they stand in the file.
    text: String,
    /// The lines with their numbers: `L12: …`.
    content: String,
    /// Lines in the whole file; a final newline adds none.
    total_lines: u64,
    /// Whether lines follow that were not read.
    truncated: bool,
    /// `utf-8`, `utf-16le` or `utf-16be`.
    encoding: String,
    /// Whether bytes that are no text were replaced.
    lossy: bool,
}

pub(crate) fn read_file(workspace: &Workspace) -> impl Tool + use<> {
    let workspace = workspace.clone();
    let run = move |args: Args| {
        let workspace = workspace.clone();
        blocking(move || read(&workspace, &args))
    };
    tool("read_file", "Reads a text file, or part of it.", run)
        .read_only()
        .render(|output: &Output| output.content.clone())
        .aliases(aliases_of("read_file"))
}

fn read(workspace: &Workspace, args: &Args) -> Result<Output, ToolError> {
    let path = workspace.absolute(&args.path, args.workdir.as_deref());
    let shown = workspace.shown(&path);
    if args.offset < 1 {
        return Err(ToolError::new(format!("offset is {}, and lines are counted from one", args.offset)));
    }
    let file = workspace.open_file(&path)?;
    let text = Text::open(file, &shown)?;
    match args.mode {
        Mode::Slice => slice(text, args, &shown),
        Mode::Indentation => block(text, args, &shown),
    }
}

/// Reads only what is asked for, and counts the rest.
fn slice(mut text: Text, args: &Args, shown: &str) -> Result<Output, ToolError> {
    let offset = args.offset as u64;
    let last = args.end_line.unwrap_or_else(|| offset.saturating_add(args.limit - 1));
    let mut lines = Vec::new();
    let (mut number, mut bytes) = (0, 0);
    while let Some(line) = text.next_line(shown)? {
        number += 1;
        if number >= offset && number <= last && bytes < MAX_BYTES {
            bytes += line.len();
            lines.push((number, line));
        }
    }
    if offset > number.max(1) {
        return Err(ToolError::new(format!("offset {offset} is past the end: {shown} has {number} lines")));
    }
    Ok(text.output(&lines, number))
}

/// The lines around the anchor that are indented at least as deeply as its enclosing block.
fn block(mut text: Text, args: &Args, shown: &str) -> Result<Output, ToolError> {
    let anchor = args.anchor_line.unwrap_or(args.offset as u64);
    let mut lines = Vec::new();
    let mut bytes = 0;
    while let Some(line) = text.next_line(shown)? {
        bytes += line.len();
        if bytes > 16 * MAX_BYTES {
            return Err(ToolError::new(format!("{shown} is too large for indentation mode"))
                .suggest("read a slice with offset and limit"));
        }
        lines.push(line);
    }
    let total = lines.len() as u64;
    if anchor < 1 || anchor > total {
        return Err(ToolError::new(format!("line {anchor} does not exist: {shown} has {total} lines")));
    }
    let depth: Vec<Option<usize>> = effective_indents(&lines);
    let at = anchor as usize - 1;
    let own = depth[at].unwrap_or(0);
    // Every line further out, on the way up, opens one more level.
    let mut levels: Vec<usize> = Vec::new();
    let mut current = own;
    for indent in depth[..at].iter().rev().flatten() {
        if *indent < current {
            current = *indent;
            levels.push(current);
        }
    }
    let wanted = match args.max_levels.unwrap_or(0) as usize {
        0 => levels.last().copied().unwrap_or(own),
        n => levels.get(n - 1).or(levels.last()).copied().unwrap_or(own),
    };
    let inside = |indent: &Option<usize>| indent.is_none_or(|indent| indent >= wanted);
    let mut start = at;
    while start > 0 && inside(&depth[start - 1]) {
        start -= 1;
        // A line at the block's own level opens it: further ones at that level are siblings.
        if depth[start] == Some(wanted) && wanted < own && !args.include_siblings {
            break;
        }
    }
    let mut end = at;
    while end + 1 < lines.len() && inside(&depth[end + 1]) {
        end += 1;
        if depth[end] == Some(wanted) && wanted < own && !args.include_siblings {
            break;
        }
    }
    let limit = args.limit.min(2000) as usize;
    if end + 1 - start > limit {
        start = start.max(at.saturating_sub(limit / 2));
        end = end.min(start + limit - 1);
    }
    let picked: Vec<(u64, String)> = (start..=end).map(|index| (index as u64 + 1, lines[index].clone())).collect();
    Ok(text.output(&picked, total))
}

/// Indentation of each line; blank lines take that of the line before.
fn effective_indents(lines: &[String]) -> Vec<Option<usize>> {
    let mut last = None;
    lines
        .iter()
        .map(|line| {
            if !line.trim().is_empty() {
                last =
                    Some(line.chars().take_while(|c| c.is_whitespace()).map(|c| if c == '\t' { TAB } else { 1 }).sum());
            }
            last
        })
        .collect()
}

/// Lines of a file in whatever Unicode encoding it has.
struct Text {
    reader: Box<dyn BufRead>,
    encoding: &'static str,
    lossy: bool,
}

impl Text {
    fn open(file: std::fs::File, shown: &str) -> Result<Self, ToolError> {
        let unreadable = |error: std::io::Error| ToolError::new(format!("{shown} cannot be read: {error}"));
        let mut file = BufReader::new(file);
        let head = file.fill_buf().map_err(unreadable)?;
        let wide = match head {
            [0xFF, 0xFE, ..] => Some(("utf-16le", encoding_rs::UTF_16LE)),
            [0xFE, 0xFF, ..] => Some(("utf-16be", encoding_rs::UTF_16BE)),
            _ => None,
        };
        if let Some((name, encoding)) = wide {
            let mut bytes = Vec::new();
            file.take(64 << 20).read_to_end(&mut bytes).map_err(unreadable)?;
            let (text, _, lossy) = encoding.decode(&bytes);
            return Ok(Self { reader: Box::new(std::io::Cursor::new(text.into_owned())), encoding: name, lossy });
        }
        if memchr::memchr(0, &head[..head.len().min(8192)]).is_some() {
            return Err(ToolError::new(format!("{shown} is a binary file")).suggest("viewImage shows images"));
        }
        if head.starts_with(&[0xEF, 0xBB, 0xBF]) {
            file.consume(3);
        }
        Ok(Self { reader: Box::new(file), encoding: "utf-8", lossy: false })
    }

    /// The next line with its ending.
    fn next_line(&mut self, shown: &str) -> Result<Option<String>, ToolError> {
        let mut line = Vec::new();
        let read = self
            .reader
            .read_until(b'\n', &mut line)
            .map_err(|error| ToolError::new(format!("{shown} cannot be read: {error}")))?;
        if read == 0 {
            return Ok(None);
        }
        Ok(Some(match String::from_utf8(line) {
            Ok(line) => line,
            Err(error) => {
                self.lossy = true;
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            }
        }))
    }

    fn output(self, lines: &[(u64, String)], total: u64) -> Output {
        let content: Vec<String> = lines
            .iter()
            .map(|(number, line)| {
                let line = line.trim_end_matches(['\n', '\r']);
                match line.char_indices().nth(SHOWN_LINE) {
                    Some((end, _)) => format!("L{number}: {}…", &line[..end]),
                    None => format!("L{number}: {line}"),
                }
            })
            .collect();
        Output {
            text: lines.iter().map(|(_, line)| line.as_str()).collect(),
            content: content.join("\n"),
            total_lines: total,
            truncated: lines.last().is_some_and(|(number, _)| *number < total),
            encoding: self.encoding.to_owned(),
            lossy: self.lossy,
        }
    }
}
