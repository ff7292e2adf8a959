//! Makes response bodies readable: decodes the text, extracts the article, converts HTML to
//! Markdown.

use dom_smoothie::{Config, Readability, TextMode};
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use tokio_util::sync::CancellationToken;

use super::html_cleaner::clean_html;

/// Maximum bytes of HTML that are converted.
const MAX_HTML_BYTES: usize = 4 << 20;
/// Minimum length of an article in characters. If less is found, the whole page is converted.
const MIN_ARTICLE_CHARS: usize = 250;
/// Bytes at the start of an HTML page that are searched for its encoding.
const CHARSET_SCAN_BYTES: usize = 1024;
/// Maximum length of a title in characters.
const MAX_TITLE_CHARS: usize = 200;

/// A page in readable form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReadablePage {
    pub(crate) title: String,
    pub(crate) media_type: String,
    pub(crate) body: PageBody,
}

/// The content of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageBody {
    /// Text; Markdown if the page was HTML.
    Text(String),
    /// Content that is not text.
    Bytes(Vec<u8>),
}

/// Makes a body readable. Blocks, for large bodies noticeably. If `cancel` is cancelled, it returns
/// soon, with an incomplete page.
pub(crate) fn make_readable(
    content_type: &str,
    body: Vec<u8>,
    url: &str,
    cancel: &CancellationToken,
) -> ReadablePage {
    let declared = content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let media_type = if declared.is_empty() {
        sniff_media_type(&body).to_owned()
    } else {
        declared
    };
    if is_html(&media_type) {
        let mut text = decode(content_type, &body, CharsetScan::HtmlHead);
        text.truncate(text.floor_char_boundary(MAX_HTML_BYTES));
        let (title, text) = html_to_markdown(&text, url, cancel);
        return ReadablePage {
            title,
            media_type: "text/markdown".to_owned(),
            body: PageBody::Text(text),
        };
    }
    if is_text(&media_type) {
        let text = decode(content_type, &body, CharsetScan::Off);
        return ReadablePage {
            title: title_from_url(url),
            media_type,
            body: PageBody::Text(text),
        };
    }
    ReadablePage {
        title: title_from_url(url),
        media_type,
        body: PageBody::Bytes(body),
    }
}

/// Decodes a body as text; `None` if it is not text.
pub(crate) fn decode_text(content_type: &str, body: &[u8]) -> Option<String> {
    let declared = content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let media_type = if declared.is_empty() {
        sniff_media_type(body).to_owned()
    } else {
        declared
    };
    let is_html = is_html(&media_type);
    let prescan = if is_html {
        CharsetScan::HtmlHead
    } else {
        CharsetScan::Off
    };
    (is_html || is_text(&media_type)).then(|| decode(content_type, body, prescan))
}

fn is_html(media_type: &str) -> bool {
    matches!(media_type, "text/html" | "application/xhtml+xml")
}

fn is_text(media_type: &str) -> bool {
    const TEXT: &[&str] = &[
        "json",
        "xml",
        "javascript",
        "ecmascript",
        "x-ndjson",
        "yaml",
        "x-yaml",
        "toml",
        "sql",
        "graphql",
        "x-sh",
    ];
    let (kind, subtype) = media_type.split_once('/').unwrap_or_default();
    kind == "text"
        || kind == "application" && TEXT.contains(&subtype)
        || subtype.ends_with("+json")
        || subtype.ends_with("+xml")
}

/// Guesses the media type of a body without `Content-Type`.
fn sniff_media_type(body: &[u8]) -> &'static str {
    let start = &body[..body.len().min(512)];
    let text = String::from_utf8_lossy(start)
        .trim_start()
        .to_ascii_lowercase();
    if text.starts_with("<!doctype html") || text.starts_with("<html") {
        "text/html"
    } else if body.contains(&0) || std::str::from_utf8(body).is_err() {
        "application/octet-stream"
    } else {
        "text/plain"
    }
}

/// Whether the start of a body is searched for its encoding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharsetScan {
    HtmlHead,
    Off,
}

