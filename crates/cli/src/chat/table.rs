//! Renders tables. Columns are as wide as their content; in a narrow terminal cells are wrapped, or
//! the table becomes a list of `name: value`.

use pulldown_cmark::Alignment;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

use super::rows::StyledRow;
use super::theme::Theme;

const COLUMN_SEPARATOR: &str = " │ ";
/// Columns are not made narrower than this.
const MIN_COLUMN_WIDTH: usize = 8;

/// Most columns that are shown. A parser gives every row as many cells as the header has, so a
/// small text can be a table of millions of cells.
const MAX_COLUMNS: usize = 64;

type TableCell = Vec<Span<'static>>;

#[derive(Debug, Default)]
pub(crate) struct MarkdownTable {
    /// The rows of the table; the first is the header.
    table_rows: Vec<Vec<TableCell>>,
    /// The alignment of each column.
    alignments: Vec<Alignment>,
}

impl MarkdownTable {
    pub(crate) fn new(alignments: Vec<Alignment>) -> Self {
        Self {
            table_rows: Vec::new(),
            alignments,
        }
    }

    pub(crate) fn begin_row(&mut self) {
        self.table_rows.push(Vec::new());
    }

    pub(crate) fn add_cell(&mut self, cell: TableCell) {
        let Some(line) = self.table_rows.last_mut() else {
            return;
        };
        match line.len() {
            count if count < MAX_COLUMNS => line.push(cell),
            // Stands for all further cells.
            MAX_COLUMNS => line.push(vec![Span::raw("…")]),
            _ => {}
        }
    }

    pub(crate) fn render(&self, width: usize, theme: Theme) -> Vec<StyledRow> {
        let Some(head) = self.table_rows.first() else {
            return Vec::new();
        };
        match self.column_widths(width) {
            Some(widths) => {
                let mut rows = self.row_lines(head, &widths, theme.bold(), theme);
                let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                rows.push(StyledRow::dim(rule.join("─┼─")).truncated());
                let lines = self.table_rows[1..].iter();
                let row =
                    |line: &Vec<TableCell>| self.row_lines(line, &widths, Style::new(), theme);
                rows.extend(lines.flat_map(row));
                rows
            }
            None => self.render_list(theme),
        }
    }

    /// Returns the width of each column, or `None` if a column would be narrower than
    /// [`MIN_COLUMN_WIDTH`].
    fn column_widths(&self, width: usize) -> Option<Vec<usize>> {
        let columns = self.table_rows.iter().map(Vec::len).max()?;
        let content_width = |column: usize| {
            let cells = self.table_rows.iter().filter_map(|line| line.get(column));
            let widths = cells.map(|cell| cell.iter().map(Span::width).sum());
            widths.max().unwrap_or(0).max(1)
        };
        let available =
            width.checked_sub(COLUMN_SEPARATOR.chars().count() * columns.saturating_sub(1))?;
        // A wider column would be narrowed to this in any case.
        let widths = (0..columns).map(|column| content_width(column).min(available));
        let mut widths: Vec<usize> = widths.collect();
        while widths.iter().sum::<usize>() > available {
            let widest = widths.iter_mut().max()?;
            if *widest <= MIN_COLUMN_WIDTH {
                return None;
            }
            *widest -= 1;
        }
        Some(widths)
    }

    fn render_list(&self, theme: Theme) -> Vec<StyledRow> {
        let Some((head, lines)) = self.table_rows.split_first() else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for line in lines {
            if !rows.is_empty() {
                rows.push(StyledRow::blank());
            }
            for (column, cell) in line.iter().enumerate() {
                let name = head.get(column).into_iter().flatten();
                let name: String = name.map(|span| span.content.as_ref()).collect();
                let mut body = vec![Span::styled(format!("{name}: "), theme.bold())];
                body.extend(cell.iter().cloned());
                rows.push(StyledRow {
                    rest_prefix: vec![Span::raw("  ")],
                    ..StyledRow::spans(body)
                });
            }
        }
        rows
    }

    /// Renders one row of a table, in as many lines as its longest cell needs.
    fn row_lines(
        &self,
        cells: &[TableCell],
        widths: &[usize],
        style: Style,
        theme: Theme,
    ) -> Vec<StyledRow> {
        let fitted: Vec<Vec<Line<'static>>> = widths
            .iter()
            .enumerate()
            .map(|(column, width)| {
                let cell = cells.get(column).cloned().unwrap_or_default();
                StyledRow::spans(cell).wrapped(*width)
            })
            .collect();
        let height = fitted.iter().map(Vec::len).max().unwrap_or(0);
        (0..height)
            .map(|line| {
                let mut body = Vec::new();
                for (column, width) in widths.iter().enumerate() {
                    if column > 0 {
                        body.push(Span::styled(COLUMN_SEPARATOR, theme.dim()));
                    }
                    let cell = fitted[column].get(line).cloned().unwrap_or_default();
                    let padding = width.saturating_sub(cell.width());
                    let before = match self.alignments.get(column) {
                        Some(Alignment::Right) => padding,
                        Some(Alignment::Center) => padding / 2,
                        _ => 0,
                    };
                    if before > 0 {
                        body.push(Span::raw(" ".repeat(before)));
                    }
                    let spans = cell.spans.into_iter();
                    body.extend(
                        spans.map(|span| Span::styled(span.content, style.patch(span.style))),
                    );
                    if column + 1 < widths.len() {
                        body.push(Span::raw(" ".repeat(padding - before)));
                    }
                }
                StyledRow::spans(body).truncated()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::markdown::render_markdown;
    use super::super::rows::wrap_rows;
    use super::*;

    const TABLE: &str = "| name | what it does | n |\n|---|---|---|\n\
        | read_file | reads a file, or a slice of it | 1 |\n| exec | runs | 22 |\n";

    fn shown(width: usize) -> String {
        let rows = render_markdown(TABLE, width, Theme::Plain);
        wrap_rows(&rows, width)
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
    fn columns_are_aligned_as_the_table_says_also_with_wide_characters() {
        let table = "| left | middle | right |\n|:--|:-:|--:|\n| 日本 | 語 | 7 |\n| e\u{301} | abcdef | 12345 |\n";
        let rows = render_markdown(table, 80, Theme::Plain);
        let lines = wrap_rows(&rows, 80);
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "left │ middle │ right",
                "─────┼────────┼──────",
                "日本 │   語   │     7",
                "e\u{301}    │ abcdef │ 12345",
            ]
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

    #[test]
    fn a_table_with_very_many_columns_or_a_very_wide_cell_is_rendered_soon() {
        let started = std::time::Instant::now();
        let header = format!("{}|\n{}|\n", "|a".repeat(3000), "|-".repeat(3000));
        let table = format!("{header}{}", "|b|\n".repeat(300));
        let lines = wrap_rows(&render_markdown(&table, 80, Theme::Plain), 80);
        assert!(lines.len() < 30_000, "{}", lines.len());
        let wide = format!("|a|b|\n|-|-|\n|{}|y|\n", "x".repeat(200_000));
        wrap_rows(&render_markdown(&wide, 80, Theme::Plain), 80);
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    }
}
