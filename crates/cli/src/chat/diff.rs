//! Renders unified diffs in colour, file by file.

use ratatui_core::text::Span;

use super::rows::{StyledRow, WrapMode, sanitize, sanitize_line};
use super::theme::Theme;

/// The part of a unified diff for one file. `path` is empty if the diff has no git header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileDiff {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Splits a diff in git's format by file.
pub(crate) fn split_by_file(diff: &str) -> Vec<FileDiff> {
    let mut files: Vec<FileDiff> = Vec::new();
    for line in diff.lines() {
        if let Some(names) = line.strip_prefix("diff --git ") {
            let path = names.rsplit_once(" b/").map_or(names, |(_, path)| path);
            let path = path.trim_matches('"').to_owned();
            files.push(FileDiff {
                path,
                text: String::new(),
            });
        } else if files.is_empty() {
            files.push(FileDiff::default());
        }
        if let Some(file) = files.last_mut() {
            file.text.push_str(line);
            file.text.push('\n');
        }
    }
    files
}

impl FileDiff {
    /// Returns the numbers of added and removed lines.
    pub(crate) fn line_counts(&self) -> (usize, usize) {
        let body = || self.text.lines().skip_while(|line| !line.starts_with("@@"));
        let starting = |sign: char| body().filter(|line| line.starts_with(sign)).count();
        (starting('+'), starting('-'))
    }

    /// Returns the path with its line counts, and the lines of the diff, which `fold` shortens.
    pub(crate) fn rows(
        &self,
        fold: impl FnOnce(Vec<StyledRow>) -> Vec<StyledRow>,
        theme: Theme,
    ) -> Vec<StyledRow> {
        let mut rows = Vec::new();
        if !self.path.is_empty() {
            let (added, removed) = self.line_counts();
            rows.push(
                StyledRow::spans(vec![
                    Span::styled(sanitize_line(&self.path), theme.bold()),
                    Span::styled(format!("  +{added}"), theme.success()),
                    Span::styled(format!(" -{removed}"), theme.error()),
                ])
                .truncated(),
            );
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let is_header = |line: &str| {
            ["diff --git ", "index ", "--- ", "+++ "]
                .iter()
                .any(|header| line.starts_with(header))
        };
        // The row above replaces git's header lines, except those about modes and renames.
        let start = lines.iter().position(|line| line.starts_with("@@"));
        let start = if self.path.is_empty() {
            0
        } else {
            start.unwrap_or(lines.len())
        };
        let (header, body) = lines.split_at(start);
        let shown = header.iter().filter(|line| !is_header(line)).chain(body);
        let shown = shown.map(|line| line_row(line, theme)).collect();
        rows.extend(fold(shown));
        rows
    }
}

/// Returns all lines of a diff.
pub(crate) fn diff_rows(diff: &str, theme: Theme) -> Vec<StyledRow> {
    diff.lines().map(|line| line_row(line, theme)).collect()
}

fn line_row(line: &str, theme: Theme) -> StyledRow {
    let style = match line.as_bytes().first() {
        Some(b'+') => theme.success(),
        Some(b'-') => theme.error(),
        Some(b'@') => theme.progress(),
        _ => theme.dim(),
    };
    StyledRow::styled(sanitize(line).into_owned(), style).with_wrap(WrapMode::Anywhere)
}

#[cfg(test)]
mod tests {
    use super::super::rows::fold_rows;
    use super::*;

    const DIFF: &str = "diff --git a/src/a.rs b/src/a.rs\nindex 1..2 100644\n\
                        --- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\
                        diff --git a/b.txt b/b.txt\nnew file mode 100644\n\
                        --- /dev/null\n+++ b/b.txt\n@@ -0,0 +1 @@\n+new\n";

    #[test]
    fn a_diff_is_split_by_file_and_folded() {
        let files = split_by_file(DIFF);
        assert_eq!(
            files
                .iter()
                .map(|file| file.path.as_str())
                .collect::<Vec<_>>(),
            ["src/a.rs", "b.txt"]
        );
        assert_eq!(files[0].line_counts(), (1, 1));
        let lines: Vec<String> = files
            .iter()
            .flat_map(|file| file.rows(|rows| fold_rows(rows, 3), Theme::Colour))
            .map(|row| row.plain())
            .collect();
        assert_eq!(
            lines,
            [
                "src/a.rs  +1 -1",
                "@@ -1,2 +1,2 @@",
                " one",
                "-two",
                "… 1 more line",
                "b.txt  +1 -0",
                "new file mode 100644",
                "@@ -0,0 +1 @@",
                "+new"
            ]
        );
    }

    #[test]
    fn added_and_removed_lines_have_different_styles() {
        let rows = diff_rows(DIFF, Theme::Colour);
        let style = |text: &str| rows.iter().find(|row| row.plain() == text).unwrap().body[0].style;
        assert_eq!(
            (style("+2"), style("-two")),
            (Theme::Colour.success(), Theme::Colour.error())
        );
    }
}
