//! Spans and metrics of script runs, whichever program starts them. Metrics are `tracing` events
//! with the target `selvedge::metrics`; each has the fields `metric` and `value`, and labels as
//! further fields. A subscriber aggregates them.

use selvedge_protocol::{CallRecord, ScriptMode, ScriptToolCallOutput, new_id};
use tracing::field::{Empty, debug};
use tracing::{Instrument, Level, Span, event, info_span};

use crate::options::RestoreInput;
use crate::suspension::RestoreError;
use crate::{Harness, RunOptions};

const METRICS_TARGET: &str = "selvedge::metrics";

impl Harness {
    /// Runs a script with these options.
    pub async fn run_with(&self, source: &[u8], mut options: RunOptions) -> ScriptToolCallOutput {
        let id = options.id.get_or_insert_with(|| new_id("scr"));
        let mode = options.mode.unwrap_or(self.mode);
        let span = script_span(id, mode);
        let run = self.run_unobserved(source, options);
        let output = run.instrument(span.clone()).await;
        record_script(&span, mode, &output);
        output
    }

    /// Restores a suspended run, which another process may have suspended, and runs it to its end.
    /// The caller must have claimed the run in the journal. [`RunOptions::resume`] is for runs that
    /// have ended.
    pub async fn restore_suspended(
        &self,
        source: &str,
        suspended: &RestoreInput,
        options: RunOptions,
    ) -> Result<ScriptToolCallOutput, RestoreError> {
        let mode = options.mode.unwrap_or(self.mode);
        let span = script_span(options.id.as_deref().unwrap_or_default(), mode);
        let run = self.restore_unobserved(source, suspended, options);
        let output = run.instrument(span.clone()).await?;
        record_script(&span, mode, &output);
        Ok(output)
    }
}

fn script_span(run: &str, mode: ScriptMode) -> Span {
    info_span!(
        "script",
        run,
        mode = mode.as_str(),
        status = Empty,
        calls = Empty
    )
}

fn record_script(span: &Span, mode: ScriptMode, output: &ScriptToolCallOutput) {
    span.record("status", debug(output.status));
    span.record("calls", output.metadata.tool_calls_made);
    let (mode, outcome) = (mode.as_str(), debug(output.status));
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
    output.calls.iter().for_each(record_call_metrics);
}

/// Emits the metrics of a call.
pub fn record_call_metrics(call: &CallRecord) {
    let (tool, outcome) = (call.tool.as_str(), call.status.as_str());
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "calls", value = 1u64, tool, outcome);
    event!(target: METRICS_TARGET, Level::DEBUG, metric = "call_ms", value = call.duration_ms, tool);
    if let Some(error) = &call.error {
        let code = error.code.as_str();
        event!(target: METRICS_TARGET, Level::DEBUG, metric = "call_errors", value = 1u64, code);
    }
}
