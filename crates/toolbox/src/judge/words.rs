//! The words of commands, and what is known of them.

use std::rc::Rc;

use super::origins::{origin_of, output_text};

/// Stands in a word for what only a running shell knows.
pub(super) const HOLE: char = '\u{fffc}';

/// Where programs are what their names say.
const TRUSTED_FOLDERS: &[&str] = &["/bin/", "/usr/bin/", "/usr/local/bin/"];

/// One word of a command, without its quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) sort: Sort,
    /// Where the text of a substitution in it comes from, if that matters.
    pub(super) origin: Option<Origin>,
}

/// How sure the text of a word is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// The program gets exactly this.
    Plain,
    /// The program gets the names of the files that match it.
    Pattern,
    /// The shell makes something else of it.
    Open,
}

/// Text that nobody has read before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Downloaded,
    Decoded,
}

/// A simple command in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Simple {
    pub(super) words: Vec<Word>,
    pub(super) input: Input,
}

/// What a command reads, as far as it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) origin: Option<Origin>,
    /// The text itself, where it stands in the script.
    pub(super) text: Option<Rc<str>>,
}

impl Word {
    /// A word that is exactly this.
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            sort: Sort::Plain,
            origin: None,
        }
    }

    /// The program's name without its folder. Some systems do not tell capitals apart.
    pub(super) fn name(&self) -> String {
        self.text
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .trim_start_matches('=')
            .to_ascii_lowercase()
    }

    /// The program's name if it is looked up by name, or in a folder only the system fills.
    pub(super) fn trusted_name(&self) -> Option<&str> {
        let name = TRUSTED_FOLDERS
            .iter()
            .find_map(|folder| self.text.strip_prefix(folder))
            .unwrap_or(&self.text);
        (self.sort == Sort::Plain && !name.contains('/')).then_some(name)
    }

    /// Whether the shell could turn it into something that begins with `-`.
    pub(super) fn may_become_option(&self) -> bool {
        self.sort != Sort::Plain && self.text.starts_with(['-', '*', '?', '[', HOLE])
    }
}

impl Simple {
    /// A command by itself.
    pub(super) fn new(words: Vec<Word>) -> Self {
        Self {
            words,
            input: Input::default(),
        }
    }

    /// Its first word as written.
    pub(super) fn program(&self) -> &str {
        self.words.first().map_or("", |word| &word.text)
    }

    /// What the next command of a pipeline reads.
    pub(super) fn output(&self) -> Input {
        let substituted = self.words.iter().find_map(|word| word.origin);
        Input {
            origin: origin_of(&self.words).or(substituted).or(self.input.origin),
            text: output_text(&self.words, self.input.text.as_ref()),
        }
    }
}

impl Input {
    /// What a word in the place of input says, as after `<<<`.
    pub(super) fn from_word(word: &Word) -> Self {
        Self {
            origin: word.origin,
            text: Some(word.text.as_str().into()),
        }
    }
}
