//! Why a call has no output, in words and facts for whoever asked.

use selvedge_protocol::{CallError, ErrorCode};
use serde_json::{Map, Value};

use crate::ToolError;

/// Why a call has no output.
#[derive(Debug, Clone)]
pub struct CallFailure {
    /// Which error.
    pub code: ErrorCode,
    /// One line.
    pub message: String,
    /// Whether trying again can help.
    pub retryable: bool,
    /// Whether it may have had its effect all the same.
    pub outcome_unknown: bool,
    /// What may have been meant, or to do instead.
    pub suggestions: Vec<String>,
    /// Facts.
    pub metadata: Map<String, Value>,
}

impl CallFailure {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retryable: code.is_retryable(),
            outcome_unknown: false,
            suggestions: Vec::new(),
            metadata: Map::new(),
        }
    }

    /// What a model reads of it.
    pub fn in_words(&self) -> String {
        let hints = self
            .suggestions
            .iter()
            .map(|suggestion| format!("\nhint: {suggestion}"));
        format!("error: {}{}", self.message, hints.collect::<String>())
    }
}

impl From<ToolError> for CallFailure {
    fn from(error: ToolError) -> Self {
        Self {
            code: ErrorCode::ToolExecutionError,
            message: error.message,
            retryable: error.retryable,
            outcome_unknown: error.outcome_unknown,
            suggestions: error.suggestions,
            metadata: error.metadata,
        }
    }
}

/// The line a ledger has for a failure.
pub(crate) fn call_error(failure: &CallFailure) -> CallError {
    CallError {
        code: failure.code,
        message: failure.message.chars().take(1000).collect(),
    }
}

pub(crate) fn aborted(tool: &str) -> CallFailure {
    CallFailure::new(ErrorCode::ToolAbortedError, format!("{tool} was stopped"))
}
