//! Rows: text before it is fitted to the width of a window, and the fitting.

use std::borrow::Cow;

use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::look::Look;
use crate::out::harmless;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fit {
    /// Broken between words.
    #[default]
    Words,
    /// Broken anywhere: what is verbatim stays so.
    Letters,
    /// One line; what is too long is cut off.
    Cut,
}

/// A paragraph, a line of code, a line about something.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Row {
    /// Stands before the first line.
    pub(crate) lead: Vec<Span<'static>>,
    /// Stands before the others.
    pub(crate) hang: Vec<Span<'static>>,
    pub(crate) body: Vec<Span<'static>>,
    pub(crate) fit: Fit,
}

impl Row {
    pub(crate) fn blank() -> Self {
        Self::default()
    }

    pub(crate) fn of(text: impl Into<String>, style: Style) -> Self {
        Self::spans(vec![Span::styled(text.into(), style)])
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::of(text, Style::new())
    }

    /// Dimmed text, which every look draws the same.
    pub(crate) fn quiet(text: impl Into<String>) -> Self {
        Self::of(text, Look::Plain.quiet())
    }

    pub(crate) fn spans(body: Vec<Span<'static>>) -> Self {
        Self {
            body,
            ..Self::default()
        }
    }

    /// The same behind this, the lines after the first one as far in.
    pub(crate) fn behind(mut self, lead: Span<'static>) -> Self {
        let room = " ".repeat(lead.content.width());
        self.lead.insert(0, lead);
        self.hang.insert(0, Span::raw(room));
        self
    }

    pub(crate) fn indent(self, columns: usize) -> Self {
        self.behind(Span::raw(" ".repeat(columns)))
    }

    pub(crate) fn cut(self) -> Self {
        self.fit(Fit::Cut)
    }

    pub(crate) fn fit(mut self, fit: Fit) -> Self {
        self.fit = fit;
        self
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.body.iter().all(|span| span.content.trim().is_empty())
    }

    /// The words alone, for whoever looks at a test.
    #[cfg(test)]
    pub(crate) fn plain(&self) -> String {
        self.lead
            .iter()
            .chain(&self.body)
            .map(|span| span.content.as_ref())
            .collect()
    }

    /// The row in lines of at most this width.
    pub(crate) fn fitted(&self, width: usize) -> Vec<Line<'static>> {
        let width = width.max(1);
        let letters = letters(&self.body);
        let lead_width = spans_width(&self.lead);
        let hang_width = spans_width(&self.hang);
        // Where even the indent does not fit, there is none.
        let (lead, hang) = match lead_width.max(hang_width) + 4 > width {
            true => (Vec::new(), Vec::new()),
            false => (self.lead.clone(), self.hang.clone()),
        };
        let (first, rest) = (width - spans_width(&lead), width - spans_width(&hang));
        let lines = match self.fit {
            Fit::Words => break_words(&letters, first, rest),
            Fit::Letters => break_letters(&letters, first, rest),
            Fit::Cut => vec![cut(letters, first)],
        };
        let lines = lines.into_iter().enumerate();
        lines
            .map(|(at, letters)| {
                let mut spans = if at == 0 { lead.clone() } else { hang.clone() };
                spans.extend(joined(&letters));
                Line::from(spans)
            })
            .collect()
    }
}

/// All rows in lines of at most this width.
pub(crate) fn fitted(rows: &[Row], width: usize) -> Vec<Line<'static>> {
    rows.iter().flat_map(|row| row.fitted(width)).collect()
}

/// The first rows, and how many lines are left out where there are more.
pub(crate) fn folded(mut rows: Vec<Row>, most: usize) -> Vec<Row> {
    let more = rows.len().saturating_sub(most);
    rows.truncate(most);
    if more > 0 {
        rows.push(Row::quiet(format!("… {more} more lines")));
    }
    rows
}

/// Text that a terminal shows as it is: nothing in it steers, tabs have a width.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    match harmless(text) {
        Cow::Borrowed(text) if !text.contains('\t') => Cow::Borrowed(text),
        other => Cow::Owned(other.replace('\t', "    ")),
    }
}

/// The same in one line.
pub(crate) fn one_line(text: &str) -> String {
    clean(text).replace('\n', "⏎")
}

/// At most so many columns, with a sign where something was cut.
pub(crate) fn short(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for letter in text.graphemes(true) {
        if shown.width() + letter.width() + 1 > width {
            break;
        }
        shown.push_str(letter);
    }
    shown.push('…');
    shown
}

