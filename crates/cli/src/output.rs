//! Writes to standard output and standard error. Control characters are replaced on a terminal, and
//! a closed pipe is not an error.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// Prints a line on standard output. A closed pipe is not an error.
pub(crate) fn print_line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let shown = for_stream(text, out.is_terminal());
    match writeln!(out, "{shown}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("cannot write to standard output: {error}"),
        )),
        Ok(()) => Ok(()),
    }
}

/// Prints a value as indented JSON, the whole output of a command with `--json`.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<crate::CliStatus> {
    print_line(&serde_json::to_string_pretty(value)?)?;
    Ok(crate::CliStatus::Success)
}

/// Prints a line on standard error. A failed write is ignored.
macro_rules! eprint_line {
    ($($args:tt)*) => {
        $crate::output::eprint_text(&(format!($($args)*) + "\n"))
    };
}

/// Prints a text on standard error. On a terminal, control characters are replaced.
pub(crate) fn eprint_text(text: &str) {
    let mut out = io::stderr().lock();
    let shown = for_stream(text, out.is_terminal());
    // A failed write to standard error has no other place to be reported.
    let _ = out.write_all(shown.as_bytes());
}

fn for_stream(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if is_terminal {
        replace_control_chars(text)
    } else {
        text.into()
    }
}

/// Replaces the characters that control a terminal, except line breaks and tabs.
pub(crate) fn replace_control_chars(text: &str) -> Cow<'_, str> {
    let changes_direction = |c: char| {
        matches!(
            c,
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
    };
    let is_unsafe = |c: char| (c.is_control() && c != '\n' && c != '\t') || changes_direction(c);
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars()
            .map(|c| if is_unsafe(c) { '\u{fffd}' } else { c })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::replace_control_chars;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(
            replace_control_chars("a\u{1b}[2Jb\n\tc"),
            "a\u{fffd}[2Jb\n\tc"
        );
        assert_eq!(replace_control_chars("plain ü"), "plain ü");
    }
}
