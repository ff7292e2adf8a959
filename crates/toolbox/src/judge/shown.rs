//! A command the way a person reads it.

use selvedge_text::with_ellipsis;

use super::cut::{Token, cut};
use super::shell::Script;
use super::shells::{ShellCall, shell_call};
use super::words::Word;

/// A short rendering for people: a shell's script without the shell, one simple command per line, and nothing in it
/// that a terminal would act on or an eye would miss.
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

/// A word as it may stand in a sentence.
pub(super) fn in_a_sentence(word: &str) -> String {
    const LONGEST: usize = 60;
    visible(&with_ellipsis(word, LONGEST))
}

/// A command as it may stand in a sentence, with room for more than a word.
pub(super) fn in_one_line(command: &str) -> String {
    const LONGEST: usize = 200;
    let words = command.lines().collect::<Vec<_>>().join(" ");
    visible(&with_ellipsis(&words, LONGEST))
}

/// A script by its commands; by its own lines if there is more to it.
fn lines(script: &str) -> Vec<&str> {
    if Script::parse(script).beyond.is_some() {
        return script.trim_end().split('\n').collect();
    }
    let cut = cut(script);
    let ends = cut
        .tokens
        .iter()
        .zip(&cut.ends)
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
    let bare = |c: char| c.is_alphanumeric() || "-_./,:=+@%^".contains(c);
    if !word.is_empty() && word.chars().all(bare) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Escapes what a terminal would act on, and what looks like something else or like nothing.
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
