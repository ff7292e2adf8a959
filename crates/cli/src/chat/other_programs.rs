//! Lends the terminal to other programs: the shell after Ctrl-Z, and the user's editor.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossterm::event::Event as InputEvent;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::app::{Chat, terminal_size};
use super::editor::Draft;
use super::terminal::{enter_raw_mode, restore_terminal};
use crate::problem::Problem;
use crate::programs::editor_command;

/// How long the reader waits for input before it looks whether the terminal is lent.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Largest message that is taken from the editor, in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Stops the reader of the terminal while another program reads it.
#[derive(Debug, Clone, Default)]
pub(crate) struct InputGate {
    reading: Arc<Mutex<()>>,
    wanted: Arc<AtomicBool>,
}

impl InputGate {
    /// Waits until the reader has stopped. It reads again when the guard is dropped.
    fn close(&self) -> ClosedGate<'_> {
        self.wanted.store(true, Ordering::Relaxed);
        let guard = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.store(false, Ordering::Relaxed);
        ClosedGate(guard)
    }
}

struct ClosedGate<'a>(#[expect(dead_code, reason = "held until it is dropped")] MutexGuard<'a, ()>);

/// Reads terminal events on a thread of its own, which ends when the terminal or the receiver
/// closes.
pub(super) fn spawn_input_reader(gate: InputGate) -> UnboundedReceiver<InputEvent> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        while !sender.is_closed() {
            if gate.wanted.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let reading = gate.reading.lock().unwrap_or_else(PoisonError::into_inner);
            let event = match crossterm::event::poll(POLL_INTERVAL) {
                Ok(true) => crossterm::event::read(),
                Ok(false) => continue,
                Err(_) => return,
            };
            drop(reading);
            let Ok(event) = event else { return };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Chat {
    /// Stops the process, as a shell expects it of Ctrl-Z, and draws again when it continues.
    pub(super) fn stop_process(&mut self) {
        #[cfg(unix)]
        {
            use rustix::process::{Signal, kill_current_process_group};
            let _ = self.screen.clear();
            restore_terminal();
            // Returns when the shell continues the process; at once if there is no shell.
            let _ = kill_current_process_group(Signal::TSTP);
            self.take_terminal_back();
        }
    }

    /// Opens the input in the user's editor, and takes over the text.
    pub(super) fn edit_in_editor(&mut self) {
        if let Err(problem) = self.run_editor() {
            self.print_problem(&problem);
        }
    }

    fn run_editor(&mut self) -> Result<(), Problem> {
        let variables = ["VISUAL", "EDITOR"].into_iter();
        let named = variables.filter_map(|name| std::env::var(name).ok());
        let editor = named.into_iter().find(|name| !name.trim().is_empty());
        let editor = editor.unwrap_or_else(|| "vi".to_owned());
        let editor = editor_command(&self.setup.toolbox.workspace, &editor)
            .map_err(|problem| problem.hint("set EDITOR to the full path of an editor"))?;
        let cannot = |what: &str, error: &std::io::Error| {
            Problem::new(format!("cannot {what}: {error}"))
                .hint("set EDITOR to the command of an editor")
        };
        // Not in a folder where other users could put a link in its place.
        let folder = self.setup.home.clone().ok_or_else(|| {
            Problem::new("there is no folder for the text").hint("set SELVEDGE_HOME")
        })?;
        let file = folder.join(format!("message-{}.md", std::process::id()));
        crate::private_file::write_private(&file, &self.editor.text())
            .map_err(|error| cannot("write a temporary file", &error))?;
        let gate = self.input_gate.clone();
        let closed = gate.close();
        let _ = self.screen.clear();
        restore_terminal();
        // The variable may contain arguments, so a shell reads it.
        let status = Command::new("/bin/sh")
            .arg("-c")
            .arg(format!("{editor} \"$1\""))
            .args(["sh".as_ref(), file.as_os_str()])
            .status();
        drop(closed);
        self.take_terminal_back();
        let text = selvedge_files::read_user_text(&file, MAX_MESSAGE_BYTES);
        // If it stays behind, the next chat with this process id replaces it.
        let _ = std::fs::remove_file(&file);
        let status = status.map_err(|error| cannot("run the editor", &error))?;
        if !status.success() {
            return Err(Problem::new(format!("the editor ended with {status}"))
                .hint("set EDITOR to the command of an editor"));
        }
        let text = text
            .map_err(|refusal| Problem::new(refusal.to_string()).hint("write a shorter message"))?;
        self.editor.restore(&Draft {
            text: text.unwrap_or_default().trim_end().to_owned(),
            has_paste: self.editor.has_paste(),
        });
        self.history.reset_position();
        self.completions = None;
        Ok(())
    }

    fn take_terminal_back(&mut self) {
        // If the terminal cannot be used, the user is gone.
        self.quitting |= enter_raw_mode().is_err();
        let (width, height) = terminal_size();
        self.redraw(width, height);
    }
}
