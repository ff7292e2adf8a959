//! What happens while it happens: for terminals, progress notifications and traces.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ApprovalRequest, CallRecord, Entry, RunStatus, TurnEnd, TurnError, TurnItem, Usage};

/// How serious a logged line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// `console.log`, `info` and `debug`.
    Log,
    /// `console.warn`.
    Warn,
    /// `console.error`.
    Error,
}

/// Where a command wrote something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// Its output.
    Stdout,
    /// Its complaints.
    Stderr,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanStep {
    /// What is to be done.
    pub step: String,
    /// How far it is.
    pub status: StepStatus,
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// Not begun.
    Pending,
    /// Being done.
    InProgress,
    /// Done.
    Completed,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum Event {
    /// A conversation begins, or goes on.
    #[serde(rename = "thread.started")]
    ThreadStarted {
        /// The session.
        thread_id: String,
    },
    /// A turn begins, or goes on where it was broken off.
    #[serde(rename = "turn.started")]
    TurnStarted {
        /// Which, from one.
        turn: u32,
    },
    /// An item begins: what is known of it so far.
    #[serde(rename = "item.started")]
    ItemStarted {
        /// Names the item in the events of its turn.
        item_id: String,
        /// As far as it is known.
        item: TurnItem,
    },
    /// A piece of an item.
    #[serde(rename = "item.updated")]
    ItemUpdated {
        /// The item.
        item_id: String,
        /// The piece.
        delta: String,
    },
    /// An item is complete.
    #[serde(rename = "item.completed")]
    ItemCompleted {
        /// The item.
        item_id: String,
        /// All of it.
        item: TurnItem,
    },
    /// An item that was begun is void: the answer broke off, and is asked for again.
    #[serde(rename = "item.dropped")]
    ItemDropped {
        /// The item.
        item_id: String,
    },
    /// The conversation was made shorter, because it nearly filled the model's context.
    #[serde(rename = "thread.compacted")]
    ThreadCompacted {
        /// Tokens before, about.
        tokens_before: u64,
        /// Tokens after, about.
        tokens_after: u64,
    },
    /// The model answered: what the turn took so far, and how full the model's context is.
    #[serde(rename = "usage.updated")]
    UsageUpdated {
        /// Which turn.
        turn: u32,
        /// Tokens of its requests so far.
        usage: Usage,
        /// What they cost, where prices are known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
        /// Tokens of the last request and its answer.
        context_tokens: u64,
        /// Tokens the model can hold.
        context_window: u64,
    },
    /// What the turn changed so far, as a unified diff.
    #[serde(rename = "diff.updated")]
    DiffUpdated {
        /// The diff.
        diff: String,
    },
    /// A turn is over.
    #[serde(rename = "turn.completed")]
    TurnCompleted {
        /// Which.
        turn: u32,
        /// Why.
        finish_reason: TurnEnd,
        /// Tokens of all its requests.
        usage: Usage,
        /// What it cost, where prices are known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
    },
    /// A turn failed.
    #[serde(rename = "turn.failed")]
    TurnFailed {
        /// Which.
        turn: u32,
        /// Why.
        error: TurnError,
        /// Tokens of all its requests.
        usage: Usage,
        /// What it cost, where prices are known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
    },
    /// Something went wrong that did not end the turn, such as an answer that is asked for again.
    #[serde(rename = "error")]
    Error {
        /// One line.
        message: String,
    },
    /// An agent launched by a call begins: its scripts and calls are told among those of whoever launched it.
    #[serde(rename = "agent.started")]
    AgentStarted {
        /// The agent.
        agent_id: String,
        /// The run of the call that launched it.
        parent_id: String,
        /// The call that launched it.
        call_id: String,
        /// Its own conversation, which its runs belong to.
        session_id: String,
    },
    /// A script begins.
    #[serde(rename = "script.started")]
    ScriptStarted {
        /// The run.
        script_id: String,
    },
    /// A call begins, after any queueing and questions.
    #[serde(rename = "call.started")]
    CallStarted {
        /// The run it belongs to.
        parent_id: String,
        /// The call.
        call_id: String,
        /// Canonical name.
        tool: String,
        /// Its arguments in a few words.
        about: String,
    },
    /// A call is over.
    #[serde(rename = "call.finished")]
    CallFinished {
        /// The run it belongs to.
        parent_id: String,
        /// Its line in the ledger.
        call: CallRecord,
    },
    /// A command wrote something.
    #[serde(rename = "call.output")]
    CallOutput {
        /// The run the call belongs to.
        parent_id: String,
        /// The call.
        call_id: String,
        /// Where it was written.
        stream: OutputStream,
        /// What, as text.
        text: String,
    },
    /// A document was put into the File Cabinet, or looked up there.
    #[serde(rename = "document.kept")]
    DocumentKept {
        /// The run the call belongs to.
        parent_id: String,
        /// The call.
        call_id: String,
        /// What is known of it.
        document: Entry,
    },
    /// The plan changed.
    #[serde(rename = "plan.updated")]
    PlanUpdated {
        /// The run the call belongs to.
        parent_id: String,
        /// The steps, in order.
        plan: Vec<PlanStep>,
        /// Why it changed.
        explanation: Option<String>,
    },
    /// The script logged.
    #[serde(rename = "script.log")]
    Log {
        /// The run.
        script_id: String,
        /// How serious.
        level: LogLevel,
        /// What.
        message: String,
    },
    /// The script told how far it is.
    #[serde(rename = "script.progress")]
    Progress {
        /// The run.
        script_id: String,
        /// Whether it is a warning.
        level: LogLevel,
        /// What.
        message: String,
    },
    /// `notify()`: the script wants the model to know now.
    #[serde(rename = "script.notify")]
    Notify {
        /// The run.
        script_id: String,
        /// What.
        message: String,
    },
    /// `yield_control()`: the script would rather be waited for later.
    #[serde(rename = "script.yield")]
    Yield {
        /// The run.
        script_id: String,
    },
    /// A person is asked.
    #[serde(rename = "approval.requested")]
    ApprovalRequested {
        /// The question.
        request: ApprovalRequest,
    },
    /// A person answered, or nobody did.
    #[serde(rename = "approval.answered")]
    ApprovalAnswered {
        /// The question's id.
        id: String,
        /// The answers in words, one per call.
        answers: Vec<String>,
    },
    /// A script is over.
    #[serde(rename = "script.finished")]
    ScriptFinished {
        /// The run.
        script_id: String,
        /// How.
        status: RunStatus,
        /// From start to result.
        duration_ms: f64,
    },
}

/// Takes events as they happen; must not block.
#[derive(Clone)]
pub struct EventSink(Arc<dyn Fn(Event) + Send + Sync>);

impl EventSink {
    /// A sink that calls `take` for each event.
    pub fn new(take: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// A sink that drops everything.
    pub fn silent() -> Self {
        Self::new(drop)
    }

    /// Hands over one event.
    pub fn emit(&self, event: Event) {
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
