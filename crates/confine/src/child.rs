//! A command that runs.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// How it ended.
    pub exit: Exit,
    /// Whether processes it started are still there.
    pub left_behind: bool,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With a status.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl Exit {
    /// As shells tell it: the status, or 128 and the signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// From a status as `wait` gives it.
    pub(crate) fn from_raw(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }
}

/// A command that runs, with everything it started. Dropping it ends them all.
#[derive(Debug)]
pub struct Child {
    pub(crate) ended: io::PipeReader,
    pub(crate) gone: OwnedFd,
    /// Closed when the parent is gone, by whatever end; then the init ends everything.
    pub(crate) leash: Option<io::PipeWriter>,
    /// Whose exit status is ours to take; `None` where somebody else waits for it.
    pub(crate) init: Option<libc::pid_t>,
    /// Whether the init is the first process of a namespace, which takes all others with it.
    #[cfg(target_os = "linux")]
    pub(crate) own_pids: bool,
    /// Where the init stands.
    #[cfg(target_os = "linux")]
    pub(crate) stack: Option<crate::stack::Stack>,
    /// Folders that exist only while this runs.
    #[cfg(target_os = "linux")]
    pub(crate) placeholders: Vec<crate::placeholder::Placeholder>,
}

impl Child {
    /// Readable when the command has ended; what it started may go on.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// How the command ended. Blocks until it has.
    pub fn end(&mut self) -> io::Result<End> {
        let (mut status, mut left_behind) = ([0; 4], [0; 4]);
        let mut read = |bytes: &mut [u8]| self.ended.read_exact(bytes);
        read(&mut status)
            .and_then(|()| read(&mut left_behind))
            .map_err(|_| io::Error::other("it was killed"))?;
        let exit = Exit::from_raw(i32::from_ne_bytes(status));
        Ok(End {
            exit,
            left_behind: i32::from_ne_bytes(left_behind) != 0,
        })
    }

    /// Readable when the command and everything it started are gone.
    pub fn gone(&self) -> BorrowedFd<'_> {
        self.gone.as_fd()
    }

    /// Whether the command and everything it started are gone.
    pub fn is_gone(&self) -> bool {
        self.wait_until_gone(0)
    }

    fn wait_until_gone(&self, milliseconds: libc::c_int) -> bool {
        let mut gone = libc::pollfd {
            fd: self.gone.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid entry is handed over.
        unsafe { libc::poll(&mut gone, 1, milliseconds) > 0 }
    }

    /// Ends the command and everything it started. [`Child::gone`] tells when that has happened.
    pub fn kill(&mut self) {
        self.leash = None;
        // It need not notice.
        #[cfg(target_os = "linux")]
        if self.own_pids {
            let nothing = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: the descriptor is the init's, and no memory is handed over.
            unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    self.gone.as_raw_fd(),
                    libc::SIGKILL,
                    nothing,
                    0,
                );
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        self.wait_until_gone(PATIENCE_MS);
        let Some(init) = self.init else { return };
        let remains = Remains {
            init,
            #[cfg(target_os = "linux")]
            _stack: self.stack.take(),
            #[cfg(target_os = "linux")]
            _placeholders: std::mem::take(&mut self.placeholders),
        };
        REMAINS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(remains);
        bury();
    }
}

/// How long an end is waited for. It takes a millisecond or two.
const PATIENCE_MS: libc::c_int = 500;

/// A process that was let go, with what has to stay until it has ended.
struct Remains {
    init: libc::pid_t,
    #[cfg(target_os = "linux")]
    _stack: Option<crate::stack::Stack>,
    #[cfg(target_os = "linux")]
    _placeholders: Vec<crate::placeholder::Placeholder>,
}

static REMAINS: Mutex<Vec<Remains>> = Mutex::new(Vec::new());

/// Takes the exit status of those that have ended, so that the system can forget them.
pub(crate) fn bury() {
    REMAINS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|remains| {
            // SAFETY: no memory is handed over; the pid is a child of ours that nobody else waits for.
            unsafe { libc::waitpid(remains.init, std::ptr::null_mut(), libc::WNOHANG) == 0 }
        });
}
