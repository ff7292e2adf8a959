//! The terminal while a chat has it: keys come one by one, and it is given back however the chat ends.

use std::io::{self, IsTerminal, Write};
use std::sync::Once;

use anyhow::Result;
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};

use crate::problem::Problem;

/// Holds the terminal; dropping it gives it back.
pub(crate) struct Held;

/// Fails where nobody could read what is drawn, or type anything.
pub(crate) fn must_be_there() -> Result<()> {
    let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Problem::new("a chat needs a terminal, and there is none on standard input and output")
            .hint("`selvedge exec \"do this\"` gives an agent one task; `selvedge --help` shows everything else")
            .into());
    }
    if dumb {
        let words = "a chat needs a terminal that can move its cursor, and TERM is dumb";
        let hint = "`selvedge exec \"do this\"` gives an agent one task";
        return Err(Problem::new(words).hint(hint).into());
    }
    Ok(())
}

impl Held {
    pub(crate) fn take() -> io::Result<Self> {
        static AT_A_PANIC: Once = Once::new();
        AT_A_PANIC.call_once(|| {
            let before = std::panic::take_hook();
            let drawing = std::thread::current().id();
            std::panic::set_hook(Box::new(move |panic| {
                // Elsewhere a panic ends one turn or one call: the chat goes on, and its picture stays whole.
                if std::thread::current().id() == drawing {
                    give_back();
                    before(panic);
                } else {
                    tracing::error!(%panic);
                }
            }));
        });
        enable_raw_mode()?;
        let held = Self;
        execute!(io::stdout(), EnableBracketedPaste)?;
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    let mut out = io::stdout();
    // Where the terminal is gone there is nothing to give back.
    let _ = execute!(out, DisableBracketedPaste, cursor::Show);
    let _ = out.write_all(b"\x1b[0m\r").and_then(|()| out.flush());
    let _ = disable_raw_mode();
}
