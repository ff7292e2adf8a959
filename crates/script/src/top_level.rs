//! Decides whether a line of an answer is at the top level of the Markdown document before it.
//!
//! A line is at the top level if no construct before it is open: no fence, list, block quote or
//! HTML block, and no unclosed HTML element that began a line. Inside the paragraph above, no code
//! span, tag or link title may be open either, because a later line could close it.

use pulldown_cmark::{Event, Parser, Tag};

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

/// Elements of HTML that have no content, and paragraphs, which a blank line closes.
const ELEMENTS_WITHOUT_END: [&str; 15] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "p", "param",
    "source", "track", "wbr",
];

/// Returns whether a line after this text is at the top level.
pub(crate) fn is_top_level_after(before: &str) -> bool {
    is_outside_of_blocks(before) && is_outside_of_inlines(paragraph_above(before))
}

/// Returns whether no block and no HTML element contains a line after the text. A block-level HTML
/// element there is a child of the document only if nothing contains it.
fn is_outside_of_blocks(before: &str) -> bool {
    let probe = format!("{before}<div>\n");
    let mut depth = 0;
    let mut html = String::new();
    for (event, range) in Parser::new(&probe).into_offset_iter() {
        match event {
            Event::Start(Tag::HtmlBlock) if depth == 0 && range.start == before.len() => {
                return open_elements(&html) == 0;
            }
            Event::Start(_) => depth += 1,
            Event::End(_) => depth -= 1,
            Event::Html(text) if depth == 1 => html.push_str(&text),
            _ => {}
        }
    }
    false
}

/// Returns the number of elements that are open at the end of HTML text. An end tag also closes
/// the elements inside of its own; one without a start is ignored.
fn open_elements(html: &str) -> usize {
    let mut open: Vec<String> = Vec::new();
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
            if let Some(at) = open.iter().rposition(|open| *open == name) {
                open.truncate(at);
            }
        } else if !ELEMENTS_WITHOUT_END.contains(&name.as_str()) {
            open.push(name);
        }
    }
    open.len()
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
            "- a\n- b\n\nDone:\n\n",
        ] {
            assert!(is_top_level_after(before), "{before:?}");
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
        ] {
            assert!(!is_top_level_after(before), "{before:?}");
        }
    }
}
