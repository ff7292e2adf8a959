//! The view of a script: its source before it runs, its logs and calls, and its result.

use std::time::Instant;

use ratatui_core::text::Span;
use selvedge_protocol::{OutputPart, PlanStep, PlanStepStatus, RunStatus, ScriptToolCallOutput};

use super::call_list::CallList;
use super::highlight::highlight_code;
use super::rows::{StyledRow, fold_expandable_rows, sanitize_line, truncate};
use super::theme::Theme;
use crate::units::format_milliseconds;

/// A script with more lines than this is folded.
const MAX_SOURCE_LINES: usize = 12;
/// What a script printed with `text` is folded if it has more lines than this.
const MAX_OUTPUT_LINES: usize = 12;
/// Log lines of a script that are shown; further ones are counted.
const MAX_LOG_LINES: usize = 12;

/// A run of a script in a turn.
pub(crate) struct ScriptSection {
    pub(super) id: String,
    pub(super) calls: CallList,
    log_rows: Vec<StyledRow>,
    /// Number of lines logged, including those that are not in `log_rows`.
    log_line_count: usize,
    pub(super) plan_rows: Vec<StyledRow>,
    pub(super) diff_rows: Vec<StyledRow>,
    pub(super) started_at: Instant,
    /// `None` while the script runs.
    pub(super) result_rows: Option<Vec<StyledRow>>,
}

impl ScriptSection {
    pub(crate) fn new(id: String, now: Instant) -> Self {
        Self {
            calls: CallList::for_run(&id),
            id,
            log_rows: Vec::new(),
            log_line_count: 0,
            plan_rows: Vec::new(),
            diff_rows: Vec::new(),
            started_at: now,
            result_rows: None,
        }
    }

    /// Keeps the first [`MAX_LOG_LINES`] log lines and counts the others.
    pub(crate) fn log(&mut self, rows: Vec<StyledRow>) {
        self.log_line_count += rows.len();
        let room = MAX_LOG_LINES.saturating_sub(self.log_rows.len());
        self.log_rows.extend(rows.into_iter().take(room));
    }

    /// Returns the logs, the plan and the diffs, which are shown below the calls.
    pub(crate) fn extra_rows(&self) -> Vec<StyledRow> {
        let mut rows = self.log_rows.clone();
        let more = self.log_line_count - self.log_rows.len();
        if more > 0 {
            rows.push(StyledRow::dim(format!("  … {more} more log lines")));
        }
        rows.extend(self.plan_rows.iter().chain(&self.diff_rows).cloned());
        rows
    }
}

pub(crate) fn plan_rows(plan: &[PlanStep], theme: Theme) -> Vec<StyledRow> {
    let row = |step: &PlanStep| {
        let (mark, style) = match step.status {
            PlanStepStatus::Completed => ("✓ ", theme.dim()),
            PlanStepStatus::InProgress => ("▸ ", theme.bold()),
            PlanStepStatus::Pending => ("· ", theme.dim()),
        };
        StyledRow::styled(sanitize_line(&step.step), style)
            .with_prefix(Span::styled(mark, style))
            .indented(4)
    };
    plan.iter().map(row).collect()
}

/// Returns the id and the source of a script, folded if it is long.
pub(crate) fn script_source_rows(
    id: &str,
    language: &str,
    source: &str,
    theme: Theme,
) -> Vec<StyledRow> {
    let source = source.trim_matches('\n');
    let lines = source.lines().count();
    let head = vec![
        Span::styled("▶ script", theme.progress()),
        Span::styled(format!("  {id}"), theme.dim()),
    ];
    let mut rows = vec![StyledRow::spans(head).truncated()];
    let indent = |row: StyledRow| row.indented(4);
    // The line that counts the folded lines is one of `MAX_SOURCE_LINES`.
    let max_lines = if lines > MAX_SOURCE_LINES {
        MAX_SOURCE_LINES - 1
    } else {
        lines
    };
    let lines = fold_expandable_rows(highlight_code(language, source, theme), max_lines);
    rows.extend(lines.into_iter().map(indent));
    rows
}

/// Returns the output of a script: what it showed, its value or error, and its warnings.
pub(crate) fn script_result_rows(output: &ScriptToolCallOutput, theme: Theme) -> Vec<StyledRow> {
    let lines = output.output.iter().flat_map(|part| match part {
        OutputPart::Text { text } => {
            let lines = text.trim_end().lines();
            lines
                .map(|line| truncate(&sanitize_line(line), 200))
                .collect()
        }
        OutputPart::Image { mime_type, .. } | OutputPart::Audio { mime_type, .. } => {
            vec![format!("[{mime_type}]")]
        }
    });
    let lines = fold_expandable_rows(lines.map(StyledRow::dim).collect(), MAX_OUTPUT_LINES);
    let mut rows: Vec<StyledRow> = lines.into_iter().map(|row| row.indented(2)).collect();
    let duration = format_milliseconds(output.metadata.duration_ms);
    let (mark, style, text) = match (&output.error, output.status) {
        (Some(error), _) => {
            let line = error.line.map(|line| format!(" (line {line})"));
            let line = line.unwrap_or_default();
            let message = truncate(&sanitize_line(&error.message), 400);
            (
                "✗ ",
                theme.error(),
                format!("{}: {message}{line}", error.code),
            )
        }
        (None, RunStatus::Suspended) => {
            let text = "suspended until the approval is answered".to_owned();
            ("? ", theme.question(), text)
        }
        (None, _) => {
            let value = output.summary.as_ref().or(output.output_json.as_ref());
            let value = value.map_or("no value", String::as_str);
            ("◀ ", theme.success(), truncate(&sanitize_line(value), 200))
        }
    };
    let body = vec![
        Span::raw(text),
        Span::styled(format!("  {duration}"), theme.dim()),
    ];
    rows.push(StyledRow::spans(body).with_prefix(Span::styled(mark, style)));
    for warning in &output.warnings {
        rows.push(
            StyledRow::styled(
                format!("warning: {}", sanitize_line(warning)),
                theme.error(),
            )
            .indented(2),
        );
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_script_is_folded() {
        let source: String = (0..30).map(|n| format!("line{n}();\n")).collect();
        let rows = script_source_rows("scr_1", "ts", &source, Theme::Plain);
        assert_eq!(rows.len(), 1 + MAX_SOURCE_LINES);
        assert_eq!(
            rows.last().map(StyledRow::plain).as_deref(),
            Some("    … 19 more lines; Ctrl-O shows all")
        );
    }
}
