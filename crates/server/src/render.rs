//! Renders texts of models and files as HTML that is safe to insert into the page.
//!
//! Markdown, highlighted code and diffs get a fixed set of elements and classes. HTML in the text
//! is shown as text. No result loads anything from another server.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Instant;

use ammonia::{Builder, UrlRelative};
use pulldown_cmark::{CodeBlockKind, CowStr, Event, Options, Parser, Tag, TagEnd, html};
use pulldown_cmark_escape::escape_html;

use crate::highlight::highlight_code;
use crate::visible_text::{visible_code, visible_prose};

/// Longer texts are shown as plain text, in bytes.
pub(crate) const MAX_FORMATTED_BYTES: usize = 256 << 10;
/// Most parts of a text that is shown formatted. A table of a few kilobytes can have millions of
/// cells, because each row gets as many as the first one.
const MAX_PARTS: usize = 100_000;
/// Most characters of a text that is shown formatted, of those for which the rest of the text is
/// searched: `&` by the parser, and by the serializer those that HTML may write as references.
const MAX_REFERENCES: usize = 2_000;
/// Blocks that are nested deeper are shown without the outer ones.
const MAX_NESTING: usize = 32;
/// Elements of rendered Markdown.
const TAGS: [&str; 28] = [
    "a",
    "blockquote",
    "br",
    "code",
    "del",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "input",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "span",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
];
/// Elements that a text may begin in any direction.
const BLOCKS: [&str; 11] = [
    "p",
    "li",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "td",
    "th",
    "blockquote",
];

/// Removes everything from HTML that the page does not show.
static SANITIZER: LazyLock<Builder<'static>> = LazyLock::new(|| {
    let mut builder = Builder::empty();
    builder
        .tags(TAGS.into_iter().chain(["tr", "ul"]).collect())
        .add_tag_attributes("a", ["href", "title"])
        .add_tag_attributes("ol", ["start"])
        .add_tag_attributes("input", ["type", "checked", "disabled"])
        .add_tag_attributes("th", ["align"])
        .add_tag_attributes("td", ["align"])
        .add_tag_attributes("pre", ["class"])
        .add_tag_attributes("span", ["class"])
        .url_schemes(HashSet::from(["http", "https", "mailto"]))
        // A path would name a file of the server, not of the workspace.
        .url_relative(UrlRelative::Deny)
        .link_rel(Some("noopener noreferrer nofollow"))
        .set_tag_attribute_value("a", "target", "_blank");
    for block in BLOCKS {
        builder.set_tag_attribute_value(block, "dir", "auto");
    }
    builder
});

/// Renders Markdown. What is too large, and everything after `deadline`, is shown as plain text.
pub(crate) fn render_markdown(text: &str, deadline: Instant) -> String {
    let is_reference = |c: char| matches!(c, '&' | '<' | '>' | '\u{80}'..='\u{bf}');
    if text.len() > MAX_FORMATTED_BYTES
        || text.matches(is_reference).count() > MAX_REFERENCES
        || Instant::now() > deadline
    {
        return render_text(text);
    }
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut events = Vec::new();
    let mut code: Option<(String, String)> = None;
    let mut nesting = 0_usize;
    for (number, event) in Parser::new_ext(text, options).enumerate() {
        if number > MAX_PARTS {
            return render_text(text);
        }
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.into_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                code = Some((language, String::new()));
            }
            Event::End(TagEnd::CodeBlock) => {
                if let Some((language, source)) = code.take() {
                    let html = render_code(&language, &source, deadline);
                    events.push(Event::Html(html.into()));
                }
            }
            Event::Text(text) => match &mut code {
                Some((_, source)) => source.push_str(&text),
                None => events.push(Event::Text(visible(&text))),
            },
            Event::Code(code) => {
                events.push(Event::Code(visible_code(&code).into_owned().into()));
            }
            // HTML is shown as text.
            Event::Html(text) | Event::InlineHtml(text) => {
                events.push(Event::Text(visible(&text)));
            }
            // An image would be a request to another server: its description is a link to it.
            Event::Start(Tag::Image {
                dest_url,
                title,
                id,
                ..
            }) => {
                events.push(link(&dest_url, &title, id));
                events.push(Event::Text(CowStr::Borrowed("image: ")));
            }
            Event::End(TagEnd::Image) => events.push(Event::End(TagEnd::Link)),
            Event::Start(tag) => {
                nesting += 1;
                if nesting <= MAX_NESTING {
                    events.push(match tag {
                        Tag::Link {
                            dest_url,
                            title,
                            id,
                            ..
                        } => link(&dest_url, &title, id),
                        tag => Event::Start(tag),
                    });
                }
            }
            Event::End(tag) => {
                if nesting <= MAX_NESTING {
                    events.push(Event::End(tag));
                }
                nesting = nesting.saturating_sub(1);
            }
            other => events.push(other),
        }
    }
    let mut unsafe_html = String::new();
    html::push_html(&mut unsafe_html, events.into_iter());
    SANITIZER.clean(&unsafe_html).to_string()
}

