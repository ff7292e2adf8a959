//! Formats commands for people, without characters that are invisible or that a terminal
//! interprets.

use selvedge_text::with_ellipsis;

use super::cut::{Token, cut};
use super::shell::Script;
use super::shells::{ShellCall, shell_call};
use super::words::Word;

/// Formats a command for people. A plain `bash -c` script is shown without the shell, one simple
/// command per line. Control characters and invisible characters are escaped.
pub fn shown(argv: &[String]) -> String {
    let words: Vec<Word> = argv.iter().map(Word::plain).collect();
    if let Some(ShellCall::Script {
        script,
        plain: true,
        more: false,
    }) = shell_call(&words)
    {
        let lines = lines(&script.text);
        return lines
            .iter()
            .map(|line| visible(line))
            .collect::<Vec<_>>()
            .join("\n");
    }
    words
        .iter()
        .map(|word| visible(&quoted(&word.text)))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Formats a word for use in a message, truncated.
pub(super) fn in_a_sentence(word: &str) -> String {
    const MAX_CHARS: usize = 60;
    visible(&with_ellipsis(word, MAX_CHARS))
}

/// Formats a command or script in one line for use in a message, truncated.
pub(super) fn in_one_line(command: &str) -> String {
    const MAX_CHARS: usize = 200;
    let line = command.lines().collect::<Vec<_>>().join(" ");
    visible(&with_ellipsis(&line, MAX_CHARS))
}

/// Splits a script into its commands, or into its lines if it is more than plain commands.
fn lines(script: &str) -> Vec<&str> {
    if Script::parse(script).beyond.is_some() {
        return script.trim_end().split('\n').collect();
    }
    let tokenized = cut(script);
    let ends = tokenized
        .tokens
        .iter()
        .zip(&tokenized.ends)
        .filter(|(token, _)| matches!(token, Token::Operator(_)));
    let mut start = 0;
    let mut lines = Vec::new();
    for end in ends.map(|(_, end)| *end).chain([script.len()]) {
        lines.push(script[start..end].trim().trim_end_matches(';').trim_end());
        start = end;
    }
    lines.retain(|line| !line.is_empty());
    lines
}

fn quoted(word: &str) -> String {
    let needs_no_quotes = |c: char| c.is_alphanumeric() || "-_./,:=+@%^".contains(c);
    if !word.is_empty() && word.chars().all(needs_no_quotes) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Escapes control characters, invisible characters and unusual white space.
fn visible(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\t' | '"' | '\'' | '\\' => out.push(c),
            c if c != ' ' && c.is_whitespace() => out.extend(c.escape_default()),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}
