//! Styled rows of text, and wrapping them to the width of the terminal.

use std::borrow::Cow;

use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use selvedge_text::{visible, visible_line};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::theme::Theme;

/// How a row that is too long for the terminal is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WrapMode {
    /// Wrapped between words.
    #[default]
    Words,
    /// Wrapped anywhere; keeps all spaces.
    Anywhere,
    /// Truncated to one line.
    Truncate,
}

/// A logical line of text, such as a paragraph or a line of code, before it is wrapped.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct StyledRow {
    /// Prefix of the first wrapped line.
    pub(crate) first_prefix: Vec<Span<'static>>,
    /// Prefix of the further wrapped lines.
    pub(crate) rest_prefix: Vec<Span<'static>>,
    pub(crate) body: Vec<Span<'static>>,
    /// End of the row. A row that is truncated loses text of its body instead.
    pub(crate) tail: Vec<Span<'static>>,
    pub(crate) wrap: WrapMode,
}

impl StyledRow {
    pub(crate) fn blank() -> Self {
        Self::default()
    }

    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self::spans(vec![Span::styled(text.into(), style)])
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::styled(text, Style::new())
    }

    /// A row of dimmed text. Dimming needs no colour, so the theme does not matter.
    pub(crate) fn dim(text: impl Into<String>) -> Self {
        Self::styled(text, Theme::Plain.dim())
    }

    pub(crate) fn spans(body: Vec<Span<'static>>) -> Self {
        Self {
            body,
            ..Self::default()
        }
    }

    /// Puts a prefix before the row. Further lines are indented by its width.
    pub(crate) fn with_prefix(mut self, prefix: Span<'static>) -> Self {
        let indent = " ".repeat(prefix.content.width());
        self.first_prefix.insert(0, prefix);
        self.rest_prefix.insert(0, Span::raw(indent));
        self
    }

    pub(crate) fn indented(self, columns: usize) -> Self {
        self.with_prefix(Span::raw(" ".repeat(columns)))
    }

    pub(crate) fn truncated(self) -> Self {
        self.with_wrap(WrapMode::Truncate)
    }

    pub(crate) fn with_wrap(mut self, wrap: WrapMode) -> Self {
        self.wrap = wrap;
        self
    }

    /// Puts spans at the end of the row, which stay if the row is truncated.
    pub(crate) fn with_tail(mut self, tail: Vec<Span<'static>>) -> Self {
        self.tail = tail;
        self
    }

    pub(crate) fn is_blank(&self) -> bool {
        let mut spans = self.body.iter().chain(&self.tail);
        spans.all(|span| span.content.trim().is_empty())
    }

    /// Returns the text without styles.
    #[cfg(test)]
    pub(crate) fn plain(&self) -> String {
        self.first_prefix
            .iter()
            .chain(&self.body)
            .chain(&self.tail)
            .map(|span| span.content.as_ref())
            .collect()
    }

    /// Returns the row as lines of at most `width` columns.
    pub(crate) fn wrapped(&self, width: usize) -> Vec<Line<'static>> {
        let width = width.max(1);
        let mut graphemes = split_graphemes(&self.body);
        let tail = split_graphemes(&self.tail);
        let first_width = spans_width(&self.first_prefix);
        let rest_width = spans_width(&self.rest_prefix);
        // Drop the prefixes if they leave fewer than four columns.
        let (first_prefix, rest_prefix) = match first_width.max(rest_width) + 4 > width {
            true => (Vec::new(), Vec::new()),
            false => (self.first_prefix.clone(), self.rest_prefix.clone()),
        };
        let (first, rest) = (
            width - spans_width(&first_prefix),
            width - spans_width(&rest_prefix),
        );
        let lines = match self.wrap {
            WrapMode::Truncate => vec![truncate_before_tail(graphemes, tail, first)],
            WrapMode::Words => {
                graphemes.extend(tail);
                wrap_words(&graphemes, first, rest)
            }
            WrapMode::Anywhere => {
                graphemes.extend(tail);
                wrap_anywhere(&graphemes, first, rest)
            }
        };
        let lines = lines.into_iter().enumerate();
        lines
            .map(|(index, graphemes)| {
                let mut spans = match index {
                    0 => first_prefix.clone(),
                    _ => rest_prefix.clone(),
                };
                spans.extend(join_spans(&graphemes));
                Line::from(spans)
            })
            .collect()
    }
}

/// Returns all rows as lines of at most `width` columns.
pub(crate) fn wrap_rows(rows: &[StyledRow], width: usize) -> Vec<Line<'static>> {
    rows.iter().flat_map(|row| row.wrapped(width)).collect()
}

/// Keeps the first `max_rows` rows, and adds a row that counts the others.
pub(crate) fn fold_rows(rows: Vec<StyledRow>, max_rows: usize) -> Vec<StyledRow> {
    fold_with_advice(rows, max_rows, "")
}

