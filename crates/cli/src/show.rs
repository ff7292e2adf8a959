//! Progress on standard error: one line per call, with a spinner if it is a terminal.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ask::one_line;
use crate::out::harmless;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use selvedge_protocol::{CallRecord, CallStatus, Event, EventSink, LogLevel, StepStatus};

/// A handle to the progress display. Clones share it.
#[derive(Clone)]
pub(crate) struct Show {
    /// `None` if nothing is shown.
    screen: Option<Arc<Mutex<Screen>>>,
}

/// The spinners and what they show.
struct Screen {
    lines: MultiProgress,
    /// Spinner and argument summary of each running call, by call id.
    running: HashMap<String, (ProgressBar, String)>,
    /// Whether standard error is a terminal.
    live: bool,
    /// Lines to print when the display resumes; `None` while it is not paused.
    held: Option<Vec<String>>,
}

impl Show {
    /// Shows progress on standard error, or nothing if `quiet` is set.
    pub(crate) fn on_stderr_unless(quiet: bool) -> Self {
        let screen = || Screen {
            lines: MultiProgress::new(),
            running: HashMap::new(),
            live: std::io::stderr().is_terminal(),
            held: None,
        };
        Self {
            screen: (!quiet).then(|| Arc::new(Mutex::new(screen()))),
        }
    }

    fn screen(&self) -> Option<MutexGuard<'_, Screen>> {
        let screen = self.screen.as_ref()?;
        Some(screen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns an event sink that updates the display.
    pub(crate) fn sink(&self) -> EventSink {
        if self.screen.is_none() {
            return EventSink::silent();
        }
        let show = self.clone();
        EventSink::new(move |event| {
            if let Some(mut screen) = show.screen() {
                screen.take(event);
            }
        })
    }

    /// Hides the spinners and holds back lines until the returned guard is dropped.
    pub(crate) fn pause(&self) -> Pause {
        if let Some(mut screen) = self.screen() {
            screen.pause();
        }
        Pause(self.clone())
    }

    /// Removes the spinners of calls that have not ended.
    pub(crate) fn finish(&self) {
        if let Some(mut screen) = self.screen() {
            for (bar, _) in std::mem::take(&mut screen.running).into_values() {
                bar.finish_and_clear();
            }
        }
    }
}

/// A guard that keeps the display paused.
pub(crate) struct Pause(Show);

impl Drop for Pause {
    fn drop(&mut self) {
        if let Some(mut screen) = self.0.screen() {
            screen.resume();
        }
    }
}

impl Screen {
    /// Stops drawing, so that a question stays visible.
    fn pause(&mut self) {
        self.lines.set_draw_target(ProgressDrawTarget::hidden());
        self.held.get_or_insert_default();
        // Clear the lines where the question will be printed.
        let _ = self.lines.clear();
    }

    fn resume(&mut self) {
        if self.live {
            self.lines.set_draw_target(ProgressDrawTarget::stderr());
        }
        for line in self.held.take().unwrap_or_default() {
            self.say("", &line);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::CallStarted {
                call_id,
                tool,
                about,
                ..
            } => self.start(call_id, tool, about),
            Event::CallFinished { call, .. } => self.end(&call),
            Event::Log { level, message, .. } => match level {
                LogLevel::Log => self.say("", &message),
                LogLevel::Warn => self.say("warn: ", &message),
                LogLevel::Error => self.say("error: ", &message),
            },
            Event::Progress { message, .. } => self.say("… ", &message),
            Event::Notify { message, .. } => self.say("! ", &message),
            Event::CallOutput { call_id, text, .. } => self.writes(&call_id, &text),
            Event::PlanUpdated { plan, .. } => {
                for step in plan {
                    let mark = match step.status {
                        StepStatus::Completed => "✓",
                        StepStatus::InProgress => "▸",
                        StepStatus::Pending => "·",
                    };
                    self.say("", &format!("  {mark} {}", step.step));
                }
            }
            _ => {}
        }
    }

    fn start(&mut self, call_id: String, tool: String, about: String) {
        if !self.live {
            self.running.insert(call_id, (ProgressBar::hidden(), about));
            return;
        }
        let bar = self.lines.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(harmless(&format!("{tool} {about}")).into_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        self.running.insert(call_id, (bar, about));
    }

    /// Shows the last output line of a command next to its spinner.
    fn writes(&mut self, call_id: &str, text: &str) {
        let Some((bar, about)) = self.running.get(call_id).filter(|_| self.live) else {
            return;
        };
        if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
            let line: String = line.trim().chars().take(60).collect();
            bar.set_message(harmless(&format!("exec {about} · {line}")).into_owned());
        }
    }

    fn end(&mut self, call: &CallRecord) {
        let about = self.running.remove(&call.id).map(|(bar, about)| {
            bar.finish_and_clear();
            about
        });
        let mark = match call.status {
            CallStatus::Done => "✓",
            CallStatus::Failed => "✗",
            CallStatus::Aborted | CallStatus::NotStarted | CallStatus::OutcomeUnknown => "–",
        };
        let about = about.filter(|about| !about.is_empty());
        let about = about.map(|about| format!(" {about}")).unwrap_or_default();
        let outcome = match &call.error {
            Some(error) => format!("{}: {}", call.status.as_str(), one_line(&error.message)),
            None => format!("{:.1} ms", call.duration_ms),
        };
        let tool = one_line(&call.tool);
        self.say("", &format!("{mark} {tool}{about}  {outcome}"));
    }

    fn say(&mut self, prefix: &str, message: &str) {
        if let Some(held) = &mut self.held {
            held.push(format!("{prefix}{message}"));
            return;
        }
        for line in harmless(message).lines() {
            if self.live {
                // Fails only if the terminal is closed.
                let _ = self.lines.println(format!("{prefix}{line}"));
            } else {
                tell!("{prefix}{line}");
            }
        }
    }
}
