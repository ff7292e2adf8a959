//! Formats commands for people, without characters that are invisible or that a terminal
//! interprets.

use selvedge_text::{truncate_chars, visible_exact};

use super::shell_call::{ShellInvocation, shell_call};
use super::shell_script::ParsedShellScript;
use super::tokenize::{ShellToken, tokenize};
use super::words::ShellWord;

/// Formats a command for people. A plain `bash -c` script is shown without the shell, one simple
/// command per line. Control characters and invisible characters are escaped.
pub fn display_command(argv: &[String]) -> String {
    let words: Vec<ShellWord> = argv.iter().map(ShellWord::literal).collect();
    if let Some(ShellInvocation::Script {
        script,
        is_plain: true,
        has_arguments: false,
    }) = shell_call(&words)
    {
        let lines = script_lines(&script.text);
        return lines
            .iter()
            .map(|line| escape_invisible(line))
            .collect::<Vec<_>>()
            .join("\n");
    }
    words
        .iter()
        .map(|word| escape_invisible(&quote(&word.text)))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Formats a word for use in a message, truncated.
pub(super) fn inline_word(word: &str) -> String {
    const MAX_CHARS: usize = 60;
    escape_invisible(&truncate_chars(word, MAX_CHARS))
}

/// Formats a command or script in one line for use in a message, truncated.
pub(super) fn inline_command(command: &str) -> String {
    const MAX_CHARS: usize = 200;
    let line = command.lines().collect::<Vec<_>>().join(" ");
    escape_invisible(&truncate_chars(&line, MAX_CHARS))
}

/// Splits a script into its commands, or into its lines if it is more than plain commands.
fn script_lines(script: &str) -> Vec<&str> {
    if ParsedShellScript::parse(script).not_plain_reason.is_some() {
        return script.trim_end().split('\n').collect();
    }
    let tokenized = tokenize(script);
    let ends = tokenized
        .tokens
        .iter()
        .zip(&tokenized.ends)
        .filter(|(token, _)| matches!(token, ShellToken::Operator(_)));
    let mut start = 0;
    let mut lines = Vec::new();
    for end in ends.map(|(_, end)| *end).chain([script.len()]) {
        lines.push(script[start..end].trim().trim_end_matches(';').trim_end());
        start = end;
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// Joins words to a line that a shell splits into the same words.
pub(crate) fn command_line(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:+@%".contains(c);
    let words = words.iter().map(|word| match word.chars().all(is_plain) {
        true if !word.is_empty() => word.clone(),
        _ => single_quoted(word),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    let needs_no_quotes = |c: char| c.is_alphanumeric() || "-_./,:=+@%^".contains(c);
    if !word.is_empty() && word.chars().all(needs_no_quotes) {
        word.to_owned()
    } else {
        single_quoted(word)
    }
}

fn single_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Escapes hidden characters, line breaks and unusual whitespace.
fn escape_invisible(text: &str) -> String {
    let mut out = String::new();
    for c in visible_exact(text).chars() {
        match c {
            ' ' | '\t' => out.push(c),
            c if c.is_whitespace() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}
