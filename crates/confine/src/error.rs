//! The error type of this crate.

use std::io;

/// Why a command was not started. If `spawn` returns this, no part of the command ran.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// The program does not exist or cannot be executed.
    #[error("cannot run {program}: {error}")]
    Program {
        /// The program as the command named it.
        program: String,
        /// The error of `execve`.
        error: io::Error,
    },
    /// The working folder cannot be entered.
    #[error("cannot start in {path}: {error}")]
    WorkingDirectory {
        /// The working folder.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
    /// This machine cannot enforce the requested confinement.
    #[error("cannot confine the command on this machine: {reason}")]
    Unsupported {
        /// The missing feature or the step that failed.
        reason: String,
    },
    /// A protected path is a symbolic link, which a command could replace.
    #[error("cannot protect {path}: it is a symbolic link, which a command could replace")]
    ProtectedSymlink {
        /// The path of the link.
        path: std::path::PathBuf,
    },
    /// A writable folder is the root of the file system, so that nothing would be protected.
    #[error("the workspace cannot be the root of the file system")]
    WorkspaceIsRoot,
    /// The command or the confinement is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The lease of the command has ended.
    #[error("this process has no lease: it cannot reach its database")]
    LeaseEnded,
    /// Another operation of the system failed.
    #[error("cannot {operation}: {error}")]
    System {
        /// The operation, as a verb phrase that follows "cannot".
        operation: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

impl ConfineError {
    /// Returns the last error of the system for this operation.
    pub(crate) fn last_os_error(doing: &'static str) -> Self {
        Self::System {
            operation: doing,
            error: io::Error::last_os_error(),
        }
    }
}
