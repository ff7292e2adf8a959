//! Splits shell text into words and operators, without a grammar. It never fails: a part of a word
//! that is only known to a running shell becomes a placeholder.

use std::rc::Rc;

use super::scanner::ShellScanner;
use super::words::{CommandInput, ShellWord, SimpleCommand};

/// A token of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShellToken {
    /// The words that one written word expands to. Several if it has braces.
    Words(Vec<ShellWord>),
    /// `;`, `&&`, `|`, `(`, the end of a line …
    Operator(&'static str),
    /// `>`, `>&`, `<` … and its target.
    Redirect(&'static str, Option<ShellWord>),
    /// The text of a here-document. Follows the end of the line that it belongs to.
    HereDocument(Rc<str>),
}

/// A script as tokens.
#[derive(Debug)]
pub(super) struct TokenizedScript {
    pub(super) tokens: Vec<ShellToken>,
    /// The byte offset in the text at which each token ends.
    pub(super) ends: Vec<usize>,
    /// The scripts inside the words: `$(…)`, `<(…)` and the like.
    pub(super) nested: Vec<TokenizedScript>,
    /// Whether every quote and bracket is closed, and all shells read the text in the same way.
    pub(super) is_complete: bool,
}

/// Longer operators come before their prefixes.
const OPERATORS: &[&str] = &["&&", "||", "|&", ";;", ";", "|", "(", ")", "\n", "&"];
/// Longer operators come before their prefixes.
const REDIRECTS: &[&str] = &[
    "&>>", "&>", "<<<", "<<-", "<<", "<>", "<&", "<", ">>", ">|", ">&", ">",
];

/// Keywords that a command can follow.
const KEYWORDS: &[&str] = &[
    "if", "then", "elif", "else", "while", "until", "do", "{", "!", "coproc",
];

/// Returns the words in a piece of a script.
pub(super) fn split_words(text: &str) -> Vec<ShellWord> {
    let words = |token| {
        if let ShellToken::Words(words) = token {
            words
        } else {
            vec![]
        }
    };
    tokenize(text).tokens.into_iter().flat_map(words).collect()
}

/// Splits a script into tokens.
pub(super) fn tokenize(text: &str) -> TokenizedScript {
    tokenize_with(ShellScanner::new(text))
}

pub(super) fn tokenize_with(mut scan: ShellScanner<'_>) -> TokenizedScript {
    let (mut tokens, mut ends) = (Vec::new(), Vec::new());
    // Here-documents whose text starts on the next line: the end marker, and whether the shell
    // expands the text.
    let mut documents: Vec<(String, bool)> = Vec::new();
    loop {
        skip_blanks(&mut scan);
        let rest = scan.rest();
        if rest.is_empty() {
            break;
        }
        let token = if let Some(redirect) = read_redirect(&mut scan) {
            skip_blanks(&mut scan);
            let start = scan.rest();
            let target = scan.read_word().into_iter().next();
            if let ("<<" | "<<-", Some(end)) = (redirect, &target) {
                let written = &start[..start.len() - scan.rest().len()];
                documents.push((end.text.clone(), !written.contains(['\'', '"', '\\'])));
            }
            Some(ShellToken::Redirect(redirect, target))
        } else if let Some(operator) = OPERATORS
            .iter()
            .find(|operator| rest.starts_with(**operator))
        {
            scan.skip(operator.len());
            Some(ShellToken::Operator(operator))
        } else {
            Some(scan.read_word())
                .filter(|words| !words.is_empty())
                .map(ShellToken::Words)
        };
        let line_ends = token == Some(ShellToken::Operator("\n"));
        tokens.extend(token);
        ends.resize(tokens.len(), scan.offset);
        if line_ends {
            for (end, is_expanded) in documents.drain(..) {
                let text = read_here_document(&mut scan, &end);
                if is_expanded {
                    scan.scan_expansions(text);
                }
                tokens.push(ShellToken::HereDocument(text.into()));
                ends.push(scan.offset);
            }
        }
    }
    TokenizedScript {
        tokens,
        ends,
        nested: scan.nested,
        is_complete: scan.is_complete && documents.is_empty(),
    }
}

impl TokenizedScript {
    /// Returns the simple commands of the script, then those inside its words.
    pub(super) fn commands(&self) -> Vec<SimpleCommand> {
        let mut found: Vec<SimpleCommand> = Vec::new();
        let (mut words, mut input) = (Vec::new(), CommandInput::default());
        // The indexes of the first commands of this line and of the line before.
        let (mut line, mut line_before) = (0, 0);
        for token in self.tokens.iter().chain([&ShellToken::Operator("\n")]) {
            match token {
                ShellToken::Words(more) => words.extend(more.iter().cloned()),
                ShellToken::Redirect("<<<", Some(word)) => input = CommandInput::from_word(word),
                ShellToken::Redirect("<", Some(word)) => {
                    input.origin = input.origin.or(word.origin)
                }
                ShellToken::HereDocument(text) => {
                    // Assigned to every command of the line: which one reads it is not worked out.
                    let line = found[line_before..line].iter_mut();
                    line.for_each(|simple| {
                        _ = simple.input.text.get_or_insert_with(|| text.clone())
                    });
                }
                // In some shells `&>` ends a command, as `&` does.
                ShellToken::Redirect(operator, _) if !operator.starts_with('&') => {}
                ShellToken::Operator(operator) | ShellToken::Redirect(operator, _) => {
                    words.drain(..leading_word_count(&words));
                    let simple = SimpleCommand {
                        words: std::mem::take(&mut words),
                        input: std::mem::take(&mut input),
                    };
                    if matches!(*operator, "|" | "|&") {
                        input = simple.output();
                    }
                    found.extend(Some(simple).filter(|simple| !simple.words.is_empty()));
                    if *operator == "\n" {
                        (line_before, line) = (line, found.len());
                    }
                }
            }
        }
        found.extend(self.nested.iter().flat_map(Self::commands));
        found
    }
}

/// Returns the number of keywords and assignments before the program.
fn leading_word_count(words: &[ShellWord]) -> usize {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let next = words.get(at + 1).map_or("", |word| &word.text);
        match word.text.as_str() {
            // A syntax error in every shell, so nothing runs.
            "if" | "elif" | "while" | "until" if ["then", "do"].contains(&next) => return at,
            // `function name {`
            "function" => at += 2,
            keyword if KEYWORDS.contains(&keyword) => at += 1,
            text if is_assignment(text) => at += 1,
            _ => return at,
        }
    }
    at.min(words.len())
}

