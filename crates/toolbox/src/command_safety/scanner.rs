//! Reads one word of shell text: quotes, escapes, expansions, braces.

use super::braces::{WordPiece, expand_braces, has_active_braces, is_expanded};
use super::origins::output_origin;
use super::tokenize::{TokenizedScript, tokenize_with};
use super::words::{CodeOrigin, ShellWord, UNKNOWN_TEXT, WordKind};

/// The deepest nesting of substitutions that is parsed.
const MAX_SUBSTITUTION_DEPTH: usize = 8;

/// A position in a shell text.
pub(super) struct ShellScanner<'a> {
    text: &'a str,
    /// The byte offset of the next character.
    pub(super) offset: usize,
    /// Whether every quote and bracket so far was closed.
    pub(super) is_complete: bool,
    /// The scripts inside the words that were read so far.
    pub(super) nested: Vec<TokenizedScript>,
    /// The nesting of substitutions.
    depth: usize,
}

/// A word while it is read.
#[derive(Default)]
struct PartialWord {
    pieces: Vec<WordPiece>,
    /// Whether the word has quotes. A word without pieces exists only if it has quotes.
    quoted: bool,
    /// Whether part of the text is only known to a running shell.
    is_dynamic: bool,
    origin: Option<CodeOrigin>,
}

impl<'a> ShellScanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            offset: 0,
            is_complete: true,
            nested: Vec::new(),
            depth: 0,
        }
    }

    /// Returns the text that has not been read.
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.offset..]
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.offset += bytes;
    }

    /// Reads a word, which may expand to several because of braces and `$IFS`. Returns no word if
    /// the next token is an operator.
    pub(super) fn read_word(&mut self) -> Vec<ShellWord> {
        let mut word = PartialWord::default();
        if self.rest().starts_with("<(") || self.rest().starts_with(">(") {
            self.skip(2);
            self.read_substitution(&mut word);
        }
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\n' | ';' | '|' | '&' | '<' | '>' | '(' | ')' => break,
                '$' => self.read_dollar(&mut word, WordPiece::Unquoted),
                '`' => self.read_backticks(&mut word),
                '"' => self.read_double_quoted(&mut word),
                '\'' => {
                    self.skip(1);
                    word.quoted = true;
                    word.pieces
                        .extend(self.read_until_quote().chars().map(WordPiece::Quoted));
                }
                '\\' => {
                    self.skip(1);
                    match self.next() {
                        Some('\n') => {}
                        escaped => word.pieces.push(WordPiece::Quoted(escaped.unwrap_or('\\'))),
                    }
                }
                c => {
                    self.skip(c.len_utf8());
                    word.pieces.push(WordPiece::Unquoted(c));
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
    fn read_until_quote(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find('\'');
        self.is_complete &= end.is_some();
        self.skip(end.map_or(rest.len(), |end| end + 1));
        &rest[..end.unwrap_or(rest.len())]
    }

    fn read_double_quoted(&mut self, word: &mut PartialWord) {
        self.skip(1);
        word.quoted = true;
        while let Some(c) = self.peek() {
            match c {
                '$' => self.read_dollar(word, WordPiece::Quoted),
                '`' => self.read_backticks(word),
                '"' => return self.skip(1),
                '\\' => {
                    self.skip(1);
                    match self.next() {
                        Some('\n') => {}
                        Some(c @ ('$' | '`' | '"' | '\\')) => {
                            word.pieces.push(WordPiece::Quoted(c))
                        }
                        other => word
                            .pieces
                            .extend(['\\'].into_iter().chain(other).map(WordPiece::Quoted)),
                    }
                }
                c => {
                    self.skip(c.len_utf8());
                    word.pieces.push(WordPiece::Quoted(c));
                }
            }
        }
        self.is_complete = false;
    }

    /// Reads `$name`, `${…}`, `$(…)`, `$'…'`, `$"…"`, or a single `$`.
    fn read_dollar(&mut self, word: &mut PartialWord, piece: fn(char) -> WordPiece) {
        let bare = piece('$') == WordPiece::Unquoted('$');
        self.skip(1);
        match self.peek() {
            Some('(') => {
                self.skip(1);
                self.read_substitution(word);
            }
            Some('{') => {
                self.skip(1);
                let inside = self.read_until_closed('{', '}', bare);
                word.push_variable(inside, bare);
                word.origin = word.origin.or(self.scan_expansions(inside));
            }
            Some('\'') if bare => {
                self.skip(1);
                self.read_ansi_string(word);
            }
            Some('"') if bare => {
                word.is_dynamic = true;
                self.read_double_quoted(word);
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let rest = self.rest();
                let end = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len());
                self.skip(end);
                word.push_variable(&rest[..end], bare);
            }
            Some(c) if c.is_ascii_digit() || "@*#?-$!".contains(c) => {
                self.skip(1);
                word.push_unknown();
            }
            _ => word.pieces.push(piece('$')),
        }
    }

    fn read_substitution(&mut self, word: &mut PartialWord) {
        let inside = self.read_until_closed('(', ')', true);
        self.add_substitution(word, inside);
    }

    fn read_backticks(&mut self, word: &mut PartialWord) {
        self.skip(1);
        let mut inside = String::new();
        loop {
            match self.next() {
                Some('`') => break,
                Some('\\') => inside.extend(self.next()),
                Some(c) => inside.push(c),
                None => break self.is_complete = false,
            }
        }
        self.add_substitution(word, &inside);
    }

    /// Adds the output of a substitution to a word, and its script to `nested`.
    fn add_substitution(&mut self, word: &mut PartialWord, script: &str) {
        word.push_unknown();
        if self.depth < MAX_SUBSTITUTION_DEPTH {
            let inner = tokenize_with(ShellScanner {
                depth: self.depth + 1,
                ..ShellScanner::new(script)
            });
            word.origin = word.origin.or(inner
                .commands()
                .iter()
                .find_map(|simple| output_origin(&simple.words)));
            self.nested.push(inner);
        }
    }

    /// Finds substitutions in text that the shell expands but does not split into words, such as a
    /// here-document. Returns the origin of their output.
    pub(super) fn scan_expansions(&mut self, text: &str) -> Option<CodeOrigin> {
        let mut word = PartialWord::default();
        let mut inside = ShellScanner {
            depth: self.depth + 1,
            ..ShellScanner::new(text)
        };
        while let Some(c) = inside
            .peek()
            .filter(|_| self.depth < MAX_SUBSTITUTION_DEPTH)
        {
            match c {
                '$' => inside.read_dollar(&mut word, WordPiece::Quoted),
                '`' => inside.read_backticks(&mut word),
                '\\' => _ = (inside.next(), inside.next()),
                _ => _ = inside.next(),
            }
        }
        self.nested.append(&mut inside.nested);
        word.origin
    }

    /// Reads up to and including the bracket that closes the one before. Returns the text between
    /// them. Brackets in quotes are ignored. In `"${…}"` single quotes are ordinary characters.
    fn read_until_closed(&mut self, open: char, close: char, single_quotes: bool) -> &'a str {
        let start = self.offset;
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
                    let inside = &self.text[start..self.offset - 1];
                    if level == 1 && patterns < MAX_SUBSTITUTION_DEPTH && is_in_case(inside) {
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
        self.is_complete = false;
        &self.text[start..]
    }

    /// Reads the rest of `$'…'`.
    fn read_ansi_string(&mut self, word: &mut PartialWord) {
        (word.quoted, word.is_dynamic) = (true, true);
        while let Some(c) = self.next() {
            let c = match c {
                '\'' => return,
                '\\' => self.read_ansi_escape(),
                c => c,
            };
            word.pieces.push(WordPiece::Quoted(c));
        }
        self.is_complete = false;
    }

    fn read_ansi_escape(&mut self) -> char {
        if matches!(self.peek(), Some('0'..='7')) {
            return self.read_number(8, 3);
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
            Some('x') => self.read_number(16, 2),
            Some('u') => self.read_number(16, 4),
            Some('U') => self.read_number(16, 8),
            other => other.unwrap_or('\\'),
        }
    }

    fn read_number(&mut self, radix: u32, digits: usize) -> char {
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
            .unwrap_or(UNKNOWN_TEXT)
    }
}

