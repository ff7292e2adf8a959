//! The open terminals of a process. Their commands keep running between calls.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use selvedge_confine::{ChildStdio, ExitReason, async_fd as watch_fd};
use selvedge_tools::{CallContext, ToolError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::blocking::run_blocking;
use crate::capture::OutputCapture;
use crate::command_access::CommandAccess;
use crate::command_request::CommandRequest;
use crate::commands::CommandRunner;
use crate::running_command::RunningCommand;

/// Maximum number of terminals of a scope that are open at the same time.
const MAX_TERMINALS: usize = 16;
const TERMINAL_SIZE: Winsize = Winsize {
    ws_row: 40,
    ws_col: 120,
    ws_xpixel: 0,
    ws_ypixel: 0,
};
/// How long to wait for further output after a command has exited.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_millis(100);

/// The open terminals. Each belongs to the scope of the call that opened it: no other scope can use
/// it or learn its id, and it is closed when the scope ends. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Terminals {
    open: Arc<Mutex<OpenTerminals>>,
}

struct OpenTerminals {
    /// The id of the newest terminal. The first id is random, so that an id from another process is
    /// not valid here by chance.
    last_id: u32,
    terminals: BTreeMap<u32, OwnedTerminal>,
}

/// A terminal and the id of the scope that it belongs to.
struct OwnedTerminal {
    scope_id: String,
    /// `None` while the terminal is being opened.
    terminal: Option<Arc<Terminal>>,
}

impl Default for OpenTerminals {
    fn default() -> Self {
        Self {
            last_id: (RandomState::new().hash_one(()) % 1_000_000_000) as u32,
            terminals: BTreeMap::new(),
        }
    }
}

impl OpenTerminals {
    fn of_scope(&self, scope_id: &str) -> impl Iterator<Item = (&u32, &OwnedTerminal)> {
        self.terminals
            .iter()
            .filter(move |(_, owned)| owned.scope_id == scope_id)
    }
}

/// Closes a terminal when its scope ends.
struct CloseTerminalOnDrop(Terminals, u32);

impl Drop for CloseTerminalOnDrop {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

/// A command in a terminal. Dropping it kills the command.
pub(crate) struct Terminal {
    master: Arc<AsyncFd<OwnedFd>>,
    unread: Arc<Mutex<OutputCapture>>,
    state: watch::Receiver<TerminalState>,
    command: Arc<RunningCommand>,
    is_confined: bool,
    reader_task: tokio::task::AbortHandle,
}

/// Whether the command runs or has exited with a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TerminalState {
    Running,
    Exited(i32),
}

/// The new output and the state of a terminal.
pub(crate) struct TerminalRead {
    /// Output since the last read.
    pub(crate) output: String,
    /// `None` while the command runs.
    pub(crate) exit_code: Option<i32>,
}

impl Terminals {
    /// Opens a terminal with a command in it.
    pub(crate) async fn open(
        &self,
        commands: &CommandRunner,
        request: CommandRequest,
        call: &CallContext,
    ) -> Result<(u32, Arc<Terminal>), ToolError> {
        let id = self.reserve_id(&call.scope_id)?;
        // Frees the id if opening fails.
        let close_guard = CloseTerminalOnDrop(self.clone(), id);
        let terminal_error =
            |error: std::io::Error| ToolError::new(format!("cannot open a terminal: {error}"));
        let (master, terminal) = open_pty().map_err(terminal_error)?;
        let commands = commands.clone();
        let is_confined = commands.confines(&request);
        let access = CommandAccess::of_call(call);
        let stdio = ChildStdio::Terminal(terminal);
        let child = run_blocking(move || commands.spawn(&request, access, stdio)).await?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let master = Arc::new(watch_fd(master, interest).map_err(terminal_error)?);
        let unread = Arc::new(Mutex::new(OutputCapture::default()));
        let (state_sender, state) = watch::channel(TerminalState::Running);
        let command = Arc::new(RunningCommand::new(child)?);
        let reading = read_until_exit(
            master.clone(),
            command.clone(),
            unread.clone(),
            state_sender,
        );
        let reader = tokio::spawn(reading).abort_handle();
        let terminal = Arc::new(Terminal {
            master,
            unread,
            state,
            command,
            is_confined,
            reader_task: reader,
        });
        let owned = OwnedTerminal {
            scope_id: call.scope_id.clone(),
            terminal: Some(terminal.clone()),
        };
        self.lock().terminals.insert(id, owned);
        call.resources.add(close_guard);
        Ok((id, terminal))
    }

