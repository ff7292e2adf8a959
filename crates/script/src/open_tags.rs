//! Finds tags without an end tag in the text before a block: the block may belong to a quotation
//! that they delimit.
//!
//! Models put quotations into tags of any name, most of which are no HTML (`<file_content>`), and
//! escape them in Markdown or HTML. The parser of Markdown sees these as text, so this module reads
//! the text itself.

use std::ops::Range;

/// Elements of HTML that have no content, paragraphs, which a blank line closes, and the marker of
/// a block, whose end is reported if it has no start at column 0.
const ELEMENTS_WITHOUT_END: [&str; 16] = [
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "p",
    "param",
    "source",
    "tool-calls",
    "track",
    "wbr",
];

/// Characters that look like the brackets of a tag.
const BRACKETS: [(char, char); 8] = [
    ('＜', '<'),
    ('＞', '>'),
    ('‹', '<'),
    ('›', '>'),
    ('⟨', '<'),
    ('⟩', '>'),
    ('〈', '<'),
    ('〉', '>'),
];

/// Maximum length of a tag, in bytes.
const MAX_TAG_BYTES: usize = 1_000;

/// Maximum number of tags that are open at the same place.
const MAX_OPEN_TAGS: usize = 1_000;

/// What the tags before a block say about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpenTags {
    /// Every tag has its end tag.
    None,
    /// A tag that begins or ends a line has no end tag.
    Quotation,
    /// Only tags inside of a line have no end tag. This is the name of the first.
    InLine(String),
}

/// Finds the open tags of a text. Tags in the ranges `code` do not count.
pub(crate) fn open_tags(text: &str, code: &[Range<usize>]) -> OpenTags {
    let text = decode_brackets(&mask(text, code));
    let mut open: Vec<(String, bool)> = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find('<').map(|found| at + found) {
        at = start + 1;
        if text[start..].starts_with("<!--") {
            let end = text[start..].find("-->");
            at = end.map_or(text.len(), |end| start + end);
            continue;
        }
        let Some(tag) = Tag::at(&text[start..]) else {
            continue;
        };
        at = start + tag.len;
        let line_start = text[..start].rfind('\n').map_or(0, |end| end + 1);
        let (before, after) = (&text[line_start..start], &text[at..]);
        let is_blank = |text: &str| !text.contains(char::is_alphabetic);
        let begins_line = is_blank(before);
        let ends_line = is_blank(after.lines().next().unwrap_or_default());
        let is_type = before.ends_with(char::is_alphanumeric) || before.ends_with("::");
        let is_heading = before.trim_start().starts_with('#');
        let name = tag.name.to_lowercase();
        if tag.is_end {
            if let Some(index) = open.iter().rposition(|(open, _)| *open == name) {
                open.truncate(index);
            }
        } else if is_type
            || (tag.has_space && !(begins_line && ends_line))
            || ELEMENTS_WITHOUT_END.contains(&name.as_str())
        {
            continue;
        } else if open.len() == MAX_OPEN_TAGS {
            return OpenTags::Quotation;
        } else {
            open.push((name, begins_line || (ends_line && !is_heading)));
        }
    }
    match open.iter().any(|(_, delimits_line)| *delimits_line) {
        true => OpenTags::Quotation,
        false => open
            .into_iter()
            .next()
            .map_or(OpenTags::None, |(name, _)| OpenTags::InLine(name)),
    }
}

/// A tag at the start of a text.
struct Tag<'a> {
    name: &'a str,
    is_end: bool,
    /// Whether a space follows the bracket, as in `a < b`.
    has_space: bool,
    len: usize,
}

impl<'a> Tag<'a> {
    /// Reads a tag. A quoted value without an end is part of the tag; without a closing bracket
    /// there is no tag.
    fn at(text: &'a str) -> Option<Self> {
        let spaces = |c: char| c == ' ' || c == '\t';
        let inside = text.strip_prefix('<')?;
        let trimmed = inside.trim_start_matches(spaces);
        let name = trimmed
            .strip_prefix('/')
            .map(|rest| rest.trim_start_matches(spaces));
        let (is_end, name) = (name.is_some(), name.unwrap_or(trimmed));
        let in_name = |c: char| c.is_alphanumeric() || "_:.-".contains(c);
        let len = name.find(|c: char| !in_name(c)).unwrap_or(name.len());
        let (name, rest) = name.split_at(len);
        if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return None;
        }
        if !(rest.starts_with(['>', ' ', '\t', '\r', '\n']) || rest.starts_with("/>")) {
            return None;
        }
        let len = text.len() - rest.len() + attributes_len(rest)?;
        Some(Self {
            name,
            is_end,
            has_space: trimmed.len() < inside.len(),
            len,
        })
    }
}

/// Returns the length of a tag's rest after its name, with the closing bracket; `None` if it has
/// none.
fn attributes_len(rest: &str) -> Option<usize> {
    let (mut quote, mut previous, mut is_blank_line) = (None, ' ', false);
    for (at, c) in rest.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            // The value has no end.
            Some(_) if at > MAX_TAG_BYTES => return Some(at),
            Some(_) => {}
            None if c == '>' => return Some(at + 1),
            None if c == '<' || at > MAX_TAG_BYTES || (c == '\n' && is_blank_line) => return None,
            None if previous == '=' && (c == '"' || c == '\'') => quote = Some(c),
            None => {}
        }
        is_blank_line = c == '\n' || (is_blank_line && c.is_whitespace());
        if !c.is_whitespace() {
            previous = c;
        }
    }
    quote.map(|_| rest.len())
}

/// Replaces everything in the ranges except line breaks by a letter.
pub(crate) fn mask(text: &str, ranges: &[Range<usize>]) -> String {
    let (mut masked, mut end) = (String::with_capacity(text.len()), 0);
    for range in ranges {
        let range = range.start.max(end)..range.end.min(text.len());
        if range.is_empty() {
            continue;
        }
        masked.push_str(&text[end..range.start]);
        let hidden = text[range.clone()].chars();
        masked.extend(hidden.map(|c| if c == '\n' { c } else { 'x' }));
        end = range.end;
    }
    masked.push_str(&text[end..]);
    masked
}

/// Replaces the notations of `<` and `>` in HTML and Markdown, and characters that look like them.
fn decode_brackets(text: &str) -> String {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let bracket = match c {
            '&' => bracket_reference(rest),
            '\\' if rest.starts_with(['<', '>']) => Some(rest.split_at(1)),
            _ => None,
        };
        match bracket {
            Some((bracket, after)) => {
                decoded.push_str(bracket);
                rest = after;
            }
            None => {
                let known = BRACKETS.iter().find(|(other, _)| *other == c);
                decoded.push(known.map_or(c, |(_, bracket)| *bracket));
            }
        }
    }
    decoded
}

/// Returns the bracket that a character reference after `&` stands for, and the text after it.
/// References can be escaped again: `&amp;lt;`.
fn bracket_reference(after: &str) -> Option<(&'static str, &str)> {
    let mut name = after;
    while let Some(rest) = name.strip_prefix("amp;") {
        name = rest;
    }
    let len = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '#');
    let (name, rest) = name.split_at(len.unwrap_or(name.len()));
    let number = |digits: &str| match digits.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    };
    let code = name.strip_prefix('#').and_then(number);
    let bracket = match code.and_then(char::from_u32) {
        Some('<') => "<",
        Some('>') => ">",
        _ if name.eq_ignore_ascii_case("lt") => "<",
        _ if name.eq_ignore_ascii_case("gt") => ">",
        _ => return None,
    };
    Some((bracket, rest.strip_prefix(';').unwrap_or(rest)))
}
