//! Turns the end of a script into the error that its author reads.

use selvedge_protocol::{
    ErrorCode, LimitKind, LimitSurface, Limits, Phase, ScriptError, TimeoutSource,
};
use selvedge_sandbox::{Fault, Position};
pub(crate) use selvedge_text::truncate_bytes;
use selvedge_tools::Registry;
use serde_json::{Map, Value};

use crate::compile::CompiledScript;
use crate::hints;

/// Maximum number of stack frames in an error.
const MAX_STACK_FRAMES: usize = 10;

/// Error codes with which a call, or serializing a value, can fail inside a script.
const CALL_ERROR_CODES: [ErrorCode; 13] = [
    ErrorCode::HarnessInternalError,
    ErrorCode::OutcomeUnknownError,
    ErrorCode::ApprovalDeniedError,
    ErrorCode::ApprovalTimeoutError,
    ErrorCode::ToolExecutionError,
    ErrorCode::ToolTimeoutError,
    ErrorCode::SandboxViolationError,
    ErrorCode::ToolNotFoundError,
    ErrorCode::ToolValidationError,
    ErrorCode::ToolBudgetExceededError,
    ErrorCode::ToolAbortedError,
    ErrorCode::SerializationError,
    ErrorCode::ScriptMemoryError,
];
/// Maximum size of an error's metadata as JSON, in bytes.
const MAX_METADATA_BYTES: usize = 8 << 10;

/// Creates the error of a script that threw, from the description of the thrown value in JSON.
/// `made` returns whether the script made the call with this id.
pub(crate) fn from_thrown(
    json: &str,
    compiled: &CompiledScript,
    registry: &Registry,
    (limits, surface): (&Limits, LimitSurface),
    made: impl Fn(&str) -> bool,
) -> ScriptError {
    let fields: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default();
    let (name, message, stack) = (text("name"), text("message"), text("stack"));

    let code = match (ErrorCode::parse(text("code")), name) {
        // Only codes that calls throw are accepted: a script can construct an error with any code.
        (Some(code), name)
            if name == code.as_str()
                && CALL_ERROR_CODES.contains(&code)
                && match fields.get("callId") {
                    Some(id) => id.as_str().is_some_and(&made),
                    None => code != ErrorCode::HarnessInternalError,
                } =>
        {
            code
        }
        (_, "InternalError" | "SyntaxError") if message.starts_with("out of memory") => {
            ErrorCode::ScriptMemoryError
        }
        // The engine throws this if there is no memory for an error object.
        _ if fields.contains_key("thrown") && message == "[uninitialized]" => {
            ErrorCode::ScriptMemoryError
        }
        (_, "RangeError") if message == "Maximum call stack size exceeded" => {
            ErrorCode::ScriptStackError
        }
        _ => ErrorCode::ScriptRuntimeError,
    };
    let message = match code {
        ErrorCode::ScriptMemoryError => memory_message(limits),
        ErrorCode::ScriptStackError => "the script recursed too deeply".to_owned(),
        ErrorCode::ScriptRuntimeError if fields.contains_key("thrown") => {
            format!("the script threw {message}")
        }
        ErrorCode::ScriptRuntimeError => format!("{name}: {message}"),
        _ => message.to_owned(),
    };
    let phase = if code == ErrorCode::SerializationError {
        Phase::Finalizing
    } else {
        Phase::Executing
    };
    let mut error = ScriptError::new(code, phase, truncate_bytes(&message, 2048));
    let lines = compiled.source.lines().count() as u32;
    if let Some(at) = first_position(stack).filter(|at| at.line <= lines) {
        error = error.at(at.line, at.column);
    }
    error.stack = script_stack(name, text("message"), stack);
    let brief = |key: &str| {
        fields
            .get(key)
            .and_then(Value::as_str)
            .map(|text| truncate_bytes(text, 200))
    };
    (error.tool_name, error.call_id) = (brief("toolName"), brief("callId"));
    error.suggestions = string_list(fields.get("suggestions"));
    if let Some(metadata @ Value::Object(fields)) = fields.get("metadata")
        && metadata.to_string().len() <= MAX_METADATA_BYTES
    {
        error.metadata.extend(fields.clone());
    }
    match code {
        ErrorCode::ScriptRuntimeError => {
            error = error.with("name", truncate_bytes(name, 200));
            if let Some(cause) = brief("cause") {
                error = error.with("cause", cause);
            }
            let at = error.line.zip(error.column);
            error.suggestions.extend(hints::for_engine_error(
                name,
                text("message"),
                at,
                compiled,
                registry,
            ));
        }
        ErrorCode::ScriptMemoryError => error = suggest_more_memory(error, limits, surface),
        ErrorCode::ScriptStackError => error = error.suggest("use a loop instead of recursion"),
        _ => {}
    }
    if let Some(path) = brief("path") {
        error = error.with("path", path);
    }
    error
}

