//! Reads one word of shell text: quotes, escapes, expansions, braces.

use super::braces::{Piece, expand_braces, has_braces, stands_for_others};
use super::cut::{Cut, cut_with};
use super::origins::origin_of;
use super::words::{HOLE, Origin, Sort, Word};

/// The deepest nesting of substitutions that is parsed.
const MAX_INNER: usize = 8;

/// A position in a shell text.
pub(super) struct Scanner<'a> {
    text: &'a str,
    /// The byte offset of the next character.
    pub(super) at: usize,
    /// Whether every quote and bracket so far was closed.
    pub(super) whole: bool,
    /// The scripts inside the words that were read so far.
    pub(super) inner: Vec<Cut>,
    /// The nesting of substitutions.
    depth: usize,
}

/// A word while it is read.
#[derive(Default)]
struct Raw {
    pieces: Vec<Piece>,
    /// Whether the word has quotes. A word without pieces exists only if it has quotes.
    quoted: bool,
    /// Whether part of the text is only known to a running shell.
    open: bool,
    origin: Option<Origin>,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            whole: true,
            inner: Vec::new(),
            depth: 0,
        }
    }

    /// Returns the text that has not been read.
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Reads a word, which may expand to several because of braces and `$IFS`. Returns no word if
    /// the next token is an operator.
    pub(super) fn word(&mut self) -> Vec<Word> {
        let mut word = Raw::default();
        if self.rest().starts_with("<(") || self.rest().starts_with(">(") {
            self.skip(2);
            self.substitution(&mut word);
        }
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\n' | ';' | '|' | '&' | '<' | '>' | '(' | ')' => break,
                '$' => self.dollar(&mut word, Piece::Bare),
                '`' => self.backticks(&mut word),
                '"' => self.double_quoted(&mut word),
                '\'' => {
                    self.skip(1);
                    word.quoted = true;
                    word.pieces
                        .extend(self.until_quote().chars().map(Piece::Quoted));
                }
                '\\' => {
                    self.skip(1);
                    match self.next() {
                        Some('\n') => {}
                        escaped => word.pieces.push(Piece::Quoted(escaped.unwrap_or('\\'))),
                    }
                }
                c => {
                    self.skip(c.len_utf8());
                    word.pieces.push(Piece::Bare(c));
                }
            }
        }
        word.into_words()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.skip(c.len_utf8());
        Some(c)
    }

    /// Reads up to and including the next `'`. Returns the text before it.
    fn until_quote(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find('\'');
        self.whole &= end.is_some();
        self.skip(end.map_or(rest.len(), |end| end + 1));
        &rest[..end.unwrap_or(rest.len())]
    }

    fn double_quoted(&mut self, word: &mut Raw) {
        self.skip(1);
        word.quoted = true;
        while let Some(c) = self.peek() {
            match c {
                '$' => self.dollar(word, Piece::Quoted),
                '`' => self.backticks(word),
                '"' => return self.skip(1),
                '\\' => {
                    self.skip(1);
                    match self.next() {
                        Some('\n') => {}
                        Some(c @ ('$' | '`' | '"' | '\\')) => word.pieces.push(Piece::Quoted(c)),
                        other => word
                            .pieces
                            .extend(['\\'].into_iter().chain(other).map(Piece::Quoted)),
                    }
                }
                c => {
                    self.skip(c.len_utf8());
                    word.pieces.push(Piece::Quoted(c));
                }
            }
        }
        self.whole = false;
    }

    /// Reads `$name`, `${…}`, `$(…)`, `$'…'`, `$"…"`, or a single `$`.
    fn dollar(&mut self, word: &mut Raw, piece: fn(char) -> Piece) {
        let bare = piece('$') == Piece::Bare('$');
        self.skip(1);
        match self.peek() {
            Some('(') => {
                self.skip(1);
                self.substitution(word);
            }
            Some('{') => {
                self.skip(1);
                let inside = self.until_closed('{', '}', bare);
                word.variable(inside, bare);
                word.origin = word.origin.or(self.look_into(inside));
            }
            Some('\'') if bare => {
                self.skip(1);
                self.ansi(word);
            }
            Some('"') if bare => {
                word.open = true;
                self.double_quoted(word);
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let rest = self.rest();
                let end = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len());
                self.skip(end);
                word.variable(&rest[..end], bare);
            }
            Some(c) if c.is_ascii_digit() || "@*#?-$!".contains(c) => {
                self.skip(1);
                word.hole();
            }
            _ => word.pieces.push(piece('$')),
        }
    }

    fn substitution(&mut self, word: &mut Raw) {
        let inside = self.until_closed('(', ')', true);
        self.comes_from(word, inside);
    }

    fn backticks(&mut self, word: &mut Raw) {
        self.skip(1);
        let mut inside = String::new();
        loop {
            match self.next() {
                Some('`') => break,
                Some('\\') => inside.extend(self.next()),
                Some(c) => inside.push(c),
                None => break self.whole = false,
            }
        }
        self.comes_from(word, &inside);
    }

    /// Adds the output of a substitution to a word, and its script to `nested`.
    fn comes_from(&mut self, word: &mut Raw, script: &str) {
        word.hole();
        if self.depth < MAX_INNER {
            let inner = cut_with(Scanner {
                depth: self.depth + 1,
                ..Scanner::new(script)
            });
            word.origin = word.origin.or(inner
                .commands()
                .iter()
                .find_map(|simple| origin_of(&simple.words)));
            self.inner.push(inner);
        }
    }

    /// Finds substitutions in text that the shell expands but does not split into words, such as a
    /// here-document. Returns the origin of their output.
    pub(super) fn look_into(&mut self, text: &str) -> Option<Origin> {
        let mut word = Raw::default();
        let mut inside = Scanner {
            depth: self.depth + 1,
            ..Scanner::new(text)
        };
        while let Some(c) = inside.peek().filter(|_| self.depth < MAX_INNER) {
            match c {
                '$' => inside.dollar(&mut word, Piece::Quoted),
                '`' => inside.backticks(&mut word),
                '\\' => _ = (inside.next(), inside.next()),
                _ => _ = inside.next(),
            }
        }
        self.inner.append(&mut inside.inner);
        word.origin
    }

    /// Reads up to and including the bracket that closes the one before. Returns the text between
    /// them. Brackets in quotes are ignored. In `"${…}"` single quotes are ordinary characters.
    fn until_closed(&mut self, open: char, close: char, single_quotes: bool) -> &'a str {
        let start = self.at;
        let mut quotes = None;
        let (mut level, mut patterns) = (1, 0);
        while let Some(c) = self.next() {
            match (c, quotes) {
                ('\\', None | Some('"')) => _ = self.next(),
                ('\'', None) if single_quotes => quotes = Some(c),
                ('"', None) => quotes = Some(c),
                (c, Some(quote)) if c == quote => quotes = None,
                (c, None) if c == open => level += 1,
                (c, None) if c == close => {
                    let inside = &self.text[start..self.at - 1];
                    if level == 1 && patterns < MAX_INNER && in_case(inside) {
                        patterns += 1;
                        continue;
                    }
                    level -= 1;
                    if level == 0 {
                        return inside;
                    }
                }
                _ => {}
            }
        }
        self.whole = false;
        &self.text[start..]
    }

    /// Reads the rest of `$'…'`.
    fn ansi(&mut self, word: &mut Raw) {
        (word.quoted, word.open) = (true, true);
        while let Some(c) = self.next() {
            let c = match c {
                '\'' => return,
                '\\' => self.ansi_escape(),
                c => c,
            };
            word.pieces.push(Piece::Quoted(c));
        }
        self.whole = false;
    }

    fn ansi_escape(&mut self) -> char {
        if matches!(self.peek(), Some('0'..='7')) {
            return self.number(8, 3);
        }
        match self.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('v') => '\u{b}',
            Some('f') => '\u{c}',
            Some('e' | 'E') => '\u{1b}',
            Some('x') => self.number(16, 2),
            Some('u') => self.number(16, 4),
            Some('U') => self.number(16, 8),
            other => other.unwrap_or('\\'),
        }
    }

    fn number(&mut self, radix: u32, digits: usize) -> char {
        let rest = self.rest();
        let end = rest
            .chars()
            .take(digits)
            .take_while(|c| c.is_digit(radix))
            .count();
        self.skip(end);
        u32::from_str_radix(&rest[..end], radix)
            .ok()
            .and_then(char::from_u32)
            .unwrap_or(HOLE)
    }
}