/// Returns whether a word is an assignment (`NAME=value`).
pub(super) fn is_assignment(text: &str) -> bool {
    let name = text.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn skip_blanks(scan: &mut ShellScanner<'_>) {
    loop {
        let rest = scan.rest();
        match rest.as_bytes() {
            [b' ' | b'\t', ..] => scan.skip(1),
            [b'\\', b'\n', ..] => scan.skip(2),
            [b'#', ..] => scan.skip(rest.find('\n').unwrap_or(rest.len())),
            _ => return,
        }
    }
}

/// Reads a redirection operator together with the number before it.
fn read_redirect(scan: &mut ShellScanner<'_>) -> Option<&'static str> {
    let rest = scan.rest();
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = rest.len() - after.len();
    if after.starts_with("<(") || after.starts_with(">(") || (digits > 0 && after.starts_with('&'))
    {
        return None;
    }
    let found = REDIRECTS
        .iter()
        .find(|redirect| after.starts_with(**redirect))?;
    // Shells disagree on whether several digits are a descriptor or a word.
    scan.is_complete &= digits < 2;
    scan.skip(digits + found.len());
    Some(found)
}

/// Reads the lines of a here-document up to the line that consists of `end`.
fn read_here_document<'a>(scan: &mut ShellScanner<'a>, end: &str) -> &'a str {
    let text = scan.rest();
    loop {
        let rest = scan.rest();
        let before = text.len() - rest.len();
        if rest.is_empty() {
            scan.is_complete = false;
            return text;
        }
        let line = rest.split('\n').next().unwrap_or_default();
        scan.skip((line.len() + 1).min(rest.len()));
        if line.trim_start_matches('\t') == end {
            return &text[..before];
        }
    }
}
