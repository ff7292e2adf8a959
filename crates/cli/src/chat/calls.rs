//! The list of calls in a turn, one line per call: tool, arguments, state, and duration or error.

use std::time::{Duration, Instant};

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use selvedge_protocol::{CallRecord, CallStatus, Event};
use serde_json::Value;

use super::look::Look;
use super::rows::{Fit, Row, one_line, short};

/// The state of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Standing {
    /// The model requested the call; it has not started.
    Wanted,
    /// Waits for approval.
    Asked,
    Running {
        since: Instant,
        /// The last line of the call's output.
        last_words: String,
    },
    Over(Box<CallRecord>),
}

/// One call and what is shown of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallLine {
    /// The run that the call belongs to. Unknown until the call starts.
    parent: Option<String>,
    id: String,
    tool: String,
    /// A summary of the arguments.
    about: String,
    standing: Standing,
    /// The first lines of the result. Only structured calls show them.
    result: Vec<Row>,
}

/// The calls of a script, or the structured calls of one answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    lines: Vec<CallLine>,
    /// The run of the script. Calls of other runs belong to sub-agents and are indented.
    run: Option<String>,
}

/// Calls that are listed while calls run; further ones are counted.
const MOST_LIVE: usize = 10;
/// Calls that are listed once all have ended; further ones are counted.
const MOST: usize = 40;
const SPINNER: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇", "⠏", "⠟"];

