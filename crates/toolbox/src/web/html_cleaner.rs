//! Cleans HTML before it is parsed: removes scripts, forms and other elements without readable
//! text.
//!
//! HTML parsers repair broken markup, so a few megabytes of unclosed tags can become gigabytes of
//! tree or hours of work. The cleaner only tokenizes, and bounds the depth, the number of tags and
//! the number of open formatting elements in its output. The tokenizer compares each attribute of a
//! tag with all others, so the cleaner also bounds how often, and can be cancelled.

use std::cell::RefCell;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{
    BufferQueue, CharacterTokens, Tag, TagKind, TagToken, Token, TokenSink, TokenSinkResult,
    Tokenizer, TokenizerOpts,
};
use tokio_util::sync::CancellationToken;

/// Maximum nesting depth. Browsers stop at 512.
const MAX_DEPTH: usize = 128;
/// Maximum number of open formatting elements.
const MAX_OPEN_FORMATTING: usize = 8;
/// Maximum number of tags. A page of one megabyte has about 20,000.
const MAX_TAGS: usize = 60_000;
/// Attributes with longer values, in bytes, are dropped.
const MAX_ATTRIBUTE_BYTES: usize = 2048;

/// Bytes that are tokenized between two checks.
const CHUNK_BYTES: usize = 4096;
/// Maximum number of comparisons of attributes in tags that are longer than a chunk. One tag with
/// 20,000 attributes takes as many.
const MAX_COMPARISONS: usize = 200_000_000;

/// Elements that are removed with their content.
const DROPPED_ELEMENTS: &[&str] = &[
    "script",
    "style",
    "svg",
    "math",
    "template",
    "iframe",
    "object",
    "embed",
    "canvas",
    "audio",
    "video",
    "select",
    "textarea",
    "noframes",
    "noembed",
    "xmp",
    "plaintext",
    "frameset",
    "map",
];
/// Elements whose content is text, not markup.
const RAW_TEXT_ELEMENTS: &[(&str, RawKind)] = &[
    ("script", RawKind::ScriptData),
    ("style", RawKind::Rawtext),
    ("iframe", RawKind::Rawtext),
    ("noframes", RawKind::Rawtext),
    ("noembed", RawKind::Rawtext),
    ("xmp", RawKind::Rawtext),
    ("title", RawKind::Rcdata),
    ("textarea", RawKind::Rcdata),
];
/// Formatting elements, which parsers reopen in every paragraph until they are closed.
const FORMATTING_ELEMENTS: &[&str] = &[
    "b", "big", "code", "em", "i", "s", "small", "strike", "strong", "tt", "u",
];
/// Elements whose tags are removed while their content is kept.
const UNWRAPPED_ELEMENTS: &[&str] = &[
    "font", "nobr", "noscript", "form", "button", "label", "input", "center", "marquee", "blink",
];
/// Elements without content and end tag.
const VOID_ELEMENTS: &[&str] = &[
    "area", "base", "br", "col", "hr", "img", "link", "meta", "param", "source", "track", "wbr",
];
/// Attributes that are kept.
const KEPT_ATTRIBUTES: &[&str] = &[
    "alt", "class", "colspan", "content", "datetime", "dir", "href", "id", "itemprop", "lang",
    "name", "property", "rel", "role", "rowspan", "src", "start", "title",
];

/// Returns cleaned, well-nested HTML. If a tag has too many attributes or `cancel` is cancelled,
/// the rest of the page is missing.
pub(crate) fn clean_html(html: &str, cancel: &CancellationToken) -> String {
    let sink = CleanerSink(RefCell::new(HtmlCleaner {
        out: String::with_capacity(html.len() / 2),
        ..HtmlCleaner::default()
    }));
    let tokenizer = Tokenizer::new(sink, TokenizerOpts::default());
    let input = BufferQueue::default();
    // Words since the last token: at least as many as the attributes of an unfinished tag.
    let mut pending_words = 0_usize;
    let mut comparisons = 0_usize;
    let mut rest = html;
    while !rest.is_empty() && comparisons < MAX_COMPARISONS && !cancel.is_cancelled() {
        let (chunk, after) = rest.split_at(rest.floor_char_boundary(CHUNK_BYTES));
        rest = after;
        input.push_back(StrTendril::from_slice(chunk));
        let _ = tokenizer.feed(&input);
        let words = words_in(chunk);
        if std::mem::take(&mut tokenizer.sink.0.borrow_mut().saw_token) {
            pending_words = words;
        } else {
            comparisons += words * pending_words;
            pending_words += words;
        }
    }
    tokenizer.end();
    let mut written = tokenizer.sink.0.take();
    while let Some(name) = written.open.pop() {
        written.push_end_tag(&name);
    }
    written.out
}

