//! Metrics of turns and model requests, emitted as `tracing` events with the target
//! `selvedge::metrics`. A subscriber aggregates them.
//!
//! Each event has the fields `metric` and `value`, and labels as further fields.

use std::time::Duration;

use selvedge_models::ModelError;
use selvedge_protocol::{TurnEnd, TurnError, Usage};
use tracing::{Level, event};

const METRICS_TARGET: &str = "selvedge::metrics";

pub(crate) fn record_turn(end: &Result<TurnEnd, TurnError>, duration: Duration, usage: &Usage) {
    let end = match end {
        Ok(end) => end.as_str(),
        Err(error) => error.kind.as_str(),
    };
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "turns", value = 1u64, end);
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "turn_ms", value = as_ms(duration), end);
    let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
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

fn as_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
