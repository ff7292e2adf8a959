//! The circumstances of a run: what it may take, which run it resumes, where it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use selvedge_protocol::{EventSink, Mode};
use selvedge_tools::PriorCalls;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::session::Session;

/// The circumstances of one run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// The run's id, where its item was made before; see [`Harness::item`](crate::Harness::item).
    pub id: Option<String>,
    /// The model's own name for the call.
    pub call_id: Option<String>,
    /// Overrides the harness's mode for this run.
    pub mode: Option<Mode>,
    /// Time limit for this run; at most [`Limits::max_timeout_ms`](selvedge_protocol::Limits::max_timeout_ms).
    pub timeout: Option<Duration>,
    /// Seed of `Math.random`; a fresh one where none is given.
    pub seed: Option<u64>,
    /// Stops the run.
    pub cancel: CancellationToken,
    /// Who can correct the script when it fails.
    pub author: Author,
    /// The run that this one resumes.
    pub resume: Option<Resume>,
    /// Suspends the run at its next await, once the calls in flight have ended. Needs a ledger.
    pub suspend: CancellationToken,
    /// The caller is gone: a run that waits for a person is suspended, any other is cancelled.
    pub leave: CancellationToken,
    /// Kept with the run: what whoever assembled the tools needs to assemble them again.
    pub setting: String,
    /// Takes events.
    pub events: EventSink,
    /// Shared by the scripts of a session.
    pub session: Session,
    /// What `context` tells the script.
    pub facts: Facts,
}

/// Who wrote a script: each resumes a run in another way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Author {
    /// A model, with an argument of its call.
    #[default]
    Model,
    /// A person, at the command line.
    Person,
}

impl Author {
    /// What to do after a run that failed and had done something.
    pub(crate) fn goes_on_from(self, run: &str) -> String {
        let how = match self {
            Self::Model => format!("run it with `resume: \"{run}\"`"),
            Self::Person => format!("run it with `selvedge run FILE --resume {run}`"),
        };
        format!("correct the script and {how}: the results of completed calls are reused")
    }
}

/// The run that a script resumes.
#[derive(Debug, Clone)]
pub struct Resume {
    /// Its id.
    pub run: String,
    /// Its recorded calls and those of the runs it resumed.
    pub calls: Arc<PriorCalls>,
    /// Its seed of `Math.random`, which the script continues with.
    pub seed: Option<u64>,
    /// Whether the same script runs again after a crash. Then no warning names the reused calls,
    /// because its author knows of one run only.
    pub is_recovery: bool,
}

/// A suspended run.
#[derive(Debug, Clone, Default)]
pub struct Suspended {
    /// The state the ledger kept.
    pub state: Vec<u8>,
    /// Values its calls returned, by call id. Needed to replay if the engine is another build.
    pub values: HashMap<String, Value>,
}

/// What a script learns about where it runs.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The conversation.
    pub conversation_id: String,
    /// The session.
    pub session_id: String,
    /// The turn.
    pub turn_id: String,
    /// The folder tools work in.
    pub working_directory: String,
    /// Words for the script, from whoever runs it.
    pub args: Vec<String>,
    /// Who serves the model.
    pub provider: String,
    /// The model.
    pub model: String,
}
