//! Parses patches and applies them to files. Both formats, the envelope (`*** Begin Patch`) and the
//! unified diff, are parsed into [`PatchOperation`]s. A [`PatchDraft`] applies them in memory
//! before anything is written.

mod draft;
mod envelope;
mod header;
mod heredoc;
mod hunk;
mod report;
mod seek;
mod text;
mod unified;

pub(crate) use draft::{NetChange, PatchDraft};

use std::path::{Path, PathBuf};

use selvedge_tools::ToolError;
use text::LineEnding;

/// A parsed patch.
#[derive(Debug)]
pub(crate) struct Patch {
    /// Folder of the `cd` commands before the patch, if the patch was inside a shell command.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) operations: Vec<PatchOperation>,
}

/// The part of a patch for one file.
#[derive(Debug)]
pub(crate) struct PatchOperation {
    /// Possible paths of the file: the first that exists is used.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) action: PatchAction,
    /// Number of the step: one of several diffs in the patch, or one operation of an envelope.
    /// Copies and moves read the state before their step.
    pub(crate) step: usize,
}

/// What an operation does to its file.
#[derive(Debug)]
pub(crate) enum PatchAction {
    Add {
        content: Vec<u8>,
        executable: bool,
        overwrite: OverwritePolicy,
    },
    Delete {
        /// Must remove every line; empty if the patch does not show the content.
        hunks: Vec<Hunk>,
    },
    Update {
        hunks: Vec<Hunk>,
        /// Where the file is moved or copied to.
        target: Option<PatchTarget>,
        /// The new executable bit; `None` keeps it.
        executable: Option<bool>,
    },
}

/// The target of a move or a copy.
#[derive(Debug)]
pub(crate) struct PatchTarget {
    pub(crate) path: PathBuf,
    pub(crate) transfer: FileTransfer,
    pub(crate) overwrite: OverwritePolicy,
}

/// Whether a file is moved or copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileTransfer {
    /// A move: the source file is removed.
    Move,
    /// A copy: the source file remains.
    Copy,
}

/// Whether an existing file may be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OverwritePolicy {
    /// Any file may be overwritten.
    Allow,
    /// Only an empty file may be overwritten.
    DenyNonEmpty,
}

/// Consecutive lines of a file, with the lines that are added and removed.
#[derive(Debug)]
pub(crate) struct Hunk {
    /// Line number in the patch, starting at 1.
    pub(crate) patch_line: usize,
    pub(crate) format: HunkFormat,
    pub(crate) lines: Vec<HunkLine>,
}

/// The format of a hunk, with what the hunk says about its position.
#[derive(Debug)]
pub(crate) enum HunkFormat {
    Envelope {
        /// Lines of the file above the hunk, named by `@@`, outermost first.
        anchors: Vec<String>,
        /// Line index, starting at 0, if the hunk has line numbers. The format does not need them.
        hint: Option<usize>,
        /// Whether `*** End of File` follows the hunk.
        at_end: bool,
    },
    Unified {
        /// Line index in the file before the patch, starting at 0.
        hint: Option<usize>,
        /// Whether lines of this file have a CR in the patch.
        shows_cr: bool,
        /// Whether the old range is `-0,0`: the file did not exist or was empty.
        old_is_empty: bool,
    },
}

/// A line of a hunk.
#[derive(Debug)]
pub(crate) struct HunkLine {
    pub(crate) role: HunkLineRole,
    pub(crate) text: String,
    pub(crate) ending: LineEnding,
}

/// What a hunk does with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HunkLineRole {
    Keep,
    Remove,
    Add,
}

/// Returns the patch in a command that calls `apply_patch`. There is no such program, but models
/// call it.
pub(crate) fn patch_in_command(argv: &[String]) -> Option<&str> {
    let file_name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    match argv {
        [program, patch] if heredoc::APPLY_PATCH_NAMES.contains(&program.as_str()) => Some(patch),
        [shell, flag, script] if ["bash", "sh", "zsh"].contains(&file_name(shell).as_str()) => {
            (["-c", "-lc"].contains(&flag.as_str()) && heredoc::starts_with_apply_patch(script))
                .then_some(script)
        }
        _ => None,
    }
}

