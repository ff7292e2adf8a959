//! Markdown as rows, and where a text that still comes can be cut: everything before its last block is final.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Span;

use super::code::code;
use super::look::Look;
use super::rows::{Row, clean};
use super::table::Table;

const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS);

/// Where the last block of a text begins: nothing that follows can change what is before it.
pub(crate) fn last_block(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut last = 0;
    for (event, range) in Parser::new_ext(text, OPTIONS).into_offset_iter() {
        match event {
            Event::Start(_) => {
                if depth == 0 {
                    last = range.start;
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Rule if depth == 0 => last = range.start,
            _ => {}
        }
    }
    // The line it begins on, with its indent.
    text[..last].rfind('\n').map_or(0, |end| end + 1)
}

/// A text as rows. Tables are made for this width.
pub(crate) fn markdown(text: &str, width: usize, look: Look) -> Vec<Row> {
    let mut page = Page {
        look,
        width,
        rows: Vec::new(),
        words: Vec::new(),
        styles: Vec::new(),
        marks: Vec::new(),
        lists: Vec::new(),
        code: None,
        table: None,
        link: None,
    };
    for event in Parser::new_ext(text, OPTIONS) {
        page.take(event);
    }
    page.end_of_words();
    while page.rows.last().is_some_and(Row::is_blank) {
        page.rows.pop();
    }
    page.rows
}

/// What stands before the lines of a block.
struct Mark {
    /// Before the first one, until it was used.
    first: Option<Span<'static>>,
    rest: Span<'static>,
}

struct Page {
    look: Look,
    width: usize,
    rows: Vec<Row>,
    /// The paragraph so far.
    words: Vec<Span<'static>>,
    styles: Vec<Style>,
    marks: Vec<Mark>,
    /// The next number of each list that is open.
    lists: Vec<Option<u64>>,
    /// The language and text of a code block.
    code: Option<(String, String)>,
    table: Option<Table>,
    link: Option<(String, String)>,
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.text(&text),
            Event::Code(text) => self.say(&text, self.style().patch(self.look.code())),
            Event::Html(text) | Event::InlineHtml(text) => {
                let quiet = self.style().patch(self.look.quiet());
                for (at, line) in text.trim_end_matches('\n').split('\n').enumerate() {
                    if at > 0 {
                        self.end_of_words();
                    }
                    self.say(line, quiet);
                }
                if text.ends_with('\n') {
                    self.end_of_words();
                }
            }
            Event::SoftBreak => self.say(" ", self.style()),
            Event::HardBreak => self.end_of_words(),
            Event::Rule => {
                self.between_blocks();
                self.rows
                    .push(Row::quiet("─".repeat(self.width.min(40))).cut());
            }
            Event::TaskListMarker(done) => {
                self.say(if done { "[x] " } else { "[ ] " }, self.style())
            }
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        let look = self.look;
        match tag {
            Tag::Paragraph => self.between_blocks(),
            Tag::Heading { level, .. } => {
                self.between_blocks();
                self.styles.push(match level {
                    HeadingLevel::H1 => look.heading().add_modifier(Modifier::UNDERLINED),
                    _ => look.heading(),
                });
            }
            Tag::BlockQuote(_) => {
                self.between_blocks();
                self.marks.push(Mark {
                    first: None,
                    rest: Span::styled("│ ", look.quiet()),
                });
            }
            Tag::CodeBlock(kind) => {
                self.end_of_words();
                self.between_blocks();
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((language, String::new()));
            }
            Tag::List(from) => {
                self.end_of_words();
                if self.lists.is_empty() {
                    self.between_blocks();
                }
                self.lists.push(from);
            }
            Tag::Item => {
                self.end_of_words();
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                };
                let rest = Span::raw(" ".repeat(mark.chars().count()));
                self.marks.push(Mark {
                    first: Some(Span::styled(mark, look.quiet())),
                    rest,
                });
            }
            Tag::Emphasis => self.modify(Modifier::ITALIC),
            Tag::Strong => self.modify(Modifier::BOLD),
            Tag::Strikethrough => self.modify(Modifier::CROSSED_OUT),
            Tag::Link { dest_url, .. } => self.begin_link(&dest_url),
            Tag::Image { dest_url, .. } => {
                self.say("image: ", self.style().patch(look.quiet()));
                self.begin_link(&dest_url);
            }
            Tag::Table(_) => {
                self.between_blocks();
                self.table = Some(Table::default());
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.begin_row();
                }
            }
            _ => {}
        }
    }

    fn modify(&mut self, modifier: Modifier) {
        self.styles.push(self.style().add_modifier(modifier));
    }

    fn begin_link(&mut self, address: &str) {
        self.styles.push(self.style().patch(self.look.link()));
        self.link = Some((address.to_owned(), String::new()));
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.end_of_words(),
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.end_of_words();
            }
            TagEnd::BlockQuote(_) => {
                self.end_of_words();
                self.marks.pop();
            }
            TagEnd::CodeBlock => {
                let (language, text) = self.code.take().unwrap_or_default();
                for row in code(&language, &text, self.look) {
                    self.push(row.indent(2));
                }
            }
            TagEnd::List(_) => {
                self.end_of_words();
                self.lists.pop();
            }
            TagEnd::Item => {
                self.end_of_words();
                // An item without words is one all the same.
                if self.marks.last().is_some_and(|mark| mark.first.is_some()) {
                    self.push(Row::blank());
                }
                self.marks.pop();
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.styles.pop();
                if let Some((address, words)) = self.link.take()
                    && !address.is_empty()
                    && address != words
                    && address.strip_prefix("mailto:") != Some(&words)
                {
                    let quiet = self.style().patch(self.look.quiet());
                    self.say(&format!(" ({address})"), quiet);
                }
            }
            TagEnd::TableCell => {
                let words = std::mem::take(&mut self.words);
                if let Some(table) = &mut self.table {
                    table.add(words);
                }
            }
            TagEnd::Table => {
                let indent: usize = self.marks.iter().map(|mark| mark.rest.width()).sum();
                let table = self.table.take().unwrap_or_default();
                for row in table.rows(self.width.saturating_sub(indent), self.look) {
                    self.push(row);
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        if let Some((_, code)) = &mut self.code {
            code.push_str(text);
            return;
        }
        if let Some((_, words)) = &mut self.link {
            words.push_str(text);
        }
        self.say(text, self.style());
    }

    fn say(&mut self, text: &str, style: Style) {
        let text = clean(text).replace('\n', " ");
        self.words.push(Span::styled(text, style));
    }

    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn end_of_words(&mut self) {
        if self.words.is_empty() || self.table.is_some() {
            return;
        }
        let body = std::mem::take(&mut self.words);
        self.push(Row::spans(body));
    }

    /// Adds a row behind the marks of the blocks around it.
    fn push(&mut self, mut row: Row) {
        row.hang
            .splice(0..0, self.marks.iter().map(|mark| mark.rest.clone()));
        let marks = self.marks.iter_mut();
        let lead = marks.map(|mark| mark.first.take().unwrap_or_else(|| mark.rest.clone()));
        row.lead.splice(0..0, lead);
        self.rows.push(row);
    }

    /// Blocks are kept apart, but not those of a list.
    fn between_blocks(&mut self) {
        self.end_of_words();
        let is_apart = |row: &Row| row.is_blank() && row.lead.is_empty();
        if self.lists.is_empty() && self.rows.last().is_some_and(|row| !is_apart(row)) {
            self.push(Row::blank());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::fitted;
    use super::*;

    fn shown(text: &str, width: usize) -> String {
        let lines: Vec<String> = fitted(&markdown(text, width, Look::Plain), width)
            .iter()
            .map(|line| line.to_string().trim_end().to_owned())
            .collect();
        lines.join("\n")
    }

    const PAGE: &str = "# Title\n\nSome *words* with `code` and [a link](https://e.org).\n\n1. first\n2. second, which is long enough to be broken\n   - inner\n\n> quoted\n> words\n\n```ts\nconst a = 1;\n  two();\n```\n\n---\n<b>html</b>\n\n- [x] done\n- [ ] open\n\nhttps://e.org";

    #[test]
    fn a_page_is_readable_at_forty_columns() {
        assert_eq!(
            shown(PAGE, 40),
            "Title\n\nSome words with code and a link\n(https://e.org).\n\n1. first\n2. second, which is long enough to be\n   broken\n   • inner\n\n\
             │ quoted words\n\n  const a = 1;\n    two();\n\n────────────────────────────────────────\n\n<b>html</b>\n\n• [x] done\n• [ ] open\n\nhttps://e.org"
        );
    }

    #[test]
    fn emphasis_and_code_have_their_styles() {
        let rows = markdown("**bold** *slanted* `code`", 40, Look::Colour);
        let style = |words: &str| {
            rows[0]
                .body
                .iter()
                .find(|span| span.content == words)
                .unwrap()
                .style
        };
        assert!(style("bold").add_modifier.contains(Modifier::BOLD));
        assert!(style("slanted").add_modifier.contains(Modifier::ITALIC));
        assert_eq!(style("code"), Look::Colour.code());
    }

    #[test]
    fn a_text_that_still_comes_is_cut_before_its_last_block() {
        for (text, rest) in [
            ("one", "one"),
            ("one\n\ntwo", "two"),
            ("one\n\n- a\n- b", "- a\n- b"),
            ("one\n\n```js\nlet a;\n\nlet b;", "```js\nlet a;\n\nlet b;"),
            ("a\n\n    code", "    code"),
            (
                "x\n\n| a | b |\n|---|---|\n| 1 |",
                "| a | b |\n|---|---|\n| 1 |",
            ),
        ] {
            assert_eq!(&text[last_block(text)..], rest, "{text:?}");
        }
    }

    /// However a text is cut on its way, what was final stays final.
    #[test]
    fn what_is_printed_early_is_what_the_whole_shows() {
        let mut done = 0;
        let mut early: Vec<Row> = Vec::new();
        let mut boundaries = PAGE.char_indices().map(|(at, _)| at).chain([PAGE.len()]);
        for end in boundaries.by_ref() {
            let last = done + last_block(&PAGE[done..end]);
            if last > done {
                if !early.is_empty() {
                    early.push(Row::blank());
                }
                early.extend(markdown(&PAGE[done..last], 40, Look::Plain));
                done = last;
            }
        }
        early.push(Row::blank());
        early.extend(markdown(&PAGE[done..], 40, Look::Plain));
        let text = |rows: &[Row]| {
            fitted(rows, 40)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(text(&early), text(&markdown(PAGE, 40, Look::Plain)));
    }
}
