//! What to start.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A program, its words, and where it runs. Nothing is inherited that is not named here.
#[derive(Debug)]
pub struct Command {
    /// The program and its arguments. A program without a slash is looked for in the `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// Where it starts.
    pub cwd: PathBuf,
    /// All of its environment.
    pub env: Vec<(OsString, OsString)>,
    /// What it reads and writes.
    pub stdio: Stdio,
    /// Kept open until the command and everything it started are gone, by them and not by us: a lock on such a file
    /// tells others whether they still are.
    pub hold: Option<OwnedFd>,
}

/// What a command reads and writes.
#[derive(Debug)]
pub enum Stdio {
    /// Three streams.
    Streams {
        /// What it reads.
        stdin: OwnedFd,
        /// Where it writes.
        stdout: OwnedFd,
        /// Where it complains.
        stderr: OwnedFd,
    },
    /// A terminal, which also controls it.
    Terminal(OwnedFd),
}
