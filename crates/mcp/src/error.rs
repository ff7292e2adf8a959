//! Errors of MCP servers, of their forms, and of their elicitation and sampling requests.

use std::time::Duration;

/// Failure of a request to an MCP server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration disables the server.
    #[error("the MCP server `{0}` is disabled")]
    Disabled(String),
    /// No server of this name is configured.
    #[error("there is no MCP server `{0}`")]
    Unknown(String),
    /// The server's configuration is invalid.
    #[error("the MCP server `{server}` cannot be used: {reason}")]
    Misconfigured {
        /// Name of the server in the configuration.
        server: String,
        /// Reason, in one line.
        reason: String,
        /// What the user can do about it.
        hint: Option<String>,
    },
    /// The server did not start, or did not complete the handshake.
    #[error("the MCP server `{server}` did not start: {reason}")]
    StartFailed {
        /// Name of the server in the configuration.
        server: String,
        /// Reason, in one line.
        reason: String,
        /// What the user can do about it.
        hint: Option<String>,
    },
    /// The program of the server does not exist.
    #[error("the MCP server `{server}` did not start: `{command}` was not found")]
    CommandNotFound {
        /// Name of the server in the configuration.
        server: String,
        /// Name or path of the program.
        command: String,
    },
    /// The server failed recently and is not started again before a delay has passed.
    #[error("the MCP server `{server}` failed ({reason}); next attempt in {retry_in_secs} s")]
    BackingOff {
        /// Name of the server in the configuration.
        server: String,
        /// Reason of the last failure, in one line.
        reason: String,
        /// Seconds until the next attempt.
        retry_in_secs: u64,
        /// What the user can do about it.
        hint: Option<String>,
    },
    /// The connection ended before the server responded.
    #[error("the MCP server `{server}` disconnected during the request{}", reason_suffix(.reason))]
    Disconnected {
        /// Name of the server in the configuration.
        server: String,
        /// Reason, in one line; empty if it is unknown.
        reason: String,
    },
    /// The server neither responded nor reported progress within the time limit.
    #[error("the MCP server `{server}` did not answer within {} s", .timeout.as_secs_f64())]
    TimedOut {
        /// Name of the server in the configuration.
        server: String,
        /// The time limit.
        timeout: Duration,
    },
    /// The server returned a JSON-RPC error.
    #[error("{message}")]
    ErrorResponse {
        /// Name of the server in the configuration.
        server: String,
        /// The error message of the server, at most 2048 characters.
        message: String,
        /// The JSON-RPC error code.
        code: i32,
    },
    /// The response of the server is not valid MCP.
    #[error("the MCP server `{server}` sent an invalid response: {reason}")]
    InvalidResponse {
        /// Name of the server in the configuration.
        server: String,
        /// What is invalid, in one line.
        reason: String,
    },
    /// The server is Selvedge. It is not used, because its scripts would run scripts.
    #[error("the MCP server `{0}` is Selvedge itself: scripts cannot run scripts through MCP")]
    IsSelvedge(String),
}

impl ServerError {
    /// Whether the same request may succeed later without any change by the user.
    pub fn is_retryable(&self) -> bool {
        use ServerError::{BackingOff, Disconnected, StartFailed, TimedOut};
        matches!(
            self,
            StartFailed { .. } | BackingOff { .. } | Disconnected { .. } | TimedOut { .. }
        )
    }

    /// Returns what the user can do about the error.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::StartFailed { hint, .. }
            | Self::BackingOff { hint, .. }
            | Self::Misconfigured { hint, .. } => hint.clone(),
            Self::CommandNotFound { server, .. } => Some(format!(
                "install it, or change `command` under [mcp_servers.{server}] in config.toml"
            )),
            Self::TimedOut { server, timeout } => {
                let doubled = timeout.as_secs_f64() * 2.0;
                Some(format!(
                    "set tool_timeout_sec = {doubled} under [mcp_servers.{server}] in config.toml"
                ))
            }
            _ => None,
        }
    }

    /// Whether a call that failed with this error may have had its effect.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        use ServerError::{Disconnected, InvalidResponse, TimedOut};
        matches!(
            self,
            Disconnected { .. } | TimedOut { .. } | InvalidResponse { .. }
        )
    }
}

/// A form of a server that cannot be shown, or a value that the form does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// The form is too large, or has a field of an unsupported type.
    #[error("{0}")]
    Unsupported(String),
    /// The value does not match the schema of the field or the form.
    #[error("{0}")]
    InvalidValue(String),
}

impl FormError {
    pub(crate) fn unsupported(reason: impl Into<String>) -> Self {
        Self::Unsupported(reason.into())
    }

    pub(crate) fn invalid_value(reason: impl Into<String>) -> Self {
        Self::InvalidValue(reason.into())
    }
}

/// Failure of an elicitation or sampling request of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerRequestError {
    /// The form cannot be shown, or its values are invalid.
    #[error(transparent)]
    Form(#[from] FormError),
    /// There is no person or model to ask.
    #[error("{0}")]
    Unavailable(String),
    /// The person or the model was asked, and no answer was obtained.
    #[error("{0}")]
    Failed(String),
}

fn reason_suffix(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}
