//! Bounds the work of the parser before it starts.
//!
//! The parser speculates: it reads `a<…` as type arguments, `(…` as the parameters of an arrow
//! function or of a function type, and starts again if it was wrong. Where speculations nest, the
//! work multiplies, and a hundred bytes can keep it busy for hours. This scan reads the tokens as
//! the parser does, keeps track of which speculations may be open around each token, and adds up
//! how often each token can be read at most. A script above [`MAX_PARSE_COST`] is rejected.
//!
//! Hand-written, because the parser can neither be given a budget nor be stopped, and its own lexer
//! cannot be used alone. Where only the grammar decides whether `/` divides or starts a regular
//! expression, the scan follows both readings and the costlier one counts.

use oxc_syntax::identifier::{is_identifier_start, is_irregular_whitespace};

use crate::brackets::{OpenBracket, Previous};
use crate::lexing::{
    is_line_terminator, line_end, number_end, operator_len, regex_depth, regex_end, string_end,
    word_end,
};
use crate::parse_problem::ParseProblem;

/// Maximum cost of a script: about the number of tokens that the parser reads, each counted as
/// often as it may be read. Ordinary scripts cost up to six per byte.
pub(crate) const MAX_PARSE_COST: u64 = 1_000_000;
/// Maximum depth of nested brackets.
const MAX_BRACKET_DEPTH: usize = 256;
/// Maximum number of different readings of a script.
const MAX_READINGS: usize = 16;
/// Bytes of a token that cost as much as one token.
const BYTES_PER_COST: usize = 16;

/// A place because of which a script is not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnparsableText {
    pub(crate) problem: ParseProblem,
    /// Byte offset in the script.
    pub(crate) offset: u32,
}

/// Returns an upper bound of the parser's work, or why the script must not be parsed.
pub(crate) fn bound_parse_cost(source: &str) -> Result<u64, UnparsableText> {
    let mut readings = vec![Reading::new(source)];
    let mut cost = 0;
    while let Some(mut reading) = readings.pop() {
        // The reading that is furthest behind is last, so that equal readings meet.
        loop {
            match reading.step(source) {
                Ok(Step::Token) => {}
                Ok(Step::End) => {
                    cost = cost.max(reading.cost);
                    break;
                }
                Ok(Step::AmbiguousSlash { regex_end }) => {
                    let mut other = reading.clone();
                    other
                        .finish_regex(source, regex_end)
                        .map_err(|problem| other.unparsable(problem))?;
                    readings.push(other);
                    reading.finish_operator("/");
                }
                Err(problem) => return Err(reading.unparsable(problem)),
            }
            if !readings.is_empty() {
                readings.push(reading);
                merge_equal_readings(&mut readings);
                if readings.len() > MAX_READINGS {
                    return Err(readings[0].unparsable(ParseProblem::Slashes));
                }
                break;
            }
        }
    }
    Ok(cost)
}

/// Sorts readings, the one that is furthest behind last, and keeps the costlier of two that are at
/// the same place in the same state.
fn merge_equal_readings(readings: &mut Vec<Reading>) {
    readings.sort_by(|a, b| b.at.cmp(&a.at).then(b.cost.cmp(&a.cost)));
    let mut distinct: Vec<Reading> = Vec::with_capacity(readings.len());
    for reading in readings.drain(..) {
        if !distinct.iter().any(|other| other.is_same_state(&reading)) {
            distinct.push(reading);
        }
    }
    *readings = distinct;
}

/// What a step of a reading found.
enum Step {
    /// One token or comment.
    Token,
    /// The end of the text, or a place after which the parser reads nothing.
    End,
    /// A slash that divides or starts a regular expression, which would end here.
    AmbiguousSlash { regex_end: usize },
}

/// One way to read the text: a position and what is open there.
#[derive(Debug, Clone)]
struct Reading {
    at: usize,
    cost: u64,
    previous: Previous,
    /// Whether the previous token was `)`.
    after_parenthesis: bool,
    /// Whether the previous token was a word such as `if`, or `for await`.
    after_control_word: bool,
    /// Whether a line ended since the previous token.
    new_line: bool,
    open: Vec<OpenBracket>,
}

impl Reading {
    fn new(source: &str) -> Self {
        let at = match source.starts_with("#!") {
            true => line_end(source, 0),
            false => 0,
        };
        Self {
            at,
            cost: 0,
            previous: Previous::Start,
            after_parenthesis: false,
            after_control_word: false,
            new_line: true,
            open: vec![OpenBracket::whole_text()],
        }
    }