/// Folds rows that `/expand` shows in full.
pub(crate) fn fold_expandable_rows(rows: Vec<StyledRow>, max_rows: usize) -> Vec<StyledRow> {
    fold_with_advice(rows, max_rows, "; Ctrl-O shows all")
}

fn fold_with_advice(mut rows: Vec<StyledRow>, max_rows: usize, advice: &str) -> Vec<StyledRow> {
    let more = rows.len().saturating_sub(max_rows);
    rows.truncate(max_rows);
    if more > 0 {
        let lines = if more == 1 { "line" } else { "lines" };
        rows.push(StyledRow::dim(format!("… {more} more {lines}{advice}")));
    }
    rows
}

/// Makes hidden characters visible, among them those that a terminal would obey, and expands tabs.
pub(crate) fn sanitize(text: &str) -> Cow<'_, str> {
    match visible(text) {
        Cow::Borrowed(text) if !text.contains('\t') => Cow::Borrowed(text),
        other => Cow::Owned(other.replace('\t', "    ")),
    }
}

/// Makes hidden characters visible as [`sanitize`] does, and line breaks, too.
pub(crate) fn sanitize_line(text: &str) -> String {
    sanitize(text).replace('\n', "⏎")
}

/// Truncates text to `width` columns. A truncated text ends with `…`.
pub(crate) fn truncate(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for grapheme in text.graphemes(true) {
        if shown.width() + grapheme.width() + 1 > width {
            break;
        }
        shown.push_str(grapheme);
    }
    shown.push('…');
    shown
}

fn spans_width(spans: &[Span<'_>]) -> usize {
    spans.iter().map(|span| span.content.width()).sum()
}

/// A grapheme cluster with its style and its width in columns.
#[derive(Debug, Clone)]
struct StyledGrapheme {
    text: String,
    width: usize,
    style: Style,
}

impl StyledGrapheme {
    fn is_space(&self) -> bool {
        self.text == " "
    }
}

fn split_graphemes(spans: &[Span<'_>]) -> Vec<StyledGrapheme> {
    let grapheme = |text: &str, style| StyledGrapheme {
        text: text.to_owned(),
        width: text.width(),
        style,
    };
    let of_span = |span: &Span<'_>| -> Vec<StyledGrapheme> {
        // Rows should be sanitized already. This ensures that the width of each is measured as it
        // is shown.
        visible_line(&span.content)
            .graphemes(true)
            .map(|text| grapheme(text, span.style))
            .collect()
    };
    spans.iter().flat_map(of_span).collect()
}

/// Joins graphemes of the same style into spans.
fn join_spans(graphemes: &[StyledGrapheme]) -> Vec<Span<'static>> {
    let same_style = graphemes.chunk_by(|one, next| one.style == next.style);
    same_style
        .map(|chunk| {
            let text: String = chunk
                .iter()
                .map(|grapheme| grapheme.text.as_str())
                .collect();
            Span::styled(text, chunk[0].style)
        })
        .collect()
}

