//! Commands in terminals, which go on between calls.

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

/// Terminals at once, in one session.
const MOST: usize = 16;
const SIZE: Winsize = Winsize {
    ws_row: 40,
    ws_col: 120,
    ws_xpixel: 0,
    ws_ypixel: 0,
};
/// How long the last words of a command that has ended are waited for.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The terminals there are. They belong to the scopes of the calls that opened them. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Terminals {
    open: Arc<Mutex<Open>>,
}

struct Open {
    /// Of the newest. Terminals of one process are none of another's: numbers begin anywhere.
    last: u32,
    /// `None` while it is being opened.
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

/// A command in a terminal. Dropping it ends the command.
pub(crate) struct Terminal {
    master: Arc<AsyncFd<OwnedFd>>,
    unread: Arc<Mutex<Capture>>,
    state: watch::Receiver<State>,
    ending: Arc<Ending>,
    reader: tokio::task::AbortHandle,
}

/// How far the command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Ended(i32),
}

/// What a terminal showed since it was last looked at.
pub(crate) struct Glance {
    pub(crate) output: String,
    /// `None` while it runs.
    pub(crate) exit_code: Option<i32>,
}

impl Terminals {
    /// Opens a terminal with a command in it.
    pub(crate) async fn open(
        &self,
        commands: &Commands,
        wanted: Wanted,
        call: &Call,
    ) -> Result<(u32, Arc<Terminal>), ToolError> {
        let id = self.reserve()?;
        // Whatever happens from here on, the place is given back.
        let closing = CloseAtTheEnd(self.clone(), id);
        let (master, terminal) =
            open_pair().map_err(|error| ToolError::new(format!("no terminal: {error}")))?;
        let commands = commands.clone();
        let child = blocking(move || commands.start(&wanted, Stdio::Terminal(terminal))).await?;
        let broken = |error: std::io::Error| ToolError::new(format!("the terminal broke: {error}"));
        let master = watch_fd(master, Interest::READABLE | Interest::WRITABLE).map_err(broken)?;
        let master = Arc::new(master);
        let unread = Arc::new(Mutex::new(Capture::default()));
        let (state, watching) = watch::channel(State::Running);
        let ending = Arc::new(Ending::of(child)?);
        let reading = follow(master.clone(), ending.clone(), unread.clone(), state);
        let reader = tokio::spawn(reading).abort_handle();
        let terminal = Arc::new(Terminal {
            master,
            unread,
            state: watching,
            ending,
            reader,
        });
        self.lock().terminals.insert(id, Some(terminal.clone()));
        call.belongings.keep(closing);
        Ok((id, terminal))
    }

    /// A place for one more. Those that have ended make room, the oldest first.
    fn reserve(&self) -> Result<u32, ToolError> {
        let mut open = self.lock();
        if open.terminals.len() >= MOST {
            let ended = |terminal: &Option<Arc<Terminal>>| {
                terminal.as_ref().is_some_and(|it| it.exit_code().is_some())
            };
            let oldest = open
                .terminals
                .iter()
                .find(|(_, terminal)| ended(terminal))
                .map(|(id, _)| *id);
            let Some(oldest) = oldest else {
                return Err(ToolError::new(format!(
                    "{MOST} terminals are open, and no more are allowed"
                ))
                .suggest("end one: writeStdin({sessionId, chars: \"\\u0003\"}) sends Ctrl-C"));
            };
            open.terminals.remove(&oldest);
        }
        open.last += 1;
        let id = open.last;
        open.terminals.insert(id, None);
        Ok(id)
    }

    /// The terminal of this id.
    pub(crate) fn get(&self, id: u32) -> Result<Arc<Terminal>, ToolError> {
        let open = self.lock();
        open.terminals.get(&id).cloned().flatten().ok_or_else(|| {
            let ids: Vec<String> = open.terminals.keys().map(u32::to_string).collect();
            let there = if ids.is_empty() {
                "none is open".to_owned()
            } else {
                format!("open: {}", ids.join(", "))
            };
            ToolError::new(format!("there is no terminal {id}: {there}"))
                .suggest("a terminal ends with its script: open it again with execCommand")
        })
    }

    /// Forgets a terminal, and ends what runs in it.
    pub(crate) fn close(&self, id: u32) {
        let closed = self.lock().terminals.remove(&id);
        drop(closed);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terminal {
    /// Types something.
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
                        "the terminal takes nothing: {error}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Waits until the command ends or the time is up, and says what was shown meanwhile.
    pub(crate) async fn look(&self, patience: Duration, call: &Call) -> Result<Glance, ToolError> {
        let mut state = self.state.clone();
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => return Err(ToolError::new("it was stopped")),
            _ = tokio::time::timeout(patience, state.wait_for(|state| *state != State::Running)) => {}
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

/// Reads what the terminal shows until the command has ended.
async fn follow(
    master: Arc<AsyncFd<OwnedFd>>,
    ending: Arc<Ending>,
    unread: Arc<Mutex<Capture>>,
    state: watch::Sender<State>,
) {
    let mut buffer = [0; 8192];
    let mut ended: Option<(Exit, Instant)> = None;
    loop {
        let patience = ended.map_or(Duration::MAX, |(_, at)| {
            LAST_WORDS.saturating_sub(at.elapsed())
        });
        let read = tokio::select! {
            biased;
            read = master.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut buffer)?)) => read.unwrap_or(0),
            end = ending.wait(), if ended.is_none() => {
                ended = Some((end.map_or(Exit::Code(1), |end| end.exit), Instant::now()));
                continue;
            }
            () = tokio::time::sleep(patience), if ended.is_some() => 0,
        };
        if read > 0 {
            unread
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(&buffer[..read]);
            continue;
        }
        // The terminal is closed, or silent after the end.
        let exit = match ended {
            Some((exit, _)) => exit,
            None => ending.wait().await.map_or(Exit::Code(1), |end| end.exit),
        };
        ending.kill().await;
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