    fn unparsable(&self, problem: ParseProblem) -> UnparsableText {
        UnparsableText {
            problem,
            offset: self.at as u32,
        }
    }

    fn is_same_state(&self, other: &Self) -> bool {
        self.at == other.at
            && self.previous == other.previous
            && self.after_parenthesis == other.after_parenthesis
            && self.after_control_word == other.after_control_word
            && self.new_line == other.new_line
            && self.open == other.open
    }

    fn inside(&mut self) -> &mut OpenBracket {
        let last = self.open.len() - 1;
        &mut self.open[last]
    }

    /// Reads one token or comment, or whitespace.
    fn step(&mut self, source: &str) -> Result<Step, ParseProblem> {
        let bytes = source.as_bytes();
        let start = self.at;
        let Some(&byte) = bytes.get(start) else {
            return Ok(Step::End);
        };
        let next = bytes.get(start + 1).copied().unwrap_or(0);
        match byte {
            b' ' | b'\t' | 0x0b | 0x0c => {
                let is_space = |byte: &&u8| matches!(**byte, b' ' | b'\t' | 0x0b | 0x0c);
                self.at += bytes[start..].iter().take_while(is_space).count();
            }
            b'\n' | b'\r' => {
                self.at += 1;
                self.new_line = true;
            }
            b'/' if next == b'/' => self.at = line_end(source, start),
            b'/' if next == b'*' => {
                let body = &source[start + 2..];
                self.at = body.find("*/").map_or(source.len(), |end| start + end + 4);
                self.new_line |= source[start..self.at].contains(is_line_terminator);
            }
            b'/' => return self.slash(source),
            b'"' | b'\'' => {
                let Some(end) = string_end(bytes, start) else {
                    return Ok(Step::End);
                };
                self.at = end;
                self.end_expression_before_operand();
                self.finish_token(Previous::Operand);
            }
            b'`' => {
                self.inside().only_words = false;
                if !self.template(bytes, start + 1)? {
                    return Ok(Step::End);
                }
            }
            b'0'..=b'9' => self.number(source),
            b'.' if next.is_ascii_digit() => self.number(source),
            b'(' | b'[' | b'{' => self.open_bracket(byte)?,
            b')' | b']' | b'}' => return self.close_bracket(bytes, byte),
            b'\\' if next == b'u' => return Err(ParseProblem::EscapeInName),
            b'\\' => return Err(ParseProblem::Backslash),
            b'#' => {
                let end = word_end(source, start + 1);
                self.word(&source[start..end], end);
            }
            _ if !byte.is_ascii_graphic() || is_identifier_start(byte.into()) => {
                let character = source[start..].chars().next().unwrap_or(' ');
                if is_identifier_start(character) {
                    let end = word_end(source, start);
                    self.word(&source[start..end], end);
                } else if is_irregular_whitespace(character) || is_line_terminator(character) {
                    self.at += character.len_utf8();
                    self.new_line |= is_line_terminator(character);
                } else {
                    // The parser stops at a character that is not part of the language.
                    return Ok(Step::End);
                }
            }
            _ => self.punctuation(source)?,
        }
        self.add_cost(start)?;
        Ok(Step::Token)
    }

    /// Adds the cost of the text since `start`.
    fn add_cost(&mut self, start: usize) -> Result<(), ParseProblem> {
        self.add_units(1 + (self.at - start) / BYTES_PER_COST)
    }

    fn add_units(&mut self, units: usize) -> Result<(), ParseProblem> {
        let inside = self.inside();
        let arrows = 1 + inside.outer_arrow_count + inside.arrow_count;
        let cost = (units as u64).saturating_mul(inside.factor().saturating_mul(arrows));
        self.cost = self.cost.saturating_add(cost);
        match self.cost > MAX_PARSE_COST {
            true => Err(ParseProblem::Ambiguous),
            false => Ok(()),
        }
    }

    fn finish_token(&mut self, previous: Previous) {
        self.previous = previous;
        self.new_line = false;
        self.after_parenthesis = false;
        self.after_control_word = false;
        self.inside().only_words = false;
    }

    /// Two operands in a row belong to different expressions.
    fn end_expression_before_operand(&mut self) {
        if self.previous.ends_operand() {
            self.inside().end_expression();
        }
    }

    fn number(&mut self, source: &str) {
        self.at = number_end(source.as_bytes(), self.at);
        self.end_expression_before_operand();
        self.finish_token(Previous::Operand);
    }

