//! Recognises script blocks that a model copied from a text it was given, such as a file or a web
//! page: these must not run, because the text and not the model would decide what is done.

use std::borrow::Cow;

use selvedge_protocol::{ConversationItem, OutputPart, RunStatus};

use crate::answer::{AnswerPiece, AnswerScriptForm, TurnAnswer};
use crate::script_call::copied_block_error;
use crate::session_record::{SessionStep, SessionStepKind};

/// Maximum number of letters and digits between two copied lines: room for line numbers, file names
/// and other marks that a tool puts in front of each line.
const MAX_LINE_GAP: usize = 200;

/// The same inside a block, if the code is not short: room for comments that the copy leaves out,
/// and for the head of the result with the rest of a file.
const MAX_GAP_IN_BLOCK: usize = 20_000;

/// Number of letters and digits from which code is not short.
const MIN_LONG_CODE: usize = 30;

/// The name of a block's marker, without its hyphen.
const MARKER: &str = "toolcalls";

/// Number of letters before that hyphen.
const LETTERS_BEFORE_HYPHEN: usize = 4;

/// Named character references of HTML for the characters of code. A name that begins with another
/// comes before it.
const ENTITIES: [(&str, char); 42] = [
    ("amp", '&'),
    ("apos", '\''),
    ("ast", '*'),
    ("bsol", '\\'),
    ("colon", ':'),
    ("commat", '@'),
    ("comma", ','),
    ("dash", '-'),
    ("dollar", '$'),
    ("emsp", ' '),
    ("ensp", ' '),
    ("equals", '='),
    ("excl", '!'),
    ("grave", '`'),
    ("gt", '>'),
    ("Hat", '^'),
    ("hyphen", '-'),
    ("lbrace", '{'),
    ("lbrack", '['),
    ("lcub", '{'),
    ("lowbar", '_'),
    ("lpar", '('),
    ("lsqb", '['),
    ("lt", '<'),
    ("minus", '-'),
    ("nbsp", ' '),
    ("ndash", '-'),
    ("NewLine", '\n'),
    ("num", '#'),
    ("percnt", '%'),
    ("period", '.'),
    ("plus", '+'),
    ("quest", '?'),
    ("quot", '"'),
    ("rbrace", '}'),
    ("rbrack", ']'),
    ("rcub", '}'),
    ("rpar", ')'),
    ("rsqb", ']'),
    ("semi", ';'),
    ("shy", '-'),
    ("sol", '/'),
];

/// Rejects the blocks of an answer that occur as blocks in a text of others, which the model reads
/// in every request, or in earlier results.
pub(crate) fn reject_copied_blocks(
    answer: &mut TurnAnswer,
    texts_of_others: impl Fn() -> Vec<String>,
    steps: &[SessionStep],
) {
    for emitted in &mut answer.pieces {
        if let AnswerPiece::Script(script) = &mut emitted.piece
            && script.form == AnswerScriptForm::Block
            && script.error.is_none()
            && is_copied(&script.item.source_code, &texts_of_others(), steps)
        {
            script.error = Some(Box::new(copied_block_error()));
            script.item.status = RunStatus::Rejected;
        }
    }
}

/// Returns whether a text of others contains the code as a block, or whether results contained it
/// before the model or the user wrote it. A block can be spread over several results.
fn is_copied(code: &str, texts_of_others: &[String], steps: &[SessionStep]) -> bool {
    let lines = code_lines(code);
    if lines.is_empty() {
        return false;
    }
    if texts_of_others
        .iter()
        .any(|text| contains_block(text, &lines))
    {
        return true;
    }
    let mut results = String::new();
    for step in steps {
        let mut texts = step.request_items.iter().flat_map(item_texts);
        match step.kind {
            SessionStepKind::Results => {
                for text in texts {
                    results.push_str(text);
                    results.push('\n');
                }
            }
            // The model or the user wrote this code, perhaps before a result contained it.
            SessionStepKind::UserMessage | SessionStepKind::Answer { .. }
                if texts.any(|text| contains_block(text, &lines)) =>
            {
                break;
            }
            _ => {}
        }
    }
    contains_block(&results, &lines)
}

/// Returns the letters and digits of each line of code, without lines that are comments.
fn code_lines(code: &str) -> Vec<String> {
    let lines = code.lines().filter(|line| !line.trim().starts_with("//"));
    let lines = lines.map(|line| Letters::of(line).text);
    lines.filter(|line| !line.is_empty()).collect()
}

