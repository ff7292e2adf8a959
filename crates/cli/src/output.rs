//! Writes to standard output and standard error. Besides the screen of the chat, only this module
//! does. On a terminal, hidden characters of the text are made visible; into a pipe or file, text
//! is written unchanged. A closed pipe is not an error.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use selvedge_text::{is_hidden, visible, visible_line};

/// Prints one line on standard output. On a terminal, line breaks in it are made visible, so that
/// a name with a line break cannot imitate another line.
pub(crate) fn print_line(text: &str) -> io::Result<()> {
    print(text, visible_line)
}

/// Prints text of any number of lines on standard output.
pub(crate) fn print_text(text: &str) -> io::Result<()> {
    print(text, visible)
}

/// Prints a value as indented JSON, the whole output of a command with `--json`.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<crate::CliStatus> {
    print_json_text(&serde_json::to_string_pretty(value)?)?;
    Ok(crate::CliStatus::Success)
}

/// Prints JSON on standard output. On a terminal, hidden characters become JSON's own escapes, so
/// that the value stays the same.
pub(crate) fn print_json_text(json: &str) -> io::Result<()> {
    print(json, escape_in_json)
}

/// Prints lines that contain escape sequences of Selvedge's own, and no other hidden characters, on
/// a terminal.
pub(crate) fn print_with_escapes(lines: &str) -> io::Result<()> {
    named_error(writeln!(io::stdout().lock(), "{lines}"))
}

/// Writes bytes to standard output; to a terminal, as text.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    if io::stdout().is_terminal() {
        return print_text(&String::from_utf8_lossy(bytes));
    }
    named_error(io::stdout().lock().write_all(bytes))
}

/// Prints one line on standard error. A failed write is ignored.
macro_rules! eprint_line {
    ($($args:tt)*) => {
        $crate::output::eprint_one_line(&format!($($args)*))
    };
}

/// Prints one line on standard error. On a terminal, line breaks in it are made visible.
pub(crate) fn eprint_one_line(text: &str) {
    let mut out = io::stderr().lock();
    let shown = for_stream(text, &out, visible_line);
    // A failed write to standard error has no other place to be reported.
    let _ = writeln!(out, "{shown}");
}

/// Prints text on standard error, without a line break at its end.
pub(crate) fn eprint_text(text: &str) {
    let mut out = io::stderr().lock();
    let shown = for_stream(text, &out, visible);
    let _ = out.write_all(shown.as_bytes());
}

/// Prints a label such as `error` and a text on standard error. `style` is the parameter of the
/// escape sequence for the label's colour. On a terminal, further lines of the text are indented,
/// so that they cannot imitate a label.
pub(crate) fn eprint_labelled(label: &str, style: &str, text: &str) {
    let mut out = io::stderr().lock();
    let written = if out.is_terminal() {
        let (on, off) = match has_colour() {
            true => (format!("\x1b[{style}m"), "\x1b[0m"),
            false => (String::new(), ""),
        };
        let indent = format!("\n{}", " ".repeat(label.len() + 2));
        let text = visible(text).replace('\n', &indent);
        writeln!(out, "{on}{label}{off}: {text}")
    } else {
        writeln!(out, "{label}: {text}")
    };
    // A failed write to standard error has no other place to be reported.
    let _ = written;
}

/// Prints a mark such as `✓` in colour, and a text, as one line on standard error. `code` is the
/// parameter of the escape sequence for the colour.
pub(crate) fn eprint_marked(mark: &str, code: &str, text: &str) {
    let mut out = io::stderr().lock();
    let line = marked_line(mark, code, text, &out);
    let _ = writeln!(out, "{line}");
}

/// Prints a mark in colour, and a text, as one line on standard output.
pub(crate) fn print_marked(mark: &str, code: &str, text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let line = marked_line(mark, code, text, &out);
    named_error(writeln!(out, "{line}"))
}

/// Prints parts as one line on standard output, each with the parameter of the escape sequence for
/// its colour, or an empty text for none.
pub(crate) fn print_coloured(parts: &[(&str, &str)]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let in_colour = out.is_terminal() && has_colour();
    let part = |(text, code): &(&str, &str)| {
        let shown = for_stream(text, &out, visible_line);
        match in_colour && !code.is_empty() {
            true => format!("\x1b[{code}m{shown}\x1b[0m"),
            false => shown.into_owned(),
        }
    };
    let line: String = parts.iter().map(part).collect();
    named_error(writeln!(out, "{}", line.trim_end()))
}

