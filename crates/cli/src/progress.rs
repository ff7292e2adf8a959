//! Progress on standard error: one line per call, with a spinner if it is a terminal.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use selvedge_protocol::{
    CallError, CallRecord, CallStatus, EventSink, LogLevel, PlanStepStatus, RuntimeEvent,
};
use selvedge_text::visible_line;

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
    /// Whether standard error is a terminal.
    is_terminal: bool,
    /// Lines to print when the display resumes; `None` while it is not paused.
    held_lines: Option<Vec<String>>,
    /// The last call, if it failed. Its line is printed with the next event: without its message if
    /// it ends the run, because the error of the run repeats the message.
    failed_call: Option<FailedCallLine>,
}

/// The line of a call that failed.
struct FailedCallLine {
    /// The line without the message.
    line: String,
    message: String,
}

impl ProgressDisplay {
    /// Shows progress on standard error, or nothing if `quiet` is set.
    pub(crate) fn on_stderr(quiet: bool) -> Self {
        let lines = || ProgressLines {
            spinners: MultiProgress::new(),
            running_calls: HashMap::new(),
            is_terminal: std::io::stderr().is_terminal(),
            held_lines: None,
            failed_call: None,
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

    /// Prints a line above the spinners.
    pub(crate) fn print(&self, line: &str) {
        if let Some(mut lines) = self.lock_lines() {
            lines.print_failed_call(None);
            lines.print_line("", &visible_line(line));
        }
    }

    /// Removes the spinners of calls that have not ended.
    pub(crate) fn finish(&self) {
        if let Some(mut lines) = self.lock_lines() {
            lines.print_failed_call(None);
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
            self.print_line("", &line);
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
            RuntimeEvent::ScriptLog { level, message, .. } => match level {
                LogLevel::Log => self.print_line("", &message),
                LogLevel::Warn => self.print_line("warn: ", &message),
                LogLevel::Error => self.print_line("error: ", &message),
            },
            RuntimeEvent::ScriptProgress { message, .. } => self.print_line("… ", &message),
            RuntimeEvent::ScriptNotify { message, .. } => self.print_line("! ", &message),
            RuntimeEvent::CallOutput { call_id, text, .. } => self.show_output(&call_id, &text),
            RuntimeEvent::PlanUpdated { plan, .. } => {
                for step in plan {
                    let mark = match step.status {
                        PlanStepStatus::Completed => "✓",
                        PlanStepStatus::InProgress => "▸",
                        PlanStepStatus::Pending => "·",
                    };
                    self.print_line("", &format!("  {mark} {}", step.step));
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
        let bar = self.spinners.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(visible_line(&format!("{tool} {args_summary}")).into_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
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
        let mark = match call.status {
            CallStatus::Done if result_failure.is_some() => "✗",
            CallStatus::Done => "✓",
            CallStatus::Failed => "✗",
            CallStatus::Aborted | CallStatus::NotStarted | CallStatus::OutcomeUnknown => "–",
        };
        let args_summary = args_summary.filter(|args_summary| !args_summary.is_empty());
        let args_summary = args_summary
            .map(|args_summary| format!(" {args_summary}"))
            .unwrap_or_default();
        let outcome = match (&call.error, result_failure) {
            (Some(_), _) => call.status.as_str().to_owned(),
            (None, Some(failure)) => visible_line(failure).into_owned(),
            (None, None) if call.status != CallStatus::Done => call.status.as_str().to_owned(),
            (None, None) if call.reused => "reused".to_owned(),
            (None, None) => format!("{:.1} ms", call.duration_ms),
        };
        let tool = visible_line(&call.tool);
        let line = format!("{mark} {tool}{args_summary}  {outcome}");
        match &call.error {
            Some(error) => {
                self.failed_call = Some(FailedCallLine {
                    line,
                    message: error.message.clone(),
                });
            }
            None => self.print_line("", &line),
        }
    }

    /// Prints the line of the last call if it failed. `run_error` is the error that ended the run.
    fn print_failed_call(&mut self, run_error: Option<&CallError>) {
        let Some(FailedCallLine { line, message }) = self.failed_call.take() else {
            return;
        };
        match run_error.is_some_and(|error| error.message.contains(&message)) {
            true => self.print_line("", &line),
            false => self.print_line("", &format!("{line}: {}", visible_line(&message))),
        }
    }

    fn print_line(&mut self, prefix: &str, message: &str) {
        if let Some(held) = &mut self.held_lines {
            held.push(format!("{prefix}{message}"));
            return;
        }
        for line in message.lines() {
            if self.is_terminal {
                // Fails only if the terminal is closed.
                let _ = self
                    .spinners
                    .println(visible_line(&format!("{prefix}{line}")));
            } else {
                eprint_line!("{prefix}{line}");
            }
        }
    }
}
