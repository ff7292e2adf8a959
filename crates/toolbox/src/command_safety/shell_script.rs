//! Parses a shell script twice: with a grammar and with a tokenizer. The script counts as plain
//! commands only if both agree. It is dangerous if either finds a danger.

use super::grammar;
use super::read_only::names_secret;
use super::tokenize::{ShellToken, TokenizedScript, tokenize};
use super::words::{ShellWord, SimpleCommand, WordKind};

/// The longest script that the grammar parses, in bytes. For hostile text its time grows with the
/// square of the length.
const MAX_GRAMMAR_BYTES: usize = 8 * 1024;

/// A parsed script.
#[derive(Debug, Default)]
pub(super) struct ParsedShellScript {
    /// Every simple command, including those in loops, functions and substitutions.
    pub(super) commands: Vec<SimpleCommand>,
    /// Targets of redirections that are not harmless.
    pub(super) redirect_targets: Vec<ShellWord>,
    /// Files that redirections read.
    pub(super) input_files: Vec<ShellWord>,
    /// Files that redirections may write.
    pub(super) output_files: Vec<ShellWord>,
    /// Why the script is more than a sequence of plain commands. `None` if it is not.
    pub(super) not_plain_reason: Option<&'static str>,
    /// Whether a function starts itself in the background.
    pub(super) is_fork_bomb: bool,
}

impl ParsedShellScript {
    /// Parses a script. Never fails: `not_plain_reason` says what could not be parsed.
    pub(super) fn parse(text: &str) -> Self {
        let tokenized = tokenize(text);
        let mut tokenized_commands = tokenized.commands();
        let mut script = if text.len() > MAX_GRAMMAR_BYTES {
            Self {
                not_plain_reason: Some("is too long to parse"),
                ..Self::default()
            }
        } else {
            let syntax_error = || Self {
                not_plain_reason: Some("has a syntax error"),
                ..Self::default()
            };
            grammar::parse_with_grammar(&join_continued_lines(text)).unwrap_or_else(syntax_error)
        };
        script.collect_redirections(&tokenized);
        let agreed = tokenized.is_complete && script.commands == tokenized_commands;
        let is_known = tokenized_commands
            .iter()
            .flat_map(|simple| &simple.words)
            .all(|word| word.kind != WordKind::Dynamic);
        if script.not_plain_reason.is_none() && !(agreed && is_known) {
            script.not_plain_reason = Some("has words that the shell expands");
        }
        if !agreed {
            // A shell may accept syntax that the grammar does not, so these are checked too.
            script.commands.append(&mut tokenized_commands);
        }
        script
    }

    /// Collects the redirections that are not harmless.
    fn collect_redirections(&mut self, tokenized: &TokenizedScript) {
        for token in &tokenized.tokens {
            let ShellToken::Redirect(operator, target) = token else {
                continue;
            };
            if operator.contains('>') {
                self.output_files.extend(target.clone());
            }
            if matches!(*operator, "<" | "<>") {
                self.input_files.extend(target.clone());
            }
            if !target
                .as_ref()
                .is_some_and(|target| is_harmless_redirect(operator, target))
            {
                let writes = operator.contains('>');
                self.not_plain_reason = self.not_plain_reason.or(Some(if writes {
                    "writes to a file"
                } else {
                    "redirects input"
                }));
                self.redirect_targets
                    .extend(target.clone().filter(|_| !operator.starts_with("<<")));
            }
        }
        tokenized
            .nested
            .iter()
            .for_each(|inner| self.collect_redirections(inner));
    }
}

fn is_harmless_redirect(operator: &str, target: &ShellWord) -> bool {
    // Bash opens network connections through these paths.
    let connects = ["/dev/tcp", "/dev/udp"]
        .iter()
        .any(|name| target.text.contains(name));
    target.kind == WordKind::Literal
        && match operator {
            ">" | ">>" => target.text == "/dev/null",
            ">&" => matches!(target.text.as_bytes(), [b'0'..=b'9']),
            "<" => !connects && !names_secret(target),
            _ => false,
        }
}

/// Joins lines that end with a backslash, which the grammar does not handle inside words.
fn join_continued_lines(text: &str) -> String {
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
