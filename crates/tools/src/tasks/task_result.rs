//! The result of a task: for the call that waits for it, and for the ledger.

use selvedge_protocol::{RunMetadata, RunStatus, ScriptError, ScriptToolCallOutput, new_id};
use serde_json::Value;

use crate::{CallFailure, CallOutcome, ToolError};

/// Result of a task.
#[derive(Debug, Clone)]
pub(super) struct TaskResult {
    pub(super) value: Result<Value, CallFailure>,
    /// Warnings of its call, with the name of the tool.
    pub(super) warnings: Vec<String>,
}

impl From<Result<Value, CallFailure>> for TaskResult {
    fn from(value: Result<Value, CallFailure>) -> Self {
        Self {
            value,
            warnings: Vec::new(),
        }
    }
}

/// Converts the failure of a task's call to an error of the call that waits for the task.
pub(super) fn task_error(failure: CallFailure) -> ToolError {
    let mut error = ToolError::new(failure.message);
    (error.retryable, error.suggestions, error.metadata) =
        (failure.retryable, failure.suggestions, failure.metadata);
    error
        .metadata
        .insert("code".to_owned(), Value::String(failure.code.to_string()));
    error
}

/// Returns the output of a task's run, as it is recorded.
pub(super) fn task_output(id: &str, outcome: &CallOutcome) -> ScriptToolCallOutput {
    let error = outcome.result.as_ref().err().map(|failure| {
        ScriptError::new(
            failure.code,
            selvedge_protocol::Phase::Executing,
            failure.message.clone(),
        )
    });
    let value = outcome
        .result
        .as_ref()
        .ok()
        .map(|output| output.value.to_string());
    ScriptToolCallOutput {
        id: id.to_owned(),
        call_id: new_id("call"),
        status: if error.is_some() {
            RunStatus::Error
        } else {
            RunStatus::Completed
        },
        output_json: value,
        error,
        summary: None,
        output: Vec::new(),
        calls: vec![outcome.record.clone()],
        logs: Vec::new(),
        warnings: outcome.named_warnings().collect(),
        metadata: RunMetadata {
            tool_calls_made: 1,
            duration_ms: outcome.record.duration_ms,
            ..RunMetadata::default()
        },
    }
}
