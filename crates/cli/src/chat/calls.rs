//! One line per call: what it is, how it stands, how long it took. Calls that run side by side are seen together.

use std::time::{Duration, Instant};

use ratatui_core::style::Style;
use ratatui_core::text::Span;
use selvedge_protocol::{CallRecord, CallStatus, Event};
use serde_json::Value;

use super::look::Look;
use super::rows::{Fit, Row, one_line, short};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Standing {
    /// The model has asked for it; it has not begun.
    Wanted,
    Asked,
    Running {
        since: Instant,
        /// The last line it wrote.
        last_words: String,
    },
    Over(Box<CallRecord>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallLine {
    /// The run it belongs to; nobody knows before it began.
    parent: Option<String>,
    id: String,
    tool: String,
    about: String,
    standing: Standing,
    /// The first of what it returned, where that is shown.
    result: Vec<Row>,
}

/// Calls that belong together: those of a script, or those a model made side by side.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    lines: Vec<CallLine>,
    /// The run they belong to; those of other runs are calls of agents they launched.
    run: Option<String>,
}

/// While they run, more than this are summed up.
const MOST_LIVE: usize = 10;
/// Once they are over, more than this are summed up.
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

    /// A model made this call; it has not begun.
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

    /// The model did not want this call after all.
    pub(crate) fn forget(&mut self, id: &str) {
        self.lines
            .retain(|line| line.id != id || line.standing != Standing::Wanted);
    }

    /// Shows what a call returned below it.
    pub(crate) fn returned(&mut self, id: &str, rows: Vec<Row>) {
        let mut lines = self.lines.iter_mut();
        if let Some(line) = lines.find(|line| line.id == id && line.result.is_empty()) {
            line.result = rows;
        }
    }

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
                // What comes up on the way of a call has no arguments: that call has its line already.
                let before = request.calls.iter().filter(|call| !call.args.is_null());
                for call in before {
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

    fn line(&mut self, parent: &str, id: &str, tool: &str) -> &mut CallLine {
        let at = self
            .lines
            .iter()
            .position(|line| line.is_of(parent, id) && line.tool_fits(tool));
        let at = at.unwrap_or_else(|| {
            self.lines.push(CallLine::new(id, tool));
            self.lines.len() - 1
        });
        let line = &mut self.lines[at];
        line.parent = Some(parent.to_owned());
        line.tool = tool.to_owned();
        line
    }

    pub(crate) fn live_rows(&self, now: Instant, look: Look) -> Vec<Row> {
        if self.lines.len() <= MOST_LIVE {
            let lines = self.lines.iter();
            return lines
                .flat_map(|line| self.with_result(line, now, look))
                .collect();
        }
        let over = |line: &&CallLine| matches!(line.standing, Standing::Over(_));
        let done = self.lines.iter().filter(over).count();
        let open: Vec<&CallLine> = self.lines.iter().filter(|line| !over(line)).collect();
        let all = self.lines.len();
        let mut rows = vec![Row::quiet(format!("  {done} of {all} calls are over"))];
        let shown = open.iter().take(MOST_LIVE);
        rows.extend(shown.map(|line| self.row(line, now, look)));
        if open.len() > MOST_LIVE {
            rows.push(Row::quiet(format!("  … {} more", open.len() - MOST_LIVE)));
        }
        rows
    }

    pub(crate) fn rows(&self, now: Instant, look: Look) -> Vec<Row> {
        let shown = self.lines.iter().take(MOST);
        let mut rows: Vec<Row> = shown
            .flat_map(|line| self.with_result(line, now, look))
            .collect();
        if self.lines.len() > MOST {
            let more = self.lines.len() - MOST;
            rows.push(Row::quiet(format!(
                "  … {more} more calls; /runs names the run"
            )));
        }
        rows
    }

    fn with_result(&self, line: &CallLine, now: Instant, look: Look) -> Vec<Row> {
        std::iter::once(self.row(line, now, look))
            .chain(line.result.iter().cloned())
            .collect()
    }

    fn row(&self, line: &CallLine, now: Instant, look: Look) -> Row {
        let inner = line.parent.is_some() && self.run.is_some() && line.parent != self.run;
        let indent = if inner { "    " } else { "  " };
        let (mark, style, words) = line.told(now, look);
        let mut body = vec![Span::raw(one_line(&line.tool))];
        if !line.about.is_empty() {
            let about = format!(" {}", one_line(&line.about));
            body.push(Span::styled(about, look.quiet()));
        }
        if !words.is_empty() {
            let style = if style == look.bad() {
                style
            } else {
                look.quiet()
            };
            body.push(Span::styled(format!("  {words}"), style));
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

    fn tool_fits(&self, tool: &str) -> bool {
        self.parent.is_none() || self.tool == tool
    }

    /// Its mark, how that is drawn, and what is said behind it.
    fn told(&self, now: Instant, look: Look) -> (&'static str, Style, String) {
        match &self.standing {
            Standing::Wanted => ("·", look.quiet(), String::new()),
            Standing::Asked => ("?", look.asks(), "waits for an answer".to_owned()),
            Standing::Running { since, last_words } => {
                let time = now.saturating_duration_since(*since);
                let turn = SPINNER[(time.as_millis() / 100) as usize % SPINNER.len()];
                let time = match time.as_secs() {
                    0 => String::new(),
                    _ => took(time),
                };
                let words = format!("{time} {}", short(&one_line(last_words), 60));
                (turn, look.busy(), words.trim().to_owned())
            }
            Standing::Over(record) => {
                let (mark, style) = match record.status {
                    CallStatus::Done if record.reused => ("↺", look.good()),
                    CallStatus::Done => ("✓", look.good()),
                    CallStatus::Failed => ("✗", look.bad()),
                    CallStatus::Aborted | CallStatus::NotStarted => ("–", look.quiet()),
                    CallStatus::OutcomeUnknown => ("!", look.bad()),
                };
                let words = match (&record.error, record.status) {
                    (_, CallStatus::Done) if record.reused => "reused".to_owned(),
                    (_, CallStatus::Done) => took_ms(record.duration_ms),
                    (Some(error), status) => {
                        let message = short(&one_line(&error.message), 300);
                        format!("{}: {message}", status.as_str())
                    }
                    (None, status) => status.as_str().to_owned(),
                };
                (mark, style, words)
            }
        }
    }
}

pub(crate) fn took(time: Duration) -> String {
    match time.as_millis() {
        0..1000 => format!("{} ms", time.as_millis()),
        1000..60_000 => format!("{:.1} s", time.as_secs_f64()),
        _ => format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60),
    }
}

pub(crate) fn took_ms(milliseconds: f64) -> String {
    took(Duration::from_secs_f64(milliseconds.max(0.0) / 1000.0))
}

/// Arguments in a few words, before a tool has looked at them.
fn about(arguments: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(arguments) else {
        // Still on its way, or a text by itself.
        let mut lines = arguments.trim_start_matches(['{', '"']).lines();
        return short(lines.next().unwrap_or_default(), 80);
    };
    let Some(fields) = value.as_object() else {
        return short(&one_line(&value.to_string()), 80);
    };
    let words = fields.values().filter_map(|value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let words: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            Some(words?.join(" "))
        }
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    short(&one_line(&words.collect::<Vec<_>>().join(" ")), 80)
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
    fn every_standing_has_its_line() {
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
        let written = Event::CallOutput {
            parent_id: "scr_1".into(),
            call_id: "tool_3".into(),
            stream: OutputStream::Stdout,
            text: "one\ntwo\n".into(),
        };
        calls.take(&written, now);
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
        // A call of an agent that was launched.
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
                "  ? exec rm -rf x  waits for an answer",
            ]
        );
    }

    #[test]
    fn many_calls_are_summed_up_while_they_run() {
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
            ["  18 of 20 calls are over", "  ⠋ exec", "  ⠋ exec"]
        );
        assert_eq!(calls.rows(now, Look::Plain).len(), 20);
    }

    #[test]
    fn arguments_are_told_in_a_few_words() {
        assert_eq!(
            about(r#"{"path":"a.txt","limit":3,"deep":{"x":1}}"#),
            "a.txt 3"
        );
        assert_eq!(about(r#"{"path":"a.t"#), "path\":\"a.t");
    }
}
