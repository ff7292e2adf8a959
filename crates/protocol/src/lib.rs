//! Types that every Selvedge crate shares: items and events, limits and settings, errors and ids.
//!
//! No I/O and no async. Terminals, MCP clients and programs in other languages read these types as
//! they are serialised.
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod approval;
mod cabinet;
mod conversation;
mod error;
mod event;
mod id;
mod item;
mod ledger;
mod limits;
mod settings;
mod spec;
mod turn;

pub use approval::{
    Answer, ApprovalDecision, ApprovalPolicy, ApprovalRequest, GatedCall, Preview, SandboxPolicy,
    View,
};
pub use cabinet::{Cabinet, DOCUMENTS_KEPT, Document, DocumentKind, Entry, NewDocument};
pub use conversation::{
    CallKind, FinishReason, FunctionCall, FunctionCallOutput, Item, Message, ModelErrorKind,
    Native, Origin, Reasoning, Role, Usage, WireApi,
};
pub use error::{ErrorCode, Phase, Retry, ScriptError};
pub use event::{Event, EventSink, LogLevel, OutputStream, PlanStep, StepStatus};
pub use id::{new_file_key, new_id, now_ms, since_epoch};
pub use item::{
    CallError, CallRecord, CallStatus, LogEntry, OutputPart, RunMetadata, RunStatus,
    ScriptToolCall, ScriptToolCallOutput,
};
pub use ledger::{Answered, Intent, Ledger, LedgerError, ResumeAs, RunStart, Settled, Shelf};
pub use limits::{Limits, Mode, ModeSettings};
pub use settings::{
    CommandLimits, Durability, Effort, EnvironmentPolicy, Inherit, McpApproval, McpSampling,
    McpServerOptions, Prices, Retention, RetryLimits, Thinking, ToolPack, WeakerWall,
};
pub use spec::{Approval, SPAWN, ToolSpec};
pub use turn::{TurnEnd, TurnError, TurnErrorKind, TurnItem};
