//! The open terminals of a process. Their commands keep running between calls.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use selvedge_confine::{Exit, Stdio, watch as watch_fd};
use selvedge_tools::{Call, ToolError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::capture::Capture;
use crate::commands::{Commands, Wanted};
use crate::ending::Ending;

/// The most terminals that are open at the same time.
const MOST: usize = 16;
const SIZE: Winsize = Winsize {
    ws_row: 40,
    ws_col: 120,
    ws_xpixel: 0,
    ws_ypixel: 0,
};
/// How long to wait for further output after a command has exited.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The open terminals. Each is closed when the scope of the call that opened it ends. Clones share
/// them.
#[derive(Clone, Default)]
pub(crate) struct Terminals {
    open: Arc<Mutex<Open>>,
}

struct Open {
    /// The id of the newest terminal. The first id is random, so that an id from another process is
    /// not valid here by chance.
    last: u32,
    /// Terminals by id. `None` while a terminal is being opened.
    terminals: BTreeMap<u32, Option<Arc<Terminal>>>,
}

impl Default for Open {
    fn default() -> Self {
        Self {
            last: (RandomState::new().hash_one(()) % 1_000_000_000) as u32,
            terminals: BTreeMap::new(),
        }
    }
}

/// Closes a terminal when its scope ends.
struct CloseAtTheEnd(Terminals, u32);

impl Drop for CloseAtTheEnd {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

/// A command in a terminal. Dropping it kills the command.
pub(crate) struct Terminal {
    master: Arc<AsyncFd<OwnedFd>>,
    unread: Arc<Mutex<Capture>>,
    state: watch::Receiver<State>,
    ending: Arc<Ending>,
    reader: tokio::task::AbortHandle,
}

/// Whether the command runs or has exited with a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Ended(i32),
}

/// The new output and the state of a terminal.
pub(crate) struct Glance {
    /// Output since the last read.
    pub(crate) output: String,
    /// `None` while the command runs.
    pub(crate) exit_code: Option<i32>,
}

impl Terminals {
    /// Opens a terminal with a command in it.
    pub(crate) async fn open(
        &self,
        commands: &Commands,
        request: Wanted,
        call: &Call,
    ) -> Result<(u32, Arc<Terminal>), ToolError> {
        let id = self.reserve()?;
        // Frees the id if opening fails.
        let close_guard = CloseAtTheEnd(self.clone(), id);
        let terminal_error =
            |error: std::io::Error| ToolError::new(format!("cannot open a terminal: {error}"));
        let (master, terminal) = open_pair().map_err(terminal_error)?;
        let commands = commands.clone();
        let child = blocking(move || commands.start(&request, Stdio::Terminal(terminal))).await?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let master = Arc::new(watch_fd(master, interest).map_err(terminal_error)?);
        let unread = Arc::new(Mutex::new(Capture::default()));
        let (state_sender, state) = watch::channel(State::Running);
        let command = Arc::new(Ending::of(child)?);
        let reading = follow(
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
            ending: command,
            reader,
        });
        self.lock().terminals.insert(id, Some(terminal.clone()));
        call.belongings.keep(close_guard);
        Ok((id, terminal))
    }

    /// Reserves an id. If all terminals are in use, closes the oldest one whose command has exited.
    fn reserve(&self) -> Result<u32, ToolError> {
        let mut open = self.lock();
        if open.terminals.len() >= MOST {
            let has_exited = |terminal: &Option<Arc<Terminal>>| {
                terminal
                    .as_ref()
                    .is_some_and(|terminal| terminal.exit_code().is_some())
            };
            let oldest = open
                .terminals
                .iter()
                .find(|(_, terminal)| has_exited(terminal))
                .map(|(id, _)| *id);
            let Some(oldest) = oldest else {
                let message = format!("cannot open more than {MOST} terminals");
                return Err(ToolError::new(message).suggest(
                    "end one with Ctrl-C: tools.writeStdin({ sessionId, chars: \"\\u0003\" })",
                ));
            };
            open.terminals.remove(&oldest);
        }
        open.last += 1;
        let id = open.last;
        open.terminals.insert(id, None);
        Ok(id)
    }

    /// Returns the terminal with this id.
    pub(crate) fn get(&self, id: u32) -> Result<Arc<Terminal>, ToolError> {
        let open = self.lock();
        open.terminals.get(&id).cloned().flatten().ok_or_else(|| {
            let ids: Vec<String> = open.terminals.keys().map(u32::to_string).collect();
            let ids = if ids.is_empty() {
                "none".to_owned()
            } else {
                ids.join(", ")
            };
            ToolError::new(format!("terminal {id} is not open (open terminals: {ids})")).suggest(
                "open a new one with tools.execCommand; a terminal is closed when its script ends",
            )
        })
    }

    /// Removes a terminal and kills its command.
    pub(crate) fn close(&self, id: u32) {
        let closed = self.lock().terminals.remove(&id);
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
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
    pub(crate) async fn look(&self, timeout: Duration, call: &Call) -> Result<Glance, ToolError> {
        let mut state = self.state.clone();
        let exited = state.wait_for(|state| *state != State::Running);
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolError::new("the call was cancelled")),
            _ = tokio::time::timeout(timeout, exited) => {}
        }
        let exit_code = self.exit_code();
        Ok(Glance {
            output: self
                .unread
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
            exit_code,
        })
    }

    fn exit_code(&self) -> Option<i32> {
        match *self.state.borrow() {
            State::Running => None,
            State::Ended(code) => Some(code),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.ending.kill_now();
        self.reader.abort();
    }
}

/// Reads the output of the terminal until the command has exited, then sends its exit code to
/// `state`.
async fn follow(
    master: Arc<AsyncFd<OwnedFd>>,
    command: Arc<Ending>,
    unread: Arc<Mutex<Capture>>,
    state: watch::Sender<State>,
) {
    let mut buffer = [0; 8192];
    let mut exited: Option<(Exit, Instant)> = None;
    loop {
        let timeout = exited.map_or(Duration::MAX, |(_, at)| {
            LAST_WORDS.saturating_sub(at.elapsed())
        });
        let read_some = master.async_io(Interest::READABLE, |fd| {
            Ok(rustix::io::read(fd, &mut buffer)?)
        });
        let read = tokio::select! {
            biased;
            read = read_some => read.unwrap_or(0),
            end = command.wait(), if exited.is_none() => {
                exited = Some((end.map_or(Exit::Code(1), |end| end.exit), Instant::now()));
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
            None => command.wait().await.map_or(Exit::Code(1), |end| end.exit),
        };
        command.kill().await;
        let _ = state.send(State::Ended(exit.code()));
        return;
    }
}

fn open_pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    tcsetwinsize(&master, SIZE)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    let name = ptsname(&master, Vec::new())?;
    let open = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, open, rustix::fs::Mode::empty())?;
    Ok((master, terminal))
}
