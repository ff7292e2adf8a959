//! Writes the end of a run into its output.

use std::time::Instant;

use selvedge_protocol::{
    CallError, CallStatus, ErrorCode, LimitKind, LimitSurface, Limits, Phase, RunStatus,
    ScriptError, ScriptToolCallOutput,
};
use serde_json::{Value, json};

use crate::call_log::PartialResult;
use crate::preflight::Preflight;
use crate::state::RunExit;
use crate::teardown::EndedRun;
use crate::truncate_json::{fair_share, truncate_json};
use crate::unicode::replace_lone_surrogates;

/// Maximum number of further mistakes in the suggestions of an error.
const MAX_FURTHER_MISTAKES: usize = 5;

/// Warning of a run that another process has claimed, to continue or to cancel it.
pub(crate) const CLAIMED_BY_OTHER_WARNING: &str =
    "another process has claimed the run, to continue or to cancel it";

/// Writes the value or the error into the output. A value of more than `max_return_bytes` is an
/// error.
pub(crate) fn fill_result(
    output: &mut ScriptToolCallOutput,
    limits: &Limits,
    surface: LimitSurface,
    ended: EndedRun,
) {
    let max = limits.max_return_bytes;
    output.calls = ended.calls;
    let error = match ended.exit {
        RunExit::Suspended => {
            output.status = RunStatus::Suspended;
            return;
        }
        RunExit::ClaimedByOther => {
            output.status = RunStatus::Suspended;
            output.warnings.push(CLAIMED_BY_OTHER_WARNING.to_owned());
            return;
        }
        // `RecordedRun::replay` fills in the recorded output.
        RunExit::RecordingEnded => return,
        RunExit::Returned(value) => {
            let value = value.map(|json| replace_lone_surrogates(&json).into_owned());
            let parsed: Option<Value> = value
                .as_deref()
                .and_then(|json| serde_json::from_str(json).ok());
            output.summary = parsed
                .as_ref()
                .and_then(|value| value.get("message")?.as_str().map(str::to_owned));
            let bytes = value.as_ref().map_or(0, String::len);
            if bytes <= max {
                output.status = RunStatus::Completed;
                output.output_json = value;
                return;
            }
            output.output_json = parsed.map(|value| truncate_json(&value, max));
            too_large_error(bytes, limits, surface)
        }
        RunExit::Failed(error) => {
            let (done, others): (Vec<_>, Vec<_>) = output
                .calls
                .iter()
                .partition(|call| call.status == CallStatus::Done);
            let stopped = |error: &CallError| error.code == ErrorCode::ToolAbortedError;
            let pending = others
                .iter()
                .filter(|call| call.error.as_ref().is_none_or(stopped));
            let (done, pending) = (done.len(), pending.count());
            output.output_json = Some(partial_results(&ended.results, max));
            error
                .with("completedTools", done)
                .with("pendingTools", pending)
        }
    };
    // A script that the engine cannot parse never ran.
    output.status = match error.phase {
        Phase::Parsing | Phase::Preflight => RunStatus::Rejected,
        _ => RunStatus::Error,
    };
    output.error = Some(error);
}

/// Completes the output of a script that did not run.
pub(crate) fn rejected_output(
    mut output: ScriptToolCallOutput,
    error: ScriptError,
    started: Instant,
) -> ScriptToolCallOutput {
    output.error = Some(error);
    set_duration(&mut output, started);
    output
}

/// Completes the output of a script that was only checked.
pub(crate) fn dry_run_output(
    mut output: ScriptToolCallOutput,
    report: Preflight,
    started: Instant,
) -> ScriptToolCallOutput {
    output.status = RunStatus::DryRun;
    output.output_json = serde_json::to_string(&report).ok();
    output.error = report.errors.into_iter().next();
    output
        .warnings
        .push("dry run: the script was checked, nothing ran".to_owned());
    set_duration(&mut output, started);
    output
}

/// Returns the first error of a check, with the others in its metadata, and further mistakes of
/// types in its suggestions.
pub(crate) fn preflight_error(report: Preflight) -> Option<ScriptError> {
    let others: Vec<Value> = report
        .errors
        .iter()
        .skip(1)
        .map(|error| {
            json!({
                "code": error.code,
                "message": error.message,
                "line": error.line,
                "column": error.column,
                "suggestions": error.suggestions,
            })
        })
        .collect();
    // Some surfaces show suggestions, but no metadata.
    let mistakes = report.errors.iter().skip(1);
    let mistakes = mistakes.filter(|error| error.code == ErrorCode::ScriptTypeError);
    let further: Vec<String> = mistakes
        .take(MAX_FURTHER_MISTAKES)
        .map(|error| format!("also line {}: {}", error.line.unwrap_or(0), error.message))
        .collect();
    let mut first = report.errors.into_iter().next()?;
    first.suggestions.extend(further);
    Some(if others.is_empty() {
        first
    } else {
        first.with("otherErrors", Value::Array(others))
    })
}

fn too_large_error(bytes: usize, limits: &Limits, surface: LimitSurface) -> ScriptError {
    let (max, kind) = (limits.max_return_bytes, LimitKind::ReturnedValue);
    let message = format!(
        "the returned value has {bytes} bytes as JSON, more than {max}: output_json holds a preview"
    );
    ScriptError::new(ErrorCode::SerializationError, Phase::Finalizing, message)
        .suggest("return only what is needed: filter, count, or take a slice")
        .suggest_if_some(surface.raise_hint(kind, limits))
        .with(LimitKind::METADATA_KEY, kind.key())
        .with("bytes", bytes)
}

/// Returns the results of a failed script's calls as JSON. If they are too large, long ones are
/// previews, with the size of the whole result in `bytes`.
fn partial_results(results: &[PartialResult], max: usize) -> String {
    let list = |max_value: usize| {
        let entry = |result: &PartialResult| {
            let value = serde_json::from_str::<Value>(&result.json).unwrap_or_default();
            let mut entry = json!({"callId": result.call_id, "tool": result.tool});
            let is_whole = result.json.len() == result.bytes && result.bytes <= max_value;
            entry["value"] = match is_whole {
                true => value,
                false => {
                    entry["bytes"] = result.bytes.into();
                    let preview = truncate_json(&value, max_value);
                    serde_json::from_str(&preview).unwrap_or_default()
                }
            };
            entry
        };
        json!({"partialResults": results.iter().map(entry).collect::<Vec<_>>()})
    };
    let text = list(usize::MAX).to_string();
    if text.len() <= max {
        return text;
    }
    let sizes: Vec<usize> = results.iter().map(|result| result.json.len()).collect();
    let others = text.len().saturating_sub(sizes.iter().sum());
    // Room for `bytes` of each preview.
    let room = max.saturating_sub(others + results.len() * 20);
    truncate_json(&list(fair_share(&sizes, room)), max)
}

/// Sets the duration of a run, and the id and the duration of the run in its error.
pub(crate) fn set_duration(output: &mut ScriptToolCallOutput, started: Instant) {
    let elapsed_ms = (started.elapsed().as_secs_f64() * 1e6).round() / 1e3;
    output.metadata.duration_ms = elapsed_ms;
    if let Some(error) = &mut output.error {
        error.script_id = Some(output.id.clone());
        let elapsed = ("elapsedMs".to_owned(), elapsed_ms.into());
        error.metadata.extend([elapsed]);
    }
}