fn spans_width(spans: &[Span<'_>]) -> usize {
    spans.iter().map(|span| span.content.width()).sum()
}

/// What a person sees as one letter.
#[derive(Debug, Clone)]
struct Letter {
    text: String,
    width: usize,
    style: Style,
}

impl Letter {
    fn is_space(&self) -> bool {
        self.text == " "
    }
}

fn letters(spans: &[Span<'_>]) -> Vec<Letter> {
    let letter = |text: &str, style| Letter {
        text: text.to_owned(),
        width: text.width(),
        style,
    };
    let of_span = |span: &Span<'_>| -> Vec<Letter> {
        span.content
            .graphemes(true)
            .map(|text| letter(text, span.style))
            .collect()
    };
    spans.iter().flat_map(of_span).collect()
}

fn joined(letters: &[Letter]) -> Vec<Span<'static>> {
    let runs = letters.chunk_by(|one, next| one.style == next.style);
    runs.map(|run| {
        let text: String = run.iter().map(|letter| letter.text.as_str()).collect();
        Span::styled(text, run[0].style)
    })
    .collect()
}

fn break_words(letters: &[Letter], first: usize, rest: usize) -> Vec<Vec<Letter>> {
    let mut lines: Vec<Vec<Letter>> = Vec::new();
    let mut line: Vec<Letter> = Vec::new();
    let mut used = 0;
    let mut at = 0;
    while at < letters.len() {
        let room = if lines.is_empty() { first } else { rest };
        let spaces = letters[at..]
            .iter()
            .take_while(|letter| letter.is_space())
            .count();
        let word = letters[at + spaces..]
            .iter()
            .take_while(|letter| !letter.is_space())
            .count();
        let piece = &letters[at..at + spaces + word];
        let width: usize = piece.iter().map(|letter| letter.width).sum();
        if used + width <= room {
            line.extend_from_slice(piece);
            used += width;
            at += spaces + word;
            continue;
        }
        if line.is_empty() || width - spaces > rest {
            // A word longer than a line is broken where the line ends.
            let from = if line.is_empty() && !lines.is_empty() {
                spaces
            } else {
                0
            };
            let mut taken = from;
            for letter in &piece[from..] {
                if used + letter.width > room && !line.is_empty() {
                    break;
                }
                used += letter.width;
                line.push(letter.clone());
                taken += 1;
            }
            at += taken;
        } else {
            // The spaces between words end with the line.
            at += spaces;
        }
        lines.push(std::mem::take(&mut line));
        used = 0;
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

fn break_letters(letters: &[Letter], first: usize, rest: usize) -> Vec<Vec<Letter>> {
    let mut lines: Vec<Vec<Letter>> = vec![Vec::new()];
    let mut used = 0;
    for letter in letters {
        let room = if lines.len() == 1 { first } else { rest };
        if used + letter.width > room && used > 0 {
            lines.push(Vec::new());
            used = 0;
        }
        used += letter.width;
        if let Some(line) = lines.last_mut() {
            line.push(letter.clone());
        }
    }
    lines
}

fn cut(letters: Vec<Letter>, room: usize) -> Vec<Letter> {
    let width: usize = letters.iter().map(|letter| letter.width).sum();
    if width <= room {
        return letters;
    }
    let mut used = 0;
    let mut shown: Vec<Letter> = Vec::new();
    for letter in letters {
        if used + letter.width + 1 > room {
            shown.push(Letter {
                text: "…".to_owned(),
                width: 1,
                style: letter.style,
            });
            break;
        }
        used += letter.width;
        shown.push(letter);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(row: &Row, width: usize) -> Vec<String> {
        row.fitted(width).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn words_are_kept_whole_and_hang_behind_their_mark() {
        let row = Row::of("one two three fourteen", Style::new()).behind(Span::raw("- "));
        assert_eq!(lines(&row, 11), ["- one two", "  three", "  fourteen"]);
        assert_eq!(lines(&Row::blank(), 10), [""]);
    }

    #[test]
    fn a_word_longer_than_the_line_is_broken_and_nothing_is_lost() {
        let text = "a https://example.com/a/very/long/path end";
        let joined: String = lines(&Row::of(text, Style::new()), 12).concat();
        assert_eq!(joined.replace(' ', ""), text.replace(' ', ""));
        for width in 1..60 {
            for line in lines(
                &Row::of("漢字 and é🙂 wide letters", Style::new()),
                width.max(2),
            ) {
                assert!(line.width() <= width.max(2), "{line:?} in {width}");
            }
        }
    }

    #[test]
    fn verbatim_text_keeps_its_spaces() {
        let row = Row::of("    let x  = 1;", Style::new()).fit(Fit::Letters);
        assert_eq!(lines(&row, 8).concat(), "    let x  = 1;");
        assert_eq!(lines(&row.fit(Fit::Cut), 8), ["    let…"]);
    }

    #[test]
    fn nothing_in_a_text_steers_the_terminal() {
        assert_eq!(clean("a\u{1b}[2J\tb"), "a\u{fffd}[2J    b");
        assert_eq!(one_line("a\nb"), "a⏎b");
        assert_eq!(short("abcdef", 4), "abc…");
    }
}
