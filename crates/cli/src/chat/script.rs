//! A script: its source before it runs, what it says while it does, and what it came to.

use std::time::Instant;

use ratatui_core::text::Span;
use selvedge_protocol::{OutputPart, PlanStep, RunStatus, ScriptToolCallOutput, StepStatus};

use super::calls::{Calls, took_ms};
use super::code::code;
use super::look::Look;
use super::rows::{Row, folded, one_line, short};

/// More lines of a script are folded.
const SCRIPT_LINES: usize = 12;
/// More lines that a script logged are only counted.
const LOG_LINES: usize = 12;

pub(crate) struct Script {
    pub(super) id: String,
    pub(super) calls: Calls,
    logs: Vec<Row>,
    logged: usize,
    pub(super) plan: Vec<Row>,
    pub(super) diffs: Vec<Row>,
    pub(super) since: Instant,
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

    /// Keeps the first lines it logs, and counts the others.
    pub(crate) fn log(&mut self, rows: Vec<Row>) {
        self.logged += rows.len();
        let room = LOG_LINES.saturating_sub(self.logs.len());
        self.logs.extend(rows.into_iter().take(room));
    }

    pub(crate) fn notes(&self) -> Vec<Row> {
        let mut rows = self.logs.clone();
        let more = self.logged - self.logs.len();
        if more > 0 {
            rows.push(Row::quiet(format!("  … {more} more lines logged")));
        }
        rows.extend(self.plan.iter().chain(&self.diffs).cloned());
        rows
    }
}

pub(crate) fn plan_rows(plan: &[PlanStep], look: Look) -> Vec<Row> {
    let row = |step: &PlanStep| {
        let (mark, style) = match step.status {
            StepStatus::Completed => ("✓ ", look.quiet()),
            StepStatus::InProgress => ("▸ ", look.strong()),
            StepStatus::Pending => ("· ", look.quiet()),
        };
        Row::of(one_line(&step.step), style)
            .behind(Span::styled(mark, style))
            .indent(4)
    };
    plan.iter().map(row).collect()
}

/// A script before it runs: its source, folded where it is long.
pub(crate) fn script_head(id: &str, language: &str, source: &str, look: Look) -> Vec<Row> {
    let source = source.trim_matches('\n');
    let lines = source.lines().count();
    let head = vec![
        Span::styled("▶ script", look.busy()),
        Span::styled(format!("  {id}"), look.quiet()),
    ];
    let mut rows = vec![Row::spans(head).cut()];
    let indent = |row: Row| row.indent(4);
    let most = if lines > SCRIPT_LINES {
        SCRIPT_LINES - 1
    } else {
        lines
    };
    let lines = folded(code(language, source, look), most);
    rows.extend(lines.into_iter().map(indent));
    rows
}

/// What a script came to, in a few rows.
pub(crate) fn script_result(output: &ScriptToolCallOutput, look: Look) -> Vec<Row> {
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
    let time = took_ms(output.metadata.duration_ms);
    let (mark, style, words) = match (&output.error, output.status) {
        (Some(error), _) => {
            let place = error.line.map(|line| format!(" (line {line})"));
            let place = place.unwrap_or_default();
            let message = short(&one_line(&error.message), 400);
            (
                "✗ ",
                look.bad(),
                format!("{}: {message}{place}", error.code),
            )
        }
        (None, RunStatus::Suspended) => {
            let words = "put away until somebody answers".to_owned();
            ("? ", look.asks(), words)
        }
        (None, _) => {
            let value = output.summary.as_ref().or(output.output_json.as_ref());
            let value = value.map_or("nothing", String::as_str);
            ("◀ ", look.good(), short(&one_line(value), 200))
        }
    };
    let body = vec![
        Span::raw(words),
        Span::styled(format!("  {time}"), look.quiet()),
    ];
    rows.push(Row::spans(body).behind(Span::styled(mark, style)));
    for warning in &output.warnings {
        rows.push(Row::of(format!("warning: {}", one_line(warning)), look.bad()).indent(2));
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
