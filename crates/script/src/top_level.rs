//! Decides whether a line of an answer is at the top level of the Markdown document before it.
//!
//! A line is at the top level if no construct before it is open: no fence, block quote or HTML
//! block, no HTML element whose tag begins or ends a line, no formula or directive. Inside the
//! paragraph above, no code span, tag or link title may be open either, because a later line could
//! close it. A line directly below a list is at the top level, although Markdown adds it to the
//! last item: models write a plan as a list and then a block.

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// Maximum length of the paragraph above a line, in bytes. It is parsed several times.
const MAX_PARAGRAPH_BYTES: usize = 16 << 10;

/// Maximum number of different lengths of backtick runs in that paragraph.
const MAX_RUN_LENGTHS: usize = 8;

/// Ends of constructs inside a paragraph that can contain line breaks: tags, comments,
/// declarations, destinations and titles of links.
const INLINE_ENDS: [&str; 11] = [
    "-->", "\">", "'>", ">", "?>", "]]>", "\")", "')", ")", "\"", "'",
];

/// Maximum number of elements that are open at the same place.
const MAX_OPEN_ELEMENTS: usize = 1_000;

/// The line that is probed. Markdown keeps it as it is.
const PROBE: &str = "PROBE";

/// The same as an element. Like `<tool-calls>`, it cannot interrupt a paragraph.
const PROBE_ELEMENT: &str = "<probe-element>";

/// Elements in which models reason. They count as open wherever their tag is in a line.
const REASONING_ELEMENTS: [&str; 5] = ["antthinking", "reasoning", "think", "thinking", "thought"];

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

/// What begins in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineContent {
    Script,
    /// Reasoning begins or ends. Directly below a block quote it is still at the top level: it must
    /// not be missed, because a block in it would run.
    Reasoning,
}

/// Returns whether a line after this text is at the top level.
pub(crate) fn is_top_level_after(before: &str, content: LineContent) -> bool {
    is_outside_of_blocks(before, content) && is_outside_of_inlines(paragraph_above(before))
}

/// Returns whether a character can be part of the mark of a list item.
fn is_list_mark(c: char) -> bool {
    c.is_ascii_digit() || " \t-*+.)".contains(c)
}

/// Returns whether no block, HTML element, formula or directive contains a line after the text.
fn is_outside_of_blocks(before: &str, content: LineContent) -> bool {
    let probe = format!("{before}{PROBE_ELEMENT}\n");
    let above = before.len() - paragraph_above(before).len();
    let (mut depth, mut quotes, mut html) = (0, 0, String::new());
    let mut is_heading = false;
    let mut elements = OpenElements::default();
    let mut marks = OpenMarks::default();
    for (event, range) in Parser::new(&probe).into_offset_iter() {
        let is_probe = range.start == before.len();
        // A list item or block quote ends at a blank line, and with it what is open in it.
        let is_relevant = depth <= 1 || range.start >= above;
        match event {
            Event::Start(Tag::HtmlBlock) if is_probe => {
                return depth == 0 && elements.is_empty() && marks.is_empty();
            }
            Event::InlineHtml(_) if is_probe => {
                let is_quoted = quotes > 0 && content == LineContent::Script;
                return !is_quoted && elements.is_empty() && marks.is_empty();
            }
            Event::Start(tag) => {
                depth += 1;
                quotes += usize::from(matches!(tag, Tag::BlockQuote(_)));
                is_heading |= matches!(tag, Tag::Heading { .. });
                html.clear();
            }
            Event::End(tag) => {
                depth -= 1;
                quotes -= usize::from(matches!(tag, TagEnd::BlockQuote(_)));
                is_heading &= !matches!(tag, TagEnd::Heading(_));
                let after = before.get(range.end..).unwrap_or_default();
                let is_above = above < before.len() && after.trim().is_empty();
                let is_open = match tag {
                    TagEnd::BlockQuote(_) => content == LineContent::Script,
                    TagEnd::CodeBlock => is_open_fence(&probe[range.clone()]),
                    _ => false,
                };
                if is_above && is_open {
                    return false;
                }
                if tag == TagEnd::HtmlBlock {
                    elements.read(&html, depth == 0 || range.start >= above);
                }
            }
            Event::Html(text) => html.push_str(&text),
            Event::InlineHtml(tag) => {
                let delimits_line = begins_line(&probe[..range.start])
                    || ends_line(&probe[..range.start], &probe[range.end..]);
                elements.read(&tag, is_relevant && delimits_line && !is_heading);
            }
            Event::Text(_) if depth == 1 && is_line_start(&probe[..range.start]) => {
                let line = probe[range.start..].lines().next();
                marks.read(line.unwrap_or_default().trim());
            }
            _ => {}
        }
    }
    false
}