/// Parses a patch in either format, also inside a code fence or a shell command.
pub(crate) fn parse(text: &str) -> Result<Patch, ToolError> {
    let (text, above) = strip_fence(text);
    let script = heredoc::extract_command(text)?;
    let (folder, patch, first) = match &script {
        Some(script) => (
            script.folder.clone(),
            script.patch.as_str(),
            above + script.lines_before,
        ),
        None => (None, text, above),
    };
    let lines: Vec<&str> = patch
        .strip_suffix('\n')
        .unwrap_or(patch)
        .split('\n')
        .collect();
    let text = PatchLines {
        lines: &lines,
        lines_before: first,
    };
    let operations = match detect_format(&lines) {
        PatchFormat::Envelope => envelope::parse(text)?,
        PatchFormat::Unified => unified::parse(text)?,
        PatchFormat::Unknown => {
            return Err(ToolError::new(format!(
                "{}: expected `*** Begin Patch` or a unified diff (`--- a/file`, `+++ b/file`), \
                 found {}",
                text.location(text.first_non_blank()),
                text.quote_line(text.first_non_blank())
            )));
        }
    };
    if operations.is_empty() {
        return Err(ToolError::new("the patch is empty: it changes no file"));
    }
    Ok(Patch { folder, operations })
}

impl PatchOperation {
    /// Returns the most likely path of the file.
    pub(crate) fn path(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

impl Hunk {
    /// Returns the lines that the hunk expects in the file.
    pub(crate) fn old_lines(&self) -> impl DoubleEndedIterator<Item = &HunkLine> {
        self.lines
            .iter()
            .filter(|line| line.role != HunkLineRole::Add)
    }

    pub(crate) fn count_lines(&self, role: HunkLineRole) -> usize {
        self.lines.iter().filter(|line| line.role == role).count()
    }

    /// Returns the added lines as the content of a file.
    pub(crate) fn added_text(&self) -> Vec<u8> {
        let lines = self
            .lines
            .iter()
            .filter(|line| line.role == HunkLineRole::Add);
        lines
            .flat_map(|line| [line.text.as_bytes(), line.ending.bytes()].concat())
            .collect()
    }

    /// Whether the hunk is the whole content of a new file.
    pub(crate) fn creates_file(&self) -> bool {
        matches!(
            self.format,
            HunkFormat::Unified {
                old_is_empty: true,
                ..
            }
        ) && self.old_lines().next().is_none()
    }
}

/// The lines of a patch, with the number of lines before them in the input.
#[derive(Debug, Clone, Copy)]
struct PatchLines<'a> {
    lines: &'a [&'a str],
    /// Number of input lines before these, such as those of a code fence.
    lines_before: usize,
}

impl<'a> PatchLines<'a> {
    /// Returns a line without its line ending.
    fn get(&self, at: usize) -> Option<&'a str> {
        self.lines
            .get(at)
            .map(|line| line.strip_suffix('\r').unwrap_or(line))
    }

    fn line_number(&self, at: usize) -> usize {
        self.lines_before + at + 1
    }

    fn location(&self, at: usize) -> String {
        format!("line {} of the patch", self.line_number(at))
    }

    /// Quotes a line for an error message.
    fn quote_line(&self, at: usize) -> String {
        self.get(at).map_or_else(
            || "the end of the patch".to_owned(),
            |line| format!("`{}`", selvedge_text::truncate_chars(line, 80)),
        )
    }

    fn expected_error(&self, at: usize, what: &str) -> ToolError {
        ToolError::new(format!(
            "{}: expected {what}, found {}",
            self.location(at),
            self.quote_line(at)
        ))
    }

    /// Returns the index of the first line that is not blank.
    fn first_non_blank(&self) -> usize {
        self.lines
            .iter()
            .position(|line| !line.trim().is_empty())
            .unwrap_or(self.lines.len())
    }
}

/// The format of a patch.
enum PatchFormat {
    Envelope,
    Unified,
    Unknown,
}

/// Detects the format by the first marker: later markers may be content of the patched files.
fn detect_format(lines: &[&str]) -> PatchFormat {
    for (at, line) in lines.iter().enumerate() {
        if envelope::is_marker(line) {
            return PatchFormat::Envelope;
        }
        if unified::is_marker(lines, at) {
            return PatchFormat::Unified;
        }
    }
    PatchFormat::Unknown
}

/// Removes a code fence if it encloses the whole text. Returns the content and the number of lines
/// before it.
fn strip_fence(text: &str) -> (&str, usize) {
    let body = text.trim_start();
    let above = text[..text.len() - body.len()].matches('\n').count();
    if let Some((open, rest)) = body.split_once('\n')
        && open.starts_with("```")
        && let Some(inner) = rest.trim_end().strip_suffix("```")
        && (inner.is_empty() || inner.ends_with('\n'))
        && !inner.lines().any(|line| line.starts_with("```"))
    {
        return (inner, above + 1);
    }
    (text, 0)
}