/// Wraps between words, to `first` columns in the first line and `rest` in the others.
fn wrap_words(graphemes: &[StyledGrapheme], first: usize, rest: usize) -> Vec<Vec<StyledGrapheme>> {
    let mut lines: Vec<Vec<StyledGrapheme>> = Vec::new();
    let mut line: Vec<StyledGrapheme> = Vec::new();
    let mut used = 0;
    let mut next = 0;
    while next < graphemes.len() {
        let available = if lines.is_empty() { first } else { rest };
        let spaces = graphemes[next..]
            .iter()
            .take_while(|grapheme| grapheme.is_space())
            .count();
        // Of a word that is longer than every line, only that is known: looking for its end again
        // for each line would take time quadratic in its length.
        let mut word_width = 0;
        let word = graphemes[next + spaces..]
            .iter()
            .take_while(|grapheme| {
                let fits = word_width <= first.max(rest);
                word_width += grapheme.width;
                fits && !grapheme.is_space()
            })
            .count();
        let chunk = &graphemes[next..next + spaces + word];
        let width: usize = chunk.iter().map(|grapheme| grapheme.width).sum();
        if used + width <= available {
            line.extend_from_slice(chunk);
            used += width;
            next += spaces + word;
            continue;
        }
        if line.is_empty() || width - spaces > rest {
            // A word longer than a line is broken at the end of the line.
            let from = if line.is_empty() && !lines.is_empty() {
                spaces
            } else {
                0
            };
            let mut taken = from;
            for grapheme in &chunk[from..] {
                if used + grapheme.width > available && !line.is_empty() {
                    break;
                }
                used += grapheme.width;
                line.push(grapheme.clone());
                taken += 1;
            }
            next += taken;
        } else {
            // Drop the spaces at which the line is broken.
            next += spaces;
        }
        lines.push(std::mem::take(&mut line));
        used = 0;
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// Wraps anywhere, to `first` columns in the first line and `rest` in the others.
fn wrap_anywhere(
    graphemes: &[StyledGrapheme],
    first: usize,
    rest: usize,
) -> Vec<Vec<StyledGrapheme>> {
    let mut lines: Vec<Vec<StyledGrapheme>> = vec![Vec::new()];
    let mut used = 0;
    for grapheme in graphemes {
        let available = if lines.len() == 1 { first } else { rest };
        if used + grapheme.width > available && used > 0 {
            lines.push(Vec::new());
            used = 0;
        }
        used += grapheme.width;
        if let Some(line) = lines.last_mut() {
            line.push(grapheme.clone());
        }
    }
    lines
}

/// Truncates a body so that it fits into `available` columns together with its tail. A tail that
/// takes more than two thirds of the line is truncated itself.
fn truncate_before_tail(
    mut body: Vec<StyledGrapheme>,
    tail: Vec<StyledGrapheme>,
    available: usize,
) -> Vec<StyledGrapheme> {
    let tail_width: usize = tail.iter().map(|grapheme| grapheme.width).sum();
    if tail_width * 3 > available * 2 {
        body.extend(tail);
        return truncate_graphemes(body, available);
    }
    let mut line = truncate_graphemes(body, available - tail_width);
    line.extend(tail);
    line
}

/// Truncates to `available` columns. A truncated line ends with `…`.
fn truncate_graphemes(graphemes: Vec<StyledGrapheme>, available: usize) -> Vec<StyledGrapheme> {
    let width: usize = graphemes.iter().map(|grapheme| grapheme.width).sum();
    if width <= available {
        return graphemes;
    }
    let mut used = 0;
    let mut shown: Vec<StyledGrapheme> = Vec::new();
    for grapheme in graphemes {
        if used + grapheme.width + 1 > available {
            shown.push(StyledGrapheme {
                text: "…".to_owned(),
                width: 1,
                style: grapheme.style,
            });
            break;
        }
        used += grapheme.width;
        shown.push(grapheme);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(row: &StyledRow, width: usize) -> Vec<String> {
        row.wrapped(width).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rows_wrap_between_words_and_align_after_their_prefix() {
        let row =
            StyledRow::styled("one two three fourteen", Style::new()).with_prefix(Span::raw("- "));
        assert_eq!(lines(&row, 11), ["- one two", "  three", "  fourteen"]);
        assert_eq!(lines(&StyledRow::blank(), 10), [""]);
    }

    #[test]
    fn a_word_longer_than_the_line_is_broken_without_losing_text() {
        let text = "a https://example.com/a/very/long/path end";
        let joined: String = lines(&StyledRow::styled(text, Style::new()), 12).concat();
        assert_eq!(joined.replace(' ', ""), text.replace(' ', ""));
        for width in 1..60 {
            for line in lines(
                &StyledRow::styled("漢字 and é🙂 wide letters", Style::new()),
                width.max(2),
            ) {
                assert!(line.width() <= width.max(2), "{line:?} in {width}");
            }
        }
    }

    /// The time would be minutes if it grew with the square of the length.
    #[test]
    fn a_very_long_word_is_wrapped_in_one_pass() {
        for text in [
            "x".repeat(1 << 20),
            "ab ".repeat(1 << 18),
            " ".repeat(1 << 20),
        ] {
            let started = std::time::Instant::now();
            let row = StyledRow::text(text.as_str());
            let joined: String = lines(&row, 80).concat();
            assert_eq!(joined.replace(' ', ""), text.replace(' ', ""));
            assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
        }
    }

    #[test]
    fn verbatim_text_keeps_its_spaces() {
        let row = StyledRow::styled("    let x  = 1;", Style::new()).with_wrap(WrapMode::Anywhere);
        assert_eq!(lines(&row, 8).concat(), "    let x  = 1;");
        assert_eq!(lines(&row.with_wrap(WrapMode::Truncate), 8), ["    let…"]);
    }

    #[test]
    fn a_truncated_row_keeps_its_tail() {
        let row = StyledRow::text("exec echo 日本語日本語")
            .with_tail(vec![Span::raw("  exit 3")])
            .indented(2);
        assert_eq!(row.plain(), "  exec echo 日本語日本語  exit 3");
        let truncated = row.clone().truncated();
        assert_eq!(lines(&truncated, 24), ["  exec echo 日…  exit 3"]);
        assert_eq!(lines(&truncated, 40), ["  exec echo 日本語日本語  exit 3"]);
        assert_eq!(lines(&row, 24), ["  exec echo 日本語日本語", "  exit 3"]);
        // The tail alone would fill the line.
        assert_eq!(lines(&truncated, 10), ["  exec ec…"]);
    }

    #[test]
    fn hidden_characters_are_shown() {
        assert_eq!(sanitize("a\u{1b}[2J\tb"), "a\\u{1b}[2J    b");
        let row = StyledRow::text("a\u{200b}b").with_wrap(WrapMode::Truncate);
        assert_eq!(lines(&row, 6), ["a\\u{2…"]);
        assert_eq!(sanitize_line("a\nb"), "a⏎b");
        assert_eq!(truncate("abcdef", 4), "abc…");
    }
}
