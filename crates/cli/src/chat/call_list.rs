//! The list of calls in a turn, one line per call: tool, arguments, state, and duration or error.

use std::time::Instant;

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use selvedge_protocol::{CallRecord, RuntimeEvent};
use selvedge_tools::summarise_args;
use serde_json::Value;

use super::rows::{StyledRow, WrapMode, sanitize_line, truncate};
use super::theme::Theme;
use crate::call_outcome::{CallOutcomeLabel, OutcomeTone};
use crate::units::{format_elapsed, format_milliseconds};

/// The state of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallLineState {
    /// The model requested the call; it has not started.
    Requested,
    /// Waits for approval.
    WaitingForApproval,
    Running {
        since: Instant,
        /// The last line of the call's output.
        last_output_line: String,
    },
    Finished(Box<CallRecord>),
}

/// One call and what is shown of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallLine {
    /// The run that the call belongs to. Unknown until the call starts.
    run_id: Option<String>,
    id: String,
    tool: String,
    /// A summary of the arguments.
    arguments_summary: String,
    state: CallLineState,
    /// What went wrong in a call that is done.
    result_failure: Option<String>,
    /// The first lines of the result. Only structured calls show them.
    result_rows: Vec<StyledRow>,
}

/// The calls of a script, or the structured calls of one answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallList {
    lines: Vec<CallLine>,
    /// The run of the script. Calls of other runs belong to sub-agents and are indented.
    run_id: Option<String>,
}

/// Calls that are listed while calls run; further ones are counted.
const MAX_LIVE_CALLS: usize = 10;
/// Calls that are listed once all have ended; further ones are counted.
const MAX_FINISHED_CALLS: usize = 40;
const SPINNER_FRAMES: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠟"];

