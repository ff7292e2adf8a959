//! Replays a recorded run without its tools, and compares the output.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use selvedge_protocol::{
    CallRecord, CallStatus, ErrorCode, Limits, RunMetadata, RunStatus, ScriptError,
    ScriptToolCallOutput,
};
use selvedge_sandbox::{Fault, WasmRuntime};
use selvedge_tools::{Orchestrator, Registry};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::StartMode;
use crate::errors::truncate_bytes;
use crate::execute::RunLaunch;
use crate::harness::Harness;
use crate::options::RunOptions;
use crate::recording::{Recorder, Recording};
use crate::replay_calls::{ReplayAnswers, ReplayObserver, divergence_error};

/// A complete recorded run. It can be replayed on another machine, without its tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedRun {
    /// The script as written.
    pub source: String,
    /// The output of the run.
    pub output: ScriptToolCallOutput,
    /// Values that its calls returned, by call id.
    pub values: BTreeMap<String, Value>,
    /// The inputs of the run.
    pub recording: Recording,
}

/// Options of a replay.
#[derive(Default)]
pub struct ReplayOptions {
    /// Id of a call that is forced to fail, to see what the script would have done.
    pub fail_call: Option<String>,
    /// Called for each call when it is answered.
    pub observer: Option<ReplayObserver>,
}

impl RecordedRun {
    /// Creates a recorded run from what a ledger stored. `recording` is what the ledger received at
    /// the end of the run.
    pub fn new(
        source: String,
        recording: &[u8],
        values: BTreeMap<String, Value>,
        output: ScriptToolCallOutput,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            source,
            output,
            values,
            recording: serde_json::from_slice(recording)?,
        })
    }

    /// Replays the run. Returns the recorded output, or a `ReplayDivergenceError` that says how the
    /// replay differs. If a call is forced to fail, returns the output that results from it.
    pub async fn replay(&self, options: ReplayOptions) -> Result<ScriptToolCallOutput, Fault> {
        let started = Instant::now();
        // The recording answers all calls: no tools are needed.
        let harness =
            Harness::with_runtime(WasmRuntime::shared()?, Orchestrator::new(Registry::new()));
        let harness = harness.with_limits(self.recording.limits.clone());
        let original = &self.output;
        let mut output = ScriptToolCallOutput::new(original.id.clone(), original.call_id.clone());
        let compiled = match harness.compile(self.source.as_bytes()).await {
            Ok(compiled) => compiled,
            Err(error) => {
                output.error = Some(error);
                return Ok(output);
            }
        };
        let values = self
            .values
            .iter()
            .map(|(id, value)| (id.clone(), value.to_string()));
        let mut recorded = ReplayAnswers::new(values, original.calls.clone());
        (recorded.forced_failure, recorded.observer) = (options.fail_call, options.observer);
        let seed = original.metadata.random_seed.parse().unwrap_or_default();
        let recorder = Recorder::replay_of(self.recording.clone());
        let mut launch = RunLaunch::new(StartMode::Replay(&recorded), seed, recorder);
        let run_options = RunOptions {
            timeout: Some(self.time_limit()),
            ..RunOptions::default()
        };
        let mut output = harness
            .execute(output, &compiled, &run_options, &mut launch, started)
            .await;
        if self.was_stopped_externally(&output) {
            (output.status, output.error) = (original.status, original.error.clone());
            (output.output_json, output.warnings) =
                (original.output_json.clone(), original.warnings.clone());
            // A script that is stopped while it computes stops at a slightly different point.
            use_recorded_if_prefix(&original.logs, &mut output.logs);
            use_recorded_if_prefix(&original.output, &mut output.output);
        }
        output.metadata = RunMetadata {
            duration_ms: output.metadata.duration_ms,
            ..original.metadata.clone()
        };
        if recorded.forced_failure.is_none() {
            // Warnings of calls are not part of the recording.
            output.warnings = original.warnings.clone();
        }
        let difference = match &recorded.forced_failure {
            None => output_difference(original, &output),
            Some(_) if launch.recorder().may_diverge() => None,
            Some(fail) => Some(divergence_error(&format!(
                "{fail} was not answered in the recorded run, so it cannot be made to fail"
            ))),
        };
        if let Some(difference) = difference {
            output.error = Some(difference);
            output.status = RunStatus::Error;
        }
        Ok(output)
    }

    /// Returns the time limit of the replay. A run that was stopped gets little more time than it
    /// had.
    fn time_limit(&self) -> Duration {
        // A recording may come from another machine and must not set a longer limit than ours.
        let timeout = self
            .recording
            .timeout
            .min(Duration::from_millis(Limits::default().max_timeout_ms));
        let duration =
            Duration::from_secs_f64(self.output.metadata.duration_ms.clamp(0.0, 1e9) / 1000.0);
        match self.recorded_error_code() {
            Some(ErrorCode::ScriptCancelledError | ErrorCode::ScriptTimeoutError) => {
                // This machine may be slower.
                timeout.min(duration * 4 + Duration::from_secs(2))
            }
            _ => timeout,
        }
    }

    fn recorded_error_code(&self) -> Option<ErrorCode> {
        self.output.error.as_ref().map(|error| error.code)
    }

    /// Whether the replay matches up to the point where something outside the script ended the
    /// recorded run: a cancellation, the time limit, or a call that did not stop.
    fn was_stopped_externally(&self, replayed: &ScriptToolCallOutput) -> bool {
        let stopped = replayed.error.as_ref().map(|error| error.code);
        match self.recorded_error_code() {
            Some(ErrorCode::ScriptCancelledError | ErrorCode::ScriptTimeoutError) => {
                let waits = replayed.error.is_none() && replayed.status == RunStatus::Rejected;
                waits || stopped == Some(ErrorCode::ScriptTimeoutError)
            }
            Some(ErrorCode::DetachedPromiseError) => replayed.status == RunStatus::Completed,
            _ => false,
        }
    }
}