impl Calls {
    pub(crate) fn of_run(run: &str) -> Self {
        Self {
            lines: Vec::new(),
            run: Some(run.to_owned()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a call that the model requested, or updates its arguments while they stream in.
    pub(crate) fn wanted(&mut self, id: &str, tool: &str, arguments: &str) {
        let about = about(arguments);
        let is_same = |line: &&mut CallLine| line.id == id && line.standing == Standing::Wanted;
        match self.lines.iter_mut().find(is_same) {
            Some(line) => line.about = about,
            None => self.lines.push(CallLine {
                about,
                ..CallLine::new(id, tool)
            }),
        }
    }

    /// Removes a requested call whose answer was dropped.
    pub(crate) fn forget(&mut self, id: &str) {
        self.lines
            .retain(|line| line.id != id || line.standing != Standing::Wanted);
    }

    /// Sets the result rows that are shown below a call.
    pub(crate) fn returned(&mut self, id: &str, rows: Vec<Row>) {
        let mut lines = self.lines.iter_mut();
        if let Some(line) = lines.find(|line| line.id == id && line.result.is_empty()) {
            line.result = rows;
        }
    }

    /// Updates the calls from an event. Events that are not about calls are ignored.
    pub(crate) fn take(&mut self, event: &Event, now: Instant) {
        match event {
            Event::CallStarted {
                parent_id,
                call_id,
                tool,
                about,
            } => {
                let line = self.line(parent_id, call_id, tool);
                line.about.clone_from(about);
                line.standing = Standing::Running {
                    since: now,
                    last_words: String::new(),
                };
            }
            Event::CallOutput {
                parent_id,
                call_id,
                text,
                ..
            } => {
                let last = text.lines().rev().find(|line| !line.trim().is_empty());
                if let Some(last) = last
                    && let Some(line) = self.find(parent_id, call_id)
                    && let Standing::Running { last_words, .. } = &mut line.standing
                {
                    *last_words = last.trim().to_owned();
                }
            }
            Event::CallFinished { parent_id, call } => {
                let line = self.line(parent_id, &call.id, &call.tool);
                line.standing = Standing::Over(Box::new(call.clone()));
            }
            Event::ApprovalRequested { request } => {
                let run = request.script_id.clone().unwrap_or_default();
                // A question of a call that already runs has no arguments; its line exists.
                let not_started = request.calls.iter().filter(|call| !call.args.is_null());
                for call in not_started {
                    let line = self.line(&run, &call.call_id, &call.tool);
                    line.about = about(&call.args.to_string());
                    line.standing = Standing::Asked;
                }
            }
            _ => {}
        }
    }

    fn find(&mut self, parent: &str, id: &str) -> Option<&mut CallLine> {
        self.lines.iter_mut().find(|line| line.is_of(parent, id))
    }

    /// Returns the line of this call, and adds it if there is none.
    fn line(&mut self, parent: &str, id: &str, tool: &str) -> &mut CallLine {
        let index = self
            .lines
            .iter()
            .position(|line| line.is_of(parent, id) && line.tool_fits(tool));
        let index = index.unwrap_or_else(|| {
            self.lines.push(CallLine::new(id, tool));
            self.lines.len() - 1
        });
        let line = &mut self.lines[index];
        line.parent = Some(parent.to_owned());
        line.tool = tool.to_owned();
        line
    }

    /// Returns the rows while calls run. If there are many, ended calls are only counted.
    pub(crate) fn live_rows(&self, now: Instant, theme: Look) -> Vec<Row> {
        if self.lines.len() <= MOST_LIVE {
            let lines = self.lines.iter();
            return lines
                .flat_map(|line| self.with_result(line, now, theme))
                .collect();
        }
        let is_finished = |line: &&CallLine| matches!(line.standing, Standing::Over(_));
        let finished = self.lines.iter().filter(is_finished).count();
        let open: Vec<&CallLine> = self
            .lines
            .iter()
            .filter(|line| !is_finished(line))
            .collect();
        let all = self.lines.len();
        let mut rows = vec![Row::quiet(format!("  {finished} of {all} calls finished"))];
        let shown = open.iter().take(MOST_LIVE);
        rows.extend(shown.map(|line| self.row(line, now, theme)));
        if open.len() > MOST_LIVE {
            rows.push(Row::quiet(format!("  … {} more", open.len() - MOST_LIVE)));
        }
        rows
    }

    /// Returns the final rows, once all calls have ended.
    pub(crate) fn rows(&self, now: Instant, theme: Look) -> Vec<Row> {
        let shown = self.lines.iter().take(MOST);
        let mut rows: Vec<Row> = shown
            .flat_map(|line| self.with_result(line, now, theme))
            .collect();
        if self.lines.len() > MOST {
            let more = self.lines.len() - MOST;
            rows.push(Row::quiet(format!(
                "  … {more} more calls; type /runs to list the runs"
            )));
        }
        rows
    }

    fn with_result(&self, line: &CallLine, now: Instant, theme: Look) -> Vec<Row> {
        std::iter::once(self.row(line, now, theme))
            .chain(line.result.iter().cloned())
            .collect()
    }

    fn row(&self, line: &CallLine, now: Instant, theme: Look) -> Row {
        let of_sub_agent = line.parent.is_some() && self.run.is_some() && line.parent != self.run;
        let indent = if of_sub_agent { "    " } else { "  " };
        let (mark, style, status) = line.told(now, theme);
        let mut body = vec![Span::raw(one_line(&line.tool))];
        if !line.about.is_empty() {
            let about = format!(" {}", one_line(&line.about));
            body.push(Span::styled(about, theme.quiet()));
        }
        if !status.is_empty() {
            let style = if style == theme.bad() {
                style
            } else {
                theme.quiet()
            };
            body.push(Span::styled(format!("  {status}"), style));
        }
        let fit = match &line.standing {
            Standing::Over(record) if record.error.is_some() => Fit::Words,
            _ => Fit::Cut,
        };
        Row::spans(body)
            .fit(fit)
            .behind(Span::styled(format!("{mark} "), style))
            .behind(Span::raw(indent))
    }
}

impl CallLine {
    fn new(id: &str, tool: &str) -> Self {
        let (id, tool) = (id.to_owned(), tool.to_owned());
        Self {
            parent: None,
            id,
            tool,
            about: String::new(),
            standing: Standing::Wanted,
            result: Vec::new(),
        }
    }

    fn is_of(&self, parent: &str, id: &str) -> bool {
        self.id == id && self.parent.as_deref().is_none_or(|own| own == parent)
    }

    /// Whether an event of this tool may update the line. Until the run is known, any tool may: the
    /// model may have spelled its name differently.
    fn tool_fits(&self, tool: &str) -> bool {
        self.parent.is_none() || self.tool == tool
    }

    /// Returns the mark of the state, its style, and the status text.
    fn told(&self, now: Instant, theme: Look) -> (&'static str, Style, String) {
        match &self.standing {
            Standing::Wanted => ("·", theme.quiet(), String::new()),
            Standing::Asked => ("?", theme.asks(), "waiting for approval".to_owned()),
            Standing::Running { since, last_words } => {
                let elapsed = now.saturating_duration_since(*since);
                let spinner = SPINNER[(elapsed.as_millis() / 100) as usize % SPINNER.len()];
                let elapsed = match elapsed.as_secs() {
                    0 => String::new(),
                    _ => took(elapsed),
                };
                let status = format!("{elapsed} {}", short(&one_line(last_words), 60));
                (spinner, theme.busy(), status.trim().to_owned())
            }
            Standing::Over(record) => {
                let (mark, style) = match record.status {
                    CallStatus::Done if record.reused => ("↺", theme.good()),
                    CallStatus::Done => ("✓", theme.good()),
                    CallStatus::Failed => ("✗", theme.bad()),
                    CallStatus::Aborted | CallStatus::NotStarted => ("–", theme.quiet()),
                    CallStatus::OutcomeUnknown => ("!", theme.bad()),
                };
                let status = match (&record.error, record.status) {
                    (_, CallStatus::Done) if record.reused => "reused".to_owned(),
                    (_, CallStatus::Done) => took_ms(record.duration_ms),
                    (Some(error), status) => {
                        let message = short(&one_line(&error.message), 300);
                        format!("{}: {message}", status.as_str())
                    }
                    (None, status) => status.as_str().to_owned(),
                };
                (mark, style, status)
            }
        }
    }
}

/// Formats a duration in milliseconds, seconds or minutes.
pub(crate) fn took(duration: Duration) -> String {
    match duration.as_millis() {
        0..1000 => format!("{} ms", duration.as_millis()),
        1000..60_000 => format!("{:.1} s", duration.as_secs_f64()),
        _ => {
            let seconds = duration.as_secs();
            format!("{} min {:02} s", seconds / 60, seconds % 60)
        }
    }
}

pub(crate) fn took_ms(milliseconds: f64) -> String {
    took(Duration::from_secs_f64(milliseconds.max(0.0) / 1000.0))
}

/// Summarizes arguments in at most 80 columns, before the tool has described the call itself.
fn about(arguments: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(arguments) else {
        // Incomplete JSON, or a plain text.
        let mut lines = arguments.trim_start_matches(['{', '"']).lines();
        return short(lines.next().unwrap_or_default(), 80);
    };
    let Some(fields) = value.as_object() else {
        return short(&one_line(&value.to_string()), 80);
    };
    let texts = fields.values().filter_map(|value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            Some(texts?.join(" "))
        }
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    short(&one_line(&texts.collect::<Vec<_>>().join(" ")), 80)
}

#[cfg(test)]
mod tests {
    use super::*;
    use selvedge_protocol::{
        ApprovalRequest, CallError, ErrorCode, GatedCall, OutputStream, Preview,
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
        }
    }

    fn started(run: &str, id: &str, tool: &str, about: &str) -> Event {
        Event::CallStarted {
            parent_id: run.into(),
            call_id: id.into(),
            tool: tool.into(),
            about: about.into(),
        }
    }

    fn finished(run: &str, call: CallRecord) -> Event {
        Event::CallFinished {
            parent_id: run.into(),
            call,
        }
    }

    fn plain(rows: &[Row]) -> Vec<String> {
        rows.iter().map(Row::plain).collect()
    }

    #[test]
    fn every_state_has_its_line() {
        let now = Instant::now();
        let mut calls = Calls::of_run("scr_1");
        for (id, tool) in [
            ("tool_1", "read_file"),
            ("tool_2", "exec"),
            ("tool_3", "exec"),
            ("tool_4", "grep_files"),
        ] {
            calls.take(&started("scr_1", id, tool, "a.txt"), now);
        }
        let output = Event::CallOutput {
            parent_id: "scr_1".into(),
            call_id: "tool_3".into(),
            stream: OutputStream::Stdout,
            text: "one\ntwo\n".into(),
        };
        calls.take(&output, now);
        calls.take(
            &finished("scr_1", record("tool_1", "read_file", CallStatus::Done)),
            now,
        );
        let error = Some(CallError {
            code: ErrorCode::ToolExecutionError,
            message: "no such program".into(),
        });
        calls.take(
            &finished(
                "scr_1",
                CallRecord {
                    error,
                    ..record("tool_2", "exec", CallStatus::Failed)
                },
            ),
            now,
        );
        calls.take(
            &finished("scr_1", record("tool_4", "grep_files", CallStatus::Aborted)),
            now,
        );
        let reused = CallRecord {
            reused: true,
            ..record("tool_5", "write_file", CallStatus::Done)
        };
        calls.take(&finished("scr_1", reused), now);
        // A call of a sub-agent.
        calls.take(&started("scr_2", "tool_1", "list_dir", "."), now);
        let request = ApprovalRequest {
            id: "apr_1".into(),
            script_id: Some("scr_1".into()),
            calls: vec![GatedCall {
                call_id: "tool_6".into(),
                tool: "exec".into(),
                args: serde_json::json!({"command": ["rm", "-rf", "x"]}),
                reason: String::new(),
                context: None,
                line: None,
                snippet: None,
                preview: Preview::default(),
            }],
        };
        calls.take(&Event::ApprovalRequested { request }, now);
        let later = now + Duration::from_millis(2300);
        assert_eq!(
            plain(&calls.live_rows(later, Look::Plain)),
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
        let mut calls = Calls::of_run("scr_1");
        for number in 0..20 {
            calls.take(
                &started("scr_1", &format!("tool_{number}"), "exec", ""),
                now,
            );
        }
        for number in 0..18 {
            calls.take(
                &finished(
                    "scr_1",
                    record(&format!("tool_{number}"), "exec", CallStatus::Done),
                ),
                now,
            );
        }
        assert_eq!(
            plain(&calls.live_rows(now, Look::Plain)),
            ["  18 of 20 calls finished", "  ⠋ exec", "  ⠋ exec"]
        );
        assert_eq!(calls.rows(now, Look::Plain).len(), 20);
    }

    #[test]
    fn arguments_are_summarized() {
        assert_eq!(
            about(r#"{"path":"a.txt","limit":3,"deep":{"x":1}}"#),
            "a.txt 3"
        );
        assert_eq!(about(r#"{"path":"a.t"#), "path\":\"a.t");
    }
}
