//! Renders tables. Columns are as wide as their content; in a narrow terminal cells are wrapped, or
//! the table becomes a list of `name: value`.

use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

use super::look::Look;
use super::rows::Row;

const GAP: &str = " │ ";
/// Columns are not made narrower than this.
const NARROWEST: usize = 8;

type Cell = Vec<Span<'static>>;

#[derive(Debug, Default)]
pub(crate) struct Table {
    /// The rows of the table; the first is the header.
    lines: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn begin_row(&mut self) {
        self.lines.push(Vec::new());
    }

    pub(crate) fn add(&mut self, cell: Cell) {
        if let Some(line) = self.lines.last_mut() {
            line.push(cell);
        }
    }

    pub(crate) fn rows(&self, width: usize, theme: Look) -> Vec<Row> {
        let Some(head) = self.lines.first() else {
            return Vec::new();
        };
        match self.widths(width) {
            Some(widths) => {
                let mut rows = line_rows(head, &widths, theme.strong(), theme);
                let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                rows.push(Row::quiet(rule.join("─┼─")).cut());
                let lines = self.lines[1..].iter();
                rows.extend(lines.flat_map(|line| line_rows(line, &widths, Style::new(), theme)));
                rows
            }
            None => self.as_list(theme),
        }
    }

    /// Returns the width of each column, or `None` if a column would be narrower than
    /// [`NARROWEST`].
    fn widths(&self, width: usize) -> Option<Vec<usize>> {
        let columns = self.lines.iter().map(Vec::len).max()?;
        let content_width = |column: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(column));
            let widths = cells.map(|cell| cell.iter().map(Span::width).sum());
            widths.max().unwrap_or(0).max(1)
        };
        let mut widths: Vec<usize> = (0..columns).map(content_width).collect();
        let available = width.checked_sub(GAP.chars().count() * columns.saturating_sub(1))?;
        while widths.iter().sum::<usize>() > available {
            let widest = widths.iter_mut().max()?;
            if *widest <= NARROWEST {
                return None;
            }
            *widest -= 1;
        }
        Some(widths)
    }

    fn as_list(&self, theme: Look) -> Vec<Row> {
        let Some((head, lines)) = self.lines.split_first() else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for line in lines {
            if !rows.is_empty() {
                rows.push(Row::blank());
            }
            for (column, cell) in line.iter().enumerate() {
                let name = head.get(column).into_iter().flatten();
                let name: String = name.map(|span| span.content.as_ref()).collect();
                let mut body = vec![Span::styled(format!("{name}: "), theme.strong())];
                body.extend(cell.iter().cloned());
                rows.push(Row {
                    hang: vec![Span::raw("  ")],
                    ..Row::spans(body)
                });
            }
        }
        rows
    }
}

/// Renders one row of a table, in as many lines as its longest cell needs.
fn line_rows(cells: &[Cell], widths: &[usize], style: Style, theme: Look) -> Vec<Row> {
    let fitted: Vec<Vec<Line<'static>>> = widths
        .iter()
        .enumerate()
        .map(|(column, width)| {
            let cell = cells.get(column).cloned().unwrap_or_default();
            Row::spans(cell).fitted(*width)
        })
        .collect();
    let height = fitted.iter().map(Vec::len).max().unwrap_or(0);
    (0..height)
        .map(|line| {
            let mut body = Vec::new();
            for (column, width) in widths.iter().enumerate() {
                if column > 0 {
                    body.push(Span::styled(GAP, theme.quiet()));
                }
                let cell = fitted[column].get(line).cloned().unwrap_or_default();
                let padding = width.saturating_sub(cell.width());
                let spans = cell.spans.into_iter();
                body.extend(spans.map(|span| Span::styled(span.content, style.patch(span.style))));
                if column + 1 < widths.len() {
                    body.push(Span::raw(" ".repeat(padding)));
                }
            }
            Row::spans(body).cut()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::markdown::markdown;
    use super::super::rows::fitted;
    use super::*;

    const TABLE: &str = "| name | what it does | n |\n|---|---|---|\n\
        | read_file | reads a file, or a slice of it | 1 |\n| exec | runs | 22 |\n";

    fn shown(width: usize) -> String {
        let rows = markdown(TABLE, width, Look::Plain);
        fitted(&rows, width)
            .iter()
            .map(|line| line.to_string().trim_end().to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn columns_are_as_wide_as_their_content() {
        assert_eq!(
            shown(80),
            "name      │ what it does                   │ n\n\
             ──────────┼────────────────────────────────┼───\n\
             read_file │ reads a file, or a slice of it │ 1\n\
             exec      │ runs                           │ 22"
        );
    }

    #[test]
    fn cells_are_wrapped_in_a_narrow_terminal() {
        assert_eq!(
            shown(30),
            "name      │ what it does  │ n\n\
             ──────────┼───────────────┼───\n\
             read_file │ reads a file, │ 1\n\
             \x20         │ or a slice of │\n\
             \x20         │ it            │\n\
             exec      │ runs          │ 22"
        );
    }

    #[test]
    fn a_table_becomes_a_list_if_columns_would_be_too_narrow() {
        assert_eq!(
            shown(16),
            "name: read_file\nwhat it does:\n  reads a file,\n  or a slice of\n  it\nn: 1\n\n\
             name: exec\nwhat it does:\n  runs\nn: 22"
        );
    }
}