fn marked_line(mark: &str, code: &str, text: &str, stream: &impl IsTerminal) -> String {
    let space = if mark.is_empty() { "" } else { " " };
    let text = for_stream(text, stream, visible_line);
    match stream.is_terminal() && !mark.is_empty() && has_colour() {
        true => format!("\x1b[{code}m{mark}\x1b[0m{space}{text}"),
        false => format!("{mark}{space}{text}"),
    }
}

/// Whether `NO_COLOR` allows colours.
pub(crate) fn has_colour() -> bool {
    !is_dumb_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Asks the terminal to mark pasted text, until [`unmark_pastes`].
pub(crate) fn mark_pastes() {
    let _ = io::stderr().lock().write_all(b"\x1b[?2004h");
}

/// Ends the effect of [`mark_pastes`].
pub(crate) fn unmark_pastes() {
    let _ = io::stderr().lock().write_all(b"\x1b[?2004l");
}

/// Rings the bell, sends a desktop notification (OSC 9) and sets the title of the terminal.
pub(crate) const QUESTION_NOTICE: &str =
    "\x07\x1b]9;selvedge asks a question\x1b\\\x1b[22;2t\x1b]2;? selvedge asks a question\x1b\\";
/// Restores the title of the terminal: of one that saves titles, the one before.
pub(crate) const END_QUESTION_NOTICE: &str = "\x1b]2;selvedge\x1b\\\x1b[23;2t";

/// Notifies the person at the terminal of a question.
pub(crate) fn begin_question_notice() {
    let notice = match is_dumb_terminal() {
        true => "\x07",
        false => QUESTION_NOTICE,
    };
    let _ = io::stderr().lock().write_all(notice.as_bytes());
}

/// Ends the effect of [`begin_question_notice`].
pub(crate) fn end_question_notice() {
    if !is_dumb_terminal() {
        let _ = io::stderr()
            .lock()
            .write_all(END_QUESTION_NOTICE.as_bytes());
    }
}

/// Whether the terminal shows escape sequences as text.
fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb")
}

/// Replaces the hidden characters in JSON by escapes of JSON, which mean the same.
pub(crate) fn escape_in_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_hidden) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_hidden(c) {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units);
            out.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// A writer of JSON lines that replaces hidden characters by JSON's escapes, line by line.
pub(crate) struct JsonLinesWriter<W: Write> {
    out: W,
    /// The start of a line whose end was not written yet.
    line: Vec<u8>,
    escapes: bool,
}

impl JsonLinesWriter<io::Stdout> {
    /// Writes to standard output, unchanged unless it is a terminal.
    pub(crate) fn stdout() -> Self {
        Self {
            out: io::stdout(),
            line: Vec::new(),
            escapes: io::stdout().is_terminal(),
        }
    }
}

impl<W: Write> JsonLinesWriter<W> {
    /// Writes to a file that people print in a terminal.
    pub(crate) fn escaping(out: W) -> Self {
        Self {
            out,
            line: Vec::new(),
            escapes: true,
        }
    }
}

impl<W: Write> Write for JsonLinesWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.escapes {
            return self.out.write(bytes);
        }
        self.line.extend_from_slice(bytes);
        if let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.line.split_off(end + 1);
            let lines = std::mem::replace(&mut self.line, rest);
            let lines = String::from_utf8_lossy(&lines);
            self.out.write_all(escape_in_json(&lines).as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn print(text: &str, show: fn(&str) -> Cow<'_, str>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let shown = for_stream(text, &out, show);
    named_error(writeln!(out, "{shown}"))
}

fn for_stream<'a>(
    text: &'a str,
    stream: &impl IsTerminal,
    show: fn(&str) -> Cow<'_, str>,
) -> Cow<'a, str> {
    match stream.is_terminal() {
        true => show(text),
        false => Cow::Borrowed(text),
    }
}

fn named_error(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("cannot write to standard output: {error}"),
        )),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::escape_in_json;

    #[test]
    fn escapes_keep_the_value_of_json() {
        let value = serde_json::json!({"a\u{202e}": "b\u{200b}\u{e0041}\u{9b}ü"});
        let text = value.to_string();
        let shown = escape_in_json(&text);
        assert_eq!(shown, "{\"a\\u202e\":\"b\\u200b\\udb40\\udc41\\u009bü\"}");
        let parsed: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(parsed, value);
    }
}