    /// Reserves an id. If the scope uses all of its terminals, closes the oldest one whose command
    /// has exited.
    fn reserve_id(&self, scope_id: &str) -> Result<u32, ToolError> {
        let mut open = self.lock();
        if open.of_scope(scope_id).count() >= MAX_TERMINALS {
            let has_exited = |owned: &OwnedTerminal| {
                let terminal = owned.terminal.as_ref();
                terminal.is_some_and(|terminal| terminal.exit_code().is_some())
            };
            let oldest = open
                .of_scope(scope_id)
                .find(|(_, owned)| has_exited(owned))
                .map(|(id, _)| *id);
            let Some(oldest) = oldest else {
                let message = format!("cannot open more than {MAX_TERMINALS} terminals");
                return Err(ToolError::new(message).suggest(
                    "end one with Ctrl-C: tools.writeStdin({ sessionId, chars: \"\\u0003\" })",
                ));
            };
            open.terminals.remove(&oldest);
        }
        open.last_id += 1;
        let id = open.last_id;
        let reserved = OwnedTerminal {
            scope_id: scope_id.to_owned(),
            terminal: None,
        };
        open.terminals.insert(id, reserved);
        Ok(id)
    }

    /// Returns the terminal with this id. A terminal of another scope counts as not open.
    pub(crate) fn get(&self, id: u32, scope_id: &str) -> Result<Arc<Terminal>, ToolError> {
        let open = self.lock();
        let mut of_scope = open.of_scope(scope_id);
        let found = of_scope.find(|(open_id, _)| **open_id == id);
        if let Some(terminal) = found.and_then(|(_, owned)| owned.terminal.clone()) {
            return Ok(terminal);
        }
        let ids: Vec<String> = open
            .of_scope(scope_id)
            .map(|(id, _)| id.to_string())
            .collect();
        let ids = if ids.is_empty() {
            "none".to_owned()
        } else {
            ids.join(", ")
        };
        let message = format!("terminal {id} is not open (open terminals: {ids})");
        Err(ToolError::new(message).suggest(
            "open a new one with tools.execCommand; a terminal is closed when its script ends",
        ))
    }

    /// Returns whether the command in a terminal runs in the sandbox; `None` if it is not open.
    pub(crate) fn is_confined(&self, id: u32) -> Option<bool> {
        let open = self.lock();
        let terminal = open.terminals.get(&id)?.terminal.as_ref()?;
        Some(terminal.is_confined)
    }

    /// Removes a terminal and kills its command.
    pub(crate) fn close(&self, id: u32) {
        let closed = self.lock().terminals.remove(&id);
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, OpenTerminals> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terminal {
    /// Types text into the terminal.
    pub(crate) async fn write(&self, mut text: &[u8]) -> Result<(), ToolError> {
        while !text.is_empty() {
            let written = self
                .master
                .async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, text)?))
                .await;
            match written {
                Ok(written) => text = &text[written..],
                Err(error) => {
                    return Err(ToolError::new(format!(
                        "cannot write to the terminal: {error}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Waits until the command exits or `timeout` has passed, and returns the new output.
    pub(crate) async fn wait_output(
        &self,
        timeout: Duration,
        call: &CallContext,
    ) -> Result<TerminalRead, ToolError> {
        let mut state = self.state.clone();
        let exited = state.wait_for(|state| *state != TerminalState::Running);
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolError::new("the call was cancelled")),
            _ = tokio::time::timeout(timeout, exited) => {}
        }
        let exit_code = self.exit_code();
        Ok(TerminalRead {
            output: self
                .unread
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take_text(),
            exit_code,
        })
    }

    fn exit_code(&self) -> Option<i32> {
        match *self.state.borrow() {
            TerminalState::Running => None,
            TerminalState::Exited(code) => Some(code),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.command.start_kill();
        self.reader_task.abort();
    }
}

/// Reads the output of the terminal until the command has exited, then sends its exit code to
/// `state`.
async fn read_until_exit(
    master: Arc<AsyncFd<OwnedFd>>,
    command: Arc<RunningCommand>,
    unread: Arc<Mutex<OutputCapture>>,
    state: watch::Sender<TerminalState>,
) {
    let mut buffer = [0; 8192];
    let mut exited: Option<(ExitReason, Instant)> = None;
    loop {
        let timeout = exited.map_or(Duration::MAX, |(_, at)| {
            FINAL_OUTPUT_TIMEOUT.saturating_sub(at.elapsed())
        });
        let read_some = master.async_io(Interest::READABLE, |fd| {
            Ok(rustix::io::read(fd, &mut buffer)?)
        });
        let read = tokio::select! {
            biased;
            read = read_some => read.unwrap_or(0),
            end = command.wait(), if exited.is_none() => {
                exited = Some((end.map_or(ExitReason::Code(1), |end| end.reason), Instant::now()));
                continue;
            }
            () = tokio::time::sleep(timeout), if exited.is_some() => 0,
        };
        if read > 0 {
            unread
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(&buffer[..read]);
            continue;
        }
        // The terminal is closed, or the command has exited and no more output has arrived.
        let exit = match exited {
            Some((exit, _)) => exit,
            None => command
                .wait()
                .await
                .map_or(ExitReason::Code(1), |end| end.reason),
        };
        command.kill_and_wait().await;
        let _ = state.send(TerminalState::Exited(exit.code()));
        return;
    }
}

fn open_pty() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    // macOS has no flag for it. Programs are started by `confine`, which closes other descriptors.
    rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    tcsetwinsize(&master, TERMINAL_SIZE)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    let name = ptsname(&master, Vec::new())?;
    let open = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, open, rustix::fs::Mode::empty())?;
    Ok((master, terminal))
}
