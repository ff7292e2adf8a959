//! Raw mode of the terminal while a chat runs. The terminal is restored however the chat ends.

use std::io::{self, IsTerminal, Write};
use std::sync::Once;

use anyhow::Result;
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};

use crate::problem::Problem;

/// A guard that keeps the terminal in raw mode and restores it when dropped.
pub(crate) struct RawModeGuard;

/// Returns an error unless standard input and output are a terminal that can move its cursor.
pub(crate) fn require_terminal() -> Result<()> {
    let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let message = "a chat needs a terminal as standard input and output";
        let hint = "run `selvedge exec \"PROMPT\"` for a single task, or `selvedge --help`";
        return Err(Problem::new(message).hint(hint).into());
    }
    if dumb {
        let message = "a chat needs a terminal that can move its cursor, but TERM is `dumb`";
        let hint = "set TERM, or run `selvedge exec \"PROMPT\"` for a single task";
        return Err(Problem::new(message).hint(hint).into());
    }
    Ok(())
}

impl RawModeGuard {
    pub(crate) fn enable() -> io::Result<Self> {
        static PANIC_HOOK: Once = Once::new();
        PANIC_HOOK.call_once(|| {
            let previous_hook = std::panic::take_hook();
            let chat_thread = std::thread::current().id();
            std::panic::set_hook(Box::new(move |panic| {
                // On other threads a panic ends one turn or call. The chat continues, so nothing
                // must be printed over its screen.
                if std::thread::current().id() == chat_thread {
                    restore_terminal();
                    previous_hook(panic);
                } else {
                    tracing::error!(%panic);
                }
            }));
        });
        // Created now, so that an error below leaves raw mode.
        let guard = Self;
        enter_raw_mode()?;
        Ok(guard)
    }
}

/// Puts the terminal into raw mode, with pastes marked.
pub(crate) fn enter_raw_mode() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnableBracketedPaste)
}

impl Drop for RawModeGuard {
    fn drop(&mut self) {
        restore_terminal();
    }
}

/// Leaves raw mode.
pub(crate) fn restore_terminal() {
    let mut out = io::stdout();
    // Errors are ignored: the terminal may be closed.
    let _ = execute!(out, DisableBracketedPaste, cursor::Show);
    let _ = out.write_all(b"\x1b[0m\r").and_then(|()| out.flush());
    let _ = disable_raw_mode();
}
