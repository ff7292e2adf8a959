//! Progress on standard error: one line per call, with a spinner if it is a terminal.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use selvedge_protocol::{CallError, CallRecord, EventSink, LogLevel, PlanStepStatus, RuntimeEvent};
use selvedge_text::visible_line;
use selvedge_tools::summarise_args;
use unicode_width::UnicodeWidthStr;

use crate::ask::terminal_width;
use crate::call_outcome::{CallOutcomeLabel, OutcomeTone};
use crate::chat::truncate;
use crate::output::eprint_marked;
use crate::units::format_milliseconds;

/// A handle to the progress display. Clones share it.
#[derive(Clone)]
pub(crate) struct ProgressDisplay {
    /// `None` if nothing is shown.
    lines: Option<Arc<Mutex<ProgressLines>>>,
}

/// The spinners and what they show.
struct ProgressLines {
    spinners: MultiProgress,
    /// Spinner and argument summary of each running call, by call id.
    running_calls: HashMap<String, (ProgressBar, String)>,
    /// Whether standard error is a terminal that shows spinners.
    is_terminal: bool,
    /// Lines to print when the display resumes; `None` while it is not paused.
    held_lines: Option<Vec<ProgressLine>>,
    /// The last call, if it failed. Its line is printed with the next event: without its message if
    /// it ends the run, because the error of the run repeats the message.
    failed_call: Option<FailedCallLine>,
    /// The spinner of a turn, below those of its calls.
    turn: Option<ProgressBar>,
}

/// The line of a call that failed.
struct FailedCallLine {
    /// The line without the message.
    line: ProgressLine,
    message: String,
}

/// A line to print: a mark with its colour, and text.
struct ProgressLine {
    mark: &'static str,
    tone: OutcomeTone,
    text: String,
}

impl ProgressLine {
    /// Returns a line without a mark.
    fn plain(text: impl Into<String>) -> Self {
        Self {
            mark: "",
            tone: OutcomeTone::Neutral,
            text: text.into(),
        }
    }
}

impl ProgressDisplay {
    /// Shows progress on standard error, or nothing if `quiet` is set.
    pub(crate) fn on_stderr(quiet: bool) -> Self {
        let spinners = MultiProgress::new();
        // On a terminal that cannot move its cursor, spinners are hidden.
        let is_terminal = std::io::stderr().is_terminal() && !spinners.is_hidden();
        let lines = || ProgressLines {
            spinners,
            running_calls: HashMap::new(),
            is_terminal,
            held_lines: None,
            failed_call: None,
            turn: None,
        };
        Self {
            lines: (!quiet).then(|| Arc::new(Mutex::new(lines()))),
        }
    }

    fn lock_lines(&self) -> Option<MutexGuard<'_, ProgressLines>> {
        let lines = self.lines.as_ref()?;
        Some(lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns an event sink that updates the display.
    pub(crate) fn sink(&self) -> EventSink {
        if self.lines.is_none() {
            return EventSink::silent();
        }
        let display = self.clone();
        EventSink::new(move |event| {
            if let Some(mut lines) = display.lock_lines() {
                lines.apply(event);
            }
        })
    }

    /// Hides the spinners and holds back lines until the returned guard is dropped.
    pub(crate) fn pause(&self) -> ProgressPause {
        if let Some(mut lines) = self.lock_lines() {
            lines.pause();
        }
        ProgressPause(self.clone())
    }

    /// Removes the spinners while `print` writes to the terminal.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        match self.lock_lines() {
            Some(lines) => lines.spinners.suspend(print),
            None => print(),
        }
    }

    /// Shows a spinner below all lines until [`Self::finish`], if there is a terminal.
    pub(crate) fn start_turn(&self) {
        if let Some(mut lines) = self.lock_lines()
            && lines.is_terminal
        {
            let bar = lines.spinners.add(ProgressBar::new_spinner());
            start_spinner(&bar, "working");
            lines.turn = Some(bar);
        }
    }

    /// Prints a line above the spinners.
    pub(crate) fn print(&self, line: &str) {
        if let Some(mut lines) = self.lock_lines() {
            lines.print_failed_call(None);
            lines.print_line(ProgressLine::plain(line));
        }
    }

    /// Removes the spinners of calls that have not ended.
    pub(crate) fn finish(&self) {
        if let Some(mut lines) = self.lock_lines() {
            lines.print_failed_call(None);
            lines.turn.take().inspect(ProgressBar::finish_and_clear);
            for (bar, _) in std::mem::take(&mut lines.running_calls).into_values() {
                bar.finish_and_clear();
            }
        }
    }
}

/// A guard that keeps the display paused.
pub(crate) struct ProgressPause(ProgressDisplay);

impl Drop for ProgressPause {
    fn drop(&mut self) {
        if let Some(mut lines) = self.0.lock_lines() {
            lines.resume();
        }
    }
}

impl ProgressLines {
    /// Stops drawing, so that a question stays visible.
    fn pause(&mut self) {
        self.spinners.set_draw_target(ProgressDrawTarget::hidden());
        self.held_lines.get_or_insert_default();
        // Clear the lines where the question will be printed.
        let _ = self.spinners.clear();
    }

    fn resume(&mut self) {
        if self.is_terminal {
            self.spinners.set_draw_target(ProgressDrawTarget::stderr());
        }
        for line in self.held_lines.take().unwrap_or_default() {
            self.print_line(line);
        }
    }

