//! Failure of a call, for scripts and models.

use std::time::Duration;

use selvedge_protocol::{CallError, ErrorCode, LedgerError, LimitSurface, ToolSpec};
use serde_json::{Map, Value};

use crate::ToolError;

/// Why a call has no output.
#[derive(Debug, Clone)]
pub struct CallFailure {
    /// Code of the error.
    pub code: ErrorCode,
    /// One line that says what failed.
    pub message: String,
    /// Whether a retry can help.
    pub retryable: bool,
    /// Whether the call may have taken effect.
    pub outcome_unknown: bool,
    /// What the caller may have meant, or can do instead.
    pub suggestions: Vec<String>,
    /// Further data, which depends on the code and the tool.
    pub metadata: Map<String, Value>,
    /// What the call had written when it was cancelled, for people.
    pub partial_output: Option<String>,
}

impl CallFailure {
    /// Name of the entry of `metadata` that is true if the disk of the journal is full.
    pub const DISK_FULL_METADATA_KEY: &str = "diskFull";

    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            retryable: code.is_retryable(),
            outcome_unknown: false,
            suggestions: Vec::new(),
            metadata: Map::new(),
            partial_output: None,
        }
    }

    /// Creates the failure of a call of which the journal could not record a part. `message` says
    /// whether the tool ran.
    pub(crate) fn record_failed(message: &str, error: &LedgerError) -> Self {
        let message = format!("{message}: {error}");
        let mut failure = Self::new(ErrorCode::HarnessInternalError, message);
        if let LedgerError::DiskFull(_) = error {
            failure.retryable = false;
            failure.suggestions = vec!["free disk space, then run the script again".to_owned()];
            let disk_full = (Self::DISK_FULL_METADATA_KEY.to_owned(), true.into());
            failure.metadata.extend([disk_full]);
        }
        failure
    }

    /// Returns the error and its hints as text for a model.
    pub fn text_for_model(&self) -> String {
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
            code: error.code,
            message: error.message,
            retryable: error.retryable,
            outcome_unknown: error.outcome_unknown,
            suggestions: error.suggestions,
            metadata: error.metadata,
            partial_output: error.partial_output,
        }
    }
}

/// Returns the failure in the form of call records, with a truncated message.
pub(crate) fn call_error(failure: &CallFailure) -> CallError {
    CallError {
        code: failure.code,
        message: failure.message.chars().take(1000).collect(),
    }
}

/// The hint for a model whose call was not approved.
pub const DENIED_CALL_HINT: &str = "do it another way, or tell the user what needs approval";

/// Returns the failure of a call that was not approved.
pub(crate) fn denied_failure(message: String) -> CallFailure {
    let mut failure = CallFailure::new(ErrorCode::ApprovalDeniedError, message);
    failure.suggestions = vec![DENIED_CALL_HINT.to_owned()];
    failure
}

/// Returns the failure of a cancelled call.
pub(crate) fn aborted_failure(tool: &str) -> CallFailure {
    CallFailure::new(ErrorCode::ToolAbortedError, format!("{tool} was cancelled"))
}

/// Returns the failure of a call that reached its time limit.
pub(crate) fn timeout_failure(
    spec: &ToolSpec,
    limit: Duration,
    surface: LimitSurface,
) -> CallFailure {
    let limit_ms = limit.as_millis() as u64;
    let name = &spec.name;
    let shown = match limit_ms {
        0..1000 => format!("{limit_ms} ms"),
        _ => format!("{} s", limit.as_secs_f64()),
    };
    let message = format!("{name} did not end within its time limit of {shown}");
    let mut failure = CallFailure::new(ErrorCode::ToolTimeoutError, message);
    failure.outcome_unknown = true;
    let accepts_timeout = spec.timeout.max_requested.is_some();
    failure.suggestions = vec![surface.raise_call_timeout_hint(name, accepts_timeout, limit_ms)];
    let entry = ("timeoutMs".to_owned(), limit_ms.into());
    failure.metadata.extend([entry]);
    failure
}
