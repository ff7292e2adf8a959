//! Runs one call of a tool: handles failure, panic, cancellation and the time limit.

use std::panic::AssertUnwindSafe;

use futures_util::{FutureExt, pin_mut};
use selvedge_protocol::ErrorCode;
use serde_json::Value;

use crate::call_clock::CallClock;
use crate::failure::{CallFailure, aborted_failure, timeout_failure};
use crate::registry::RegisteredTool;
use crate::{CallContext, Scope, ToolError, ToolOutput};

/// Runs a call. After a cancellation, and when `clock` has expired, the tool has the scope's
/// `abort_grace` to stop; then its future is dropped. The flag is true if it ignored a
/// cancellation.
pub(crate) async fn run_tool_call(
    scope: &Scope,
    tool: &RegisteredTool,
    args: Value,
    mut call: CallContext,
    clock: &CallClock,
) -> (Result<ToolOutput, CallFailure>, bool) {
    let name = &tool.spec.name;
    let time_limit = call.time_limit;
    // The time limit cancels the tool and not the request: the request did not end the call.
    let cancel = call.cancel.child_token();
    call.cancel = cancel.clone();
    let work = AssertUnwindSafe(async { tool.tool.call(args, call).await }).catch_unwind();
    pin_mut!(work);
    let stopped = tokio::select! {
        biased;
        ended = &mut work => return (call_result(name, ended, cancel.is_cancelled()), false),
        () = cancel.cancelled() => aborted_failure(name),
        () = clock.expired() => timeout_failure(&tool.spec, time_limit, scope.limits.surface),
    };
    cancel.cancel();
    match tokio::time::timeout(scope.limits.abort_grace, work).await {
        // It completed despite the cancellation: its result counts.
        Ok(Ok(Ok(output))) => (Ok(output), false),
        Ok(Ok(Err(error))) => (Err(with_partial_output(stopped, error)), false),
        Ok(Err(_)) => (Err(stopped), false),
        Err(_) => {
            let ignored_cancel = stopped.code == ErrorCode::ToolAbortedError;
            (Err(stopped), ignored_cancel)
        }
    }
}

/// Returns the result of a call that ended by itself.
fn call_result(
    name: &str,
    ended: Result<Result<ToolOutput, ToolError>, Box<dyn std::any::Any + Send>>,
    cancelled: bool,
) -> Result<ToolOutput, CallFailure> {
    match ended {
        Ok(Ok(output)) => Ok(output),
        // It failed because it was cancelled.
        Ok(Err(error)) if cancelled => Err(with_partial_output(aborted_failure(name), error)),
        Ok(Err(error)) => Err(error.into()),
        Err(panic) => {
            let panic_message = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            let message = match panic_message {
                Some(panic_message) => format!("{name} panicked: {panic_message}"),
                None => format!("{name} panicked"),
            };
            Err(CallFailure {
                outcome_unknown: true,
                ..CallFailure::new(ErrorCode::ToolExecutionError, message)
            })
        }
    }
}

/// Returns the failure of a call that was stopped, with what the tool had written until then.
fn with_partial_output(stopped: CallFailure, error: ToolError) -> CallFailure {
    CallFailure {
        partial_output: error.partial_output,
        ..stopped
    }
}
