//! Options of a run: its limits, the run that it resumes, and the context that the script sees.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::{EventSink, ScriptMode};
use selvedge_tools::PriorCalls;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::script_store::ScriptStore;

/// Options of one run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// The run's id, if its item was created before with
    /// [`Harness::new_script_call`](crate::Harness::new_script_call). `None` generates one.
    pub id: Option<String>,
    /// The id that the model gave the script call. `None` generates one.
    pub call_id: Option<String>,
    /// Overrides the mode of the harness for this run.
    pub mode: Option<ScriptMode>,
    /// Time limit for this run, at most
    /// [`Limits::max_timeout_ms`](selvedge_protocol::Limits::max_timeout_ms). `None` uses the
    /// script's own limit or the default.
    pub timeout: Option<Duration>,
    /// Seed of `Math.random`. `None` uses the resumed run's seed or a random one.
    pub seed: Option<u64>,
    /// Cancels the run.
    pub cancel: CancellationToken,
    /// How a suggestion to resume the run is spelled.
    pub resume_hint: ResumeHintStyle,
    /// The run that this one resumes.
    pub resume: Option<ResumeInput>,
    /// Suspends the run at its next await, once the calls in flight have ended. Needs a ledger.
    pub suspend: CancellationToken,
    /// The caller is gone: a run that waits for a person is suspended, any other is cancelled.
    pub caller_gone: CancellationToken,
    /// Stored with the run: what the caller needs to set up the same tools when the run is
    /// restored.
    pub saved_config: String,
    /// Receives the events of the run.
    pub events: EventSink,
    /// Values that the scripts of a session share with `store` and `load`.
    pub store: ScriptStore,
    /// What the script sees as `context`.
    pub context: ScriptContext,
}

/// How a suggestion to resume a run is spelled: as an argument of a tool call or as a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ResumeHintStyle {
    /// The argument `resume` of the tool `script`.
    #[default]
    Argument,
    /// The flag `--resume` of `selvedge run`.
    CommandLine {
        /// The file of the script, as a word of a shell command; `None` if it has none.
        file: Option<String>,
    },
}

impl ResumeHintStyle {
    /// Returns the suggestion for a failed run that may have had an effect. `first` says what to do
    /// before the run is resumed, such as "correct the script". `undecided` is the id of a call
    /// whose outcome is unknown, which the script has to decide.
    pub(crate) fn suggestion(&self, first: &str, run: &str, undecided: Option<&str>) -> String {
        let how = match self {
            Self::Argument => format!("run it with `resume: \"{run}\"`"),
            Self::CommandLine { file: Some(file) } => {
                format!("run it with `selvedge run {file} --resume {run}`")
            }
            Self::CommandLine { file: None } => format!("pass `--resume {run}`"),
        };
        match undecided {
            Some(call) => format!(
                "{first}, write `resume.repeat(\"{run}/{call}\")` at its start if the call had no \
                 effect, else `resume.skip(\"{run}/{call}\", value)`, and {how}"
            ),
            None => format!("{first} and {how}: completed changes are reused, reads run again"),
        }
    }
}

/// The run that a script resumes, with what it starts from.
#[derive(Debug, Clone)]
pub struct ResumeInput {
    /// Id of the resumed run.
    pub run_id: String,
    /// Recorded calls of the resumed run and of the runs that it resumed.
    pub prior_calls: Arc<PriorCalls>,
    /// The resumed run's seed of `Math.random`, which is used again.
    pub seed: Option<u64>,
}

/// What a suspended run is restored from: the bytes of a `Suspension`, and the values of its
/// calls.
#[derive(Debug, Clone, Default)]
pub struct RestoreInput {
    /// The state that the run handed to the ledger.
    pub state: Vec<u8>,
    /// Values that its calls returned, by call id. Needed to replay the run if it was suspended by
    /// another build of the engine.
    pub values: HashMap<String, Value>,
}

/// The fields of a script's `context` that the caller sets.
#[derive(Debug, Clone, Default)]
pub struct ScriptContext {
    /// Id of the conversation.
    pub conversation_id: String,
    /// Id of the session.
    pub session_id: String,
    /// Id of the turn.
    pub turn_id: String,
    /// The folder in which tools work.
    pub working_directory: String,
    /// Arguments for the script, such as those after `--` on the command line.
    pub args: Vec<String>,
    /// Name of the provider that serves the model.
    pub provider: String,
    /// Name of the model.
    pub model: String,
}