/// Returns the text of Markdown with hidden characters made visible. This is done after the parser
/// has decoded references such as `&#x202e;`.
fn visible(text: &str) -> CowStr<'static> {
    visible_prose(text).into_owned().into()
}

/// Returns the start of a link. A target without `//`, such as `http:/login`, would be a path of
/// the server, so it is removed.
fn link<'a>(target: &str, title: &str, id: CowStr<'a>) -> Event<'a> {
    let lower = target.to_ascii_lowercase();
    let schemes = ["http://", "https://", "mailto:"];
    let is_outside = schemes.iter().any(|scheme| lower.starts_with(scheme));
    let target = if is_outside { target } else { "" };
    Event::Start(Tag::Link {
        link_type: pulldown_cmark::LinkType::Inline,
        dest_url: target.to_owned().into(),
        title: visible(title),
        id,
    })
}

/// Renders source code with line numbers left to the page. After `deadline`, it is not highlighted.
pub(crate) fn render_code(language: &str, text: &str, deadline: Instant) -> String {
    let text = visible_code(text);
    let body = highlight_code(language, text.trim_end_matches('\n'), deadline);
    format!("<pre class=\"code\">{body}</pre>")
}

/// Renders a unified diff: one `span` with a class per line.
pub(crate) fn render_diff(text: &str) -> String {
    if text.len() > MAX_FORMATTED_BYTES {
        return render_text(text);
    }
    let mut body = String::new();
    let mut is_header = true;
    for line in visible_code(text).trim_end_matches('\n').split('\n') {
        if line.starts_with("@@") {
            is_header = false;
        } else if line.starts_with("diff ") {
            is_header = true;
        }
        let class = match line.as_bytes().first() {
            Some(b'@') => "hunk",
            _ if is_header => "file",
            Some(b'+') => "add",
            Some(b'-') => "del",
            _ => "same",
        };
        push_span(&mut body, class, line);
        body.push('\n');
    }
    format!("<pre class=\"diff\">{body}</pre>")
}

/// Renders plain text.
pub(crate) fn render_text(text: &str) -> String {
    let mut body = String::new();
    push_escaped(&mut body, &visible_code(text));
    format!("<pre class=\"text\">{body}</pre>")
}

/// Appends text in a `span` with a class.
pub(crate) fn push_span(html: &mut String, class: &str, text: &str) {
    html.push_str("<span class=\"");
    html.push_str(class);
    html.push_str("\">");
    push_escaped(html, text);
    html.push_str("</span>");
}

