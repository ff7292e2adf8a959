//! Replays a recorded run offline.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use selvedge_protocol::{
    CallRecord, CallStatus, ErrorCode, Limits, RunMetadata, RunStatus, ScriptError,
    ScriptToolCallOutput,
};
use selvedge_sandbox::{Fault, Wasm};
use selvedge_tools::{Orchestrator, Registry};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::Start;
use crate::execute::Launch;
use crate::harness::Harness;
use crate::options::RunOptions;
use crate::outcome::shortened;
use crate::playback::{RecordedCalls, Watch, diverged};
use crate::recording::{Recorder, Recording};

/// A recorded run, whole: it can be played again on another machine, without its tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cassette {
    /// The script as written.
    pub source: String,
    /// What it came to.
    pub output: ScriptToolCallOutput,
    /// What its calls returned, by their ids.
    pub values: BTreeMap<String, Value>,
    /// The inputs of the run.
    #[serde(rename = "tape")]
    pub recording: Recording,
}

/// How to play a cassette.
#[derive(Default)]
pub struct Replay {
    /// A call that fails this time: what would the script have done?
    pub fail: Option<String>,
    /// Called for each call as it is answered.
    pub watch: Option<Watch>,
}

impl Cassette {
    /// A cassette from what a ledger kept; the recording is what it was given at the run's end.
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

    /// Replays the run. Returns the recorded output, or a `ReplayDivergenceError` that says where
    /// the replay differs; if a call is made to fail, the output that results from it.
    pub async fn play(&self, how: Replay) -> Result<ScriptToolCallOutput, Fault> {
        let started = Instant::now();
        // No tool is there to be called.
        let harness = Harness::on(Wasm::shared()?, Orchestrator::new(Registry::new()));
        let harness = harness.with_limits(self.recording.limits.clone());
        let then = &self.output;
        let mut output = ScriptToolCallOutput::new(then.id.clone(), then.call_id.clone());
        let compiled = match harness.compile(self.source.as_bytes()) {
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
        let mut recorded = RecordedCalls::new(values, then.calls.clone());
        (recorded.fail, recorded.watch) = (how.fail, how.watch);
        let seed = then.metadata.random_seed.parse().unwrap_or_default();
        let recorder = Recorder::replaying(self.recording.clone());
        let mut launch = Launch::new(Start::Replay(&recorded), seed, recorder);
        let options = RunOptions {
            timeout: Some(self.time()),
            ..RunOptions::default()
        };
        let mut output = harness
            .execute(output, &compiled, &options, &mut launch, started)
            .await;
        if self.was_ended_from_outside(&output) {
            (output.status, output.error) = (then.status, then.error.clone());
            (output.output_json, output.warnings) =
                (then.output_json.clone(), then.warnings.clone());
            // Stopped while it computed, it came a little further, or less far.
            as_far_as(&then.logs, &mut output.logs);
            as_far_as(&then.output, &mut output.output);
        }
        output.metadata = RunMetadata {
            duration_ms: output.metadata.duration_ms,
            ..then.metadata.clone()
        };
        let difference = match &recorded.fail {
            None => difference(then, &output),
            Some(_) if launch.recorder().is_what_if() => None,
            Some(fail) => Some(diverged(&format!(
                "{fail} was never answered, so it cannot fail either"
            ))),
        };
        if let Some(difference) = difference {
            output.error = Some(difference);
            output.status = RunStatus::Error;
        }
        Ok(output)
    }

    /// How long it may compute: no longer than it did where it was stopped.
    fn time(&self) -> Duration {
        // Whoever made the recording does not say how long we compute.
        let timeout = self
            .recording
            .timeout
            .min(Duration::from_millis(Limits::default().max_timeout_ms));
        let then =
            Duration::from_secs_f64(self.output.metadata.duration_ms.clamp(0.0, 1e9) / 1000.0);
        match self.ended_with() {
            Some(ErrorCode::ScriptCancelledError | ErrorCode::ScriptTimeoutError) => {
                // Here it may all take longer.
                timeout.min(then * 4 + Duration::from_secs(2))
            }
            _ => timeout,
        }
    }

    fn ended_with(&self) -> Option<ErrorCode> {
        self.output.error.as_ref().map(|error| error.code)
    }

    /// Whether the script did all it had done, and what ended it then is not there now: somebody who interrupts it, time
    /// that is up, a tool that does not stop.
    fn was_ended_from_outside(&self, now: &ScriptToolCallOutput) -> bool {
        let stopped = now.error.as_ref().map(|error| error.code);
        match self.ended_with() {
            Some(ErrorCode::ScriptCancelledError | ErrorCode::ScriptTimeoutError) => {
                let at_rest = now.error.is_none() && now.status == RunStatus::Rejected;
                at_rest || stopped == Some(ErrorCode::ScriptTimeoutError)
            }
            Some(ErrorCode::DetachedPromiseError) => now.status == RunStatus::Completed,
            _ => false,
        }
    }
}

/// Of two lists of which one begins with the other, the one from then. The last of a list may say how much was left out.
fn as_far_as<T: PartialEq + Clone>(then: &[T], now: &mut Vec<T>) {
    let alike = then.len().min(now.len()).saturating_sub(1);
    if then[..alike] == now[..alike] {
        *now = then.to_vec();
    }
}

/// What came out otherwise than it had.
fn difference(then: &ScriptToolCallOutput, now: &ScriptToolCallOutput) -> Option<ScriptError> {
    if let Some(error) = now
        .error
        .as_ref()
        .filter(|error| error.code == ErrorCode::ReplayDivergenceError)
    {
        return Some(error.clone());
    }
    let calls = |output: &ScriptToolCallOutput| -> Vec<(String, String, CallStatus)> {
        let line = |call: &CallRecord| (call.id.clone(), call.tool.clone(), call.status);
        output.calls.iter().map(line).collect()
    };
    let error = |output: &ScriptToolCallOutput| {
        output
            .error
            .as_ref()
            .map(|error| (error.code, error.message.clone(), error.line, error.column))
    };
    let differs = |verb: &str, now: &dyn Debug, then: &dyn Debug| {
        let [now, then] = [now, then].map(|value| shortened(&format!("{value:?}"), 200));
        format!("it {verb} {now}, and had {verb} {then}")
    };
    let words = if error(then) != error(now) {
        differs("ended with", &error(now), &error(then))
    } else if then.output_json != now.output_json {
        differs("returned", &now.output_json, &then.output_json)
    } else if then.output != now.output {
        "it showed other things than it had".to_owned()
    } else if then.logs != now.logs {
        "it logged other things than it had".to_owned()
    } else if calls(then) != calls(now) {
        "it made other calls than it had".to_owned()
    } else {
        return None;
    };
    Some(diverged(&words))
}
