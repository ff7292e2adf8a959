//! The words of shell commands, and what is known about them without running a shell.

use std::rc::Rc;

use super::origins::{output_origin, output_text};

/// Replaces the parts of a word that are only known to a running shell.
pub(super) const UNKNOWN_TEXT: char = '\u{fffc}';

/// Folders in which only the system installs programs.
const TRUSTED_FOLDERS: &[&str] = &["/bin/", "/usr/bin/", "/usr/local/bin/"];

/// One word of a command, without its quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShellWord {
    pub(super) text: String,
    pub(super) kind: WordKind,
    /// The origin of a substitution in the word, if its text is downloaded or decoded.
    pub(super) origin: Option<CodeOrigin>,
}

/// How the text of a word relates to what the program gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WordKind {
    /// The program gets exactly this text.
    Literal,
    /// A glob pattern: the program gets the names of the matching files.
    Glob,
    /// The shell expands the word to an unknown text.
    Dynamic,
}

/// Where code comes from that is not visible in the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeOrigin {
    Downloaded,
    Decoded,
}

/// A simple command with its standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SimpleCommand {
    pub(super) words: Vec<ShellWord>,
    pub(super) input: CommandInput,
}

/// The standard input of a command, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CommandInput {
    pub(super) origin: Option<CodeOrigin>,
    /// The text, if the script contains it.
    pub(super) text: Option<Rc<str>>,
}

impl ShellWord {
    /// Creates a literal word.
    pub(super) fn literal(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            kind: WordKind::Literal,
            origin: None,
        }
    }

    /// Returns the name of the program without its folder, in lower case because some file systems
    /// ignore case.
    pub(super) fn name(&self) -> String {
        self.text
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .trim_start_matches('=')
            .to_ascii_lowercase()
    }

    /// Returns the name of the program if it is searched in `PATH` or is in a trusted folder.
    pub(super) fn trusted_name(&self) -> Option<&str> {
        let name = TRUSTED_FOLDERS
            .iter()
            .find_map(|folder| self.text.strip_prefix(folder))
            .unwrap_or(&self.text);
        (self.kind == WordKind::Literal && !name.contains('/')).then_some(name)
    }

    /// Returns whether the shell could expand the word to one that starts with `-`.
    pub(super) fn may_become_option(&self) -> bool {
        self.kind != WordKind::Literal && self.text.starts_with(['-', '*', '?', '[', UNKNOWN_TEXT])
    }
}

impl SimpleCommand {
    /// Creates a command without known input.
    pub(super) fn new(words: Vec<ShellWord>) -> Self {
        Self {
            words,
            input: CommandInput::default(),
        }
    }

    /// Returns the first word, or an empty text.
    pub(super) fn program(&self) -> &str {
        self.words.first().map_or("", |word| &word.text)
    }

    /// Returns the output, which is the input of the next command in a pipeline.
    pub(super) fn output(&self) -> CommandInput {
        let substituted = self.words.iter().find_map(|word| word.origin);
        CommandInput {
            origin: output_origin(&self.words)
                .or(substituted)
                .or(self.input.origin),
            text: output_text(&self.words, self.input.text.as_ref()),
        }
    }
}

impl CommandInput {
    /// Creates input from a word, as for a here-string (`<<<`).
    pub(super) fn from_word(word: &ShellWord) -> Self {
        Self {
            origin: word.origin,
            text: Some(word.text.as_str().into()),
        }
    }
}