/// Appends text so that it contains no markup.
pub(crate) fn push_escaped(html: &mut String, text: &str) {
    // Writing to a string does not fail.
    let _ = escape_html(html, text);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn markdown(text: &str) -> String {
        render_markdown(text, Instant::now() + Duration::from_secs(60))
    }

    #[test]
    fn markdown_becomes_html() {
        let html = markdown("# A\n\n- [x] **b** `c`\n\n|d|\n|-|\n|e|\n\n[f](https://example.com/)");
        for part in [
            "<h1 dir=\"auto\">A</h1>",
            "<strong>b</strong>",
            "<code>c</code>",
            "<td",
            "checked",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
        assert!(html.contains("href=\"https://example.com/\""), "{html}");
        assert!(
            html.contains("rel=\"noopener noreferrer nofollow\""),
            "{html}"
        );
    }

    #[test]
    fn html_in_markdown_is_text() {
        let hostile = "<script>a()</script>\n\n<img src=x onerror=b()> <svg/onload=c()>\n\n\
            <iframe src=/></iframe><style>*{}</style><a href=\"javascript:d()\">e</a>\n\n\
            ```x\"><script>f()</script>\n</pre><script>g()</script>\n```";
        let html = markdown(hostile);
        for part in ["<script", "<img", "<svg", "<iframe", "<style", "<a "] {
            assert!(!html.contains(part), "{part} in {html}");
        }
        assert!(html.contains("&lt;script&gt;a()"), "{html}");
    }

    #[test]
    fn links_lead_to_web_pages_only() {
        for target in [
            "javascript:a()",
            "JaVaScRiPt:a()",
            "data:text/html,a",
            "/login",
            "http:/login",
            "http:api/v1/sessions",
            "#/x",
            "//b",
        ] {
            let html = markdown(&format!("[a]({target}) ![b]({target}) <{target}>"));
            assert!(!html.contains("href"), "{target}: {html}");
        }
        let html = markdown("![picture](https://example.com/a.png)");
        assert!(html.contains("<a href=\"https://example.com/a.png\"") && !html.contains("<img"));
    }

    #[test]
    fn hidden_characters_of_markdown_are_visible() {
        let html = markdown("a &#x202e;b &#x1b;c `d\u{2067}e` [f](https://x.y \"&#x202e;g\")");
        for hidden in ['\u{202e}', '\u{1b}', '\u{2067}'] {
            assert!(!html.contains(hidden), "{hidden:?} in {html}");
        }
        assert!(
            html.contains("[U+202E]b") && html.contains("d[U+2067]e"),
            "{html}"
        );
    }

    #[test]
    fn what_would_take_long_or_become_large_is_plain_text() {
        let references = "&a".repeat(50_000);
        let spaces = "\u{a0}a".repeat(50_000);
        let table = format!(
            "{}|\n{}|\n{}",
            "|a".repeat(900),
            "|-".repeat(900),
            "|b|\n".repeat(900)
        );
        for text in [references, spaces, table] {
            let html = markdown(&text);
            assert!(html.starts_with("<pre class=\"text\">"), "{}", html.len());
            assert!(html.len() < text.len() * 8, "{}", html.len());
        }
        let late = render_markdown("*a*", Instant::now() - Duration::from_millis(1));
        assert!(late.starts_with("<pre"), "{late}");
    }

    #[test]
    fn deep_nesting_and_large_texts_end_soon() {
        let started = Instant::now();
        let nested = ">".repeat(20_000) + " a\n" + &"- ".repeat(10_000) + "b";
        assert!(markdown(&nested).contains('a'));
        assert!(markdown(&"*a **b ".repeat(30_000)).contains('b'));
        assert!(markdown(&"x".repeat(5 << 20)).starts_with("<pre class=\"text\">"));
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{:?}",
            started.elapsed()
        );
    }

    #[test]
    fn diffs_have_a_class_per_line() {
        let html = render_diff("diff --git a/b b/b\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-<i>\n+c\n d\n");
        for part in [
            "<span class=\"file\">+++ b/b</span>",
            "<span class=\"hunk\">@@",
            "<span class=\"del\">-&lt;i&gt;</span>",
            "<span class=\"add\">+c</span>",
            "<span class=\"same\"> d</span>",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
    }
}
