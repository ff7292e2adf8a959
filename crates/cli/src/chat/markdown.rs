//! Renders Markdown as rows, and finds the last block of a text that streams in: everything before
//! it is final.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Span;

use super::highlight::highlight_code;
use super::rows::{StyledRow, sanitize};
use super::table::MarkdownTable;
use super::theme::Theme;

const PARSER_OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS);

/// Returns the byte offset of the last top-level block. Further text cannot change what is before
/// it.
pub(crate) fn last_block_start(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut last = 0;
    for (event, range) in Parser::new_ext(text, PARSER_OPTIONS).into_offset_iter() {
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
pub(crate) fn render_markdown(text: &str, width: usize, theme: Theme) -> Vec<StyledRow> {
    let mut renderer = MarkdownRenderer {
        theme,
        width,
        rows: Vec::new(),
        line_spans: Vec::new(),
        styles: Vec::new(),
        prefixes: Vec::new(),
        lists: Vec::new(),
        code: None,
        table: None,
        link: None,
    };
    for event in Parser::new_ext(text, PARSER_OPTIONS) {
        renderer.handle_event(event);
    }
    renderer.flush_line();
    while renderer.rows.last().is_some_and(StyledRow::is_blank) {
        renderer.rows.pop();
    }
    renderer.rows
}

/// The prefix of a block's lines, such as a bullet or a quote bar.
struct BlockPrefix {
    /// Prefix of the first line; `None` once it is used.
    first: Option<Span<'static>>,
    rest: Span<'static>,
}

/// Turns Markdown events into rows.
struct MarkdownRenderer {
    theme: Theme,
    width: usize,
    rows: Vec<StyledRow>,
    /// The current paragraph or table cell.
    line_spans: Vec<Span<'static>>,
    /// Styles of the open inline elements; the last one applies.
    styles: Vec<Style>,
    /// Prefixes of the open blocks, outermost first.
    prefixes: Vec<BlockPrefix>,
    /// The next number of each open list; `None` for a bullet list.
    lists: Vec<Option<u64>>,
    /// Language and text of the open code block.
    code: Option<(String, String)>,
    table: Option<MarkdownTable>,
    /// Address and text of the open link.
    link: Option<(String, String)>,
}

impl MarkdownRenderer {
    fn handle_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start_tag(tag),
            Event::End(tag) => self.end_tag(tag),
            Event::Text(text) => self.handle_text(&text),
            Event::Code(text) => {
                self.push_text(&text, self.current_style().patch(self.theme.code()))
            }
            Event::Html(text) | Event::InlineHtml(text) => {
                let dim = self.current_style().patch(self.theme.dim());
                for (index, line) in text.trim_end_matches('\n').split('\n').enumerate() {
                    if index > 0 {
                        self.flush_line();
                    }
                    self.push_text(line, dim);
                }
                if text.ends_with('\n') {
                    self.flush_line();
                }
            }
            Event::SoftBreak => self.push_text(" ", self.current_style()),
            Event::HardBreak => self.flush_line(),
            Event::Rule => {
                self.separate_blocks();
                self.rows
                    .push(StyledRow::dim("─".repeat(self.width.min(40))).truncated());
            }
            Event::TaskListMarker(done) => {
                // The box takes the place of the bullet.
                let mark = if done { "☑ " } else { "☐ " };
                let bullet = self.prefixes.last_mut();
                match bullet.and_then(|prefix| prefix.first.as_mut()) {
                    Some(first) => *first = Span::styled(mark, self.theme.dim()),
                    None => self.push_text(mark, self.current_style()),
                }
            }
            _ => {}
        }
    }

    fn start_tag(&mut self, tag: Tag<'_>) {
        let theme = self.theme;
        match tag {
            Tag::Paragraph => self.separate_blocks(),
            Tag::Heading { level, .. } => {
                self.separate_blocks();
                self.styles.push(match level {
                    HeadingLevel::H1 => theme.heading().add_modifier(Modifier::UNDERLINED),
                    _ => theme.heading(),
                });
            }
            Tag::BlockQuote(_) => {
                self.separate_blocks();
                self.prefixes.push(BlockPrefix {
                    first: None,
                    rest: Span::styled("│ ", theme.dim()),
                });
            }
            Tag::CodeBlock(kind) => {
                self.flush_line();
                self.separate_blocks();
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((language, String::new()));
            }
            Tag::List(first_number) => {
                self.flush_line();
                if self.lists.is_empty() {
                    self.separate_blocks();
                }
                self.lists.push(first_number);
            }
            Tag::Item => {
                self.flush_line();
                let bullet = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                };
                let rest = Span::raw(" ".repeat(bullet.chars().count()));
                self.prefixes.push(BlockPrefix {
                    first: Some(Span::styled(bullet, theme.dim())),
                    rest,
                });
            }
            Tag::Emphasis => self.push_modifier(Modifier::ITALIC),
            Tag::Strong => self.push_modifier(Modifier::BOLD),
            Tag::Strikethrough => self.push_modifier(Modifier::CROSSED_OUT),
            Tag::Link { dest_url, .. } => self.begin_link(&dest_url),
            Tag::Image { dest_url, .. } => {
                self.push_text("image: ", self.current_style().patch(theme.dim()));
                self.begin_link(&dest_url);
            }
            Tag::Table(alignments) => {
                self.separate_blocks();
                self.table = Some(MarkdownTable::new(alignments));
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.begin_row();
                }
            }
            _ => {}
        }
    }

    fn push_modifier(&mut self, modifier: Modifier) {
        self.styles
            .push(self.current_style().add_modifier(modifier));
    }

    fn begin_link(&mut self, address: &str) {
        self.styles
            .push(self.current_style().patch(self.theme.link()));
        self.link = Some((address.to_owned(), String::new()));
    }

    fn end_tag(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.flush_line(),
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.flush_line();
            }
            TagEnd::BlockQuote(_) => {
                self.flush_line();
                self.prefixes.pop();
            }
            TagEnd::CodeBlock => {
                let (language, text) = self.code.take().unwrap_or_default();
                for row in highlight_code(&language, &text, self.theme) {
                    self.push_row(row.indented(2));
                }
            }
            TagEnd::List(_) => {
                self.flush_line();
                self.lists.pop();
            }
            TagEnd::Item => {
                self.flush_line();
                // An empty item still shows its bullet.
                if self
                    .prefixes
                    .last()
                    .is_some_and(|prefix| prefix.first.is_some())
                {
                    self.push_row(StyledRow::blank());
                }
                self.prefixes.pop();
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
                    let dim = self.current_style().patch(self.theme.dim());
                    self.push_text(&format!(" ({address})"), dim);
                }
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.line_spans);
                if let Some(table) = &mut self.table {
                    table.add_cell(cell);
                }
            }
            TagEnd::Table => {
                let indent: usize = self.prefixes.iter().map(|prefix| prefix.rest.width()).sum();
                let table = self.table.take().unwrap_or_default();
                for row in table.render(self.width.saturating_sub(indent), self.theme) {
                    self.push_row(row);
                }
            }
            _ => {}
        }
    }

    fn handle_text(&mut self, text: &str) {
        if let Some((_, code)) = &mut self.code {
            code.push_str(text);
            return;
        }
        if let Some((_, link_text)) = &mut self.link {
            link_text.push_str(text);
        }
        self.push_text(text, self.current_style());
    }

    fn push_text(&mut self, text: &str, style: Style) {
        let text = sanitize(text).replace('\n', " ");
        self.line_spans.push(Span::styled(text, style));
    }

    fn current_style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    /// Adds the current paragraph as a row. Cells of a table are added elsewhere.
    fn flush_line(&mut self) {
        if self.line_spans.is_empty() || self.table.is_some() {
            return;
        }
        let body = std::mem::take(&mut self.line_spans);
        self.push_row(StyledRow::spans(body));
    }

    /// Adds a row with the prefixes of the blocks around it.
    fn push_row(&mut self, mut row: StyledRow) {
        row.rest_prefix
            .splice(0..0, self.prefixes.iter().map(|prefix| prefix.rest.clone()));
        let prefixes = self.prefixes.iter_mut();
        let first = prefixes.map(|prefix| {
            let first = prefix.first.take();
            first.unwrap_or_else(|| prefix.rest.clone())
        });
        row.first_prefix.splice(0..0, first);
        self.rows.push(row);
    }

    /// Separates blocks by a blank row, except inside lists.
    fn separate_blocks(&mut self) {
        self.flush_line();
        let is_separator = |row: &StyledRow| row.is_blank() && row.first_prefix.is_empty();
        if self.lists.is_empty() && self.rows.last().is_some_and(|row| !is_separator(row)) {
            self.push_row(StyledRow::blank());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::wrap_rows;
    use super::*;

    fn shown(text: &str, width: usize) -> String {
        let lines: Vec<String> = wrap_rows(&render_markdown(text, width, Theme::Plain), width)
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
             ☑ done\n☐ open\n\nhttps://e.org"
        );
    }

    #[test]
    fn emphasis_and_code_have_their_styles() {
        let rows = render_markdown("**bold** *slanted* `code`", 40, Theme::Colour);
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
        assert_eq!(style("code"), Theme::Colour.code());
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
            assert_eq!(&text[last_block_start(text)..], rest, "{text:?}");
        }
    }

    /// Blocks that were final at any length of the text render as they do in the whole text.
    #[test]
    fn blocks_printed_early_equal_those_of_the_whole_text() {
        let mut done = 0;
        let mut early: Vec<StyledRow> = Vec::new();
        let ends = PAGE.char_indices().map(|(end, _)| end).chain([PAGE.len()]);
        for end in ends {
            let last = done + last_block_start(&PAGE[done..end]);
            if last > done {
                if !early.is_empty() {
                    early.push(StyledRow::blank());
                }
                early.extend(render_markdown(&PAGE[done..last], 40, Theme::Plain));
                done = last;
            }
        }
        early.push(StyledRow::blank());
        early.extend(render_markdown(&PAGE[done..], 40, Theme::Plain));
        let text = |rows: &[StyledRow]| {
            wrap_rows(rows, 40)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(text(&early), text(&render_markdown(PAGE, 40, Theme::Plain)));
    }
}