/// Returns whether a bracket after this text ends a pattern of `case`, as in `case a in a) …`.
fn is_in_case(script: &str) -> bool {
    let count = |keyword| {
        script
            .split([' ', '\n', ';', '\t'])
            .filter(|word| *word == keyword)
            .count()
    };
    count("case") > count("esac")
}

impl PartialWord {
    fn push_unknown(&mut self) {
        self.is_dynamic = true;
        self.pieces.push(WordPiece::Unknown);
    }

    /// Adds a variable. The values of `HOME` and `IFS` are known without a shell.
    fn push_variable(&mut self, name: &str, bare: bool) {
        self.is_dynamic = true;
        self.pieces.push(match name {
            "HOME" => WordPiece::Quoted('~'),
            "IFS" if bare => WordPiece::Separator,
            _ => WordPiece::Unknown,
        });
    }

    fn into_words(self) -> Vec<ShellWord> {
        if self.pieces.is_empty() && !self.quoted {
            return vec![];
        }
        let open = self.is_dynamic || is_expanded(&self.pieces);
        let alternatives = expand_braces(self.pieces);
        let fields = alternatives.iter().flat_map(|pieces| {
            let gaps = pieces.contains(&WordPiece::Separator);
            pieces
                .split(|piece| *piece == WordPiece::Separator)
                .filter(move |field| !(gaps && field.is_empty()))
        });
        fields
            .map(|pieces| finish_word(pieces, open, self.origin))
            .collect()
    }
}

fn finish_word(pieces: &[WordPiece], open: bool, origin: Option<CodeOrigin>) -> ShellWord {
    let kind = if open || has_active_braces(pieces) {
        WordKind::Dynamic
    } else if pieces
        .iter()
        .any(|piece| matches!(piece, WordPiece::Unquoted('*' | '?')))
        || has_bracket_glob(pieces)
    {
        WordKind::Glob
    } else {
        WordKind::Literal
    };
    let text = pieces.iter().map(|piece| match piece {
        WordPiece::Unquoted(c) | WordPiece::Quoted(c) => *c,
        WordPiece::Unknown | WordPiece::Separator => UNKNOWN_TEXT,
    });
    ShellWord {
        text: text.collect(),
        kind,
        origin,
    }
}

/// Returns whether a word has a bracket pattern such as `[abc]`. A single `[` is a command.
fn has_bracket_glob(pieces: &[WordPiece]) -> bool {
    let open = pieces
        .iter()
        .position(|piece| *piece == WordPiece::Unquoted('['));
    open.is_some_and(|open| pieces[open..].contains(&WordPiece::Unquoted(']')))
}
