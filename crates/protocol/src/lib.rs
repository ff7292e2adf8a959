//! Types that every Selvedge crate shares: items and events, limits and settings, errors and ids.
//!
//! No I/O and no async. Terminals, MCP clients and programs in other languages read these types as
//! they are serialised.
// Standard streams belong to the program that uses this crate.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod api_token_store;
mod api_tokens;
mod approval;
mod approval_decider_store;
mod channels;
mod conversation;
mod document_store;
mod error;
mod event;
mod id;
mod idempotency_store;
mod item;
mod leases;
mod ledger;
mod limits;
mod permissions;
mod request_gate;
mod server_store;
mod session_event_store;
mod session_queue_store;
mod session_store;
mod settings;
mod shared_approvals;
mod spec;
mod turn;
mod turn_changes;

pub use api_token_store::{ApiTokenStore, NewApiToken};
pub use api_tokens::{
    ApiToken, LOGIN_TOKEN_PREFIX, MAX_TOKEN_NAME_CHARS, TokenScope, is_login_name, is_token_name,
};
pub use approval::{
    ApprovalPolicy, ApprovalRequest, ApprovalResponse, CallDecision, GatedCall, Preview,
    PreviewContent, RuleScope, SandboxPolicy,
};
pub use approval_decider_store::{ApprovalDecider, ApprovalDeciderStore, DecisionRace};
pub use channels::{
    AuthorKind, ChannelError, ChannelInfo, ChannelMessage, ChannelStore, Following,
    MAX_CHANNEL_MESSAGE_BYTES, MAX_CHANNEL_READ, MAX_HOPS, MessageAuthor, NewChannelMessage,
    PostReceipt, ReadFrom, check_channel_name, mention_of_title, mentions_in,
};
pub use conversation::{
    ConversationItem, FinishReason, FunctionCall, FunctionCallKind, FunctionCallOutput, Message,
    MessageRole, ModelErrorKind, ModelOrigin, NativePayload, Reasoning, Usage, WireApi,
};
pub use document_store::{
    DOCUMENT_RETENTION, Document, DocumentInfo, DocumentKind, DocumentStore, NewDocument,
};
pub use error::{ErrorCode, Phase, Retry, ScriptError};
pub use event::{EventSink, LogLevel, OutputStream, PlanStep, PlanStepStatus, RuntimeEvent};
pub use id::{new_document_key, new_id, now_ms, since_epoch};
pub use idempotency_store::{IdempotencyStore, RepeatedRequest, StoredReply};
pub use item::{
    CallError, CallRecord, CallStatus, LogEntry, OutputPart, RunMetadata, RunStatus,
    ScriptToolCall, ScriptToolCallOutput, command_exit_code,
};
pub use leases::{LeaseObserver, ServerLeaseStore};
pub use ledger::{
    CallEnd, CallStart, Ledger, LedgerError, ResumeAs, RunStart, ScriptStoreBackend, StartDetails,
    first_attempt_id, retry_call_id,
};
pub use limits::{
    LimitKind, LimitOverrides, LimitSurface, Limits, ReachedLimit, ScriptMode, ScriptModeSettings,
    TimeoutSource,
};
pub use permissions::{
    BudgetAmounts, BudgetShare, TurnBudgets, TurnPermissions, WorkspaceReach, share_of_budget,
};
pub use request_gate::{RequestDecision, RequestGate};
pub use server_store::ServerStoreError;
pub use session_event_store::{
    MAX_EVENT_READ, MAX_EVENT_READ_BYTES, SessionEvent, SessionEventStore,
};
pub use session_queue_store::{
    FailedMessage, NextMessage, RemovedMessage, SessionQueueStore, WaitingSession,
};
pub use session_store::{
    ClaimedMessage, InboxMessage, InboxState, MAX_CREATED_SESSIONS, MAX_INBOX_MESSAGE_BYTES,
    MAX_QUEUED_MESSAGES, MAX_SESSION_DEPTH, MAX_TITLE_CHARS, NewInboxMessage, NewSession,
    QueuedTurnFuture, QueuedTurnRunner, SessionError, SessionFilter, SessionFolder, SessionFuture,
    SessionInfo, SessionRunner, SessionState, SessionStore, SessionWait,
};
pub use settings::{
    BlockOrder, CommandLimits, Durability, Effort, EnvironmentPolicy, InheritedVariables,
    McpApproval, McpSampling, McpServerOptions, MemoryScope, OAuthSettings, PatchFlavour, Prices,
    ReasoningStyle, Retention, RetryLimits, ShellFlavour, ToolPack, WeakerConfinement,
};
pub use shared_approvals::{ApprovalWithdrawal, SharedApproval, SharedApprovalStore};
pub use spec::{ApprovalRequirement, CallReach, CallTimeout, ResultView, SPAWN_TOOL, ToolSpec};
pub use turn::{TurnEnd, TurnError, TurnErrorKind, TurnItem};
pub use turn_changes::{
    FileSnapshot, FileSnapshotKind, MAX_RECORDED_TURNS, TurnChangeStore, TurnFileChange,
    TurnFileChanges,
};
