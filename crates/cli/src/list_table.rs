//! Lists in aligned columns. At a terminal they have headings and colour; into a pipe only the
//! rows are written.

use std::io::{self, IsTerminal};

use selvedge_text::{truncate_chars, visible_line};
use unicode_width::UnicodeWidthStr;

use crate::chat::truncate;
use crate::output::{has_colour, print_with_escapes};

/// Parameter of the escape sequence for headings.
const HEADING_COLOUR: &str = "2";
/// Between two columns.
pub(crate) const COLUMN_GAP: &str = "  ";
/// Columns are not made narrower than this. Other columns are left out instead.
const MIN_COLUMN_WIDTH: usize = 12;

/// A cell: its text, and the parameter of the escape sequence for its colour.
#[derive(Debug, Clone)]
pub(crate) struct ListCell {
    text: String,
    colour: Option<&'static str>,
}

impl From<String> for ListCell {
    fn from(text: String) -> Self {
        Self { text, colour: None }
    }
}

impl From<&str> for ListCell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl ListCell {
    pub(crate) fn coloured(text: &str, colour: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            colour: Some(colour),
        }
    }
}

/// Prints rows under headings, each column as wide as its widest cell. In a narrow terminal, long
/// cells are cut, and the last columns are left out.
pub(crate) fn print_list(headings: &[&str], rows: Vec<Vec<ListCell>>) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let style = match (io::stdout().is_terminal(), has_colour()) {
        (false, _) => ListStyle::Pipe,
        (true, false) => ListStyle::Plain,
        (true, true) => ListStyle::Colour,
    };
    let width = match (style, crossterm::terminal::size()) {
        (ListStyle::Plain | ListStyle::Colour, Ok((width @ 1.., _))) => width.into(),
        _ => usize::MAX,
    };
    print_with_escapes(&format_list(headings, rows, style, width))
}

/// Returns rows as lines with aligned columns, without headings.
pub(crate) fn aligned_lines(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |text: &String| visible_line(text).into_owned().into();
    let cells = rows.iter().map(|row| row.iter().map(cell).collect());
    let text = format_list(
        &vec![""; columns],
        cells.collect(),
        ListStyle::Pipe,
        usize::MAX,
    );
    text.lines().map(str::to_owned).collect()
}

/// Keeps the first `limit` rows of a list. Returns whether there were more.
pub(crate) fn cut_list<T>(rows: &mut Vec<T>, limit: u32) -> bool {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_cut = rows.len() > limit;
    rows.truncate(limit);
    is_cut
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListStyle {
    Pipe,
    Plain,
    Colour,
}

fn format_list(
    headings: &[&str],
    mut rows: Vec<Vec<ListCell>>,
    style: ListStyle,
    available: usize,
) -> String {
    if style != ListStyle::Pipe {
        let head = headings
            .iter()
            .map(|text| ListCell::coloured(text, HEADING_COLOUR));
        rows.insert(0, head.collect());
        for cell in rows.iter_mut().flatten() {
            cell.text = visible_line(&cell.text).into_owned();
        }
    }
    let widths = column_widths(&rows, headings.len(), |cell| &cell.text);
    let widths = fit_columns(&widths, available);
    let line = |row: &Vec<ListCell>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let text = truncate(&cell.text, *width);
            let padding = column_padding(&text, *width);
            match (style, cell.colour) {
                (ListStyle::Colour, Some(colour)) => {
                    format!("\x1b[{colour}m{text}\x1b[0m{padding}")
                }
                _ => format!("{text}{padding}"),
            }
        });
        let cells: Vec<String> = cells.collect();
        cells.join(COLUMN_GAP).trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the width of the widest cell of each column.
pub(crate) fn column_widths<Cell>(
    rows: &[impl AsRef<[Cell]>],
    columns: usize,
    text: impl Fn(&Cell) -> &str,
) -> Vec<usize> {
    let column_width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| text(cell).width()).max().unwrap_or(0)
    };
    (0..columns).map(column_width).collect()
}

/// Returns the spaces that fill a column after a text.
pub(crate) fn column_padding(text: &str, width: usize) -> String {
    " ".repeat(width.saturating_sub(text.width()))
}

/// Returns the widths of the columns that fit into `available`. The first column, which has the
/// ids, keeps its width. The widest others are narrowed to [`MIN_COLUMN_WIDTH`]; if that is not
/// enough, the last are left out.
fn fit_columns(widths: &[usize], available: usize) -> Vec<usize> {
    let total = |widths: &[usize]| {
        widths.iter().sum::<usize>() + COLUMN_GAP.len() * widths.len().saturating_sub(1)
    };
    for count in (2..=widths.len()).rev() {
        let mut fitted = widths[..count].to_vec();
        while total(&fitted) > available
            && let Some(widest) = fitted.iter_mut().skip(1).max()
            && *widest > MIN_COLUMN_WIDTH
        {
            *widest -= 1;
        }
        if total(&fitted) <= available {
            return fitted;
        }
    }
    widths.iter().take(1).copied().collect()
}

/// Returns the first line of a script that is not empty, shortened.
pub(crate) fn first_code_line(source: &str) -> String {
    /// Characters of the line that are shown.
    const MAX_LINE_CHARS: usize = 40;
    let mut lines = source.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty()).unwrap_or_default();
    truncate_chars(first, MAX_LINE_CHARS).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_also_with_wide_characters_and_only_terminals_get_headings() {
        let rows = || {
            vec![
                vec!["a".into(), ListCell::coloured("日本", "32"), "x".into()],
                vec!["long".into(), ListCell::coloured("ok", "31"), "y\n".into()],
            ]
        };
        let heads = ["ID", "STATE", "TITLE"];
        assert_eq!(
            format_list(&heads, rows(), ListStyle::Pipe, usize::MAX),
            "a     日本  x\nlong  ok    y"
        );
        assert_eq!(
            format_list(&heads, rows(), ListStyle::Plain, usize::MAX),
            "ID    STATE  TITLE\na     日本   x\nlong  ok     y⏎"
        );
        let coloured = format_list(&heads, rows(), ListStyle::Colour, usize::MAX);
        assert!(coloured.contains("\x1b[32m日本\x1b[0m   x"), "{coloured:?}");
    }

    #[test]
    fn a_list_fits_into_the_terminal_and_keeps_its_first_column() {
        let row = [
            "ses_0123456789",
            "2 min ago",
            "日本語の長い題名です",
            "/data/of/mine/a",
        ];
        let rows = || vec![row.map(ListCell::from).to_vec()];
        let shown = |width| {
            format_list(
                &["ID", "USED", "TITLE", "FOLDER"],
                rows(),
                ListStyle::Plain,
                width,
            )
        };
        let expected = [
            (
                80,
                "ses_0123456789  2 min ago  日本語の長い題名です  /data/of/mine/a",
            ),
            (
                56,
                "ses_0123456789  2 min ago  日本語の長い…   /data/of/min…",
            ),
            (53, "ses_0123456789  2 min ago  日本語の長…   /data/of/mi…"),
            (52, "ses_0123456789  2 min ago  日本語の長い題名です"),
            (26, "ses_0123456789  2 min ago"),
            (10, "ses_0123456789"),
        ];
        for (width, line) in expected {
            assert_eq!(shown(width).lines().nth(1), Some(line), "{width}");
        }
    }
}