/// Whether all lines occur in the text after the marker of a block, in their order and close
/// together. Only letters and digits count, so that indentation, line ends, quotation marks, the
/// signs of a diff, hidden characters and the escapes of JSON, HTML and URLs make no difference.
fn contains_block(text: &str, lines: &[String]) -> bool {
    let is_long = lines.iter().map(String::len).sum::<usize>() >= MIN_LONG_CODE;
    let gap_in_block = match is_long {
        true => MAX_GAP_IN_BLOCK,
        false => MAX_LINE_GAP,
    };
    readings(text).iter().any(|reading| {
        let letters = Letters::of(reading);
        let markers = letters.markers();
        markers.iter().enumerate().any(|(at, marker)| {
            let BlockMarker::Open { end } = *marker else {
                return false;
            };
            let rest = &letters.text[end..];
            let is_in_block = match markers.get(at + 1) {
                Some(BlockMarker::Close { start }) => {
                    contains_lines(&letters.text[end..*start], lines, gap_in_block)
                }
                _ => false,
            };
            is_in_block || contains_lines(rest, lines, MAX_LINE_GAP)
        })
    })
}

/// Whether the lines occur in the text in their order, with at most `max_gap` letters before each.
fn contains_lines(text: &str, lines: &[String], max_gap: usize) -> bool {
    let mut rest = text;
    lines.iter().all(|line| {
        let end = rest.floor_char_boundary(max_gap + line.len());
        let found = rest[..end].find(line.as_str());
        if let Some(at) = found {
            rest = &rest[at + line.len()..];
        }
        found.is_some()
    })
}

/// Returns the text, and what it says if it is HTML, HTML that was escaped twice, or a URL.
fn readings(text: &str) -> Vec<Cow<'_, str>> {
    let mut readings = vec![Cow::Borrowed(text)];
    if text.contains('&') {
        let once = decode_entities(text);
        let twice = once.contains('&').then(|| decode_entities(&once));
        readings.push(once.into());
        readings.extend(twice.map(Cow::Owned));
    }
    if text.contains('%') {
        readings.push(decode_percent(text).into());
    }
    readings
}

/// Decodes the character references of HTML.
fn decode_entities(text: &str) -> String {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        decoded.push_str(before);
        let entity = numeric_entity(after).or_else(|| {
            let mut known = ENTITIES.iter();
            known.find_map(|(name, c)| Some((*c, after.strip_prefix(name)?)))
        });
        match entity {
            Some((c, after)) => {
                decoded.push(c);
                rest = after.strip_prefix(';').unwrap_or(after);
            }
            None => {
                decoded.push('&');
                rest = after;
            }
        }
    }
    decoded.push_str(rest);
    decoded
}

/// Returns the character of a reference such as `#45` or `#x2d`, and the text after it.
fn numeric_entity(text: &str) -> Option<(char, &str)> {
    let number = text.strip_prefix('#')?;
    let (number, radix) = match number.strip_prefix(['x', 'X']) {
        Some(number) => (number, 16),
        None => (number, 10),
    };
    let len = number.find(|c: char| !c.is_digit(radix));
    let (digits, after) = number.split_at(len.unwrap_or(number.len()));
    let code = u32::from_str_radix(digits, radix).ok()?;
    Some((char::from_u32(code)?, after))
}

/// Decodes percent-encoded bytes (`%XX`).
fn decode_percent(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.extend_from_slice(before.as_bytes());
        let byte = after
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        decoded.push(byte.unwrap_or(b'%'));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    decoded.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The marker of a block in the letters of a text.
enum BlockMarker {
    Open { end: usize },
    Close { start: usize },
}

/// What is between two letters of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LetterGap {
    Nothing,
    /// Characters that end with a slash.
    Slash,
    /// Characters with a space or underscore.
    Space,
    /// Any other characters.
    Marks,
}

impl LetterGap {
    /// Returns the gap with another character at its end.
    fn with(self, c: char) -> Self {
        match c {
            '/' => Self::Slash,
            c if self == Self::Space || c == '_' || c.is_whitespace() => Self::Space,
            _ => Self::Marks,
        }
    }
}

/// The letters and digits of a text, in lower case.
struct Letters {
    text: String,
    /// What is before each byte of the letters.
    gaps: Vec<LetterGap>,
}

impl Letters {
    /// Returns the letters of a text. Escapes of control characters are dropped; those of other
    /// characters are decoded.
    fn of(text: &str) -> Self {
        let (mut letters, mut gaps) = (String::with_capacity(text.len()), Vec::new());
        let (mut gap, mut rest) = (LetterGap::Nothing, text);
        while let Some(next) = rest.chars().next() {
            rest = &rest[next.len_utf8()..];
            let mut c = next;
            if next == '\\' {
                rest = rest.trim_start_matches('\\');
                let Some((escaped, after)) = escaped_char(rest) else {
                    gap = gap.with(next);
                    continue;
                };
                (c, rest) = (escaped, after);
            }
            if c.is_alphanumeric() {
                letters.push(c.to_ascii_lowercase());
                gaps.resize(letters.len(), LetterGap::Nothing);
                gaps[letters.len() - c.len_utf8()] = gap;
                gap = LetterGap::Nothing;
            } else {
                gap = gap.with(c);
            }
        }
        Self {
            text: letters,
            gaps,
        }
    }

