//! Parses patches and applies them to files. Both formats, the envelope (`*** Begin Patch`) and the
//! unified diff, are parsed into [`Operation`]s. A [`Draft`] applies them in memory before anything
//! is written.

mod draft;
mod envelope;
mod git;
mod heredoc;
mod hunk;
mod report;
mod seek;
mod text;
mod unified;

pub(crate) use draft::{Draft, Net};

use std::path::{Path, PathBuf};

use selvedge_tools::ToolError;
use text::Ending;

/// A parsed patch.
#[derive(Debug)]
pub(crate) struct Patch {
    /// Folder of the `cd` commands before the patch, if the patch was inside a shell command.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) operations: Vec<Operation>,
}

/// The part of a patch for one file.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Possible paths of the file: the first that exists is used.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) action: Action,
    /// Number of the batch. Copies and moves of one batch all read the state before that batch.
    pub(crate) batch: usize,
}

/// What an operation does to its file.
#[derive(Debug)]
pub(crate) enum Action {
    Add {
        content: Vec<u8>,
        executable: bool,
        over: Over,
    },
    Delete {
        /// Must remove every line; empty if the patch does not show the content.
        hunks: Vec<Hunk>,
    },
    Update {
        hunks: Vec<Hunk>,
        /// Where the file is moved or copied to.
        to: Option<Target>,
        /// The new executable bit; `None` keeps it.
        executable: Option<bool>,
    },
}

/// The target of a move or a copy.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) source: Source,
    pub(crate) over: Over,
}

/// Whether a file is moved or copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A move: the source file is removed.
    Goes,
    /// A copy: the source file remains.
    Stays,
}

/// Whether an existing file may be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Any file may be overwritten.
    Anything,
    /// Only an empty file may be overwritten.
    Nothing,
}

/// Consecutive lines of a file, with the lines that are added and removed.
#[derive(Debug)]
pub(crate) struct Hunk {
    /// Line number in the patch, starting at 1.
    pub(crate) line: usize,
    pub(crate) style: Style,
    pub(crate) lines: Vec<Line>,
}

/// The format of a hunk, with what the hunk says about its position.
#[derive(Debug)]
pub(crate) enum Style {
    Envelope {
        /// Lines of the file above the hunk, named by `@@`, outermost first.
        above: Vec<String>,
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
        from_nothing: bool,
    },
}

/// A line of a hunk.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) role: Role,
    pub(crate) text: String,
    pub(crate) ending: Ending,
}

/// What a hunk does with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Keep,
    Remove,
    Add,
}

/// Returns the patch in a command that calls `apply_patch`. There is no such program, but models
/// call it.
pub(crate) fn of_command(argv: &[String]) -> Option<&str> {
    let file_name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    match argv {
        [program, patch] if heredoc::APPLY_PATCH.contains(&program.as_str()) => Some(patch),
        [shell, flag, script] if ["bash", "sh", "zsh"].contains(&file_name(shell).as_str()) => {
            (["-c", "-lc"].contains(&flag.as_str()) && heredoc::applies_a_patch(script))
                .then_some(script)
        }
        _ => None,
    }
}

/// Parses a patch in either format, also inside a code fence or a shell command.
pub(crate) fn parse(text: &str) -> Result<Patch, ToolError> {
    let (text, above) = unfenced(text);
    let script = heredoc::unwrap(text)?;
    let (folder, patch, first) = match &script {
        Some(script) => (
            script.folder.clone(),
            script.patch.as_str(),
            above + script.line,
        ),
        None => (None, text, above),
    };
    let lines: Vec<&str> = patch
        .strip_suffix('\n')
        .unwrap_or(patch)
        .split('\n')
        .collect();
    let text = Numbered {
        lines: &lines,
        above: first,
    };
    let operations = match form(&lines) {
        Form::Envelope => envelope::parse(text)?,
        Form::Unified => unified::parse(text)?,
        Form::Unknown => {
            return Err(ToolError::new(format!(
                "{}: expected `*** Begin Patch` or a unified diff (`--- a/file`, `+++ b/file`), \
                 found {}",
                text.place(text.first()),
                text.quote(text.first())
            )));
        }
    };
    if operations.is_empty() {
        return Err(ToolError::new("the patch is empty: it changes no file"));
    }
    Ok(Patch { folder, operations })
}

impl Operation {
    /// Returns the most likely path of the file.
    pub(crate) fn path(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

impl Hunk {
    /// Returns the lines that the hunk expects in the file.
    pub(crate) fn old(&self) -> impl DoubleEndedIterator<Item = &Line> {
        self.lines.iter().filter(|line| line.role != Role::Add)
    }

    pub(crate) fn count(&self, role: Role) -> usize {
        self.lines.iter().filter(|line| line.role == role).count()
    }

    /// Returns the added lines as the content of a file.
    pub(crate) fn added(&self) -> Vec<u8> {
        let lines = self.lines.iter().filter(|line| line.role == Role::Add);
        lines
            .flat_map(|line| [line.text.as_bytes(), line.ending.bytes()].concat())
            .collect()
    }

    /// Whether the hunk is the whole content of a new file.
    pub(crate) fn makes_a_file(&self) -> bool {
        matches!(
            self.style,
            Style::Unified {
                from_nothing: true,
                ..
            }
        ) && self.old().next().is_none()
    }
}

/// The lines of a patch, with the number of lines before them in the input.
#[derive(Debug, Clone, Copy)]
struct Numbered<'a> {
    lines: &'a [&'a str],
    /// Number of input lines before these, such as those of a code fence.
    above: usize,
}

impl<'a> Numbered<'a> {
    /// Returns a line without its line ending.
    fn get(&self, at: usize) -> Option<&'a str> {
        self.lines
            .get(at)
            .map(|line| line.strip_suffix('\r').unwrap_or(line))
    }

    fn number(&self, at: usize) -> usize {
        self.above + at + 1
    }

    fn place(&self, at: usize) -> String {
        format!("line {} of the patch", self.number(at))
    }

    /// Quotes a line for an error message.
    fn quote(&self, at: usize) -> String {
        self.get(at).map_or_else(
            || "the end of the patch".to_owned(),
            |line| format!("`{}`", selvedge_text::with_ellipsis(line, 80)),
        )
    }

    fn expected(&self, at: usize, what: &str) -> ToolError {
        ToolError::new(format!(
            "{}: expected {what}, found {}",
            self.place(at),
            self.quote(at)
        ))
    }

    /// Returns the index of the first line that is not blank.
    fn first(&self) -> usize {
        self.lines
            .iter()
            .position(|line| !line.trim().is_empty())
            .unwrap_or(self.lines.len())
    }
}

/// The format of a patch.
enum Form {
    Envelope,
    Unified,
    Unknown,
}

/// Detects the format by the first marker: later markers may be content of the patched files.
fn form(lines: &[&str]) -> Form {
    for (at, line) in lines.iter().enumerate() {
        if envelope::is_marker(line) {
            return Form::Envelope;
        }
        if unified::is_marker(lines, at) {
            return Form::Unified;
        }
    }
    Form::Unknown
}

/// Removes a code fence if it encloses the whole text. Returns the content and the number of lines
/// before it.
fn unfenced(text: &str) -> (&str, usize) {
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
