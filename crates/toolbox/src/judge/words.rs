//! The words of shell commands, and what is known about them without running a shell.

use std::rc::Rc;

use super::origins::{origin_of, output_text};

/// Replaces the parts of a word that are only known to a running shell.
pub(super) const HOLE: char = '\u{fffc}';

/// Folders in which only the system installs programs.
const TRUSTED_FOLDERS: &[&str] = &["/bin/", "/usr/bin/", "/usr/local/bin/"];

/// One word of a command, without its quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) sort: Sort,
    /// The origin of a substitution in the word, if its text is downloaded or decoded.
    pub(super) origin: Option<Origin>,
}

/// How the text of a word relates to what the program gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// The program gets exactly this text.
    Plain,
    /// A glob pattern: the program gets the names of the matching files.
    Pattern,
    /// The shell expands the word to an unknown text.
    Open,
}

/// The origin of text that was not visible before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Downloaded,
    Decoded,
}

/// A simple command with its standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Simple {
    pub(super) words: Vec<Word>,
    pub(super) input: Input,
}

/// The standard input of a command, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) origin: Option<Origin>,
    /// The text, if the script contains it.
    pub(super) text: Option<Rc<str>>,
}

impl Word {
    /// Creates a literal word.
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            sort: Sort::Plain,
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
        (self.sort == Sort::Plain && !name.contains('/')).then_some(name)
    }

    /// Returns whether the shell could expand the word to one that starts with `-`.
    pub(super) fn may_become_option(&self) -> bool {
        self.sort != Sort::Plain && self.text.starts_with(['-', '*', '?', '[', HOLE])
    }
}

impl Simple {
    /// Creates a command without known input.
    pub(super) fn new(words: Vec<Word>) -> Self {
        Self {
            words,
            input: Input::default(),
        }
    }

    /// Returns the first word, or an empty text.
    pub(super) fn program(&self) -> &str {
        self.words.first().map_or("", |word| &word.text)
    }

    /// Returns the output, which is the input of the next command in a pipeline.
    pub(super) fn output(&self) -> Input {
        let substituted = self.words.iter().find_map(|word| word.origin);
        Input {
            origin: origin_of(&self.words).or(substituted).or(self.input.origin),
            text: output_text(&self.words, self.input.text.as_ref()),
        }
    }
}

impl Input {
    /// Creates input from a word, as for a here-string (`<<<`).
    pub(super) fn from_word(word: &Word) -> Self {
        Self {
            origin: word.origin,
            text: Some(word.text.as_str().into()),
        }
    }
}