/// Decodes a body. The encoding comes from the byte order mark, else the `Content-Type` header,
/// else the page itself; the default is UTF-8 if the body is valid UTF-8, else Windows-1252.
fn decode(content_type: &str, body: &[u8], prescan: CharsetScan) -> String {
    let declared = Encoding::for_bom(body).map(|(encoding, _)| encoding);
    let declared = declared.or_else(|| find_charset(content_type.as_bytes()));
    let in_page = || {
        (prescan == CharsetScan::HtmlHead)
            .then(|| find_charset(&body[..body.len().min(CHARSET_SCAN_BYTES)]))
            .flatten()
    };
    let encoding = declared.or_else(in_page).unwrap_or_else(|| {
        if is_utf8_or_truncated(body) {
            UTF_8
        } else {
            WINDOWS_1252
        }
    });
    encoding.decode(body).0.into_owned()
}

/// Whether a body is UTF-8, except for an incomplete last character. If all before it is ASCII, the
/// last byte may as well be a character of an older encoding, so the body does not count as UTF-8.
fn is_utf8_or_truncated(body: &[u8]) -> bool {
    match std::str::from_utf8(body) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && !body[..error.valid_up_to()].is_ascii(),
    }
}

/// Returns the encoding after `charset=` in a header or in the head of a page.
fn find_charset(text: &[u8]) -> Option<&'static Encoding> {
    let lower = text.to_ascii_lowercase();
    let at = lower.windows(7).position(|window| window == b"charset")? + 7;
    let rest = lower[at..]
        .trim_ascii_start()
        .strip_prefix(b"=")?
        .trim_ascii_start();
    let rest = rest
        .strip_prefix(b"\"")
        .or_else(|| rest.strip_prefix(b"'"))
        .unwrap_or(rest);
    let label = rest
        .split(|&byte| {
            matches!(byte, b'"' | b'\'' | b';' | b'>' | b'/') || byte.is_ascii_whitespace()
        })
        .next()?;
    Encoding::for_label(label)
}

/// Returns the title and the Markdown of a page: of its article if one is found, else of the whole
/// page. Empty if `cancel` is cancelled.
fn html_to_markdown(html: &str, url: &str, cancel: &CancellationToken) -> (String, String) {
    let html = clean_html(html, cancel);
    if cancel.is_cancelled() {
        return Default::default();
    }
    let config = Config {
        text_mode: TextMode::Markdown,
        keep_classes: true,
        disable_json_ld: true,
        ..Config::default()
    };
    let article = Readability::new(html.as_str(), Some(url), Some(config))
        .ok()
        .and_then(|mut page| page.parse().ok());
    if cancel.is_cancelled() {
        return Default::default();
    }
    let title = article
        .as_ref()
        .map(|article| article.title.trim())
        .filter(|title| !title.is_empty());
    let title = title.map_or_else(
        || html_title(&html).unwrap_or_else(|| title_from_url(url)),
        str::to_owned,
    );
    let text = article.map(|article| article.text_content.to_string());
    let text = text.filter(|text| text.chars().count() >= MIN_ARTICLE_CHARS);
    let text = text.unwrap_or_else(|| {
        dom_query::Document::from(html.as_str())
            .md(None)
            .to_string()
    });
    (
        title.chars().take(MAX_TITLE_CHARS).collect(),
        collapse_blank_lines(&text),
    )
}

/// Returns the content of the `title` element.
fn html_title(html: &str) -> Option<String> {
    let document = dom_query::Document::from(html);
    let title = document.select_single("title").text().trim().to_owned();
    (!title.is_empty()).then_some(title)
}

/// Returns the last path segment of a URL, or its host, as a title for content without one.
fn title_from_url(url: &str) -> String {
    let Ok(url) = reqwest::Url::parse(url) else {
        return url.to_owned();
    };
    let last = url
        .path_segments()
        .and_then(|mut parts| parts.next_back())
        .filter(|part| !part.is_empty());
    last.or(url.host_str())
        .unwrap_or_default()
        .chars()
        .take(MAX_TITLE_CHARS)
        .collect()
}

