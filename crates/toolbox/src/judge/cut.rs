//! Splits shell text into words and operators, without a grammar. It never fails: a part of a word
//! that is only known to a running shell becomes a placeholder.

use std::rc::Rc;

use super::unquote::Scanner;
use super::words::{Input, Simple, Word};

/// A token of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// The words that one written word expands to. Several if it has braces.
    Words(Vec<Word>),
    /// `;`, `&&`, `|`, `(`, the end of a line …
    Operator(&'static str),
    /// `>`, `>&`, `<` … and its target.
    Redirect(&'static str, Option<Word>),
    /// The text of a here-document. Follows the end of the line that it belongs to.
    Document(Rc<str>),
}

/// A script as tokens.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) tokens: Vec<Token>,
    /// The byte offset in the text at which each token ends.
    pub(super) ends: Vec<usize>,
    /// The scripts inside the words: `$(…)`, `<(…)` and the like.
    pub(super) inner: Vec<Cut>,
    /// Whether every quote and bracket is closed, and all shells read the text in the same way.
    pub(super) whole: bool,
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
pub(super) fn words_of(text: &str) -> Vec<Word> {
    let words = |token| {
        if let Token::Words(words) = token {
            words
        } else {
            vec![]
        }
    };
    cut(text).tokens.into_iter().flat_map(words).collect()
}

/// Splits a script into tokens.
pub(super) fn cut(text: &str) -> Cut {
    cut_with(Scanner::new(text))
}

pub(super) fn cut_with(mut scan: Scanner<'_>) -> Cut {
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
        let token = if let Some(redirect) = redirect(&mut scan) {
            skip_blanks(&mut scan);
            let start = scan.rest();
            let target = scan.word().into_iter().next();
            if let ("<<" | "<<-", Some(end)) = (redirect, &target) {
                let written = &start[..start.len() - scan.rest().len()];
                documents.push((end.text.clone(), !written.contains(['\'', '"', '\\'])));
            }
            Some(Token::Redirect(redirect, target))
        } else if let Some(operator) = OPERATORS
            .iter()
            .find(|operator| rest.starts_with(**operator))
        {
            scan.skip(operator.len());
            Some(Token::Operator(operator))
        } else {
            Some(scan.word())
                .filter(|words| !words.is_empty())
                .map(Token::Words)
        };
        let line_ends = token == Some(Token::Operator("\n"));
        tokens.extend(token);
        ends.resize(tokens.len(), scan.at);
        if line_ends {
            for (end, is_expanded) in documents.drain(..) {
                let text = document(&mut scan, &end);
                if is_expanded {
                    scan.look_into(text);
                }
                tokens.push(Token::Document(text.into()));
                ends.push(scan.at);
            }
        }
    }
    Cut {
        tokens,
        ends,
        inner: scan.inner,
        whole: scan.whole && documents.is_empty(),
    }
}

impl Cut {
    /// Returns the simple commands of the script, then those inside its words.
    pub(super) fn commands(&self) -> Vec<Simple> {
        let mut found: Vec<Simple> = Vec::new();
        let (mut words, mut input) = (Vec::new(), Input::default());
        // The indexes of the first commands of this line and of the line before.
        let (mut line, mut line_before) = (0, 0);
        for token in self.tokens.iter().chain([&Token::Operator("\n")]) {
            match token {
                Token::Words(more) => words.extend(more.iter().cloned()),
                Token::Redirect("<<<", Some(word)) => input = Input::from_word(word),
                Token::Redirect("<", Some(word)) => input.origin = input.origin.or(word.origin),
                Token::Document(text) => {
                    // Assigned to every command of the line: which one reads it is not worked out.
                    let line = found[line_before..line].iter_mut();
                    line.for_each(|simple| {
                        _ = simple.input.text.get_or_insert_with(|| text.clone())
                    });
                }
                // In some shells `&>` ends a command, as `&` does.
                Token::Redirect(operator, _) if !operator.starts_with('&') => {}
                Token::Operator(operator) | Token::Redirect(operator, _) => {
                    words.drain(..before_command(&words));
                    let simple = Simple {
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
        found.extend(self.inner.iter().flat_map(Self::commands));
        found
    }
}

/// Returns the number of keywords and assignments before the program.
fn before_command(words: &[Word]) -> usize {
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

fn skip_blanks(scan: &mut Scanner<'_>) {
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
fn redirect(scan: &mut Scanner<'_>) -> Option<&'static str> {
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
    scan.whole &= digits < 2;
    scan.skip(digits + found.len());
    Some(found)
}

/// Reads the lines of a here-document up to the line that consists of `end`.
fn document<'a>(scan: &mut Scanner<'a>, end: &str) -> &'a str {
    let text = scan.rest();
    loop {
        let rest = scan.rest();
        let before = text.len() - rest.len();
        if rest.is_empty() {
            scan.whole = false;
            return text;
        }
        let line = rest.split('\n').next().unwrap_or_default();
        scan.skip((line.len() + 1).min(rest.len()));
        if line.trim_start_matches('\t') == end {
            return &text[..before];
        }
    }
}
