//! The inputs of a run, which do not change while it runs.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_protocol::{CallReach, LimitSurface, Limits, ScriptError, TimeoutSource};
use selvedge_sandbox::Runtime;
use selvedge_tools::{Orchestrator, Scope, TaskContext, TaskSet};
use tokio_util::sync::CancellationToken;

use crate::compile::CompiledScript;
use crate::errors::truncate_bytes;
use crate::globals::{is_reserved_name, tool_namespace};
use crate::output_buffer::OutputBuffer;
use crate::recording::Recorder;
use crate::replay_calls::ReplayAnswers;
use crate::run_record::RunRecord;
use crate::suspension::Suspension;

/// The inputs of a run, which do not change while it runs. Everything that the run starts belongs
/// to its scope and ends with it.
pub(crate) struct RunContext<'a> {
    pub(crate) runtime: &'a dyn Runtime,
    pub(crate) orchestrator: &'a Orchestrator,
    pub(crate) compiled: &'a Arc<CompiledScript>,
    pub(crate) scope: &'a Scope,
    pub(crate) limits: &'a Limits,
    pub(crate) surface: LimitSurface,
    pub(crate) timeout: Duration,
    pub(crate) timeout_source: TimeoutSource,
    pub(crate) seed: u64,
    pub(crate) output: &'a Arc<Mutex<OutputBuffer>>,
    pub(crate) recorder: &'a Arc<Mutex<Recorder>>,
    pub(crate) start_mode: StartMode<'a>,
    /// Suspends the run at its next await.
    pub(crate) suspend: &'a CancellationToken,
    /// The caller is gone: suspends a run that waits for a person, and cancels any other.
    pub(crate) caller_gone: &'a CancellationToken,
    pub(crate) call_id: &'a str,
    /// Whether calls that were not awaited are waited for instead of cancelled.
    pub(crate) allow_detached: bool,
    /// Tasks, if scripts may start them.
    pub(crate) tasks: &'a Option<(TaskSet, TaskContext)>,
}

/// From where a run starts.
#[derive(Clone, Copy)]
pub(crate) enum StartMode<'a> {
    /// From the beginning. The start is recorded in the ledger before the script's first effect;
    /// `None` if there is no ledger.
    Fresh(Option<&'a RunRecord<'a>>),
    /// From the snapshot of a suspended run.
    Restore(&'a Suspension),
    /// From the beginning with the recording of a suspended run, and then live. Used if another
    /// build of the engine took the snapshot.
    ReplayThenRestore(&'a ReplayAnswers, &'a Suspension),
    /// From the beginning, with a recording only.
    Replay(&'a ReplayAnswers),
}

impl<'a> StartMode<'a> {
    pub(crate) fn recorded(self) -> Option<&'a ReplayAnswers> {
        match self {
            Self::Replay(recorded) | Self::ReplayThenRestore(recorded, _) => Some(recorded),
            Self::Fresh(_) | Self::Restore(_) => None,
        }
    }

    pub(crate) fn suspension(self) -> Option<&'a Suspension> {
        match self {
            Self::Restore(suspension) | Self::ReplayThenRestore(_, suspension) => Some(suspension),
            Self::Fresh(_) | Self::Replay(_) => None,
        }
    }
}

impl<'a> RunContext<'a> {
    /// Records the start of the run in the ledger, unless it is recorded.
    pub(crate) async fn ensure_start_recorded(&self) -> Result<(), ScriptError> {
        match self.start_mode {
            StartMode::Fresh(Some(start)) => start.ensure_start_recorded().await,
            _ => Ok(()),
        }
    }

    /// Returns the limits with the time limit of this run.
    pub(crate) fn limits_of_run(&self) -> Limits {
        Limits {
            timeout_ms: self.timeout.as_millis() as u64,
            ..self.limits.clone()
        }
    }

    /// Returns how many calls the script may make.
    pub(crate) fn max_calls(&self) -> usize {
        let Limits {
            max_tool_calls,
            max_file_calls,
            ..
        } = self.limits;
        (*max_tool_calls as usize).saturating_add(*max_file_calls as usize)
    }

    /// Returns what calls of a tool reach.
    pub(crate) fn reach_of(&self, tool: &str) -> CallReach {
        let tool = self.orchestrator.registry().get(tool);
        tool.map(|tool| tool.spec.reach).unwrap_or_default()
    }

    /// Returns the compiled script, with a constant for each global that holds tools, such as
    /// `workspace` or an MCP server, and that the script names.
    pub(crate) fn javascript(&self) -> Cow<'a, str> {
        let names = self.compiled.undeclared_names.iter();
        let bound: String = names
            .filter(|name| !is_reserved_name(name))
            .filter_map(|name| Some((name, self.namespace_of(name)?)))
            .map(|(name, namespace)| format!("const {name} = tools.{namespace};"))
            .collect();
        let script = &self.compiled.javascript;
        if bound.is_empty() {
            return Cow::Borrowed(script);
        }
        // Inserted on the wrapper's line, so that positions in the script do not change.
        Cow::Owned(script.replacen("{\n", &format!("{{{bound}\n"), 1))
    }

    /// Returns the namespace of the tools that a global holds; on replay, the recorded one.
    fn namespace_of(&self, name: &str) -> Option<String> {
        const CHANNEL: &str = "namespace";
        if let Some(recorded) = self.lock_recorder().recorded_reply(CHANNEL, name) {
            return recorded;
        }
        let namespace = tool_namespace(name, self.orchestrator.registry());
        self.lock_recorder().record_reply(CHANNEL, name, &namespace);
        namespace
    }

    /// Returns the tool's canonical name; on replay, the recorded one.
    pub(crate) fn tool_name(&self, path: &str, call_id: &str) -> String {
        let recorded = self.start_mode.recorded().and_then(|recorded| {
            let mut records = recorded.records.iter();
            records.find(|record| record.id == call_id)
        });
        if let Some(record) = recorded {
            return record.tool.clone();
        }
        match self.orchestrator.registry().get(path) {
            Some(tool) => tool.spec.name.clone(),
            None => truncate_bytes(path, 80),
        }
    }

    pub(crate) fn lock_recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_output(&self) -> MutexGuard<'_, OutputBuffer> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
