//! Why a command was not started.

use std::io;

/// Why a command was not started. Nothing of it ran.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// There is no such program, or it cannot be executed.
    #[error("cannot run {program}: {error}")]
    Program {
        /// As it was named.
        program: String,
        /// Why.
        error: io::Error,
    },
    /// The folder it should start in cannot be entered.
    #[error("cannot start in {path}: {error}")]
    WorkingDirectory {
        /// The folder.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// The wall cannot be built here, so nothing ran.
    #[error("the command cannot be confined here: {why}")]
    NotEnforceable {
        /// What is missing.
        why: String,
    },
    /// Something in the workspace cannot be protected from being replaced.
    #[error("commands cannot run here: {path} is a symbolic link, which could be replaced")]
    Unprotectable {
        /// The link.
        path: std::path::PathBuf,
    },
    /// All files there are could be written, and nothing would be outside.
    #[error("the workspace is the whole file system: choose a folder in it")]
    Everything,
    /// Something in the command or the confinement makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The system refused something else.
    #[error("{doing}: {error}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// Why not.
        error: io::Error,
    },
}

impl ConfineError {
    /// The last error of the system, while doing something.
    pub(crate) fn last(doing: &'static str) -> Self {
        Self::System {
            doing,
            error: io::Error::last_os_error(),
        }
    }
}