impl CallList {
    pub(crate) fn for_run(run: &str) -> Self {
        Self {
            lines: Vec::new(),
            run_id: Some(run.to_owned()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a call that the model requested, or updates its arguments while they stream in.
    pub(crate) fn add_requested(&mut self, id: &str, tool: &str, arguments: &str) {
        let summary = summarise_arguments(arguments);
        let is_same =
            |line: &&mut CallLine| line.id == id && line.state == CallLineState::Requested;
        match self.lines.iter_mut().find(is_same) {
            Some(line) => line.arguments_summary = summary,
            None => self.lines.push(CallLine {
                arguments_summary: summary,
                ..CallLine::new(id, tool)
            }),
        }
    }

    /// Removes a requested call whose answer was dropped.
    pub(crate) fn remove_requested(&mut self, id: &str) {
        self.lines
            .retain(|line| line.id != id || line.state != CallLineState::Requested);
    }

    /// Sets the result rows that are shown below a call.
    pub(crate) fn set_result(&mut self, id: &str, rows: Vec<StyledRow>) {
        let mut lines = self.lines.iter_mut();
        if let Some(line) = lines.find(|line| line.id == id && line.result_rows.is_empty()) {
            line.result_rows = rows;
        }
    }

    /// Updates the calls from an event. Events that are not about calls are ignored.
    pub(crate) fn apply(&mut self, event: &RuntimeEvent, now: Instant) {
        match event {
            RuntimeEvent::CallStarted {
                parent_id,
                call_id,
                tool,
                args_summary,
            } => {
                let line = self.line_mut(parent_id, call_id, tool);
                line.arguments_summary.clone_from(args_summary);
                line.state = CallLineState::Running {
                    since: now,
                    last_output_line: String::new(),
                };
            }
            RuntimeEvent::CallOutput {
                parent_id,
                call_id,
                text,
                ..
            } => {
                let last = text.lines().rev().find(|line| !line.trim().is_empty());
                if let Some(last) = last
                    && let Some(line) = self.find_mut(parent_id, call_id)
                    && let CallLineState::Running {
                        last_output_line, ..
                    } = &mut line.state
                {
                    *last_output_line = last.trim().to_owned();
                }
            }
            RuntimeEvent::CallFinished {
                parent_id,
                call,
                result_failure,
            } => {
                let line = self.line_mut(parent_id, &call.id, &call.tool);
                line.state = CallLineState::Finished(Box::new(call.clone()));
                line.result_failure = result_failure.clone();
            }
            RuntimeEvent::ApprovalRequested { request } => {
                let run = request.scope_id.clone().unwrap_or_default();
                // A question of a call that already runs has no arguments; its line exists.
                let not_started = request.calls.iter().filter(|call| !call.args.is_null());
                for call in not_started {
                    let line = self.line_mut(&run, &call.call_id, &call.tool);
                    line.arguments_summary = summarise_arguments(&call.args.to_string());
                    line.state = CallLineState::WaitingForApproval;
                }
            }
            _ => {}
        }
    }

    fn find_mut(&mut self, parent: &str, id: &str) -> Option<&mut CallLine> {
        self.lines
            .iter_mut()
            .find(|line| line.matches_call(parent, id))
    }

    /// Returns the line of this call, and adds it if there is none.
    fn line_mut(&mut self, parent: &str, id: &str, tool: &str) -> &mut CallLine {
        let index = self
            .lines
            .iter()
            .position(|line| line.matches_call(parent, id) && line.accepts_tool(tool));
        let index = index.unwrap_or_else(|| {
            self.lines.push(CallLine::new(id, tool));
            self.lines.len() - 1
        });
        let line = &mut self.lines[index];
        line.run_id = Some(parent.to_owned());
        line.tool = tool.to_owned();
        line
    }

    /// Returns the rows while calls run. If there are many, ended calls are only counted.
    pub(crate) fn live_rows(&self, now: Instant, theme: Theme) -> Vec<StyledRow> {
        if self.lines.len() <= MAX_LIVE_CALLS {
            let lines = self.lines.iter();
            return lines
                .flat_map(|line| self.line_rows(line, now, theme))
                .collect();
        }
        let is_finished = |line: &&CallLine| matches!(line.state, CallLineState::Finished(_));
        let finished = self.lines.iter().filter(is_finished).count();
        let open: Vec<&CallLine> = self
            .lines
            .iter()
            .filter(|line| !is_finished(line))
            .collect();
        let all = self.lines.len();
        let mut rows = vec![StyledRow::dim(format!(
            "  {finished} of {all} calls finished"
        ))];
        let shown = open.iter().take(MAX_LIVE_CALLS);
        rows.extend(shown.map(|line| self.call_row(line, now, theme)));
        if open.len() > MAX_LIVE_CALLS {
            rows.push(StyledRow::dim(format!(
                "  … {} more",
                open.len() - MAX_LIVE_CALLS
            )));
        }
        rows
    }

    /// Returns the final rows, once all calls have ended.
    pub(crate) fn finished_rows(&self, now: Instant, theme: Theme) -> Vec<StyledRow> {
        let shown = self.lines.iter().take(MAX_FINISHED_CALLS);
        let mut rows: Vec<StyledRow> = shown
            .flat_map(|line| self.line_rows(line, now, theme))
            .collect();
        if self.lines.len() > MAX_FINISHED_CALLS {
            let more = self.lines.len() - MAX_FINISHED_CALLS;
            rows.push(StyledRow::dim(format!(
                "  … {more} more calls; type /expand to list all calls"
            )));
        }
        rows
    }

    fn line_rows(&self, line: &CallLine, now: Instant, theme: Theme) -> Vec<StyledRow> {
        std::iter::once(self.call_row(line, now, theme))
            .chain(line.result_rows.iter().cloned())
            .collect()
    }

    fn call_row(&self, line: &CallLine, now: Instant, theme: Theme) -> StyledRow {
        let of_sub_agent =
            line.run_id.is_some() && self.run_id.is_some() && line.run_id != self.run_id;
        let indent = if of_sub_agent { "    " } else { "  " };
        let wrap = match &line.state {
            CallLineState::Finished(record) if record.error.is_some() => WrapMode::Words,
            _ => WrapMode::Truncate,
        };
        let label = line.status_label(now, theme);
        labelled_row(&line.tool, &line.arguments_summary, label, theme)
            .with_wrap(wrap)
            .with_prefix(Span::raw(indent))
    }
}

/// Returns a row of a call: its mark, its tool with the arguments, and its status, which stays
/// visible behind long arguments.
pub(super) fn labelled_row(
    tool: &str,
    arguments_summary: &str,
    (mark, style, status): (&'static str, Style, String),
    theme: Theme,
) -> StyledRow {
    let mut body = vec![Span::raw(sanitize_line(tool))];
    if !arguments_summary.is_empty() {
        let summary = format!(" {}", sanitize_line(arguments_summary));
        body.push(Span::styled(summary, theme.dim()));
    }
    let mut tail = Vec::new();
    if !status.is_empty() {
        let style = if style == theme.error() {
            style
        } else {
            theme.dim()
        };
        tail.push(Span::styled(format!("  {status}"), style));
    }
    StyledRow::spans(body)
        .with_tail(tail)
        .with_prefix(Span::styled(format!("{mark} "), style))
}

/// Returns the mark of an outcome, its style, and the status text.
pub(super) fn outcome_label(
    label: &CallOutcomeLabel,
    duration_ms: f64,
    theme: Theme,
) -> (&'static str, Style, String) {
    let style = match label.tone {
        OutcomeTone::Good => theme.success(),
        OutcomeTone::Bad => theme.error(),
        OutcomeTone::Neutral => theme.dim(),
    };
    let short = |text: &str| truncate(&sanitize_line(text), 300);
    let words = match label.words.as_str() {
        "" => format_milliseconds(duration_ms),
        words => short(words),
    };
    let status = match &label.reason {
        Some(reason) => format!("{words}: {}", short(reason)),
        None => words,
    };
    (label.mark, style, status)
}

impl CallLine {
    fn new(id: &str, tool: &str) -> Self {
        let (id, tool) = (id.to_owned(), tool.to_owned());
        Self {
            run_id: None,
            id,
            tool,
            arguments_summary: String::new(),
            state: CallLineState::Requested,
            result_failure: None,
            result_rows: Vec::new(),
        }
    }

    fn matches_call(&self, parent: &str, id: &str) -> bool {
        self.id == id && self.run_id.as_deref().is_none_or(|own| own == parent)
    }

    /// Whether an event of this tool may update the line. Until the run is known, any tool may: the
    /// model may have spelled its name differently.
    fn accepts_tool(&self, tool: &str) -> bool {
        self.run_id.is_none() || self.tool == tool
    }

    /// Returns the mark of the state, its style, and the status text.
    fn status_label(&self, now: Instant, theme: Theme) -> (&'static str, Style, String) {
        match &self.state {
            CallLineState::Requested => ("·", theme.dim(), String::new()),
            CallLineState::WaitingForApproval => {
                ("?", theme.question(), "waiting for approval".to_owned())
            }
            CallLineState::Running {
                since,
                last_output_line,
            } => {
                let elapsed = now.saturating_duration_since(*since);
                let spinner =
                    SPINNER_FRAMES[(elapsed.as_millis() / 100) as usize % SPINNER_FRAMES.len()];
                let elapsed = match elapsed.as_secs() {
                    0 => String::new(),
                    _ => format_elapsed(elapsed),
                };
                let status = format!(
                    "{elapsed} {}",
                    truncate(&sanitize_line(last_output_line), 60)
                );
                (spinner, theme.progress(), status.trim().to_owned())
            }
            CallLineState::Finished(record) => {
                let label = CallOutcomeLabel::of_record(record, self.result_failure.as_deref());
                outcome_label(&label, record.duration_ms, theme)
            }
        }
    }
}

/// Summarises arguments in one line, before the tool has described the call itself.
fn summarise_arguments(arguments: &str) -> String {
    match serde_json::from_str::<Value>(arguments) {
        Ok(value) => sanitize_line(&summarise_args(&value, &[])),
        // Incomplete JSON, or a plain text.
        Err(_) => {
            let mut lines = arguments.trim_start_matches(['{', '"']).lines();
            truncate(lines.next().unwrap_or_default(), 80)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use selvedge_protocol::{
        ApprovalRequest, CallError, CallStatus, ErrorCode, GatedCall, OutputStream, Preview,
    };

    fn record(id: &str, tool: &str, status: CallStatus) -> CallRecord {
        CallRecord {
            id: id.into(),
            tool: tool.into(),
            status,
            reused: false,
            duration_ms: 12.0,
            args_digest: String::new(),
            line: None,
            error: None,
            exit_code: None,
        }
    }

    fn started(run: &str, id: &str, tool: &str, args_summary: &str) -> RuntimeEvent {
        RuntimeEvent::CallStarted {
            parent_id: run.into(),
            call_id: id.into(),
            tool: tool.into(),
            args_summary: args_summary.into(),
        }
    }

    fn finished(run: &str, call: CallRecord) -> RuntimeEvent {
        RuntimeEvent::CallFinished {
            parent_id: run.into(),
            call,
            result_failure: None,
        }
    }

    fn plain(rows: &[StyledRow]) -> Vec<String> {
        rows.iter().map(StyledRow::plain).collect()
    }

    #[test]
    fn a_command_that_failed_is_marked_as_failed() {
        let now = Instant::now();
        let mut calls = CallList::for_run("scr_1");
        calls.apply(&started("scr_1", "tool_1", "exec", "false"), now);
        let ended = RuntimeEvent::CallFinished {
            parent_id: "scr_1".into(),
            call: record("tool_1", "exec", CallStatus::Done),
            result_failure: Some("exit 1".into()),
        };
        calls.apply(&ended, now);
        assert_eq!(
            plain(&calls.live_rows(now, Theme::Plain)),
            ["  ✗ exec false  exit 1"]
        );
    }

    #[test]
    fn the_outcome_stays_visible_behind_long_arguments() {
        let now = Instant::now();
        let mut calls = CallList::for_run("scr_1");
        let arguments = "python3 -m pytest tests/some/long/path -k one";
        calls.apply(&started("scr_1", "tool_1", "exec", arguments), now);
        let ended = RuntimeEvent::CallFinished {
            parent_id: "scr_1".into(),
            call: record("tool_1", "exec", CallStatus::Done),
            result_failure: Some("exit 1".into()),
        };
        calls.apply(&ended, now);
        let rows = calls.finished_rows(now, Theme::Plain);
        assert_eq!(
            rows[0].wrapped(40)[0].to_string(),
            "  ✗ exec python3 -m pytest test…  exit 1"
        );
    }

    #[test]
    fn every_state_has_its_line() {
        let now = Instant::now();
        let mut calls = CallList::for_run("scr_1");
        for (id, tool) in [
            ("tool_1", "read_file"),
            ("tool_2", "exec"),
            ("tool_3", "exec"),
            ("tool_4", "grep_files"),
        ] {
            calls.apply(&started("scr_1", id, tool, "a.txt"), now);
        }
        let output = RuntimeEvent::CallOutput {
            parent_id: "scr_1".into(),
            call_id: "tool_3".into(),
            stream: OutputStream::Stdout,
            text: "one\ntwo\n".into(),
        };
        calls.apply(&output, now);
        calls.apply(
            &finished("scr_1", record("tool_1", "read_file", CallStatus::Done)),
            now,
        );
        let error = Some(CallError {
            code: ErrorCode::ToolExecutionError,
            message: "no such program".into(),
        });
        calls.apply(
            &finished(
                "scr_1",
                CallRecord {
                    error,
                    ..record("tool_2", "exec", CallStatus::Failed)
                },
            ),
            now,
        );
        calls.apply(
            &finished("scr_1", record("tool_4", "grep_files", CallStatus::Aborted)),
            now,
        );
        let reused = CallRecord {
            reused: true,
            ..record("tool_5", "write_file", CallStatus::Done)
        };
        calls.apply(&finished("scr_1", reused), now);
        // A call of a sub-agent.
        calls.apply(&started("scr_2", "tool_1", "list_dir", "."), now);
        let request = ApprovalRequest {
            id: "apr_1".into(),
            scope_id: Some("scr_1".into()),
            calls: vec![GatedCall {
                call_id: "tool_6".into(),
                tool: "exec".into(),
                args: serde_json::json!({"command": ["rm", "-rf", "x"]}),
                reason: String::new(),
                context: None,
                line: None,
                snippet: None,
                folder: None,
                preview: Preview::default(),
            }],
            expires_ms: None,
        };
        calls.apply(&RuntimeEvent::ApprovalRequested { request }, now);
        let later = now + Duration::from_millis(2300);
        assert_eq!(
            plain(&calls.live_rows(later, Theme::Plain)),
            [
                "  ✓ read_file a.txt  12 ms",
                "  ✗ exec a.txt  failed: no such program",
                "  ⠟ exec a.txt  2.3 s two",
                "  – grep_files a.txt  aborted",
                "  ↺ write_file  reused",
                "    ⠟ list_dir .  2.3 s",
                "  ? exec rm -rf x  waiting for approval",
            ]
        );
    }

    #[test]
    fn finished_calls_are_counted_if_there_are_many() {
        let now = Instant::now();
        let mut calls = CallList::for_run("scr_1");
        for number in 0..20 {
            calls.apply(
                &started("scr_1", &format!("tool_{number}"), "exec", ""),
                now,
            );
        }
        for number in 0..18 {
            calls.apply(
                &finished(
                    "scr_1",
                    record(&format!("tool_{number}"), "exec", CallStatus::Done),
                ),
                now,
            );
        }
        assert_eq!(
            plain(&calls.live_rows(now, Theme::Plain)),
            ["  18 of 20 calls finished", "  ⠋ exec", "  ⠋ exec"]
        );
        assert_eq!(calls.finished_rows(now, Theme::Plain).len(), 20);
    }

    #[test]
    fn arguments_are_summarised() {
        assert_eq!(
            summarise_arguments(r#"{"path":"a.txt","limit":3,"deep":{"x":1}}"#),
            "a.txt · limit 3"
        );
        assert_eq!(summarise_arguments(r#"{"path":"a.t"#), "path\":\"a.t");
    }
}
