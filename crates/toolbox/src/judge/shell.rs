//! Taking a shell script apart. It is read twice, with a grammar and without: it is plain where both readings agree, and
//! dangerous where either finds something.

use super::cut::{Cut, Token, cut};
use super::grammar;
use super::read_only::is_secret;
use super::words::{Simple, Sort, Word};

/// Longest script the grammar is asked about. On hostile text it takes time that grows with the square of the length.
const MAX_GRAMMAR: usize = 8 * 1024;

/// What a script consists of.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// Every simple command, also in loops, functions and substitutions.
    pub(super) commands: Vec<Simple>,
    /// What is redirected to or from, where that is not harmless.
    pub(super) files: Vec<Word>,
    /// Why it is more than plain commands, one after the other.
    pub(super) beyond: Option<&'static str>,
    /// A function that starts itself again and again.
    pub(super) fork_bomb: bool,
}

impl Script {
    /// Takes a script apart.
    pub(super) fn parse(text: &str) -> Self {
        let cut = cut(text);
        let mut second = cut.commands();
        let mut script = if text.len() > MAX_GRAMMAR {
            Self {
                beyond: Some("it is too long to be taken apart"),
                ..Self::default()
            }
        } else {
            let broken = || Self {
                beyond: Some("it has a syntax error"),
                ..Self::default()
            };
            grammar::read(&without_continuations(text)).unwrap_or_else(broken)
        };
        script.note_redirections(&cut);
        let agreed = cut.whole && script.commands == second;
        let sure = second
            .iter()
            .flat_map(|simple| &simple.words)
            .all(|word| word.sort != Sort::Open);
        if script.beyond.is_none() && !(agreed && sure) {
            script.beyond = Some("its words are not plain");
        }
        if !agreed {
            // A shell may understand what the grammar does not: nothing dangerous may hide behind that.
            script.commands.append(&mut second);
        }
        script
    }

    fn note_redirections(&mut self, cut: &Cut) {
        for token in &cut.tokens {
            let Token::Redirect(operator, target) = token else {
                continue;
            };
            if !target
                .as_ref()
                .is_some_and(|target| is_harmless(operator, target))
            {
                let writes = operator.contains('>');
                self.beyond = self.beyond.or(Some(if writes {
                    "it writes to a file"
                } else {
                    "it redirects input"
                }));
                self.files
                    .extend(target.clone().filter(|_| !operator.starts_with("<<")));
            }
        }
        cut.inner
            .iter()
            .for_each(|inner| self.note_redirections(inner));
    }
}

fn is_harmless(operator: &str, target: &Word) -> bool {
    // Bash connects to other machines through such names.
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

/// The grammar does not know that a word goes on after a backslash and the end of a line.
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
