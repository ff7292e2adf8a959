//! Progress events of sessions, turns, runs and calls, for terminals, MCP clients and traces.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ApprovalRequest, CallError, CallRecord, DocumentInfo, ReachedLimit, RunStatus, TurnEnd,
    TurnError, TurnItem, Usage,
};

/// Severity of a line that a script logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// `console.log`, `info` and `debug`.
    Log,
    /// Written with `console.warn`.
    Warn,
    /// Written with `console.error`.
    Error,
}

/// Output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// Written to standard output.
    Stdout,
    /// Written to standard error.
    Stderr,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanStep {
    /// What the step does.
    pub step: String,
    /// Progress of the step.
    pub status: PlanStepStatus,
}

/// Progress of one step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum PlanStepStatus {
    /// The step has not started.
    Pending,
    /// Started and not completed.
    InProgress,
    /// The step is completed.
    Completed,
}

/// A progress event. Serialised with its name in `type`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum RuntimeEvent {
    /// A session starts or is continued.
    #[serde(rename = "thread.started")]
    ThreadStarted {
        /// Id of the session.
        thread_id: String,
    },
    /// A turn starts, or continues after an interruption.
    #[serde(rename = "turn.started")]
    TurnStarted {
        /// Number of the turn in its session, 1-based.
        turn: u32,
    },
    /// An item starts.
    #[serde(rename = "item.started")]
    ItemStarted {
        /// Id of the item, unique among the events of its turn.
        item_id: String,
        /// The item as far as it is known.
        item: TurnItem,
    },
    /// Text was added to an item.
    #[serde(rename = "item.updated")]
    ItemUpdated {
        /// Id of the item.
        item_id: String,
        /// The text that was added.
        delta: String,
    },
    /// An item is complete.
    #[serde(rename = "item.completed")]
    ItemCompleted {
        /// Id of the item.
        item_id: String,
        /// The complete item.
        item: TurnItem,
    },
    /// A started item is discarded: the answer was interrupted and is requested again.
    #[serde(rename = "item.dropped")]
    ItemDropped {
        /// Id of the item.
        item_id: String,
    },
    /// The conversation was compacted because it nearly filled the model's context.
    #[serde(rename = "thread.compacted")]
    ThreadCompacted {
        /// Approximate number of tokens before.
        tokens_before: u64,
        /// Approximate number of tokens after.
        tokens_after: u64,
    },
    /// Memory was searched before the first request of the turn.
    #[serde(rename = "memory.recalled")]
    MemoryRecalled {
        /// How many turns were recalled.
        turns: u32,
        /// How many lessons were recalled.
        lessons: u32,
        /// How many reference layers were recalled.
        layers: u32,
        /// How long the turn waited for it, in milliseconds.
        duration_ms: u64,
        /// What was recalled and what failed, one line each.
        details: Vec<String>,
    },
    /// A request was answered: usage of the turn so far, and of the model's context.
    #[serde(rename = "usage.updated")]
    UsageUpdated {
        /// Number of the turn in its session, 1-based.
        turn: u32,
        /// Tokens of the turn's requests so far.
        usage: Usage,
        /// Cost of these tokens. `None` if the model's prices are not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
        /// Tokens of the latest request and its answer.
        context_tokens: u64,
        /// Context window of the model, in tokens.
        context_window: u64,
    },
    /// The files that the turn changed so far.
    #[serde(rename = "diff.updated")]
    DiffUpdated {
        /// Unified diff of all changes of the turn.
        diff: String,
    },
    /// A turn ended without a failure.
    #[serde(rename = "turn.completed")]
    TurnCompleted {
        /// Number of the turn in its session, 1-based.
        turn: u32,
        /// Why the turn ended.
        finish_reason: TurnEnd,
        /// Tokens of all requests of the turn.
        usage: Usage,
        /// Cost of the turn. `None` if the model's prices are not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
    },
    /// A turn failed.
    #[serde(rename = "turn.failed")]
    TurnFailed {
        /// Number of the turn in its session, 1-based.
        turn: u32,
        /// Why the turn failed.
        error: TurnError,
        /// What a person can do about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
        /// Tokens of all requests of the turn.
        usage: Usage,
        /// Cost of the turn. `None` if the model's prices are not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
    },
    /// An error that did not end the turn, such as a failed request that is sent again.
    #[serde(rename = "error")]
    Error {
        /// One line that says what failed.
        message: String,
    },
    /// A sub-agent started. The events of its scripts and calls are sent to the same sink.
    #[serde(rename = "agent.started")]
    AgentStarted {
        /// Id of the sub-agent.
        agent_id: String,
        /// Id of the run or turn of the call that started it.
        parent_id: String,
        /// Id of the call that started it.
        call_id: String,
        /// Id of the sub-agent's own session, which its runs belong to.
        session_id: String,
    },
    /// A run started.
    #[serde(rename = "script.started")]
    ScriptStarted {
        /// Id of the run.
        script_id: String,
    },
    /// A call started, after queueing and approval.
    #[serde(rename = "call.started")]
    CallStarted {
        /// Id of the run or turn of the call.
        parent_id: String,
        /// Id of the call.
        call_id: String,
        /// Canonical name of the tool.
        tool: String,
        /// Short form of the arguments, for one line of a terminal.
        args_summary: String,
    },
    /// A call ended.
    #[serde(rename = "call.finished")]
    CallFinished {
        /// Id of the run or turn of the call.
        parent_id: String,
        /// Outcome of the call.
        call: CallRecord,
        /// What went wrong, if the call is done and its result reports a failure, such as the exit
        /// code of a command.
        #[serde(skip_serializing_if = "Option::is_none")]
        result_failure: Option<String>,
    },
    /// A command wrote output.
    #[serde(rename = "call.output")]
    CallOutput {
        /// Id of the run or turn of the call.
        parent_id: String,
        /// Id of the call.
        call_id: String,
        /// Stream that was written to.
        stream: OutputStream,
        /// Output as text.
        text: String,
    },
    /// A call saved a document in the File Cabinet, or found it there.
    #[serde(rename = "document.stored")]
    DocumentStored {
        /// Id of the run or turn of the call.
        parent_id: String,
        /// Id of the call.
        call_id: String,
        /// Metadata of the document.
        document: DocumentInfo,
    },
    /// The plan changed.
    #[serde(rename = "plan.updated")]
    PlanUpdated {
        /// Id of the run or turn of the call.
        parent_id: String,
        /// All steps, in order.
        plan: Vec<PlanStep>,
        /// Reason that the model gave for the change.
        explanation: Option<String>,
    },
    /// A script logged a line with `console`.
    #[serde(rename = "script.log")]
    ScriptLog {
        /// Id of the run.
        script_id: String,
        /// Severity of the line.
        level: LogLevel,
        /// The text that was logged.
        message: String,
    },
    /// A script reported progress.
    #[serde(rename = "script.progress")]
    ScriptProgress {
        /// Id of the run.
        script_id: String,
        /// Severity of the message.
        level: LogLevel,
        /// The message of the script.
        message: String,
    },
    /// A script called `notify()`: the model should read the message now.
    #[serde(rename = "script.notify")]
    ScriptNotify {
        /// Id of the run.
        script_id: String,
        /// Message for the model.
        message: String,
    },
    /// A script called `yield_control()`: the client need not wait for it now.
    #[serde(rename = "script.yield")]
    ScriptYield {
        /// Id of the run.
        script_id: String,
    },
    /// An approval is requested.
    #[serde(rename = "approval.requested")]
    ApprovalRequested {
        /// The approval request.
        request: ApprovalRequest,
    },
    /// An approval request was answered, timed out or was cancelled.
    #[serde(rename = "approval.answered")]
    ApprovalAnswered {
        /// Id of the approval request.
        id: String,
        /// One text per call, in the order of the request.
        answers: Vec<String>,
    },
    /// A run ended.
    #[serde(rename = "script.finished")]
    ScriptFinished {
        /// Id of the run.
        script_id: String,
        /// How the run ended.
        status: RunStatus,
        /// Time from start to result, in milliseconds.
        duration_ms: f64,
        /// Why the run failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<CallError>,
        /// The limit that the run reached, if it failed because of one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<ReachedLimit>,
    },
}

impl RuntimeEvent {
    /// Returns the event of the end of a turn.
    pub fn turn_end(
        turn: u32,
        end: Result<TurnEnd, TurnError>,
        usage: Usage,
        cost: Option<f64>,
    ) -> Self {
        match end {
            Ok(finish_reason) => Self::TurnCompleted {
                turn,
                finish_reason,
                usage,
                cost,
            },
            Err(error) => Self::TurnFailed {
                turn,
                error,
                hint: None,
                usage,
                cost,
            },
        }
    }
}

/// Receives events as they happen. Clones send to the same receiver.
#[derive(Clone)]
pub struct EventSink(Arc<dyn Fn(RuntimeEvent) + Send + Sync>);

impl EventSink {
    /// Creates a sink that calls `take` for each event. `take` must not block.
    pub fn new(take: impl Fn(RuntimeEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// Creates a sink that discards all events.
    pub fn silent() -> Self {
        Self::new(drop)
    }

    /// Sends one event.
    pub fn emit(&self, event: RuntimeEvent) {
        (self.0)(event);
    }
}

impl Default for EventSink {
    fn default() -> Self {
        Self::silent()
    }
}

impl std::fmt::Debug for EventSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventSink")
    }
}