/// Replaces a list by the recorded one, if one of the two begins with the other. The last entries
/// are not compared, because they may say how many were omitted.
fn use_recorded_if_prefix<T: PartialEq + Clone>(recorded: &[T], replayed: &mut Vec<T>) {
    let common = recorded.len().min(replayed.len()).saturating_sub(1);
    if recorded[..common] == replayed[..common] {
        *replayed = recorded.to_vec();
    }
}

/// Returns an error that describes the first difference between two outputs.
fn output_difference(
    recorded: &ScriptToolCallOutput,
    replayed: &ScriptToolCallOutput,
) -> Option<ScriptError> {
    if let Some(error) = replayed
        .error
        .as_ref()
        .filter(|error| error.code == ErrorCode::ReplayDivergenceError)
    {
        return Some(error.clone());
    }
    let calls = |output: &ScriptToolCallOutput| -> Vec<(String, String, CallStatus)> {
        let key = |call: &CallRecord| (call.id.clone(), call.tool.clone(), call.status);
        output.calls.iter().map(key).collect()
    };
    let error = |output: &ScriptToolCallOutput| {
        output
            .error
            .as_ref()
            .map(|error| (error.code, error.message.clone(), error.line, error.column))
    };
    let differs = |verb: &str, replayed: &dyn Debug, recorded: &dyn Debug| {
        let [replayed, recorded] =
            [replayed, recorded].map(|value| truncate_bytes(&format!("{value:?}"), 200));
        format!("the script {verb} {replayed}, the recorded run {verb} {recorded}")
    };
    let description = if error(recorded) != error(replayed) {
        differs("ended with", &error(replayed), &error(recorded))
    } else if recorded.output_json != replayed.output_json {
        differs("returned", &replayed.output_json, &recorded.output_json)
    } else if recorded.output != replayed.output {
        "the script showed other output".to_owned()
    } else if recorded.logs != replayed.logs {
        "the script logged other lines".to_owned()
    } else if calls(recorded) != calls(replayed) {
        "the script made other calls".to_owned()
    } else {
        return None;
    };
    Some(divergence_error(&description))
}