/// Returns whether a fenced code block has no end: it ended with the list item that contains it.
fn is_open_fence(block: &str) -> bool {
    let mut lines = block.trim_end().lines();
    let first = lines.next().unwrap_or_default();
    let last = lines.next_back().unwrap_or_default().trim();
    ["```", "~~~"]
        .iter()
        .any(|fence| first.starts_with(fence) && !last.starts_with(fence))
}

fn is_line_start(before: &str) -> bool {
    before.is_empty() || before.ends_with('\n')
}

/// Returns whether only marks of lists and block quotes are between the start of the line and the
/// end of the text.
fn begins_line(before: &str) -> bool {
    is_line_start(before.trim_end_matches(|c| c == '>' || is_list_mark(c)))
}

/// Returns whether a tag between these texts is a word of its own at the end of a line.
fn ends_line(before: &str, after: &str) -> bool {
    let after = after.trim_start_matches([' ', '\t', '\r']);
    before.ends_with([' ', '\t']) && (after.is_empty() || after.starts_with('\n'))
}

/// The HTML elements that are open at a place of a document.
#[derive(Default)]
struct OpenElements {
    /// The names, and whether the element may contain the lines after it. A tag in the middle of a
    /// line can be a type, such as `Array<string>`, or the subject of a sentence.
    open: Vec<(String, bool)>,
}

impl OpenElements {
    fn is_empty(&self) -> bool {
        let contains = |(name, contains_lines): &(String, bool)| {
            *contains_lines || REASONING_ELEMENTS.contains(&name.as_str())
        };
        self.open.len() < MAX_OPEN_ELEMENTS && !self.open.iter().any(contains)
    }

    /// Reads the tags of HTML text. An end tag also closes the elements inside of its own; one
    /// without a start is ignored.
    fn read(&mut self, html: &str, contains_lines: bool) {
        let mut rest = html;
        while let Some((_, after)) = rest.split_once('<') {
            rest = after;
            if let Some(comment) = after.strip_prefix("!--") {
                rest = comment.split_once("-->").map_or("", |(_, rest)| rest);
                continue;
            }
            let (is_end, name) = match after.strip_prefix('/') {
                Some(name) => (true, name),
                None => (false, after),
            };
            let is_letter = |c: char| c.is_ascii_alphanumeric() || "-_:.".contains(c);
            let name = &name[..name.find(|c: char| !is_letter(c)).unwrap_or(name.len())];
            if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                continue;
            }
            let name = name.to_ascii_lowercase();
            rest = after_tag(after);
            if is_end {
                if let Some(at) = self.open.iter().rposition(|(open, _)| *open == name) {
                    self.open.truncate(at);
                }
            } else if !ELEMENTS_WITHOUT_END.contains(&name.as_str())
                && self.open.len() < MAX_OPEN_ELEMENTS
            {
                self.open.push((name, contains_lines));
            }
        }
    }
}

/// The formulas (`$$`) and directives (`:::name`) that are open at a place of a document. Many
/// renderers know them; the parser does not.
#[derive(Default)]
struct OpenMarks {
    is_formula: bool,
    directives: usize,
}

impl OpenMarks {
    fn is_empty(&self) -> bool {
        !self.is_formula && self.directives == 0
    }

    /// Reads a line of a paragraph.
    fn read(&mut self, line: &str) {
        if line == "$$" {
            self.is_formula = !self.is_formula;
        } else if let Some(name) = line.strip_prefix(":::") {
            match name.trim_start_matches(':').is_empty() {
                true => self.directives = self.directives.saturating_sub(1),
                false => self.directives += 1,
            }
        }
    }
}

