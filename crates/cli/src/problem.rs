//! What goes wrong, in one line, and what to do about it, in another.

use std::io::{IsTerminal, Write};

use crate::out::harmless;

/// An error for people: printed as `error: …` and `hint: …`.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    message: String,
    hints: Vec<String>,
    /// Where, with the line itself: shown between message and hint.
    place: Option<String>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl Problem {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hints: Vec::new(),
            place: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(crate) fn at(mut self, file: &str, source: &str, line: u32, column: u32) -> Self {
        let text = source.lines().nth((line as usize).saturating_sub(1));
        let text = text.unwrap_or_default().replace('\t', " ");
        let gutter = " ".repeat(line.to_string().len());
        // A long line is shown around the column.
        let start = (column as usize).saturating_sub(60);
        let shown: String = text.chars().skip(start).take(120).collect();
        let caret = " ".repeat((column as usize).saturating_sub(1 + start));
        self.place = Some(format!(
            "{gutter}--> {file}:{line}:{column}\n{gutter} |\n{line} | {shown}\n{gutter} | {caret}^"
        ));
        self
    }

    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        match error.downcast_ref::<Self>() {
            Some(problem) => problem.clone(),
            None => Self::new(format!("{error:#}")),
        }
    }

    /// The message and its hints, each with the word that stands before it.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let hints = self.hints.iter().map(|hint| ("hint", hint.clone()));
        std::iter::once(("error", self.message.clone()))
            .chain(hints)
            .collect()
    }

    pub(crate) fn print(&self) {
        let mut out = std::io::stderr().lock();
        let colour =
            out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let (red, cyan, plain) = if colour {
            ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m")
        } else {
            ("", "", "")
        };
        // Nobody is left to tell if standard error is gone.
        let _ = writeln!(out, "{red}error{plain}: {}", harmless(&self.message));
        if let Some(place) = &self.place {
            let _ = writeln!(out, "{}", harmless(place));
        }
        for hint in &self.hints {
            let _ = writeln!(out, "{cyan}hint{plain}: {}", harmless(hint));
        }
    }
}
