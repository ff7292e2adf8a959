//! Standard output and error: what scripts say must not steer the terminal, and a reader may leave early.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

/// Prints a line on standard output. That nobody reads it any more is no failure of ours.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let shown = for_reader(text, out.is_terminal());
    match writeln!(out, "{shown}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("cannot write to standard output: {error}"),
        )),
        Ok(()) => Ok(()),
    }
}

/// Prints a value as indented JSON, which is all a command with `--json` does.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<crate::Exit> {
    line(&serde_json::to_string_pretty(value)?)?;
    Ok(crate::Exit::Done)
}

/// Says a line on standard error. Where nobody hears it any more, everything goes on without it.
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::out::talk(&(format!($($words)*) + "\n"))
    };
}

/// Prints a text on standard error, byte for byte unless a terminal would obey it.
pub(crate) fn talk(text: &str) {
    let mut out = io::stderr().lock();
    let shown = for_reader(text, out.is_terminal());
    // Nobody is left to tell if standard error is gone.
    let _ = out.write_all(shown.as_bytes());
}

fn for_reader(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if is_terminal {
        harmless(text)
    } else {
        text.into()
    }
}

/// The text without what a terminal would obey: control characters but line breaks and tabs become visible.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    // Control characters, and those that turn the direction of what follows.
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let steers = |c: char| (c.is_control() && c != '\n' && c != '\t') || turns(c);
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars()
            .map(|c| if steers(c) { '\u{fffd}' } else { c })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn escape_sequences_lose_their_power() {
        assert_eq!(harmless("a\u{1b}[2Jb\n\tc"), "a\u{fffd}[2Jb\n\tc");
        assert_eq!(harmless("plain ü"), "plain ü");
    }
}