    fn apply(&mut self, event: RuntimeEvent) {
        self.print_failed_call(match &event {
            RuntimeEvent::ScriptFinished { error, .. } => error.as_ref(),
            _ => None,
        });
        match event {
            RuntimeEvent::CallStarted {
                call_id,
                tool,
                args_summary,
                ..
            } => self.start_call(call_id, tool, args_summary),
            RuntimeEvent::CallFinished {
                call,
                result_failure,
                ..
            } => self.finish_call(&call, result_failure.as_deref()),
            RuntimeEvent::ApprovalRequested { request } => {
                for call in request
                    .calls
                    .into_iter()
                    .filter(|call| !call.args.is_null())
                {
                    let summary = summarise_args(&call.args, &[]);
                    let entry = self.running_calls.entry(call.call_id);
                    entry.or_insert((ProgressBar::hidden(), summary));
                }
            }
            RuntimeEvent::ScriptLog { level, message, .. } => match level {
                LogLevel::Log => self.print_lines("", &message),
                LogLevel::Warn => self.print_lines("warn: ", &message),
                LogLevel::Error => self.print_lines("error: ", &message),
            },
            RuntimeEvent::ScriptProgress { message, .. } => self.print_lines("… ", &message),
            RuntimeEvent::ScriptNotify { message, .. } => self.print_lines("! ", &message),
            RuntimeEvent::CallOutput { call_id, text, .. } => self.show_output(&call_id, &text),
            RuntimeEvent::PlanUpdated { plan, .. } => {
                for step in plan {
                    let mark = match step.status {
                        PlanStepStatus::Completed => "✓",
                        PlanStepStatus::InProgress => "▸",
                        PlanStepStatus::Pending => "·",
                    };
                    self.print_lines("", &format!("  {mark} {}", step.step));
                }
            }
            _ => {}
        }
    }

    fn start_call(&mut self, call_id: String, tool: String, args_summary: String) {
        if !self.is_terminal {
            self.running_calls
                .insert(call_id, (ProgressBar::hidden(), args_summary));
            return;
        }
        let bar = ProgressBar::new_spinner();
        let bar = match &self.turn {
            Some(turn) => self.spinners.insert_before(turn, bar),
            None => self.spinners.add(bar),
        };
        start_spinner(&bar, &visible_line(&format!("{tool} {args_summary}")));
        self.running_calls.insert(call_id, (bar, args_summary));
    }

    /// Shows the last output line of a command next to its spinner.
    fn show_output(&mut self, call_id: &str, text: &str) {
        let Some((bar, args_summary)) =
            self.running_calls.get(call_id).filter(|_| self.is_terminal)
        else {
            return;
        };
        if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
            let line: String = line.trim().chars().take(60).collect();
            bar.set_message(visible_line(&format!("exec {args_summary} · {line}")).into_owned());
        }
    }

    /// Prints how a call ended. `result_failure` says what went wrong in a call that is done.
    fn finish_call(&mut self, call: &CallRecord, result_failure: Option<&str>) {
        let args_summary = self
            .running_calls
            .remove(&call.id)
            .map(|(bar, args_summary)| {
                bar.finish_and_clear();
                args_summary
            });
        let label = CallOutcomeLabel::of_record(call, result_failure);
        let args_summary = args_summary.filter(|args_summary| !args_summary.is_empty());
        let args_summary = args_summary
            .map(|args_summary| format!(" {args_summary}"))
            .unwrap_or_default();
        let outcome = match label.words.as_str() {
            "" if call.duration_ms < 1000.0 => format!("{:.1} ms", call.duration_ms),
            "" => format_milliseconds(call.duration_ms),
            words => visible_line(words).into_owned(),
        };
        let mut called = format!("{}{args_summary}", visible_line(&call.tool));
        if self.is_terminal && label.reason.is_none() {
            // The outcome stays visible behind long arguments, in one line.
            let taken = label.mark.width() + 1 + 2 + outcome.width();
            called = truncate(
                &visible_line(&called),
                terminal_width().saturating_sub(taken),
            );
        }
        let line = ProgressLine {
            mark: label.mark,
            tone: label.tone,
            text: format!("{called}  {outcome}"),
        };
        match label.reason {
            Some(message) => self.failed_call = Some(FailedCallLine { line, message }),
            None => self.print_line(line),
        }
    }

    /// Prints the line of the last call if it failed. `run_error` is the error that ended the run.
    fn print_failed_call(&mut self, run_error: Option<&CallError>) {
        let Some(FailedCallLine { mut line, message }) = self.failed_call.take() else {
            return;
        };
        if !run_error.is_some_and(|error| error.message.contains(&message)) {
            line.text.push_str(&format!(": {}", visible_line(&message)));
        }
        self.print_line(line);
    }

    /// Prints each line of a message after the prefix.
    fn print_lines(&mut self, prefix: &str, message: &str) {
        for line in message.lines() {
            self.print_line(ProgressLine::plain(format!("{prefix}{line}")));
        }
    }

    fn print_line(&mut self, line: ProgressLine) {
        if let Some(held) = &mut self.held_lines {
            return held.push(line);
        }
        let ProgressLine { mark, tone, text } = line;
        self.spinners
            .suspend(|| eprint_marked(mark, tone.colour_code(), &text));
    }
}

/// Shows a spinner with a text and the time since now.
fn start_spinner(bar: &ProgressBar, text: &str) {
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(text.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
}