/// Creates the error of a script that compiles, but that the engine cannot parse.
pub(crate) fn from_syntax(json: &str) -> ScriptError {
    let fields: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default();
    let error = ScriptError::new(
        ErrorCode::ScriptSyntaxError,
        Phase::Parsing,
        text("message"),
    );
    match first_position(text("stack")) {
        Some(at) => error.at(at.line, at.column),
        None => error,
    }
}

/// Creates the error of a script that was stopped.
pub(crate) fn from_fault(fault: &Fault, limits: &Limits, surface: LimitSurface) -> ScriptError {
    let new = |code, message: String| ScriptError::new(code, Phase::Executing, message);
    match fault {
        Fault::Deadline => timeout_error(
            LimitKind::Timeout,
            limits,
            surface,
            TimeoutSource::Configured,
        ),
        Fault::Cancelled => new(
            ErrorCode::ScriptCancelledError,
            "the script was cancelled".to_owned(),
        ),
        Fault::Memory => {
            let error = new(ErrorCode::ScriptMemoryError, memory_message(limits));
            suggest_more_memory(error, limits, surface)
        }
        Fault::Stack => new(
            ErrorCode::ScriptStackError,
            "the script recursed too deeply".to_owned(),
        )
        .suggest("use a loop instead of recursion"),
        other => new(ErrorCode::HarnessInternalError, other.to_string()),
    }
}

fn memory_message(limits: &Limits) -> String {
    format!(
        "the script exceeded its memory limit of {} MB",
        limits.memory_mb
    )
}

fn suggest_more_memory(error: ScriptError, limits: &Limits, surface: LimitSurface) -> ScriptError {
    error
        .suggest("work on less at a time, or keep only the fields you need")
        .suggest_if_some(surface.raise_hint(LimitKind::Memory, limits))
        .with(LimitKind::METADATA_KEY, LimitKind::Memory.key())
}

/// Creates the error of a script that reached one of its two time limits.
pub(crate) fn timeout_error(
    kind: LimitKind,
    limits: &Limits,
    surface: LimitSurface,
    source: TimeoutSource,
) -> ScriptError {
    let (message, instead) = match kind {
        LimitKind::RunTimeout => (
            format!(
                "the run took longer than its time limit of {} ms, calls included",
                limits.max_timeout_ms
            ),
            "run calls side by side with Promise.all, or do less in one script",
        ),
        _ => (
            format!(
                "the script ran past its time limit of {} ms{}",
                limits.timeout_ms,
                match source {
                    TimeoutSource::Configured => "",
                    TimeoutSource::Pragma => ", which its `// @exec:` line sets",
                    TimeoutSource::Argument => ", which `timeoutMs` of its call sets",
                }
            ),
            "do less in one script; time in calls does not count",
        ),
    };
    let raise = match kind {
        LimitKind::RunTimeout => surface.raise_hint(kind, limits),
        _ => surface.raise_timeout_hint(source, limits),
    };
    let error = ScriptError::new(ErrorCode::ScriptTimeoutError, Phase::Executing, message)
        .suggest(instead)
        .suggest_if_some(raise)
        .with(LimitKind::METADATA_KEY, kind.key());
    match (kind, source) {
        (LimitKind::RunTimeout, _) | (_, TimeoutSource::Configured) => error,
        _ => error.with(TimeoutSource::METADATA_KEY, true),
    }
}

/// Returns the first position `script.ts:12:3` in a stack.
pub(crate) fn first_position(stack: &str) -> Option<Position> {
    let rest = stack.split_once("script.ts:")?.1;
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != ':')
        .unwrap_or(rest.len());
    let (line, column) = rest[..end].split_once(':')?;
    let at = Position {
        line: line.parse().ok()?,
        column: column.parse().ok()?,
    };
    // A script can set the stack to any text: positions are counted from one.
    (at.line > 0 && at.column > 0).then_some(at)
}

fn script_stack(name: &str, message: &str, stack: &str) -> Option<String> {
    let script_frames = stack
        .lines()
        .filter(|line| line.contains("script.ts:"))
        .take(MAX_STACK_FRAMES);
    let frames: Vec<String> = script_frames
        .map(|line| truncate_bytes(line.trim(), 200))
        .collect();
    if frames.is_empty() {
        return None;
    }
    let head = truncate_bytes(message.lines().next().unwrap_or_default(), 200);
    let name = truncate_bytes(name, 200);
    Some(format!("{name}: {head}\n  {}", frames.join("\n  ")))
}

fn string_list(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items
        .filter_map(Value::as_str)
        .map(|text| truncate_bytes(text, 300))
        .take(10)
        .collect()
}
