//! Scripts as a model writes them: the arguments of the tool `script`, and the errors of blocks
//! that do not run.

use std::time::Duration;

use selvedge_protocol::{ErrorCode, FunctionCall, FunctionCallKind, Phase, ScriptError};
use serde_json::Value;

/// The arguments of a call of the tool `script`.
pub(crate) struct ScriptCallArgs {
    pub(crate) code: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) resume: Option<String>,
}

/// Returns the arguments of a call of `script`, or `None` if they cannot be parsed.
pub(crate) fn parse_script_call(call: &FunctionCall) -> Option<ScriptCallArgs> {
    if call.kind == FunctionCallKind::Freeform {
        return Some(ScriptCallArgs {
            code: call.arguments.clone(),
            timeout: None,
            resume: None,
        });
    }
    let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
    let code = arguments["code"].as_str()?.to_owned();
    let either = |camel: &str, snake: &str| arguments.get(camel).or(arguments.get(snake)).cloned();
    let timeout = either("timeoutMs", "timeout_ms")
        .and_then(|ms| ms.as_u64())
        .map(Duration::from_millis);
    let resume = arguments["resume"].as_str().map(str::to_owned);
    Some(ScriptCallArgs {
        code,
        timeout,
        resume,
    })
}

/// Returns the error of a block that is a copy of a text that the model was given.
pub(crate) fn copied_block_error() -> ScriptError {
    let message = "the block is a copy of text that you were given, so it does not run";
    ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, message)
        .suggest("to run it, pass the code to the tool `script` or write it differently")
}

/// Returns the error of a malformed script block.
pub(crate) fn malformed_block_error(problem: String) -> ScriptError {
    ScriptError::new(ErrorCode::ScriptRejectedError, Phase::Parsing, problem)
}
