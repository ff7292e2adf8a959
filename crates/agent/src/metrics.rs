//! Metrics of turns, model requests, scripts and calls, emitted as `tracing` events with the target
//! `selvedge::metrics`. A subscriber aggregates them.
//!
//! Each event has the fields `metric` and `value`, and labels as further fields.

use std::time::Duration;

use selvedge_models::ModelError;
use selvedge_protocol::{CallRecord, ScriptMode, ScriptToolCallOutput, TurnEnd, TurnError, Usage};
use tracing::{Level, event};

const METRICS_TARGET: &str = "selvedge::metrics";

pub(crate) fn record_turn(end: &Result<TurnEnd, TurnError>, duration: Duration, usage: &Usage) {
    let end = match end {
        Ok(end) => end.as_str(),
        Err(error) => error.kind.as_str(),
    };
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "turns", value = 1u64, end);
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "turn_ms", value = as_ms(duration), end);
    let tokens = usage.input_tokens + usage.output_tokens;
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "turn_tokens", value = tokens, end);
}

pub(crate) fn record_model_request(usage: &Usage, duration: Duration) {
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "model_requests", value = 1u64);
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "model_request_ms", value = as_ms(duration));
    for (kind, tokens) in [
        ("input", usage.input_tokens),
        ("cached_input", usage.cached_input_tokens),
        ("output", usage.output_tokens),
        ("reasoning", usage.reasoning_output_tokens),
    ] {
        event!(target: METRICS_TARGET, Level::DEBUG, metric = "tokens", value = tokens, kind);
    }
}

pub(crate) fn record_model_error(error: &ModelError) {
    let kind = error.kind.as_str();
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "model_errors", value = 1u64, kind);
}

pub(crate) fn record_script(mode: ScriptMode, output: &ScriptToolCallOutput) {
    let mode = mode.as_str();
    let outcome = tracing::field::debug(output.status);
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "runs", value = 1u64, mode, outcome);
    let duration_ms = output.metadata.duration_ms;
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "run_ms", value = duration_ms, mode);
    let cache = if output.metadata.cache_hit {
        "hit"
    } else {
        "miss"
    };
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "compiles", value = 1u64, cache);
    if let Some(error) = &output.error {
        let code = error.code.as_str();
        event!(target: METRICS_TARGET, Level::DEBUG, metric = "script_errors", value = 1u64, code);
    }
    output.calls.iter().for_each(record_call);
}

pub(crate) fn record_call(call: &CallRecord) {
    let (tool, outcome) = (call.tool.as_str(), call.status.as_str());
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "calls", value = 1u64, tool, outcome);
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "call_ms", value = call.duration_ms, tool);
    if let Some(error) = &call.error {
        let code = error.code.as_str();
        event!(target: METRICS_TARGET, Level::DEBUG, metric = "call_errors", value = 1u64, code);
    }
}

fn as_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
