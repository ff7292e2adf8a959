//! The description of a child process to start.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::CommandLease;

/// A program with its arguments, working folder, environment and streams. The child inherits
/// nothing else.
#[derive(Debug)]
pub struct ChildCommand {
    /// The program and its arguments. A program without a slash is searched in the `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// The working folder.
    pub cwd: PathBuf,
    /// The complete environment.
    pub env: Vec<(OsString, OsString)>,
    /// The standard streams.
    pub stdio: ChildStdio,
    /// A descriptor that the init process keeps open until the command and everything it started
    /// have exited, even if this process exits before. A lock on the file tells other processes
    /// whether the command still runs.
    pub keep_open_fd: Option<OwnedFd>,
    /// The lease at whose end the command and everything it started are killed.
    pub lease: Option<&'static CommandLease>,
}

/// The standard streams of a command.
#[derive(Debug)]
pub enum ChildStdio {
    /// One descriptor for each stream.
    Streams {
        /// Becomes the standard input of the command.
        stdin: OwnedFd,
        /// Becomes the standard output of the command.
        stdout: OwnedFd,
        /// Becomes the standard error of the command.
        stderr: OwnedFd,
    },
    /// A terminal for all three streams, which becomes the controlling terminal.
    Terminal(OwnedFd),
}