/// Returns the text after the end of a tag. Quoted values of attributes can contain `>`.
fn after_tag(tag: &str) -> &str {
    let mut quote = None;
    for (at, c) in tag.char_indices() {
        match (c, quote) {
            ('>', None) => return &tag[at + 1..],
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            _ => {}
        }
    }
    ""
}

/// Returns the lines since the last blank one.
fn paragraph_above(before: &str) -> &str {
    let mut start = before.len();
    for line in before.split_inclusive('\n').rev() {
        if line.trim().is_empty() {
            break;
        }
        start -= line.len();
    }
    &before[start..]
}

/// Returns whether a line after the paragraph is text, whatever follows it.
fn is_outside_of_inlines(paragraph: &str) -> bool {
    if paragraph.is_empty() {
        return true;
    }
    let mut runs: Vec<&str> = paragraph
        .split(|c: char| c != '`')
        .filter(|run| !run.is_empty())
        .collect();
    runs.sort_unstable();
    runs.dedup();
    if paragraph.len() > MAX_PARAGRAPH_BYTES || runs.len() > MAX_RUN_LENGTHS {
        return false;
    }
    let is_text_before = |end: &&str| {
        let probe = format!("{paragraph}{PROBE}\n{end}\n");
        Parser::new(&probe).any(|event| matches!(event, Event::Text(text) if &*text == PROBE))
    };
    runs.iter().chain(&INLINE_ENDS).all(is_text_before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_after_closed_text_is_at_the_top_level() {
        for before in [
            "Let me look:\n",
            "Uses `a` and ``b`` here:\n",
            "Uses `a\nb` here:\n",
            "An `unpaired tick in another paragraph.\n\n",
            "# A heading with a `tick\n",
            "## The element <header>\n",
            "An Array<string> and 1 <2 and (see above:\n",
            "it's \"quoted\" and a -> b:\n",
            "[a link](x \"title\") and <b>bold</b>:\n",
            "<details>\n<summary>a</summary>\n\nb\n\n</details>\n\n",
            "<br>\n\n",
            "<p align=center>\n\n",
            "<div><ul><li>a</ul></div>\n\n",
            "<div title=\"</div>\">a</div>\n\n",
            "</div>\n\n",
            "<!-- <div> -->\n\n",
            "The <div> tag is wrong.\n\n",
            "Returns Array<string>\n",
            "<b>Note</b> that this changes:\n",
            "It says:\n<file>\na\n</file>\n",
            "It says: <file>\na </file> and more:\n",
            "- a\n- <file>\n\nDone:\n",
            "1. I read the file.\n2. I change it:\n",
            "-> a\n",
            "5 > 3\n",
            "> a\n\n",
            "- ```\n  a\n  ```\n",
            "```\na\n```\n",
            "- ```\n\na:\n",
            "- a\n- b\n\nDone:\n\n",
        ] {
            assert!(
                is_top_level_after(before, LineContent::Script),
                "{before:?}"
            );
        }
    }

    #[test]
    fn a_line_after_open_text_is_not_at_the_top_level() {
        for before in [
            "Uses `\n",
            "Uses ``a ` b\n",
            "Uses `a` and `b\nc\n",
            "<a title=\"\n",
            "see <a title='x\n",
            "see <!-- a\n",
            "see <? a\n",
            "see <![CDATA[ a\n",
            "[a](<x> \"\n",
            "[a](x '\n",
            "[a]: x \"\n",
            "<details>\n\n",
            "<details>\n<summary>a</summary>\n\nb\n\n",
            "<DIV>\n\n",
            "<x-box>\n\n",
            "<table><tr><td>\n\n",
            "<div><div></div>\n\n",
            "<div title=\"</div>\">\n\n",
            "<div/>\n\n",
            "- a\n\n  b\n  ```\n",
            "```\n",
            "<div>\n\nsee <div>a</div> there:\n",
            "a\n<file>\n",
            "a: <file>\n\nb\n",
            "> a\n",
            "> ```\n",
            "- > ~~~\n",
            "- ```\n",
            "1. ~~~md\n   a\n",
            "a <think> b\n",
        ] {
            assert!(
                !is_top_level_after(before, LineContent::Script),
                "{before:?}"
            );
        }
    }
}
