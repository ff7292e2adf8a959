//! What can go wrong between us and a server.

use std::time::Duration;

/// Why a server did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It is switched off.
    #[error("the MCP server `{0}` is disabled")]
    Disabled(String),
    /// Nobody configured it.
    #[error("there is no MCP server `{0}`")]
    Unknown(String),
    /// It cannot be used as it is configured.
    #[error("the MCP server `{server}` cannot be used: {why}")]
    Misconfigured {
        /// The server.
        server: String,
        /// Why, in one line.
        why: String,
    },
    /// It did not start.
    #[error("the MCP server `{server}` did not start: {why}")]
    NotStarted {
        /// The server.
        server: String,
        /// Why, in one line.
        why: String,
    },
    /// It failed lately and is left alone for a while.
    #[error("the MCP server `{server}` failed ({why}) and is tried again in {seconds} s")]
    Resting {
        /// The server.
        server: String,
        /// How it failed.
        why: String,
        /// When it is tried again.
        seconds: u64,
    },
    /// It went away while it was asked.
    #[error("the MCP server `{server}` ended while it was asked{}", words(.why))]
    Gone {
        /// The server.
        server: String,
        /// What it said last, where it said something.
        why: String,
    },
    /// It gave no sign of life in time.
    #[error("the MCP server `{server}` did not answer within {} s", .after.as_secs_f64())]
    Silent {
        /// The server.
        server: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// It answered with an error.
    #[error("{message}")]
    Refused {
        /// The server.
        server: String,
        /// Its words.
        message: String,
        /// The JSON-RPC code.
        code: i32,
    },
    /// It answered with something nobody can read.
    #[error("the MCP server `{server}` answered with something that is no answer: {why}")]
    Nonsense {
        /// The server.
        server: String,
        /// What is wrong with it.
        why: String,
    },
    /// It is one of us: scripts would run scripts.
    #[error("`{0}` is Selvedge itself: scripts that run scripts are not offered")]
    Ourselves(String),
}

impl ServerError {
    /// Whether the same may work later, with nothing done about it.
    pub fn is_retryable(&self) -> bool {
        use ServerError::{Gone, NotStarted, Resting, Silent};
        matches!(
            self,
            NotStarted { .. } | Resting { .. } | Gone { .. } | Silent { .. }
        )
    }

    /// Whether a call that met with it may have had its effect all the same.
    pub(crate) fn leaves_in_doubt(&self) -> bool {
        use ServerError::{Gone, Nonsense, Silent};
        matches!(self, Gone { .. } | Silent { .. } | Nonsense { .. })
    }
}

/// Why a server's form cannot be shown, or a value cannot be sent with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// The form is too large, or contains something that cannot be shown.
    #[error("{0}")]
    Unshowable(String),
    /// The value does not fit the field or the form.
    #[error("{0}")]
    Misfit(String),
}

impl FormError {
    pub(crate) fn unshowable(why: impl Into<String>) -> Self {
        Self::Unshowable(why.into())
    }

    pub(crate) fn misfit(why: impl Into<String>) -> Self {
        Self::Misfit(why.into())
    }
}

/// Why a server's question to a person or to the model was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The form cannot be shown.
    #[error(transparent)]
    Form(#[from] FormError),
    /// There is no person or model to ask.
    #[error("{0}")]
    Unavailable(String),
    /// The model did not answer.
    #[error("{0}")]
    Failed(String),
}

fn words(why: &str) -> String {
    match why {
        "" => String::new(),
        why => format!(": {why}"),
    }
}
