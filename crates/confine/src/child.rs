//! A running command: its exit status, killing it, and reaping its init process.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// How a command ended, and whether it left processes behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The exit status or signal of the command itself.
    pub exit: Exit,
    /// Whether processes that the command started still run. Always true where this is not known.
    pub left_behind: bool,
}

/// The exit status or signal of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this status.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
}

impl Exit {
    /// Returns the exit code as shells report it: the status, or 128 plus the signal number.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// Decodes a status as `wait` returns it.
    pub(crate) fn from_raw(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }
}

/// A running command with every process it started. Dropping it kills them all.
#[derive(Debug)]
pub struct Child {
    /// Receives the exit status of the command.
    pub(crate) ended: io::PipeReader,
    /// Readable when every process of the command has exited. A pidfd of the init process on Linux.
    pub(crate) gone: OwnedFd,
    /// Closed when this value is dropped or this process exits. The init process then kills the
    /// command.
    pub(crate) leash: Option<io::PipeWriter>,
    /// The init process, if it has to be reaped here. `None` if a thread already waits for the
    /// command.
    pub(crate) init: Option<libc::pid_t>,
    /// Whether the init process is PID 1 of a namespace. The kernel then kills all other processes
    /// of the namespace when it exits.
    #[cfg(target_os = "linux")]
    pub(crate) own_pids: bool,
    /// The stack of the init process, which shares this process's memory.
    #[cfg(target_os = "linux")]
    pub(crate) stack: Option<crate::stack::Stack>,
    /// Folders that exist only while the command runs.
    #[cfg(target_os = "linux")]
    pub(crate) placeholders: Vec<crate::placeholder::Placeholder>,
}

impl Child {
    /// Returns a descriptor that becomes readable when the command has exited. Processes that it
    /// started may still run.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits for the command and returns how it ended. Blocks. Fails if the command was killed
    /// through this value before it exited.
    pub fn end(&mut self) -> io::Result<End> {
        let (mut status, mut left_behind) = ([0; 4], [0; 4]);
        let mut read = |bytes: &mut [u8]| self.ended.read_exact(bytes);
        read(&mut status)
            .and_then(|()| read(&mut left_behind))
            .map_err(|_| io::Error::other("the process was killed"))?;
        let exit = Exit::from_raw(i32::from_ne_bytes(status));
        Ok(End {
            exit,
            left_behind: i32::from_ne_bytes(left_behind) != 0,
        })
    }

    /// Returns a descriptor that becomes readable when the command and everything it started have
    /// exited.
    pub fn gone(&self) -> BorrowedFd<'_> {
        self.gone.as_fd()
    }

    /// Returns whether the command and everything it started have exited.
    pub fn is_gone(&self) -> bool {
        self.wait_until_gone(0)
    }

    fn wait_until_gone(&self, timeout_ms: libc::c_int) -> bool {
        let mut poll_fd = libc::pollfd {
            fd: self.gone.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the pointer refers to one valid entry.
        unsafe { libc::poll(&mut poll_fd, 1, timeout_ms) > 0 }
    }

    /// Starts killing the command and everything it started. Wait on [`Child::gone`] for the end.
    pub fn kill(&mut self) {
        self.leash = None;
        // SIGKILL also works when the init process is stopped or too busy to notice the closed
        // pipe.
        #[cfg(target_os = "linux")]
        if self.own_pids {
            let no_info = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: the descriptor is a pidfd of the init process, and the null pointer is
            // allowed.
            unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    self.gone.as_raw_fd(),
                    libc::SIGKILL,
                    no_info,
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

/// How long `drop` waits for the processes to exit. Usually they exit in one or two milliseconds.
const PATIENCE_MS: libc::c_int = 500;

/// An init process that is not reaped yet, with the resources that must outlive it.
struct Remains {
    init: libc::pid_t,
    #[cfg(target_os = "linux")]
    _stack: Option<crate::stack::Stack>,
    #[cfg(target_os = "linux")]
    _placeholders: Vec<crate::placeholder::Placeholder>,
}

static REMAINS: Mutex<Vec<Remains>> = Mutex::new(Vec::new());

/// Reaps the init processes of dropped children that have exited, and frees their resources.
pub(crate) fn bury() {
    REMAINS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|remains| {
            // SAFETY: the null pointer is allowed; no other code waits for this child process.
            unsafe { libc::waitpid(remains.init, std::ptr::null_mut(), libc::WNOHANG) == 0 }
        });
}