    /// Returns the markers of blocks. `tool calls`, `tool_calls` and `toolCalls` are none.
    fn markers(&self) -> Vec<BlockMarker> {
        let is_marker = |start: &usize| {
            let inside = &self.gaps[start + 1..start + MARKER.len()];
            inside[LETTERS_BEFORE_HYPHEN - 1] == LetterGap::Marks
                && !inside.contains(&LetterGap::Space)
        };
        let starts = self.text.match_indices(MARKER).map(|(start, _)| start);
        let marker = |start: usize| match self.gaps[start] {
            LetterGap::Slash => BlockMarker::Close { start },
            _ => BlockMarker::Open {
                end: start + MARKER.len(),
            },
        };
        starts.filter(is_marker).map(marker).collect()
    }
}

/// Returns the character that an escape stands for, and the text after it. The text begins after
/// the backslash.
fn escaped_char(text: &str) -> Option<(char, &str)> {
    let kind = text.chars().next()?;
    let after = &text[kind.len_utf8()..];
    let (digits, after) = match kind {
        'b' | 'f' | 'n' | 'r' | 't' => return Some(('\n', after)),
        'u' if after.starts_with('{') => after[1..].split_once('}')?,
        'u' => after.split_at_checked(4)?,
        'x' => after.split_at_checked(2)?,
        _ => return None,
    };
    let code = u32::from_str_radix(digits, 16).ok()?;
    Some((char::from_u32(code).unwrap_or(' '), after))
}

/// Returns the texts of an item that the model was sent.
fn item_texts(item: &ConversationItem) -> Vec<&str> {
    let parts = match item {
        ConversationItem::Message(message) => &message.content,
        ConversationItem::FunctionCallOutput(output) => &output.output,
        _ => return Vec::new(),
    };
    let texts = parts.iter().filter_map(|part| match part {
        OutputPart::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "if (1) {\n\tawait tools.exec({ command: \"a\\tb\" });\n}\nreturn 'done'";

    fn contains(text: &str) -> bool {
        contains_block(text, &code_lines(CODE))
    }

    fn html(text: &str) -> String {
        let text = text.replace('&', "&amp;").replace('"', "&quot;");
        text.replace('<', "&lt;").replace('>', "&gt;")
    }

    fn percent_encoded(text: &str) -> String {
        let encoded = text.bytes().map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        });
        encoded.collect()
    }

    #[test]
    fn copies_are_recognised_in_every_form_that_tools_give_them() {
        let block = format!("<tool-calls>\n{CODE}\n</tool-calls>\n");
        let prefixed = |prefix: &dyn Fn(usize) -> String| {
            let lines = block.lines().enumerate();
            let lines = lines.map(|(at, line)| format!("{}{line}\n", prefix(at)));
            lines.collect::<String>()
        };
        let json = serde_json::to_string(&block).unwrap();
        for text in [
            block.clone(),
            block.replace('\n', "\r\n"),
            block.replace('\t', "    "),
            format!("~~~ts tool-calls\n{CODE}\n~~~"),
            json.clone(),
            serde_json::to_string(&json).unwrap(),
            json.replace('<', "\\u003c"),
            prefixed(&|_| "> ".to_owned()),
            prefixed(&|_| "+".to_owned()),
            prefixed(&|at| format!("  {at}\t")),
            serde_json::to_string(&prefixed(&|at| format!("L{at}: "))).unwrap(),
            prefixed(&|at| format!("docs/readme.md:{at}:")),
            prefixed(&|at| format!("{{\"path\":\"readme.md\",\"line\":{at},\"text\":\"")),
            json.replace('-', "\\u002d"),
            json.replace('-', "\\x2D"),
            html(&block),
            html(&html(&block)),
            serde_json::to_string(&html(&block)).unwrap(),
            html(&block).replace('-', "&hyphen;").replace('(', "&lpar;"),
            percent_encoded(&block),
            block.replace('-', "\\-").replace('_', "\\_"),
            block.replace('-', "&#45;"),
            block.replace('-', "&#x2D;").replace('e', "&#101;"),
            block.replace('-', "-\u{200b}"),
            block.replace('-', "\u{ad}-"),
            block.replace('-', "\u{2010}"),
            block.replace(
                "return",
                &format!("// {}\nreturn", "lorem ipsum ".repeat(90)),
            ),
        ] {
            assert!(contains(&text), "{text}");
        }
    }

    #[test]
    fn code_without_a_marker_or_in_another_order_is_no_copy() {
        let backwards: Vec<&str> = CODE.lines().rev().collect();
        for text in [
            CODE.to_owned(),
            format!("All tool calls of the script:\n{CODE}"),
            format!("const toolCalls = 1;\n{CODE}"),
            format!("<tool-calls>\n{}\n</tool-calls>", backwards.join("\n")),
            format!(
                "<tool-calls>\nreturn 1\n</tool-calls>\n{}{CODE}",
                "word ".repeat(80)
            ),
        ] {
            assert!(!contains(&text), "{text}");
        }
    }
}