/// Returns how many attributes the text contains at most.
fn words_in(text: &str) -> usize {
    let is_separator = |byte: &&u8| byte.is_ascii_whitespace() || b"/\"'".contains(byte);
    text.bytes().filter(|byte| is_separator(&byte)).count() + 1
}

/// Receives tokens from the tokenizer.
struct CleanerSink(RefCell<HtmlCleaner>);

/// The cleaned HTML and the open elements.
#[derive(Default)]
struct HtmlCleaner {
    out: String,
    /// Names of the open elements, outermost first.
    open: Vec<String>,
    /// Number of open elements that were not written because they are too deep.
    too_deep: usize,
    /// Number of tags so far.
    tags: usize,
    /// Whether a tag, text or comment was received since the last check.
    saw_token: bool,
    /// The element that is being dropped, and how many nested elements of that name are open.
    dropping: Option<(String, usize)>,
}

impl TokenSink for CleanerSink {
    type Handle = ();

    fn process_token(&self, token: Token, _: u64) -> TokenSinkResult<()> {
        let mut written = self.0.borrow_mut();
        written.saw_token |= !matches!(token, Token::ParseError(_));
        match token {
            TagToken(tag) => written.handle_tag(&tag),
            CharacterTokens(text) => {
                written.push_text(&text);
                TokenSinkResult::Continue
            }
            _ => TokenSinkResult::Continue,
        }
    }
}

impl HtmlCleaner {
    fn push_text(&mut self, text: &str) {
        if self.dropping.is_none() {
            escape(text, &mut self.out);
        }
    }

    fn handle_tag(&mut self, tag: &Tag) -> TokenSinkResult<()> {
        let name: &str = &tag.name;
        match tag.kind {
            TagKind::StartTag => {
                self.start_tag(name, tag);
                let raw = RAW_TEXT_ELEMENTS.iter().find(|(raw, _)| *raw == name);
                raw.map_or(TokenSinkResult::Continue, |(_, kind)| {
                    TokenSinkResult::RawData(*kind)
                })
            }
            TagKind::EndTag => {
                self.end_tag(name);
                TokenSinkResult::Continue
            }
        }
    }

    fn start_tag(&mut self, name: &str, tag: &Tag) {
        if let Some((dropped, depth)) = &mut self.dropping {
            *depth += usize::from(dropped.as_str() == name && !tag.self_closing);
            return;
        }
        if DROPPED_ELEMENTS.contains(&name) {
            // Only `svg` and `math` can be self-closing; `embed` has no content.
            let is_closed = tag.self_closing && matches!(name, "svg" | "math") || name == "embed";
            self.dropping = (!is_closed).then(|| (name.to_owned(), 1));
            return;
        }
        self.tags += 1;
        if UNWRAPPED_ELEMENTS.contains(&name)
            || self.tags > MAX_TAGS
            || !name.bytes().all(|byte| byte.is_ascii_alphanumeric())
        {
            return;
        }
        let void = VOID_ELEMENTS.contains(&name);
        if self.open.len() >= MAX_DEPTH && !void {
            self.too_deep += 1;
            return;
        }
        let is_formatting = |name: &str| FORMATTING_ELEMENTS.contains(&name);
        if is_formatting(name)
            && self.open.iter().filter(|open| is_formatting(open)).count() >= MAX_OPEN_FORMATTING
        {
            return;
        }
        self.out.push('<');
        self.out.push_str(name);
        for attribute in &tag.attrs {
            let (attribute, value): (&str, &str) = (&attribute.name.local, &attribute.value);
            // The class of a `code` element names its language.
            let is_kept = KEPT_ATTRIBUTES.contains(&attribute)
                && (!is_formatting(name) || attribute == "class" && name == "code");
            if is_kept && value.len() <= MAX_ATTRIBUTE_BYTES {
                self.out.push(' ');
                self.out.push_str(attribute);
                self.out.push_str("=\"");
                escape(value, &mut self.out);
                self.out.push('"');
            }
        }
        self.out.push('>');
        if !void {
            self.open.push(name.to_owned());
        }
    }