/// Returns whether a bracket after this text ends a pattern of `case`, as in `case a in a) …`.
fn in_case(script: &str) -> bool {
    let count = |keyword| {
        script
            .split([' ', '\n', ';', '\t'])
            .filter(|word| *word == keyword)
            .count()
    };
    count("case") > count("esac")
}

impl Raw {
    fn hole(&mut self) {
        self.open = true;
        self.pieces.push(Piece::Hole);
    }

    /// Adds a variable. The values of `HOME` and `IFS` are known without a shell.
    fn variable(&mut self, name: &str, bare: bool) {
        self.open = true;
        self.pieces.push(match name {
            "HOME" => Piece::Quoted('~'),
            "IFS" if bare => Piece::Gap,
            _ => Piece::Hole,
        });
    }

    fn into_words(self) -> Vec<Word> {
        if self.pieces.is_empty() && !self.quoted {
            return vec![];
        }
        let open = self.open || stands_for_others(&self.pieces);
        let alternatives = expand_braces(self.pieces);
        let fields = alternatives.iter().flat_map(|pieces| {
            let gaps = pieces.contains(&Piece::Gap);
            pieces
                .split(|piece| *piece == Piece::Gap)
                .filter(move |field| !(gaps && field.is_empty()))
        });
        fields
            .map(|pieces| finished(pieces, open, self.origin))
            .collect()
    }
}

fn finished(pieces: &[Piece], open: bool, origin: Option<Origin>) -> Word {
    let sort = if open || has_braces(pieces) {
        Sort::Open
    } else if pieces
        .iter()
        .any(|piece| matches!(piece, Piece::Bare('*' | '?')))
        || has_set(pieces)
    {
        Sort::Pattern
    } else {
        Sort::Plain
    };
    let text = pieces.iter().map(|piece| match piece {
        Piece::Bare(c) | Piece::Quoted(c) => *c,
        Piece::Hole | Piece::Gap => HOLE,
    });
    Word {
        text: text.collect(),
        sort,
        origin,
    }
}

/// Returns whether a word has a bracket pattern such as `[abc]`. A single `[` is a command.
fn has_set(pieces: &[Piece]) -> bool {
    let open = pieces.iter().position(|piece| *piece == Piece::Bare('['));
    open.is_some_and(|open| pieces[open..].contains(&Piece::Bare(']')))
}