/// Removes trailing spaces and repeated empty lines.
fn collapse_blank_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut empty = true;
    for line in text.lines().map(str::trim_end) {
        if !(line.is_empty() && empty) {
            out.push_str(line);
            out.push('\n');
        }
        empty = line.is_empty();
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_readable(content_type: &str, body: Vec<u8>, url: &str) -> ReadablePage {
        super::make_readable(content_type, body, url, &CancellationToken::new())
    }

    fn text(content_type: &str, body: &[u8]) -> String {
        match make_readable(
            content_type,
            body.to_vec(),
            "https://example.com/dir/name.txt",
        )
        .body
        {
            PageBody::Text(text) => text,
            PageBody::Bytes(_) => panic!("not text"),
        }
    }

    #[test]
    fn encoding_comes_from_mark_then_header_then_page() {
        assert_eq!(text("text/plain; charset=iso-8859-1", b"caf\xe9"), "café");
        assert_eq!(
            text("text/plain; charset=\"Shift_JIS\"", b"\x93\xfa\x96\x7b"),
            "日本"
        );
        assert_eq!(text("text/plain", "café".as_bytes()), "café");
        assert_eq!(
            text("text/plain", b"caf\xe9"),
            "café",
            "invalid UTF-8 is decoded as Windows-1252"
        );
        assert_eq!(
            text("text/plain; charset=latin1", b"\xef\xbb\xbfcaf\xc3\xa9"),
            "café",
            "the byte order mark takes precedence"
        );
        assert_eq!(text("text/plain", b"\xff\xfec\0a\0f\0\xe9\0"), "café");
        assert_eq!(
            text(
                "text/html",
                b"<meta charset=koi8-r><p>\xd0\xd2\xc9\xd7\xc5\xd4</p>"
            ),
            "привет"
        );
        let equiv = b"<meta http-equiv=Content-Type content='text/html; charset=windows-1251'>\
                      <p>\xcf\xf0\xe8</p>";
        assert_eq!(text("text/html", equiv), "При");
        assert_eq!(
            text(
                "text/html; charset=utf-8",
                "<meta charset=koi8-r><p>é</p>".as_bytes()
            ),
            "é"
        );
        assert_eq!(text("text/plain; charset=nonsense", "é".as_bytes()), "é");
    }

    #[test]
    fn binary_content_is_kept_as_bytes() {
        let page = make_readable(
            "image/png",
            vec![0x89, b'P', 0, 1],
            "https://example.com/a/logo.png?x=1",
        );
        assert_eq!(
            (page.title.as_str(), page.media_type.as_str()),
            ("logo.png", "image/png")
        );
        assert_eq!(page.body, PageBody::Bytes(vec![0x89, b'P', 0, 1]));
        let kind =
            |body: &[u8]| make_readable("", body.to_vec(), "https://example.com/").media_type;
        assert_eq!(kind(b" <!DOCTYPE HTML><p>x"), "text/markdown");
        assert_eq!(
            (kind(b"plain").as_str(), kind(b"\0\x01").as_str()),
            ("text/plain", "application/octet-stream")
        );
        assert_eq!(text("application/problem+json", b"{}"), "{}");
    }

    #[test]
    fn hostile_pages_are_converted_in_bounded_time_and_memory() {
        let unclosed = "<b id=1><blockquote><ul><li><a href=x><p><code class=c>".repeat(40_000);
        let tables = "<table><tr><td><table><td>".repeat(40_000);
        let paragraphs = format!(
            "{}{}",
            "<p><i><code class=x>".repeat(50),
            "</p><p>x".repeat(200_000)
        );
        for html in [
            unclosed,
            tables,
            paragraphs,
            "<".repeat(1 << 18),
            "<div>".repeat(300_000),
        ] {
            let page = make_readable("text/html", html.into_bytes(), "https://example.com/");
            assert!(matches!(page.body, PageBody::Text(_)));
        }
    }
}