    fn end_tag(&mut self, name: &str) {
        if let Some((dropped, depth)) = &mut self.dropping {
            *depth -= usize::from(dropped.as_str() == name);
            if *depth == 0 {
                self.dropping = None;
            }
            return;
        }
        if UNWRAPPED_ELEMENTS.contains(&name) || VOID_ELEMENTS.contains(&name) {
            return;
        }
        if self.too_deep > 0 {
            self.too_deep -= 1;
            return;
        }
        // Unclosed elements inside are closed, too. An end tag without a start tag is ignored.
        if let Some(position) = self.open.iter().rposition(|open| open == name) {
            for name in self.open.split_off(position).iter().rev() {
                self.push_end_tag(name);
            }
        }
    }

    fn push_end_tag(&mut self, name: &str) {
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
    }
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\0' => {}
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean_html(html: &str) -> String {
        super::clean_html(html, &CancellationToken::new())
    }

    #[test]
    fn scripts_forms_and_comments_are_removed_and_text_is_kept() {
        let html = "<p onclick=x>a<script>if (a < b) '</p>'</script>b<!-- c -->\
                    <form><b class=x>d</b></form>&lt;e&gt;";
        assert_eq!(clean_html(html), "<p>ab<b>d</b>&lt;e&gt;</p>");
        assert_eq!(
            clean_html("<svg><g/><svg/></svg><p>x</p><select><option>y</select>"),
            "<p>x</p>"
        );
        assert_eq!(
            clean_html("<title>a <b> c</title><code class='language-rust' id=q>x</code>"),
            "<title>a &lt;b&gt; c</title><code class=\"language-rust\">x</code>"
        );
        assert_eq!(
            clean_html("<a href='/x\"y' style='z'>l</a></div><i>"),
            "<a href=\"/x&quot;y\">l</a><i></i>"
        );
    }

    #[test]
    fn depth_and_number_of_tags_are_bounded() {
        let deep = clean_html(&format!(
            "{}x{}",
            "<div>".repeat(10_000),
            "</div>".repeat(10_000)
        ));
        assert_eq!(deep.matches("<div>").count(), MAX_DEPTH);
        assert!(deep.contains('x') && deep.ends_with("</div>"));
        let many = clean_html(&"<p>x</p>".repeat(100_000));
        assert!(many.matches("<p>").count() <= MAX_TAGS);
    }

    #[test]
    fn a_tag_with_very_many_attributes_ends_the_page() {
        let attributes: String = (0..300_000).map(|n| format!(" a{n}")).collect();
        let page = format!("<p>before</p><p{attributes}>after</p>");
        assert_eq!(clean_html(&page), "<p>before</p>");
        let large_value = format!("<p>a</p><img alt='{}'><p>b</p>", "x".repeat(1 << 20));
        assert_eq!(clean_html(&large_value), "<p>a</p><img><p>b</p>");
        let comment = format!("<p>a</p><!-- {} --><p>b</p>", "word ".repeat(10_000));
        assert_eq!(clean_html(&comment), "<p>a</p><p>b</p>");
    }

    #[test]
    fn cleaning_stops_when_it_is_cancelled() {
        let cancel = CancellationToken::new();
        cancel.cancel();
        let page = "<p>x</p>".repeat(100_000);
        assert_eq!(super::clean_html(&page, &cancel), "");
    }
}
