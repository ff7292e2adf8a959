//! The view of a script: its source before it runs, its logs and calls, and its result.

use std::time::Instant;

use ratatui_core::text::Span;
use selvedge_protocol::{OutputPart, PlanStep, RunStatus, ScriptToolCallOutput, StepStatus};

use super::calls::{Calls, took_ms};
use super::code::code;
use super::look::Look;
use super::rows::{Row, folded, one_line, short};

/// A script with more lines than this is folded.
const SCRIPT_LINES: usize = 12;
/// Log lines of a script that are shown; further ones are counted.
const LOG_LINES: usize = 12;

/// A run of a script in a turn.
pub(crate) struct Script {
    pub(super) id: String,
    pub(super) calls: Calls,
    logs: Vec<Row>,
    /// Number of lines logged, including those not in `logs`.
    logged: usize,
    pub(super) plan: Vec<Row>,
    pub(super) diffs: Vec<Row>,
    pub(super) since: Instant,
    /// `None` while the script runs.
    pub(super) result: Option<Vec<Row>>,
}

impl Script {
    pub(crate) fn new(id: String, now: Instant) -> Self {
        Self {
            calls: Calls::of_run(&id),
            id,
            logs: Vec::new(),
            logged: 0,
            plan: Vec::new(),
            diffs: Vec::new(),
            since: now,
            result: None,
        }
    }

    /// Keeps the first [`LOG_LINES`] log lines and counts the others.
    pub(crate) fn log(&mut self, rows: Vec<Row>) {
        self.logged += rows.len();
        let room = LOG_LINES.saturating_sub(self.logs.len());
        self.logs.extend(rows.into_iter().take(room));
    }

    /// Returns the logs, the plan and the diffs, which are shown below the calls.
    pub(crate) fn notes(&self) -> Vec<Row> {
        let mut rows = self.logs.clone();
        let more = self.logged - self.logs.len();
        if more > 0 {
            rows.push(Row::quiet(format!("  … {more} more log lines")));
        }
        rows.extend(self.plan.iter().chain(&self.diffs).cloned());
        rows
    }
}

pub(crate) fn plan_rows(plan: &[PlanStep], theme: Look) -> Vec<Row> {
    let row = |step: &PlanStep| {
        let (mark, style) = match step.status {
            StepStatus::Completed => ("✓ ", theme.quiet()),
            StepStatus::InProgress => ("▸ ", theme.strong()),
            StepStatus::Pending => ("· ", theme.quiet()),
        };
        Row::of(one_line(&step.step), style)
            .behind(Span::styled(mark, style))
            .indent(4)
    };
    plan.iter().map(row).collect()
}

/// Returns the id and the source of a script, folded if it is long.
pub(crate) fn script_head(id: &str, language: &str, source: &str, theme: Look) -> Vec<Row> {
    let source = source.trim_matches('\n');
    let lines = source.lines().count();
    let head = vec![
        Span::styled("▶ script", theme.busy()),
        Span::styled(format!("  {id}"), theme.quiet()),
    ];
    let mut rows = vec![Row::spans(head).cut()];
    let indent = |row: Row| row.indent(4);
    // The line that counts the folded lines is one of `MAX_SOURCE_LINES`.
    let max_lines = if lines > SCRIPT_LINES {
        SCRIPT_LINES - 1
    } else {
        lines
    };
    let lines = folded(code(language, source, theme), max_lines);
    rows.extend(lines.into_iter().map(indent));
    rows
}

/// Returns the output of a script: what it showed, its value or error, and its warnings.
pub(crate) fn script_result(output: &ScriptToolCallOutput, theme: Look) -> Vec<Row> {
    let mut rows = Vec::new();
    for part in &output.output {
        let text = match part {
            OutputPart::Text { text } => short(&one_line(text.trim()), 200),
            OutputPart::Image { mime_type, .. } | OutputPart::Audio { mime_type, .. } => {
                format!("[{mime_type}]")
            }
        };
        rows.push(Row::quiet(text).indent(2));
    }
    let duration = took_ms(output.metadata.duration_ms);
    let (mark, style, text) = match (&output.error, output.status) {
        (Some(error), _) => {
            let line = error.line.map(|line| format!(" (line {line})"));
            let line = line.unwrap_or_default();
            let message = short(&one_line(&error.message), 400);
            (
                "✗ ",
                theme.bad(),
                format!("{}: {message}{line}", error.code),
            )
        }
        (None, RunStatus::Suspended) => {
            let text = "suspended until the approval is answered".to_owned();
            ("? ", theme.asks(), text)
        }
        (None, _) => {
            let value = output.summary.as_ref().or(output.output_json.as_ref());
            let value = value.map_or("no value", String::as_str);
            ("◀ ", theme.good(), short(&one_line(value), 200))
        }
    };
    let body = vec![
        Span::raw(text),
        Span::styled(format!("  {duration}"), theme.quiet()),
    ];
    rows.push(Row::spans(body).behind(Span::styled(mark, style)));
    for warning in &output.warnings {
        rows.push(Row::of(format!("warning: {}", one_line(warning)), theme.bad()).indent(2));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_script_is_folded() {
        let source: String = (0..30).map(|n| format!("line{n}();\n")).collect();
        let rows = script_head("scr_1", "ts", &source, Look::Plain);
        assert_eq!(rows.len(), 1 + SCRIPT_LINES);
        assert_eq!(
            rows.last().map(Row::plain).as_deref(),
            Some("    … 19 more lines")
        );
    }
}
