//! A running command: its exit status, killing it, and reaping its init process.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// How a command ended, and whether it left processes behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandExit {
    /// The exit status or signal of the command itself.
    pub reason: ExitReason,
    /// Whether processes that the command started still run. `true` if the system cannot tell.
    pub has_background_processes: bool,
    /// Whether the confinement kept the command from reaching another host. `None` if the system
    /// cannot tell.
    pub network_denied: Option<bool>,
}

/// The exit status or signal of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    /// The process exited with this status.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
}

impl ExitReason {
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
    pub(crate) exit_pipe: io::PipeReader,
    /// Readable when every process of the command has exited. A pidfd of the init process on Linux.
    pub(crate) tree_exit_fd: OwnedFd,
    /// Closed when this value is dropped or this process exits. The init process then kills the
    /// command.
    pub(crate) liveness_pipe: Option<io::PipeWriter>,
    /// The init process, if it has to be reaped here. `None` if a thread already waits for the
    /// command.
    pub(crate) init_pid: Option<libc::pid_t>,
    /// Whether the init process is PID 1 of a namespace. The kernel then kills all other processes
    /// of the namespace when it exits.
    #[cfg(target_os = "linux")]
    pub(crate) has_pid_namespace: bool,
    /// The stack of the init process, which shares this process's memory.
    #[cfg(target_os = "linux")]
    pub(crate) stack: Option<crate::stack::CloneStack>,
    /// Folders that exist only while the command runs.
    #[cfg(target_os = "linux")]
    pub(crate) placeholders: crate::placeholder::Placeholders,
}

impl Child {
    /// Returns a descriptor that becomes readable when the command has exited. Processes that it
    /// started may still run.
    pub fn exit_fd(&self) -> BorrowedFd<'_> {
        self.exit_pipe.as_fd()
    }

    /// Waits for the command and returns how it ended. Blocks. Fails if the command was killed
    /// through this value or at the end of its lease before it exited.
    pub fn wait_exit(&mut self) -> io::Result<CommandExit> {
        let mut number = || {
            let mut bytes = [0; 4];
            let read = self.exit_pipe.read_exact(&mut bytes);
            read.map(|()| i32::from_ne_bytes(bytes))
        };
        let killed = |_| io::Error::other("the process was killed");
        let status = number().map_err(killed)?;
        let left_behind = number().map_err(killed)?;
        #[cfg(target_os = "linux")]
        if status == crate::init_process::LEASE_ENDED {
            return Err(io::Error::other(
                "the command was killed because this process could not reach its database",
            ));
        }
        // Only an init process in a network namespace of its own reports these.
        let (no_route, no_port) = (number().unwrap_or(-1), number().unwrap_or(-1));
        Ok(CommandExit {
            reason: ExitReason::from_raw(status),
            has_background_processes: left_behind != 0,
            network_denied: (no_route >= 0)
                .then(|| no_route > 0 || (no_port > 0 && has_local_name_server())),
        })
    }

    /// Returns a descriptor that becomes readable when the command and everything it started have
    /// exited.
    pub fn tree_exit_fd(&self) -> BorrowedFd<'_> {
        self.tree_exit_fd.as_fd()
    }

    /// Returns whether the command and everything it started have exited.
    pub fn has_tree_exited(&self) -> bool {
        self.poll_tree_exit(0)
    }

    fn poll_tree_exit(&self, timeout_ms: libc::c_int) -> bool {
        let mut poll_fd = libc::pollfd {
            fd: self.tree_exit_fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the pointer refers to one valid entry.
        unsafe { libc::poll(&mut poll_fd, 1, timeout_ms) > 0 }
    }

    /// Starts killing the command and everything it started. [`Child::tree_exit_fd`] becomes
    /// readable when all of them have exited.
    pub fn kill(&mut self) {
        self.liveness_pipe = None;
        // SIGKILL also works when the init process is stopped or too busy to notice the closed
        // pipe.
        #[cfg(target_os = "linux")]
        if self.has_pid_namespace {
            let no_info = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: the descriptor is a pidfd of the init process, and the null pointer is
            // allowed.
            unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    self.tree_exit_fd.as_raw_fd(),
                    libc::SIGKILL,
                    no_info,
                    0,
                );
            }
        }
    }
}

/// Whether names are resolved by a server at a loopback address, which a command in a network
/// namespace of its own cannot reach.
fn has_local_name_server() -> bool {
    let settings = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    settings.lines().any(|line| {
        let address = line.strip_prefix("nameserver").map(str::trim);
        address.is_some_and(|address| address.starts_with("127.") || address == "::1")
    })
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        self.poll_tree_exit(TEARDOWN_TIMEOUT_MS);
        let Some(init) = self.init_pid else { return };
        let unreaped = UnreapedChild {
            init,
            #[cfg(target_os = "linux")]
            _stack: self.stack.take(),
            #[cfg(target_os = "linux")]
            _placeholders: std::mem::take(&mut self.placeholders),
        };
        UNREAPED_CHILDREN
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(unreaped);
        reap_exited();
    }
}

/// How long `drop` waits for the processes to exit. Usually they exit in one or two milliseconds.
const TEARDOWN_TIMEOUT_MS: libc::c_int = 500;

/// An init process that is not reaped yet, with the resources that must outlive it.
struct UnreapedChild {
    init: libc::pid_t,
    #[cfg(target_os = "linux")]
    _stack: Option<crate::stack::CloneStack>,
    #[cfg(target_os = "linux")]
    _placeholders: crate::placeholder::Placeholders,
}

static UNREAPED_CHILDREN: Mutex<Vec<UnreapedChild>> = Mutex::new(Vec::new());

/// Reaps the init processes of dropped children that have exited, and frees their resources.
pub(crate) fn reap_exited() {
    UNREAPED_CHILDREN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|unreaped| {
            // SAFETY: the null pointer is allowed; no other code waits for this child process.
            unsafe { libc::waitpid(unreaped.init, std::ptr::null_mut(), libc::WNOHANG) == 0 }
        });
}