    fn word(&mut self, word: &str, end: usize) {
        self.at = end;
        let is_name = self.previous == Previous::Dot;
        // A reserved word may also be a type's name, after which a slash divides.
        let may_be_type = matches!(
            self.previous,
            Previous::TypePrefix | Previous::Contextual | Previous::TypeOperator | Previous::Affix
        );
        let continues = matches!(
            word,
            "as" | "satisfies"
                | "is"
                | "in"
                | "instanceof"
                | "of"
                | "extends"
                | "implements"
                | "class"
        );
        if !is_name && !continues {
            self.end_expression_before_operand();
        }
        match word {
            "infer" if !is_name => self.inside().infer_count += 1,
            "new" => self.inside().new_count += 1,
            "interface" => self.inside().in_heritage = true,
            _ => {}
        }
        let control = matches!(word, "if" | "for" | "while" | "with")
            || (word == "await" && self.after_control_word);
        let previous = match word {
            _ if is_name => Previous::Operand,
            "return" | "case" | "delete" | "void" | "throw" | "else" | "do" | "instanceof"
                if !may_be_type =>
            {
                Previous::Prefix
            }
            "typeof" | "new" | "in" if !may_be_type => Previous::TypePrefix,
            "return" | "case" | "delete" | "void" | "throw" | "else" | "do" | "instanceof"
            | "typeof" | "new" | "in" | "await" | "yield" | "of" | "as" | "satisfies" | "is"
            | "extends" | "implements" | "default" | "async" | "keyof" | "infer" | "unique"
            | "readonly" | "asserts" | "abstract" | "const" | "out" | "import" | "function"
            | "class" => Previous::Contextual,
            _ => Previous::Operand,
        };
        let only_words = self.inside().only_words;
        self.finish_token(previous);
        self.inside().only_words = only_words;
        self.after_control_word = control && !is_name;
    }

    fn open_bracket(&mut self, byte: u8) -> Result<(), ParseProblem> {
        if self.open.len() > MAX_BRACKET_DEPTH {
            return Err(ParseProblem::Nested);
        }
        let may_start_type = !self.previous.ends_operand();
        let after_control_word = self.after_control_word;
        let around = self.inside();
        // To recognise a function type, the parser reads a pattern after `(` once more.
        let is_type_pattern = around.kind == b'(' && around.may_start_type && around.only_words;
        let pattern_factor = 1 + u64::from(byte != b'(' && is_type_pattern);
        let bracket = OpenBracket {
            kind: byte,
            after_control_word,
            may_start_type,
            only_words: true,
            outer_factor: around.factor().saturating_mul(pattern_factor),
            outer_arrow_count: around.outer_arrow_count
                + around.arrow_count
                + u64::from(byte == b'('),
            ..OpenBracket::whole_text()
        };
        around.in_heritage &= byte != b'{';
        self.finish_token(Previous::Operator);
        self.open.push(bracket);
        self.at += 1;
        Ok(())
    }

    fn close_bracket(&mut self, bytes: &[u8], byte: u8) -> Result<Step, ParseProblem> {
        let start = self.at;
        let expected = match self.inside().kind {
            b'(' => b')',
            b'[' => b']',
            b'{' | b'$' => b'}',
            _ => 0,
        };
        if byte != expected {
            // The parser stops here.
            return Ok(Step::End);
        }
        let Some(closed) = self.open.pop() else {
            return Ok(Step::End);
        };
        self.at += 1;
        match closed.kind {
            b'$' if !self.template(bytes, self.at)? => return Ok(Step::End),
            b'$' => {}
            b'(' if closed.after_control_word => self.finish_token(Previous::ControlEnd),
            b'{' => self.finish_token(Previous::Brace),
            _ => self.finish_token(Previous::Operand),
        }
        self.after_parenthesis = closed.kind == b'(';
        self.add_cost(start)?;
        Ok(Step::Token)
    }

    /// Reads a template literal up to its end or its next substitution. Returns false if it has no
    /// end.
    fn template(&mut self, bytes: &[u8], from: usize) -> Result<bool, ParseProblem> {
        let mut at = from;
        loop {
            match bytes.get(at) {
                None => return Ok(false),
                Some(b'\\') => at += 2,
                Some(b'`') => {
                    self.at = at + 1;
                    break;
                }
                Some(b'$') if bytes.get(at + 1) == Some(&b'{') => {
                    self.at = at + 1;
                    self.open_bracket(b'$')?;
                    return Ok(true);
                }
                Some(_) => at += 1,
            }
        }
        self.finish_token(Previous::Operand);
        Ok(true)
    }

    /// Whether an operand follows the previous token: `!` is an operator, `/` starts a regular
    /// expression.
    fn expects_operand(&self) -> bool {
        matches!(
            self.previous,
            Previous::Start
                | Previous::Prefix
                | Previous::TypePrefix
                | Previous::Operator
                | Previous::TypeOperator
        )
    }

