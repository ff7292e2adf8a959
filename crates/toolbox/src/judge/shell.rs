//! Parses a shell script twice: with a grammar and with a tokenizer. The script counts as plain
//! commands only if both agree. It is dangerous if either finds a danger.

use super::cut::{Cut, Token, cut};
use super::grammar;
use super::read_only::is_secret;
use super::words::{Simple, Sort, Word};

/// The longest script that the grammar parses, in bytes. For hostile text its time grows with the
/// square of the length.
const MAX_GRAMMAR: usize = 8 * 1024;

/// A parsed script.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// Every simple command, including those in loops, functions and substitutions.
    pub(super) commands: Vec<Simple>,
    /// Targets of redirections that are not harmless.
    pub(super) files: Vec<Word>,
    /// Why the script is more than a sequence of plain commands. `None` if it is not.
    pub(super) beyond: Option<&'static str>,
    /// Whether a function starts itself in the background.
    pub(super) fork_bomb: bool,
}

impl Script {
    /// Parses a script. Never fails: `not_plain_reason` says what could not be parsed.
    pub(super) fn parse(text: &str) -> Self {
        let tokenized = cut(text);
        let mut tokenized_commands = tokenized.commands();
        let mut script = if text.len() > MAX_GRAMMAR {
            Self {
                beyond: Some("is too long to parse"),
                ..Self::default()
            }
        } else {
            let syntax_error = || Self {
                beyond: Some("has a syntax error"),
                ..Self::default()
            };
            grammar::read(&without_continuations(text)).unwrap_or_else(syntax_error)
        };
        script.note_redirections(&tokenized);
        let agreed = tokenized.whole && script.commands == tokenized_commands;
        let is_known = tokenized_commands
            .iter()
            .flat_map(|simple| &simple.words)
            .all(|word| word.sort != Sort::Open);
        if script.beyond.is_none() && !(agreed && is_known) {
            script.beyond = Some("has words that the shell expands");
        }
        if !agreed {
            // A shell may accept syntax that the grammar does not, so these are checked too.
            script.commands.append(&mut tokenized_commands);
        }
        script
    }

    /// Collects the redirections that are not harmless.
    fn note_redirections(&mut self, tokenized: &Cut) {
        for token in &tokenized.tokens {
            let Token::Redirect(operator, target) = token else {
                continue;
            };
            if !target
                .as_ref()
                .is_some_and(|target| is_harmless(operator, target))
            {
                let writes = operator.contains('>');
                self.beyond = self.beyond.or(Some(if writes {
                    "writes to a file"
                } else {
                    "redirects input"
                }));
                self.files
                    .extend(target.clone().filter(|_| !operator.starts_with("<<")));
            }
        }
        tokenized
            .inner
            .iter()
            .for_each(|inner| self.note_redirections(inner));
    }
}

fn is_harmless(operator: &str, target: &Word) -> bool {
    // Bash opens network connections through these paths.
    let connects = ["/dev/tcp", "/dev/udp"]
        .iter()
        .any(|name| target.text.contains(name));
    target.sort == Sort::Plain
        && match operator {
            ">" | ">>" => target.text == "/dev/null",
            ">&" => matches!(target.text.as_bytes(), [b'0'..=b'9']),
            "<" => !connects && !is_secret(target),
            _ => false,
        }
}

/// Joins lines that end with a backslash, which the grammar does not handle inside words.
fn without_continuations(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n') {
        let slashes = line.len() - line.trim_end_matches('\\').len();
        out.push_str(if slashes % 2 == 1 {
            &line[..line.len() - 1]
        } else {
            line
        });
        if slashes % 2 == 0 {
            out.push('\n');
        }
        rest = after;
    }
    out + rest
}
