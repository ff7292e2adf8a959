//! Decides whether a line of an answer is at the top level of the Markdown document before it.
//!
//! A line is at the top level if no construct before it is open: no fence, block quote or HTML
//! block, no tag (`open_tags`), no formula or directive. Inside the paragraph above, no code span,
//! tag or link title may be open either, because a later line could close it. A line directly below
//! a list is at the top level, although Markdown adds it to the last item: models write a plan as a
//! list and then a block.

use std::ops::Range;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use crate::open_tags::{OpenTags, mask, open_tags};
use crate::reasoning_marks::has_open_reasoning;

/// Maximum length of the paragraph above a line, in bytes. It is parsed several times.
const MAX_PARAGRAPH_BYTES: usize = 16 << 10;

/// Maximum number of different lengths of backtick runs in that paragraph.
const MAX_RUN_LENGTHS: usize = 8;

/// Ends of constructs inside a paragraph that can contain line breaks: tags, comments,
/// declarations, destinations and titles of links.
const INLINE_ENDS: [&str; 11] = [
    "-->", "\">", "'>", ">", "?>", "]]>", "\")", "')", ")", "\"", "'",
];

/// The line that is probed. Markdown keeps it as it is.
const PROBE: &str = "PROBE";

/// The same as an element. Like `<tool-calls>`, it cannot interrupt a paragraph.
const PROBE_ELEMENT: &str = "<probe-element>";

/// What begins in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineContent {
    Script,
    /// Reasoning begins or ends. Directly below a block quote it is still at the top level: it must
    /// not be missed, because a block in it would run.
    Reasoning,
}

/// Where a line is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinePlace {
    TopLevel,
    /// Inside of another construct.
    Quoted,
    /// Perhaps inside of a tag of this name, which is in the middle of a line and has no end tag.
    Unclear(String),
}

/// Returns the place of a line after this text.
pub(crate) fn place_after(before: &str, content: LineContent) -> LinePlace {
    let mut code = Vec::new();
    if !is_outside_of_blocks(before, content, &mut code)
        || !is_outside_of_inlines(paragraph_above(before))
    {
        return LinePlace::Quoted;
    }
    code.sort_unstable_by_key(|range| range.start);
    match open_tags(before, &code) {
        OpenTags::Quotation => LinePlace::Quoted,
        _ if has_open_reasoning(&mask(before, &code)) => LinePlace::Quoted,
        OpenTags::InLine(name) if content == LineContent::Script => LinePlace::Unclear(name),
        OpenTags::InLine(_) | OpenTags::None => LinePlace::TopLevel,
    }
}

/// Returns whether no block, formula or directive contains a line after the text. Adds the parts of
/// the text whose tags do not count: code, and lists and block quotes that have ended.
fn is_outside_of_blocks(before: &str, content: LineContent, code: &mut Vec<Range<usize>>) -> bool {
    let probe = format!("{before}{PROBE_ELEMENT}\n");
    let above = before.len() - paragraph_above(before).len();
    let (mut depth, mut quotes) = (0, 0);
    let mut marks = OpenMarks::default();
    for (event, range) in Parser::new(&probe).into_offset_iter() {
        let is_probe = range.start == before.len();
        match event {
            Event::Start(Tag::HtmlBlock) if is_probe => {
                return depth == 0 && marks.is_empty();
            }
            Event::InlineHtml(_) if is_probe => {
                let is_quoted = quotes > 0 && content == LineContent::Script;
                return !is_quoted && marks.is_empty();
            }
            Event::Start(tag) => {
                let is_container = matches!(tag, Tag::List(_) | Tag::BlockQuote(_));
                if is_container && depth == 0 {
                    // It ends at a blank line, and with it what is open in it.
                    code.push(range.start..range.end.min(above));
                }
                depth += 1;
                quotes += usize::from(matches!(tag, Tag::BlockQuote(_)));
            }
            Event::End(tag) => {
                depth -= 1;
                quotes -= usize::from(matches!(tag, TagEnd::BlockQuote(_)));
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
                if tag == TagEnd::CodeBlock {
                    code.push(range);
                }
            }
            Event::Code(_) => code.push(range),
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
            let place = place_after(before, LineContent::Script);
            assert_eq!(place, LinePlace::TopLevel, "{before:?}");
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
            let place = place_after(before, LineContent::Script);
            assert_eq!(place, LinePlace::Quoted, "{before:?}");
        }
    }
}
