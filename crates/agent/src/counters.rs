//! Numbers about what happens, as events of `tracing` under the target `selvedge::metrics`: whoever listens counts.
//!
//! Each has a `metric` and a `value`, and what tells one from another as fields.

use std::time::Duration;

use selvedge_models::ModelError;
use selvedge_protocol::{CallRecord, Mode, ScriptToolCallOutput, TurnEnd, TurnError, Usage};
use tracing::{Level, event};

const TARGET: &str = "selvedge::metrics";

pub(crate) fn turn(end: &Result<TurnEnd, TurnError>, took: Duration, usage: &Usage) {
    let end = match end {
        Ok(end) => end.as_str(),
        Err(error) => error.kind.as_str(),
    };
    event!(target: TARGET, Level::DEBUG, metric = "turns", value = 1u64, end);
    event!(target: TARGET, Level::DEBUG, metric = "turn_ms", value = millis(took), end);
    event!(target: TARGET, Level::DEBUG, metric = "turn_tokens", value = usage.input_tokens + usage.output_tokens, end);
}

pub(crate) fn model_call(usage: &Usage, took: Duration) {
    event!(target: TARGET, Level::DEBUG, metric = "model_calls", value = 1u64);
    event!(target: TARGET, Level::DEBUG, metric = "model_call_ms", value = millis(took));
    for (kind, tokens) in [
        ("input", usage.input_tokens),
        ("cached_input", usage.cached_input_tokens),
        ("output", usage.output_tokens),
        ("reasoning", usage.reasoning_output_tokens),
    ] {
        event!(target: TARGET, Level::DEBUG, metric = "tokens", value = tokens, kind);
    }
}

pub(crate) fn model_error(error: &ModelError) {
    event!(target: TARGET, Level::DEBUG, metric = "model_errors", value = 1u64, kind = error.kind.as_str());
}

pub(crate) fn script(mode: Mode, output: &ScriptToolCallOutput) {
    let mode = mode.as_str();
    let outcome = tracing::field::debug(output.status);
    event!(target: TARGET, Level::DEBUG, metric = "runs", value = 1u64, mode, outcome);
    event!(target: TARGET, Level::DEBUG, metric = "run_ms", value = output.metadata.duration_ms, mode);
    let cache = if output.metadata.cache_hit {
        "hit"
    } else {
        "miss"
    };
    event!(target: TARGET, Level::DEBUG, metric = "compiles", value = 1u64, cache);
    if let Some(error) = &output.error {
        event!(target: TARGET, Level::DEBUG, metric = "script_errors", value = 1u64, code = error.code.as_str());
    }
    output.calls.iter().for_each(call);
}

pub(crate) fn call(call: &CallRecord) {
    let (tool, outcome) = (call.tool.as_str(), call.status.as_str());
    event!(target: TARGET, Level::DEBUG, metric = "calls", value = 1u64, tool, outcome);
    event!(target: TARGET, Level::DEBUG, metric = "call_ms", value = call.duration_ms, tool);
    if let Some(error) = &call.error {
        event!(target: TARGET, Level::DEBUG, metric = "call_errors", value = 1u64, code = error.code.as_str());
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
