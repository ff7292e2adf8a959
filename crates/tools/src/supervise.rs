//! Runs one call of a tool: handles failure, panic and cancellation.

use std::panic::AssertUnwindSafe;

use futures_util::future::{Either, select};
use futures_util::{FutureExt, pin_mut};
use selvedge_protocol::ErrorCode;
use serde_json::Value;

use crate::failure::{CallFailure, aborted_failure};
use crate::registry::RegisteredTool;
use crate::{CallContext, Scope, ToolOutput};

/// Runs a call. After a cancellation the tool has the scope's `abort_grace` to stop. The flag is
/// true if it did not stop in time and its future was dropped.
pub(crate) async fn run_tool_call(
    scope: &Scope,
    tool: &RegisteredTool,
    args: Value,
    call: CallContext,
) -> (Result<ToolOutput, CallFailure>, bool) {
    let name = &tool.spec.name;
    let cancel = call.cancel.clone();
    let work = AssertUnwindSafe(async { tool.tool.call(args, call).await }).catch_unwind();
    let stop = cancel.cancelled();
    pin_mut!(work, stop);
    let ended = match select(work, stop).await {
        Either::Left((ended, _)) => ended,
        Either::Right(((), work)) => {
            return match tokio::time::timeout(scope.limits.abort_grace, work).await {
                // It completed despite the cancellation: its result counts.
                Ok(Ok(Ok(output))) => (Ok(output), false),
                Ok(_) => (Err(aborted_failure(name)), false),
                Err(_) => (Err(aborted_failure(name)), true),
            };
        }
    };
    let result = match ended {
        Ok(Ok(output)) => Ok(output),
        // It failed because it was cancelled.
        Ok(Err(_)) if cancel.is_cancelled() => Err(aborted_failure(name)),
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
    };
    (result, false)
}