    fn slash(&mut self, source: &str) -> Result<Step, ParseProblem> {
        let start = self.at;
        let divides = matches!(self.previous, Previous::Operand) && !self.new_line;
        let is_regex = self.expects_operand();
        let step = if divides {
            self.finish_operator("/");
            Step::Token
        } else {
            match regex_end(source, start) {
                Some(end) if is_regex => {
                    self.finish_regex(source, end)?;
                    Step::Token
                }
                Some(regex_end) => return Ok(Step::AmbiguousSlash { regex_end }),
                // The parser stops at an unclosed regular expression.
                None if is_regex => Step::End,
                None => {
                    self.finish_operator("/");
                    Step::Token
                }
            }
        };
        self.add_cost(start)?;
        Ok(step)
    }

    /// Finishes a regular expression, of which the parser reads each character as a token.
    fn finish_regex(&mut self, source: &str, end: usize) -> Result<(), ParseProblem> {
        if regex_depth(&source[self.at..end]) > MAX_BRACKET_DEPTH {
            return Err(ParseProblem::Nested);
        }
        let units = end - self.at;
        self.at = end;
        self.finish_token(Previous::Operand);
        self.add_units(units)
    }

    /// Finishes an operator that is not part of a type.
    fn finish_operator(&mut self, operator: &str) {
        self.at += operator.len();
        let inside = self.inside();
        inside.open_angles.clear();
        inside.new_count = 0;
        self.finish_token(Previous::Operator);
    }

    fn punctuation(&mut self, source: &str) -> Result<(), ParseProblem> {
        let rest = &source[self.at..];
        if self.new_line
            && CONFLICT_MARKERS
                .iter()
                .any(|marker| rest.starts_with(marker))
        {
            return Err(ParseProblem::ConflictMarker);
        }
        if self.new_line && rest.starts_with("<!--") {
            return Err(ParseProblem::HtmlComment);
        }
        let operator = &rest[..operator_len(rest.as_bytes())];
        let after_parenthesis = self.after_parenthesis;
        match operator {
            ";" => {
                let inside = self.inside();
                inside.end_expression();
                (inside.infer_count, inside.in_heritage) = (0, false);
                self.finish_operator(operator);
            }
            "," => {
                let inside = self.inside();
                inside.arrow_count = 0;
                // A comma between type arguments does not end the expression.
                if inside.open_angles.is_empty() {
                    inside.new_count = 0;
                }
                self.finish_affix(operator, Previous::TypeOperator);
            }
            // After a type, `?` is a type operator: a slash divides.
            "?" => self.finish_affix(operator, Previous::Affix),
            ":" | "=>" => {
                self.inside().arrow_count += u64::from(operator == "=>" || after_parenthesis);
                self.finish_affix(operator, Previous::TypeOperator);
            }
            "<" | "<<" => {
                let inside = self.inside();
                let attempts = 1 + inside.new_count + u64::from(inside.in_heritage);
                inside
                    .open_angles
                    .extend(operator.bytes().map(|_| attempts));
                inside.arrow_count += 1;
                self.finish_affix(operator, Previous::TypeOperator);
            }
            ">" | ">>" | ">>>" | ">=" | ">>=" | ">>>=" => {
                let closed = operator.trim_end_matches('=').len();
                let open_angles = &mut self.inside().open_angles;
                open_angles.truncate(open_angles.len().saturating_sub(closed));
                self.finish_affix(operator, Previous::Affix);
            }
            "." | "?." => self.finish_affix(operator, Previous::Dot),
            "=" | "|" | "&" | "-" | "..." | "*" | "@" => {
                self.finish_affix(operator, Previous::TypeOperator);
            }
            // `!` before a type is a type operator.
            "!" if self.expects_operand() && self.previous != Previous::TypeOperator => {
                self.finish_affix(operator, Previous::Operator);
            }
            "!" => self.finish_affix(operator, Previous::Affix),
            "++" | "--" => {
                self.finish_operator(operator);
                self.previous = Previous::Affix;
            }
            _ => self.finish_operator(operator),
        }
        Ok(())
    }

    /// Finishes punctuation that may be part of a type.
    fn finish_affix(&mut self, operator: &str, previous: Previous) {
        self.at += operator.len();
        self.finish_token(previous);
    }
}

/// At the start of a line, the parser searches the rest of the text for the other markers.
const CONFLICT_MARKERS: &[&str] = &["<<<<<<<", "=======", ">>>>>>>", "|||||||"];
