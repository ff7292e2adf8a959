//! Renders Markdown as rows, and finds the last block of a text that streams in: everything before
//! it is final.

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

/// Returns the byte offset of the last top-level block. Further text cannot change what is before
/// it.
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
    // The start of its line, so that the block keeps its indentation.
    text[..last].rfind('\n').map_or(0, |end| end + 1)
}

/// Renders Markdown as rows. Only tables depend on `width`; other rows are wrapped later.
pub(crate) fn markdown(text: &str, width: usize, theme: Look) -> Vec<Row> {
    let mut renderer = Page {
        look: theme,
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
        renderer.take(event);
    }
    renderer.end_of_words();
    while renderer.rows.last().is_some_and(Row::is_blank) {
        renderer.rows.pop();
    }
    renderer.rows
}

/// The prefix of a block's lines, such as a bullet or a quote bar.
struct Mark {
    /// Prefix of the first line; `None` once it is used.
    first: Option<Span<'static>>,
    rest: Span<'static>,
}

/// Turns Markdown events into rows.
struct Page {
    look: Look,
    width: usize,
    rows: Vec<Row>,
    /// The current paragraph or table cell.
    words: Vec<Span<'static>>,
    /// Styles of the open inline elements; the last one applies.
    styles: Vec<Style>,
    /// Prefixes of the open blocks, outermost first.
    marks: Vec<Mark>,
    /// The next number of each open list; `None` for a bullet list.
    lists: Vec<Option<u64>>,
    /// Language and text of the open code block.
    code: Option<(String, String)>,
    table: Option<Table>,
    /// Address and text of the open link.
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
                for (index, line) in text.trim_end_matches('\n').split('\n').enumerate() {
                    if index > 0 {
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
        let theme = self.look;
        match tag {
            Tag::Paragraph => self.between_blocks(),
            Tag::Heading { level, .. } => {
                self.between_blocks();
                self.styles.push(match level {
                    HeadingLevel::H1 => theme.heading().add_modifier(Modifier::UNDERLINED),
                    _ => theme.heading(),
                });
            }
            Tag::BlockQuote(_) => {
                self.between_blocks();
                self.marks.push(Mark {
                    first: None,
                    rest: Span::styled("│ ", theme.quiet()),
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
            Tag::List(first_number) => {
                self.end_of_words();
                if self.lists.is_empty() {
                    self.between_blocks();
                }
                self.lists.push(first_number);
            }
            Tag::Item => {
                self.end_of_words();
                let bullet = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                };
                let rest = Span::raw(" ".repeat(bullet.chars().count()));
                self.marks.push(Mark {
                    first: Some(Span::styled(bullet, theme.quiet())),
                    rest,
                });
            }
            Tag::Emphasis => self.modify(Modifier::ITALIC),
            Tag::Strong => self.modify(Modifier::BOLD),
            Tag::Strikethrough => self.modify(Modifier::CROSSED_OUT),
            Tag::Link { dest_url, .. } => self.begin_link(&dest_url),
            Tag::Image { dest_url, .. } => {
                self.say("image: ", self.style().patch(theme.quiet()));
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
                // An empty item still shows its bullet.
                if self
                    .marks
                    .last()
                    .is_some_and(|prefix| prefix.first.is_some())
                {
                    self.push(Row::blank());
                }
                self.marks.pop();
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.styles.pop();
                if let Some((address, text)) = self.link.take()
                    && !address.is_empty()
                    && address != text
                    && address.strip_prefix("mailto:") != Some(&text)
                {
                    let quiet = self.style().patch(self.look.quiet());
                    self.say(&format!(" ({address})"), quiet);
                }
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.words);
                if let Some(table) = &mut self.table {
                    table.add(cell);
                }
            }
            TagEnd::Table => {
                let indent: usize = self.marks.iter().map(|prefix| prefix.rest.width()).sum();
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
        if let Some((_, link_text)) = &mut self.link {
            link_text.push_str(text);
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

    /// Adds the current paragraph as a row. Cells of a table are added elsewhere.
    fn end_of_words(&mut self) {
        if self.words.is_empty() || self.table.is_some() {
            return;
        }
        let body = std::mem::take(&mut self.words);
        self.push(Row::spans(body));
    }

    /// Adds a row with the prefixes of the blocks around it.
    fn push(&mut self, mut row: Row) {
        row.hang
            .splice(0..0, self.marks.iter().map(|prefix| prefix.rest.clone()));
        let prefixes = self.marks.iter_mut();
        let first = prefixes.map(|prefix| {
            let first = prefix.first.take();
            first.unwrap_or_else(|| prefix.rest.clone())
        });
        row.lead.splice(0..0, first);
        self.rows.push(row);
    }

    /// Separates blocks by a blank row, except inside lists.
    fn between_blocks(&mut self) {
        self.end_of_words();
        let is_separator = |row: &Row| row.is_blank() && row.lead.is_empty();
        if self.lists.is_empty() && self.rows.last().is_some_and(|row| !is_separator(row)) {
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

    const PAGE: &str = "# Title\n\nSome *words* with `code` and [a link](https://e.org).\n\n\
        1. first\n2. second, which is long enough to be broken\n   - inner\n\n\
        > quoted\n> words\n\n```ts\nconst a = 1;\n  two();\n```\n\n\
        ---\n<b>html</b>\n\n- [x] done\n- [ ] open\n\nhttps://e.org";

    #[test]
    fn a_page_is_readable_at_forty_columns() {
        assert_eq!(
            shown(PAGE, 40),
            "Title\n\nSome words with code and a link\n(https://e.org).\n\n\
             1. first\n2. second, which is long enough to be\n   broken\n   • inner\n\n\
             │ quoted words\n\n  const a = 1;\n    two();\n\n\
             ────────────────────────────────────────\n\n<b>html</b>\n\n\
             • [x] done\n• [ ] open\n\nhttps://e.org"
        );
    }

    #[test]
    fn emphasis_and_code_have_their_styles() {
        let rows = markdown("**bold** *slanted* `code`", 40, Look::Colour);
        let style = |text: &str| {
            rows[0]
                .body
                .iter()
                .find(|span| span.content == text)
                .unwrap()
                .style
        };
        assert!(style("bold").add_modifier.contains(Modifier::BOLD));
        assert!(style("slanted").add_modifier.contains(Modifier::ITALIC));
        assert_eq!(style("code"), Look::Colour.code());
    }

    #[test]
    fn the_last_block_of_a_streaming_text_is_found() {
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

    /// Blocks that were final at any length of the text render as they do in the whole text.
    #[test]
    fn blocks_printed_early_equal_those_of_the_whole_text() {
        let mut done = 0;
        let mut early: Vec<Row> = Vec::new();
        let ends = PAGE.char_indices().map(|(end, _)| end).chain([PAGE.len()]);
        for end in ends {
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
