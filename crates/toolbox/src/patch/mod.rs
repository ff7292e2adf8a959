//! Patches as text, apart from any file. The envelope and the unified diff end in the same [`Operation`]s.

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

/// What a patch says.
#[derive(Debug)]
pub(crate) struct Patch {
    /// Where a script that carried the patch went with `cd`.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) operations: Vec<Operation>,
}

/// One file's part of a patch.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Names the file may have: the first that exists is meant.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) action: Action,
    /// Copies and moves of one batch all start from what was there before it, in whatever order they stand.
    pub(crate) batch: usize,
}

#[derive(Debug)]
pub(crate) enum Action {
    Add {
        content: Vec<u8>,
        executable: bool,
        over: Over,
    },
    Delete {
        hunks: Vec<Hunk>,
    },
    Update {
        hunks: Vec<Hunk>,
        to: Option<Target>,
        executable: Option<bool>,
    },
}

/// Where an updated file goes.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) source: Source,
    pub(crate) over: Over,
}

/// What becomes of a file that was moved or copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Goes,
    Stays,
}

/// Whether a file may be put where one is already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Anything,
    Nothing,
}

/// Lines that stand together, and what becomes of them.
#[derive(Debug)]
pub(crate) struct Hunk {
    /// Where it starts in the patch, from one.
    pub(crate) line: usize,
    pub(crate) style: Style,
    pub(crate) lines: Vec<Line>,
}

/// How a hunk says where it belongs.
#[derive(Debug)]
pub(crate) enum Style {
    Envelope {
        /// Lines of the file that stand above it, outermost first.
        above: Vec<String>,
        /// A line number, where a model wrote one nevertheless; from zero.
        hint: Option<usize>,
        /// Whether it says that the file ends with it.
        at_end: bool,
    },
    Unified {
        /// Line of the file before the patch, from zero.
        hint: Option<usize>,
        /// Whether lines of this file carry their CR in the patch.
        shows_cr: bool,
        /// Whether it says that there was no line before.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Keep,
    Remove,
    Add,
}

/// The patch that a command applies with `apply_patch`, which is no program: models know it as one.
pub(crate) fn of_command(argv: &[String]) -> Option<&str> {
    let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    match argv {
        [program, patch] if heredoc::APPLY_PATCH.contains(&program.as_str()) => Some(patch),
        [shell, flag, script] if ["bash", "sh", "zsh"].contains(&name(shell).as_str()) => {
            (["-c", "-lc"].contains(&flag.as_str()) && heredoc::applies_a_patch(script))
                .then_some(script)
        }
        _ => None,
    }
}

/// Reads a patch in whichever form it comes.
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
                "{}: expected `*** Begin Patch` or a unified diff (`--- a/file`, `+++ b/file`), found {}",
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
    /// The file it starts from, by its likeliest name.
    pub(crate) fn path(&self) -> &Path {
        self.paths.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

impl Hunk {
    /// The lines it expects in the file.
    pub(crate) fn old(&self) -> impl DoubleEndedIterator<Item = &Line> {
        self.lines.iter().filter(|line| line.role != Role::Add)
    }

    pub(crate) fn count(&self, role: Role) -> usize {
        self.lines.iter().filter(|line| line.role == role).count()
    }

    /// The lines it adds, as the text of a file.
    pub(crate) fn added(&self) -> Vec<u8> {
        let lines = self.lines.iter().filter(|line| line.role == Role::Add);
        lines
            .flat_map(|line| [line.text.as_bytes(), line.ending.bytes()].concat())
            .collect()
    }

    /// Whether it is the text of a file that was not there.
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

/// Lines of a patch that know where they stood in what was given.
#[derive(Debug, Clone, Copy)]
struct Numbered<'a> {
    lines: &'a [&'a str],
    /// Lines before these.
    above: usize,
}

impl<'a> Numbered<'a> {
    /// A line without its ending.
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

    /// A line for a message.
    fn quote(&self, at: usize) -> String {
        self.get(at).map_or_else(
            || "its end".to_owned(),
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

    /// The first line that is not blank.
    fn first(&self) -> usize {
        self.lines
            .iter()
            .position(|line| !line.trim().is_empty())
            .unwrap_or(self.lines.len())
    }
}

enum Form {
    Envelope,
    Unified,
    Unknown,
}

/// Whichever form's mark comes first: a patch may hold the other one's as the text of a file.
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

/// What stands between ``` and ```, if that is all there is, and how many lines were above it.
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
