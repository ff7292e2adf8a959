//! Errors for people: one `error:` line, an excerpt of the source, and `hint:` lines.

use selvedge_text::visible_line;
use unicode_width::UnicodeWidthStr;

use crate::output::{eprint_labelled, eprint_text};

/// An error with its hints, printed as `error: …` and `hint: …`.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    message: String,
    hints: Vec<String>,
    /// Location and source line, printed between message and hints.
    excerpt: Option<String>,
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
            excerpt: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Puts a place such as `FILE:LINE` before the message.
    pub(crate) fn at_place(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Adds an alternative to the last hint.
    pub(crate) fn or_hint(mut self, alternative: &str) -> Self {
        if let Some(hint) = self.hints.last_mut() {
            *hint = format!("{hint}, or {alternative}");
        }
        self
    }

    /// Replaces all hints.
    pub(crate) fn with_only_hint(mut self, hint: &str) -> Self {
        self.hints = vec![hint.to_owned()];
        self
    }

    /// Adds a further step to the last hint.
    pub(crate) fn then_hint(mut self, step: &str) -> Self {
        match self.hints.last_mut() {
            Some(hint) => *hint = format!("{hint}, then {step}"),
            None => self.hints.push(step.to_owned()),
        }
        self
    }

    /// Adds an excerpt of the source with a caret below the column. Line and column count from 1.
    pub(crate) fn with_excerpt(mut self, file: &str, source: &str, line: u32, column: u32) -> Self {
        let text = source.lines().nth((line as usize).saturating_sub(1));
        let text = text.unwrap_or_default().replace('\t', " ");
        let gutter = " ".repeat(line.to_string().len());
        // Of a long line, only the part around the column is shown.
        let start = (column as usize).saturating_sub(60);
        let shown: String = text.chars().skip(start).take(120).collect();
        let before = (column as usize).saturating_sub(1 + start);
        let before: String = shown.chars().take(before).collect();
        let caret = " ".repeat(visible_line(&before).width());
        self.excerpt = Some(format!(
            "{gutter}--> {}:{line}:{column}\n{gutter} |\n{line} | {shown}\n{gutter} | {caret}^",
            visible_line(file)
        ));
        self
    }

    /// Returns the `Problem` in an error, or one with the error's messages.
    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        match error.downcast_ref::<Self>() {
            Some(problem) => problem.clone(),
            None => Self::new(format!("{error:#}")),
        }
    }

    /// Returns the hints.
    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Prints the error on standard error.
    pub(crate) fn print(&self) {
        eprint_labelled("error", "1;31", &self.message);
        if let Some(place) = &self.excerpt {
            eprint_text(&format!("{place}\n"));
        }
        for hint in &self.hints {
            eprint_labelled("hint", "1;36", hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_is_below_its_column_after_wide_characters() {
        let source = "const a = '漢字'; return fetch('x')";
        let problem = Problem::new("wrong").with_excerpt("a.ts", source, 1, 24);
        let excerpt = problem.excerpt.unwrap_or_default();
        let width_before =
            |line: &str, end: char| line.split(end).next().map(UnicodeWidthStr::width);
        let lines: Vec<&str> = excerpt.lines().collect();
        let caret = width_before(lines[3], '^');
        assert_eq!(caret, width_before(lines[2], 'f'), "{excerpt}");
    }
}
